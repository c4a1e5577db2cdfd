//! Two graphs that launch themselves, one block that stays and looks ahead for the next request
//! (`kernels/ahead.cu`), and their launches.

use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpu::graph_rules::Node;
use gpu::{End, Recorded, SelfLaunching, Shape, Stream, relaunch_unit};
use rdma_shim::kernel::{Arguments, Kernel, Memory, Running, Source};
use slots::Status;

use super::error::{ServedError, refuse};
use super::kernel_memory::{Core, State};
use super::launch::{self, IO_BLOCK, KERNELS, KernelAddresses, Model, Steps};
use super::layout::{db_lane, db_lanes, db_turn};
use super::resident_kernel::{MODEL, WORDS, in_time};

pub(super) const SOURCE: Source = Source {
    name: "ahead.cu",
    text: include_str!("../../kernels/ahead.cu"),
    headers: IO_BLOCK,
    twin: &KERNELS,
};

/// What has the turns of both lanes.
enum Lanes {
    /// The graphs, of the even turns and of the odd ones, and the model that they use.
    Graphs(Mutex<[SelfLaunching; 2]>, #[expect(dead_code, reason = "it is kept")] Mutex<Box<dyn Recorded>>),
    /// The host twin's: a thread of each lane runs the kernels of its turns.
    /// `cancels`: a word for each, as a graph has one.
    Twin { take: Kernel, end: Kernel, copies: Box<Steps>, model: Mutex<Box<Model>>, cancels: Memory },
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `done[1]` of `struct db_resident_words`: turn 1 is the first of the odd ones, 2 behind it.
const ODD_DONE: usize = 4 * 128;

/// Addresses of what the kernels of the lanes share, and what they wait for one another.
#[derive(Debug, Clone, Copy)]
struct Shared {
    served: u64,
    words: u64,
    lanes: u64,
    limit_ns: u64,
}

impl Shared {
    /// Arguments of `take_turn` for a lane.
    fn of_take(self, lane: u64) -> [u64; 5] {
        [self.served, self.words, self.lanes, lane, self.limit_ns]
    }

    /// Arguments of `end_turn`.
    fn of_end(self, lane: u64) -> [u64; 2] {
        [self.words, lane]
    }
}

/// The kernel that looks ahead and the lanes, ready to be launched again and again.
pub(super) struct Ahead {
    look: Kernel,
    /// `struct db_resident_words`.
    words: Memory,
    shared: Shared,
    /// Longest wait of a lane. An idle pipeline offers it a turn at every second wait.
    limit: Duration,
    lanes: Lanes,
}

/// The copies of the turn that runs.
fn copies(core: &Core) -> KernelAddresses {
    KernelAddresses { turn: turn_address(core), ..core.told }
}

/// Where the turn that runs is told.
pub(super) fn turn_address(core: &Core) -> u64 {
    core.lanes.kernel_address() + offset_of!(db_lanes, runs) as u64
}

impl Ahead {
    /// With the model of a GPU, for its graphs. Errors: the compiler's, the driver's.
    pub(super) fn on_gpu(core: &Core, model: Box<dyn Recorded>) -> Result<Ahead, ServedError> {
        let lanes = |shared| Ok(Lanes::Graphs(Mutex::new(graphs(core, shared, &*model)?), Mutex::new(model)));
        Ahead::new(core, lanes)
    }

    /// With a model of the host twin's in the setting's buffers. Error: no C++ compiler.
    pub(super) fn on_twin(core: &Core, model: Box<Model>) -> Result<Ahead, ServedError> {
        let kernel = |name| Kernel::prepare(&core.machine, &SOURCE, name);
        let (take, end) = (kernel("take_turn")?, kernel("end_turn")?);
        let copies = Box::new(Steps::new(&core.machine, copies(core))?);
        let cancels = core.machine.own_memory(8)?;
        Ahead::new(core, |_| Ok(Lanes::Twin { take, end, copies, model: Mutex::new(model), cancels }))
    }

    fn new(
        core: &Core,
        lanes: impl FnOnce(Shared) -> Result<Lanes, ServedError>,
    ) -> Result<Ahead, ServedError> {
        let look = Kernel::prepare(&core.machine, &SOURCE, "look_ahead")?;
        let words = core.machine.own_memory(WORDS)?;
        let limit = core.wait.saturating_mul(2).saturating_add(MODEL);
        let shared = Shared {
            served: core.told.served,
            words: words.kernel_address(),
            lanes: core.lanes.kernel_address(),
            limit_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
        };
        Ok(Ahead { look, words, shared, limit, lanes: lanes(shared)? })
    }

    /// The nodes of a lane's graph. `None`: the twin has none.
    pub(super) fn nodes(&self) -> Result<Option<Vec<Node>>, ServedError> {
        match &self.lanes {
            Lanes::Graphs(graphs, _) => Ok(Some(locked(graphs)[0].nodes()?)),
            Lanes::Twin { .. } => Ok(None),
        }
    }

    /// Launches the kernel that looks ahead, and both graphs.
    pub(super) fn launch(self: &Arc<Ahead>, core: &Arc<Core>) -> Result<Launched, ServedError> {
        if let Lanes::Graphs(graphs, _) = &self.lanes {
            for graph in &*locked(graphs) {
                if !graph.is_idle()? {
                    return refuse("a graph of the launch before still runs");
                }
            }
        }
        self.words.fill(0)?;
        self.words.put(ODD_DONE, &u32::MAX)?;
        let cancels = match &self.lanes {
            Lanes::Graphs(graphs, _) => locked(graphs).each_ref().map(SelfLaunching::cancel_address),
            Lanes::Twin { cancels, .. } => {
                cancels.fill(0)?;
                [0, 4].map(|at| cancels.kernel_address() + at)
            }
        };
        let lane = |nth: usize, next| db_lane { next, cancel: cancels[nth], ..db_lane::default() };
        let status = u32::from(Status::Ok.number());
        let runs = db_turn { status, model_slot: core.slot_count, ..db_turn::default() };
        core.lanes.put(0, &db_lanes { runs, lanes: [lane(0, 2), lane(1, 1)] })?;
        let Shared { served, words, limit_ns, .. } = self.shared;
        let arguments = [served, core.told.turn, words, limit_ns];
        let arguments = arguments.into_iter().fold(Arguments::new(), Arguments::u64);
        let held = (Arc::clone(core), Arc::clone(self));
        // SAFETY: the kernel takes these arguments. `held` keeps what they lead to; the pipeline keeps queues
        // and slots until the kernel has ended. It looks at the cancel word, and its waits have an end.
        let running =
            unsafe { self.look.launch(core.told.shapes[0], &arguments, core.shared.clone(), held) }?;
        let mut launched =
            Launched { running: Some(running), started: Vec::new(), core: core.clone(), ahead: self.clone() };
        if let Lanes::Twin { .. } = &self.lanes {
            launched.started = vec![0, 1];
        }
        if let Lanes::Graphs(graphs, _) = &self.lanes {
            // The odd turns' first, since turn 1 is theirs.
            for nth in [1, 0] {
                launch::start(&mut locked(graphs)[nth])?;
                launched.started.push(nth);
            }
        }
        Ok(launched)
    }

    /// Ends all: the kernel that looks ahead, and lanes that wait. Errors are those of a lost context, which
    /// ends them too.
    fn fail(&self, core: &Core) {
        let _ = self.words.put(size_of::<u32>(), &1_u32);
        core.shared.words()[0].store(1, Ordering::Release);
    }

    /// Waits until the lanes have ended; the twin's are run here. One that fails ends all.
    fn lanes_end(&self, core: &Arc<Core>, started: &[usize]) -> Result<(), ServedError> {
        let lane = |nth: usize| {
            let ended = match &self.lanes {
                Lanes::Graphs(graphs, _) => graph_ends(graphs, nth),
                Lanes::Twin { .. } => self.turns(core, nth),
            };
            if ended.is_err() {
                self.fail(core);
            }
            ended
        };
        std::thread::scope(|scope| {
            let lane = &lane;
            let spawn = |&nth| {
                std::thread::Builder::new().name("lane-end".into()).spawn_scoped(scope, move || lane(nth))
            };
            let threads: Vec<_> = started.iter().map(spawn).collect();
            if threads.iter().any(Result::is_err) {
                self.fail(core);
            }
            let ended = threads.into_iter().map(|thread| {
                let joined = thread.map_err(ServedError::Thread)?.join();
                joined.unwrap_or_else(|_| refuse("the thread of a lane has panicked"))
            });
            // Each is waited for.
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// The twin's turns of a lane, one after the other, until there is none.
    fn turns(&self, core: &Arc<Core>, nth: usize) -> Result<(), ServedError> {
        let Lanes::Twin { take, end, copies, model, cancels } = &self.lanes else { return Ok(()) };
        let unused = core.machine.host_memory(4)?;
        let run = |kernel: &Kernel, arguments: &[u64]| {
            let arguments = arguments.iter().fold(Arguments::new(), |all, value| all.u64(*value));
            // SAFETY: the kernels take these arguments, and the core keeps what they lead to. Their waits end
            // by `limit`.
            let running = unsafe { kernel.launch([1, 1], &arguments, unused.clone(), Arc::clone(core)) }?;
            running.end(self.limit.saturating_add(MODEL)).map(drop).map_err(ServedError::from)
        };
        loop {
            run(take, &self.shared.of_take(nth as u64))?;
            if cancels.get::<u32>(4 * nth)? != 0 {
                // As in a graph: the other lane waits for this one's last launch.
                return run(end, &self.shared.of_end(nth as u64));
            }
            let runs: db_turn = core.lanes.get(offset_of!(db_lanes, runs))?;
            if State::of(&runs)? == State::Request {
                copies.run(1, self.limit, Arc::clone(core))?;
                launch::run(&mut **locked(model))?;
                copies.run(2, self.limit, Arc::clone(core))?;
            }
            run(end, &self.shared.of_end(nth as u64))?;
        }
    }
}

/// Sleeps until a lane's graph has ended. Error: it was not told to.
fn graph_ends(graphs: &Mutex<[SelfLaunching; 2]>, nth: usize) -> Result<(), ServedError> {
    let end = locked(graphs)[nth].end()?;
    end.sleep()?;
    match locked(graphs)[nth].ended()? {
        Some(End::Cancelled) => Ok(()),
        other => refuse(format!("a graph has ended by itself: {other:?}")),
    }
}

/// Both graphs with the model. The caller keeps all memory that their kernels use.
fn graphs(core: &Core, shared: Shared, model: &dyn Recorded) -> Result<[SelfLaunching; 2], ServedError> {
    let [_, take, put, _] = launch::SOURCES.map(|source| source.unit());
    let module = core.machine.module(&[take, put, SOURCE.unit(), relaunch_unit()])?;
    let function = |name: &str| module.function(name);
    let (take, end) = (function("take_turn")?, function("end_turn")?);
    let copied = [function(launch::NAMES[1])?, function(launch::NAMES[2])?];
    let put = |function, stream: &Stream, arguments: &[u64]| {
        let arguments = arguments.iter().fold(gpu::Arguments::new(), |all, value| all.u64(*value));
        // SAFETY: the kernels take these arguments; the holder keeps what they lead to as long as the graph.
        unsafe { stream.launch(function, Shape::line(1, 1), &arguments) }
    };
    let graph = |lane: u64| {
        let copy = |step: usize, stream: &Stream| match core.told.has(step) {
            true => copies(core).put(step, &copied[step - 1], stream),
            false => Ok(()),
        };
        let record = |stream: &Stream| {
            put(&take, stream, &shared.of_take(lane))?;
            copy(1, stream)?;
            model.record(stream)?;
            copy(2, stream)?;
            put(&end, stream, &shared.of_end(lane))
        };
        // SAFETY: as in `launch::graph`.
        unsafe { SelfLaunching::of_capture(&module, 0, None, record) }
    };
    Ok([graph(0)?, graph(1)?])
}

/// A launch of the kernel that looks ahead, and of the lanes.
pub(super) struct Launched {
    /// `None` once its end was waited for.
    running: Option<Running<(Arc<Core>, Arc<Ahead>)>>,
    /// The lanes that run; the twin's do while their end is waited for.
    started: Vec<usize>,
    core: Arc<Core>,
    ahead: Arc<Ahead>,
}

impl Launched {
    /// Waits for the end of all, however long that takes. Error: what went wrong.
    pub(super) fn ended(mut self) -> Result<(), ServedError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ServedError> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let lanes = self.ahead.lanes_end(&self.core, &self.started);
        let looks = running.sleep().and_then(|()| running.end(Duration::MAX).map(drop));
        lanes?;
        looks?;
        in_time(&self.ahead.words, self.ahead.limit)
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if self.running.is_some() {
            // It did not start as a whole. No caller is left to be told the error.
            self.ahead.fail(&self.core);
            let _ = self.end();
        }
    }
}
