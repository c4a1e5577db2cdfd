//! The NIC of one process: the device with its link behind the command server, and the threads that drive them.
//!
//! The thread holds the NIC's lock for a round of the device's work, never while it sleeps; it stands back until a command
//! is through, and a command wakes it, because work usually follows. All signals but those that a thread raises itself are
//! blocked in it, so the program's handlers never run there.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mlx5_device::carrier::Carrier;
use mlx5_device::{Answer, LogSink};
use roce::Now;

use super::control::{self, Talking};
use super::events::Events;
use super::rdma_cm::{self, CmTimeouts, Manager};
use super::server::{Locked, Server};
use crate::Nic;
use crate::config::Config;
use crate::dma::{Copiers, Host};
use crate::link::{IdlePolicy, IdleTimes, Impairment, Link, LinkConfig, Pause, SystemClock, Waker};
use crate::os::{OneShotEpoll, OwnThreads, log, system};
use crate::sysfs::Machine;

/// Name of the NIC's thread, by which CPU-utilisation figures leave it out.
pub const THREAD_NAME: &str = "softnic-nic";
/// Longest rest while some queue waits for time to pass: the granularity of time-outs and shaping.
const WAITING: Duration = Duration::from_micros(50);
/// Rest of the thread while the program itself runs the NIC.
const PUMPED: Duration = Duration::from_micros(500);
/// How long the thread that waits for packets waits before it looks whether it is still needed.
const PACKET_WAIT: Duration = Duration::from_millis(100);
/// How long the end of a program waits for the thread, and then for the last replies.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long it waits for what is under way with a delay: all of it, and a kernel that is slow to take it.
const LINGERING: Duration = Duration::from_nanos(mlx5_device::carrier::MAX_DELAY_NS + 100_000_000);

/// Why a process got no NIC.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] mlx5_device::config::NicConfigError),
    #[error(transparent)]
    Link(#[from] crate::link::LinkError),
    #[error("starting the NIC: {}", .0.raw_os_error().map_or_else(|| .0.to_string(), system::refusal))]
    Kernel(#[from] std::io::Error),
}

/// What a process's NIC did, when the process ends.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub counters: Vec<(&'static str, u64)>,
    pub refused: Vec<(String, u64)>,
    pub thread_ns: u64,
    /// What `softnic ctl` changed, in its words.
    pub changes: Vec<String>,
}

pub struct Process {
    /// The command server.
    pub server: Arc<Server<Nic>>,
    waker: Waker,
    shared: Arc<Control>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Values of [`Control::leaving`].
mod leaving {
    pub const NOT: u32 = 0;
    /// The thread is to report and end.
    pub const ASKED: u32 = 1;
    /// The thread has ended; nothing to wait for.
    pub const DONE: u32 = 2;
    /// The thread waits for what is under way with a delay.
    pub const LINGERS: u32 = 3;
}

/// What the thread and the others tell each other.
#[derive(Debug, Default)]
struct Control {
    stop: AtomicBool,
    /// A thread has claimed the report.
    claimed: AtomicBool,
    /// Where the thread's own report stands; a thread that waits for it sleeps on this word.
    leaving: AtomicU32,
    /// Rounds that the program's own polls did.
    pumped: AtomicU64,
    thread_ns: AtomicU64,
    /// Whether a `softnic ctl` is being answered.
    talking: Arc<Talking>,
}

impl Process {
    /// Takes a slot on the fabric and starts the thread, which gives `publish` the report when [`Process::leave`] asks.
    ///
    /// Errors: one line for the user.
    pub fn start(
        config: Config,
        machine: Machine,
        publish: impl FnOnce(&Report) + Send + 'static,
    ) -> Result<Self, StartError> {
        let memory = Host::new()?;
        let link_config = LinkConfig {
            fabric: config.fabric.clone(),
            addresses: config.wire_addresses(),
            impairment: Impairment { loss: config.loss, reorder: config.reorder, seed: config.seed },
            copiers: Copiers::new(config.copy_helpers(system::allowed_cores())),
            ..LinkConfig::default()
        };
        let link = Link::join(link_config)?;
        let (waker, epoll, router) = (link.waker(), link.epoll(), link.mad_router());
        let events = Events::default();
        let now = Now(system::monotonic_ns());
        let mut nic = Nic::new(&config.nic(), memory, link, Box::new(events.clone()), Box::new(Stderr), now)?;
        nic.excuse(Box::new(OwnThreads::without(THREAD_NAME)));
        nic.stamp_by(|| Now(system::monotonic_ns()));
        let server = Arc::new(Server::new(&config, machine, nic, events, Box::new(memory))?);
        let timeouts = CmTimeouts { response_timeout: config.cm_timeout, max_retries: config.cm_retries };
        server.manager.get_or_init(|| Manager::new(server.ports.clone(), timeouts, router, Box::new(memory)));
        let shared = Arc::new(Control::default());
        if let Some(epoll) = epoll {
            let (waker, shared) = (waker.clone(), shared.clone());
            let _blocked = system::BlockedSignals::new();
            std::thread::Builder::new()
                .name(THREAD_NAME.to_owned())
                .spawn(move || hear(&epoll, &waker, &shared))?;
        }
        let thread = {
            let (server, shared) = (server.clone(), shared.clone());
            let _blocked = system::BlockedSignals::new();
            std::thread::Builder::new()
                .name(THREAD_NAME.to_owned())
                .spawn(move || run(&server, &shared, publish))
        };
        // The thread that waits for packets is not needed for a NIC without a thread.
        let thread = thread.inspect_err(|_| shared.stop.store(true, Ordering::Release))?;
        Ok(Self { server, waker, shared, thread: Mutex::new(Some(thread)) })
    }

