//! Own kernels on a GPU: compiled when they are needed, recorded into a graph that the host or the GPU itself
//! may launch.
//!
//! [`Loaded`] holds what instances of a model share and only read: code and weights. An [`Instance`] has an
//! arena, inputs, outputs and a slot number of its own, so that several run side by side.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gpu::cache::Cache;
use gpu::{
    Arguments, Context, DeviceGraph, DeviceMemory, Form, Function, Gpu, Graph, ImageBuilder, Module,
    PinnedMemory, Priority, SelfLaunching, Shape, Stream, Toolkit, Unit, Way, relaunch_unit,
};

use super::twin::halves;
use super::{Engine, EngineError};
use crate::launch::{self, Argument, Launch};
use crate::plan::{Plan, Precision, arena::ALIGNMENT};

/// The longest that a copy or a run of a model may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes that are copied to the GPU and back at a time.
const BETWEEN: usize = 4 << 20;

/// The units of all kernels.
pub fn units() -> [Unit; 2] {
    [
        Unit::new("operators.cu", include_str!("../../kernels/operators.cu")),
        Unit::new("preprocess.cu", include_str!("../../kernels/preprocess.cu")),
    ]
}

/// A model's code and weights on a GPU.
#[derive(Debug)]
pub struct Loaded {
    context: Context,
    module: Module,
    functions: BTreeMap<&'static str, Function>,
    plan: Plan,
    launches: Vec<Launch>,
    weights: DeviceMemory,
    /// Where each constant begins in `weights`, in the plan's precision or (`true`) in single precision.
    offsets: BTreeMap<(usize, bool), usize>,
}

impl Loaded {
    /// Puts a model on a GPU. Kernels are compiled by the toolkit, or come from the cache.
    pub fn new(gpu: Gpu, toolkit: Toolkit, plan: Plan) -> Result<Arc<Loaded>, EngineError> {
        plan.check()?;
        let context = Context::new(gpu)?;
        let builder = ImageBuilder::new(toolkit, Cache::usual());
        let units: Vec<Unit> = units().into_iter().chain([relaunch_unit()]).collect();
        let image = builder.image(&units, gpu.arch()?, Form::Cubin);
        let module = Module::load(
            &context,
            &image.map_err(|error| EngineError::Compile { reason: error.to_string() })?,
        )?;
        let launches = launch::launches(&plan)?;
        let mut functions = BTreeMap::new();
        for launch in &launches {
            if !functions.contains_key(launch.kernel) {
                functions.insert(launch.kernel, module.function(launch.kernel)?);
            }
        }
        let contents = contents(&plan, &launches);
        let mut end = 0;
        let mut offsets = BTreeMap::new();
        for (argument, bytes) in &contents {
            offsets.insert(*argument, end);
            end += bytes.len().next_multiple_of(ALIGNMENT);
        }
        let weights = DeviceMemory::new(&context, end.max(ALIGNMENT))?;
        let stream = Stream::new(&context, Priority::Least)?;
        let between = PinnedMemory::new(&context, BETWEEN)?;
        let way = Way { stream: &stream, between: &between, limit: LIMIT };
        for (argument, bytes) in contents {
            weights.write(offsets[&argument], &bytes, way)?;
        }
        Ok(Arc::new(Loaded { context, module, functions, plan, launches, weights, offsets }))
    }

    /// The plan that it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The address of a constant; `single`: of its elements in single precision.
    fn constant(&self, number: usize, single: bool) -> u64 {
        self.weights.address() + self.offsets[&(number, single)] as u64
    }
}

/// The bytes of each constant that a launch reads: in the plan's precision, or of a bias (`true`) in single
/// precision.
fn contents<'a>(plan: &'a Plan, launches: &[Launch]) -> BTreeMap<(usize, bool), Cow<'a, [u8]>> {
    let read = launches.iter().flat_map(|launch| &launch.arguments).filter_map(|argument| match *argument {
        Argument::Constant(number) => Some((number, false)),
        Argument::Bias(number) => Some((number, true)),
        _ => None,
    });
    let bytes_of = |(number, single): (usize, bool)| {
        let elements = &plan.constants[number];
        match plan.format.precision {
            Precision::Half if !single => {
                Cow::Owned(halves(elements).iter().flat_map(|half| half.to_le_bytes()).collect())
            }
            _ => Cow::Borrowed(bytes(elements)),
        }
    };
    read.map(|key| (key, bytes_of(key))).collect()
}

/// Memory of one instance, in which its kernels work.
#[derive(Debug)]
struct Memory {
    arena: DeviceMemory,
    inputs: Vec<DeviceMemory>,
    outputs: Vec<DeviceMemory>,
    /// Which slot is served; there is one here.
    slot: DeviceMemory,
}

/// One model that runs by itself.
#[derive(Debug)]
pub struct Instance {
    // Dropped first: it uses what follows.
    graph: DeviceGraph,
    stream: Stream,
    memory: Memory,
    between: PinnedMemory,
    loaded: Arc<Loaded>,
}

