//! Connecting queue pairs of two processes over TCP: one JSON line each way, then states.
//!
//! Order of use on both sides: [`PathOptions::resolve`] → create the queue pairs → [`Path::to_init`] → post
//! receives → [`Session::exchange`] → [`Path::connect`] → [`Session::barrier`]; then both may send. TCP stays
//! for the application's own lines and to see the peer's end. Every wait has a deadline ([`Wait`]).
//! Left out: rdma_cm, encryption (what is exchanged are queue pair numbers and keys, as in perftest).

mod error;
mod hello;
mod path;
mod peer;
mod session;

pub use error::ConnectError;
pub use hello::{Hello, QpOffer, RegionOffer};
pub use path::{GidChoice, Path, PathOptions};
pub use session::{Closer, Listener, Session, Wait};

/// First field of each side's line.
pub const PROTOCOL: &str = "doorbell-connect";
/// Version of that line; both sides must have the same.
pub const VERSION: u64 = 1;
