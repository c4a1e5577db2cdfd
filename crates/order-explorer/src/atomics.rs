//! Words that the threads of a GPU share: locks, counts of filled WQEs, and the election of the ringer.
//!
//! Ours are `db_shared_take`, `db_shared_publish` and `db_shared_leave`, one atomic each
//! (`crates/rdma-shim/include/doorbell_shared.h`); registers are locals. Left out: full rings, polling.

use crate::memory::State;
use crate::program::{Atomic, CellId, END, FENCED, LATER, LOOKED, READY_BITS, RESERVED, ROLE, RUNG, TOTAL};
use crate::rules::Rules;

impl State {
    /// Whether the atomic gets through now; those that wait are repeated until they do.
    pub fn succeeds(&self, cell: CellId, does: Atomic) -> bool {
        let ready = self.near[cell] & ((1 << READY_BITS) - 1);
        match does {
            Atomic::Lock => self.near[cell] == 0,
            Atomic::Advance { begin, .. } | Atomic::Publish { begin, .. } => ready == begin,
            _ => true,
        }
    }

    /// What the atomic does to its word and its thread's registers. Operations that then never happen.
    pub fn change(&mut self, rules: &Rules, thread: usize, op: usize, cell: CellId, does: Atomic) -> usize {
        let word = self.near[cell];
        let (ready, publications) = (word & ((1 << READY_BITS) - 1), word >> READY_BITS);
        let rest = rules.scenario.threads[thread].ops.len() - op - 1;
        let mut left_out = 0;
        match does {
            Atomic::Lock => self.near[cell] = 1,
            Atomic::Advance { end, .. } => self.near[cell] = end,
            Atomic::Raise { to, .. } if word < to => self.near[cell] = to,
            Atomic::Raise { skip, .. } => left_out = skip,
            Atomic::Publish { end, .. } => {
                self.near[cell] = end | (publications + 1) << READY_BITS;
                self.registers[thread][0] = end | 1 << READY_BITS;
                if publications > 0 {
                    left_out = rest;
                }
            }
            Atomic::Take => {
                self.near[cell] = ready | (publications + 1) << READY_BITS;
                self.registers[thread][ROLE] = u8::from(publications == 0);
            }
            Atomic::PublishHeld { begin, end, skip } => {
                self.near[cell] = (ready + (end - begin)) | publications << READY_BITS;
                if self.alone(thread) == Some(begin) {
                    let registers = &mut self.registers[thread];
                    (registers[END], registers[LOOKED], registers[FENCED]) = (end, begin, 1);
                    left_out = skip;
                }
            }
            Atomic::Elect { begin, end, rest } => {
                self.near[cell] = (ready + (end - begin)) | (publications + 1) << READY_BITS;
                if publications > 0 {
                    left_out = self.leave(thread, op, rest);
                }
            }
            Atomic::Leave { rest } => {
                self.near[cell] = ready;
                let registers = &mut self.registers[thread];
                (registers[TOTAL], registers[RUNG], registers[ROLE]) = (ready, registers[END], 0);
                (registers[FENCED], registers[LOOKED]) = (0, 0);
                if ready == registers[END] || registers[RESERVED] > ready {
                    left_out = self.leave(thread, op, rest);
                }
            }
            Atomic::Return { rest, .. } if word != self.registers[thread][TOTAL] => {
                left_out = self.leave(thread, op, rest);
            }
            Atomic::Return { .. } => self.near[cell] = ready | 1 << READY_BITS,
            Atomic::Retire { turn } => {
                let left = publications - (self.registers[thread][turn] >> READY_BITS);
                self.near[cell] = ready | left << READY_BITS;
                if left == 0 {
                    left_out = rest;
                } else {
                    self.registers[thread][turn + 1] = ready | left << READY_BITS;
                }
            }
        }
        left_out
    }

    /// The ringer's turn is over; what it has looked up counts no more. Operations that then never happen.
    pub fn leave(&mut self, thread: usize, op: usize, rest: usize) -> usize {
        for register in [END, LOOKED, TOTAL, RESERVED, LATER] {
            self.registers[thread][register] = 0;
        }
        rest - op - 1
    }

    /// Up to where a poster rang that has had the role since its reservation. One that begins there is alone.
    pub fn alone(&self, thread: usize) -> Option<u8> {
        (self.registers[thread][ROLE] == 1).then_some(self.registers[thread][RUNG])
    }
}
