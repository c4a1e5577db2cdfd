//! Which extended headers a packet has.

/// Extended headers behind the BTH, in the order they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeaderSet {
    Nothing,
    Imm,
    Ieth,
    Reth,
    RethImm,
    Aeth,
    AethAtomicAck,
    Atomic,
    Deth,
    DethImm,
}

impl HeaderSet {
    /// Bytes of these headers together.
    pub const fn bytes(self) -> usize {
        match self {
            HeaderSet::Nothing => 0,
            HeaderSet::Imm | HeaderSet::Ieth | HeaderSet::Aeth => 4,
            HeaderSet::Deth => 8,
            HeaderSet::AethAtomicAck | HeaderSet::DethImm => 12,
            HeaderSet::Reth => 16,
            HeaderSet::RethImm => 20,
            HeaderSet::Atomic => 28,
        }
    }
}
