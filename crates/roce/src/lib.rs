//! The transport engine: RoCEv2's reliable, unreliable and datagram services as state machines without I/O.
//!
//! Follows the InfiniBand Architecture Specification vol. 1, chapter 9 (transport layer) and Annex A17 (RoCEv2).
//! Messages go in by `handle_*`, replies and completions come out by `poll_*`; time is an argument. Left out so far:
//! packets (segmentation, ICRC), losses on a wire. Knows nothing of mlx5, sockets, threads or clocks (INV-2).
#![forbid(unsafe_code)]

/// The service a QP gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServiceType {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// `IBV_ACCESS_*` bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(pub u32);
