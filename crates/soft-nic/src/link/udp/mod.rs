//! RoCEv2 over UDP: what carries packets between hosts, and between network namespaces of one.
//!
//! So far the port alone: one address has one UDP port 4791 and any number of NICs behind it. Packets and queues come on top.

mod port;

pub use port::{PortCounters, SharedPort};
