//! Experiments: what is swept (`Spec`), what was measured (`Point`), what is claimed (`Paper`), and what becomes of both: verdicts
//! (`judge`), tables, plots, and the committed `measured.json`.
//!
//! Starts no program: a command measures one point at a time and hands it in. Left out: what a point's program is told.

#![forbid(unsafe_code)]

pub mod figures;
pub mod measured;
pub mod modelled;
pub mod paper;
mod plot;
mod png;
pub mod point;
pub mod record;
pub mod refused;
pub mod spec;
pub mod statistics;
pub mod table;
pub mod verdict;
pub mod wire_model;

pub use paper::Paper;
pub use png::png;
pub use point::Point;
pub use spec::Spec;
pub use verdict::judge;

/// The workspace, for tests of what is committed.
#[cfg(test)]
fn root() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
