//! Pipelines whose kernels wait, copy and post. On a GPU a graph has its turns by itself; on the host twin
//! the CPU launches each kernel. On either one kernel may stay ([`Served::prepare_resident`]).
//!
//! [`Served`] has the slots of one model and its clients, which join and leave while it runs. The waiting
//! kernel takes a queue over and gives it back. Requests are refused as by `slots::Server`.

#![allow(non_camel_case_types, reason = "names are C's")]

mod ahead_kernel;
#[cfg(test)]
mod ahead_tests;
pub mod baseline;
pub mod by_cpu;
#[cfg(test)]
mod by_cpu_tests;
mod chain;
mod client;
pub mod cost;
mod endpoint;
mod error;
mod kernel_memory;
mod launch;
mod layout;
#[cfg(test)]
mod nic_tests;
#[cfg(test)]
mod overlap_tests;
mod resident;
mod resident_kernel;
#[cfg(test)]
mod resident_tests;
mod runs;
mod structure;
#[cfg(test)]
mod tests;
mod time;
mod told;
#[cfg(test)]
mod told_tests;
mod traced;
mod traces;

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdma_shim::kernel::{
    Failure, HostMemory, KernelError, Machine, Memory, Place, Plain, Queue, Share, db_kernel_end,
};
use slots::layout::{FLAG_BYTES, MOST_TENSORS};
use slots::{Arrival, Geometry};
use verbs::Pd;
use verbs::code::Access;

use layout::{db_client, db_counts, db_lanes, db_place, db_served, db_slot_words, db_told, db_turn};

use crate::{PATIENCE, Processor};

use error::refuse;
use kernel_memory::{COUNTS, Core};
use runs::Runs;

pub use client::Client;
pub(crate) use client::answer_regions;
pub use endpoint::{Endpoint, Pool};
pub use error::ServedError;
pub use kernel_memory::State;
pub use launch::{Model, Repeat, units};
pub use layout::db_counts as Counters;
pub use runs::OnEnd;
pub use structure::{Structure, structure};

/// `DB_MOST_THREADS`.
pub const MOST_THREADS: u32 = 512;

/// What a pipeline is made for.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    pub geometry: &'a Geometry,
    pub slots: u32,
    /// At a time.
    pub clients: u32,
    pub arrival: Arrival,
    /// Where requests lie.
    pub place: Place,
    /// The model's buffers, as kernels see them: one for each tensor, at multiples of 16. None at all: it
    /// works in the slots, at [`Served::tensors`].
    pub inputs: &'a [u64],
    pub outputs: &'a [u64],
    /// Longest wait of a turn.
    pub wait: Duration,
    /// Most threads that wait, up to [`MOST_THREADS`]; one walks over all slots, as the paper's release.
    pub threads: u32,
    /// Blocks that copy, and threads of each.
    pub copying: [u32; 2],
}

/// Time between two looks of the kernels across PCIe, while requests come: a look takes 4 us on an H200. A
/// client that joins or leaves waits so long at most, and for the turn that runs.
const ATTEND: Duration = Duration::from_millis(1);

/// The slots of one model, and its clients.
pub struct Served {
    runs: Runs,
    core: Arc<Core>,
    arrival: Arrival,
    /// The thread that posts, if the CPU does. Ended before the queues go.
    poster: Option<told::Poster>,
    queues: Arc<told::Shared>,
    on_end: Option<OnEnd>,
    /// A kernel with a defect, and its place in a turn.
    #[cfg(test)]
    planted: Option<(usize, rdma_shim::kernel::Source, &'static str)>,
    traces: Option<traces::Traces>,
    early: Option<[Share; 2]>,
}

/// The slots of a pipeline, without its turns and its clients; clones are the same.
#[derive(Debug, Clone)]
pub struct Slots(Arc<Core>);

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Served({:?}, {} slots)", self.arrival, self.core.slot_count)
    }
}

/// Makes `buffers` the first of all.
fn buffers(given: &[u64], wanted: usize, what: &str) -> Result<[u64; MOST_TENSORS], ServedError> {
    let mut all = [0; MOST_TENSORS];
    if given.len() != wanted || given.iter().any(|address| *address == 0 || address % 16 != 0) {
        return refuse(format!(
            "{} {what} for {wanted} tensors, or one not at a multiple of 16",
            given.len()
        ));
    }
    all[..wanted].copy_from_slice(given);
    Ok(all)
}

