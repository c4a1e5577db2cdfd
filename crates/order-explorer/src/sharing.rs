//! Shared queues: ours, `db_shared_post` of `doorbell_shared.h`, and one that publishes in order.
//!
//! Left out of this code's posters: a full ring, so that no poster waits for room, and polling.

use crate::ours::gpu_ring;
use crate::program::Place::Host;
use crate::program::{
    Atomic, Cell, CellId, END, Fence, Instruction, LATER, LOOKED, MARKS, Machine, Op, Order, Place, RESERVED,
    Scenario, Scope, Value,
};
use crate::queue::{Cells, Ops, cells, named, store, thread};
use crate::rules::THREADS;

/// How many threads post how much on a shared queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// One WQE each, reserved and written already: what is left is to take the role, mark, publish and be
    /// elected. More would be too large for the search.
    ThreeTakes,
    /// Four WQEs, reserved and written. The second thread has the middle two in turn; the others only
    /// publish. `late`: it finds itself alone only as it publishes its second one, behind the mark.
    FourElections { late: bool },
    /// The first thread has blocks 0 and 1, in turn, the second block 2. `exact`: a poster takes any
    /// difference of reserved from published, even an older count, for blocks to come.
    TwoThenOne { exact: bool },
    /// The first thread has blocks 0 and 2.
    OneBetween,
    /// A warp of two lanes and a thread.
    Warps,
}

/// Words of a shared queue of ours.
struct Shared {
    q: Cells,
    reserved: CellId,
    published: CellId,
    rung: CellId,
    marks: [CellId; MARKS],
    strict: bool,
    /// Order of the atomics by which the ringer's role is taken.
    taking: Order,
    /// See [`Sharing::TwoThenOne`].
    exact: bool,
}

/// `db_shared_post` by several. `acquires`: the role is taken as in the header; false shows what goes wrong.
pub fn ours_shared(strict: bool, acquires: bool, sharing: Sharing) -> Scenario {
    let four = matches!(sharing, Sharing::FourElections { .. });
    let late = sharing == Sharing::FourElections { late: true };
    let wqes = if four { 4 } else { 3 };
    let (mut scenario, q) = cells(Host, wqes);
    scenario.cells.truncate(q.ready);
    // One word a WQE is enough here, and keeps the search small.
    let q = Cells { wqes: q.wqes.iter().map(|words| [words[0]; 2]).collect(), ..q };
    scenario.queue.ring = q.wqes.clone();
    scenario.queue.only_forward = four;
    let mut word = |name: String| {
        scenario.cells.push(Cell { name, place: Place::Shared });
        scenario.cells.len() - 1
    };
    let [reserved, published, rung] = ["reserved", "published", "rung"].map(|name| word(name.to_owned()));
    let marks = [0, 1, 2, 3].map(|n| word(format!("mark {n}")));
    let taking = if acquires { Order::Acquire(Scope::Gpu) } else { Order::Plain };
    let exact = sharing == Sharing::TwoThenOne { exact: true };
    let shared = Shared { q, reserved, published, rung, marks, strict, taking, exact };
    let begun = four || sharing == Sharing::ThreeTakes;
    if begun {
        let written = scenario.queue.ring.iter().map(|words| (words[0], 1));
        // The third of four: its thread marks it after publishing the second, so an earlier scan ends there.
        let marked = (0..wqes).filter(|&n| four && n != 2).map(|n| (marks[n], 1));
        scenario.initial = written.chain(marked).chain([(reserved, wqes as u8)]).collect();
    }
    let of_one: [(&str, &[u8]); 3] = match sharing {
        Sharing::ThreeTakes => [("thread 0", &[0]), ("thread 1", &[1]), ("thread 2", &[2])],
        Sharing::FourElections { .. } => [("thread 0", &[0]), ("thread 1", &[1, 2]), ("thread 2", &[3])],
        Sharing::TwoThenOne { .. } => [("thread 0", &[0, 1]), ("thread 1", &[2]), ("", &[])],
        Sharing::OneBetween => [("thread 0", &[0, 2]), ("thread 1", &[1]), ("", &[])],
        Sharing::Warps => [("warp 1", &[2]), ("", &[]), ("", &[])],
    };
    if sharing == Sharing::Warps {
        let (mut leader, mut lane) = (Vec::new(), Vec::new());
        shared.reserve(&mut leader, 0, 2);
        shared.take(&mut leader);
        shared.fill(&mut leader, 0, 0, true);
        shared.publish(&mut leader, 0, 2, true);
        // Lane 0 tells whether to mark; a needless mark does no harm. Its fence stays the mark's, of GPU
        // scope (a lone warp spends system scope on each): what holds with the weaker one holds there.
        shared.fill(&mut lane, 1, 0, true);
        scenario.threads.push(thread("warp 0, lane 0", Machine::Gpu, THREADS, leader));
        scenario.threads.push(thread("warp 0, lane 1", Machine::Gpu, THREADS, lane));
    }
    for (warp, (name, blocks)) in of_one.iter().enumerate().filter(|(_, (_, blocks))| !blocks.is_empty()) {
        let mut ops = Vec::new();
        for &block in *blocks {
            let takes = !begun || sharing == Sharing::ThreeTakes || (four && block == 2);
            if !begun {
                shared.reserve(&mut ops, block, block + 1);
            }
            if takes && !late {
                shared.take(&mut ops);
            }
            if !begun {
                ops.extend(shared.q.wqe(block));
            }
            if takes && late {
                ops.push(store(marks[usize::from(block)], Value::Is(1)).into());
                shared.take(&mut ops);
                ops.push(Op::MarkFence { begin: block }.into());
                ops.push(Op::Nothing.into());
            } else if takes {
                ops.push(named(Op::MarkFence { begin: block }, if begun { "" } else { MARK_FENCE }));
                ops.push(store(marks[usize::from(block)], Value::Is(1)).into());
            }
            shared.publish(&mut ops, block, block + 1, takes);
        }
        scenario.threads.push(thread(name, Machine::Gpu, warp, ops));
    }
    scenario
}

