//! What the crate promises: files, plans, and engines against the plain reference.

mod files;
mod gpu;
mod models;
mod operators;
mod preprocess;
