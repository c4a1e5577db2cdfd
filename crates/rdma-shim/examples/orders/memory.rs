//! Where every store of a program is, who has seen what, and what the NIC knows: one state of the search, and its steps.
//!
//! A store goes two ways at most. First it leaves its thread: from then on the GPU's other threads see it. Then it arrives: host
//! and NIC see it. Between the two it is on its own; only stores to the same word stay in order. What is nearer goes one way:
//! a host's store to its memory, a GPU's to its own (when the L2 serves PCIe).

use crate::device::{Failure, Nic};
use crate::program::{Atomic, CellId, Machine, Op, Place, READY_BITS, Scope, Thread, Value};
use crate::rules::{CELLS, OPS, Rules, Set, THREADS, bit};

const REGISTERS: usize = 4;
const IN_FLIGHT: usize = 16;

/// One state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Performed operations of each thread. A performed store has left.
    done: [u32; THREADS],
    /// Stores that have arrived where the NIC and the host look.
    arrived: Set,
    /// What the GPU's threads see, and what host and NIC see.
    near: [u8; CELLS],
    far: [u8; CELLS],
    /// Stores under way, in order for each word: words do not wait for each other.
    flight: [u8; IN_FLIGHT],
    flying: u8,
    /// Others' stores that happened before what each thread does next, that it saw without acquiring, and that its last
    /// release fence handed over.
    cover: [Set; THREADS],
    seen: [Set; THREADS],
    released: [Set; THREADS],
    /// What is handed to whoever acquires a word of [`Place::Shared`].
    carried: [Set; CELLS],
    registers: [[u8; REGISTERS]; THREADS],
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
    /// Whether it happens by itself: nothing compels a NIC to look at a record again, nor a write-combining buffer to empty
    /// itself.
    pub forced: bool,
}

