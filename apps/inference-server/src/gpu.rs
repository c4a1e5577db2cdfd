//! The GPU modes: kernels wait for requests, compute and answer; this thread sleeps until an event.
//!
//! One channel brings events: a signal, the end of a chain of turns, a client that left. A failed queue ends
//! its model's chain; then the client is closed and the chain restarted. A GPU wakes no thread: one waits in
//! the driver until the chain ends. With `--sleep block` or `spin` that is this one; other events end it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cli::{FAILED, on_question, on_stop, sentence};
use pipeline::Mode;
use pipeline::cpu::Counts;
use pipeline::gpu::{Endpoint, OnEnd, Pool, Repeat, Served, ServedError, Setting, Structure};
use rdma_shim::kernel::Machine;
use serving::Arrival;
use slots::{Server, Status};
use verbs::QpType;
use verbs::connect::Closer;

use crate::model::{Model, Recorded, Runs};
use crate::options::{MachineName, Options, Sleep};
use crate::report::{GraphStatus, KernelStatus, ModelStatus, StatusWriter, Totals};
use crate::serve::{ENDING, STOPPING, begin, close, ending, listen};
use crate::session::{Granted, Key, Outcome, SETUP, Service, Shared};

/// Longest wait of a kernel for a request. Each time-out runs the model once for nothing.
const WAIT: Duration = Duration::from_secs(3600);
/// Time for a turn that runs to end, the host twin's of a large model.
const TURN: Duration = Duration::from_secs(120);

/// What wakes the thread that sleeps.
enum Event {
    Stop,
    /// A chain of turns has ended.
    Ended,
    Left {
        counts: Counts,
        has_failed: bool,
    },
    /// Counters are asked for.
    Question,
    /// The time is over.
    Over,
}

/// What connections' and signals' threads wake the thread with that sleeps.
#[derive(Clone)]
struct Waker {
    events: Sender<Event>,
    /// The lane whose chain it waits for, with `--sleep block` or `spin`.
    waits_for: Option<Arc<Vec<Mutex<Lane>>>>,
}

impl Waker {
    fn wake(&self, event: Event) {
        // The receiver is gone when the program ends.
        let _ = self.events.send(event);
        self.waits_for.iter().flat_map(|lanes| lanes.iter()).for_each(|lane| locked(lane).served.cancel());
    }
}

/// A model, its pipeline, and its clients by their numbers.
struct Lane {
    served: Served,
    /// Gives slots; no request passes it.
    slots: Server,
    /// The nodes of its graph; `None`: the twin has none.
    structure: Option<Structure>,
    clients: HashMap<u32, Joined>,
}

struct Joined {
    place: u32,
    end: Endpoint,
    /// `None` once it was closed.
    closer: Option<Closer>,
}

/// The kernels, as connections' threads know them.
struct Kernels {
    lanes: Arc<Vec<Mutex<Lane>>>,
    pool: Arc<Pool>,
    waker: Waker,
    shared: Arc<State>,
    /// Longest until a leaving client is no longer served: a turn, and the delay of an untaken answer.
    leaves_in: Duration,
}

/// What the thread that sleeps and connections' threads both know.
#[derive(Debug, Default)]
struct State {
    has_ended: AtomicBool,
    /// Clients that have slots, and those that have left and are not counted yet.
    granted: AtomicUsize,
}

impl State {
    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

fn locked(lane: &Mutex<Lane>) -> MutexGuard<'_, Lane> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits with `look` for what kernels do when they look at it, for a short time at first.
fn wait_for<T>(limit: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let (since, mut pause) = (Instant::now(), Duration::from_micros(50));
    loop {
        if let Some(seen) = look()? {
            return Ok(seen);
        }
        if since.elapsed() >= limit {
            bail!("the kernels have not looked for {limit:?}");
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(10));
    }
}

impl Service for Kernels {
    type End = Endpoint;

    fn grant(&self, model: usize, wanted: u16) -> Result<Granted> {
        if self.shared.has_ended() {
            return Err(ending());
        }
        let granted = locked(&self.lanes[model]).slots.grant(wanted)?;
        self.shared.granted.fetch_add(1, Ordering::Relaxed);
        Ok(granted)
    }

    fn end(&self, model: usize, kind: QpType, _arrival: Arrival, granted: &Granted) -> Result<Endpoint> {
        // Not under the lock: registrations and queue pairs take calls of the kernel and of the driver.
        let slots = locked(&self.lanes[model]).served.slots();
        Ok(Endpoint::new(&slots, &self.pool, kind, &granted.1)?)
    }

