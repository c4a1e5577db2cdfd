//! The orders of posting and polling: ours, as `crates/rdma-shim/include` has them, libmlx5's and those of the GPU peers.
//!
//! Sources of the peers': rdma-core `providers/mlx5/qp.c` (`post_send_db`) and `util/udma_barrier.h`; NVSHMEM
//! `ibgda_device.cuh`; DeepEP `csrc/kernels/legacy/ibgda_device.cuh`; gpunetio `doca_gpunetio_dev_verbs_qp.cuh`
//! (`submit_db`) and `..._common.cuh` (`lock`); Monarch `rdmaxcel.cu`. Only their order is restated, no line of theirs.

use crate::program::Machine::{Arm64, X86};
use crate::program::Place::{Gpu, Host};
use crate::program::{
    Assumptions, Atomic, Belief, Cell, CellId, Fence, Instruction, Machine, Op, Order, Place, Queue,
    Scenario, Scope, Thread, Value,
};

/// One row: a program, and under which assumptions its author could stand by it.
pub struct Row {
    pub order: &'static str,
    /// Who posts or polls.
    pub who: &'static str,
    /// Where ring and record lie, or CQ and payload.
    pub memory: &'static str,
    pub scenario: Scenario,
    /// What ours claims to be right under; for peers, the switches of the row.
    pub assume: Assumptions,
    /// Ours: with this order in, nothing may fail, and with any piece of it out, something must.
    pub ours: bool,
}

const LEAST: Assumptions = Assumptions::LEAST;
const GROWS: Assumptions = Assumptions { belief: Belief::Grows, ..LEAST };
const WC_WAITS: Assumptions = Assumptions { write_combining_waits: true, ..LEAST };
const NO_L2: Assumptions = Assumptions { l2_serves_pcie: false, ..LEAST };
const ORDERED: Assumptions = Assumptions { dma_in_order: true, ..LEAST };

const WQE_BEFORE_RECORD: &str = "db_order_wqe_before_record";
const RECORD_BEFORE_REGISTER: &str = "db_order_record_before_register";
const WQE_BEFORE_REGISTER: &str = "db_order_wqe_before_register";
const FLUSH: &str = "db_flush_register";

/// All rows that post, in the order of the table.
pub fn posting() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |order, who, memory, scenario, assume, ours| {
        rows.push(Row { order, who, memory, scenario, assume, ours });
    };
    row("ours, strict", "x86-64", "host", ours_on_host(X86, true), LEAST, true);
    row("ours, early", "x86-64", "host", ours_on_host(X86, false), LEAST, false);
    row("ours, early, if stores leave in order", "x86-64", "host", ours_on_host(X86, false), WC_WAITS, true);
    row("libmlx5", "x86-64", "host", libmlx5(X86), LEAST, false);
    row("ours, strict", "arm64", "host", ours_on_host(Arm64, true), LEAST, true);
    row("ours, early", "arm64", "host", ours_on_host(Arm64, false), LEAST, true);
    row("libmlx5", "arm64", "host", libmlx5(Arm64), LEAST, false);
    for (order, strict, assume) in [("ours, strict", true, LEAST), ("ours, early", false, GROWS)] {
        row(order, "GPU thread", "host", ours_on_gpu(strict), assume, true);
        row(order, "GPU warp", "host", ours_warp(strict), assume, true);
    }
    for (order, strict, assume) in
        [("published in order, strict", true, LEAST), ("published in order, early", false, GROWS)]
    {
        row(order, "2 warps share", "host", in_order(strict, true), assume, true);
        row(order, "3 threads share", "host", in_order(strict, false), assume, true);
    }
    row("register, record, register", "GPU thread", "host", ours_twice(), LEAST, true);
    row("record by `st.release.sys`, then register", "GPU thread", "host", released_record(), LEAST, false);
    row("the paper's release", "GPU thread", "host", releases(Host), LEAST, false);
    row("Monarch", "GPU thread", "host", volatile_only(), LEAST, false);
    row("NVSHMEM", "GPU thread", "host", nvshmem(Host), LEAST, false);
    row("NVSHMEM", "GPU thread", "GPU", nvshmem(Gpu), LEAST, false);
    row("NVSHMEM", "2 blocks share", "GPU", nvshmem_shared(Gpu), LEAST, false);
    row("DeepEP", "GPU thread", "host", deepep(Host), LEAST, false);
    row("DeepEP", "GPU thread", "GPU", deepep(Gpu), LEAST, false);
    row("DeepEP", "2 blocks share", "GPU", deepep_shared(Gpu), LEAST, false);
    row("gpunetio, GPU fences", "GPU thread", "host", gpunetio(Host, Scope::Gpu), LEAST, false);
    row("gpunetio, system fences", "GPU thread", "host", gpunetio(Host, Scope::Sys), LEAST, false);
    row("gpunetio, system fences", "2 blocks share", "host", gpunetio_shared(Host, Scope::Sys), LEAST, false);
    row("gpunetio, GPU fences", "GPU thread", "GPU", gpunetio(Gpu, Scope::Gpu), LEAST, false);
    row("gpunetio, GPU fences", "2 blocks share", "GPU", gpunetio_shared(Gpu, Scope::Gpu), LEAST, false);
    row(
        "gpunetio, if PCIe reads missed the L2",
        "GPU thread",
        "GPU",
        gpunetio(Gpu, Scope::Gpu),
        NO_L2,
        false,
    );
    rows
}

