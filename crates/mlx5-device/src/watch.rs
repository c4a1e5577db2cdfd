//! What the background walk looks at of an idle queue: sixteen bytes, those of all queues side by side.
//!
//! A queue pair takes a few hundred bytes in a place of its own. Thousands of them, looked at one by one every half a millisecond,
//! would be fetched from memory each time; this table is read in order, and leads to one word of the program's for each.

use std::ops::Range;

use mlx5_layout::doorbell::counter_of;

use super::qp::Qp;
use crate::memory::Memory;

/// What has to change at a queue before it is worth a look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Looks {
    /// Nothing does: it takes no work in its state.
    #[default]
    Never,
    /// The send word of its record.
    AtRecord,
    /// Something else may: it is looked at itself.
    AtAll,
}

/// See the module. As of when its queue was made or cooled; a hot queue is looked at anyway, so its entry may be out of date.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Watch {
    record: u64,
    fetched: u16,
    looks: Looks,
}

/// So many places ahead, a queue's record is asked for before it is needed.
const AHEAD: usize = 16;

impl Watch {
    pub(super) fn of(qp: &Qp) -> Watch {
        let looks = match (qp.state.flushes_receives(), qp.takes_sends()) {
            (true, _) => Looks::AtAll,
            (false, true) => Looks::AtRecord,
            (false, false) => Looks::Never,
        };
        Watch { record: qp.sq.ring.record, fetched: qp.sq.fetched, looks }
    }

    /// False: there is nothing to do for its queue.
    #[inline(always)]
    fn may_be_ready<M: Memory>(&self, memory: &M) -> bool {
        match self.looks {
            Looks::Never => false,
            // A record that cannot be read says nothing.
            Looks::AtRecord => {
                memory.load32(self.record).is_ok_and(|word| counter_of(word.to_ne_bytes()) != self.fetched)
            }
            Looks::AtAll => true,
        }
    }
}

/// Adds the places of `range` to `found` that are worth a look.
pub(super) fn scan<M: Memory>(watches: &[Watch], memory: &M, range: Range<u32>, found: &mut Vec<u32>) {
    let (first, end) = (range.start as usize, (range.end as usize).min(watches.len()));
    for at in first..end {
        if let Some(later) = watches.get(at + AHEAD) {
            memory.prefetch(later.record);
        }
        if watches[at].may_be_ready(memory) {
            found.push(at as u32);
        }
    }
}
