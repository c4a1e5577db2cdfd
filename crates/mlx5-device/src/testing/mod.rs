//! The driver's side of the device, laid out in plain memory without libmlx5.
//!
//! [`DriverOf`] acts as libmlx5 and a program: it makes objects, lays WQEs, stores records and registers, and
//! reads CQEs. All that the NIC reaches by address is memory of atomics ([`Block`]): no test needs `unsafe`.
//! The machine below, its memory and the link, is the test's: [`Words`], [`Blocks`], [`MakeNic`].

mod blocks;
mod driver;
mod shapes;
mod shared_receive;
mod sinks;
mod two;
mod windows;
mod work;

pub use blocks::{Block, Blocks, RegisterPage, Words};
pub use driver::{DriverCq, DriverOf, DriverQp, MakeNic, TestNic, transitions};
pub use shapes::{CqId, CqShape, QpId, QpShape, Region, SrqId};
pub use shared_receive::DriverSrq;
pub use sinks::{AsyncRecord, Sinks};
pub use two::{BOTH, By, MS, TIMEOUT_NS, Two, sent};
pub use windows::{Opening, Window};
pub use work::{Data, WorkRequest};
