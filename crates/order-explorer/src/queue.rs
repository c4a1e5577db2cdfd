//! What the programs are built from: the words of a queue, and shorthand for instructions.

use crate::program::{
    Cell, CellId, Fence, Instruction, Machine, Op, Order, Place, Queue, Scenario, Scope, Thread, Value,
};

/// Words of a queue: WQEs, record, register, and what its posters share.
pub struct Cells {
    pub wqes: Vec<[CellId; 2]>,
    pub record: CellId,
    pub register: CellId,
    pub ready: CellId,
    pub raised: CellId,
    pub lock: CellId,
}

pub fn cells(place: Place, wqes: usize) -> (Scenario, Cells) {
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
    scenario.queue = Queue {
        ring: cells.wqes.clone(),
        record: Some(cells.record),
        register: Some(cells.register),
        ..Queue::default()
    };
    (scenario, cells)
}

pub type Ops = Vec<Instruction>;

pub fn store(cell: CellId, value: Value) -> Op {
    Op::Store { cell, value, order: Order::Plain }
}

pub fn named(op: Op, label: &'static str) -> Instruction {
    Instruction { op, label }
}

pub fn fence(fence: Fence) -> Instruction {
    Op::Fence(fence).into()
}

impl Cells {
    pub fn wqe(&self, n: u8) -> Ops {
        let mut words = self.wqes[usize::from(n)].to_vec();
        words.dedup();
        words.into_iter().map(|word| store(word, Value::Is(1)).into()).collect()
    }

    pub fn record(&self, index: Value) -> Instruction {
        store(self.record, index).into()
    }

    pub fn register(&self, index: Value) -> Instruction {
        store(self.register, index).into()
    }

    pub fn release(&self, cell: CellId, index: Value, scope: Scope) -> Instruction {
        Op::Store { cell, value: index, order: Order::Release(scope) }.into()
    }
}

pub fn thread(name: &'static str, machine: Machine, warp: usize, ops: Ops) -> Thread {
    Thread { name, machine, warp, ops }
}

/// One thread that posts two WQEs and rings, then posts a third and rings.
pub fn two_rings(machine: Machine, place: Place, ring: impl Fn(&Cells, Value) -> Ops) -> Scenario {
    let (mut scenario, q) = cells(place, 3);
    let ops = [q.wqe(0), q.wqe(1), ring(&q, Value::Is(2)), q.wqe(2), ring(&q, Value::Is(3))].concat();
    scenario.threads.push(thread("poster", machine, 0, ops));
    scenario
}
