//! What the threads of a small program do: loads, stores, atomics and fences of x86-64, arm64 and PTX.
//!
//! Sources: Intel SDM vol. 3 §9.2.2 and §12.3.1 (x86), rdma-core `util/udma_barrier.h` (which barrier of x86
//! and arm64 stands for which edge), PTX ISA "Memory Consistency Model" (GPU), PCIe's transaction ordering
//! (NIC). What they leave open is in [`Assumptions`]; `docs/orders.md` has the whole list. Left out:
//! sequentially consistent fences, mixed sizes, dependencies through addresses.

/// Where a word lies, which decides on which way a store to it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Memory of the host: for a GPU, behind PCIe.
    Host,
    /// Memory of the GPU, which the NIC reads through PCIe.
    Gpu,
    /// The NIC's doorbell register: a BAR, mapped write-combining on a host.
    Register,
    /// A word that only the GPU's own threads look at.
    Shared,
}

/// One word of memory. A WQE counts as two, fetched one after the other; a CQE's body and a payload as one.
#[derive(Clone, Debug)]
pub struct Cell {
    pub name: String,
    pub place: Place,
}

/// Index into [`Scenario::cells`].
pub type CellId = usize;

/// The machine whose rules a thread follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    X86,
    Arm64,
    Gpu,
    /// The NIC as a writer of CQEs and payload.
    Nic,
}

/// The threads among which PTX promises an order. Ours are of different blocks: `.cta` promises nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Cta,
    Gpu,
    Sys,
}

/// Order that a load, store or atomic brings by itself. Weak, relaxed, volatile and mmio accesses bring none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Plain,
    Acquire(Scope),
    Release(Scope),
    AcqRel(Scope),
}

/// Fences by their mnemonic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// `asm volatile("" ::: "memory")`
    Compiler,
    Sfence,
    DmbOshst,
    DmbOshld,
    DmbOsh,
    DsbSt,
    Release(Scope),
    Acquire(Scope),
    AcqRel(Scope),
}

/// What a fence waits for, and what it holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edges {
    pub earlier_loads: bool,
    /// How far earlier stores, and what this thread took over from others, must have come.
    pub earlier_stores: Option<Scope>,
    pub later_loads: bool,
    pub later_stores: bool,
}

impl Fence {
    pub fn edges(self) -> Edges {
        let edges = |earlier_loads, earlier_stores, later_loads, later_stores| Edges {
            earlier_loads,
            earlier_stores,
            later_loads,
            later_stores,
        };
        match self {
            Fence::Compiler => edges(false, None, false, false),
            Fence::Sfence | Fence::DmbOshst => edges(false, Some(Scope::Sys), false, true),
            Fence::DmbOshld => edges(true, None, true, true),
            Fence::DmbOsh => edges(true, Some(Scope::Sys), true, true),
            Fence::DsbSt => edges(false, Some(Scope::Sys), true, true),
            Fence::Release(Scope::Cta) | Fence::Acquire(Scope::Cta) | Fence::AcqRel(Scope::Cta) => {
                edges(false, None, false, false)
            }
            Fence::Release(scope) => edges(true, Some(scope), false, true),
            Fence::Acquire(_) => edges(true, None, true, true),
            Fence::AcqRel(scope) => edges(true, Some(scope), true, true),
        }
    }

    /// Whether later accesses of this thread build on what its earlier relaxed loads saw of others.
    pub fn acquires(self) -> bool {
        matches!(self, Fence::Acquire(scope) | Fence::AcqRel(scope) if scope != Scope::Cta)
    }

    /// Whether later relaxed stores of this thread hand over what it did and took over before.
    pub fn releases(self) -> bool {
        matches!(self, Fence::Release(scope) | Fence::AcqRel(scope) if scope != Scope::Cta)
    }
}

impl Order {
    pub fn acquires(self) -> bool {
        matches!(self, Order::Acquire(scope) | Order::AcqRel(scope) if scope != Scope::Cta)
    }

    /// How far everything before must have come first.
    pub fn releases(self) -> Option<Scope> {
        match self {
            Order::Release(scope) | Order::AcqRel(scope) if scope != Scope::Cta => Some(scope),
            _ => None,
        }
    }
}

/// What is stored: a number, or the index that an atomic of this thread left in its n-th register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Is(u8),
    Register(usize),
}

