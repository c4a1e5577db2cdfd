//! One model that runs by itself: its memory, its graph, and that graph as one that launches itself.

use std::sync::Arc;

use gpu::{
    Arguments, DeviceGraph, DeviceMemory, Function, Graph, PinnedMemory, Priority, SelfLaunching, Shape,
    Stream, Way,
};

use super::{BETWEEN, LIMIT, Loaded, bytes};
use crate::engine::{Engine, EngineError};
use crate::launch::Argument;
use crate::plan::arena::ALIGNMENT;

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
        crate::engine::check_inputs(inputs, &wanted)?;
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