/// All rows that poll or post receives.
pub fn polling() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |order, who, memory, scenario, assume, ours| {
        rows.push(Row { order, who, memory, scenario, assume, ours });
    };
    row("completions", "x86-64", "host", polls(X86, Host), LEAST, true);
    row("completions", "arm64", "host", polls(Arm64, Host), LEAST, true);
    row("completions", "GPU thread", "host", polls(Machine::Gpu, Host), LEAST, true);
    row("completions", "GPU thread", "host, payload GPU", polls(Machine::Gpu, Gpu), LEAST, false);
    row(
        "completions, if writes are ordered",
        "GPU thread",
        "host, payload GPU",
        polls(Machine::Gpu, Gpu),
        ORDERED,
        true,
    );
    row("receives", "x86-64", "host", receives(X86), LEAST, true);
    row("receives", "arm64", "host", receives(Arm64), LEAST, true);
    row("receives", "GPU thread", "host", receives(Machine::Gpu), LEAST, true);
    rows
}

/// Words of a queue: WQEs, record, register, and what its posters share.
struct Cells {
    wqes: Vec<[CellId; 2]>,
    record: CellId,
    register: CellId,
    ready: CellId,
    raised: CellId,
    lock: CellId,
}

fn cells(place: Place, wqes: usize) -> (Scenario, Cells) {
    let mut scenario = Scenario::default();
    let mut cell = |name: String, place| {
        scenario.cells.push(Cell { name, place });
        scenario.cells.len() - 1
    };
    let cells = Cells {
        wqes: (0..wqes).map(|n| [0, 1].map(|word| cell(format!("WQE {n}, word {word}"), place))).collect(),
        record: cell("record".to_owned(), place),
        register: cell("register".to_owned(), Place::Register),
        ready: cell("ready".to_owned(), Place::Shared),
        raised: cell("rung".to_owned(), Place::Shared),
        lock: cell("lock".to_owned(), Place::Shared),
    };
    scenario.queue =
        Queue { ring: cells.wqes.clone(), record: Some(cells.record), register: Some(cells.register) };
    (scenario, cells)
}

type Ops = Vec<Instruction>;

fn store(cell: CellId, value: Value) -> Op {
    Op::Store { cell, value, order: Order::Plain }
}

fn named(op: Op, label: &'static str) -> Instruction {
    Instruction { op, label }
}

fn fence(fence: Fence) -> Instruction {
    Op::Fence(fence).into()
}

impl Cells {
    fn wqe(&self, n: u8) -> Ops {
        self.wqes[usize::from(n)].map(|word| store(word, Value::Is(1)).into()).to_vec()
    }

    fn record(&self, index: Value) -> Instruction {
        store(self.record, index).into()
    }

    fn register(&self, index: Value) -> Instruction {
        store(self.register, index).into()
    }

    fn release(&self, cell: CellId, index: Value, scope: Scope) -> Instruction {
        Op::Store { cell, value: index, order: Order::Release(scope) }.into()
    }
}

