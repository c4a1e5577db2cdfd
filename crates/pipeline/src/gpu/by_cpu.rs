//! `cpu-gpu`: for each request the CPU waits, and launches a graph whose last kernel posts the answer. On the
//! host twin that graph's kernels are launched one by one, and have ended when the launch returns.
//!
//! The requests lie in host memory, where the CPU reads their prefixes. Launches do not wait for each other:
//! a ring of records tells each what it is for.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gpu::{DeviceGraph, Function, Graph, Priority, Recorded, Shape, Stream, Unit};
use rdma_shim::c_structs;
use rdma_shim::kernel::{Arguments, HostMemory, Kernel, Machine, Memory, Plain, Source, db_kernel_queue};
use slots::Status;
use slots::layout::FLAG_BYTES;

use super::layout::{db_client, db_counts, db_place, db_served, db_slot_words, db_turn};
use super::{COUNTS, ServedError, buffers, failure, launch, refuse};
use crate::cpu::{self, CpuError, Endpoint, Job, Offload};

/// `DB_ASKED_ENTRIES`.
const ENTRIES: u64 = 64;
const REQUEST: u32 = 0;
const JOIN: u32 = 1;
const LEAVE: u32 = 2;
/// More than all turns that may be in flight take.
const LIMIT: Duration = Duration::from_secs(60);

c_structs! {
    /// `struct db_asked` of `kernels/asked.h`.
    pub(super) struct db_asked {
        pub(super) what: u32,
        pub(super) slot: u32,
        pub(super) sequence: u32,
        pub(super) client: u32,
        pub(super) status: u32,
        pub(super) arrival: u32,
        pub(super) request_id: u64,
        pub(super) cookie: u64,
        pub(super) sent_ns: u64,
        pub(super) completed: u64,
        pub(super) pad: u64,
    }
}

/// The kernel that begins a turn.
pub(super) const BEGIN: Source = Source {
    name: "begin.cu",
    text: include_str!("../../kernels/begin.cu"),
    headers: &[
        ("asked.h", include_str!("../../kernels/asked.h")),
        ("pipeline.h", include_str!("../../kernels/pipeline.h")),
        ("slots.h", slots::header::TEXT),
    ],
    twin: launch::SOURCES[0].twin,
};

/// What computes outputs of inputs.
pub enum Model {
    /// Called between two kernels of the host twin. Error: why it failed; nothing is served any more.
    Called(Box<super::Model>),
    /// Recorded into the graph.
    Recorded(Box<dyn Recorded>),
}

/// What turns that the CPU launches are made for.
pub struct Setting<'a> {
    /// The slots, which kernels of the machine reach: [`cpu::Memory::shown_to`].
    pub slots: &'a cpu::Memory,
    /// How many there are.
    pub slot_count: u32,
    /// At a time.
    pub clients: u32,
    /// The model's buffers, as kernels see them: one for each tensor, at multiples of 16.
    pub inputs: &'a [u64],
    pub outputs: &'a [u64],
    /// Blocks that copy, and threads of each.
    pub copying: [u32; 2],
}

/// Memory that the kernels use.
#[derive(Debug)]
struct TurnMemory {
    served: Memory,
    turn: Memory,
    places: HostMemory,
    /// The counts, on the line where [`super::Served`] has them.
    shared: HostMemory,
    asked: HostMemory,
    _own: [Memory; 2],
    _slots: cpu::Memory,
}

enum Launches {
    Twin { begin: Kernel, steps: Box<launch::Steps>, unused: HostMemory, model: Box<super::Model> },
    // The graph first: it uses the model's memory.
    Gpu { graph: DeviceGraph, begin: Function, stream: Stream, _model: Box<dyn Recorded> },
}

/// Turns that the CPU launches.
pub struct Turns {
    launches: Launches,
    kept: Arc<TurnMemory>,
    /// Launches so far.
    begun: u64,
    /// Of each client its place.
    clients: BTreeMap<u32, u32>,
    place_count: u32,
}