/// Why the queue of a place failed, if it did.
fn failure(places: &HostMemory, index: u32) -> Result<Option<Failure>, KernelError> {
    let at = index as usize * size_of::<db_place>() + offset_of!(db_place, end);
    let code = places.words()[(at + offset_of!(db_kernel_end, code)) / 4].load(Ordering::Acquire);
    if code == 0 {
        return Ok(None);
    }
    let end: db_kernel_end = Memory::from(places.clone()).get(at)?;
    Ok(db_kernel_end { code, ..end }.failure())
}

impl Served {
    /// Slots and flags in the machine's memory. Errors: it does not see a NIC's writes there; no memory.
    pub fn new(machine: &Machine, setting: Setting<'_>) -> Result<Served, ServedError> {
        Served::posted_by(Processor::Gpu, machine, setting)
    }

    /// As [`Self::new`]; where the CPU posts (`gpu-cpu`), a thread of its own does it, and
    /// [`Queue::create_mixed`] makes the clients' queues.
    pub fn posted_by(
        posts: Processor,
        machine: &Machine,
        setting: Setting<'_>,
    ) -> Result<Served, ServedError> {
        let Setting { geometry, slots: count, arrival, .. } = setting;
        let slot_count = count as usize;
        if count == 0 || setting.clients == 0 || setting.threads == 0 || setting.copying.contains(&0) {
            return refuse("a pipeline has a slot, a client, a thread and a block at least");
        }
        if setting.threads > MOST_THREADS {
            return refuse(format!("{} threads that wait: {MOST_THREADS} at most", setting.threads));
        }
        let stride = geometry.server_stride();
        let own = |bytes| machine.zeroed_memory(bytes);
        let in_slots = setting.inputs.is_empty() && setting.outputs.is_empty();
        // The last one is no client's: a model in the slots works there in a turn without a good request.
        let bytes = stride * (slot_count + usize::from(in_slots));
        let slots = match setting.place {
            Place::Host => machine.host_memory(bytes)?.into(),
            _ => own(bytes)?,
        };
        let flags = match (setting.place, arrival) {
            (Place::Host, Arrival::Flag) => machine.host_memory(FLAG_BYTES * slot_count)?.into(),
            _ => own(FLAG_BYTES * slot_count)?,
        };
        let (clients, words_of) =
            (own(setting.clients as usize * size_of::<db_client>())?, own(28 * slot_count + FLAG_BYTES)?);
        let places = machine.host_memory(setting.clients as usize * size_of::<db_place>())?;
        let shared = machine.host_memory(COUNTS + size_of::<db_counts>())?;
        let (served, turn) = (own(size_of::<db_served>())?, own(size_of::<db_turn>())?);
        let lanes = own(size_of::<db_lanes>())?;
        // The spare slot, until a turn has another.
        let no_turn = || db_turn { model_slot: count, ..db_turn::default() };
        let free = db_slot_words { owner: u32::MAX, ..db_slot_words::default() };
        words_of.write(0, &free.bytes().repeat(slot_count))?;
        let behind_words = words_of.kernel_address() + (size_of::<db_slot_words>() * slot_count) as u64;
        let [inputs, outputs] = match in_slots {
            true => [[0; MOST_TENSORS]; 2],
            false => [
                buffers(setting.inputs, geometry.request.entries().len(), "inputs")?,
                buffers(setting.outputs, geometry.answer.entries().len(), "outputs")?,
            ],
        };
        let [flags_at, flag_stride] = match arrival {
            Arrival::Tail => [slots.kernel_address() + geometry.request.tail as u64, stride as u64],
            Arrival::Flag => [flags.kernel_address(), FLAG_BYTES as u64],
            // The kernels' own: a client may write to its share of the others.
            Arrival::Completion | Arrival::Send => [behind_words, FLAG_BYTES as u64],
        };
        let told = match posts {
            Processor::Gpu => None,
            Processor::Cpu => Some(told::AnswerRing {
                ring: machine.host_memory(slot_count * size_of::<db_told>())?,
                sending: machine.host_memory(4 * slot_count)?,
                places: places.clone(),
                shared: shared.clone(),
                geometry: geometry.clone(),
                arrival,
                slots: slots.address(),
                slot_count: count,
            }),
        };
        served.put(
            0,
            &db_served {
                slots: slots.kernel_address(),
                slots_nic: slots.address(),
                flags: flags_at,
                flag_stride,
                awaited: behind_words + (FLAG_BYTES * (slot_count + 1)) as u64,
                words: words_of.kernel_address(),
                sending: told.as_ref().map_or(0, |told| told.sending.kernel_address()),
                clients: clients.kernel_address(),
                places: places.kernel_address(),
                cancel: shared.kernel_address(),
                counts: shared.kernel_address() + COUNTS as u64,
                wait_ns: u64::try_from(setting.wait.as_nanos()).unwrap_or(u64::MAX),
                patience_ns: PATIENCE.as_nanos() as u64,
                attend_ns: ATTEND.as_nanos() as u64,
                told: told.as_ref().map_or(0, |told| told.ring.kernel_address()),
                host_flag: words_of.kernel_address() + 24 * u64::from(count),
                slot_count: count,
                client_count: setting.clients,
                arrival: arrival as u32,
                inputs,
                outputs,
                ..db_served::of(geometry)
            },
        )?;
        turn.put(0, &no_turn())?;
        lanes.put(0, &db_lanes { runs: no_turn(), ..db_lanes::default() })?;
        // A thread looks at nine slots side by side (`DB_SEEN`), and one warp of a block that sends at none:
        // so eight. More threads make a barrier slower.
        let useful = count.div_ceil(8).max(setting.clients).max(64).next_multiple_of(32);
        let (threads, copying) = (setting.threads.min(useful), setting.copying);
        let is_told = told.is_some();
        let queues = told::Shared::new(setting.clients, told);
        let told = launch::KernelAddresses {
            served: served.kernel_address(),
            turn: turn.kernel_address(),
            shapes: [[1, threads], copying, copying, [1, threads.max(32)]],
            in_slots,
        };
        let wait = setting.wait;
        let core = Core {
            machine: machine.clone(),
            place: setting.place,
            geometry: geometry.clone(),
            slot_count: count,
            turn,
            lanes,
            slots,
            flags,
            places,
            shared,
            own: [served, clients, words_of],
            wait,
            told,
            traced: std::sync::OnceLock::new(),
        };
        Ok(Served {
            runs: Runs::Not,
            core: Arc::new(core),
            arrival,
            poster: is_told.then(|| told::Poster::start(&queues)).transpose()?,
            queues,
            on_end: None,
            #[cfg(test)]
            planted: None,
            traces: None,
            early: None,
        })
    }

