//! A pipeline's turns: a chain on a GPU, a thread of the host twin's, or one kernel; their end and restart.
//!
//! A chain ends by the cancel word, the host's own slot marked as stop, a queue that fails, or an error. Its
//! end calls a function, on a thread that slept until then.

use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpu::{End, Recorded};
use slots::layout::{STOP, Status};

use super::launch::{Model, Steps};
use super::layout::db_served;
use super::runs::{OnEnd, Runs, Threaded, spawn};
use super::{Core, Repeat, Served, ServedError, State, launch, refuse};

fn turns(core: &Arc<Core>, steps: &Steps, model: &Mutex<Box<Model>>) -> Result<(), ServedError> {
    let mut model = model.lock().unwrap_or_else(PoisonError::into_inner);
    while core.shared.words()[0].load(Ordering::Acquire) == 0 {
        for step in 0..4 {
            // A model in the slots runs in each turn, as in a graph; without a request nothing is sent.
            if step == 2 && (core.told.in_slots || core.turn_now()?.1 == State::Request) {
                launch::run(&mut **model)?;
            }
            if core.told.has(step) {
                steps.run(step, core.wait, Arc::clone(core))?;
            }
        }
    }
    Ok(())
}

impl Served {
    /// Has `call` called whenever a chain has ended that is started from now on.
    pub fn call_at_end(&mut self, call: OnEnd) {
        self.on_end = Some(call);
    }

    /// Tells the chain to end: after the turn that runs, or within 16 turns where it waits beside a run.
    pub fn cancel(&self) {
        self.core.shared.words()[0].store(1, Ordering::Release);
        if let Runs::Graph { graph, .. } = &self.runs {
            graph.cancel();
        }
    }

    /// Marks the host's own slot as stop: the waiting kernel's next round sees it, and the chain ends after
    /// the turn that it finds. The release poisons a client's slot; here no client stops the server. A start
    /// clears it.
    pub fn mark_stop(&self) -> Result<(), ServedError> {
        self.core.mark(STOP)
    }

    /// Lets a client have so many requests outstanding, instead of one a slot: its answers say so, and more
    /// are refused. The chain is at rest, and no client is here that has heard of its slots.
    pub fn limit(&mut self, credits: u16) -> Result<(), ServedError> {
        if self.may_run() {
            return refuse("kernels read what they are told while they run");
        }
        self.core.tell(offset_of!(db_served, credits), &u32::from(credits.max(1)).to_ne_bytes())
    }

    /// Answers every good request with this status, uncomputed. `None`: serves them. The chain is at rest.
    pub fn refuse(&mut self, status: Option<Status>) -> Result<(), ServedError> {
        if self.may_run() {
            return refuse("kernels read what they are told while they run");
        }
        let word = status.map_or(0, |status| u32::from(status.number()));
        self.core.tell(offset_of!(db_served, refuses), &word.to_ne_bytes())
    }

    /// Fails clients that take no answer for so long, instead of [`crate::PATIENCE`]. The chain is at rest.
    pub fn set_patience(&mut self, patience: Duration) -> Result<(), ServedError> {
        if self.may_run() {
            return refuse("kernels read what they are told while they run");
        }
        let ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        self.queues.lock().patience = patience;
        self.core.tell(offset_of!(db_served, patience_ns), &ns.to_ne_bytes())
    }

    /// Has its turns on a thread that launches each kernel, for the host twin, from [`Self::start`] on.
    pub fn prepare_by_cpu(
        &mut self,
        model: impl FnMut() -> Result<(), String> + Send + 'static,
    ) -> Result<(), ServedError> {
        self.is_new()?;
        let steps = Arc::new(self.steps()?);
        self.ends(self.core.shared.kernel_address())?;
        let model: Arc<Mutex<Box<Model>>> = Arc::new(Mutex::new(Box::new(model)));
        self.runs = Runs::by_thread(Threaded::Twin { steps, model });
        Ok(())
    }

    /// The kernels of a turn. A test may have a defect in one.
    pub(super) fn steps(&self) -> Result<Steps, ServedError> {
        #[cfg(test)]
        if let Some((at, source, name)) = self.planted {
            let (mut sources, mut names) = (launch::SOURCES, launch::NAMES);
            (sources[at], names[at]) = (source, name);
            return Steps::of(&self.core.machine, self.core.told, &sources, &names);
        }
        Steps::new(&self.core.machine, self.core.told)
    }

    /// Has its turns on the GPU alone, with a model of that GPU, from [`Self::start`] on. A driver may wait
    /// for a running graph before it makes another one, so several pipelines are prepared before any starts.
    pub fn prepare_graph(&mut self, again: Repeat, model: Box<dyn Recorded>) -> Result<(), ServedError> {
        self.is_new()?;
        let graph = launch::graph(&self.core.machine, self.core.told, again, &*model)?;
        self.ends(graph.cancel_address())?;
        self.runs = Runs::Graph { graph: Box::new(graph), _model: model, is_started: false, watcher: None };
        Ok(())
    }

