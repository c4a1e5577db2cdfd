//! The NIC's thread: rounds of the device's work, the rest between them, and the report at the end.
//!
//! It holds the NIC's lock for a round, never asleep. Commands go first, and wake it: work usually follows.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mlx5_device::carrier::Carrier;
use roce::Now;

use super::idle::{IdlePolicy, Pause, SystemClock};
use crate::Nic;
use crate::abi::server::{Locked, Server};
use crate::control::ControlServer;
use crate::link::fabric::Fabric;
use crate::os::{OneShotEpoll, log, system};

/// So many rounds without work make one look: clock, lock and the idle policy cost as much as such a round.
const LOOKS: usize = 4;
/// Shortest rest before a time that a queue waits for: the granularity of time-outs and shaping.
const WAITING: Duration = Duration::from_micros(50);
/// Rest of the thread while the program itself runs the NIC.
const PUMPED: Duration = Duration::from_micros(500);
/// How long the thread that waits for packets waits before it looks whether it is still needed.
const PACKET_WAIT: Duration = Duration::from_millis(100);
/// How long the end of a program waits for the thread, and then for the last replies.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);
/// How long it waits for what is under way with a delay: all of it, and a kernel that is slow to take it.
pub(super) const DRAINING: Duration = Duration::from_nanos(mlx5_device::carrier::MAX_DELAY_NS + 100_000_000);

/// What a process's NIC did, when the process ends.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub counters: Vec<(&'static str, u64)>,
    pub refused: Vec<(String, u64)>,
    pub thread_ns: u64,
    /// What `softnic ctl` changed, in its words.
    pub changes: Vec<String>,
}

/// Values of [`Shared::leaving`].
pub(super) mod leaving {
    pub const NOT: u32 = 0;
    /// The thread is to report and end.
    pub const ASKED: u32 = 1;
    /// The thread has ended; nothing to wait for.
    pub const DONE: u32 = 2;
    /// The thread waits for what is under way with a delay.
    pub const DRAINS: u32 = 3;
}

/// What the thread and the others share.
pub(super) struct Shared {
    pub control: Arc<ControlServer>,
    pub stop: AtomicBool,
    /// A thread has claimed the report.
    pub claimed: AtomicBool,
    /// Where the thread's own report stands; a thread that waits for it sleeps on this word.
    pub leaving: AtomicU32,
    /// Rounds that the program's own polls did.
    pub pumped: AtomicU64,
    pub thread_ns: AtomicU64,
}

impl Shared {
    pub fn new(control: ControlServer) -> Shared {
        Shared {
            control: Arc::new(control),
            stop: AtomicBool::new(false),
            claimed: AtomicBool::new(false),
            leaving: AtomicU32::new(leaving::NOT),
            pumped: AtomicU64::new(0),
            thread_ns: AtomicU64::new(0),
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Acquire) && self.leaving.load(Ordering::Acquire) == leaving::NOT
    }

