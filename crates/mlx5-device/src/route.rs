//! A message's way: shared memory to a process of this fabric, packets to an address, or none.

use core::net::IpAddr;

/// Two addresses that packets travel between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Route {
    pub from: IpAddr,
    pub to: IpAddr,
}

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub(super) enum Way {
    /// No process that can be reached has the address.
    #[default]
    Nowhere,
    /// A process of this fabric, by its slot, and the port of its device that has the address.
    Shared(u8, u8),
    /// Over the wire.
    Wire(Route),
}

impl Way {
    pub(super) fn peer(self) -> Option<u8> {
        if let Way::Shared(slot, _) = self { Some(slot) } else { None }
    }

    pub(super) fn route(self) -> Option<Route> {
        if let Way::Wire(route) = self { Some(route) } else { None }
    }
}
