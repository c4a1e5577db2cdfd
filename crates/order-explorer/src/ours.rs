//! Our orders: `doorbell.h` with `order_host.h` and `order_cuda.h`, one poster and a warp; polling, receives.

use crate::program::Machine::{Arm64, X86};
use crate::program::Place::Host;
use crate::program::{Cell, Fence, Instruction, Machine, Op, Order, Place, Scenario, Scope, Value};
use crate::queue::{Cells, Ops, cells, named, store, thread, two_rings};

pub const WQE_BEFORE_RECORD: &str = "db_order_wqe_before_record";
pub const RECORD_BEFORE_REGISTER: &str = "db_order_record_before_register";
pub const WQE_BEFORE_REGISTER: &str = "db_order_wqe_before_register";
pub const FLUSH: &str = "db_flush_register";

/// `db_ring` with `order_host.h`.
pub fn ours_on_host(machine: Machine, strict: bool) -> Scenario {
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
pub fn gpu_ring(q: &Cells, index: Value, strict: bool) -> Ops {
    let mut ops = vec![named(Op::Fence(Fence::AcqRel(Scope::Sys)), WQE_BEFORE_RECORD), q.record(index)];
    if strict {
        ops.push(named(Op::Fence(Fence::AcqRel(Scope::Sys)), RECORD_BEFORE_REGISTER));
    }
    ops.push(q.register(index));
    ops
}

pub fn ours_on_gpu(strict: bool) -> Scenario {
    two_rings(Machine::Gpu, Host, |q, index| gpu_ring(q, index, strict))
}

pub fn ours_twice() -> Scenario {
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
pub fn ours_warp(strict: bool) -> Scenario {
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

/// `db_take_cqe` and `db_release` of a CQ with one entry, which the NIC fills twice.
pub fn polls(machine: Machine, payload: Place) -> Scenario {
    let cell = |name: &str, place| Cell { name: name.to_owned(), place };
    let (data, body, tail, record) = (0, 1, 2, 3);
    let mut scenario = Scenario {
        cells: vec![
            cell("payload", payload),
            cell("the CQE", Host),
            cell("its tail", Host),
            cell("consumer record", Host),
        ],
        ..Scenario::default()
    };
    let nic = vec![
        store(data, Value::Is(1)).into(),
        store(body, Value::Is(1)).into(),
        store(tail, Value::Is(1)).into(),
        Op::Await { cell: record, value: 1, order: Order::Plain }.into(),
        store(body, Value::Is(2)).into(),
        store(tail, Value::Is(2)).into(),
    ];
    let (acquire, release) = match machine {
        X86 => (Fence::Compiler, Fence::Compiler),
        Arm64 => (Fence::DmbOshld, Fence::DmbOsh),
        _ => (Fence::Acquire(Scope::Sys), Fence::AcqRel(Scope::Sys)),
    };
    let ops = vec![
        awaits(tail),
        named(Op::Fence(acquire), "db_acquire_cqe"),
        Op::Expect { cell: body, value: 1 }.into(),
        Op::Expect { cell: data, value: 1 }.into(),
        named(Op::Fence(release), "db_release_cqes"),
        store(record, Value::Is(1)).into(),
    ];
    scenario.threads.push(thread("poller", machine, 0, ops));
    scenario.threads.push(thread("NIC", Machine::Nic, 1, nic));
    scenario
}

/// A loop that loads a word until the NIC has written it.
fn awaits(cell: usize) -> Instruction {
    Op::Await { cell, value: 1, order: Order::Plain }.into()
}

/// `db_take_sends` of two CQEs: their tails side by side, one fence, then what either announces.
pub fn looks() -> Scenario {
    let names = ["payload", "the CQE", "its tail", "second payload", "the second CQE", "the second tail"];
    let mut scenario = Scenario {
        cells: names.map(|name| Cell { name: name.to_owned(), place: Host }).to_vec(),
        ..Scenario::default()
    };
    let expects = |cell| Op::Expect { cell, value: 1 }.into();
    let ops = [awaits(2), awaits(5), named(Op::Fence(Fence::Acquire(Scope::Sys)), "db_acquire_cqe")];
    let ops = ops.into_iter().chain([0, 1, 3, 4].map(expects)).collect();
    scenario.threads.push(thread("poller", Machine::Gpu, 0, ops));
    let nic = (0..6).map(|cell| store(cell, Value::Is(1)).into()).collect();
    scenario.threads.push(thread("NIC", Machine::Nic, 1, nic));
    scenario
}

/// `db_post_recv`, twice.
pub fn receives(machine: Machine) -> Scenario {
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
