//! Unmodified programs under `softnic run`: their output, exit status, and the NIC's counters.
//!
//! Every program, libibverbs and libmlx5 are the distribution's. A missing one is a SKIP, printed and
//! counted. `SOFTNIC_TEST_FULL=1` runs the whole matrix of programs, types, layers, sizes and options.

mod c_program;
mod containers;
mod counters;
mod ctl;
mod ctl_capture;
mod ctl_faults;
mod devinfo;
mod dma_bufs;
mod fabric;
mod gpu_memory;
mod interposer;
mod launcher;
mod perftest;
mod pingpong;
mod processes;
mod program;
mod pyverbs;
mod rdma_cm;
mod rdma_cm_silence;
mod rdma_core_56;
mod recording;
mod sanitizers;
mod starved;
mod tcp_port;
mod tutorial;
mod ucx;
mod versions;
mod wire;