fn thread(name: &'static str, machine: Machine, warp: usize, ops: Ops) -> Thread {
    Thread { name, machine, warp, ops }
}

/// One thread that posts two WQEs and rings, then posts a third and rings.
fn two_rings(machine: Machine, place: Place, ring: impl Fn(&Cells, Value) -> Ops) -> Scenario {
    let (mut scenario, q) = cells(place, 3);
    let ops = [q.wqe(0), q.wqe(1), ring(&q, Value::Is(2)), q.wqe(2), ring(&q, Value::Is(3))].concat();
    scenario.threads.push(thread("poster", machine, 0, ops));
    scenario
}

// ---- Ours -------------------------------------------------------------------------------------------------------------

/// `db_ring` with `order_host.h`.
fn ours_on_host(machine: Machine, strict: bool) -> Scenario {
    let x86 = machine == X86;
    let to_memory = if x86 { Fence::Compiler } else { Fence::DmbOshst };
    let to_register = if x86 { Fence::Sfence } else { Fence::DsbSt };
    two_rings(machine, Host, |q, index| {
        vec![
            named(Op::Fence(to_memory), WQE_BEFORE_RECORD),
            q.record(index),
            if strict {
                named(Op::Fence(to_register), RECORD_BEFORE_REGISTER)
            } else {
                named(Op::Fence(to_memory), WQE_BEFORE_REGISTER)
            },
            q.register(index),
            named(Op::Fence(to_register), FLUSH),
        ]
    })
}

/// What `db_ring` with `order_cuda.h` does behind the WQEs.
fn gpu_ring(q: &Cells, index: Value, strict: bool) -> Ops {
    let mut ops = vec![named(Op::Fence(Fence::AcqRel(Scope::Sys)), WQE_BEFORE_RECORD), q.record(index)];
    if strict {
        ops.push(named(Op::Fence(Fence::AcqRel(Scope::Sys)), RECORD_BEFORE_REGISTER));
    }
    ops.push(q.register(index));
    ops
}

fn ours_on_gpu(strict: bool) -> Scenario {
    two_rings(Machine::Gpu, Host, |q, index| gpu_ring(q, index, strict))
}

fn ours_twice() -> Scenario {
    two_rings(Machine::Gpu, Host, |q, index| {
        vec![
            named(Op::Fence(Fence::AcqRel(Scope::Sys)), WQE_BEFORE_REGISTER),
            q.register(index),
            q.record(index),
            named(Op::Fence(Fence::AcqRel(Scope::Sys)), RECORD_BEFORE_REGISTER),
            q.register(index),
        ]
    })
}

/// `db_warp_post` and `db_warp_ring`: three lanes, a WQE each, lane 0 rings.
fn ours_warp(strict: bool) -> Scenario {
    let (mut scenario, q) = cells(Host, 3);
    for (n, name) in [(0, "lane 0"), (1, "lane 1"), (2, "lane 2")] {
        let mut ops = [q.wqe(n), vec![named(Op::Meet, "db_warp_sync")]].concat();
        if n == 0 {
            ops.extend(gpu_ring(&q, Value::Is(3), strict));
        }
        scenario.threads.push(thread(name, Machine::Gpu, 0, ops));
    }
    scenario
}

/// A shared queue as NVSHMEM publishes, each behind the one before, but with an elected ringer in place of the lock: a warp of two lanes and a warp of one, or three threads.
fn in_order(strict: bool, warps: bool) -> Scenario {
    let (mut scenario, q) = cells(Host, 3);
    let publish = |begin, end, turns: usize| {
        let atomic = |does, order| Op::Atomic { cell: q.ready, does, order };
        let mut ops = vec![named(Op::Fence(Fence::AcqRel(Scope::Gpu)), "fence before publishing")];
        ops.push(atomic(Atomic::Publish { begin, end }, Order::Plain).into());
        for turn in 0..turns {
            ops.extend(gpu_ring(&q, Value::Register(turn), strict));
            let hands_over = atomic(Atomic::Retire { turn }, Order::AcqRel(Scope::Gpu));
            ops.push(named(hands_over, "acq_rel of handing over"));
        }
        ops
    };
    let meet = || vec![named(Op::Meet, "db_warp_sync")];
    if warps {
        let leader = [q.wqe(0), meet(), publish(0, 2, 2)].concat();
        scenario.threads.push(thread("warp 0, lane 0", Machine::Gpu, 0, leader));
        scenario.threads.push(thread("warp 0, lane 1", Machine::Gpu, 0, [q.wqe(1), meet()].concat()));
        scenario.threads.push(thread("warp 1", Machine::Gpu, 1, [q.wqe(2), publish(2, 3, 2)].concat()));
    } else {
        for (n, name) in [(0, "thread 0"), (1, "thread 1"), (2, "thread 2")] {
            let ops = [q.wqe(n), publish(n, n + 1, 3)].concat();
            scenario.threads.push(thread(name, Machine::Gpu, usize::from(n), ops));
        }
    }
    scenario
}

