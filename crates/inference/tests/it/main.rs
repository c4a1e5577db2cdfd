//! What the crate promises: files, plans, and engines against the plain reference.

mod files;
mod fuzz;
mod gpu;
mod libraries;
mod models;
mod mutations;
mod operators;
mod preprocess;
mod refusals;
mod resident;
