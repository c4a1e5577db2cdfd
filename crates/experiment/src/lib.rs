//! Experiments: what is swept (`Spec`), measured (`Point`) and claimed (`Paper`), and what becomes of it:
//! verdicts (`judge`), tables, plots, and the committed `measured.json`.
//!
//! Starts no program: a command hands in one measured point at a time. Left out: what its program is told.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a name that says it all has no comment")]

/// Prints a line on stdout, in one write. A reader that goes away (`| head`) causes no error and no panic.
#[macro_export]
macro_rules! say {
    () => { $crate::say!("") };
    ($($text:tt)*) => { $crate::print(&mut ::std::io::stdout(), ::std::format_args!($($text)*)) };
}

/// The same on stderr.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => { $crate::print(&mut ::std::io::stderr(), ::std::format_args!($($text)*)) };
}

mod by_x;
mod colours;
mod csv;
mod drawing;
mod experiment;
pub mod figures;
pub mod import;
pub mod measured;
pub mod modelled;
pub mod paper;
mod picture;
mod pictures;
mod plot;
pub mod point;
pub mod quantiles;
pub mod refused;
pub mod resume;
pub mod run;
mod runs;
pub mod samples;
pub mod spec;
mod stacks;
pub mod statistics;
pub mod table;
pub mod testing;
pub mod verdict;
pub mod wire_model;

pub use colours::on_dark as plot_colours;
pub use csv::csv;
pub use drawing::Drawing;
pub use experiment::{Experiment, names};
pub use paper::Paper;
pub use picture::{Picture, RunPoints};
pub use pictures::pictures;
pub use point::Point;
pub use samples::Samples;
pub use spec::Spec;
pub use verdict::judge;

/// Writes one line at once, so that lines of several programs do not mix; a closed stream is no error.
#[doc(hidden)]
pub fn print(stream: &mut dyn std::io::Write, text: std::fmt::Arguments<'_>) {
    let _ = stream.write_all(format!("{text}\n").as_bytes());
    let _ = stream.flush();
}

#[cfg(test)]
use testing::root;