    /// Runs a command. The thread stands back meanwhile, and looks right after it.
    pub fn command<T>(&self, run: impl FnOnce(&Server<Nic>) -> T) -> T {
        let _faults = UnblockedFaults::new();
        let announced = self.server.nic.announce();
        let answer = run(&self.server);
        drop(announced);
        self.waker.wake();
        answer
    }

    /// Opens the connection manager's device: the number of the open file, and the program's descriptor.
    pub fn open_manager(&self) -> Answer<(u32, RawFd)> {
        self.manager().open(|attend| {
            let _blocked = system::BlockedSignals::new();
            std::thread::Builder::new().name(rdma_cm::THREAD_NAME.to_owned()).spawn(attend).map(|_| ())
        })
    }

    fn manager(&self) -> &Manager {
        self.server.manager.get().expect("made with the process")
    }

    /// Runs something of the connection manager.
    pub fn manage<T>(&self, run: impl FnOnce(&Manager) -> T) -> T {
        let _faults = UnblockedFaults::new();
        run(self.manager())
    }

    /// One round of the NIC on the program's own time. Returns the time it took, ns; 0 when another thread has the NIC.
    pub fn pump(&self) -> u64 {
        if !faults_recoverable() {
            return 0;
        }
        self.shared.pumped.fetch_add(1, Ordering::Relaxed);
        let mut begun = None;
        let whole = self.server.nic.attempt(|nic| {
            // With the lock: what the thread sent last is delayed from a time that was read after it.
            let now = system::monotonic_ns();
            begun = Some(now);
            nic.poll(Now(now));
        });
        if !whole {
            // The NIC's thread finds the NIC stopped, and logs it.
            self.waker.wake();
        }
        begun.map_or(0, |begun| system::monotonic_ns().saturating_sub(begun))
    }

    /// The program ends in a place where no lock may be taken and no memory allocated, such as a signal handler: the thread
    /// reports, and the caller waits for it, not longer than [`PATIENCE`], and [`LINGERING`] more while something with a delay is
    /// under way. Whatever it interrupted stays interrupted: when that holds what the thread needs, the report is lost.
    pub fn leave(&self) {
        let word = &self.shared.leaving;
        if self.shared.claimed.swap(true, Ordering::AcqRel)
            || word
                .compare_exchange(leaving::NOT, leaving::ASKED, Ordering::AcqRel, Ordering::Acquire)
                .is_err()
        {
            return;
        }
        self.waker.wake();
        let begun = system::monotonic_ns();
        loop {
            let stands = word.load(Ordering::Acquire);
            let patience = match stands {
                leaving::ASKED => PATIENCE,
                leaving::LINGERS => PATIENCE + LINGERING,
                _ => return,
            };
            let left = (begun + patience.as_nanos() as u64).saturating_sub(system::monotonic_ns());
            if left == 0 {
                return;
            }
            system::futex_wait(word, stands, Duration::from_nanos(left));
        }
    }

