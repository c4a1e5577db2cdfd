//! One state of the search and its steps: where each store is, what each thread has seen, what the NIC knows.
//!
//! A store has at most two stages. First it leaves its thread, and the GPU's other threads see it. Then it
//! arrives, and host and NIC see it. In between, only stores to the same word stay in order. A store to near
//! memory has one stage: a host's to its memory, a GPU's to its own (when the L2 serves PCIe).

use crate::device::{Failure, Nic};
use crate::program::{
    Atomic, CellId, END, FENCED, LATER, LOOKED, Machine, Op, Place, READY_BITS, RESERVED, ROLE, Scope, TOTAL,
    Thread, Value,
};
use crate::rules::{CELLS, OPS, Rules, Set, THREADS, bit};

const REGISTERS: usize = 8;
const IN_FLIGHT: usize = 16;

/// One state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Performed operations of each thread, in this turn of a loop.
    done: [u64; THREADS],
    /// Stores that were performed, in any turn: they have left.
    left: Set,
    /// What the GPU's threads see, and what host and NIC see.
    pub near: [u8; CELLS],
    far: [u8; CELLS],
    /// Stores under way and their values, in order for each word: words do not wait for each other.
    flight: [(u8, u8); IN_FLIGHT],
    flying: u8,
    /// Per thread: others' stores that happened before what it does next, that it saw without acquiring, and
    /// that its last release fence handed over.
    cover: [Set; THREADS],
    seen: [Set; THREADS],
    released: [Set; THREADS],
    /// What a thread takes over that acquires a word of [`Place::Shared`].
    carried: [Set; CELLS],
    pub registers: [[u8; REGISTERS]; THREADS],
    pub nic: Nic,
}

/// Something that can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Perform { thread: usize, op: usize },
    Arrive { id: u8 },
    ReadRecord,
    Fetch,
}

/// A step that can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub step: Step,
    /// Whether it happens by itself: nothing compels a NIC to reread a record or a write-combining buffer to
    /// empty itself.
    pub forced: bool,
}

impl State {
    pub fn first(rules: &Rules) -> State {
        let mut state = State {
            done: [0; THREADS],
            left: 0,
            near: [0; CELLS],
            far: [0; CELLS],
            flight: [(0, 0); IN_FLIGHT],
            flying: 0,
            cover: [0; THREADS],
            seen: [0; THREADS],
            released: [0; THREADS],
            carried: [0; CELLS],
            registers: [[0; REGISTERS]; THREADS],
            nic: Nic::default(),
        };
        for &(cell, value) in &rules.scenario.initial {
            (state.near[cell], state.far[cell]) = (value, value);
        }
        state.settle(rules);
        state
    }

    pub fn value(&self, thread: usize, value: Value) -> u8 {
        match value {
            Value::Is(number) => number,
            Value::Register(n) => self.registers[thread][n] & ((1 << READY_BITS) - 1),
        }
    }

    fn is_done(&self, thread: usize, op: usize) -> bool {
        self.done[thread] >> op & 1 == 1
    }

    /// Whether none of these stores is on its way to memory. Register writes do not count: none is reported.
    fn none_flies(&self, rules: &Rules, stores: Set) -> bool {
        let flying = &self.flight[..usize::from(self.flying)];
        flying.iter().all(|&(id, _)| 1 << id & stores & !rules.to_register == 0)
    }

    /// Whether the stores an operation must follow have come as far as `scope` asks: its thread's earlier
    /// ones, and `others`.
    fn have_come(&self, rules: &Rules, thread: usize, op: usize, others: Set, scope: Scope) -> bool {
        let own = rules.stores_before[thread][op];
        let performed = Set::from(self.done[thread]) << (thread * OPS);
        scope == Scope::Cta
            || own & !performed == 0
                && others & !self.left == 0
                && (scope == Scope::Gpu
                    || self.none_flies(rules, own | rules.stores_around[thread][op] | others))
    }

    /// Whether its own thread and the order it brings let the operation be performed now.
    fn may(&self, rules: &Rules, thread: usize, op: usize) -> bool {
        let before = rules.after[thread][op];
        if self.is_done(thread, op) || before & !self.done[thread] != 0 {
            return false;
        }
        let instruction = rules.op(thread, op);
        let Some(fence) = instruction.fence(self.alone(thread)) else {
            let scope = instruction.order().releases();
            return scope.is_none_or(|scope| self.have_come(rules, thread, op, self.cover[thread], scope));
        };
        let over = if fence.acquires() { self.seen[thread] } else { 0 };
        let scope = fence.edges().earlier_stores;
        self.is_spared(rules, thread, op)
            || scope.is_none_or(|scope| self.have_come(rules, thread, op, self.cover[thread] | over, scope))
    }

