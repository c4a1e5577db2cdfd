//! Two NICs of one machine, in shared memory or on a wire.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};

use roce::ServiceType;
use soft_nic::Nic;
use soft_nic::config::{Config, LinkLayer, LinkPath};
use soft_nic::dma::Host;
use soft_nic::testing::{self, Setup};

pub use soft_nic::testing::{BOTH, By, MS, TIMEOUT_NS, sent};

pub type Two = testing::Two<Nic<Host>>;

/// A setup on the wire at a loopback address that no other test of this machine has.
fn on_wire(name: &str) -> Setup<Host> {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let address = Ipv4Addr::new(127, 64 + (pid >> 8 & 63) as u8, pid as u8, count as u8);
    Setup::new(name).with(|config| {
        (config.link_layer, config.path) = (LinkLayer::Roce, LinkPath::Wire);
        config.ipv4 = Some(address);
    })
}

pub fn joined(name: &str, service: ServiceType, by: By) -> Two {
    joined_with(name, service, by, |_| ())
}

/// With this in the requester's configuration.
pub fn joined_with(name: &str, service: ServiceType, by: By, of_left: impl FnOnce(&mut Config)) -> Two {
    let name = format!("{name}-{by:?}");
    let setup = || if by == By::Wire { on_wire(&name) } else { Setup::new(&name) };
    Two::of(setup().with(of_left), setup(), service)
}