impl Instance {
    /// Memory for one more instance, and its graph.
    pub fn new(loaded: &Arc<Loaded>) -> Result<Instance, EngineError> {
        let context = &loaded.context;
        let of = |count: usize| DeviceMemory::new(context, (count * size_of::<f32>()).max(ALIGNMENT));
        let all = |shapes: &[crate::graph::Shape]| {
            shapes.iter().map(|shape| of(shape.count())).collect::<Result<Vec<_>, _>>()
        };
        let memory = Memory {
            arena: of(loaded.plan.arena.bytes.div_ceil(size_of::<f32>()))?,
            inputs: all(&loaded.plan.inputs)?,
            outputs: all(&loaded.plan.outputs)?,
            slot: of(1)?,
        };
        let (stream, between) =
            (Stream::new(context, Priority::Least)?, PinnedMemory::new(context, BETWEEN)?);
        memory.slot.fill(0, &stream)?;
        let mut graph = Graph::new(context)?;
        for (function, shape, arguments) in kernels(loaded, &memory) {
            // SAFETY: the plan's places lie in the arena, its constants and slots are as long as its shapes
            // say, and all of them live as long as the graph.
            unsafe { graph.add_kernel(function, shape, &arguments) }?;
        }
        let graph = graph.instantiate()?;
        graph.upload(&stream)?;
        stream.wait("the upload of a graph", LIMIT)?;
        Ok(Instance { graph, stream, memory, between, loaded: loaded.clone() })
    }

    fn way(&self) -> Way<'_> {
        Way { stream: &self.stream, between: &self.between, limit: LIMIT }
    }

    /// Copies inputs to where the graph reads them.
    pub fn bring(&self, inputs: &[&[f32]]) -> Result<(), EngineError> {
        let wanted: Vec<usize> = self.loaded.plan.inputs.iter().map(crate::graph::Shape::count).collect();
        super::check_inputs(inputs, &wanted)?;
        for (input, memory) in inputs.iter().zip(&self.memory.inputs) {
            memory.write(0, bytes(input), self.way())?;
        }
        Ok(())
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

    /// Waits until the stream is idle.
    pub fn wait(&self) -> Result<(), EngineError> {
        Ok(self.stream.wait("a model", LIMIT)?)
    }

    /// What the last run wrote.
    pub fn outputs(&self) -> Result<Vec<Vec<f32>>, EngineError> {
        let mut outputs = Vec::new();
        for (shape, memory) in self.loaded.plan.outputs.iter().zip(&self.memory.outputs) {
            let mut raw = vec![0; shape.count() * size_of::<f32>()];
            memory.read(0, &mut raw, self.way())?;
            let (elements, _) = raw.as_chunks();
            outputs.push(elements.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect());
        }
        Ok(outputs)
    }

    /// The same kernels as a graph that launches itself, `turns` times, or until it is cancelled for 0.
    pub fn self_launching(self, turns: u32) -> Result<SelfLaunchingInstance, EngineError> {
        let kernels: Vec<_> = kernels(&self.loaded, &self.memory).collect();
        // SAFETY: as in `new`.
        let graph = unsafe { SelfLaunching::of_kernels(&self.loaded.module, &kernels, turns) }?;
        Ok(SelfLaunchingInstance { graph, instance: self })
    }
}

/// An instance whose graph launches itself: the CPU starts it and waits for its end.
#[derive(Debug)]
pub struct SelfLaunchingInstance {
    // Dropped first: it uses what follows.
    graph: SelfLaunching,
    instance: Instance,
}

impl SelfLaunchingInstance {
    /// Starts the first turn. Error: it still runs.
    pub fn start(&mut self) -> Result<(), EngineError> {
        self.instance.wait()?;
        // SAFETY: as in `Instance::new`. What was launched before has ended, and until the graph has ended
        // nothing else is put into a stream that uses the instance's memory: `bring` and `outputs` refuse.
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

    /// What the last turn wrote. Error: it runs.
    pub fn outputs(&self) -> Result<Vec<Vec<f32>>, EngineError> {
        self.at_rest()?;
        self.instance.outputs()
    }

    fn at_rest(&self) -> Result<(), EngineError> {
        if self.graph.is_idle()? { Ok(()) } else { Err(EngineError::Running) }
    }
}

impl Engine for Instance {
    fn name(&self) -> &'static str {
        "own kernels"
    }

    fn run(&mut self, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>, EngineError> {
        self.bring(inputs)?;
        self.launch(1)?;
        self.wait()?;
        self.outputs()
    }
}

/// Every launch of the plan, with the addresses of an instance's memory.
fn kernels<'a>(
    loaded: &'a Loaded,
    memory: &'a Memory,
) -> impl Iterator<Item = (&'a Function, Shape, Arguments)> {
    loaded.launches.iter().map(|launch| {
        let shape = Shape { grid: launch.blocks, block: [launch.threads, 1, 1], shared_bytes: 0 };
        let arguments =
            launch.arguments.iter().fold(Arguments::new(), |arguments, argument| match *argument {
                Argument::Arena(byte) => arguments.u64(memory.arena.address() + byte as u64),
                Argument::Constant(number) => arguments.u64(loaded.constant(number, false)),
                Argument::Bias(number) => arguments.u64(loaded.constant(number, true)),
                Argument::Null => arguments.u64(0),
                Argument::Input(number) => arguments.bytes(&slot(&memory.inputs[number], memory)),
                Argument::Output(number) => arguments.bytes(&slot(&memory.outputs[number], memory)),
                Argument::Conv(ref words) => arguments.bytes(&words_of(words)),
                Argument::Pool(ref words) => arguments.bytes(&words_of(words)),
                Argument::Elements(ref words) => arguments.bytes(&words_of(words)),
            });
        (&loaded.functions[launch.kernel], shape, arguments)
    })
}

fn words_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// `struct slot`: base, index, stride, offset.
fn slot(base: &DeviceMemory, memory: &Memory) -> Vec<u8> {
    [base.address(), memory.slot.address(), 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn bytes(elements: &[f32]) -> &[u8] {
    // SAFETY: every byte of an `f32` is a byte.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}