    fn admit(&self, key: Key, mut end: Endpoint, closer: Closer) -> Result<()> {
        let place = {
            let mut lane = locked(&self.lanes[key.0]);
            let place = end.admit(&mut lane.served)?;
            lane.clients.insert(key.1, Joined { place, end, closer: Some(closer) });
            place
        };
        wait_for(SETUP, || Ok(locked(&self.lanes[key.0]).served.is_done(place).then_some(())))
    }

    fn leave(&self, key: Key) -> Result<Option<Outcome>> {
        let left = wait_for(self.leaves_in, || {
            if self.shared.has_ended() {
                return Ok(Some(None));
            }
            let mut lane = locked(&self.lanes[key.0]);
            let Lane { served, clients, .. } = &mut *lane;
            let Some(Joined { place, end, .. }) = clients.get_mut(&key.1) else {
                return Ok(Some(Some((Outcome::default(), None))));
            };
            let place = *place;
            if !served.is_gone(place) {
                served.let_go(place)?;
                return Ok(None);
            }
            let failure = served.failure(place)?.map(|failure| failure.to_string());
            let [all, refused] = end.leave(served, place)?;
            let counts = Counts { answered: all.saturating_sub(refused), refused };
            let (trace, untraced) = match served.traced(place) {
                Ok(trace) => (trace, None),
                Err(error) => (None, Some(error.to_string())),
            };
            let outcome = Outcome { counts, failure: failure.or(untraced), trace };
            Ok(Some(Some((outcome, clients.remove(&key.1)))))
        })?;
        // Its end is dropped here, not under the lock: that unregisters its slots and resets its queue pair.
        Ok(left.map(|(outcome, _)| outcome))
    }

    fn gone(&self, key: Key) {
        // Its slots have no request of the allocator's, so that nothing keeps them.
        let _ = locked(&self.lanes[key.0]).slots.withdraw(key.1);
    }

