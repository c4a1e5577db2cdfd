//! The NIC: what it believes was posted, what it fetches, and how a program fails before it.
//!
//! It fetches on the index of a register write or of the record, whichever it sees, and may look at the record again at any time:
//! mlx5's recovery path does (a comment of gpunetio's `doca_gpunetio_dev_verbs_qp.cuh` names it). It fetches nothing beyond.

use crate::program::{Belief, CellId};

/// What the NIC knows of the send or receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nic {
    /// WQEs executed.
    pub executed: u8,
    /// Words read of the next one.
    pub words: u8,
    /// Index up to which it believes that there are WQEs.
    pub believed: u8,
}

/// How a program fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The NIC executes what lies in the slot, and the WQE is not there.
    Stale { wqe: u8 },
    /// Everything has happened, and a WQE was never executed.
    Lost { wqe: u8 },
    /// Everything has happened, and the record names an older index than was posted.
    RecordBehind { says: u8 },
    /// A load behind the owner byte saw something else.
    Read { cell: CellId, saw: u8, wanted: u8 },
    /// Everything has happened, and a thread still waits.
    Stuck,
}

impl Nic {
    pub fn has_work(self) -> bool {
        self.executed < self.believed
    }

    /// After it has read an index in the register or the record. What it has executed it never takes back.
    pub fn told(self, index: u8, belief: Belief) -> Nic {
        let known = match belief {
            Belief::Grows => self.believed,
            Belief::LastWins => self.executed,
        };
        Nic { believed: known.max(index), ..self }
    }

    /// After it has read the next word of a WQE in the memory that it sees.
    pub fn fetch(self, ring: &[[CellId; 2]], memory: &[u8]) -> Result<Nic, Failure> {
        let wqe = ring.get(usize::from(self.executed));
        if wqe.is_none_or(|words| memory[words[usize::from(self.words)]] != 1) {
            return Err(Failure::Stale { wqe: self.executed });
        }
        Ok(match self.words {
            0 => Nic { words: 1, ..self },
            _ => Nic { words: 0, executed: self.executed + 1, ..self },
        })
    }
}