    /// Tells the kernels which word ends the chain.
    pub(super) fn ends(&self, address: u64) -> Result<(), ServedError> {
        self.core.tell(offset_of!(db_served, ends), &address.to_ne_bytes())
    }

    pub(super) fn is_new(&self) -> Result<(), ServedError> {
        if matches!(self.runs, Runs::Not) { Ok(()) } else { refuse("it was started before: start it again") }
    }

    /// Starts the chain that was prepared, and again when it has ended and was waited for.
    pub fn start(&mut self) -> Result<(), ServedError> {
        if self.may_run() {
            return refuse("it runs already");
        }
        // Of a chain that has ended: one that runs may be told to stop.
        self.core.mark(0)?;
        self.core.shared.words()[0].store(0, Ordering::Release);
        match &mut self.runs {
            Runs::Not => return refuse("it has no model"),
            Runs::Thread { of, thread, has_ended } => {
                has_ended.store(false, Ordering::Release);
                type Wait = Box<dyn FnOnce() -> Result<(), ServedError> + Send>;
                let (name, wait): (_, Wait) = match of {
                    Threaded::Resident(kernel) => {
                        let launched = kernel.launch(&self.core, 0)?;
                        ("chain-end", Box::new(|| launched.ended()))
                    }
                    Threaded::Ahead(ahead) => {
                        let launched = ahead.launch(&self.core)?;
                        ("chain-end", Box::new(|| launched.ended()))
                    }
                    // It stands for the GPU, as the twin's own threads do.
                    Threaded::Twin { steps, model } => {
                        let (core, steps, model) =
                            (Arc::clone(&self.core), Arc::clone(steps), Arc::clone(model));
                        ("twin-turns", Box::new(move || turns(&core, &steps, &model)))
                    }
                };
                let (has_ended, on_end) = (Arc::clone(has_ended), self.on_end.clone());
                let work = move || {
                    let ended = wait();
                    has_ended.store(true, Ordering::Release);
                    on_end.iter().for_each(|call| call());
                    ended
                };
                *thread = Some(spawn(name, work)?);
            }
            Runs::Graph { graph, is_started, watcher, .. } => {
                launch::start(graph)?;
                *is_started = true;
                if let Some(call) = self.on_end.clone() {
                    let end = graph.end()?;
                    // An error is the stream's: `wait_end` tells it.
                    let work = move || {
                        let _ = end.sleep();
                        call();
                    };
                    *watcher = Some(spawn("chain-end", work)?);
                }
            }
        }
        Ok(())
    }

    /// Whether it has its turns. Error: what went wrong in a graph's kernel; a thread's: [`Self::wait_end`].
    pub fn is_running(&self) -> Result<bool, ServedError> {
        match &self.runs {
            Runs::Thread { thread: Some(_), has_ended, .. } => Ok(!has_ended.load(Ordering::Acquire)),
            Runs::Graph { graph, is_started: true, .. } => Ok(!graph.is_idle()?),
            _ => Ok(false),
        }
    }

    /// Cancels it and waits. Errors: what went wrong in a turn; `Deadline`, and then it still runs.
    pub fn stop(&mut self, limit: Duration) -> Result<(), ServedError> {
        self.cancel();
        self.wait_end(limit)
    }

    /// Waits for the chain's end. Errors: as [`Self::stop`]; the chain has ended unless it is `Deadline`.
    pub fn wait_end(&mut self, limit: Duration) -> Result<(), ServedError> {
        let since = Instant::now();
        match &mut self.runs {
            Runs::Thread { thread: running @ Some(_), .. } => {
                while running.as_ref().is_some_and(|thread| !thread.is_finished()) {
                    if since.elapsed() >= limit {
                        return Err(ServedError::Deadline { what: "the last turn's end".into(), limit });
                    }
                    std::thread::sleep(Duration::from_micros(100));
                }
                let ended = running.take().map_or(Ok(Ok(())), JoinHandle::join);
                ended.unwrap_or_else(|_| refuse("the thread that launches the kernels has panicked"))
            }
            Runs::Graph { graph, is_started: is_started @ true, watcher, .. } => {
                let ended = graph.wait(limit);
                *is_started = matches!(ended, Err(gpu::Error::Deadline { .. }));
                if !*is_started {
                    watcher.take().map(JoinHandle::join);
                }
                match ended? {
                    End::Cancelled => Ok(()),
                    other => refuse(format!("the chain of turns has ended by itself: {other:?}")),
                }
            }
            _ => Ok(()),
        }
    }

    /// Whether a kernel may still use what the pipeline has.
    pub(super) fn may_run(&self) -> bool {
        matches!(self.runs, Runs::Thread { thread: Some(_), .. } | Runs::Graph { is_started: true, .. })
    }
}
