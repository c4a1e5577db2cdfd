//! When the NIC's thread spins, and when and how long it sleeps. Pure; the clock is the caller's.
//!
//! Four regimes:
//! - *Spinning*, while there was work within the last two milliseconds and the core is ours: the fastest, and
//!   it costs other programs nothing while cores are free. To find out in time whether they are, a spinning
//!   NIC yields now and then: alone, that costs a fraction of a microsecond; otherwise the core was taken.
//!   Where work keeps coming after longer pauses, it spins for nothing each time: so less and less.
//! - *Sharing*: the core was taken several times in a row and returned soon, most likely by another NIC. Both
//!   are fastest when each yields whenever it finds nothing to do, without timers. A thread that wants the
//!   core only for moments (a kernel thread, a NIC that wakes up to look around) does not count.
//! - *Crowded*: an absence was long, so a program polls on this core and keeps it until a scheduler tick,
//!   milliseconds later. First the NIC moves to another core, if it has one: that may be free, or another
//!   NIC's. While it meets polling programs there too, it stays. A thread that wakes from a sleep preempts a
//!   polling one at once, if it has not had more than its share (Linux's EEVDF calls it eligible; in a trace
//!   of 6.18: 7 µs after the wake-up, when not eligible up to 5 ms). So a crowded NIC works while there is
//!   work, then sleeps at least as long as it ran, which also hands the core to the program that must react
//!   to its work. A sleep ends when a peer rings, so under a flood of messages the scheduler shares the core.
//! - *Idle*: longer and longer sleeps, up to 1.8 ms, later to one five-hundredth of the time without work, up
//!   to 10 ms. A doorbell's wait is in proportion to the time before it; an idle device costs little.
//!
//! Peers' messages end a sleep early (they ring); the program's own doorbells do not, so the length of a
//! sleep is the latency of a doorbell.

use std::time::Duration;

use crate::os::system;

/// What the policy asks of its thread.
pub trait IdleClock {
    /// CPU time that this thread has used, in ns.
    fn cpu_ns(&self) -> u64;
    /// How often this thread was taken off its core while it could have gone on.
    fn preemptions(&self) -> u64;
    /// Whether this thread may run on more than one core.
    fn has_cores(&self) -> bool;
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl IdleClock for SystemClock {
    fn cpu_ns(&self) -> u64 {
        system::thread_cpu_ns()
    }

    fn preemptions(&self) -> u64 {
        system::thread_preemptions()
    }

    fn has_cores(&self) -> bool {
        system::allowed_cores() > 1
    }
}

/// What to do before the next look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// Look again at once.
    Spin,
    /// Let another thread have the core, if one waits for it.
    Offer,
    /// Go to another core: a program polls on this one.
    Leave,
    /// Sleep at most so long; a bell ends it.
    Sleep(Duration),
}

// The numbers of the policy; `docs/notes/idle.md` has what most of them bring.

/// Spinning goes on so long after the last work at first …
const SPIN_NS: u64 = 2_000_000;
/// … and at least.
const SHORTEST_SPIN_NS: u64 = 125_000;
/// Spinning offers the core so often.
const OFFER_NS: u64 = 50_000;
/// So many times in a row that the core was taken mean a thread that shares it.
const TAKEN: u32 = 4;
/// In a row: not further apart than this.
const TAKEN_NS: u64 = 500_000;
/// An absence of this length means a program that polls.
const LONG_NS: u64 = 1_000_000;
/// How long sharing is believed, and crowded at first.
const BELIEF_NS: u64 = 20_000_000;
/// An absence that follows soon doubles it, up to this: each one costs milliseconds.
const LONGEST_BELIEF_NS: u64 = 2_000_000_000;
/// Another core is tried at most so often.
const LEAVE_NS: u64 = 100_000_000;
/// A crowded NIC works at most so long before it sleeps.
const CROWDED_RUN_NS: u64 = 200_000;
/// Shortest sleep.
const SLEEP_NS: u64 = 10_000;
/// Longest sleep at first: the longest wait of a doorbell.
pub const DEEP_SLEEP_NS: u64 = 1_800_000;
/// It grows beyond that to one part in so many of the time without work …
const DEEPEST_SHARE: u64 = 500;
/// … up to this.
const DEEPEST_SLEEP_NS: u64 = 10_000_000;

