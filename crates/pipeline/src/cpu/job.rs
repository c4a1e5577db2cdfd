//! A request on its way to what computes it beside the thread that serves.

use slots::layout::Header;
use slots::{Arrival, Status};

/// A request on its way through an [`super::Offload`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    pub client: u32,
    pub slot: u32,
    /// Of the request in its slot.
    pub sequence: u32,
    /// A request that is not OK is answered and not computed.
    pub status: Status,
    pub header: Header,
    pub arrival: Arrival,
    /// Consumer index of the client's send queue, where kernels post.
    pub completed: u64,
}