    fn left(&self, _key: Key, counts: Counts, has_failed: bool) {
        self.waker.wake(Event::Left { counts, has_failed });
    }
}

/// Makes what will have the turns.
fn prepare(options: &Options, machine: &Machine, served: &mut Served, model: Runs) -> Result<()> {
    let model = match model {
        Runs::InSlots(model) if options.mode == Mode::GpuAhead => {
            Runs::Gpu(model.recorded(options, &served.tensors_ahead())?)
        }
        Runs::InSlots(model) if options.mode != Mode::GpuPersistent => {
            Runs::Gpu(model.recorded(options, &served.tensors())?)
        }
        other => other,
    };
    match model {
        model if options.mode == Mode::GpuAhead => {
            served.prepare_ahead(model.model()?).with_context(|| machine.name())?;
        }
        Runs::Twin(model) => served.prepare_by_cpu(model)?,
        Runs::InSlots(model) => {
            let tensors = served.tensors();
            if options.warmup > 0 {
                served.run_alone(model.resident(&tensors)?, options.warmup.into()).context("--warmup")?;
            }
            served.prepare_resident(model.resident(&tensors)?).with_context(|| machine.name())?;
        }
        Runs::Gpu(model) => {
            let again = if options.mode == Mode::GpuWhile { Repeat::While } else { Repeat::Relaunch };
            served.prepare_graph(again, model).with_context(|| machine.name())?;
        }
    }
    Ok(())
}

/// Wakes the thread that sleeps at a chain's end.
fn tells(events: &Sender<Event>) -> OnEnd {
    let events = events.clone();
    Arc::new(move || {
        let _ = events.send(Event::Ended);
    })
}

/// Serves until it is stopped: the exit code.
pub fn run(options: &Options) -> Result<u8> {
    if options.mode == Mode::GpuAhead && options.machine == MachineName::Gpu {
        // Three streams of a model's never end.
        if let Some(warning) = gpu::connections()?.1 {
            complain!("inference-server: {warning}");
        }
    }
    let found = Model::geometries(options)?;
    let ((context, path), listener) = listen(options, &found)?;
    let machine = options.machine()?;
    let (events, happened) = channel();
    let arrival = options.arrival().unwrap_or(Arrival::Flag);
    // Load all models and make all graphs before the first runs: the driver waits for kernels that never end.
    let mut lanes = Vec::new();
    for (manifest, geometry) in &found {
        let model = Recorded::load(options, &machine, manifest, geometry)?;
        let (threads, copying) = if machine.is_gpu() { (512, [8, 256]) } else { (32, [1, 32]) };
        let setting = Setting {
            geometry,
            slots: options.slots,
            clients: options.clients.into(),
            arrival,
            place: options.place(),
            inputs: &model.inputs,
            outputs: &model.outputs,
            wait: WAIT,
            threads,
            copying,
        };
        let mut served = Served::posted_by(options.mode.posts(), &machine, setting)?;
        served.set_patience(options.patience())?;
        if let Some(credits) = options.credits {
            served.limit(credits)?;
        }
        served.register_early(&context).with_context(|| format!("registering slots of {}", manifest.name))?;
        if options.trace {
            served.trace(&context)?;
        }
        if options.sleep == Sleep::Event {
            served.call_at_end(tells(&events));
        }
        prepare(options, &machine, &mut served, model.runs).with_context(|| manifest.name.clone())?;
        let slots = Server::new(geometry.clone(), options.slots);
        let structure = served.structure()?;
        lanes.push(Mutex::new(Lane { served, slots, structure, clients: HashMap::new() }));
    }
    for lane in &mut lanes {
        lane.get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .served
            .start()
            .with_context(|| machine.name())?;
    }
    let lanes = Arc::new(lanes);
    let waits_for = (options.sleep != Sleep::Event).then(|| Arc::clone(&lanes));
    let waker = Waker { events: events.clone(), waits_for };
    let stops = waker.clone();
    on_stop(move || stops.wake(Event::Stop))?;
    let status = StatusWriter::start(options)?;
    if status.is_some() {
        let asks = waker.clone();
        on_question(move || asks.wake(Event::Question))?;
    }
    if let (Some(seconds), true) = (options.max_seconds, options.sleep != Sleep::Event) {
        let stops = waker.clone();
        let limit = Duration::from_secs(seconds.into());
        let wake = move || {
            std::thread::sleep(limit);
            stops.wake(Event::Over);
        };
        std::thread::Builder::new().name("max-seconds".into()).spawn(wake)?;
    }
    let pool = Pool::new(&machine, &context, options.slots_per_client.into(), options.clients.into());
    let pool = Arc::new(pool.posted_by(options.mode.posts()));
    let shared = Arc::<State>::default();
    let leaves_in = TURN + options.patience();
    let kernels = Kernels { lanes: Arc::clone(&lanes), pool, waker, shared: Arc::clone(&shared), leaves_in };
    let names = options.models.clone();
    let models = found.into_iter().map(|(manifest, geometry)| (manifest.name, geometry)).collect();
    begin(options, listener, &Shared::new(options, path, models, kernels))?;
    let totals = Totals::new(options);
    let began = Instant::now();
    Sleeper { options, machine, names, lanes, events, happened, shared, status, totals, began }.run()
}

/// Time for chains to end: none once one has not ended in that time.
fn patience(ended: &Result<()>) -> Duration {
    let is_late = |error: &anyhow::Error| matches!(error.downcast_ref(), Some(ServedError::Deadline { .. }));
    if ended.as_ref().is_err_and(is_late) { Duration::ZERO } else { TURN }
}

/// The thread that sleeps.
struct Sleeper<'a> {
    options: &'a Options,
    machine: Machine,
    names: Vec<String>,
    lanes: Arc<Vec<Mutex<Lane>>>,
    events: Sender<Event>,
    happened: Receiver<Event>,
    shared: Arc<State>,
    status: Option<StatusWriter>,
    totals: Totals,
    began: Instant,
}

