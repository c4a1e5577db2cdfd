//! What waiting and sending add to a turn, for `cargo xtask figure bench-wait`: requests lie ready in slots.
//!
//! The NIC is memory that nothing reads; the model reverses its input (`kernels/reversal.cu`). A period is
//! from one answer's end to the next's, by the GPU. The CPU times a graph's model alone, over many turns.

use std::mem::offset_of;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpu::{Function, GRID_HEADER, Recorded, ResidentModel, SelfLaunching, Shape, SlotTensors, Stream, Unit};
use rdma_shim::kernel::{Machine, Memory, Place, db_kernel_queue};
use rdma_shim::sys::{db_cq, db_rq, db_slot, db_sq};
use slots::layout::{Header, PREFIX_BYTES, Status, flag};
use slots::{Arrival, Geometry, Tensor, TensorKind};

use super::launch::KERNELS;
use super::layout::db_place;
use super::{Core, MOST_THREADS, Repeat, Served, ServedError, Setting, by_cpu, refuse};

/// Slots of the timed pipelines. One slot cannot hold a waiting request: its answer must be read first.
pub const SLOTS: [u32; 3] = [2, 64, 4096];
/// Most requests of a pipeline, in slots that are evenly spread.
const REQUESTS: u32 = 64;
/// Rounds of a pipeline of two slots, each of which gives one period. One more before them warms up.
const OF_TWO: u32 = 15;
/// Turns of the model alone.
const ALONE: u32 = 2000;
/// Numbers of a request.
const FLOATS: usize = 1024;
/// `DB_REVERSAL_STEPS`.
const STEPS: u32 = 8;
/// Threads of each of the model's blocks.
const THREADS: u32 = 256;
/// Longest wait for anything that happens at once.
const LIMIT: Duration = Duration::from_secs(20);

/// How a pipeline has its turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// A graph that launches itself.
    Graph,
    /// The body of a WHILE node.
    While,
    /// Two graphs that launch themselves, beside one block that waits and sends.
    Ahead,
    /// One kernel that stays.
    Persistent,
    /// A graph that launches itself, in which one thread walks over all slots, as in the paper's release.
    Walk,
}

impl FromStr for Driver {
    type Err = String;

    fn from_str(name: &str) -> Result<Driver, String> {
        match name {
            "graph" => Ok(Driver::Graph),
            "while" => Ok(Driver::While),
            "ahead" => Ok(Driver::Ahead),
            "persistent" => Ok(Driver::Persistent),
            "walk" => Ok(Driver::Walk),
            other => Err(format!("`{other}` is none of graph, while, ahead, persistent, walk")),
        }
    }
}

impl Driver {
    fn again(self) -> Repeat {
        if self == Driver::While { Repeat::While } else { Repeat::Relaunch }
    }

    fn threads(self) -> u32 {
        if self == Driver::Walk { 1 } else { MOST_THREADS }
    }
}

/// Times of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Of the model alone, self-launched the same way.
    pub alone: Duration,
    /// With waiting and sending: medians, for each of [`SLOTS`].
    pub periods: [Duration; SLOTS.len()],
    /// The same with the second of [`SLOTS`], while the steps of each request are noted.
    pub traced: Duration,
}

/// Measures one driver. Errors: the machine cannot run it; an answer is not its request.
pub fn cost(machine: &Machine, driver: Driver) -> Result<Cost, ServedError> {
    let alone = alone(machine, driver, ALONE)?;
    let mut periods = [Duration::ZERO; SLOTS.len()];
    for (period, slots) in periods.iter_mut().zip(SLOTS) {
        *period = median(machine, driver, slots, false)?;
    }
    Ok(Cost { alone, periods, traced: median(machine, driver, SLOTS[1], true)? })
}

