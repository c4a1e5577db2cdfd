//! The shim on whatever NIC this host has, and its C header under the system's compilers.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used)]

mod c_header;
mod defects;
mod device_units;
mod gpu_ends;
mod gpu_parity;
mod loopback;
mod parity;
mod seeded;
mod twin;
mod twin_ends;
mod twin_nic;
mod twin_queue;
mod twin_release;
mod twin_requests;
mod twin_shared;
mod twin_shared_words;
mod twin_waits;

host_twin::include_kernels!("kernels");
host_twin::include_kernels!("planted");
