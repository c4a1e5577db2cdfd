//! Two ends and a link on a virtual clock, for tests here and in crates above.
//!
//! [`Pair`] joins two [`PacketEnd`]s by links, [`faults`] are links stacked on links. All of it is deterministic: the same seed gives
//! the same trace (INV-7).

mod endpoint;
pub mod faults;
mod host;
mod on_wire;
mod packet_end;
mod pair;

pub use endpoint::{EndpointConfig, LocalWork, RKEY, VA};
pub use faults::{Fault, Frame, Kind, Line, Link, Pick, Rng, Wire};
pub use host::Received;
pub use on_wire::OnWire;
pub use packet_end::PacketEnd;
pub use pair::{A_QPN, B_QPN, End, Pair, Side};
