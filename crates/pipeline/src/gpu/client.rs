//! A client, as kernels and the thread that posts know it.

/// Where a client's answers go, and which slots it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Client {
    pub first: u32,
    pub count: u32,
    /// Of each slot's request before.
    pub sequence: u32,
    /// The client's answers: address and key.
    pub answers: (u64, u32),
    /// The flags of its answers; used with [`slots::Arrival::Flag`].
    pub flags: (u64, u32),
    /// Key of the slots for its queue: [`rdma_shim::kernel::Share::mr`]'s.
    pub lkey: u32,
    /// An unreliable connection's flag says nothing of the bytes before: the last must be there too.
    pub is_reliable: bool,
}
