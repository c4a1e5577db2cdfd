//! Which operation of a thread may overtake which: the rules of x86-64, arm64, PTX and a NIC's own writes,
//! worked out once for a whole search.

use crate::program::{Assumptions, Atomic, CellId, END, Machine, Op, Place, Scenario, Thread, Value};

/// At most so many threads, words and operations of a thread.
pub const THREADS: usize = 3;
pub const CELLS: usize = 17;
pub const OPS: usize = 42;

/// A set of operations: bit `thread * OPS + index`.
pub type Set = u128;

pub fn bit(thread: usize, op: usize) -> Set {
    1 << (thread * OPS + op)
}

/// What a program demands, worked out once.
pub struct Rules<'a> {
    pub scenario: &'a Scenario,
    pub assume: Assumptions,
    /// For each operation, the earlier ones of its thread that must have been performed.
    pub after: Vec<Vec<u64>>,
    /// For each operation, the earlier stores of its thread.
    pub stores_before: Vec<Vec<Set>>,
    /// Per operation, the stores of the loop that it is in: those of an earlier turn may still be in flight.
    pub stores_around: Vec<Vec<Set>>,
    /// Stores to the register: posted writes: no thread learns that one has arrived.
    pub to_register: Set,
    /// Stores that nothing forces out of a write-combining buffer.
    pub resting: Set,
    /// Words that no thread stores to.
    constant: u32,
}

impl<'a> Rules<'a> {
    pub fn new(scenario: &'a Scenario, assume: Assumptions) -> Self {
        assert!(
            scenario.threads.len() <= THREADS && scenario.cells.len() <= CELLS,
            "the program is too large"
        );
        let mut rules = Rules {
            scenario,
            assume,
            after: Vec::new(),
            stores_before: Vec::new(),
            stores_around: Vec::new(),
            to_register: 0,
            resting: 0,
            constant: u32::MAX,
        };
        for (t, thread) in scenario.threads.iter().enumerate() {
            assert!(thread.ops.len() <= OPS, "{} has {} operations", thread.name, thread.ops.len());
            let (mut after, mut stores_before, mut stores) = (Vec::new(), Vec::new(), 0);
            for (later, instruction) in thread.ops.iter().enumerate() {
                let earlier = (0..later).filter(|&earlier| waits(scenario, thread, earlier, later, &assume));
                after.push(earlier.fold(0, |set, earlier| set | 1 << earlier));
                stores_before.push(stores);
                if let Some(cell) = instruction.op.cell().filter(|_| instruction.op.stores()) {
                    rules.constant &= !(1 << cell);
                }
                if let Op::Store { cell, .. } = instruction.op {
                    stores |= bit(t, later);
                    if scenario.cells[cell].place == Place::Register {
                        rules.to_register |= bit(t, later);
                        rules.resting |= if rests(thread, later) { bit(t, later) } else { 0 };
                    }
                }
            }
            let mut stores_around = vec![0; thread.ops.len()];
            for (end, instruction) in thread.ops.iter().enumerate() {
                if let Op::Again { to } = instruction.op {
                    let in_loop = stores_before[end] & !stores_before[to];
                    stores_around[to..end].fill(in_loop);
                }
            }
            rules.stores_around.push(stores_around);
            rules.after.push(after);
            rules.stores_before.push(stores_before);
        }
        rules
    }

    pub fn op(&self, thread: usize, index: usize) -> Op {
        self.scenario.threads[thread].ops[index].op
    }

    /// Whether no thread stores to this word.
    pub fn is_constant(&self, cell: CellId) -> bool {
        self.constant >> cell & 1 == 1
    }

    /// Whether no thread sees this thread's store to this word leave: a WQE's, on its way from a GPU to host
    /// memory.
    pub fn leaves_unseen(&self, thread: usize, cell: CellId) -> bool {
        let is_wqe = self.scenario.queue.ring.iter().any(|words| words.contains(&cell));
        let is_far = self.scenario.cells[cell].place == Place::Host;
        is_wqe && is_far && self.scenario.threads[thread].machine == Machine::Gpu
    }