/// `db_take_cqe` and `db_release` of a CQ with one entry, which the NIC fills twice.
fn polls(machine: Machine, payload: Place) -> Scenario {
    let cell = |name: &str, place| Cell { name: name.to_owned(), place };
    let (data, body, owner, record) = (0, 1, 2, 3);
    let mut scenario = Scenario {
        cells: vec![
            cell("payload", payload),
            cell("the CQE", Host),
            cell("owner byte", Host),
            cell("consumer record", Host),
        ],
        ..Scenario::default()
    };
    let nic = vec![
        store(data, Value::Is(1)).into(),
        store(body, Value::Is(1)).into(),
        store(owner, Value::Is(1)).into(),
        Op::Await { cell: record, value: 1, order: Order::Plain }.into(),
        store(body, Value::Is(2)).into(),
        store(owner, Value::Is(2)).into(),
    ];
    let polled = |order| Op::Await { cell: owner, value: 1, order };
    let (acquire, release) = match machine {
        X86 => (Fence::Compiler, Fence::Compiler),
        Arm64 => (Fence::DmbOshld, Fence::DmbOsh),
        _ => (Fence::Compiler, Fence::AcqRel(Scope::Sys)),
    };
    let acquired = if machine == Machine::Gpu {
        vec![named(polled(Order::Acquire(Scope::Sys)), "acquire of db_load_owner")]
    } else {
        vec![polled(Order::Plain).into(), named(Op::Fence(acquire), "db_acquire_cqe")]
    };
    let used = vec![
        Op::Expect { cell: body, value: 1 }.into(),
        Op::Expect { cell: data, value: 1 }.into(),
        named(Op::Fence(release), "db_release_cqes"),
        store(record, Value::Is(1)).into(),
    ];
    scenario.threads.push(thread("poller", machine, 0, [acquired, used].concat()));
    scenario.threads.push(thread("NIC", Machine::Nic, 1, nic));
    scenario
}

/// `db_post_recv`, twice.
fn receives(machine: Machine) -> Scenario {
    let before = match machine {
        X86 => Fence::Compiler,
        Arm64 => Fence::DmbOshst,
        _ => Fence::AcqRel(Scope::Sys),
    };
    let mut scenario = two_rings(machine, Host, |q, index| {
        vec![named(Op::Fence(before), WQE_BEFORE_RECORD), q.record(index)]
    });
    scenario.queue.register = None;
    scenario
}

// ---- Others ------------------------------------------------------------------------------------------------------------

fn libmlx5(machine: Machine) -> Scenario {
    let x86 = machine == X86;
    let to_device = if x86 { Fence::Compiler } else { Fence::DmbOshst };
    let wc_start = if x86 { Fence::Sfence } else { Fence::DsbSt };
    two_rings(machine, Host, |q, index| {
        vec![fence(to_device), q.record(index), fence(wc_start), q.register(index), fence(wc_start)]
    })
}

fn released_record() -> Scenario {
    two_rings(Machine::Gpu, Host, |q, index| vec![q.release(q.record, index, Scope::Sys), q.register(index)])
}

/// Record and register by release stores of scope GPU: the paper's release, and DeepEP behind its fence.
fn releases(place: Place) -> Scenario {
    two_rings(Machine::Gpu, place, |q, index| {
        vec![q.release(q.record, index, Scope::Gpu), q.release(q.register, index, Scope::Gpu)]
    })
}

