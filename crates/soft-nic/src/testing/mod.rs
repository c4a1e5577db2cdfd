//! The driver of `mlx5_device::testing` on a NIC with its link, in memory between guard pages.

use std::sync::atomic::AtomicU32;

use mlx5_device::Counters;
use mlx5_device::memory::Memory;
use mlx5_device::model::DeviceConfig;
use roce::Now;

pub use mlx5_device::testing::*;

use crate::config::Config;
use crate::dma::testing::Guarded;
use crate::dma::{Copiers, Host};
use crate::link::{Link, LinkConfig};
use crate::recording::Nic;

/// The driver of a NIC on a link.
pub type Driver<M> = DriverOf<Nic<M>>;

/// What a test says of a NIC and its link before they are made.
pub struct Setup<M> {
    pub config: Config,
    /// What the NIC reads rings and records through.
    pub memory: M,
    /// Fabric to join; drivers on one fabric reach each other.
    pub fabric: String,
}

impl Setup<Host> {
    /// One ConnectX-6 on InfiniBand, on a fabric of its own.
    pub fn new(name: &str) -> Setup<Host> {
        let memory = Host::new().expect("the fault handler can be installed");
        let fabric = format!("test-{}-{name}", std::process::id());
        Setup { config: Config::default(), memory, fabric }
    }
}

impl<M> Setup<M> {
    pub fn with_memory<N>(self, memory: N) -> Setup<N> {
        Setup { config: self.config, memory, fabric: self.fabric }
    }

    /// The same with this change to the configuration.
    pub fn with(mut self, change: impl FnOnce(&mut Config)) -> Setup<M> {
        change(&mut self.config);
        self
    }
}

impl<M: Memory> MakeNic for Setup<M> {
    type Nic = Nic<M>;

    fn make(self, sinks: &Sinks, now: Now) -> Nic<M> {
        let Setup { config, memory, fabric } = self;
        let copiers = Copiers::new(config.copy_helpers(1));
        let link =
            LinkConfig { fabric, addresses: config.wire_addresses(), copiers, ..LinkConfig::default() };
        let link = Link::join(link).expect("a fabric can be joined");
        let nic = Nic::new(&config, memory, link, Box::new(sinks.clone()), sinks.log(), now);
        nic.expect("a NIC of these settings")
    }
}

impl<M: Memory> TestNic for Nic<M> {
    fn poll(&mut self, now: Now) -> usize {
        Nic::poll(self, now)
    }

    fn first_port(&self) -> &DeviceConfig {
        &self.ports()[0]
    }

    fn counters(&self) -> Counters {
        Nic::counters(self)
    }

    fn block(&self, len: usize) -> Block {
        block(len)
    }
}

/// `len` zero bytes of this process, see [`Blocks::block`].
pub fn block(len: usize) -> Block {
    Block::of(Guarded::new(len).expect("the kernel has memory for a test"))
}

impl Blocks for Host {
    fn block(&self, len: usize) -> Block {
        block(len)
    }
}

impl Words for Guarded {
    fn address(&self) -> u64 {
        Guarded::address(self)
    }

    fn size(&self) -> usize {
        self.len()
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        Guarded::word(self, offset)
    }

    fn protect(&self, offset: usize) {
        Guarded::protect(self, offset).expect("own pages can be protected");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_at_any_offset_come_back() {
        let block = block(64);
        assert_eq!(block.address() % 64, 0);
        for offset in 0..8 {
            let bytes: Vec<u8> = (1..=13).map(|i| i * 7 + offset as u8).collect();
            block.write(offset, &bytes);
            assert_eq!(block.bytes(offset, 13), bytes);
        }
    }
}
