//! Settings of a NIC and its devices, and the words that configuration files and options have for them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;
use std::str::FromStr;

/// What a NIC is made with: its devices, and how strict it is.
#[derive(Debug, Clone, PartialEq)]
pub struct NicConfig {
    pub devices: u8,
    /// Ports of every device.
    pub ports: u8,
    pub model: Model,
    pub link_layer: LinkLayer,
    /// Active MTU of the ports in bytes.
    pub mtu: u16,
    /// Address of `mlx5_0`, port 1, on RoCE in its GIDs; the n-th port after it has the n-th address after it.
    pub ipv4: Ipv4Addr,
    pub ipv6: Option<Ipv6Addr>,
    pub path: LinkPath,
    /// Rate to shape to, 10^9 bits a second of wire bytes; none: not shaped.
    pub rate_gbps: Option<f64>,
    /// One-way delay of what leaves, ns.
    pub delay_ns: u64,
    /// A send queue with a register of its own is executed only as far as register writes cover it.
    pub strict: bool,
    pub doorbell_order: DoorbellOrder,
    /// The bytes of one WRITE may become visible in any order.
    pub relaxed_ordering: bool,
}

impl Default for NicConfig {
    fn default() -> Self {
        NicConfig {
            devices: 1,
            ports: 1,
            model: Model::default(),
            link_layer: LinkLayer::default(),
            mtu: 4096,
            ipv4: Ipv4Addr::LOCALHOST,
            ipv6: None,
            path: LinkPath::default(),
            rate_gbps: None,
            delay_ns: 0,
            strict: true,
            doorbell_order: DoorbellOrder::default(),
            relaxed_ordering: false,
        }
    }
}

impl NicConfig {
    /// Ports of all devices: those of `mlx5_0` come first, then those of `mlx5_1`…
    pub fn all_ports(&self) -> u8 {
        self.devices * self.ports
    }

    /// The addresses of one port, by its place among all ports.
    pub fn addresses(&self, place: u8) -> impl Iterator<Item = IpAddr> + use<> {
        let v4 = Ipv4Addr::from(u32::from(self.ipv4).wrapping_add(place.into()));
        let v6 = self.ipv6.map(|first| Ipv6Addr::from(u128::from(first).wrapping_add(place.into())));
        [Some(IpAddr::V4(v4)), v6.map(IpAddr::V6)].into_iter().flatten()
    }
}

/// A value that is spelt as one of a few words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? } default $default:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $word)] $variant),+ }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The word that configuration files and options use.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl Default for $name {
            fn default() -> Self { Self::$default }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.word()) }
        }

        impl FromStr for $name {
            type Err = ();
            fn from_str(text: &str) -> Result<Self, ()> {
                Self::ALL.iter().copied().find(|value| value.word() == text).ok_or(())
            }
        }
    };
}

words! {
    /// Which ConnectX the NIC says it is; the capabilities are in `model`.
    Model {
        /// ConnectX-5 (0x1017).
        ConnectX5 = "cx5",
        /// ConnectX-6 (0x101b).
        ConnectX6 = "cx6",
        /// ConnectX-6 Dx (0x101d).
        ConnectX6Dx = "cx6dx",
        /// ConnectX-7 (0x1021).
        ConnectX7 = "cx7",
    } default ConnectX6
}

words! {
    /// Link layer of the port.
    LinkLayer {
        /// InfiniBand: LIDs, GRH optional.
        Ib = "ib",
        /// Ethernet: RoCE v1 and v2 GIDs, GRH required.
        Roce = "roce",
    } default Ib
}

words! {
    /// Which way messages may take.
    LinkPath {
        /// Shared memory between processes of this host, and nothing else.
        Shm = "shm",
        /// RoCEv2 over UDP, also to processes of this host.
        Wire = "wire",
        /// Shared memory to processes of this fabric, the wire to all others where there is one.
        Auto = "auto",
    } default Auto
}

words! {
    /// When a doorbell whose record has not caught up counts.
    DoorbellOrder {
        /// The record must cover the doorbell when the register is read.
        Strict = "strict",
        /// The index in the register is enough, as GPU-initiated stacks rely on.
        Early = "early",
    } default Strict
}
