//! The faithful baseline, as the paper's release serves by its CPU: pageable slots, a GPU slot for each, two
//! threads. Before each launch the slot's number is copied from host to host on the graph's own stream: the
//! driver waits for the graph before. The graph copies from the slot on the GPU into the model, and back.
//!
//! One thread copies requests to the GPU and launches. The other one waits for the graph's end, copies the
//! answer to the host, and posts. It also looks for requests; in the release the first one does.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpu::{DeviceGraph, Event, Graph, Priority, Recorded, Stream, Unit};
use rdma_shim::kernel::{HostMemory, Machine, Memory, Plain, Source};
use slots::Status;

use super::Model;
use super::instance::{Instance, LIMIT, copy, failed, places};
use crate::cpu::{CpuError, Job, Memory as Slots, Offload};
use crate::gpu::layout::{db_served, db_steps, db_turn};
use crate::gpu::runs::spawn;
use crate::gpu::{ServedError, buffers, launch, refuse};
use crate::trace::OffloadTimes;

/// `DB_TURN_REQUEST`.
const REQUEST: u32 = 1;
/// Blocks that copy on the GPU, and threads of each.
const COPYING: [u32; 2] = [64, 256];

/// What both threads use.
#[derive(Debug)]
struct Shared {
    slots: Slots,
    /// The first slot, as the CPU addresses it.
    start: u64,
    /// A slot for each on the GPU.
    there: Memory,
    served: Memory,
    /// Steps of each slot's request on the machine, and room for one slot's here, while they are traced.
    steps: OnceLock<(Memory, HostMemory)>,
    machine: Machine,
    /// What the graph's kernels are told: of it the slot's number alone changes.
    turn: HostMemory,
}

enum Launches {
    Twin { steps: Box<launch::Steps>, model: Box<crate::gpu::Model> },
    // The graph first: it uses the model's memory.
    Gpu { graph: DeviceGraph, stream: Arc<Stream>, number: Box<u32>, _model: Box<dyn Recorded> },
}

/// A request, and when it was handed to the thread that launches.
type Handed = (Job, Instant);

/// A request whose graph was launched: on a GPU it has ended when `ended` is reached.
struct Launch {
    job: Job,
    ended: Option<Event>,
    times: OffloadTimes,
}

type Launched = Result<Launch, String>;

/// See the module.
pub struct Faithful {
    shared: Arc<Shared>,
    jobs: Option<Sender<Handed>>,
    launched: Receiver<Launched>,
    waiting: VecDeque<Launch>,
    /// Requests that were handed over and have not ended, and since when none has.
    in_flight: (usize, Instant),
    /// Longest time without the end of a request.
    pub(super) limit: Duration,
    /// The one that has ended last: its slot, and the steps that this processor took.
    last: (u32, OffloadTimes),
    /// Of the GPU's: the graph's, and that of the copies to the host.
    streams: Option<[Arc<Stream>; 2]>,
    thread: Option<JoinHandle<()>>,
}

impl Faithful {
    /// One instance of a model, for `count` pageable slots. Errors: pinned slots; buffers that are not the
    /// model's; no memory; the GPU's.
    pub fn new(
        machine: &Machine,
        slots: &Slots,
        count: u32,
        instance: Instance,
    ) -> Result<Faithful, ServedError> {
        if slots.shown().is_some() {
            return refuse("the faithful baseline copies from pageable slots, and these are pinned");
        }
        let geometry = &slots.geometry;
        let own = |bytes| machine.zeroed_memory(bytes);
        let there = own(geometry.server_stride() * count as usize)?;
        let (served, turn) = (own(size_of::<db_served>())?, machine.host_memory(size_of::<db_turn>())?);
        served.put(
            0,
            &db_served {
                slots: there.kernel_address(),
                slot_count: count,
                inputs: buffers(&instance.inputs, geometry.request.entries().len(), "inputs")?,
                outputs: buffers(&instance.outputs, geometry.answer.entries().len(), "outputs")?,
                ..db_served::of(geometry)
            },
        )?;
        let status = Status::Ok.number().into();
        turn.write(0, db_turn { state: REQUEST, status, ..db_turn::default() }.bytes())?;
        let told = launch::KernelAddresses {
            in_slots: false,
            served: served.kernel_address(),
            turn: turn.kernel_address(),
            shapes: [[1, 1], COPYING, COPYING, [1, 1]],
        };
        let (launches, streams) = match (instance.model, machine.context()) {
            (Model::Called(model), None) => {
                let steps = launch::Steps::new(machine, told)?;
                (Launches::Twin { steps: Box::new(steps), model }, None)
            }
            (Model::Recorded(model), Some(context)) => {
                let stream = || Stream::new(context, Priority::Least).map(Arc::new);
                let (stream, copies) = (stream()?, stream()?);
                let graph = graph(machine, &stream, told, &*model)?;
                let number = Box::new(0);
                let graph = Launches::Gpu { graph, stream: Arc::clone(&stream), number, _model: model };
                (graph, Some([stream, copies]))
            }
            _ => return refuse("a model of another kind of machine: one that is called is the twin's"),
        };
        let start = slots.address().map_err(|error| ServedError::Refused(error.to_string()))?;
        let (steps, machine) = (OnceLock::new(), machine.clone());
        let shared = Arc::new(Shared { slots: slots.clone(), start, there, served, turn, steps, machine });
        let ((jobs, wanted), (launched, seen)) = (channel(), channel());
        let mine = Arc::clone(&shared);
        let work = move || launcher(&mine, launches, &wanted, &launched);
        let thread = Some(spawn("launcher", work)?);
        Ok(Faithful {
            shared,
            jobs: Some(jobs),
            launched: seen,
            waiting: VecDeque::new(),
            in_flight: (0, Instant::now()),
            limit: LIMIT,
            last: (0, OffloadTimes::default()),
            streams,
            thread,
        })
    }