impl Sleeper<'_> {
    fn run(mut self) -> Result<u8> {
        let until = self.began.checked_add(self.options.max_time());
        let is_enough = |sleeper: &Self| {
            let sessions = sleeper.options.sessions;
            sessions > 0 && sleeper.totals.clients >= sessions
        };
        let served = match (self.options.sleep, self.machine.context().cloned()) {
            (Sleep::Block | Sleep::Spin, Some(context)) => self.synchronize(&context, is_enough),
            _ => self.sleep(until, is_enough),
        };
        let ended = served.and_then(|()| self.finish());
        self.shared.has_ended.store(true, Ordering::Release);
        if let Err(error) = &ended {
            complain!("inference-server: {}", sentence(error));
        }
        let limit = patience(&ended);
        for lane in &*self.lanes {
            let mut lane = locked(lane);
            lane.clients.values_mut().for_each(|joined| close(&mut joined.closer));
            let stopped = lane.served.stop(limit);
            if ended.is_ok() {
                stopped?;
            }
        }
        let code = self.totals.end(self.options)?;
        Ok(if ended.is_err() { FAILED } else { code })
    }

    /// Handles what happens until `is_enough`, a signal, or `until`.
    fn sleep(&mut self, until: Option<Instant>, is_enough: impl Fn(&Self) -> bool) -> Result<()> {
        while !is_enough(self) {
            let event = match until {
                None => self.happened.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => self.happened.recv_timeout(until.saturating_duration_since(Instant::now())),
            };
            match event {
                Ok(event) => {
                    if self.handle(event)? {
                        return Ok(());
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => bail!("no thread is left that could wake the server"),
            }
        }
        Ok(())
    }

    /// The same in the driver's own wait for idle: each event, once in the channel, ends the chain.
    fn synchronize(&mut self, context: &gpu::Context, is_enough: impl Fn(&Self) -> bool) -> Result<()> {
        loop {
            // What has happened before the chain was started has not ended it.
            while let Ok(event) = self.happened.try_recv() {
                if self.handle(event)? {
                    return Ok(());
                }
            }
            if is_enough(self) {
                return Ok(());
            }
            context.synchronize()?;
            self.go_on()?;
        }
    }

    /// Whether it is time to end.
    fn handle(&mut self, event: Event) -> Result<bool> {
        match event {
            Event::Stop => {
                self.totals.interrupted = true;
                return Ok(true);
            }
            Event::Over => return Ok(true),
            Event::Left { counts, has_failed } => {
                self.totals.left(counts, has_failed);
                self.shared.granted.fetch_sub(1, Ordering::Relaxed);
            }
            Event::Ended => self.go_on()?,
            Event::Question => self.answer(),
        }
        Ok(false)
    }

    /// Writes the counters, as the kernels keep them in host memory.
    fn answer(&self) {
        let Some(status) = &self.status else { return };
        let of = |(name, lane): (&String, &Mutex<Lane>)| {
            let lane = locked(lane);
            let pipeline::gpu::Counters { turns, answered, refused, sent, strays } = lane.served.counters();
            let graph = lane.structure.map(GraphStatus::of);
            let kernels = Some(KernelStatus { turns, sent, strays, graph });
            let clients = lane.clients.len();
            ModelStatus {
                model: name.clone(),
                clients,
                answered: answered.saturating_sub(refused),
                refused,
                kernels,
            }
        };
        let models = self.names.iter().zip(&*self.lanes).map(of).collect();
        status.write(self.began.elapsed(), models);
    }

    /// Closes clients whose queues failed, and restarts chains that ended. Error: of a kernel or a model.
    fn go_on(&self) -> Result<()> {
        for lane in &*self.lanes {
            let mut lane = locked(lane);
            let Lane { served, clients, .. } = &mut *lane;
            if served.is_running().unwrap_or(false) {
                continue;
            }
            served.wait_end(TURN)?;
            for joined in clients.values_mut() {
                if served.failure(joined.place)?.is_some() {
                    // Its thread wakes up, and takes it out.
                    close(&mut joined.closer);
                }
            }
            served.start()?;
        }
        Ok(())
    }

    /// Of each model, how many answers were posted, and how many WRITEs of them have completed.
    fn progress(&self) -> Vec<[u64; 2]> {
        let counters = self.lanes.iter().map(|lane| locked(lane).served.counters());
        counters.map(|counters| [counters.answered, counters.sent]).collect()
    }

    /// Requests are answered with «stopping», and then connections are closed.
    fn finish(&mut self) -> Result<()> {
        for lane in &*self.lanes {
            let mut lane = locked(lane);
            lane.served.mark_stop()?;
            lane.served.wait_end(TURN)?;
            lane.served.refuse(Some(Status::Stopping))?;
            // However it was waited for until now.
            lane.served.call_at_end(tells(&self.events));
            lane.served.start()?;
        }
        let is_empty = |sleeper: &Self| sleeper.shared.granted.load(Ordering::Relaxed) == 0;
        let (since, mut before) = (Instant::now(), self.progress());
        loop {
            self.sleep(Instant::now().checked_add(STOPPING), is_empty)?;
            let now = self.progress();
            if now == before || is_empty(self) || since.elapsed() > ENDING {
                break;
            }
            before = now;
        }
        self.lanes.iter().for_each(|lane| {
            locked(lane).clients.values_mut().for_each(|joined| close(&mut joined.closer));
        });
        self.sleep(Instant::now().checked_add(ENDING), is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_do_not_look_are_waited_for_until_a_limit() {
        const LIMIT: Duration = Duration::from_millis(2);
        let mut looks = 0;
        let hangs = wait_for(LIMIT, || {
            looks += 1;
            Ok(None::<()>)
        });
        assert_eq!(hangs.unwrap_err().to_string(), "the kernels have not looked for 2ms");
        assert!(looks > 0);
    }

    #[test]
    fn a_model_that_hangs_is_waited_for_once() {
        let late = || ServedError::Deadline { what: "the last turn's end".into(), limit: TURN };
        for (ended, limit) in [
            (Ok(()), TURN),
            (Err(anyhow::anyhow!("the model")), TURN),
            (Err(late()).context("stopping"), Duration::ZERO),
            (Err(late().into()), Duration::ZERO),
        ] {
            assert_eq!(patience(&ended), limit, "{ended:?}");
        }
    }
}
