//! Duplicate requests (IBTA vol. 1 §9.7.4, C9-105): the READs and atomics that a reliable responder keeps.
//!
//! A READ is executed again, an atomic gets its first result; a WRITE or SEND, which `reliable` acknowledges
//! again, needs no entry. As many are kept as the QP's responder resources; a conforming requester asks for
//! no older one.

use std::collections::VecDeque;

use crate::Request;
use crate::message::psn_count;

/// The last executed READs and atomics, as many as the QP has responder resources.
#[derive(Debug)]
pub(super) struct ExecutedRequests {
    /// Requests, each with what it found, where it is an atomic.
    entries: VecDeque<(Request, Option<u64>)>,
    limit: usize,
}

impl ExecutedRequests {
    /// A list of `limit` entries at most; room for them comes with the first.
    pub(super) fn new(limit: u8) -> ExecutedRequests {
        ExecutedRequests { entries: VecDeque::new(), limit: usize::from(limit) }
    }

    /// Entries that room was allocated for.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.entries.capacity()
    }

    /// Remembers an executed request; the oldest makes room.
    pub(super) fn remember(&mut self, request: &Request, old: Option<u64>) {
        if self.limit == 0 {
            return;
        }
        if self.entries.len() >= self.limit {
            self.entries.pop_front();
        }
        self.entries.push_back((*request, old));
    }

    /// How to answer a duplicate: with an atomic's result, or (none) with the rest of a READ or all of it.
    /// `None` if it repeats nothing remembered.
    ///
    /// A READ may come again from its middle: from the first missing PSN, with address moved and length cut.
    pub(super) fn find(&self, duplicate: &Request, path_mtu_bytes: u32) -> Option<Option<u64>> {
        let mut latest = self.entries.iter().rev();
        let found = latest.find(|(request, _)| repeats(request, duplicate, path_mtu_bytes));
        found.map(|(_, old)| *old)
    }
}

fn repeats(request: &Request, duplicate: &Request, path_mtu_bytes: u32) -> bool {
    let Request { opcode, psn, remote_va, rkey, length, .. } = *request;
    let packets_in = duplicate.psn.distance_from(psn);
    let offset = u64::from(packets_in) * u64::from(path_mtu_bytes);
    (duplicate.opcode, duplicate.rkey) == (opcode, rkey)
        && packets_in < psn_count(opcode, length, path_mtu_bytes)
        && duplicate.remote_va == remote_va.wrapping_add(offset)
        && (opcode.is_atomic() || u64::from(duplicate.length) + offset <= u64::from(length))
}
