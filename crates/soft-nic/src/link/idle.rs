//! When the NIC's thread spins, and when and how long it sleeps. Pure; the clock is the caller's.
//!
//! Three regimes:
//! - *Spinning*, while there was work within the last two milliseconds and the core is ours: the fastest, and it costs
//!   nobody anything while cores are free.
//! - *Crowded*: the thread found that it had been taken off its core while it spun. Two programs that poll and two NICs
//!   that poll on two cores only ever change places at scheduler ticks, milliseconds apart. A thread that wakes from a
//!   sleep preempts a polling one at once, as long as it has not had more than its share (Linux's EEVDF calls it
//!   eligible; seen in a trace of 6.18: 7 µs after the wake-up while eligible, up to 5 ms when not). So a crowded NIC
//!   works while there is work, and then sleeps at least as long as it ran, which also hands the core to the program
//!   that must react to what the NIC did.
//! - *Idle*: longer and longer sleeps, up to two milliseconds.
//!
//! Peers' messages end a sleep early (they ring); the program's own doorbells do not, so the length of a sleep is the
//! latency of a doorbell.

use std::time::Duration;

use crate::dma::system;

/// Where the policy gets the time from.
pub trait IdleClock {
    /// Monotonic time in ns.
    fn now_ns(&self) -> u64;
    /// CPU time that this thread has used, in ns.
    fn cpu_ns(&self) -> u64;
    /// How often this thread was taken off its core while it could have gone on.
    fn preemptions(&self) -> u64;
}

/// The clocks of the calling thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl IdleClock for SystemClock {
    fn now_ns(&self) -> u64 {
        system::monotonic_ns()
    }

    fn cpu_ns(&self) -> u64 {
        system::thread_cpu_ns()
    }

    fn preemptions(&self) -> u64 {
        system::thread_preemptions()
    }
}

/// What to do before the next look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// Look again at once.
    Spin,
    /// Sleep at most so long; a bell ends it.
    Sleep(Duration),
}

/// The numbers of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleTimes {
    /// Spinning goes on so long after the last work, ns.
    pub spin_ns: u64,
    /// A look that comes so long after the one before is looked into: it may have been work, or an absence. ns.
    pub gap_ns: u64,
    /// A crowded NIC works at most so long before it sleeps, ns.
    pub crowded_run_ns: u64,
    /// A crowded NIC's shortest sleep, ns.
    pub crowded_sleep_ns: u64,
    /// How long crowded is believed at first; doubles each time it proves true again, up to `crowded_max_ns`.
    pub crowded_ns: u64,
    /// Longest belief, ns.
    pub crowded_max_ns: u64,
    /// Longest sleep, ns.
    pub deep_sleep_ns: u64,
}

impl Default for IdleTimes {
    fn default() -> Self {
        IdleTimes {
            spin_ns: 2_000_000,
            gap_ns: 100_000,
            crowded_run_ns: 200_000,
            crowded_sleep_ns: 10_000,
            crowded_ns: 100_000_000,
            crowded_max_ns: 2_000_000_000,
            deep_sleep_ns: 2_200_000,
        }
    }
}

/// Decides what the NIC's thread does between two looks.
#[derive(Debug, Clone)]
pub struct IdlePolicy<C> {
    clock: C,
    times: IdleTimes,
    /// When there was work last.
    worked_ns: u64,
    looked_ns: u64,
    /// Preemptions counted when last asked.
    preemptions: u64,
    /// CPU time when it went to sleep last.
    slept_cpu_ns: u64,
    crowded_until_ns: u64,
    belief_ns: u64,
}

impl<C: IdleClock> IdlePolicy<C> {
    /// A policy that starts spinning.
    pub fn new(clock: C, times: IdleTimes) -> Self {
        let (now, cpu) = (clock.now_ns(), clock.cpu_ns());
        IdlePolicy {
            times,
            worked_ns: now,
            looked_ns: now,
            preemptions: clock.preemptions(),
            slept_cpu_ns: cpu,
            crowded_until_ns: 0,
            belief_ns: times.crowded_ns,
            clock,
        }
    }

    /// Whether other threads want the core.
    pub fn is_crowded(&self) -> bool {
        self.looked_ns < self.crowded_until_ns
    }

    /// Call after every look. `worked`: it found something to do.
    pub fn after_look(&mut self, worked: bool) -> Pause {
        let now = self.clock.now_ns();
        if now.saturating_sub(self.looked_ns) >= self.times.gap_ns {
            self.notice_absence(now);
        }
        self.looked_ns = now;
        if worked {
            self.worked_ns = now;
        }
        let quiet_ns = now.saturating_sub(self.worked_ns);
        let pause =
            if now < self.crowded_until_ns { self.crowded(worked, quiet_ns) } else { self.alone(quiet_ns) };
        if let Pause::Sleep(time) = pause {
            // What passes asleep is no gap.
            self.looked_ns = now.saturating_add(time.as_nanos() as u64);
        }
        pause
    }

    fn alone(&self, quiet_ns: u64) -> Pause {
        if quiet_ns < self.times.spin_ns { Pause::Spin } else { self.idle(quiet_ns) }
    }

    fn crowded(&mut self, worked: bool, quiet_ns: u64) -> Pause {
        let cpu = self.clock.cpu_ns();
        // Includes what the last sleep and wake-up cost: the scheduler counts that too.
        let ran_ns = cpu.saturating_sub(self.slept_cpu_ns);
        if worked && ran_ns < self.times.crowded_run_ns {
            return Pause::Spin;
        }
        self.slept_cpu_ns = cpu;
        let share =
            Duration::from_nanos(ran_ns.clamp(self.times.crowded_sleep_ns, self.times.crowded_run_ns));
        match self.idle(quiet_ns) {
            Pause::Sleep(longer) if quiet_ns >= self.times.spin_ns => Pause::Sleep(longer.max(share)),
            _ => Pause::Sleep(share),
        }
    }

    /// A sixteenth of the time without work so far: the wait for a doorbell is in proportion to what came before it.
    fn idle(&self, quiet_ns: u64) -> Pause {
        let ns = (quiet_ns / 16).clamp(self.times.crowded_sleep_ns, self.times.deep_sleep_ns);
        Pause::Sleep(Duration::from_nanos(ns))
    }

    /// A gap between two looks was an absence when the kernel counted a preemption, and work otherwise.
    fn notice_absence(&mut self, now: u64) {
        let preemptions = self.clock.preemptions();
        let absent = preemptions != self.preemptions;
        self.preemptions = preemptions;
        if !absent || now < self.crowded_until_ns {
            return;
        }
        let again = now - self.crowded_until_ns < self.belief_ns;
        self.belief_ns =
            if again { (2 * self.belief_ns).min(self.times.crowded_max_ns) } else { self.times.crowded_ns };
        self.crowded_until_ns = now + self.belief_ns;
        self.slept_cpu_ns = self.clock.cpu_ns();
    }
}