    /// The program ends: stops the thread, lets answers that are due go out, and reports. `None` when another thread does.
    pub fn end(&self) -> Option<Report> {
        if self.shared.claimed.swap(true, Ordering::AcqRel) {
            return None;
        }
        let _faults = UnblockedFaults::new();
        self.manager().end();
        self.shared.stop.store(true, Ordering::Release);
        let deadline = Instant::now() + PATIENCE;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        while let Some(thread) = &thread
            && !thread.is_finished()
            && Instant::now() < deadline
        {
            self.waker.wake();
            std::thread::sleep(Duration::from_micros(50));
        }
        Some(report(&self.server, self.shared.thread_ns.load(Ordering::Acquire), deadline, || ()))
    }
}

/// The NIC, if it can be locked by `deadline`. A thread may hold it for ever: a thread that was stopped in a command by the signal that
/// ends us.
fn lock_by(server: &Server<Nic>, deadline: Instant) -> Option<Locked<'_, Nic>> {
    loop {
        std::thread::yield_now();
        let nic = server.nic.try_poll();
        if nic.is_some() || Instant::now() >= deadline {
            return nic;
        }
    }
}

/// What was sent with a delay arrives though its program has ended, as on a wire: waits until it has left, and rests without the
/// lock. `lingers` is told before. True: there was something to wait for.
fn linger<'s>(server: &'s Server<Nic>, held: &mut Option<Locked<'s, Nic>>, lingers: impl FnOnce()) -> bool {
    if !held.as_mut().is_some_and(|nic| nic.link().has_delayed()) {
        return false;
    }
    lingers();
    let until = Instant::now() + LINGERING;
    while let Some(nic) = held
        && nic.link().has_delayed()
        && Instant::now() < until
    {
        if nic.poll_last(Now(system::monotonic_ns())) == 0 {
            *held = None;
            system::nap(WAITING);
            *held = lock_by(server, until);
        }
    }
    true
}