/// A turn of the model alone, of so many: the least of three, since the first one warms up.
fn alone(machine: &Machine, driver: Driver, turns: u32) -> Result<Duration, ServedError> {
    let mut served = Served::new(machine, setting(&geometry()?, SLOTS[0], 1))?;
    let mut least = Duration::MAX;
    if driver == Driver::Persistent {
        for _ in 0..3 {
            let model = ReversalModel::new(&served, &served.tensors())?.resident();
            least = least.min(served.run_alone(model, turns.into())?);
        }
        return Ok(least);
    }
    let model = ReversalModel::new(&served, &served.tensors())?;
    let record = |stream: &Stream| model.record(stream);
    let mut graph = match driver.again() {
        Repeat::Relaunch => {
            let module = machine.module(&[gpu::relaunch_unit()])?;
            // Beside the model, since that costs least.
            // SAFETY: the model keeps its steps' code and memory, and the graph is dropped before it.
            unsafe { SelfLaunching::of_capture_beside(&module, turns, None, |_| Ok(()), record) }
        }
        Repeat::While => {
            let module = machine.module(&[gpu::again_unit()])?;
            // SAFETY: as above.
            unsafe { SelfLaunching::of_while(&module, turns, None, record) }
        }
    }?;
    for _ in 0..3 {
        let since = Instant::now();
        // SAFETY: as above.
        unsafe { graph.start() }?;
        graph.wait(LIMIT)?;
        least = least.min(since.elapsed());
    }
    Ok(least / turns)
}

/// The median time from the end of an answer to that of the next, whose request waits already.
fn median(machine: &Machine, driver: Driver, slots: u32, is_traced: bool) -> Result<Duration, ServedError> {
    let mut all = periods(machine, driver, slots, is_traced)?;
    all.sort_unstable();
    Ok(Duration::from_nanos(all[all.len() / 2]))
}

/// The periods of one pipeline in ns. With few slots there are several rounds: the NIC sends the answers of
/// one when the requests of the next one lie in their slots.
fn periods(machine: &Machine, driver: Driver, slots: u32, is_traced: bool) -> Result<Vec<u64>, ServedError> {
    let mut waiting = Waiting::new(machine, geometry()?, slots, driver.threads())?;
    if is_traced {
        waiting.served.note_steps()?;
    }
    let served = &waiting.served;
    let tensors = if driver == Driver::Ahead { served.tensors_ahead() } else { served.tensors() };
    let model = ReversalModel::new(served, &tensors)?;
    match driver {
        Driver::Ahead => waiting.served.prepare_ahead(by_cpu::Model::Recorded(Box::new(model)))?,
        Driver::Persistent => waiting.served.prepare_resident(model.resident())?,
        _ => waiting.served.prepare_graph(driver.again(), Box::new(model))?,
    }
    waiting.served.start()?;
    waiting.until(0)?;
    let count = slots.min(REQUESTS);
    let filled: Vec<u32> = (0..count).map(|nth| nth * (slots / count)).collect();
    let request = |slot: u32| -> Vec<u8> {
        (0..FLOATS as u32).flat_map(|at| ((slot * 4099 + at) as f32).to_le_bytes()).collect()
    };
    let mut periods = Vec::new();
    let rounds = if slots == SLOTS[0] { 1 + OF_TWO } else { 1 };
    for round in 0..rounds {
        waiting.fill(&filled, round, |slot| request(slot + round))?;
        if round == 0 {
            waiting.served.start()?;
        } else {
            waiting.complete(count * (round - 1)..count * round)?;
        }
        waiting.answered((count * (round + 1)).into())?;
        let mut ends = Vec::new();
        for slot in &filled {
            let (header, answer) = waiting.answer(*slot)?;
            if answer != request(slot + round) {
                return refuse(format!(
                    "slot {slot} of {slots}: the answer of {driver:?} is not the request"
                ));
            }
            ends.push(header.ended_ns);
        }
        ends.sort_unstable();
        if round > 0 || rounds == 1 {
            periods.extend(ends.windows(2).map(|pair| pair[1] - pair[0]));
        }
    }
    waiting.served.stop(LIMIT)?;
    Ok(periods)
}

