//! The atomic operations of RDMA, whichever memory they are done in.

/// What is done atomically; only the NIC does RDMA atomics, so that it is atomic among them whether mover or copy engine does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
    CompareSwap32 { compare: u32, swap: u32 },
}

impl Atomic {
    /// How many it changes.
    pub fn bytes(self) -> u64 {
        if matches!(self, Atomic::CompareSwap32 { .. }) { 4 } else { 8 }
    }

    /// What is stored where `old` stands; `None`: that stays.
    pub fn of(self, old: u64) -> Option<u64> {
        match self {
            Atomic::CompareSwap { compare, swap } => (old == compare).then_some(swap),
            Atomic::FetchAdd { add } => Some(old.wrapping_add(add)),
            Atomic::CompareSwap32 { compare, swap } => (old == u64::from(compare)).then_some(swap.into()),
        }
    }
}