/// Read-modify-write of a shared word. One that must wait is performed only when it succeeds: failed turns of
/// its loop change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Takes a lock: waits for 0, leaves 1.
    Lock,
    /// `ready` from `begin` to `end`, waiting for `begin`: compare-and-swap in a loop.
    Advance { begin: u8, end: u8 },
    /// Maximum; where the word was not below, the next `skip` operations are left out.
    Raise { to: u8, skip: usize },
    /// Waits for `begin` in the low half, makes it `end`, and counts one more publication in the high
    /// half. If there were some, another thread rings: the rest is left out. Register 0 gets the word.
    Publish { begin: u8, end: u8 },
    /// `db_shared_take`: the ringer's role if free. Counts in the high half; register [`ROLE`] says whether.
    Take,
    /// `db_shared_publish` of the poster with the role: adds the blocks from `begin` to `end` to the low
    /// half. A poster that rang for all before `begin` is alone: it knows up to where to ring, has its fence,
    /// and leaves the next `skip` out. Other posters do nothing more.
    PublishHeld { begin: u8, end: u8, skip: usize },
    /// `db_shared_publish` of a poster without it: adds the blocks and counts in the high half. If that was
    /// not 0, another thread rings: everything before `rest` is left out.
    Elect { begin: u8, end: u8, rest: usize },
    /// First of `db_shared_leave`: zeroes the high half. Leaves when all is rung, or when blocks had been
    /// reserved earlier whose poster was still to come.
    Leave { rest: usize },
    /// Last of it: leaves when the second look finds such blocks (`exact`: when it finds another number than
    /// was published, even an older one). Else takes the role back unless another thread has published.
    Return { rest: usize, exact: bool },
    /// End of the ringer's turn: takes off the publications of register `turn`. If none is left, the rest is
    /// left out; else register `turn + 1` gets the word.
    Retire { turn: usize },
}

/// Registers of a poster on a shared queue: up to where to ring, up to where it rang, where the last ring
/// ended as it saw it, blocks published and reserved, whether its WQEs are behind a system fence, whether it
/// has had the ringer's role since its reservation, and blocks reserved by the second look.
pub const END: usize = 0;
pub const RUNG: usize = 1;
pub const LOOKED: usize = 2;
pub const TOTAL: usize = 3;
pub const RESERVED: usize = 4;
pub const FENCED: usize = 5;
pub const ROLE: usize = 6;
pub const LATER: usize = 7;

/// Marks of a shared queue.
pub const MARKS: usize = 4;

/// Bits of a published word below its count of publications.
pub const READY_BITS: u8 = 4;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Store {
        cell: CellId,
        value: Value,
        order: Order,
    },
    /// A loop that loads until it sees `value`. Stores behind it depend on it; loads do not.
    Await {
        cell: CellId,
        value: u8,
        order: Order,
    },
    /// A load whose value is used: any other than `value` is a failure.
    Expect {
        cell: CellId,
        value: u8,
    },
    Atomic {
        cell: CellId,
        does: Atomic,
        order: Order,
    },
    Fence(Fence),
    /// `db_shared_fence`: if the poster has the role and rang for all before `begin`, of system scope,
    /// leaving out the mark behind it; else of GPU scope.
    MarkFence {
        begin: u8,
    },
    /// `db_order_wqe_before_record` in `db_shared_tell`: left out if the poster's own fence was one already.
    RingFence,
    /// A relaxed load of a word of [`Place::Shared`] into a register.
    Peek {
        cell: CellId,
        register: usize,
    },
    /// `db_shared_filled`: relaxed loads of `marks` from the one in register `from` up to the first unset
    /// one, whose number goes to register [`END`]. With fewer WQEs the last mark is none, never set.
    Scan {
        marks: [CellId; MARKS],
        from: usize,
    },
    /// Leaves the next `skip` out when nothing new is to be told.
    IfNew {
        skip: usize,
    },
    /// Back to operation `to`, as if it had never been performed.
    Again {
        to: usize,
    },
    /// `__syncwarp`: the lanes of the warp meet, and each has then observed what the others did before.
    Meet,
    /// In the place of a fence that was taken out.
    Nothing,
}

impl Op {
    pub fn cell(self) -> Option<CellId> {
        match self {
            Op::Store { cell, .. }
            | Op::Await { cell, .. }
            | Op::Expect { cell, .. }
            | Op::Peek { cell, .. }
            | Op::Atomic { cell, .. } => Some(cell),
            _ => None,
        }
    }

    pub fn order(self) -> Order {
        match self {
            Op::Store { order, .. } | Op::Await { order, .. } | Op::Atomic { order, .. } => order,
            _ => Order::Plain,
        }
    }

    pub fn loads(self) -> bool {
        matches!(
            self,
            Op::Await { .. } | Op::Expect { .. } | Op::Atomic { .. } | Op::Peek { .. } | Op::Scan { .. }
        )
    }

    pub fn stores(self) -> bool {
        matches!(self, Op::Store { .. } | Op::Atomic { .. })
    }

