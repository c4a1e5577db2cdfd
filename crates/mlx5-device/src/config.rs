//! Settings of a NIC and its devices, and the words that configuration files and options have for them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;
use std::str::FromStr;

use crate::carrier::MAX_DELAY_NS;

/// Devices of a NIC at most: a QPN has three bits for them.
pub const MAX_DEVICES: u8 = 8;

/// Ports of a device at most.
pub const MAX_PORTS: u8 = 2;

/// A setting that no NIC can be made with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {value} is not possible, {allowed} is")]
pub struct NicConfigError {
    pub field: &'static str,
    pub value: String,
    pub allowed: &'static str,
}

/// Declares a struct with the value that each of its fields has unless something else is said.
macro_rules! defaults {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $value:expr,)* }) => {
        $(#[$doc])*
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $value,)* }
            }
        }
    };
}
pub(crate) use defaults;

defaults! {
    /// What a NIC is made with: its devices, and how strict it is.
    #[derive(Debug, Clone, PartialEq)]
    NicConfig {
        devices: u8 = 1,
        /// Ports of every device.
        ports: u8 = 1,
        model: Model = Model::default(),
        link_layer: LinkLayer = LinkLayer::default(),
        /// Active MTU of the ports in bytes.
        mtu: u16 = 4096,
        /// Address of `mlx5_0`, port 1, in its GIDs on RoCE; each further port has the next address.
        ipv4: Ipv4Addr = Ipv4Addr::LOCALHOST,
        ipv6: Option<Ipv6Addr> = None,
        path: LinkPath = LinkPath::default(),
        /// Rate to shape to, 10^9 bits a second of wire bytes; none: not shaped.
        rate_gbps: Option<f64> = None,
        /// Probability, 0 to 1, that a packet sent is lost; in shared memory a message counts as a packet.
        loss: f64 = 0.0,
        /// Probability, 0 to 1, that later packets overtake a packet; shared memory keeps its order.
        reorder: f64 = 0.0,
        /// Where the random numbers of losses and reordering begin.
        seed: u64 = 1,
        /// One-way delay of what leaves, ns.
        delay_ns: u64 = 0,
        /// A send queue with a register of its own is executed only as far as register writes cover it.
        strict: bool = true,
        doorbell_order: DoorbellOrder = DoorbellOrder::default(),
        /// The bytes of one WRITE may become visible in any order.
        relaxed_ordering: bool = false,
    }
}

impl NicConfig {
    /// Errors: the first field that is out of its range.
    pub fn check(&self) -> Result<(), NicConfigError> {
        let rate = self.rate_gbps.unwrap_or(1.0);
        let mtu_exists = self.mtu.is_power_of_two() && (256..=4096).contains(&self.mtu);
        for (fits, field, value, allowed) in [
            ((1..=MAX_DEVICES).contains(&self.devices), "devices", self.devices.to_string(), "1 to 8"),
            ((1..=MAX_PORTS).contains(&self.ports), "ports", self.ports.to_string(), "1 or 2"),
            (mtu_exists, "mtu", self.mtu.to_string(), "256, 512, 1024, 2048 or 4096"),
            ((0.001..=1000.0).contains(&rate), "rate_gbps", rate.to_string(), "0.001 to 1000"),
            ((0.0..=1.0).contains(&self.loss), "loss", self.loss.to_string(), "0 to 1"),
            ((0.0..=1.0).contains(&self.reorder), "reorder", self.reorder.to_string(), "0 to 1"),
            (self.delay_ns <= MAX_DELAY_NS, "delay_ns", self.delay_ns.to_string(), "0 to 1000000000"),
        ] {
            if !fits {
                return Err(NicConfigError { field, value, allowed });
            }
        }
        Ok(())
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_is_not_possible_is_named_with_its_value() {
        let good = NicConfig { devices: 8, ports: 2, rate_gbps: Some(0.001), ..NicConfig::default() };
        assert_eq!(good.check(), Ok(()));
        for (config, named) in [
            (NicConfig { devices: 0, ..good.clone() }, "devices = 0"),
            (NicConfig { devices: 9, ..good.clone() }, "devices = 9"),
            (NicConfig { ports: 0, ..good.clone() }, "ports = 0"),
            (NicConfig { ports: 3, ..good.clone() }, "ports = 3"),
            (NicConfig { mtu: 1500, ..good.clone() }, "mtu = 1500"),
            (NicConfig { mtu: 8192, ..good.clone() }, "mtu = 8192"),
            (NicConfig { rate_gbps: Some(f64::NAN), ..good.clone() }, "rate_gbps = NaN"),
            (NicConfig { loss: 1.5, ..good.clone() }, "loss = 1.5"),
            (NicConfig { reorder: f64::NAN, ..good.clone() }, "reorder = NaN"),
            (NicConfig { delay_ns: MAX_DELAY_NS + 1, ..good }, "delay_ns = 1000000001"),
        ] {
            let error = config.check().expect_err(named).to_string();
            assert!(error.starts_with(named), "{named}: {error}");
        }
    }
}