/// Lets answers that are due go out, and reports.
fn report(server: &Server<Nic>, thread_ns: u64, deadline: Instant, lingers: impl FnOnce()) -> Report {
    let mut report = Report { refused: server.refused(), thread_ns, ..Report::default() };
    let mut held = lock_by(server, deadline);
    // A peer waits for the acknowledgement of what this program has seen arrive.
    let flushed = catch_unwind(AssertUnwindSafe(|| {
        while let Some(nic) = &mut held
            && nic.poll_last(Now(system::monotonic_ns())) > 0
            && Instant::now() < deadline
        {}
        // It may lie in a channel that the peer is still to attach to. Both may end at once: each has to attach meanwhile.
        while let Some(nic) = &mut held
            && nic.link().has_unseen()
            && Instant::now() < deadline
        {
            drop(held.take());
            system::nap(WAITING);
            held = lock_by(server, deadline);
            held.as_mut().map(|nic| nic.poll_last(Now(system::monotonic_ns())));
        }
        linger(server, &mut held, lingers)
    }));
    let Some(mut nic) = held else { return report };
    // Or peers would take a normal end for a death.
    nic.link().leave();
    if flushed.is_ok() {
        report.counters = counters(server, &mut nic);
        report.changes = nic.changes().to_vec();
    }
    // The last packets of a program are worth having: the capture gets a moment to take them, also those that came late.
    let ending = nic.link().end_capture();
    drop(nic);
    let has_lingered = matches!(flushed, Ok(true));
    let deadline = if has_lingered { Instant::now() + PATIENCE / 2 } else { deadline };
    while ending.as_ref().is_some_and(|ending| !ending.is_read()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    report
}

/// Every counter of the device and of the link, by the names of the stats line.
pub(super) fn counters(server: &Server<Nic>, nic: &mut Nic) -> Vec<(&'static str, u64)> {
    let link = nic.link().counters();
    let wire = wire_counters(nic);
    let delay_ns = nic.link().delay_ns();
    let device = nic.counters().fields();
    device
        .chain(link.fields())
        .chain([("link_delay_ns", delay_ns)])
        .chain(wire)
        .chain(crate::dma::copiers::counters())
        .chain(crate::dma::gpu::counters())
        .chain(server.manager.get().map(Manager::counters).unwrap_or_default())
        .collect()
}

/// Those of the wire; all are 0 without one, but for the connection manager's datagrams within the fabric (`mads_*`).
fn wire_counters(nic: &mut Nic) -> impl Iterator<Item = (&'static str, u64)> + use<> {
    let (wire, port) = nic.link().wire_counters().unwrap_or_default();
    let router = nic.link().mad_router();
    let (mads, local) = (router.counters(), router.local_counters());
    [
        ("wire_packets_sent", wire.sent),
        ("wire_packets_received", wire.received),
        ("wire_received_bytes", wire.received_bytes),
        ("wire_icrc_errors", wire.icrc_errors),
        ("wire_malformed", wire.malformed + port.malformed),
        ("wire_pkey_violations", wire.pkey_violations),
        ("wire_reserved", wire.reserved),
        ("wire_cnps", wire.cnps),
        ("wire_lost", wire.lost),
        ("wire_overtaken", wire.overtaken),
        ("wire_untaken", wire.untaken),
        ("wire_handed_on", port.handed_on),
        ("wire_undeliverable", port.undeliverable),
        ("wire_refused", port.refused),
        ("wire_unsent", port.unsent),
        ("wire_ports_owned", port.owned),
        ("wire_socket_errors", wire.socket_errors),
        ("mads_unclaimed", local.unclaimed),
        ("mads_malformed", local.malformed),
        ("mads_full", local.full),
        ("mads_failed", local.failed),
    ]
    .into_iter()
    .chain(mads.fields())
}

/// The thread that waits for packets while the NIC's thread sleeps, and wakes it.
fn hear(epoll: &OneShotEpoll, waker: &Waker, shared: &Control) {
    while !shared.stop.load(Ordering::Acquire) && shared.leaving.load(Ordering::Acquire) == leaving::NOT {
        match epoll.wait(PACKET_WAIT) {
            Ok(true) => waker.wake(),
            Ok(false) => {}
            // The program has closed what is not its own. The NIC still looks around every few milliseconds.
            Err(_) => return,
        }
    }
}

fn run(server: &Arc<Server<Nic>>, shared: &Control, publish: impl FnOnce(&Report)) {
    system::tune_thread();
    let mut policy = IdlePolicy::new(SystemClock, IdleTimes::default());
    let mut pumped = 0;
    while !shared.stop.load(Ordering::Acquire) && shared.leaving.load(Ordering::Acquire) == leaving::NOT {
        let round = catch_unwind(AssertUnwindSafe(|| look(server, shared, &mut policy, &mut pumped)));
        if !matches!(round, Ok(true)) {
            log("internal error: the NIC has stopped; its devices answer EIO");
            server.stop();
            break;
        }
    }
    shared.thread_ns.store(system::thread_cpu_ns(), Ordering::Release);
    let asked =
        shared.leaving.compare_exchange(leaving::NOT, leaving::DONE, Ordering::AcqRel, Ordering::Acquire);
    if asked.is_err() {
        let deadline = Instant::now() + PATIENCE / 2;
        // A panic here must not keep the program from ending.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let lingers = || {
                shared.leaving.store(leaving::LINGERS, Ordering::Release);
                system::futex_wake(&shared.leaving);
            };
            publish(&report(server, system::thread_cpu_ns(), deadline, lingers));
        }));
        shared.leaving.store(leaving::DONE, Ordering::Release);
        system::futex_wake(&shared.leaving);
    }
}