/// Decides what the NIC's thread does between two looks.
#[derive(Debug, Clone)]
pub struct IdlePolicy<C> {
    clock: C,
    /// Longest sleep of all.
    pub deepest_sleep_ns: u64,
    /// When there was work last.
    worked_ns: u64,
    /// How long spinning goes on after it.
    spin_ns: u64,
    looked_ns: u64,
    /// When the core was offered last.
    offered_ns: u64,
    /// Preemptions counted when last asked.
    preemptions: u64,
    /// How often in a row the core had been taken when that was asked, and when it was last.
    taken: u32,
    taken_ns: u64,
    /// When that was asked last, and the CPU time then; none since the last sleep.
    asked_ns: u64,
    asked_cpu_ns: Option<u64>,
    /// CPU time when it went to sleep last.
    slept_cpu_ns: u64,
    crowded_until_ns: u64,
    /// How long crowded was believed last.
    belief_ns: u64,
    shared_until_ns: u64,
    /// When another core was tried last.
    left_ns: u64,
}

impl<C: IdleClock> IdlePolicy<C> {
    /// A policy that starts spinning at this time, ns of the monotonic clock.
    pub fn new(clock: C, now: u64) -> Self {
        let cpu = clock.cpu_ns();
        IdlePolicy {
            deepest_sleep_ns: DEEPEST_SLEEP_NS,
            worked_ns: now,
            spin_ns: SPIN_NS,
            looked_ns: now,
            offered_ns: now,
            preemptions: clock.preemptions(),
            taken: 0,
            taken_ns: 0,
            asked_ns: now,
            asked_cpu_ns: Some(cpu),
            slept_cpu_ns: cpu,
            crowded_until_ns: 0,
            belief_ns: BELIEF_NS,
            shared_until_ns: 0,
            left_ns: 0,
            clock,
        }
    }

    /// Starts anew at this time, as if there had been work: another thread ran the NIC meanwhile.
    pub fn begin(&mut self, now: u64) {
        self.worked_ns = now;
        self.looked_ns = now;
        self.offered_ns = now;
        self.asked_ns = now;
        self.asked_cpu_ns = None;
        self.preemptions = self.clock.preemptions();
    }

    /// Call after every look. `now`: when the look began, ns of the clock; the look reads that anyway, and a
    /// second reading costs as much as an idle look. `worked`: it found something to do.
    pub fn after_look(&mut self, now: u64, worked: bool) -> Pause {
        let gap_ns = now.saturating_sub(self.looked_ns);
        self.looked_ns = now;
        if worked {
            self.learn(now);
            self.worked_ns = now;
        }
        if gap_ns >= LONG_NS && self.notice_absence(now) {
            return Pause::Leave;
        }
        let quiet_ns = now.saturating_sub(self.worked_ns);
        let pause = if now < self.crowded_until_ns {
            self.crowded(worked, quiet_ns)
        } else {
            self.uncrowded(now, worked, quiet_ns)
        };
        if let Pause::Sleep(time) = pause {
            // What passes asleep is no gap, and no absence.
            self.looked_ns = now.saturating_add(time.as_nanos() as u64);
            self.asked_cpu_ns = None;
        }
        pause
    }

    /// Spinning through a pause that is over has brought something, or would have, or neither.
    fn learn(&mut self, now: u64) {
        let pause_ns = now.saturating_sub(self.worked_ns);
        if pause_ns < self.spin_ns {
            return;
        }
        if pause_ns < SPIN_NS {
            self.spin_ns = (2 * self.spin_ns).min(SPIN_NS);
        } else if now >= self.crowded_until_ns.saturating_add(LONGEST_BELIEF_NS) {
            // Where a polling program was met, a peer's absence looks like a pause.
            self.spin_ns = (self.spin_ns / 2).max(SHORTEST_SPIN_NS);
        }
    }