    fn is_spared(&self, rules: &Rules, thread: usize, op: usize) -> bool {
        rules.op(thread, op) == Op::RingFence && self.registers[thread][FENCED] == 1
    }

    /// Performs what no thread sees or what only permits, so its moment is no choice: fences, meetings, loop
    /// turns, loads of constant words, and WQEs leaving a GPU for host memory (their arrival is open anyway).
    fn settle(&mut self, rules: &Rules) {
        loop {
            let mut settled = true;
            for (t, thread) in rules.scenario.threads.iter().enumerate() {
                for (index, instruction) in thread.ops.iter().enumerate() {
                    if !self.may(rules, t, index) {
                        continue;
                    }
                    match instruction.op {
                        Op::Nothing => {}
                        Op::RingFence if self.is_spared(rules, t, index) => {}
                        Op::MarkFence { begin } if self.alone(t) == Some(begin) => {
                            self.fence(rules, t, index);
                            self.leave_out(t, index, 1);
                        }
                        Op::Fence(_) | Op::MarkFence { .. } | Op::RingFence => self.fence(rules, t, index),
                        Op::Meet if self.all_at_meeting(rules, thread.warp) => self.meet(rules, thread.warp),
                        Op::IfNew { skip } if self.registers[t][END] == self.registers[t][LOOKED] => {
                            self.leave_out(t, index, skip);
                        }
                        Op::IfNew { .. } => {}
                        Op::Peek { cell, register } if rules.is_constant(cell) => {
                            self.peek(t, cell, register)
                        }
                        Op::Store { cell, value, .. } if rules.leaves_unseen(t, cell) => {
                            self.left |= bit(t, index);
                            let value = self.value(t, value);
                            self.take_off(rules, (t * OPS + index) as u8, value, cell);
                        }
                        Op::Again { to } => {
                            self.registers[t][FENCED] = 0;
                            for register in [LOOKED, TOTAL, RESERVED, LATER] {
                                self.registers[t][register] = 0;
                            }
                            self.done[t] &= !(((1 << (index - to)) - 1) << to);
                            settled = false;
                            continue;
                        }
                        _ => continue,
                    }
                    self.done[t] |= 1 << index;
                    settled = false;
                }
            }
            if settled {
                return;
            }
        }
    }

    fn fence(&mut self, rules: &Rules, thread: usize, op: usize) {
        let fence = rules.op(thread, op).fence(self.alone(thread)).expect("it is one");
        if fence.acquires() {
            self.cover[thread] |= self.seen[thread];
        }
        if fence.releases() {
            self.released[thread] = self.before(rules, thread, op);
        }
    }

