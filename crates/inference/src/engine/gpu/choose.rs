//! Which kernel computes each step: every way is run on the GPU, compared with our own kernel, run again to
//! see the same bits, recorded into a graph as the model's will be, and timed. Steps that are alike are timed
//! once.

use std::cell::Cell;
use std::io::Write;
use std::time::{Duration, Instant};

use gpu::cache::{Cache, Key, KeyBuilder};
use gpu::cudnn::Convolution;
use gpu::{Arguments, DeviceMemory, PinnedMemory, Priority, Shape, Staging, Stream, Unit};

use super::code::{self, Code};
use super::convolution::{self, Fused};
use super::kept::{self, Kept};
use super::libraries::{By, Chosen, Libraries, Tried};
use super::library_plan::{Candidate, LibraryPlan, Present};
use super::limits::{BETWEEN, LIMIT, STRETCH, WORKSPACE};
use super::memory::{Memory, floats, memory};
use super::ready::{Place, Ready, words_of};
use super::timed::Timed;
use super::trial::{Attempt, Trials, condemns};
use super::weights::Weights;
use crate::engine::EngineError;
use crate::launch::{self, Launch};
use crate::layers;
use crate::plan::{Plan, Precision, Step, Task};

/// Ways that are timed in turns, after all were timed alone.
const FINALISTS: usize = 4;
/// Rounds of the first timing, and of the second.
const ROUNDS: [usize; 2] = [3, 9];
/// A timed graph holds so much work, between 2 and 20 runs.
const WORK: Duration = Duration::from_micros(300);
/// Threads that compare results: blocks of 256.
const COMPARING: u32 = 16;

/// How the steps of a plan run.
pub struct Decided {
    pub ready: Vec<Ready>,
    pub chosen: Vec<Chosen>,
}

impl Decided {
    /// By our own kernels.
    pub fn own(launches: &[Launch]) -> Decided {
        let ready: Vec<Ready> = launches.iter().cloned().map(Ready::Own).collect();
        Decided { chosen: vec![Chosen::default(); ready.len()], ready }
    }

    /// Has a library compute these steps. Error: a launch has not that many blocks.
    fn library(
        &mut self,
        plan: &Plan,
        steps: &[usize],
        found: &Found,
        tried: &[Tried],
    ) -> Result<(), EngineError> {
        for &at in steps {
            let step = &plan.steps[at];
            let (library, engine) = (found.plan.library(), found.engine.clone());
            let by = By::Library { library, engine, finished: found.fused.rest(step).is_some() };
            self.chosen[at] = Chosen { by, workspace: found.plan.workspace(), tried: tried.to_vec() };
            self.ready[at] = found.ready(plan, step)?;
        }
        Ok(())
    }
}

/// A plan of a library for some steps.
#[derive(Clone)]
struct Found {
    plan: LibraryPlan,
    fused: Fused,
    engine: String,
}

impl Found {
    fn ready(&self, plan: &Plan, step: &Step) -> Result<Ready, EngineError> {
        let rest = self.fused.rest(step);
        let finish = rest.map(|rest| launch::finishing(plan, step, rest)).transpose()?;
        let before = self.plan.rows().map(|rows| launch::im2col(plan, step, rows.start)).transpose()?;
        Ok(Ready::Library { before, plan: self.plan.clone(), finish })
    }
}

/// Steps that are timed once for all.
struct Alike {
    ways: Vec<(Fused, Convolution)>,
    activation: String,
    steps: Vec<usize>,
}

/// The choice for each step: that of an earlier time, if one was kept and still is good, or a new one.
pub fn decide(
    code: &mut Code,
    plan: &Plan,
    own: &[Launch],
    present: &Present,
    libraries: &Libraries,
) -> Result<Decided, EngineError> {
    code.prepare(["conv_finish", "conv_finish_half", "im2col", "im2col_half"].into_iter())?;
    let (cache, place, versions) = (Cache::usual(), place(code)?, present.versions()?);
    let all = plan.steps.iter().flat_map(|step| convolution::ways(plan, step)).map(|(_, of)| of);
    let mut trials = Trials::new(cache.folder(), format!("{place}, {versions}"), all, &say);
    let key = key(plan, own, &place, &trials);
    let kept = if libraries.again { None } else { kept(&cache, &key, &versions, plan, &say) };
    if let Some(kept) = kept {
        match recall(plan, own, present, &kept) {
            Ok(decided) => return Ok(decided),
            Err(error) => say(&format!("{}: {error}; every step is timed again", plan.name)),
        }
    }
    code.prepare(["noise", "noise_half", "compare", "compare_half"].into_iter())?;
    trials.begin(cache.folder());
    let (decided, kept) = choose(code, plan, own, present, &trials)?;
    if let Some(kept) = kept {
        cache.keep(&key, &kept::write(&versions, &kept));
    }
    Ok(decided)
}

