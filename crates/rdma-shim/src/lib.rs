//! Post to and poll mlx5 queues: the C routines of `include/doorbell.h`, compiled for the host, and a safe Rust face.
pub mod header;