/// One round and the rest after it; false when the NIC has stopped.
fn look(
    server: &Arc<Server<Nic>>,
    shared: &Control,
    policy: &mut IdlePolicy<SystemClock>,
    pumped: &mut u64,
) -> bool {
    let Some(mut nic) = server.nic.poll() else { return false };
    let now = system::monotonic_ns();
    server.clock.tick(now);
    let worked = nic.poll(Now(now)) > 0;
    if let Some(call) = nic.link().take_call() {
        // A thread is made for it: not with the lock.
        drop(nic);
        control::take_call(server, &shared.talking, call);
        return true;
    }
    let pumps = shared.pumped.load(Ordering::Relaxed);
    if pumps != *pumped {
        // The program runs the NIC itself: rest without the lock, and look after what it does not poll.
        *pumped = pumps;
        drop(nic);
        system::nap(PUMPED);
        policy.begin(system::monotonic_ns());
        return true;
    }
    match policy.after_look(now, worked) {
        Pause::Spin => {
            drop(nic);
            std::hint::spin_loop();
        }
        Pause::Offer => {
            drop(nic);
            std::thread::yield_now();
        }
        Pause::Leave => {
            drop(nic);
            system::leave_core();
        }
        Pause::Sleep(max) => {
            let max = if nic.is_waiting() { max.min(WAITING) } else { max };
            // Commands and the pump have the NIC while the thread sleeps.
            if let Some(sleep) = nic.link().prepare_sleep() {
                drop(nic);
                sleep.wait(max);
                let Some(mut nic) = server.nic.poll() else { return false };
                nic.link().end_sleep();
            }
        }
    }
    true
}

/// A set of the two signals that the guard of application memory recovers from.
fn faults() -> libc::sigset_t {
    // SAFETY: plain old data; filled by the calls below.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a signal set of ours.
    unsafe { libc::sigemptyset(&mut set) };
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: as above.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

/// Lets fault signals through on this thread: the kernel ends a process that faults with them blocked, and a command must
/// survive a bad address on a thread that blocks everything. The caller's mask comes back on drop.
struct UnblockedFaults(libc::sigset_t);

impl UnblockedFaults {
    fn new() -> Self {
        let set = faults();
        // SAFETY: plain old data; filled by the call below.
        let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: both sets live through the call.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, &mut before) };
        Self(before)
    }
}

impl Drop for UnblockedFaults {
    fn drop(&mut self) {
        // SAFETY: the set that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Whether this thread lets fault signals through; asked of the kernel once a thread, since the pump is for polling.
fn faults_recoverable() -> bool {
    thread_local! {
        static KNOWN: Cell<Option<bool>> = const { Cell::new(None) };
    }
    KNOWN.with(|known| {
        known.get().unwrap_or_else(|| {
            // SAFETY: plain old data; filled by the call below.
            let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: without a new set this only reads the mask.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask) };
            let clear = [libc::SIGSEGV, libc::SIGBUS].into_iter().all(|signal| {
                // SAFETY: a set of ours and a signal that exists.
                unsafe { libc::sigismember(&mask, signal) == 0 }
            });
            known.set(Some(clear));
            clear
        })
    })
}

/// The device's log lines go to stderr.
struct Stderr;

impl LogSink for Stderr {
    fn line(&mut self, text: &str) {
        log(text.trim_start_matches("softnic: "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_let_through_for_a_command_and_the_mask_comes_back() {
        let blocked = || {
            // SAFETY: plain old data; filled by the call below.
            let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: without a new set this only reads the mask.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask) };
            // SAFETY: a set of ours and a signal that exists.
            unsafe { libc::sigismember(&mask, libc::SIGSEGV) == 1 }
        };
        std::thread::spawn(move || {
            let set = faults();
            // SAFETY: this thread's own mask, which ends with it.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
            assert!(!faults_recoverable(), "the pump stays away");
            let guard = UnblockedFaults::new();
            assert!(!blocked());
            drop(guard);
            assert!(blocked());
        })
        .join()
        .expect("no panic");
        assert!(faults_recoverable());
    }
}