/// As the cache says what is wrong with it. A closed stderr is no reason to fail.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "doorbell: {text}");
}

/// The choices of an earlier time by libraries of these versions; says why those that are there are not used.
fn kept(cache: &Cache, key: &Key, versions: &str, plan: &Plan, say: &dyn Fn(&str)) -> Option<Vec<Kept>> {
    let content = cache.find(key).ok().flatten()?;
    let read = kept::read(&content, versions, plan.steps.len());
    read.map_err(|why| say(&format!("{}: {why}; every step is timed again", plan.name))).ok()
}

/// The GPU and its driver.
fn place(code: &Code) -> Result<String, EngineError> {
    let gpu = code.context.gpu();
    let (name, arch, multiprocessors) = (gpu.name()?, gpu.arch()?, gpu.multiprocessors()?);
    Ok(format!("{name} {arch} {multiprocessors}, driver {}", gpu::driver_version()?))
}

/// All that a choice depends on but the libraries' versions, which stand in the entry.
fn key(plan: &Plan, own: &[Launch], place: &str, trials: &Trials<'_>) -> Key {
    let mut key = KeyBuilder::default()
        .part("choices", b"7")
        .part("place", place.as_bytes())
        .part("workspace", &WORKSPACE.to_le_bytes())
        .part("plan", format!("{:?} {:?} {:?}", plan.format, plan.arena, plan.steps).as_bytes());
    for (step, launch) in plan.steps.iter().zip(own) {
        let own = (launch.kernel, launch.blocks, launch.threads);
        key = key.part("ways", format!("{own:?} {:?}", convolution::ways(plan, step)).as_bytes());
    }
    for engine in trials.left_out() {
        key = key.part("left out", engine.as_bytes());
    }
    of_units(key, code::units()).key()
}

/// Our kernels as a part of the key, with the headers that they include.
fn of_units(key: KeyBuilder, units: impl IntoIterator<Item = Unit>) -> KeyBuilder {
    units.into_iter().fold(key, |key, unit| {
        let key = key.part("unit", unit.text.as_bytes());
        unit.headers.iter().fold(key, |key, (name, text)| key.part(name, text.as_bytes()))
    })
}

/// The choices of an earlier time. Error: one that computes something else than its steps, or needs more
/// workspace than there is.
fn recall(plan: &Plan, own: &[Launch], present: &Present, kept: &[Kept]) -> Result<Decided, EngineError> {
    let mut decided = Decided::own(own);
    for Kept { library, fused, steps, engine, text } in kept {
        let stale = || gpu::Error::Refused(format!("{engine} does not compute the steps {steps:?}"));
        let of = |&at: &usize| convolution::convolution(plan, &plan.steps[at], *fused);
        let convolution = steps.first().and_then(of).ok_or_else(stale)?;
        let plan_of = present.read(*library, &convolution, text)?;
        if steps.iter().any(|at| of(at).as_ref() != Some(&convolution)) || plan_of.workspace() > WORKSPACE {
            return Err(stale().into());
        }
        let found = Found { plan: plan_of, fused: *fused, engine: engine.clone() };
        decided.library(plan, steps, &found, &[])?;
    }
    Ok(decided)
}

/// Times everything. No choices to keep: a library did not write its plan down, or something failed that may
/// go well another time.
fn choose(
    code: &Code,
    plan: &Plan,
    own: &[Launch],
    present: &Present,
    trials: &Trials<'_>,
) -> Result<(Decided, Option<Vec<Kept>>), EngineError> {
    let mut decided = Decided::own(own);
    let mut groups: Vec<Alike> = Vec::new();
    for (at, step) in plan.steps.iter().enumerate() {
        let Task::Compute { activation, .. } = &step.task else { continue };
        let (ways, activation) = (convolution::ways(plan, step), format!("{activation:?}"));
        match groups.iter_mut().find(|group| group.ways == ways && group.activation == activation) {
            _ if ways.is_empty() => {}
            Some(group) => group.steps.push(at),
            None => groups.push(Alike { ways, activation, steps: vec![at] }),
        }
    }
    if groups.is_empty() {
        return Ok((decided, Some(Vec::new())));
    }
    let bench = Bench::new(code, plan, own, trials)?;
    let mut kept = Some(Vec::new());
    for Alike { ways, steps, .. } in groups {
        let (tried, winner) = bench.try_all(present, steps[0], &own[steps[0]], &ways)?;
        match winner {
            Some(found) => {
                decided.library(plan, &steps, &found, &tried)?;
                let text = found.plan.text();
                let (library, fused, engine) = (found.plan.library(), found.fused, found.engine.clone());
                let one = |text| Kept { library, fused, steps, engine, text };
                kept = kept.zip(text.ok()).map(|(mut kept, text)| {
                    kept.push(one(text));
                    kept
                });
            }
            None => steps.iter().for_each(|&at| decided.chosen[at].tried = tried.clone()),
        }
    }
    Ok((decided, kept.filter(|_| bench.lasting.get())))
}