fn geometry() -> Result<Geometry, ServedError> {
    let tensor = Tensor { kind: TensorKind::F32, count: FLOATS };
    Geometry::new(5, &[tensor], &[tensor]).map_err(|error| ServedError::Refused(error.to_string()))
}

pub(super) fn setting(geometry: &Geometry, slots: u32, threads: u32) -> Setting<'_> {
    Setting {
        geometry,
        slots,
        clients: 1,
        arrival: Arrival::Flag,
        place: Place::Gpu,
        inputs: &[],
        outputs: &[],
        wait: Duration::from_millis(50),
        threads,
        copying: [1, 32],
    }
}

/// The model's code.
pub(super) fn unit() -> Unit {
    let text = include_str!("../../kernels/reversal.cu");
    rdma_shim::device::unit("reversal.cu", text).header(GRID_HEADER.0, GRID_HEADER.1)
}

/// The model, with the memory between its steps, in the slots of a pipeline.
struct ReversalModel {
    arguments: Memory,
    /// For a GPU: the kernel of one step.
    step: Option<Function>,
    twin_entry: u64,
    _between: [Memory; 2],
    _slots: Arc<Core>,
}

impl ReversalModel {
    fn new(served: &Served, tensors: &SlotTensors) -> Result<ReversalModel, ServedError> {
        let machine = &served.core.machine;
        let ([slots, index, stride, request], [.., answer]) =
            (tensors.inputs[0].words(), tensors.outputs[0].words());
        let between = [machine.own_memory(4 * FLOATS)?, machine.own_memory(4 * FLOATS)?];
        let [one, other] = between.each_ref().map(Memory::kernel_address);
        // `struct db_reversal`.
        let arguments = machine.own_memory(size_of::<[u64; 8]>())?;
        arguments.put(0, &[slots, index, stride, request, answer, one, other, FLOATS as u64])?;
        let (step, twin_entry) = match machine.is_gpu() {
            true => (Some(machine.module(&[unit()])?.function("reversal")?), 0),
            false => (None, twin_entry()?),
        };
        Ok(ReversalModel { arguments, step, twin_entry, _between: between, _slots: Arc::clone(&served.core) })
    }

    /// The model as a function of a kernel that stays.
    fn resident(self) -> ResidentModel {
        let (entry, address) = (self.twin_entry, self.arguments.kernel_address());
        let threads = if entry == 0 { THREADS } else { 64 };
        // SAFETY: the function keeps to the slots and `self`'s memory; its only waits are the grid's.
        unsafe { ResidentModel::new(vec![unit()], entry, address, threads, self) }
    }
}

fn twin_entry() -> Result<u64, ServedError> {
    let kernel = KERNELS.find("db_model").map_err(|error| ServedError::Refused(error.to_string()))?;
    Ok(kernel.entry())
}

// SAFETY: the kernels keep to the slots and to the memory that the value keeps.
unsafe impl Recorded for ReversalModel {
    fn record(&self, stream: &Stream) -> gpu::Result<()> {
        let step = self.step.as_ref();
        let step = step.ok_or_else(|| gpu::Error::Refused("the model was made for the twin".into()))?;
        let shape = Shape {
            grid: [(FLOATS as u32).div_ceil(THREADS), 1, 1],
            block: [THREADS, 1, 1],
            shared_bytes: 0,
        };
        for nth in 0..STEPS {
            let arguments = gpu::Arguments::new().u64(self.arguments.kernel_address()).u32(nth);
            // SAFETY: the kernel takes these, and its memory is kept as above.
            unsafe { stream.launch(step, shape, &arguments) }?;
        }
        Ok(())
    }
}

/// A pipeline with one client, whose requests lie in their slots before the turns begin.
pub(super) struct Waiting {
    pub(super) served: Served,
    geometry: Geometry,
    queue: Memory,
}