    /// Its slots, for the set-up of a client.
    pub fn slots(&self) -> Slots {
        Slots(Arc::clone(&self.core))
    }

    /// Registers a slot before kernels run, and keeps it registered. Errors: memory that the NIC does not
    /// reach. A software NIC also prepares for GPU memory here, which it cannot while a kernel stays there.
    pub fn register_early(&mut self, context: &verbs::Context) -> Result<(), ServedError> {
        let pd = context.alloc_pd()?;
        self.early = Some(self.slots().shares(&pd, 0, 1)?);
        Ok(())
    }

    /// The processor that posts answers.
    pub fn posts(&self) -> Processor {
        if self.poster.is_some() { Processor::Cpu } else { Processor::Gpu }
    }

    fn place_at(&self, index: u32) -> usize {
        index as usize * size_of::<db_place>()
    }

    fn word(&self, index: u32, field: usize) -> &std::sync::atomic::AtomicU32 {
        &self.core.places.words()[(self.place_at(index) + field) / 4]
    }

    /// Takes a client with a connected queue; returns its place. No other client has its slots. Kernels serve
    /// it from the next look on: [`Self::has_joined`]. Errors: no place; a queue its slots could overrun.
    pub fn add_client(&mut self, queue: Queue, client: Client) -> Result<u32, ServedError> {
        let (room, Client { first, count, .. }) = (queue.room()?, client);
        self.core.check(first, count)?;
        // Kernels post them when half of them are taken.
        let receives = if self.arrival.has_receives() { 2 * count } else { 0 };
        if room.sends < 2 * count
            || room.flushes() < 2 * count
            || room.receives < receives
            || room.receive_completions < 2 * receives
            || (receives > 0 && room.one_cq)
        {
            return refuse(format!(
                "{}: {room:?} for {count} slots, with a CQ of its own for receives",
                queue.name()
            ));
        }
        if self.poster.is_some() && !queue.is_mixed() {
            return refuse(format!("{}: the CPU cannot post there", queue.name()));
        }
        let mut queues = self.queues.lock();
        let Some(index) = queues.free() else {
            return refuse(format!("all {} places are taken", queues.count()));
        };
        let number = index as u32;
        let wanted = self.word(number, offset_of!(db_place, wanted)).load(Ordering::Relaxed);
        let place = db_place { wanted, done: wanted, ..db_place::of(queue.addresses(), &client) };
        // `wanted` and `done` stay as they are: no kernel reads the rest before `wanted` changes.
        self.core.places.write(self.place_at(number), place.bytes())?;
        queues.put(index, queue, client);
        drop(queues);
        self.want(number);
        Ok(number)
    }

    fn want(&self, index: u32) {
        self.word(index, offset_of!(db_place, wanted)).fetch_add(1, Ordering::Release);
    }