impl Turns {
    /// Kernels for slots in host memory. Errors: memory that the machine's kernels do not reach; no memory; a
    /// model of another kind of machine; what the compiler says.
    pub fn new(machine: &Machine, setting: &Setting<'_>, model: Model) -> Result<Turns, ServedError> {
        let Setting { slots, slot_count, clients, copying, .. } = *setting;
        let geometry = &slots.geometry;
        let Some(shown) = slots.shown() else { return refuse("slots that no kernel reaches") };
        if clients == 0
            || copying.contains(&0)
            || geometry.server_stride() * slot_count as usize > shown.len()
        {
            return refuse("turns have a client and a block at least, and slots that are there");
        }
        let own = |bytes| machine.zeroed_memory(bytes);
        let (served, turn) = (own(size_of::<db_served>())?, own(size_of::<db_turn>())?);
        let (of_clients, words_of) = (
            own(clients as usize * size_of::<db_client>())?,
            own(slot_count as usize * (size_of::<db_slot_words>() + 4))?,
        );
        let places = machine.host_memory(clients as usize * size_of::<db_place>())?;
        let shared = machine.host_memory(COUNTS + size_of::<db_counts>())?;
        let asked = machine.host_memory(ENTRIES as usize * size_of::<db_asked>())?;
        let told = db_served {
            slots: shown.kernel_address(),
            slots_nic: shown.address(),
            flag_stride: FLAG_BYTES as u64,
            awaited: words_of.kernel_address() + u64::from(slot_count) * size_of::<db_slot_words>() as u64,
            words: words_of.kernel_address(),
            clients: of_clients.kernel_address(),
            places: places.kernel_address(),
            cancel: shared.kernel_address(),
            counts: shared.kernel_address() + COUNTS as u64,
            slot_count,
            client_count: clients,
            inputs: buffers(setting.inputs, geometry.request.entries().len(), "inputs")?,
            outputs: buffers(setting.outputs, geometry.answer.entries().len(), "outputs")?,
            ..db_served::of(geometry)
        };
        served.put(0, &told)?;
        let told = launch::KernelAddresses {
            in_slots: false,
            served: served.kernel_address(),
            turn: turn.kernel_address(),
            shapes: [[1, 1], copying, copying, [1, 32]],
        };
        let ring = asked.kernel_address();
        let launches = match (machine.context(), model) {
            (None, Model::Called(model)) => Launches::Twin {
                begin: Kernel::prepare(machine, &BEGIN, "begin_turn")?,
                steps: Box::new(launch::Steps::new(machine, told)?),
                unused: machine.host_memory(4)?,
                model,
            },
            (Some(context), Model::Recorded(model)) => {
                let stream = Stream::new(context, Priority::Greatest)?;
                let (graph, begin) = graph(machine, &stream, told, ring, &*model)?;
                Launches::Gpu { graph, begin, stream, _model: model }
            }
            _ => return refuse("a model of another kind of machine: one that is called is the twin's"),
        };
        let _own = [of_clients, words_of];
        let kept = TurnMemory { served, turn, places, shared, asked, _own, _slots: slots.clone() };
        Ok(Turns { launches, kept: Arc::new(kept), begun: 0, clients: BTreeMap::new(), place_count: clients })
    }

    /// Has answers allow a client so many outstanding requests, instead of one a slot. Before the first turn.
    pub fn limit(&mut self, credits: u16) -> Result<(), ServedError> {
        if self.begun > 0 {
            return refuse("kernels read what they are told while they run");
        }
        let word = u32::from(credits.max(1)).to_ne_bytes();
        Ok(self.kept.served.write(offset_of!(db_served, credits), &word)?)
    }

    /// Turns that have begun: each has read its record, and the place that it names.
    fn seen(&self) -> u64 {
        self.kept.shared.long_words()[COUNTS / 8].load(Ordering::Acquire)
    }

    fn launch(&mut self, asked: &db_asked) -> Result<(), ServedError> {
        let at = (self.begun % ENTRIES) as usize * size_of::<db_asked>();
        self.kept.asked.write(at, asked.bytes())?;
        std::sync::atomic::fence(Ordering::Release);
        self.begun += 1;
        let (kept, is_turn) = (&self.kept, asked.what == REQUEST);
        let addresses =
            [&kept.served, &kept.turn, &Memory::from(kept.asked.clone())].map(Memory::kernel_address);
        match &mut self.launches {
            Launches::Twin { begin, steps, unused, model } => {
                let arguments = Arguments::new().u64(addresses[0]).u64(addresses[1]).u64(addresses[2]);
                // SAFETY: the kernel takes these addresses, of memory that is kept; it waits for nothing.
                let begun = unsafe { begin.launch([1, 1], &arguments, unused.clone(), Arc::clone(kept)) }?;
                begun.end(LIMIT)?;
                if is_turn {
                    steps.run(1, LIMIT, Arc::clone(kept))?;
                    if asked.status == u32::from(Status::Ok.number()) {
                        launch::run(model)?;
                    }
                    steps.run(2, LIMIT, Arc::clone(kept))?;
                    steps.run(3, LIMIT, Arc::clone(kept))?;
                }
            }
            // SAFETY: what the kernels use is kept until the stream is idle: `Drop` waits, or forgets it.
            Launches::Gpu { graph, stream, .. } if is_turn => unsafe { graph.launch(stream) }?,
            Launches::Gpu { begin, stream, .. } => {
                let [served, turn, ring] = addresses;
                let arguments = gpu::Arguments::new().u64(served).u64(turn).u64(ring);
                // SAFETY: as above.
                unsafe { stream.launch(begin, Shape::line(1, 1), &arguments) }?;
            }
        }
        Ok(())
    }