    /// `None`, or the error that no request has ended for too long, as behind a graph that hangs.
    fn not_ended(&self) -> Result<Option<Job>, CpuError> {
        let (count, since) = self.in_flight;
        if count > 0 && since.elapsed() > self.limit {
            let what = format!("an end among the baseline's {count} requests");
            return Err(failed(ServedError::Deadline { what, limit: self.limit }));
        }
        Ok(None)
    }

    /// Copies an answer out of its slot on the GPU.
    fn bring(&self, slot: u32) -> Result<(), ServedError> {
        let Shared { slots: Slots { geometry, .. }, start, there, .. } = &*self.shared;
        for (at, bytes) in places(geometry, slot, &geometry.answer, geometry.answer_offset()) {
            let (to, from) = (start + at as u64, there.kernel_address() + at as u64);
            match &self.streams {
                // SAFETY: slots on both sides are kept until the stream is idle, which is waited for.
                Some([_, copies]) => unsafe { copies.copy_to_host(to, from, bytes) }?,
                // SAFETY: slots of the twin are host memory, reached through atomics.
                None => unsafe { copy(to, from, bytes) },
            }
        }
        if let Some([_, copies]) = &self.streams {
            copies.wait("an answer's copy to the host", LIMIT)?;
        }
        Ok(())
    }

    /// The steps that the graph's kernels noted of a slot's request; `None`: they note nothing.
    fn steps(&self, slot: u32) -> Result<Option<db_steps>, ServedError> {
        let Some((there, here)) = self.shared.steps.get() else { return Ok(None) };
        let at = slot as usize * size_of::<db_steps>();
        Ok(Some(match &self.streams {
            Some([_, copies]) => {
                let (to, from) = (here.address(), there.kernel_address() + at as u64);
                // SAFETY: both are kept until the stream is idle, which is waited for.
                unsafe { copies.copy_to_host(to, from, size_of::<db_steps>()) }?;
                copies.wait("the times of a graph's steps", LIMIT)?;
                Memory::from(here.clone()).get(0)?
            }
            None => there.get(at)?,
        }))
    }
}

/// Copy into the model, model, copy back.
fn graph(
    machine: &Machine,
    stream: &Stream,
    told: launch::KernelAddresses,
    model: &dyn Recorded,
) -> Result<DeviceGraph, ServedError> {
    let units: Vec<Unit> = launch::SOURCES[1..3].iter().map(Source::unit).collect();
    let module = machine.module(&units)?;
    let functions = [module.function(launch::NAMES[1])?, module.function(launch::NAMES[2])?];
    let record = |stream: &Stream| {
        told.put(1, &functions[0], stream)?;
        model.record(stream)?;
        told.put(2, &functions[1], stream)
    };
    // SAFETY: the functions are kept with the graph; `Recorded` promises the same of the model's code.
    let mut graph = unsafe { Graph::capture(stream, record) }?;
    functions.into_iter().for_each(|function| graph.keep(function));
    Ok(graph.instantiate_for_host()?.uploaded(stream)?)
}

/// The thread that copies requests to the GPU and launches, until no more come.
fn launcher(
    shared: &Arc<Shared>,
    mut launches: Launches,
    jobs: &Receiver<Handed>,
    launched: &Sender<Launched>,
) {
    while let Ok(handed) = jobs.recv() {
        let all = launch_one(shared, &mut launches, handed).map_err(|error| error.to_string());
        if launched.send(all).is_err() {
            break;
        }
    }
    // Until then the graph uses the model.
    if let Launches::Gpu { stream, .. } = &launches {
        let _ = stream.wait("a baseline's graphs", LIMIT);
    }
}