    /// Whether stores behind it are not made before it is known how it ended.
    pub fn decides(self) -> bool {
        matches!(self, Op::Await { .. } | Op::Atomic { .. } | Op::Scan { .. } | Op::IfNew { .. })
    }

    /// Whether it reads this register of its thread's, or clears it.
    pub fn uses(self, register: usize) -> bool {
        match self {
            Op::Store { value: Value::Register(from), .. } | Op::Scan { from, .. } => from == register,
            Op::IfNew { .. } => matches!(register, END | LOOKED),
            Op::Atomic { does: Atomic::Leave { .. }, .. } => matches!(register, END | LOOKED | RESERVED),
            Op::Atomic { does: Atomic::Return { .. }, .. } => register == LATER,
            Op::Again { .. } => true,
            _ => false,
        }
    }

    /// What kind of fence it is, for a poster that rang up to `alone`, if it has the role.
    pub fn fence(self, alone: Option<u8>) -> Option<Fence> {
        match self {
            Op::Fence(fence) => Some(fence),
            Op::MarkFence { begin } if alone == Some(begin) => Some(Fence::AcqRel(Scope::Sys)),
            Op::MarkFence { .. } => Some(Fence::AcqRel(Scope::Gpu)),
            Op::RingFence => Some(Fence::AcqRel(Scope::Sys)),
            _ => None,
        }
    }
}

/// An operation, and the label by which the test removes the order that it brings (empty: it brings none).
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    pub op: Op,
    pub label: &'static str,
}

impl From<Op> for Instruction {
    fn from(op: Op) -> Self {
        Instruction { op, label: "" }
    }
}

/// A thread. Those of one `warp` meet in its [`Op::Meet`].
#[derive(Clone, Debug)]
pub struct Thread {
    pub name: &'static str,
    pub machine: Machine,
    pub warp: usize,
    pub ops: Vec<Instruction>,
}

/// What the NIC looks at. Without a register: a receive queue, its record read whenever a message waits.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// Words of each WQE, in order; each reads 1 once it is written.
    pub ring: Vec<[CellId; 2]>,
    pub record: Option<CellId>,
    pub register: Option<CellId>,
    /// Whether telling an older index than before is a failure at once, as the doorbell leaves its thread: a
    /// card may take the difference for 65,535 new WQEs.
    pub only_forward: bool,
}

/// A program and the NIC that watches it.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    pub cells: Vec<Cell>,
    /// Words that are not 0 at first.
    pub initial: Vec<(CellId, u8)>,
    pub threads: Vec<Thread>,
    pub queue: Queue,
}

impl Scenario {
    /// Names of everything that can be taken out, in program order.
    pub fn labels(&self) -> Vec<&'static str> {
        let mut labels = Vec::new();
        for instruction in self.threads.iter().flat_map(|thread| &thread.ops) {
            if !instruction.label.is_empty() && !labels.contains(&instruction.label) {
                labels.push(instruction.label);
            }
        }
        labels
    }

    /// The program without `label`: a fence or meeting so named vanishes, other operations lose their order.
    pub fn without(&self, label: &str) -> Scenario {
        let mut weaker = self.clone();
        let ops = weaker.threads.iter_mut().flat_map(|thread| &mut thread.ops);
        for instruction in ops.filter(|instruction| instruction.label == label) {
            match &mut instruction.op {
                Op::Store { order, .. } | Op::Await { order, .. } | Op::Atomic { order, .. } => {
                    *order = Order::Plain;
                }
                other => *other = Op::Nothing,
            }
        }
        weaker
    }
}

/// What is not written in any manual that we have, each a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assumptions {
    /// What the NIC makes of an index that is behind one that it knows.
    pub belief: Belief,
    /// x86: a write-combining store does not leave before the write-back stores in front of it.
    pub write_combining_waits: bool,
    /// PCIe reads of GPU memory see what has reached the GPU's L2.
    pub l2_serves_pcie: bool,
    /// The NIC's writes become visible in order even when payload and CQE lie in different memories
    /// (`GPU_DIRECT_RDMA_WRITES_ORDERING` of at least OWNER claims it for GPU memory).
    pub dma_in_order: bool,
}

/// See [`Assumptions::belief`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belief {
    /// An index only grows: an older one, in the record or a late register write, changes nothing.
    Grows,
    /// The last index that was read replaces what was known, wherever it came from.
    LastWins,
}

impl Assumptions {
    /// Nothing that could be doubted but the L2, without which no queue in GPU memory would work at all.
    pub const LEAST: Assumptions = Assumptions {
        belief: Belief::LastWins,
        write_combining_waits: false,
        l2_serves_pcie: true,
        dma_in_order: false,
    };
}