    /// Waits for the end of all that was launched.
    fn rest(&self) -> Result<(), ServedError> {
        match &self.launches {
            Launches::Twin { .. } => Ok(()),
            Launches::Gpu { stream, .. } => Ok(stream.wait("turns that the CPU launched", LIMIT)?),
        }
    }

    fn change(&mut self, what: u32, place: u32) -> Result<(), ServedError> {
        if self.begun - self.seen() >= ENTRIES {
            self.rest()?;
        }
        self.launch(&db_asked { what, client: place, ..db_asked::default() })
    }

    fn join(&mut self, queue: db_kernel_queue, endpoint: &Endpoint) -> Result<u32, ServedError> {
        let taken: Vec<u32> = self.clients.values().copied().collect();
        let Some(place) = (0..self.place_count).find(|place| !taken.contains(place)) else {
            return refuse(format!("all {} places are taken", self.place_count));
        };
        let there = db_place::of(queue, &endpoint.client());
        self.kept.places.write(place as usize * size_of::<db_place>(), there.bytes())?;
        self.change(JOIN, place)?;
        Ok(place)
    }

    fn leave(&mut self, client: u32) -> Result<(), ServedError> {
        let Some(&place) = self.clients.get(&client) else { return Ok(()) };
        self.change(LEAVE, place)?;
        self.rest()?;
        self.clients.remove(&client);
        Ok(())
    }
}

/// The sources as a GPU's compiler takes them.
pub fn units() -> Vec<Unit> {
    launch::SOURCES[1..].iter().chain([&BEGIN]).map(Source::unit).collect()
}

/// The turn's graph, and its first kernel alone.
fn graph(
    machine: &Machine,
    stream: &Stream,
    told: launch::KernelAddresses,
    ring: u64,
    model: &dyn Recorded,
) -> Result<(DeviceGraph, Function), ServedError> {
    let module = machine.module(&units())?;
    let begin = module.function("begin_turn")?;
    let rest = launch::NAMES[1..].iter().map(|name| module.function(name));
    let rest = rest.collect::<gpu::Result<Vec<Function>>>()?;
    let record = |stream: &Stream| {
        let put = |step: usize| told.put(step, &rest[step - 1], stream);
        let arguments = gpu::Arguments::new().u64(told.served).u64(told.turn).u64(ring);
        // SAFETY: as in `Turns::launch`.
        unsafe { stream.launch(&begin, Shape::line(1, 1), &arguments) }?;
        put(1)?;
        model.record(stream)?;
        put(2)?;
        put(3)
    };
    // SAFETY: the functions' code stays with the module, which `begin` keeps; `Recorded` keeps the model's.
    let graph = unsafe { Graph::capture(stream, record) }?.instantiate_for_host()?;
    Ok((graph.uploaded(stream)?, begin))
}

fn failed(error: ServedError) -> CpuError {
    CpuError::Offload(error.to_string())
}

impl Offload for Turns {
    fn posts(&self) -> bool {
        true
    }

    fn admit(&mut self, client: u32, endpoint: &Endpoint) -> Result<(), CpuError> {
        let queue = endpoint.kernel_queue().ok_or(CpuError::Mode(crate::Mode::CpuGpu))?;
        let place = self.join(queue, endpoint).map_err(failed)?;
        self.clients.insert(client, place);
        Ok(())
    }

    fn remove(&mut self, client: u32) -> Result<(), CpuError> {
        self.leave(client).map_err(failed)
    }

    fn failure(&self, client: u32) -> Option<String> {
        let found = failure(&self.kept.places, *self.clients.get(&client)?);
        found.map_or_else(|error| Some(error.to_string()), |failure| Some(failure?.to_string()))
    }

    fn turns(&self) -> [u64; 2] {
        [self.begun, self.seen()]
    }

    fn has_room(&self) -> bool {
        self.begun - self.seen() < ENTRIES
    }

    fn begin(&mut self, job: Job) -> Result<(), CpuError> {
        let client = *self.clients.get(&job.client).ok_or(CpuError::NoSlots)?;
        let asked = db_asked {
            what: REQUEST,
            slot: job.slot,
            sequence: job.sequence,
            client,
            status: job.status.number().into(),
            arrival: job.arrival as u32,
            request_id: job.header.request_id,
            cookie: job.header.cookie,
            sent_ns: job.header.sent_ns,
            completed: job.completed,
            pad: 0,
        };
        self.launch(&asked).map_err(failed)
    }

    fn ended(&mut self) -> Result<Option<Job>, CpuError> {
        // A turn that failed shows here: its stream tells the error for good.
        if let Launches::Gpu { stream, .. } = &self.launches
            && self.begun > self.seen()
        {
            stream.is_idle().map_err(|error| failed(error.into()))?;
        }
        Ok(None)
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        if self.rest().is_err() {
            std::mem::forget(Arc::clone(&self.kept));
        }
    }
}