fn volatile_only() -> Scenario {
    two_rings(Machine::Gpu, Host, |q, index| vec![q.record(index), q.register(index)])
}

/// `__threadfence` for queues in GPU memory, else `__threadfence_system`.
fn nvshmem_fence(place: Place) -> Instruction {
    fence(Fence::AcqRel(if place == Gpu { Scope::Gpu } else { Scope::Sys }))
}

fn nvshmem_ring(q: &Cells, index: Value, place: Place) -> Ops {
    vec![nvshmem_fence(place), q.record(index), nvshmem_fence(place), q.register(index)]
}

fn nvshmem(place: Place) -> Scenario {
    two_rings(Machine::Gpu, place, |q, index| nvshmem_ring(q, index, place))
}

fn deepep_ring(q: &Cells, index: Value) -> Ops {
    vec![q.release(q.record, index, Scope::Gpu), q.release(q.register, index, Scope::Gpu)]
}

fn deepep(place: Place) -> Scenario {
    two_rings(Machine::Gpu, place, |q, index| {
        [vec![fence(Fence::AcqRel(Scope::Gpu))], deepep_ring(q, index)].concat()
    })
}

fn gpunetio_ring(q: &Cells, index: Value, scope: Scope) -> Ops {
    vec![
        fence(Fence::Release(scope)),
        q.register(index),
        q.record(index),
        fence(Fence::Release(scope)),
        q.register(index),
    ]
}

fn gpunetio(place: Place, scope: Scope) -> Scenario {
    two_rings(Machine::Gpu, place, |q, index| gpunetio_ring(q, index, scope))
}

/// Fences around a peer's lock and its word of filled WQEs.
struct Lock {
    filled: Instruction,
    ready: Option<Instruction>,
    locked: Instruction,
    unlock: Option<Instruction>,
    unlocking: Order,
}

/// Two blocks, a WQE each: fill, publish in order, then under a lock whoever is ahead rings for all before.
fn two_blocks(place: Place, lock: &Lock, ring: impl Fn(&Cells, Value) -> Ops) -> Scenario {
    let (mut scenario, q) = cells(place, 2);
    for (n, name) in [(0, "block 0"), (1, "block 1")] {
        let atomic = |cell, does| Instruction::from(Op::Atomic { cell, does, order: Order::Plain });
        let ring = ring(&q, Value::Is(n + 1));
        let mut ops = [q.wqe(n), vec![lock.filled]].concat();
        ops.push(atomic(q.ready, Atomic::Advance { begin: n, end: n + 1 }));
        ops.extend(lock.ready);
        ops.extend([atomic(q.lock, Atomic::Lock), lock.locked]);
        ops.push(atomic(q.raised, Atomic::Raise { to: n + 1, skip: ring.len() }));
        ops.extend(ring);
        ops.extend(lock.unlock);
        ops.push(Op::Store { cell: q.lock, value: Value::Is(0), order: lock.unlocking }.into());
        scenario.threads.push(thread(name, Machine::Gpu, usize::from(n), ops));
    }
    scenario
}

fn nvshmem_shared(place: Place) -> Scenario {
    two_blocks(place, &block_wide_lock(nvshmem_fence(place)), |q, index| nvshmem_ring(q, index, place))
}

fn deepep_shared(place: Place) -> Scenario {
    two_blocks(place, &block_wide_lock(fence(Fence::AcqRel(Scope::Gpu))), deepep_ring)
}

/// NVSHMEM's and DeepEP's lock: fences of scope CTA around it.
fn block_wide_lock(filled: Instruction) -> Lock {
    let block_wide = fence(Fence::AcqRel(Scope::Cta));
    Lock { filled, ready: None, locked: block_wide, unlock: Some(block_wide), unlocking: Order::Plain }
}

fn gpunetio_shared(place: Place, scope: Scope) -> Scenario {
    let acquire = fence(Fence::Acquire(Scope::Gpu));
    let lock = Lock {
        filled: fence(Fence::Release(Scope::Gpu)),
        ready: Some(acquire),
        locked: acquire,
        unlock: None,
        unlocking: Order::Release(Scope::Gpu),
    };
    two_blocks(place, &lock, |q, index| gpunetio_ring(q, index, scope))
}
