//! A client, as kernels and the thread that posts know it.

use slots::Geometry;
use slots::layout::FLAG_BYTES;
use verbs::connect::RegionOffer;

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

/// A client's regions for the answers and flags of so many slots. Error: they do not fit there.
pub(crate) fn answer_regions(
    offered: &[RegionOffer],
    geometry: &Geometry,
    slots: usize,
) -> Result<[RegionOffer; 2], String> {
    let needed = [geometry.client_stride(), FLAG_BYTES].map(|each| each * slots);
    let fits = |(region, needed): (&RegionOffer, usize)| region.bytes >= needed as u64;
    offered.try_into().ok().filter(|_| offered.iter().zip(needed).all(fits)).ok_or_else(|| {
        let ([answers, flags], count) = (needed, offered.len());
        format!("{count} regions for answers where 2 of at least {answers} and {flags} bytes are needed")
    })
}
