//! Tests of the link between processes and within one.

mod crowded;
mod processes;
mod speed;