    /// Lanes of a warp and where each meets the others.
    fn meetings<'a>(rules: &'a Rules, warp: usize) -> impl Iterator<Item = (usize, usize)> + use<'a> {
        let lanes = rules.scenario.threads.iter().enumerate().filter(move |(_, thread)| thread.warp == warp);
        lanes.filter_map(|(t, thread)| Some((t, thread.ops.iter().position(|one| one.op == Op::Meet)?)))
    }

    fn all_at_meeting(&self, rules: &Rules, warp: usize) -> bool {
        State::meetings(rules, warp).all(|(t, at)| self.may(rules, t, at))
    }

    fn meet(&mut self, rules: &Rules, warp: usize) {
        let mut all = 0;
        for (t, at) in State::meetings(rules, warp) {
            all |= rules.stores_before[t][at] | self.cover[t];
        }
        for (t, at) in State::meetings(rules, warp) {
            self.cover[t] |= all;
            self.done[t] |= 1 << at;
        }
    }

    /// Everything that can happen next.
    pub fn choices(&self, rules: &Rules, choices: &mut Vec<Choice>) {
        choices.clear();
        for (t, thread) in rules.scenario.threads.iter().enumerate() {
            for (index, instruction) in thread.ops.iter().enumerate() {
                let possible = match instruction.op {
                    Op::Store { cell, .. } if rules.leaves_unseen(t, cell) => false,
                    Op::Await { cell, value, .. } => self.look(thread.machine, cell) == value,
                    Op::Atomic { cell, does, .. } => self.succeeds(cell, does),
                    Op::Peek { cell, .. } => !rules.is_constant(cell),
                    Op::Store { .. } | Op::Expect { .. } | Op::Scan { .. } => true,
                    _ => false,
                };
                if possible && self.may(rules, t, index) {
                    let forced = rules.resting & bit(t, index) == 0;
                    choices.push(Choice { step: Step::Perform { thread: t, op: index }, forced });
                }
            }
        }
        let flying = &self.flight[..usize::from(self.flying)];
        for (position, &(id, _)) in flying.iter().enumerate() {
            let cell = rules.store(id).2;
            if flying[..position].iter().all(|&(earlier, _)| rules.store(earlier).2 != cell) {
                choices.push(Choice { step: Step::Arrive { id }, forced: true });
            }
        }
        let queue = &rules.scenario.queue;
        let belief = rules.assume.belief;
        if queue.record.is_some_and(|record| self.nic.told(self.far[record], belief) != self.nic) {
            choices.push(Choice { step: Step::ReadRecord, forced: queue.register.is_none() });
        }
        let is_missing = self.nic.missing(&queue.ring, &self.far).is_some();
        if is_missing || (self.nic.has_work() && choices.iter().all(|choice| !choice.forced)) {
            choices.push(Choice { step: Step::Fetch, forced: true });
        }
    }

    fn look(&self, machine: Machine, cell: CellId) -> u8 {
        if machine == Machine::Gpu { self.near[cell] } else { self.far[cell] }
    }

    /// The state after a step, or how the program fails in it.
    pub fn after(&self, rules: &Rules, step: Step) -> Result<State, Failure> {
        let mut next = *self;
        match step {
            Step::Perform { thread, op } => next.perform(rules, thread, op)?,
            Step::Arrive { id } => next.arrive(rules, id),
            Step::ReadRecord => {
                let record = rules.scenario.queue.record.expect("only a queue with a record reads it");
                next.nic = self.nic.told(self.far[record], rules.assume.belief);
            }
            Step::Fetch => next.nic = self.nic.fetch(&rules.scenario.queue.ring, &self.far)?,
        }
        next.settle(rules);
        next.forget(rules);
        Ok(next)
    }

    /// Drops what makes no difference any more, to merge states that go on alike: stores that have arrived,
    /// and all that an ended thread holds.
    fn forget(&mut self, rules: &Rules) {
        let flying = self.flight[..usize::from(self.flying)].iter().fold(0, |set, &(id, _)| set | 1 << id);
        let matters: Set = (flying & !rules.to_register) | !self.left;
        for set in
            self.cover.iter_mut().chain(&mut self.seen).chain(&mut self.released).chain(&mut self.carried)
        {
            *set &= matters;
        }
        for (t, thread) in rules.scenario.threads.iter().enumerate() {
            if self.done[t] == (1 << thread.ops.len()) - 1 {
                (self.cover[t], self.seen[t], self.released[t]) = (0, 0, 0);
                self.registers[t] = [0; REGISTERS];
            }
        }
    }

    /// How a state fails in which nothing has to happen any more.
    pub fn at_rest(&self, rules: &Rules) -> Option<Failure> {
        let posted = rules.scenario.queue.ring.len() as u8;
        let waiting = |(t, thread): (usize, &Thread)| {
            (0..thread.ops.len()).any(|op| !self.is_done(t, op) && rules.resting & bit(t, op) == 0)
        };
        if self.nic.executed < posted {
            return Some(Failure::Lost { wqe: self.nic.executed });
        }
        if let Some(record) = rules.scenario.queue.record.filter(|&record| self.far[record] < posted) {
            return Some(Failure::RecordBehind { says: self.far[record] });
        }
        rules.scenario.threads.iter().enumerate().any(waiting).then_some(Failure::Stuck)
    }

    fn perform(&mut self, rules: &Rules, thread: usize, op: usize) -> Result<(), Failure> {
        let machine = rules.scenario.threads[thread].machine;
        self.done[thread] |= 1 << op;
        match rules.op(thread, op) {
            Op::Store { cell, value, order } => {
                let value = self.value(thread, value);
                let place = rules.scenario.cells[cell].place;
                let queue = &rules.scenario.queue;
                if queue.only_forward && queue.register == Some(cell) && value < self.near[cell] {
                    return Err(Failure::Backwards { says: value });
                }
                self.near[cell] = value;
                if place == Place::Shared {
                    self.carried[cell] = self.handed_over(rules, thread, op, order.releases().is_some());
                }
                let at_once = match (machine, place) {
                    (_, Place::Register) => false,
                    (Machine::Gpu, Place::Gpu) => rules.assume.l2_serves_pcie,
                    (Machine::Gpu, Place::Host) => false,
                    _ => true,
                };
                self.left |= bit(thread, op);
                if at_once {
                    self.far[cell] = value;
                } else {
                    self.take_off(rules, (thread * OPS + op) as u8, value, cell);
                }
            }
            Op::Await { cell, order, .. } => self.take_over(thread, cell, order.acquires()),
            Op::Expect { cell, value } => {
                let saw = self.look(machine, cell);
                if saw != value {
                    return Err(Failure::Read { cell, saw, wanted: value });
                }
            }
            Op::Peek { cell, register } => self.peek(thread, cell, register),
            Op::Scan { marks, from } => {
                let from = usize::from(self.registers[thread][from]);
                let filled = marks[from..].iter().take_while(|&&mark| self.near[mark] == 1).count();
                for &mark in &marks[from..from + filled] {
                    self.take_over(thread, mark, false);
                }
                self.registers[thread][END] = (from + filled) as u8;
            }
            Op::Atomic { does: Atomic::PublishHeld { .. }, .. } if self.registers[thread][ROLE] == 0 => {}
            Op::Atomic { does: Atomic::Elect { .. }, .. } if self.registers[thread][ROLE] == 1 => {}
            Op::Atomic { does: Atomic::Return { rest, exact }, .. }
                if self.registers[thread][LATER] > self.registers[thread][TOTAL]
                    || (exact && self.registers[thread][LATER] != self.registers[thread][TOTAL]) =>
            {
                let left_out = self.leave(thread, op, rest);
                self.leave_out(thread, op, left_out);
            }
            Op::Atomic { cell, does, order } => {
                self.take_over(thread, cell, order.acquires());
                self.carried[cell] |= self.handed_over(rules, thread, op, order.releases().is_some());
                let left_out = self.change(rules, thread, op, cell, does);
                self.leave_out(thread, op, left_out);
            }
            _ => unreachable!("these settle by themselves"),
        }
        Ok(())
    }

    fn peek(&mut self, thread: usize, cell: CellId, register: usize) {
        self.take_over(thread, cell, false);
        self.registers[thread][register] = self.near[cell];
    }

    /// Stores that happened before an operation, its own thread's of an earlier turn included.
    fn before(&self, rules: &Rules, thread: usize, op: usize) -> Set {
        let around = rules.stores_around[thread][op] & self.left;
        rules.stores_before[thread][op] | around | self.cover[thread]
    }

    /// What a thread has observed that acquires from this store or atomic.
    fn handed_over(&self, rules: &Rules, thread: usize, op: usize, releases: bool) -> Set {
        if releases { self.before(rules, thread, op) } else { self.released[thread] }
    }

    pub fn take_over(&mut self, thread: usize, cell: CellId, acquires: bool) {
        let set = if acquires { &mut self.cover } else { &mut self.seen };
        set[thread] |= self.carried[cell];
    }

    /// The operations behind `op` will not happen; nobody needs to wait for them.
    pub fn leave_out(&mut self, thread: usize, op: usize, count: usize) {
        for left_out in op + 1..=op + count {
            self.done[thread] |= 1 << left_out;
            self.left |= bit(thread, left_out);
        }
    }

    /// Queued behind the last store to the same word, else sorted by word: order among words means nothing.
    fn take_off(&mut self, rules: &Rules, id: u8, value: u8, cell: CellId) {
        let flying = usize::from(self.flying);
        let at = self.flight[..flying].iter().position(|&(other, _)| rules.store(other).2 > cell);
        let at = at.unwrap_or(flying);
        self.flight.copy_within(at..flying, at + 1);
        self.flight[at] = (id, value);
        self.flying += 1;
    }

    fn arrive(&mut self, rules: &Rules, id: u8) {
        let cell = rules.store(id).2;
        let flying = usize::from(self.flying);
        let at = self.flight[..flying].iter().position(|&(other, _)| other == id).expect("it is under way");
        let value = self.flight[at].1;
        self.flight.copy_within(at + 1..flying, at);
        self.flying -= 1;
        self.flight[usize::from(self.flying)] = (0, 0);
        self.far[cell] = value;
        if rules.scenario.queue.register == Some(cell) {
            self.nic = self.nic.told(value, rules.assume.belief);
        }
    }

    /// What the oldest store under way with this number will write.
    pub fn flying_value(&self, id: u8) -> u8 {
        let flying = self.flight[..usize::from(self.flying)].iter();
        flying.into_iter().find(|&&(other, _)| other == id).map_or(0, |&(_, value)| value)
    }
}
