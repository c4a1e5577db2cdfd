//! Words that the threads of a GPU share: locks, counts of filled WQEs, and the election of whoever rings.
//!
//! Those of a queue of ours are `db_shared_publish` and `db_shared_ring` of `crates/rdma-shim/include/doorbell_shared.h`, one
//! atomic each; its registers stand for the local variables of those routines. Left out: waiting for room, polling.

use crate::memory::State;
use crate::program::{Atomic, CellId, END, FENCED, READY_BITS, RESERVED, RUNG, TOTAL, UNSEEN};
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

    /// What the atomic does to its word and to its thread's registers.
    pub fn change(&mut self, rules: &Rules, thread: usize, op: usize, cell: CellId, does: Atomic) {
        let word = self.near[cell];
        let (ready, publications) = (word & ((1 << READY_BITS) - 1), word >> READY_BITS);
        let rest = rules.scenario.threads[thread].ops.len() - op - 1;
        match does {
            Atomic::Lock => self.near[cell] = 1,
            Atomic::Advance { end, .. } => self.near[cell] = end,
            Atomic::Raise { to, .. } if word < to => self.near[cell] = to,
            Atomic::Raise { skip, .. } => self.leave_out(thread, op, skip),
            Atomic::Publish { end, .. } => {
                self.near[cell] = end | (publications + 1) << READY_BITS;
                self.registers[thread][0] = end | 1 << READY_BITS;
                if publications > 0 {
                    self.leave_out(thread, op, rest);
                }
            }
            Atomic::Elect { begin, end, skip, rest } => {
                self.near[cell] = (ready + (end - begin)) | ((publications + 1) << READY_BITS);
                let registers = &mut self.registers[thread];
                registers[UNSEEN] = 1;
                registers[FENCED] = u8::from(registers[RUNG] == begin);
                if publications > 0 {
                    self.leave_out(thread, op, rest - op - 1);
                } else if skip > 0 && registers[RUNG] == begin {
                    registers[END] = end;
                    self.leave_out(thread, op, skip);
                }
            }
            Atomic::Unsee { .. } | Atomic::UnseeMore => {
                let left = publications - self.registers[thread][UNSEEN];
                self.near[cell] = ready | left << READY_BITS;
                let registers = &mut self.registers[thread];
                registers[UNSEEN] = left;
                registers[TOTAL] = ready;
                registers[RUNG] = registers[END];
                if let Atomic::Unsee { rest } = does
                    && left == 0
                    && ready == registers[END]
                {
                    self.leave_out(thread, op, rest - op - 1);
                }
            }
            Atomic::Return { rest, .. } if word != self.registers[thread][TOTAL] => {
                self.leave_out(thread, op, rest - op - 1);
            }
            Atomic::Return { rung, .. } => {
                self.near[cell] = ready | 1 << READY_BITS;
                self.take_over(thread, rung, false);
                let ended = self.near[rung];
                let registers = &mut self.registers[thread];
                (registers[UNSEEN], registers[END], registers[RUNG]) = (1, ended, ended);
            }
            Atomic::Retire { turn } => {
                let left = publications - (self.registers[thread][turn] >> READY_BITS);
                self.near[cell] = ready | left << READY_BITS;
                if left == 0 {
                    self.leave_out(thread, op, rest);
                } else {
                    self.registers[thread][turn + 1] = ready | left << READY_BITS;
                }
            }
        }
    }

    /// Whether publications have come that someone else may ring for, since blocks are reserved that are not published.
    pub fn unsees_more(&self, thread: usize) -> bool {
        let registers = &self.registers[thread];
        registers[RESERVED] != registers[TOTAL] && registers[UNSEEN] > 0
    }

    /// Whether the ringer leaves for good; none when it has publications to see to.
    pub fn leaves(&self, thread: usize) -> Option<bool> {
        let registers = &self.registers[thread];
        (registers[UNSEEN] == 0).then_some(registers[RESERVED] > registers[TOTAL])
    }
}
