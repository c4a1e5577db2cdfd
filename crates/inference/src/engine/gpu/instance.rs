//! One model that runs by itself: its memory, its graph, and that graph as one that launches itself.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::{DeviceGraph, Graph, PinnedMemory, Priority, SelfLaunching, SlotTensors, Staging, Stamps, Stream};

use super::limits::{BETWEEN, LIMIT};
use super::loaded::Loaded;
use super::memory::Memory;
use super::ready::{Place, Ready};
use super::timed::Timed;
use crate::engine::{Engine, EngineError, gathered};
use crate::plan::{Precision, Task};

/// Runs of one step in a graph that is timed.
const TOGETHER: usize = 20;

/// One model that runs by itself.
#[derive(Debug)]
pub struct Instance {
    // Dropped first: it uses what follows.
    graph: DeviceGraph,
    pub(super) stream: Stream,
    pub(super) memory: Memory,
    between: PinnedMemory,
    pub(super) loaded: Arc<Loaded>,
    /// Of graphs that launch themselves, if their runs are stamped.
    pub(super) stamps: Option<Stamps>,
}

impl Instance {
    /// Memory for one more instance, and its graph.
    pub fn new(loaded: &Arc<Loaded>) -> Result<Instance, EngineError> {
        Instance::of(loaded, None)
    }

    /// An instance with inputs and outputs in slots, without [`Self::bring`] and [`Self::outputs`]. It runs
    /// at once, with what lies in the slot that is named. Errors also: slots of other lengths.
    pub fn in_slots(loaded: &Arc<Loaded>, slots: &SlotTensors) -> Result<Instance, EngineError> {
        Instance::of(loaded, Some(slots))
    }

    fn of(loaded: &Arc<Loaded>, slots: Option<&SlotTensors>) -> Result<Instance, EngineError> {
        let context = &loaded.code.context;
        let memory = Memory::new(context, &loaded.plan, loaded.workspace(), slots)?;
        let (stream, between) =
            (Stream::new(context, Priority::Least)?, PinnedMemory::new(context, BETWEEN)?);
        memory.slot.fill(0, &stream)?;
        // Kernels that are loaded at their first launch are loaded before anything is recorded.
        put_all(loaded, &memory, &stream)?;
        stream.wait("a model", LIMIT)?;
        // SAFETY: the instance keeps the kernels' code as long as the graph.
        let graph = unsafe { Graph::capture(&stream, |stream| put_all(loaded, &memory, stream)) }?;
        let graph = graph.instantiate()?;
        graph.upload(&stream)?;
        stream.wait("the upload of a graph", LIMIT)?;
        Ok(Instance { graph, stream, memory, between, loaded: loaded.clone(), stamps: None })
    }