    /// The store that a bit of a set stands for.
    pub fn store(&self, id: u8) -> (usize, usize, CellId, Value) {
        let (thread, index) = (usize::from(id) / OPS, usize::from(id) % OPS);
        match self.op(thread, index) {
            Op::Store { cell, value, .. } => (thread, index, cell, value),
            other => unreachable!("{other:?} is no store"),
        }
    }
}

/// Whether a register store may stay in a host's write-combining buffer: no fence behind it empties that.
fn rests(thread: &Thread, store: usize) -> bool {
    let empties = |op| matches!(op, Op::Fence(fence) if fence.edges().earlier_stores.is_some());
    let is_host = matches!(thread.machine, Machine::X86 | Machine::Arm64);
    is_host && !thread.ops[store..].iter().any(|one| empties(one.op))
}

/// Whether a thread's `later` operation must wait until the `earlier` one was performed. What a fence or a
/// release demands of earlier *stores* is more (how far they have come) and is asked elsewhere.
fn waits(scenario: &Scenario, thread: &Thread, earlier: usize, later: usize, assume: &Assumptions) -> bool {
    let (a, b) = (thread.ops[earlier].op, thread.ops[later].op);
    if a == Op::Nothing || b == Op::Nothing {
        return false;
    }
    let same_cell = a.cell().is_some() && a.cell() == b.cell();
    if same_cell {
        return true;
    }
    // The role is taken beside the blocks, neither behind the other.
    let beside = matches!(b, Op::Atomic { does: Atomic::Take, .. })
        && matches!(a, Op::Atomic { does: Atomic::Advance { .. }, .. });
    if a.decides() && b.stores() && !beside {
        return true;
    }
    // The register decides only how far a poster's fence waits: both kinds hold the same things back.
    if let Some(fence) = a.fence(None) {
        let edges = fence.edges();
        return match b {
            Op::Meet => edges.later_stores,
            _ if b.fence(None).is_some() => edges.later_stores,
            _ => (b.loads() && edges.later_loads) || (b.stores() && edges.later_stores),
        };
    }
    if let Some(fence) = b.fence(None) {
        return (a.loads() && fence.edges().earlier_loads) || a == Op::Meet;
    }
    // Only fences, acquires and registers hold a relaxed load back: the register that it reads, and an
    // operation that still reads the one it writes. No branch does.
    let looks_up = match b {
        Op::Peek { register, .. } => a.uses(register),
        Op::Scan { from, .. } => a.uses(END) || matches!(a, Op::Peek { register, .. } if register == from),
        _ => false,
    };
    let reads_registers = matches!(
        b,
        Op::IfNew { .. }
            | Op::Again { .. }
            | Op::Atomic { does: Atomic::Leave { .. } | Atomic::Return { .. }, .. }
    );
    if looks_up || (reads_registers && (a.decides() || a.loads())) {
        return true;
    }
    if matches!(b, Op::Again { .. }) {
        return a.stores();
    }
    if a == Op::Meet || (b == Op::Meet && a.loads()) {
        return true;
    }
    if a.order().acquires() || (b.order().releases().is_some() && a.loads()) {
        return true;
    }
    match thread.machine {
        Machine::Gpu | Machine::Arm64 => false,
        Machine::X86 => {
            let kept_by_compiler =
                thread.ops[earlier..later].iter().any(|one| matches!(one.op, Op::Fence(_)));
            let combining =
                |op: Op| op.cell().map(|cell| scenario.cells[cell].place) == Some(Place::Register);
            let kept_by_processor = match (a.loads(), b.loads()) {
                (_, true) => a.loads(),
                (true, false) => true,
                (false, false) => !combining(a) && (!combining(b) || assume.write_combining_waits),
            };
            kept_by_compiler && kept_by_processor
        }
        // Posted writes to one completer do not pass one another; a read is answered before what it decides.
        Machine::Nic => {
            let place = |op: Op| op.cell().map(|cell| scenario.cells[cell].place);
            a.loads() || place(a) == place(b) || assume.dma_in_order
        }
    }
}
