//! Measuring: histograms, JSON lines with provenance and label, defined timers, and tests that skip aloud.
//!
//! Knows nothing of what is measured: no RDMA, no GPU, no figure. Left out: plots and verdicts (`xtask`).

#![forbid(unsafe_code)]

pub mod background_load;
pub mod histogram;
pub mod hosts;
pub mod json_lines;
pub mod label;
pub mod loopback;
pub mod need;
pub mod provenance;
pub mod revision;
pub mod timer;
pub mod write_whole;

pub use background_load::BackgroundLoad;
pub use histogram::{Histogram, Summary};
pub use hosts::Hosts;
pub use json_lines::JsonLines;
pub use label::{Label, Part};
pub use loopback::Loopback;
pub use provenance::Provenance;
pub use revision::Revision;
pub use timer::Timer;
pub use write_whole::write_whole;