    /// Whether the kernels have seen what was asked for a place last: a client to join, or to leave.
    pub fn is_done(&self, index: u32) -> bool {
        let [wanted, done] = [offset_of!(db_place, wanted), offset_of!(db_place, done)]
            .map(|field| self.word(index, field).load(Ordering::Acquire));
        wanted == done
    }

    /// Waits until then. Error: it does not run, or not within `limit`.
    pub fn wait_done(&self, index: u32, limit: Duration) -> Result<(), ServedError> {
        let since = Instant::now();
        while !self.is_done(index) {
            if since.elapsed() > limit {
                return Err(ServedError::Deadline { what: format!("a change of client {index}"), limit });
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// Asks the kernels to let a client go: [`Self::is_done`] tells when they have. Ask again where it says
    /// so now and they had not taken the client in yet.
    pub fn let_go(&mut self, index: u32) -> Result<(), ServedError> {
        if !self.queues.lock().has(index as usize) {
            return refuse(format!("place {index} has no client"));
        }
        let wanted = self.word(index, offset_of!(db_place, wanted)).load(Ordering::Relaxed);
        if wanted % 2 == 1 && self.is_done(index) {
            self.want(index);
        }
        Ok(())
    }

    /// Whether the kernels have let a client go.
    pub fn is_gone(&self, index: u32) -> bool {
        let done = self.word(index, offset_of!(db_place, done)).load(Ordering::Acquire);
        done.is_multiple_of(2) && self.is_done(index)
    }

    /// Answers that a client got that is gone, and how many of them were refusals.
    pub fn answered(&self, index: u32) -> Result<[u64; 2], ServedError> {
        let place: db_place = Memory::from(self.core.places.clone()).get(self.place_at(index))?;
        Ok([place.answered, place.refused])
    }

    /// Takes the queue of a client that is gone, as its kernels left it. Give it to the next client,
    /// [`Queue::emptied`]: a GPU's queue dropped while a graph runs stays until the GPU is at rest.
    pub fn take_queue(&mut self, index: u32) -> Result<Queue, ServedError> {
        if !self.is_gone(index) {
            return refuse(format!("the client in place {index} is not gone"));
        }
        let queue = self.queues.lock().take(index as usize);
        queue.map_or_else(|| refuse(format!("place {index} has no client")), Ok)
    }

    /// [`Self::let_go`], then [`Self::take_queue`], emptied and in RESET. What was not answered is not.
    /// Error: as [`Self::wait_done`], and then the queue stays.
    pub fn remove_client(&mut self, index: u32, limit: Duration) -> Result<Queue, ServedError> {
        self.wait_done(index, limit)?;
        self.let_go(index)?;
        self.wait_done(index, limit)?;
        Ok(self.take_queue(index)?.emptied()?)
    }

    /// Why a client's queue failed, if it did.
    pub fn failure(&self, index: u32) -> Result<Option<Failure>, ServedError> {
        Ok(failure(&self.core.places, index)?)
    }

    pub fn counters(&self) -> Counters {
        self.core.counters()
    }
}

impl Core {
    fn counters(&self) -> Counters {
        let words = &self.shared.long_words()[COUNTS / 8..];
        let count = |nth: usize| words[nth].load(Ordering::Relaxed);
        Counters { turns: count(0), answered: count(1), refused: count(2), sent: count(3), strays: count(4) }
    }
}

impl Slots {
    /// Clears `count` slots and registers them for a client's protection domain: the slots, then their flags.
    /// The last client's data there is gone.
    pub fn shares(&self, pd: &Pd, first: u32, count: u32) -> Result<[Share; 2], ServedError> {
        let core = &*self.0;
        core.check(first, count)?;
        let (first, count, stride) = (first as usize, count as usize, core.geometry.server_stride());
        let share = |memory: &Memory, each: usize| {
            let range = first * each..(first + count) * each;
            let zeros = vec![0; range.len().min(1 << 20)];
            for at in range.clone().step_by(zeros.len()) {
                memory.write(at, &zeros[..zeros.len().min(range.end - at)])?;
            }
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            Share::new(&core.machine, pd, core.place, memory, range, access)
        };
        Ok([share(&core.slots, stride)?, share(&core.flags, FLAG_BYTES)?])
    }

    /// The model's layout of requests and answers.
    pub fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Queues and slots are the kernels' until they have ended. What does not end keeps all of it.
        if self.stop(self.core.wait.saturating_add(Duration::from_secs(60))).is_err() && self.may_run() {
            std::mem::forget((
                std::mem::replace(&mut self.runs, Runs::Not),
                Arc::clone(&self.queues),
                Arc::clone(&self.core),
            ));
        }
    }
}