    fn uncrowded(&mut self, now: u64, worked: bool, quiet_ns: u64) -> Pause {
        if quiet_ns >= self.spin_ns {
            return self.idle(quiet_ns);
        }
        let shares = now < self.shared_until_ns;
        // A NIC that shares its core yields at once when it finds nothing to do.
        let after = if shares && !worked { 0 } else { OFFER_NS };
        if now.saturating_sub(self.offered_ns) < after {
            return Pause::Spin;
        }
        self.offered_ns = now;
        if now.saturating_sub(self.asked_ns) >= OFFER_NS {
            self.absence(now);
        }
        Pause::Offer
    }

    /// For how long the core was taken since the last call, or since the last sleep. Work does not count.
    fn absence(&mut self, now: u64) -> u64 {
        let (preemptions, cpu) = (self.clock.preemptions(), self.clock.cpu_ns());
        let taken = preemptions != self.preemptions;
        let elapsed = now.saturating_sub(self.asked_ns);
        let worked = self.asked_cpu_ns.map(|before| cpu.saturating_sub(before));
        self.preemptions = preemptions;
        self.asked_ns = now;
        self.asked_cpu_ns = Some(cpu);
        if !taken {
            return 0;
        }
        let again = now.saturating_sub(self.taken_ns) < TAKEN_NS;
        self.taken = if again { self.taken.saturating_add(1) } else { 1 };
        self.taken_ns = now;
        if self.taken >= TAKEN {
            self.shared_until_ns = now + BELIEF_NS;
        }
        // Right after a sleep it is not known what was work.
        worked.map_or(0, |worked| elapsed.saturating_sub(worked))
    }

    fn crowded(&mut self, worked: bool, quiet_ns: u64) -> Pause {
        let cpu = self.clock.cpu_ns();
        // Includes what the last sleep and wake-up cost: the scheduler counts that too.
        let ran_ns = cpu.saturating_sub(self.slept_cpu_ns);
        if worked && ran_ns < CROWDED_RUN_NS {
            return Pause::Spin;
        }
        self.slept_cpu_ns = cpu;
        let share = Duration::from_nanos(ran_ns.clamp(SLEEP_NS, CROWDED_RUN_NS));
        match self.idle(quiet_ns) {
            Pause::Sleep(longer) if quiet_ns >= SPIN_NS => Pause::Sleep(longer.max(share)),
            _ => Pause::Sleep(share),
        }
    }

    /// A sixteenth of the time without work so far, while that is short.
    fn idle(&self, quiet_ns: u64) -> Pause {
        let longest = (quiet_ns / DEEPEST_SHARE).clamp(DEEP_SLEEP_NS, self.deepest_sleep_ns);
        Pause::Sleep(Duration::from_nanos((quiet_ns / 16).clamp(SLEEP_NS, longest)))
    }

    /// A gap was an absence if the kernel counted a preemption, and work otherwise. True: leave this core.
    fn notice_absence(&mut self, now: u64) -> bool {
        let absent_ns = self.absence(now);
        if now < self.crowded_until_ns || absent_ns < LONG_NS {
            return false;
        }
        // It was crowded until a moment ago: the other cores were no better.
        let again = now - self.crowded_until_ns < self.belief_ns;
        if !again && now.saturating_sub(self.left_ns) >= LEAVE_NS && self.clock.has_cores() {
            self.left_ns = now;
            return true;
        }
        self.belief_ns = if again { (2 * self.belief_ns).min(LONGEST_BELIEF_NS) } else { BELIEF_NS };
        self.crowded_until_ns = now + self.belief_ns;
        self.spin_ns = SPIN_NS;
        self.slept_cpu_ns = self.clock.cpu_ns();
        false
    }
}

#[cfg(test)]
mod tests;