fn launch_one(
    shared: &Arc<Shared>,
    launches: &mut Launches,
    (job, handed): Handed,
) -> Result<Launch, ServedError> {
    let begun = Instant::now();
    let times = |copied: Instant| OffloadTimes {
        queue_ns: (begun - handed).as_nanos() as u64,
        to_gpu_ns: (copied - begun).as_nanos() as u64,
        ..OffloadTimes::default()
    };
    let geometry = &shared.slots.geometry;
    let (at, bytes) = (job.slot as u64 * geometry.server_stride() as u64, geometry.request.bytes());
    let (to, from) = (shared.there.kernel_address() + at, shared.start + at);
    match launches {
        Launches::Twin { steps, model } => {
            // SAFETY: slots of the twin are host memory, reached through atomics.
            unsafe { copy(to, from, bytes) };
            let times = times(Instant::now());
            shared.turn.words()[SLOT].store(job.slot, Ordering::Release);
            steps.run(1, LIMIT, Arc::clone(shared))?;
            launch::run(model)?;
            steps.run(2, LIMIT, Arc::clone(shared))?;
            Ok(Launch { job, ended: None, times })
        }
        Launches::Gpu { graph, stream, number, .. } => {
            // SAFETY: slots on both sides are kept until the stream is idle (`Drop` of `Faithful`).
            unsafe { stream.copy_from_host(to, from, bytes) }?;
            **number = job.slot;
            let from = std::ptr::from_ref(&**number).expose_provenance() as u64;
            // SAFETY: the driver has copied the word on return; kernels on this stream read the copy.
            unsafe { stream.copy(shared.turn.address() + 4 * SLOT as u64, from, 4) }?;
            // With the wait for the graph before, as the release has this step.
            let times = times(Instant::now());
            // SAFETY: as above.
            unsafe { graph.launch(stream) }?;
            let ended = Event::new(stream.context())?;
            ended.record(stream)?;
            Ok(Launch { job, ended: Some(ended), times })
        }
    }
}

/// The word of `db_turn` that has the slot's number.
const SLOT: usize = std::mem::offset_of!(db_turn, slot) / 4;

impl Offload for Faithful {
    fn trace(&mut self) -> Result<(), CpuError> {
        let Shared { machine, there, served, slots, steps, .. } = &*self.shared;
        let count = there.len() / slots.geometry.server_stride();
        let all = || {
            let all = machine.zeroed_memory(count * size_of::<db_steps>())?;
            served.write(offset_of!(db_served, steps), &all.kernel_address().to_ne_bytes())?;
            Ok::<_, ServedError>((all, machine.host_memory(size_of::<db_steps>())?))
        };
        // No graph was launched yet.
        steps.set(all().map_err(failed)?).map_err(|_| CpuError::Offload("it is traced already".into()))
    }

    fn has_room(&self) -> bool {
        true
    }

    fn begin(&mut self, job: Job) -> Result<(), CpuError> {
        let (now, (count, since)) = (Instant::now(), self.in_flight);
        self.in_flight = (count + 1, if count == 0 { now } else { since });
        match self.jobs.as_ref().is_some_and(|jobs| jobs.send((job, now)).is_ok()) {
            true => Ok(()),
            false => Err(CpuError::Offload("the thread that launches has ended".into())),
        }
    }

    fn ended(&mut self) -> Result<Option<Job>, CpuError> {
        while let Ok(launched) = self.launched.try_recv() {
            self.waiting.push_back(launched.map_err(CpuError::Offload)?);
        }
        let Some(launch) = self.waiting.front() else { return self.not_ended() };
        if let Some(ended) = &launch.ended
            && !ended.is_reached().map_err(failed)?
        {
            return self.not_ended();
        }
        let Some(Launch { job, mut times, .. }) = self.waiting.pop_front() else { return Ok(None) };
        let begun = Instant::now();
        self.in_flight = (self.in_flight.0 - 1, begun);
        self.bring(job.slot).map_err(failed)?;
        times.to_cpu_ns = begun.elapsed().as_nanos() as u64;
        self.last = (job.slot, times);
        Ok(Some(job))
    }

    fn times(&mut self) -> Result<OffloadTimes, CpuError> {
        let (slot, times) = self.last;
        let Some(steps) = self.steps(slot).map_err(failed)? else { return Ok(times) };
        Ok(OffloadTimes {
            copy_in_ns: steps.taken.saturating_sub(steps.takes),
            run_ns: steps.puts.saturating_sub(steps.taken),
            copy_out_ns: steps.put.saturating_sub(steps.puts),
            ..times
        })
    }
}

impl Drop for Faithful {
    fn drop(&mut self) {
        self.jobs = None;
        let Some(thread) = self.thread.take() else { return };
        let since = Instant::now();
        while !thread.is_finished() && since.elapsed() < self.limit {
            std::thread::sleep(Duration::from_micros(100));
        }
        let streams = self.streams.iter().flatten();
        let mut ended = streams.map(|stream| stream.wait("a baseline's work", LIMIT));
        // A driver call may keep it behind a graph that hangs: then it is left, with what it uses.
        if !thread.is_finished() || thread.join().is_err() || ended.any(|ended| ended.is_err()) {
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}
