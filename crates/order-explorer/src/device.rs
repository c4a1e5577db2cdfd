//! The NIC: the WQEs it knows of, what it fetches, and how a program fails before it.
//!
//! It fetches up to the index of a register write or of the record, never beyond. It may reread the record at
//! any time, as mlx5's recovery path does (a comment of gpunetio's `doca_gpunetio_dev_verbs_qp.cuh`).

use crate::program::{Belief, CellId};

/// What the NIC knows of the send or receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nic {
    /// WQEs executed.
    pub executed: u8,
    /// Index up to which it knows of WQEs.
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
    /// A doorbell tells an older index than one before it: see [`crate::program::Queue::only_forward`].
    Backwards { says: u8 },
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

    /// The first WQE that it may execute now although a word of it is not in the memory that it sees.
    ///
    /// It may fetch at any moment. Late fetches only let it forget more, so all cases are found by looking
    /// for a missing WQE in every state and fetching only when nothing else is left to happen.
    pub fn missing(self, ring: &[[CellId; 2]], memory: &[u8]) -> Option<u8> {
        let is_there = |wqe: u8| {
            ring.get(usize::from(wqe)).is_some_and(|words| words.iter().all(|&word| memory[word] == 1))
        };
        (self.executed..self.believed).find(|&wqe| !is_there(wqe))
    }

    /// After it has executed every WQE that it knows of.
    pub fn fetch(self, ring: &[[CellId; 2]], memory: &[u8]) -> Result<Nic, Failure> {
        match self.missing(ring, memory) {
            Some(wqe) => Err(Failure::Stale { wqe }),
            None => Ok(Nic { executed: self.executed.max(self.believed), ..self }),
        }
    }
}
