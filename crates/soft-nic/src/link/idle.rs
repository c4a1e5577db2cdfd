//! When the NIC's thread spins, and when and how long it sleeps. Pure; the clock is the caller's.
//!
//! Three regimes:
//! - *Spinning*, while there was work within the last two milliseconds and the core is ours: the fastest, and it costs
//!   nobody anything while cores are free.
//! - *Crowded*: the thread found that it had been taken off its core while it spun. Two programs that poll and two NICs
//!   that poll on two cores only ever change places at scheduler ticks, milliseconds apart. A thread that wakes from a
//!   sleep, on the other hand, preempts a polling one at once. So a crowded NIC never spins for long: it looks, and
//!   sleeps for some microseconds, which also hands the core to the program that must react to what the NIC did.
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
    /// Taken off the core for longer than this while spinning: crowded. ns.
    pub lost_ns: u64,
    /// How long a crowded NIC looks again without sleeping after work, ns.
    pub crowded_spin_ns: u64,
    /// A crowded NIC's sleep while there was work recently, ns.
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
            lost_ns: 100_000,
            crowded_spin_ns: 5_000,
            crowded_sleep_ns: 10_000,
            crowded_ns: 100_000_000,
            crowded_max_ns: 5_000_000_000,
            deep_sleep_ns: 2_000_000,
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
    /// Start of the present run without a sleep, on both clocks.
    awake_ns: u64,
    awake_cpu_ns: u64,
    looked_ns: u64,
    crowded_until_ns: u64,
    belief_ns: u64,
}

impl<C: IdleClock> IdlePolicy<C> {
    /// A policy that starts spinning.
    pub fn new(clock: C, times: IdleTimes) -> Self {
        let (now, cpu) = (clock.now_ns(), clock.cpu_ns());
        IdlePolicy {
            clock,
            times,
            worked_ns: now,
            awake_ns: now,
            awake_cpu_ns: cpu,
            looked_ns: now,
            crowded_until_ns: 0,
            belief_ns: times.crowded_ns,
        }
    }

    /// Whether other threads want the core.
    pub fn is_crowded(&self) -> bool {
        self.looked_ns < self.crowded_until_ns
    }

    /// Call after every look. `worked`: it found something to do.
    pub fn after_look(&mut self, worked: bool) -> Pause {
        let now = self.clock.now_ns();
        self.notice_absence(now);
        self.looked_ns = now;
        if worked {
            self.worked_ns = now;
        }
        let quiet_ns = now.saturating_sub(self.worked_ns);
        let pause = if now < self.crowded_until_ns { self.crowded(quiet_ns) } else { self.alone(quiet_ns) };
        if let Pause::Sleep(_) = pause {
            // Whatever passes asleep is no absence.
            self.awake_ns = 0;
        }
        pause
    }

    fn alone(&self, quiet_ns: u64) -> Pause {
        if quiet_ns < self.times.spin_ns { Pause::Spin } else { self.idle(quiet_ns) }
    }

    fn crowded(&self, quiet_ns: u64) -> Pause {
        if quiet_ns < self.times.crowded_spin_ns {
            Pause::Spin
        } else if quiet_ns < self.times.spin_ns {
            Pause::Sleep(Duration::from_nanos(self.times.crowded_sleep_ns))
        } else {
            self.idle(quiet_ns)
        }
    }

    /// A sixteenth of the time without work so far: the wait for a doorbell is in proportion to what came before it.
    fn idle(&self, quiet_ns: u64) -> Pause {
        let ns = (quiet_ns / 16).clamp(self.times.crowded_sleep_ns, self.times.deep_sleep_ns);
        Pause::Sleep(Duration::from_nanos(ns))
    }

    /// Compares the clock of the wall with that of the thread when the time since the last look is suspicious.
    fn notice_absence(&mut self, now: u64) {
        if self.awake_ns == 0 {
            self.awake_ns = now;
            self.awake_cpu_ns = self.clock.cpu_ns();
            return;
        }
        if now.saturating_sub(self.looked_ns) < self.times.lost_ns {
            return;
        }
        let cpu = self.clock.cpu_ns();
        let lost = now.saturating_sub(self.awake_ns).saturating_sub(cpu.saturating_sub(self.awake_cpu_ns));
        self.awake_ns = now;
        self.awake_cpu_ns = cpu;
        if lost < self.times.lost_ns {
            return;
        }
        let again = now.saturating_sub(self.crowded_until_ns) < self.belief_ns;
        self.belief_ns =
            if again { (2 * self.belief_ns).min(self.times.crowded_max_ns) } else { self.times.crowded_ns };
        self.crowded_until_ns = now + self.belief_ns;
    }
}