    pub(super) fn way(&self) -> Staging<'_> {
        Staging { stream: &self.stream, between: &self.between, limit: LIMIT }
    }

    /// Nodes of the graph.
    pub fn node_count(&self) -> usize {
        self.graph.node_count()
    }

    /// Runs one step, after those before it have run, and says what it wrote: of a load nothing.
    pub fn step(&mut self, at: usize) -> Result<Vec<f32>, EngineError> {
        put(&self.loaded, &self.memory, at, &self.stream)?;
        self.wait()?;
        let (plan, step) = (&self.loaded.plan, &self.loaded.plan.steps[at]);
        match (&step.task, step.write) {
            (Task::Store { number, .. }, _) => Ok(self.outputs()?.swap_remove(*number)),
            (_, Some(place)) => {
                let begin = plan.arena.offsets[place.piece];
                let mut piece = vec![0; plan.pieces[place.piece] * plan.format.precision.bytes()];
                self.memory.arena.read(begin, &mut piece, self.way())?;
                let element = |byte: usize| number(plan.format.precision, &piece[byte - begin..]);
                Ok(gathered(plan, step, place, element))
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The GPU's time of each step: the least of `repeat` times, of so many runs of it in one graph.
    pub fn step_times(&mut self, repeat: usize) -> Result<Vec<Duration>, EngineError> {
        let (loaded, memory) = (self.loaded.clone(), &self.memory);
        let of_step = |at| {
            let put = |stream: &Stream| put(&loaded, memory, at, stream);
            let mut timed = Timed::new(&self.stream, TOGETHER, put)?;
            (0..repeat.max(1)).try_fold(Duration::MAX, |least, _| Ok(least.min(timed.run(&self.stream)?)))
        };
        (0..loaded.plan.steps.len()).map(of_step).collect()
    }

    /// Copies inputs to where the graph reads them. Error also: they lie in slots.
    pub fn bring(&self, inputs: &[&[f32]]) -> Result<(), EngineError> {
        self.memory.bring(&self.loaded.plan, inputs, self.way())
    }

    /// Overwrites the outputs: [`Self::outputs`] shows a run that writes none. Error also: they lie in slots.
    pub fn wipe(&self) -> Result<(), EngineError> {
        self.memory.wipe(&self.stream)?;
        self.wait()
    }

    /// Puts the graph into the stream, so many times.
    pub fn launch(&self, times: usize) -> Result<(), EngineError> {
        for _ in 0..times {
            // SAFETY: as in `new`; the instance lives until its stream is idle, or the context keeps its
            // memory.
            unsafe { self.graph.launch(&self.stream) }?;
        }
        Ok(())
    }

    /// The time of a launch, of so many one behind the other and one wait.
    pub fn period(&self, times: usize) -> Result<Duration, EngineError> {
        let since = Instant::now();
        self.launch(times)?;
        self.wait()?;
        Ok(since.elapsed() / times.max(1) as u32)
    }

    /// Waits until the stream is idle.
    pub fn wait(&self) -> Result<(), EngineError> {
        Ok(self.stream.wait("a model", LIMIT)?)
    }

    /// Addresses where the GPU reads the inputs and writes the outputs, one a tensor; none for slots.
    pub fn addresses(&self) -> [Vec<u64>; 2] {
        let of = |all: &[gpu::DeviceMemory]| all.iter().map(gpu::DeviceMemory::address).collect();
        [of(&self.memory.inputs), of(&self.memory.outputs)]
    }

    /// What the last run wrote. Error also: it lies in slots.
    pub fn outputs(&self) -> Result<Vec<Vec<f32>>, EngineError> {
        self.outputs_by(self.way())
    }

    pub(super) fn outputs_by(&self, way: Staging<'_>) -> Result<Vec<Vec<f32>>, EngineError> {
        self.memory.outputs(&self.loaded.plan, way)
    }

    /// The same kernels as a graph that launches itself, `turns` times, or until it is cancelled for 0.
    pub fn self_launching(self, turns: u32) -> Result<SelfLaunchingInstance, EngineError> {
        Ok(SelfLaunchingInstance { graph: self.relaunched(turns, self.stamps.as_ref())?, instance: self })
    }

    /// That graph. The caller keeps the instance until it has ended.
    pub(super) fn relaunched(&self, turns: u32, stamps: Option<&Stamps>) -> gpu::Result<SelfLaunching> {
        let steps = self.loaded.plan.steps.len();
        // The last two leave room for the kernel that launches the next turn.
        let last_two = steps.saturating_sub(2);
        let part = |steps: Range<usize>| {
            let (loaded, memory) = (&self.loaded, &self.memory);
            move |stream: &Stream| steps.into_iter().try_for_each(|at| put(loaded, memory, at, stream))
        };
        let (first, last) = (part(0..last_two), part(last_two..steps));
        // SAFETY: as in `new`; the instance keeps its stamps as well.
        unsafe { SelfLaunching::of_capture_beside(&self.loaded.code.module, turns, stamps, first, last) }
    }

    /// As [`Self::self_launching`], by a WHILE node whose body has the kernels.
    pub fn while_loop(self, turns: u32) -> Result<SelfLaunchingInstance, EngineError> {
        let put = |stream: &Stream| put_all(&self.loaded, &self.memory, stream);
        let (module, stamps) = (self.loaded.code.again()?, self.stamps.as_ref());
        // SAFETY: as in `self_launching`.
        let graph = unsafe { SelfLaunching::of_while(&module, turns, stamps, put) }?;
        Ok(SelfLaunchingInstance { graph, instance: self })
    }
}

// SAFETY: the steps keep to the instance's memory, slots and what was loaded, which it keeps; `put` has more.
unsafe impl gpu::Recorded for Instance {
    fn record(&self, stream: &Stream) -> gpu::Result<()> {
        put_all(&self.loaded, &self.memory, stream)
    }
}

/// A number as the arena holds it.
fn number(precision: Precision, bytes: &[u8]) -> f32 {
    match precision {
        Precision::Half => half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        _ => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
    }
}

/// An instance whose graph launches itself: the CPU starts it and waits for its end.
#[derive(Debug)]
pub struct SelfLaunchingInstance {
    // Dropped first: it uses what follows.
    graph: SelfLaunching,
    pub(super) instance: Instance,
}

impl SelfLaunchingInstance {
    /// Starts the first turn. Error: it still runs.
    pub fn start(&mut self) -> Result<(), EngineError> {
        self.instance.wait()?;
        // SAFETY: as in `Instance::new`. What was launched before has ended, and until the graph has ended
        // nothing else writes the instance's memory: `bring` and `outputs` refuse, `outputs_meanwhile` reads.
        Ok(unsafe { self.graph.start() }?)
    }

    /// The graph, to be asked and cancelled.
    pub fn graph(&self) -> &SelfLaunching {
        &self.graph
    }

    /// Copies inputs to where the graph reads them. Error: it runs.
    pub fn bring(&self, inputs: &[&[f32]]) -> Result<(), EngineError> {
        self.at_rest()?;
        self.instance.bring(inputs)
    }

    /// As [`Instance::wipe`]. Error: it runs.
    pub fn wipe(&self) -> Result<(), EngineError> {
        self.at_rest()?;
        self.instance.wipe()
    }

    /// What the last turn wrote. Error: it runs.
    pub fn outputs(&self) -> Result<Vec<Vec<f32>>, EngineError> {
        self.at_rest()?;
        self.instance.outputs()
    }

    pub(super) fn at_rest(&self) -> Result<(), EngineError> {
        if self.graph.is_idle()? { Ok(()) } else { Err(EngineError::Running) }
    }
}

impl Engine for Instance {
    fn name(&self) -> &'static str {
        if self.loaded.ready.iter().any(|ready| matches!(ready, Ready::Library { .. })) {
            "libraries and own kernels"
        } else {
            "own kernels"
        }
    }

    fn run(&mut self, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>, EngineError> {
        self.bring(inputs)?;
        self.launch(1)?;
        self.wait()?;
        self.outputs()
    }
}

/// Puts every step into a stream, or into what it records.
pub(super) fn put_all(loaded: &Loaded, memory: &Memory, stream: &Stream) -> gpu::Result<()> {
    (0..loaded.plan.steps.len()).try_for_each(|at| put(loaded, memory, at, stream))
}

fn put(loaded: &Loaded, memory: &Memory, at: usize, stream: &Stream) -> gpu::Result<()> {
    let Loaded { code, plan, weights, .. } = loaded;
    // SAFETY: what is ready was made of the plan's steps, in their order. The instance that has the memory
    // keeps it and what was loaded until its stream is idle, and longer than its graphs.
    unsafe { Place { code, plan, weights, memory }.put(&loaded.ready[at], &plan.steps[at], stream) }
}
