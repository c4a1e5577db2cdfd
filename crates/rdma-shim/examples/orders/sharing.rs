//! Queues that several post to: ours, `db_shared_post` of `doorbell_shared.h`, and one that publishes in order.
//!
//! Left out of ours: a full ring, so that nobody waits for room, and polling.

use crate::ours::gpu_ring;
use crate::program::Place::Host;
use crate::program::{
    Atomic, Cell, CellId, END, Fence, LOOKED, MARKS, Machine, Op, Order, Place, RESERVED, Scenario, Scope,
    Value,
};
use crate::queue::{Cells, Ops, cells, named, store, thread};
use crate::rules::THREADS;

/// Who posts how much on a shared queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// A WQE each, reserved, written and marked already: what is left is to publish and to be elected. More would be too
    /// large for the search.
    ThreeElections,
    /// The same with four WQEs, of which the second thread has the two in the middle, one after the other. Who thinks itself alone
    /// looks where the last ring ended, or does not.
    FourElections { looks: bool },
    /// The first thread has blocks 0 and 1, one after the other, the second block 2.
    TwoThenOne,
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
    /// Order of the atomic that publishes and elects.
    election: Order,
    /// Whether a poster that thinks itself alone looks where the last ring ended.
    looks: bool,
}

/// `db_shared_post` by several. `acquires`: the election, as in the header; without, what goes wrong.
pub fn ours_shared(strict: bool, acquires: bool, sharing: Sharing) -> Scenario {
    let four = matches!(sharing, Sharing::FourElections { .. });
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
    let election = if acquires { Order::Acquire(Scope::Gpu) } else { Order::Plain };
    let looks = sharing == Sharing::FourElections { looks: true };
    let shared = Shared { q, reserved, published, rung, marks, strict, election, looks };
    let only_elections = four || sharing == Sharing::ThreeElections;
    if only_elections {
        let written = scenario.queue.ring.iter().map(|words| (words[0], 1));
        // The third of four is marked by its thread after the second one was published: a scan before ends there.
        let marked = (0..wqes).filter(|&n| !(four && n == 2)).map(|n| (marks[n], 1));
        scenario.initial = written.chain(marked).chain([(reserved, wqes as u8)]).collect();
    }
    let of_one: [(&str, &[u8]); 3] = match sharing {
        Sharing::ThreeElections => [("thread 0", &[0]), ("thread 1", &[1]), ("thread 2", &[2])],
        Sharing::FourElections { .. } => [("thread 0", &[0]), ("thread 1", &[1, 2]), ("thread 2", &[3])],
        Sharing::TwoThenOne => [("thread 0", &[0, 1]), ("thread 1", &[2]), ("", &[])],
        Sharing::OneBetween => [("thread 0", &[0, 2]), ("thread 1", &[1]), ("", &[])],
        Sharing::Warps => [("warp 1", &[2]), ("", &[]), ("", &[])],
    };
    if sharing == Sharing::Warps {
        let (mut leader, mut lane) = (Vec::new(), Vec::new());
        shared.reserve(&mut leader, 0, 2);
        shared.fill(&mut leader, 0, 0, true);
        shared.publish(&mut leader, 0, 2);
        shared.fill(&mut lane, 1, 0, true);
        scenario.threads.push(thread("warp 0, lane 0", Machine::Gpu, THREADS, leader));
        scenario.threads.push(thread("warp 0, lane 1", Machine::Gpu, THREADS, lane));
    }
    for (warp, (name, blocks)) in of_one.iter().enumerate().filter(|(_, (_, blocks))| !blocks.is_empty()) {
        let mut ops = Vec::new();
        for &block in *blocks {
            if four && block == 2 {
                ops.push(Op::MarkFence { begin: block }.into());
                ops.push(store(marks[2], Value::Is(1)).into());
            }
            if !only_elections {
                shared.reserve(&mut ops, block, block + 1);
                shared.fill(&mut ops, block, block, false);
            }
            shared.publish(&mut ops, block, block + 1);
        }
        scenario.threads.push(thread(name, Machine::Gpu, warp, ops));
    }
    scenario
}

impl Shared {
    /// A WQE, its fence and its mark; `begin` is the first block of the call.
    fn fill(&self, ops: &mut Ops, block: u8, begin: u8, meets: bool) {
        ops.extend(self.q.wqe(block));
        if meets {
            ops.push(named(Op::Meet, "db_warp_sync"));
        }
        ops.push(named(Op::MarkFence { begin }, "db_order_wqe_before_mark"));
        ops.push(store(self.marks[usize::from(block)], Value::Is(1)).into());
    }

    fn reserve(&self, ops: &mut Ops, begin: u8, end: u8) {
        let does = Atomic::Advance { begin, end };
        ops.push(Op::Atomic { cell: self.reserved, does, order: Order::Plain }.into());
    }

    /// `db_shared_publish` of the blocks from `begin` to `end`, and `db_shared_ring`.
    fn publish(&self, ops: &mut Ops, begin: u8, end: u8) {
        let atomic = |does, order| Op::Atomic { cell: self.published, does, order };
        let handing_over = |does| named(atomic(does, Order::AcqRel(Scope::Gpu)), "acq_rel of handing over");
        let mut ring = gpu_ring(&self.q, Value::Register(END), self.strict);
        ring[0].op = Op::RingFence;
        // Elect, Peek, perhaps Alone, Scan, Adopt; then the loop: IfNew, the ring and its word, Unsee, Peek, UnseeMore, Return,
        // Scan, Again.
        let start = ops.len() + 4 + usize::from(self.looks);
        let rest = start + 1 + ring.len() + 1 + 6;
        let elect = Atomic::Elect { begin, end, skip: if self.looks { 0 } else { 3 }, rest };
        let label = if self.election == Order::Plain { "" } else { "acquire of the election" };
        ops.push(named(atomic(elect, self.election), label));
        ops.push(Op::Peek { cell: self.rung, register: LOOKED }.into());
        if self.looks {
            ops.push(Op::Alone { begin, end, skip: 2 }.into());
        }
        ops.push(Op::Scan { marks: self.marks, from: LOOKED }.into());
        ops.push(Op::Adopt.into());
        ops.push(Op::IfNew { skip: ring.len() + 1 }.into());
        ops.extend(ring);
        ops.push(store(self.rung, Value::Register(END)).into());
        ops.push(handing_over(Atomic::Unsee { rest }));
        ops.push(Op::Peek { cell: self.reserved, register: RESERVED }.into());
        ops.push(handing_over(Atomic::UnseeMore));
        ops.push(handing_over(Atomic::Return { rest, rung: self.rung }));
        ops.push(Op::Scan { marks: self.marks, from: END }.into());
        ops.push(Op::Again { to: start }.into());
        assert_eq!(ops.len(), rest, "the loop is as long as was said");
    }
}

/// A shared queue as NVSHMEM publishes, each behind the one before, but with an elected ringer in place of the lock: a warp of two lanes and a warp of one, or three threads.
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
