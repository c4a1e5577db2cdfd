//! RoCEv2 over UDP: what carries packets between hosts, and between network namespaces of one.
//!
//! One address has one UDP port 4791 and any number of NICs behind it ([`SharedPort`]); [`Wire`] is the ports of one process,
//! with the headers of every packet. Nothing here knows queues: the device says which queue gets a packet.

mod arrived;
mod encapsulation;
mod holder;
mod impairment;
mod port;

pub use arrived::Arrived;
pub use encapsulation::{Wire, WireCounters};
pub use holder::Holder;
pub use impairment::Impairment;
pub use port::{PortCounters, ROCE_PORT, SharedPort};
