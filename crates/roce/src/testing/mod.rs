//! Two ends and a link on a virtual clock, for tests here and in crates above.
//!
//! [`Pair`] joins two [`Endpoint`]s by links; [`faults`] are links stacked on links. All of it is deterministic: the same
//! seed gives the same trace (INV-7).

mod endpoint;
pub mod faults;
mod pair;

pub use endpoint::{Endpoint, EndpointConfig, LocalWork, RKEY, Received, VA};
pub use faults::{Fault, Frame, Kind, Link, Pick, Rng, Wire};
pub use pair::{Pair, Side};