    /// Lets answers that are due go out, and reports.
    pub fn report(&self, thread_ns: u64, deadline: Instant, before_drain: impl FnOnce()) -> Report {
        let server = &*self.control.server;
        let mut report = Report { refused: server.events.1.refusals(), thread_ns, ..Report::default() };
        let mut held = lock_by(server, deadline);
        // A peer waits for the acknowledgement of what this program has seen arrive.
        let flushed = catch_unwind(AssertUnwindSafe(|| {
            while let Some(nic) = &mut held
                && nic.poll_last(Now(system::monotonic_ns())) > 0
                && Instant::now() < deadline
            {}
            // It may lie in a channel not yet attached. Both may end at once: each has to attach meanwhile.
            while let Some(nic) = &mut held
                && nic.link().has_unseen()
                && Instant::now() < deadline
            {
                drop(held.take());
                std::thread::sleep(WAITING);
                held = lock_by(server, deadline);
                held.as_mut().map(|nic| nic.poll_last(Now(system::monotonic_ns())));
            }
            drain(server, &mut held, before_drain)
        }));
        let Some(mut nic) = held else { return report };
        nic.end_recording();
        // Or peers would take a normal end for a death.
        nic.link().leave();
        if flushed.is_ok() {
            report.counters = self.control.counters(&mut nic);
            report.changes = nic.changes().to_vec();
        }
        // A program's last packets are worth having: the capture gets a moment to take them, late ones too.
        let ending = nic.link().end_capture();
        drop(nic);
        let has_drained = matches!(flushed, Ok(true));
        let deadline = if has_drained { Instant::now() + PATIENCE / 2 } else { deadline };
        while ending.as_ref().is_some_and(|ending| !ending.is_read()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        report
    }

    /// The thread that waits for packets while the NIC's thread sleeps, and wakes it.
    pub fn watch_ports(&self, epoll: &OneShotEpoll, waker: &Fabric) {
        while self.goes_on() {
            match epoll.wait(PACKET_WAIT) {
                Ok(true) => waker.rouse(),
                Ok(false) => {}
                // The program closed what is not its own. The NIC still looks every few milliseconds.
                Err(_) => return,
            }
        }
    }

    /// The NIC's thread, which gives `publish` the report when it is asked to leave.
    pub fn run(&self, publish: impl FnOnce(&Report)) {
        system::tune_thread();
        let mut policy = IdlePolicy::new(SystemClock, system::monotonic_ns());
        let mut pumped = 0;
        while self.goes_on() {
            let round = catch_unwind(AssertUnwindSafe(|| self.look(&mut policy, &mut pumped)));
            if !matches!(round, Ok(true)) {
                log("internal error: the NIC has stopped; its devices answer EIO");
                self.control.server.stop();
                break;
            }
        }
        self.thread_ns.store(system::thread_cpu_ns(), Ordering::Release);
        let asked =
            self.leaving.compare_exchange(leaving::NOT, leaving::DONE, Ordering::AcqRel, Ordering::Acquire);
        if asked.is_err() {
            let deadline = Instant::now() + PATIENCE / 2;
            // A panic here must not keep the program from ending.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let before_drain = || {
                    self.leaving.store(leaving::DRAINS, Ordering::Release);
                    system::futex_wake(&self.leaving);
                };
                publish(&self.report(system::thread_cpu_ns(), deadline, before_drain));
            }));
            self.leaving.store(leaving::DONE, Ordering::Release);
            system::futex_wake(&self.leaving);
        }
    }

    /// One round and the rest after it; false when the NIC has stopped.
    fn look(&self, policy: &mut IdlePolicy<SystemClock>, pumped: &mut u64) -> bool {
        let server = &self.control.server;
        let Some(mut nic) = server.nic.poll() else { return false };
        let now = system::monotonic_ns();
        server.clock.tick(now);
        let worked = (0..LOOKS).any(|_| nic.poll(Now(now)) > 0);
        if let Some(call) = nic.link().take_call() {
            // A thread is made for it: not with the lock.
            drop(nic);
            self.control.take_call(call);
            return true;
        }
        let pumps = self.pumped.load(Ordering::Relaxed);
        if pumps != *pumped {
            // The program runs the NIC itself: rest without the lock, and look after what it does not poll.
            *pumped = pumps;
            drop(nic);
            std::thread::sleep(PUMPED);
            policy.begin(system::monotonic_ns());
            return true;
        }
        let pause = policy.after_look(now, worked);
        let Pause::Sleep(max) = pause else {
            drop(nic);
            match pause {
                Pause::Offer => std::thread::yield_now(),
                Pause::Leave => system::leave_core(),
                _ if worked => {}
                _ => std::hint::spin_loop(),
            }
            return true;
        };
        let until_due = |due: Now| Duration::from_nanos(due.0.saturating_sub(now)).max(WAITING);
        let max = nic.due().map_or(max, |due| max.min(until_due(due)));
        // Commands and the pump have the NIC while the thread sleeps.
        if let Some(sleep) = nic.link().prepare_sleep() {
            drop(nic);
            sleep.wait(max);
            let Some(mut nic) = server.nic.poll() else { return false };
            nic.link().end_sleep();
        }
        true
    }
}

/// The NIC, if it can be locked by `deadline`. A thread may hold it for ever, if the signal that ends us
/// stopped it in a command.
fn lock_by(server: &Server<Nic>, deadline: Instant) -> Option<Locked<'_, Nic>> {
    loop {
        std::thread::yield_now();
        let nic = server.nic.try_poll();
        if nic.is_some() || Instant::now() >= deadline {
            return nic;
        }
    }
}

/// What was sent with a delay arrives though its program has ended, as on a wire: waits until it has left,
/// and sleeps unlocked. `before` is called first. True: there was something to wait for.
fn drain<'s>(server: &'s Server<Nic>, held: &mut Option<Locked<'s, Nic>>, before: impl FnOnce()) -> bool {
    if !held.as_mut().is_some_and(|nic| nic.link().has_delayed()) {
        return false;
    }
    before();
    let until = Instant::now() + DRAINING;
    while let Some(nic) = held
        && nic.link().has_delayed()
        && Instant::now() < until
    {
        if nic.poll_last(Now(system::monotonic_ns())) == 0 {
            *held = None;
            std::thread::sleep(WAITING);
            *held = lock_by(server, until);
        }
    }
    true
}
