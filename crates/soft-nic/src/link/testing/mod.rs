//! A link as tests drive it, without a device.

use std::time::Duration;

use mlx5_device::carrier::{Carrier, Disposition};
use roce::Now;

use super::channel::Lane;
use super::{Inbound, Link, Room};
use crate::os::system;

impl Link {
    /// Hands what has arrived, through shared memory or over the wire, to `handler`.
    pub fn poll(&mut self, budget: usize, mut handler: impl FnMut(&mut Inbound<'_>) -> Disposition) -> usize {
        let now = Now(system::monotonic_ns());
        self.poll_records(budget, &mut handler) + self.poll_wire(now, |_, inbound| handler(inbound))
    }

    /// Whether a request can be sent to a slot now.
    pub fn room(&mut self, slot: u8) -> Room {
        self.lane_room(slot, Lane::Request)
    }

    /// Sleeps until a peer rings, [`super::fabric::Fabric::rouse`] or `max`; not if something has arrived.
    pub fn sleep(&mut self, max: Duration) {
        if let Some(sleep) = self.prepare_sleep() {
            sleep.wait(max);
            self.end_sleep();
        }
    }
}
