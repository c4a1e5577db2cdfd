//! Launches of the kernels: one after the other by the CPU, or recorded into a graph.

use std::time::Duration;

use gpu::{Function, Module, SelfLaunching, Shape, Stream, Unit, again_unit, relaunch_unit};
use rdma_shim::kernel::{Arguments, HostMemory, Kernel, Machine, Source};

use super::ServedError;

host_twin::include_kernels!("kernels");

pub(super) const HEADERS: &[(&str, &str)] = &[
    ("pipeline.h", include_str!("../../kernels/pipeline.h")),
    ("members.h", include_str!("../../kernels/members.h")),
    ("slots.h", slots::header::TEXT),
];

/// What a kernel with an I/O block includes: the sources of the kernels that wait and send among it.
pub(super) const IO_BLOCK: &[(&str, &str)] = &[
    HEADERS[0],
    HEADERS[1],
    HEADERS[2],
    ("io_block.h", include_str!("../../kernels/io_block.h")),
    ("resident.h", include_str!("../../kernels/resident.h")),
    ("wait.cu", include_str!("../../kernels/wait.cu")),
    ("put.cu", include_str!("../../kernels/put.cu")),
    ("send.cu", include_str!("../../kernels/send.cu")),
    gpu::GRID_HEADER,
];

/// Computes outputs of inputs. Error: why it does not, for people; it ends the chain.
pub type Model = dyn FnMut() -> Result<(), String> + Send;

/// Runs a model. One that panics is one that fails: what waits for its turn must hear of it.
pub(super) fn run(model: &mut Model) -> Result<(), ServedError> {
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(model));
    ran.unwrap_or_else(|_| Err("it has panicked".into())).map_err(ServedError::Model)
}

/// A turn's kernels in order, the model's between take and put, which only a model with buffers needs.
pub const SOURCES: [Source; 4] = [
    Source { name: "wait.cu", text: include_str!("../../kernels/wait.cu"), headers: HEADERS, twin: &KERNELS },
    Source { name: "take.cu", text: include_str!("../../kernels/take.cu"), headers: HEADERS, twin: &KERNELS },
    Source { name: "put.cu", text: include_str!("../../kernels/put.cu"), headers: HEADERS, twin: &KERNELS },
    Source { name: "send.cu", text: include_str!("../../kernels/send.cu"), headers: HEADERS, twin: &KERNELS },
];
pub const NAMES: [&str; 4] = ["wait_inputs", "take_inputs", "put_outputs", "send_outputs"];
/// Longer than any kernel but the one that waits takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Addresses of the structs that the kernels work on, and their launch shapes. The holder keeps that memory.
#[derive(Debug, Clone, Copy)]
pub struct KernelAddresses {
    pub served: u64,
    pub turn: u64,
    /// Blocks and threads of each kernel.
    pub shapes: [[u32; 2]; 4],
    /// The model works in the slots: there are no buffers to copy to and from.
    pub in_slots: bool,
}

impl KernelAddresses {
    /// Whether a turn has that kernel.
    pub fn has(&self, step: usize) -> bool {
        !(self.in_slots && (step == 1 || step == 2))
    }

    /// Puts a step's kernel into a stream, or into the graph that it records.
    pub fn put(&self, step: usize, kernel: &Function, stream: &Stream) -> gpu::Result<()> {
        let arguments = gpu::Arguments::new().u64(self.served).u64(self.turn);
        let [blocks, threads] = self.shapes[step];
        // SAFETY: as in `Steps::run`; the holder keeps the memory as long as the stream, or the graph, runs.
        unsafe { stream.launch(kernel, Shape::line(blocks, threads), &arguments) }
    }
}

/// The kernels, ready to be launched one by one.
#[derive(Debug)]
pub struct Steps {
    kernels: [Kernel; 4],
    /// The kernels look at the pipeline's own word.
    unused: HostMemory,
    told: KernelAddresses,
}

impl Steps {
    pub fn new(machine: &Machine, told: KernelAddresses) -> Result<Steps, ServedError> {
        Steps::of(machine, told, &SOURCES, &NAMES)
    }

    /// As [`Self::new`], of these kernels in the places of those.
    pub fn of(
        machine: &Machine,
        told: KernelAddresses,
        sources: &[Source; 4],
        names: &[&'static str; 4],
    ) -> Result<Steps, ServedError> {
        let kernel = |step: usize| Kernel::prepare(machine, &sources[step], names[step]);
        let kernels = [kernel(0)?, kernel(1)?, kernel(2)?, kernel(3)?];
        Ok(Steps { kernels, unused: machine.host_memory(4)?, told })
    }

    /// Runs one kernel to its end. `keep`: what keeps all memory that it uses.
    pub fn run<T>(&self, step: usize, wait: Duration, keep: T) -> Result<(), ServedError> {
        let arguments = Arguments::new().u64(self.told.served).u64(self.told.turn);
        // SAFETY: the kernels take these two addresses. `keep` keeps what they lead to, queues and slots too.
        // The kernel that waits ends by its own deadline; the others wait for nothing.
        let running = unsafe {
            self.kernels[step].launch(self.told.shapes[step], &arguments, self.unused.clone(), keep)
        }?;
        running.end(wait.saturating_add(LIMIT))?;
        Ok(())
    }
}

/// The sources as a GPU's compiler takes them.
pub fn units() -> Vec<Unit> {
    SOURCES.iter().map(Source::unit).collect()
}

/// How a graph has its next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// It launches itself.
    Relaunch,
    /// It is the body of a WHILE node.
    While,
}

/// A turn's kernels on a GPU, recorded with a model's between them, repeated as `again` says. The caller
/// keeps all memory that they use as long as the graph.
pub fn graph(
    machine: &Machine,
    told: KernelAddresses,
    again: Repeat,
    model: &dyn gpu::Recorded,
) -> Result<SelfLaunching, ServedError> {
    let end = if again == Repeat::While { again_unit() } else { relaunch_unit() };
    let units: Vec<Unit> = units().into_iter().chain([end]).collect();
    let module: Module = machine.module(&units)?;
    let functions = NAMES.iter().map(|name| module.function(name)).collect::<gpu::Result<Vec<Function>>>()?;
    let before = if told.in_slots { 0 } else { 1 };
    let first = |stream: &Stream| {
        for step in (0..3).filter(|step| told.has(*step)) {
            told.put(step, &functions[step], stream)?;
            if step == before {
                model.record(stream)?;
            }
        }
        Ok(())
    };
    let send = |stream: &Stream| told.put(3, &functions[3], stream);
    let graph = match again {
        // The next turn is launched while the answer is sent. A wait that is told to stop ends the chain at
        // once, a queue that fails at the answer with the turn behind it.
        // SAFETY: what the kernels use is kept as long as the graph; `Recorded` promises it of the model's.
        // The module is the context's until the relaunching kernel, which the graph keeps, is gone.
        Repeat::Relaunch => unsafe { SelfLaunching::of_capture_beside(&module, 0, None, first, send) },
        // SAFETY: as above.
        Repeat::While => unsafe {
            SelfLaunching::of_while(&module, 0, None, |stream| first(stream).and_then(|()| send(stream)))
        },
    };
    Ok(graph?)
}

/// Starts the first turn.
pub fn start(graph: &mut SelfLaunching) -> Result<(), ServedError> {
    // SAFETY: as in `graph`: the pipeline keeps what the kernels use, and nothing else launches it.
    Ok(unsafe { graph.start() }?)
}