const MARK_FENCE: &str = "db_order_wqe_before_mark";

impl Shared {
    fn reserve(&self, ops: &mut Ops, begin: u8, end: u8) {
        let does = Atomic::Advance { begin, end };
        ops.push(Op::Atomic { cell: self.reserved, does, order: Order::Plain }.into());
    }

    fn take(&self, ops: &mut Ops) {
        let does = Atomic::Take;
        ops.push(Op::Atomic { cell: self.published, does, order: self.taking }.into());
    }

    /// A lane's WQE, its fence and its mark; `begin` is the first block of the call.
    fn fill(&self, ops: &mut Ops, block: u8, begin: u8, in_warp: bool) {
        ops.extend(self.q.wqe(block));
        if in_warp {
            ops.push(meets());
        }
        ops.push(named(Op::MarkFence { begin }, MARK_FENCE));
        ops.push(store(self.marks[usize::from(block)], Value::Is(1)).into());
    }

    /// `db_shared_publish` of blocks `begin` to `end`, then `db_shared_ring`. `takes`: the role may be taken.
    fn publish(&self, ops: &mut Ops, begin: u8, end: u8, takes: bool) {
        let atomic = |does, order| Op::Atomic { cell: self.published, does, order };
        let peek = |cell, register| Op::Peek { cell, register };
        let mut ring = gpu_ring(&self.q, Value::Register(END), self.strict);
        ring[0].op = Op::RingFence;
        // The loop: Peek, Scan, IfNew, the ring and its word, Peek, Leave, Peek, Return, Again.
        let start = ops.len() + usize::from(takes) + 1;
        let rest = start + 3 + ring.len() + 1 + 5;
        if takes {
            // Elect, Peek and Scan are not of a lone poster.
            ops.push(atomic(Atomic::PublishHeld { begin, end, skip: 3 }, Order::Plain).into());
        }
        ops.push(atomic(Atomic::Elect { begin, end, rest }, self.taking).into());
        ops.push(peek(self.rung, LOOKED).into());
        ops.push(Op::Scan { marks: self.marks, from: LOOKED }.into());
        ops.push(Op::IfNew { skip: ring.len() + 1 }.into());
        ops.extend(ring);
        ops.push(store(self.rung, Value::Register(END)).into());
        ops.push(peek(self.reserved, RESERVED).into());
        let leave = atomic(Atomic::Leave { rest }, Order::Release(Scope::Gpu));
        ops.push(named(leave, "release of giving the role back"));
        ops.push(peek(self.reserved, LATER).into());
        ops.push(atomic(Atomic::Return { rest, exact: self.exact }, self.taking).into());
        ops.push(Op::Again { to: start }.into());
        assert_eq!(ops.len(), rest, "the loop is as long as was said");
    }
}

/// `db_shared_ring_by_warp`: one lane sees another block's WQE marked, and lane 0 tells the NIC.
pub fn warp_looks(strict: bool) -> Scenario {
    let (mut scenario, q) = cells(Host, 3);
    scenario.cells.truncate(q.ready);
    scenario.cells.push(Cell { name: "mark".to_owned(), place: Place::Shared });
    let mark = scenario.cells.len() - 1;
    let marks =
        vec![named(Op::Fence(Fence::AcqRel(Scope::Gpu)), MARK_FENCE), store(mark, Value::Is(1)).into()];
    let ring = gpu_ring(&q, Value::Is(3), strict);
    let looks = vec![Op::Await { cell: mark, value: 1, order: Order::Plain }.into(), ring[0], meets()];
    let tells = [vec![meets()], ring[1..].to_vec()].concat();
    scenario.threads.push(thread("poster", Machine::Gpu, 1, [q.wqe(0), q.wqe(1), q.wqe(2), marks].concat()));
    scenario.threads.push(thread("lane 0", Machine::Gpu, 0, tells));
    scenario.threads.push(thread("lane 1", Machine::Gpu, 0, looks));
    scenario
}

fn meets() -> Instruction {
    named(Op::Meet, "db_warp_sync")
}

/// NVSHMEM's publishing in order, its lock an elected ringer: warps of two lanes and one, or three threads.
pub fn in_order(strict: bool, warps: bool) -> Scenario {
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
    let meet = || vec![meets()];
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