impl Waiting {
    /// Without a model yet: start it, then wait with [`Self::until`] for the client to be in.
    pub(super) fn new(
        machine: &Machine,
        geometry: Geometry,
        slots: u32,
        threads: u32,
    ) -> Result<Waiting, ServedError> {
        let served = Served::new(machine, setting(&geometry, slots, threads))?;
        let queue = played_queue(machine, &served, slots)?;
        served.want(0);
        Ok(Waiting { served, geometry, queue })
    }

    /// Ends the turns when the client is in and so many answers were sent.
    pub(super) fn until(&mut self, answers: u64) -> Result<(), ServedError> {
        self.answered(answers)?;
        self.served.stop(LIMIT)
    }

    /// Waits until the client is in and so many answers were sent.
    fn answered(&mut self, answers: u64) -> Result<(), ServedError> {
        let since = Instant::now();
        while !self.served.is_done(0) || self.served.counters().answered < answers {
            if !self.served.is_running()? {
                self.served.stop(LIMIT)?;
                return refuse("the turns have ended by themselves");
            }
            if since.elapsed() > LIMIT {
                return Err(ServedError::Deadline { what: format!("answer {answers}"), limit: LIMIT });
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Plays the NIC that has sent these answers, from 0. The first CQE comes last: a look at it finds all.
    fn complete(&self, answers: std::ops::Range<u32>) -> Result<(), ServedError> {
        let (entries, at) = completions(self.served.core.slot_count);
        for nth in answers.rev() {
            // An answer has two WQEs, of which the second one has a completion.
            let mut tail = [0; 8];
            tail[..4].copy_from_slice(&(8 << 24 | QPN).to_be_bytes());
            tail[4..6].copy_from_slice(&((2 * nth + 1) as u16).to_be_bytes());
            tail[7] = u8::from(nth / entries % 2 == 1);
            let cqe = at + 64 * (nth % entries) as usize;
            self.queue.write(cqe, &[0; 56])?;
            self.queue.put(cqe + 56, &u64::from_le_bytes(tail))?;
        }
        Ok(())
    }

    /// Writes a request to each of these slots, with `before` answered, flags last. No kernel takes one then.
    pub(super) fn fill(
        &self,
        filled: &[u32],
        before: u32,
        request: impl Fn(u32) -> Vec<u8>,
    ) -> Result<(), ServedError> {
        let core = &self.served.core;
        let granted: Vec<(u32, u32)> = filled.iter().map(|slot| (*slot, before)).collect();
        let mut client = slots::Client::new(self.geometry.clone(), &granted);
        let mut flags = vec![0; 8 * core.slot_count as usize];
        for nth in 0..filled.len() {
            let asked = client.ask(nth as u64, 0, 0, u64::MAX);
            let asked = asked.map_err(|error| ServedError::Refused(error.to_string()))?;
            let slot = asked.slot as usize;
            let at = slot * self.geometry.server_stride();
            core.slots.write(at, &asked.prefix)?;
            let offset = self.geometry.request.entries()[0].offset as usize;
            core.slots.write(at + offset, &request(asked.slot))?;
            flags[8 * slot..8 * slot + 8].copy_from_slice(&flag(asked.sequence).to_le_bytes());
        }
        Ok(core.flags.write(0, &flags)?)
    }

    /// The header of a slot's answer, and its tensor. Errors: it is not the slot's, or not OK.
    pub(super) fn answer(&self, slot: u32) -> Result<(Header, Vec<u8>), ServedError> {
        let slots = &self.served.core.slots;
        let at = slot as usize * self.geometry.server_stride() + self.geometry.answer_offset();
        let mut prefix = [0; PREFIX_BYTES];
        slots.read(at, &mut prefix)?;
        let is_answer = |header: &Header| (header.status, header.slot) == (Status::Ok.number(), slot);
        let Some(header) = Header::read(&prefix).filter(is_answer) else {
            return refuse(format!("slot {slot} has no good answer"));
        };
        let entry = self.geometry.answer.entries()[0];
        let mut tensor = vec![0; entry.length as usize];
        slots.read(at + entry.offset as usize, &mut tensor)?;
        Ok((header, tensor))
    }
}

const QPN: u32 = 0x49;

/// Entries of the played queue's CQ, and where it lies.
fn completions(slots: u32) -> (u32, usize) {
    let entries = (4 * slots).next_power_of_two();
    (entries, (64 + size_of::<db_slot>()) * entries as usize)
}

/// A queue in host memory whose NIC does nothing, and the place of its client, which has all slots.
fn played_queue(machine: &Machine, served: &Served, slots: u32) -> Result<Memory, ServedError> {
    let (entries, cq) = completions(slots);
    let (ring, table) = (0, 64 * entries as usize);
    let rest = (cq + 64 * entries as usize).next_multiple_of(4096);
    let memory = Memory::from(machine.host_memory(rest + (1 << 13))?);
    // No CQE is there: an opcode that no NIC writes.
    memory.write(cq, &vec![0xf0; 64 * entries as usize])?;
    let at = |offset: usize| memory.kernel_address() + offset as u64;
    let (record, register, structs) = (rest, rest + 1024, rest + 4096);
    let sq = db_sq {
        ring: at(ring),
        record: at(record + 4),
        reg: at(register),
        slots: at(table),
        blocks: entries,
        qpn: QPN,
        max_sge: 1,
        opcodes: 0x7f,
        ..db_sq::default()
    };
    let send_cq = db_cq { ring: at(cq), record: at(record + 64), entries, ..db_cq::default() };
    memory.put(structs, &sq)?;
    memory.put(structs + 512, &db_rq { qpn: QPN, ..db_rq::default() })?;
    memory.put(structs + 1024, &send_cq)?;
    let queue = db_kernel_queue {
        sq: at(structs),
        rq: at(structs + 512),
        send_cq: at(structs + 1024),
        receive_cq: at(structs + 1024),
    };
    let wanted = served.word(0, offset_of!(db_place, wanted)).load(Ordering::Relaxed);
    let place = db_place {
        queue,
        answers: 1 << 20,
        answer_flags: 1 << 20,
        count: slots,
        wanted,
        done: wanted,
        ..db_place::default()
    };
    Memory::from(served.core.places.clone()).put(served.place_at(0), &place)?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use host_twin::Visibility;
    use measure::need;

    use super::*;
    use crate::gpu::tests::has_compiler;

    #[test]
    fn twin_answers_what_waits_in_evenly_spread_slots() {
        need!(has_compiler(), cc, "a C++ compiler");
        let twin = Machine::twin(Visibility::InOrder);
        assert!(alone(&twin, Driver::Persistent, 3).unwrap() > Duration::ZERO);
        for (slots, is_traced, count) in [(2, false, OF_TWO as usize), (64, true, 63), (1024, false, 63)] {
            let periods = periods(&twin, Driver::Persistent, slots, is_traced).unwrap();
            assert_eq!(periods.len(), count);
            assert!(periods.iter().all(|ns| *ns > 0), "{periods:?}");
        }
    }

    #[test]
    fn a_driver_has_its_name_and_the_twin_refuses_a_graph() {
        need!(has_compiler(), cc, "a C++ compiler");
        assert!("grap".parse::<Driver>().unwrap_err().contains("graph, while, ahead, persistent, walk"));
        let error = cost(&Machine::twin(Visibility::InOrder), "walk".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("twin"), "{error}");
    }

    #[test]
    fn a_graph_has_as_many_steps_as_the_kernel_that_stays() {
        assert!(unit().text.contains(&format!("#define DB_REVERSAL_STEPS {STEPS}u\n")));
    }

    #[test]
    fn gpu_every_driver_gives_a_time_for_each_number() {
        let machine =
            need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
        for name in ["graph", "while", "ahead", "persistent", "walk"] {
            let found = cost(&machine, name.parse().unwrap()).unwrap();
            assert!(found.periods.iter().all(|period| *period > Duration::ZERO), "{name}: {found:?}");
        }
    }
}
