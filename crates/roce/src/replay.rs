//! What a reliable responder remembers of READs and atomics, to answer them again.
//!
//! Duplicate requests (IBTA vol. 1 §9.7.4, C9-105): a READ is executed again, an atomic is answered with the result that it
//! had the first time. As many are kept as the QP's responder resources; a conforming requester cannot ask for older ones.

use std::collections::VecDeque;

use crate::message::psn_count;
use crate::{Opcode, Psn, Request};

/// One executed READ or atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Executed {
    opcode: Opcode,
    psn: Psn,
    va: u64,
    rkey: u32,
    length: u32,
    old: u64,
}

/// What a duplicate is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replay {
    /// The rest of a READ, or all of it.
    Read,
    /// An atomic that found this value.
    Atomic { old: u64 },
}

/// The last few executed READs and atomics.
#[derive(Debug)]
pub(crate) struct ReplayList {
    entries: VecDeque<Executed>,
    limit: usize,
}

impl ReplayList {
    /// A list of `limit` entries at most; room for them comes with the first.
    pub(crate) fn new(limit: u8) -> ReplayList {
        ReplayList { entries: VecDeque::new(), limit: usize::from(limit) }
    }

    /// Entries that room was allocated for.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.entries.capacity()
    }

    /// Remembers an executed request; the oldest makes room.
    pub(crate) fn remember(&mut self, request: &Request, old: u64) {
        if self.limit == 0 {
            return;
        }
        if self.entries.len() >= self.limit {
            self.entries.pop_front();
        }
        let Request { opcode, psn, remote_va: va, rkey, length, .. } = *request;
        self.entries.push_back(Executed { opcode, psn, va, rkey, length, old });
    }

    /// How to answer a duplicate; `None` when it repeats nothing that is remembered.
    ///
    /// A READ may come again from the middle: from its first missing PSN, with the address moved and the length cut.
    pub(crate) fn find(&self, duplicate: &Request, path_mtu_bytes: u32) -> Option<Replay> {
        self.entries.iter().rev().find_map(|entry| entry.explains(duplicate, path_mtu_bytes))
    }
}

impl Executed {
    fn explains(&self, duplicate: &Request, path_mtu_bytes: u32) -> Option<Replay> {
        if self.opcode != duplicate.opcode || self.rkey != duplicate.rkey {
            return None;
        }
        let packets_in = duplicate.psn.distance_from(self.psn);
        if self.opcode.is_atomic() {
            let same = packets_in == 0 && duplicate.remote_va == self.va;
            return same.then_some(Replay::Atomic { old: self.old });
        }
        if packets_in >= psn_count(self.opcode, self.length, path_mtu_bytes) {
            return None;
        }
        let offset = u64::from(packets_in) * u64::from(path_mtu_bytes);
        let rest = u64::from(self.length).checked_sub(offset)?;
        let same = duplicate.remote_va == self.va.wrapping_add(offset) && u64::from(duplicate.length) <= rest;
        same.then_some(Replay::Read)
    }
}