impl State {
    pub fn first(rules: &Rules) -> State {
        let mut state = State {
            done: [0; THREADS],
            arrived: 0,
            near: [0; CELLS],
            far: [0; CELLS],
            flight: [0; IN_FLIGHT],
            flying: 0,
            cover: [0; THREADS],
            seen: [0; THREADS],
            released: [0; THREADS],
            carried: [0; CELLS],
            registers: [[0; REGISTERS]; THREADS],
            nic: Nic::default(),
        };
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

    /// Whether stores have come as far as a fence of this scope asks. A register write only has to have left.
    fn have_come(&self, rules: &Rules, stores: Set, scope: Scope) -> bool {
        let mut left = 0;
        for (thread, done) in self.done.iter().enumerate() {
            left |= Set::from(*done) << (thread * OPS);
        }
        let far_enough = match scope {
            Scope::Cta => return true,
            Scope::Gpu => left,
            Scope::Sys => self.arrived | (rules.to_register & left),
        };
        stores & !far_enough == 0
    }

    /// Whether the operation can be performed now, as far as its own thread and the order it brings are concerned.
    fn may(&self, rules: &Rules, thread: usize, op: usize) -> bool {
        let before = rules.after[thread][op];
        if self.is_done(thread, op) || before & !self.done[thread] != 0 {
            return false;
        }
        let own = rules.stores_before[thread][op];
        match rules.op(thread, op) {
            Op::Fence(fence) => {
                let over = if fence.acquires() { self.seen[thread] } else { 0 };
                fence
                    .edges()
                    .earlier_stores
                    .is_none_or(|scope| self.have_come(rules, own | self.cover[thread] | over, scope))
            }
            other => other
                .order()
                .releases()
                .is_none_or(|scope| self.have_come(rules, own | self.cover[thread], scope)),
        }
    }

    /// Performs every fence and meeting that can be: nobody sees them, they only permit, so that their moment is no choice.
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
                        Op::Fence(fence) => {
                            if fence.acquires() {
                                self.cover[t] |= self.seen[t];
                            }
                            if fence.releases() {
                                self.released[t] = rules.stores_before[t][index] | self.cover[t];
                            }
                        }
                        Op::Meet if self.all_at_meeting(rules, thread.warp) => self.meet(rules, thread.warp),
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
                    Op::Nothing | Op::Fence(_) | Op::Meet => false,
                    Op::Await { cell, value, .. } => self.look(thread.machine, cell) == value,
                    Op::Atomic { cell, does, .. } => self.succeeds(cell, does),
                    Op::Store { .. } | Op::Expect { .. } => true,
                };
                if possible && self.may(rules, t, index) {
                    let forced = rules.resting & bit(t, index) == 0;
                    choices.push(Choice { step: Step::Perform { thread: t, op: index }, forced });
                }
            }
        }
        let flying = &self.flight[..usize::from(self.flying)];
        for (position, &id) in flying.iter().enumerate() {
            let cell = rules.store(id).2;
            if flying[..position].iter().all(|&earlier| rules.store(earlier).2 != cell) {
                choices.push(Choice { step: Step::Arrive { id }, forced: true });
            }
        }
        let queue = &rules.scenario.queue;
        let belief = rules.assume.belief;
        if queue.record.is_some_and(|record| self.nic.told(self.far[record], belief) != self.nic) {
            choices.push(Choice { step: Step::ReadRecord, forced: queue.register.is_none() });
        }
        if self.nic.has_work() {
            choices.push(Choice { step: Step::Fetch, forced: true });
        }
    }

    fn look(&self, machine: Machine, cell: CellId) -> u8 {
        if machine == Machine::Gpu { self.near[cell] } else { self.far[cell] }
    }

    fn succeeds(&self, cell: CellId, does: Atomic) -> bool {
        let ready = self.near[cell] & ((1 << READY_BITS) - 1);
        match does {
            Atomic::Lock => self.near[cell] == 0,
            Atomic::Advance { begin, .. } | Atomic::Publish { begin, .. } => ready == begin,
            Atomic::Raise { .. } | Atomic::Retire { .. } => true,
        }
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
        Ok(next)
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
                if at_once {
                    self.far[cell] = value;
                    self.arrived |= bit(thread, op);
                } else {
                    self.take_off(rules, (thread * OPS + op) as u8, cell);
                }
            }
            Op::Await { cell, order, .. } => self.take_over(thread, cell, order.acquires()),
            Op::Expect { cell, value } => {
                let saw = self.look(machine, cell);
                if saw != value {
                    return Err(Failure::Read { cell, saw, wanted: value });
                }
            }
            Op::Atomic { cell, does, order } => {
                self.take_over(thread, cell, order.acquires());
                self.carried[cell] |= self.handed_over(rules, thread, op, order.releases().is_some());
                self.change(rules, thread, op, cell, does);
            }
            Op::Fence(_) | Op::Meet | Op::Nothing => unreachable!("these settle by themselves"),
        }
        Ok(())
    }

    /// What whoever acquires from this store or atomic has observed with it.
    fn handed_over(&self, rules: &Rules, thread: usize, op: usize, releases: bool) -> Set {
        if releases { rules.stores_before[thread][op] | self.cover[thread] } else { self.released[thread] }
    }

    fn take_over(&mut self, thread: usize, cell: CellId, acquires: bool) {
        let set = if acquires { &mut self.cover } else { &mut self.seen };
        set[thread] |= self.carried[cell];
    }

    fn change(&mut self, rules: &Rules, thread: usize, op: usize, cell: CellId, does: Atomic) {
        let word = self.near[cell];
        let (ready, publications) = (word & ((1 << READY_BITS) - 1), word >> READY_BITS);
        let rest = rules.scenario.threads[thread].ops.len() - op - 1;
        match does {
            Atomic::Lock => self.near[cell] = 1,
            Atomic::Advance { end, .. } => self.near[cell] = end,
            Atomic::Raise { to, .. } if word < to => self.near[cell] = to,
            Atomic::Raise { skip, .. } => self.leave_out(thread, op, skip),
            Atomic::Publish { end, .. } => {
                self.near[cell] = end | (publications + 1) << READY_BITS;
                self.registers[thread][0] = end | 1 << READY_BITS;
                if publications > 0 {
                    self.leave_out(thread, op, rest);
                }
            }
            Atomic::Retire { turn } => {
                let left = publications - (self.registers[thread][turn] >> READY_BITS);
                self.near[cell] = ready | left << READY_BITS;
                if left == 0 {
                    self.leave_out(thread, op, rest);
                } else {
                    self.registers[thread][turn + 1] = ready | left << READY_BITS;
                }
            }
        }
    }

    /// The operations behind `op` will not happen; nobody needs to wait for them.
    fn leave_out(&mut self, thread: usize, op: usize, count: usize) {
        for left_out in op + 1..=op + count {
            self.done[thread] |= 1 << left_out;
            self.arrived |= bit(thread, left_out);
        }
    }

    /// Behind the last store to the same word, else sorted by word: which word's stores took off first means nothing.
    fn take_off(&mut self, rules: &Rules, id: u8, cell: CellId) {
        let flying = usize::from(self.flying);
        let at =
            self.flight[..flying].iter().position(|&other| rules.store(other).2 > cell).unwrap_or(flying);
        self.flight.copy_within(at..flying, at + 1);
        self.flight[at] = id;
        self.flying += 1;
    }

    fn arrive(&mut self, rules: &Rules, id: u8) {
        let (thread, op, cell, value) = rules.store(id);
        let value = self.value(thread, value);
        let flying = usize::from(self.flying);
        let at = self.flight[..flying].iter().position(|&other| other == id).expect("it is under way");
        self.flight.copy_within(at + 1..flying, at);
        self.flying -= 1;
        self.flight[usize::from(self.flying)] = 0;
        self.arrived |= bit(thread, op);
        self.far[cell] = value;
        if rules.scenario.queue.register == Some(cell) {
            self.nic = self.nic.told(value, rules.assume.belief);
        }
    }
}