/// Where ways are tried: an instance's memory full of noise.
struct Bench<'a> {
    code: &'a Code,
    plan: &'a Plan,
    weights: Weights,
    memory: Memory,
    /// What lay there before our own kernel wrote, what it wrote, and what a way wrote before; as long as the
    /// arena.
    original: DeviceMemory,
    wanted: DeviceMemory,
    before: DeviceMemory,
    /// Whether nothing failed that may go well another time.
    lasting: Cell<bool>,
    sums: DeviceMemory,
    stream: Stream,
    between: PinnedMemory,
    trials: &'a Trials<'a>,
}

/// An error of a way to compute a step; names a library's way if it lost the context or does not end.
fn lost(step: &Step, by: &By, error: EngineError, is_noted: bool) -> EngineError {
    match error {
        EngineError::Gpu(why) if *by != By::Own && condemns(&why) => {
            let (step, by) = (step.names.join(" "), by.to_string());
            EngineError::Tried { step, by, why: Box::new(why), is_noted }
        }
        other => other,
    }
}

/// A way that works, with its graph. `attempt`: unless it is our own.
struct Working {
    at: usize,
    attempt: Option<Attempt>,
    timed: Timed,
    times: Vec<Duration>,
}

impl<'a> Bench<'a> {
    fn new(
        code: &'a Code,
        plan: &'a Plan,
        own: &[Launch],
        trials: &'a Trials<'a>,
    ) -> Result<Bench<'a>, EngineError> {
        let context = &code.context;
        let steps = plan.steps.iter().zip(own);
        let constants = steps.flat_map(|(step, launch)| {
            let both = [convolution::constants(plan, step), Ready::Own(launch.clone()).constants(plan, step)];
            both.concat()
        });
        let weights = Weights::new(context, plan, constants)?;
        let copy = || memory(context, plan, "a copy of the arena, to compare ways", plan.arena.bytes);
        let bench = Bench {
            code,
            plan,
            weights,
            memory: Memory::new(context, plan, WORKSPACE, None)?,
            original: copy()?,
            wanted: copy()?,
            before: copy()?,
            lasting: Cell::new(true),
            sums: DeviceMemory::new(context, COMPARING as usize * 256 * 12)?,
            stream: Stream::new(context, Priority::Least)?,
            between: PinnedMemory::new(context, BETWEEN)?,
            trials,
        };
        bench.noise(0, plan.arena.bytes)?;
        Ok(bench)
    }

    /// Puts a way into a stream.
    fn put(&self, ready: &Ready, step: &Step, stream: &Stream) -> gpu::Result<()> {
        let place = Place { code: self.code, plan: self.plan, weights: &self.weights, memory: &self.memory };
        // SAFETY: `ready` was made of the step. All lives until the last launch ended and the stream is idle,
        // or the context keeps it. A graph the driver keeps (`Context::keep`) is not launched again.
        unsafe { place.put(ready, step, stream) }
    }

    /// Tries our own kernel and the library's: all of them, the fastest first, and the winner unless it is
    /// our own.
    fn try_all(
        &self,
        present: &Present,
        at: usize,
        own: &Launch,
        ways: &[(Fused, Convolution)],
    ) -> Result<(Vec<Tried>, Option<Found>), EngineError> {
        let step = &self.plan.steps[at];
        let ours = Ready::Own(own.clone());
        let (begin, bytes) = self.piece(step);
        self.noise(begin, bytes)?;
        self.copy(step, &self.memory.arena, &self.original)?;
        self.put(&ours, step, &self.stream)?;
        self.copy(step, &self.memory.arena, &self.wanted)?;
        let mut tried = vec![Tried { time: Err(String::new()), ..Tried::default() }];
        let mut found: Vec<Option<Found>> = vec![None];
        let timed = self.timed(&ours, step)?;
        let mut working = vec![Working { at: 0, attempt: None, timed, times: Vec::new() }];
        let layer = format!("{}: {} {} -> {}", self.plan.name, step.names.join(" "), step.from, step.to);
        let all = ways.iter().flat_map(|(fused, convolution)| {
            let found = present.candidates(convolution).into_iter();
            found.map(move |(library, candidates)| (*fused, convolution, library, candidates))
        });
        for (fused, convolution, library, candidates) in all {
            let candidates = match candidates {
                Ok(candidates) => candidates,
                Err(error) => {
                    self.failed(&error);
                    let by = By::Library { library, engine: format!("{fused:?}"), finished: false };
                    tried.push(Tried { by, time: Err(error.to_string()), ..Tried::default() });
                    found.push(None);
                    continue;
                }
            };
            for candidate in candidates {
                let finished = fused.rest(step).is_some();
                let by = By::Library { library, engine: candidate.name(), finished };
                let mut one = Tried { by, time: Err(String::new()), ..Tried::default() };
                let engine = format!("{library} {}", candidate.name());
                let attempt = self.trials.attempt(convolution, engine, layer.clone());
                let try_one = || self.try_one(present, candidate, step, (fused, convolution), &mut one);
                match self.trials.of(&attempt, try_one) {
                    Ok((good, timed)) => {
                        let (at, attempt) = (tried.len(), Some(attempt));
                        working.push(Working { at, attempt, timed, times: Vec::new() });
                        found.push(Some(good));
                    }
                    // Behind what does not end nothing else can be tried.
                    Err(EngineError::Gpu(error)) if condemns(&error) => {
                        return Err(lost(step, &one.by, error.into(), self.trials.has_noted()));
                    }
                    Err(error) => {
                        if let EngineError::Gpu(error) = &error {
                            self.failed(error);
                        }
                        one.time = Err(error.to_string());
                        found.push(None);
                    }
                }
                tried.push(one);
            }
        }
        self.race(&mut working)
            .map_err(|(at, error)| lost(step, &tried[at].by, error, self.trials.has_noted()))?;
        for Working { at, attempt, times, .. } in &working {
            tried[*at].time = Ok(times[times.len() / 2]);
            attempt.iter().for_each(|attempt| self.trials.succeeded(attempt));
        }
        let winner = working.first().and_then(|first| found[first.at].clone());
        tried.sort_by_key(|one| one.time.clone().unwrap_or(Duration::MAX));
        Ok((tried, winner))
    }

    /// Another time what failed may go well, as with more memory: then nothing of this choice is kept.
    fn failed(&self, error: &gpu::Error) {
        if !matches!(error, gpu::Error::NotSupported(_)) {
            self.lasting.set(false);
        }
    }

    /// Makes a candidate ready, runs it twice, and records it.
    fn try_one(
        &self,
        present: &Present,
        candidate: Candidate,
        step: &Step,
        (fused, convolution): (Fused, &Convolution),
        tried: &mut Tried,
    ) -> Result<(Found, Timed), EngineError> {
        let wrong = |text: String| EngineError::Gpu(gpu::Error::NotSupported(text));
        let (engine, since) = (candidate.name(), Instant::now());
        let plan = present.plan(candidate, convolution)?;
        (tried.made_in, tried.workspace) = (since.elapsed(), plan.workspace());
        if plan.workspace() > WORKSPACE {
            return Err(wrong(format!("it needs {} bytes, more than {WORKSPACE}", plan.workspace())));
        }
        let found = Found { plan, fused, engine };
        let ready = found.ready(self.plan, step)?;
        // The noise that lay there before. An engine that writes nothing must not find our kernel's result.
        self.copy(step, &self.original, &self.memory.arena)?;
        self.put(&ready, step, &self.stream)?;
        self.stream.wait("a way to compute a step", STRETCH)?;
        tried.distance = self.compare(step, &self.wanted)?;
        let tolerance = layers::tolerance(self.plan.format.precision);
        if tried.distance >= tolerance {
            return Err(wrong(format!("its result is {:.1e} from our kernel's", tried.distance)));
        }
        self.copy(step, &self.memory.arena, &self.before)?;
        self.put(&ready, step, &self.stream)?;
        let again = self.compare(step, &self.before)?;
        if again != 0.0 {
            return Err(wrong(format!("its second result is {again:.1e} from its first")));
        }
        Ok((found, self.timed(&ready, step)?))
    }

    /// A graph of several runs of a way.
    fn timed(&self, ready: &Ready, step: &Step) -> Result<Timed, EngineError> {
        let put = |stream: &Stream| self.put(ready, step, stream);
        let mut twice = Timed::new(&self.stream, 2, put)?;
        let once = twice.run(&self.stream)?.max(Duration::from_nanos(100));
        let times = (WORK.as_nanos() / once.as_nanos()).clamp(2, 20) as usize;
        Timed::new(&self.stream, times, put)
    }

    /// Times all ways, then the fastest in turns; leaves the fastest first. Error: of a way, with its place.
    fn race(&self, working: &mut [Working]) -> Result<(), (usize, EngineError)> {
        for (round, most) in ROUNDS.into_iter().zip([working.len(), FINALISTS]) {
            let all = working.len().min(most);
            working[..all].iter_mut().for_each(|one| one.times.clear());
            for _ in 0..round {
                for Working { at, attempt, timed, times } in &mut working[..all] {
                    let mut run = || timed.run(&self.stream);
                    let time = match attempt {
                        Some(attempt) => self.trials.of(attempt, run),
                        None => run(),
                    };
                    times.push(time.map_err(|error| (*at, error))?);
                }
            }
            working[..all].iter_mut().for_each(|one| one.times.sort());
            working[..all].sort_by_key(|one| one.times[one.times.len() / 2]);
        }
        Ok(())
    }

    /// Where the piece begins that a step writes, and its bytes.
    fn piece(&self, step: &Step) -> (usize, usize) {
        let piece = step.write.map_or(0, |place| place.piece);
        (self.plan.arena.offsets[piece], self.plan.pieces[piece] * self.plan.format.precision.bytes())
    }

    /// Copies the piece that a step writes between two memories, each as long as the arena, and waits.
    fn copy(&self, step: &Step, from: &DeviceMemory, to: &DeviceMemory) -> Result<(), EngineError> {
        let (begin, bytes) = self.piece(step);
        let (to, from) = (to.address() + begin as u64, from.address() + begin as u64);
        // SAFETY: both are as long as the arena, in which the piece lies.
        unsafe { self.stream.copy(to, from, bytes) }?;
        Ok(self.stream.wait("a copy", LIMIT)?)
    }

    fn noise(&self, begin: usize, bytes: usize) -> Result<(), EngineError> {
        let precision = self.plan.format.precision;
        let count = (bytes / precision.bytes()) as u64;
        let arguments = Arguments::new().u64(self.memory.arena.address() + begin as u64).u64(count);
        let name = if precision == Precision::Half { "noise_half" } else { "noise" };
        self.launch(name, 256, &arguments)
    }

    /// The distance of what a step wrote from a copy, as [`layers::distance`] says.
    fn compare(&self, step: &Step, wanted: &DeviceMemory) -> Result<f64, EngineError> {
        let Some(place) = step.write else { return Ok(f64::INFINITY) };
        let byte = self.plan.byte(&place) as u64;
        let [images, channels, rows, columns] = step.to.parts();
        let extent =
            [channels, rows, columns, place.image, place.channel, place.pixel].map(|word| word as u32);
        let arguments = Arguments::new()
            .u64(self.memory.arena.address() + byte)
            .u64(wanted.address() + byte)
            .u64(self.sums.address())
            .bytes(&words_of(&extent))
            .u32(images as u32);
        let precision = self.plan.format.precision;
        self.launch(
            if precision == Precision::Half { "compare_half" } else { "compare" },
            COMPARING,
            &arguments,
        )?;
        let way = Staging { stream: &self.stream, between: &self.between, limit: LIMIT };
        let numbers = floats(&self.sums, COMPARING as usize * 256 * 3, way)?;
        let numbers: Vec<f64> = numbers.into_iter().map(f64::from).collect();
        let sum = |of: usize| numbers.iter().skip(of).step_by(3).sum::<f64>();
        let most = numbers.iter().copied().step_by(3).fold(0.0, f64::max);
        // A difference that is no number is one in this sum.
        let (apart, norm) = (sum(1), (sum(2) / step.to.count() as f64).sqrt().max(1e-6));
        let found = match precision {
            Precision::Single => most,
            Precision::Tf32 | Precision::Half => (apart / step.to.count() as f64).sqrt(),
        };
        let distance = found / norm;
        Ok(if apart.is_nan() || distance.is_nan() { f64::INFINITY } else { distance })
    }

    fn launch(&self, kernel: &str, blocks: u32, arguments: &Arguments) -> Result<(), EngineError> {
        let shape = Shape { grid: [blocks, 1, 1], block: [256, 1, 1], shared_bytes: 0 };
        // SAFETY: both kernels keep to the elements that they are told, which lie in the arena and its
        // copies.
        unsafe { self.stream.launch(self.code.function(kernel)?, shape, arguments) }?;
        Ok(self.stream.wait("a kernel", LIMIT)?)
    }
}

#[cfg(test)]
mod tests;
