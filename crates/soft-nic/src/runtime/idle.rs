//! When the NIC's thread spins, and when and how long it sleeps. Pure; the clock is the caller's.
//!
//! Four regimes:
//! - *Spinning*, while there was work within the last two milliseconds and the core is ours: the fastest, and
//!   it costs other programs nothing while cores are free. To find out in time whether they are, a spinning
//!   NIC yields now and then: alone, that costs a fraction of a microsecond; otherwise the core was taken.
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

/// Spinning goes on so long after the last work.
const SPIN_NS: u64 = 2_000_000;
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

    fn uncrowded(&mut self, now: u64, worked: bool, quiet_ns: u64) -> Pause {
        if quiet_ns >= SPIN_NS {
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
        self.slept_cpu_ns = self.clock.cpu_ns();
        false
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    impl<C> IdlePolicy<C> {
        /// Whether other threads want the core.
        fn is_crowded(&self) -> bool {
            self.looked_ns < self.crowded_until_ns
        }
    }

    /// A thread's clocks, moved by the test.
    #[derive(Debug, Clone, Default)]
    struct Thread {
        now: Rc<Cell<u64>>,
        cpu: Rc<Cell<u64>>,
        preemptions: Rc<Cell<u64>>,
        pinned: Rc<Cell<bool>>,
    }

    impl Thread {
        fn run(&self, ns: u64) {
            self.now.set(self.now.get() + ns);
            self.cpu.set(self.cpu.get() + ns);
        }

        fn away(&self, ns: u64) {
            self.now.set(self.now.get() + ns);
        }

        fn preempted(&self, ns: u64) {
            self.preemptions.set(self.preemptions.get() + 1);
            self.away(ns);
        }
    }

    impl IdleClock for Thread {
        fn cpu_ns(&self) -> u64 {
            self.cpu.get()
        }

        fn preemptions(&self) -> u64 {
            self.preemptions.get()
        }

        fn has_cores(&self) -> bool {
            !self.pinned.get()
        }
    }

    fn policy() -> (Thread, IdlePolicy<Thread>) {
        let thread = Thread::default();
        thread.pinned.set(true);
        thread.run(1_000_000_000);
        let policy = IdlePolicy::new(thread.clone(), thread.now.get());
        (thread, policy)
    }

    fn sleep_ns(pause: Pause) -> u64 {
        match pause {
            Pause::Spin | Pause::Offer | Pause::Leave => 0,
            Pause::Sleep(time) => time.as_nanos() as u64,
        }
    }

    /// Looks without work for `ns`, sleeping as told; returns the last pause.
    fn quiet(thread: &Thread, policy: &mut IdlePolicy<Thread>, ns: u64) -> Pause {
        let end = thread.now.get() + ns;
        loop {
            thread.run(500);
            let pause = policy.after_look(thread.now.get(), false);
            thread.away(sleep_ns(pause));
            if thread.now.get() >= end {
                return pause;
            }
        }
    }

    #[test]
    fn alone_it_spins_for_two_milliseconds_and_then_sleeps_longer_and_longer() {
        let (thread, mut policy) = policy();
        policy.after_look(thread.now.get(), true);
        assert_eq!(sleep_ns(quiet(&thread, &mut policy, 1_900_000)), 0);
        let short = sleep_ns(quiet(&thread, &mut policy, 500_000));
        assert!((10_000..300_000).contains(&short), "{short} ns after 2.4 ms");
        let longer = sleep_ns(quiet(&thread, &mut policy, 20_000_000));
        assert!(longer > 4 * short, "{longer} ns after 22 ms");
        let after_a_second = sleep_ns(quiet(&thread, &mut policy, 1_000_000_000));
        assert!((1_800_000..2_100_000).contains(&after_a_second), "{after_a_second} ns after 1 s");
        let after_three = sleep_ns(quiet(&thread, &mut policy, 2_000_000_000));
        assert!((5_900_000..6_200_000).contains(&after_three), "{after_three} ns after 3 s");
        assert_eq!(sleep_ns(quiet(&thread, &mut policy, 8_000_000_000)), 10_000_000);
        policy.after_look(thread.now.get(), true);
        assert_eq!(sleep_ns(quiet(&thread, &mut policy, 100_000)), 0, "work ends the idling at once");
    }

    /// Looks without work until the core is offered, which somebody takes for `ns`.
    fn taken(thread: &Thread, policy: &mut IdlePolicy<Thread>, ns: u64) {
        while policy.after_look(thread.now.get(), false) != Pause::Offer {
            thread.run(500);
        }
        thread.preempted(ns);
    }

    #[test]
    fn spinning_for_nothing_it_offers_its_core() {
        let (thread, mut policy) = policy();
        let mut offers = 0;
        for _ in 0..3_000 {
            thread.run(500);
            offers += u64::from(policy.after_look(thread.now.get(), false) == Pause::Offer);
        }
        assert!((25..=30).contains(&offers), "{offers} offers in 1.5 ms");
    }

    #[test]
    fn a_core_that_is_taken_and_given_back_is_shared_at_every_empty_look() {
        // Shorter and longer than the time between two offers.
        for absence in [8_000, 60_000] {
            let (thread, mut policy) = policy();
            policy.after_look(thread.now.get(), true);
            for _ in 0..6 {
                taken(&thread, &mut policy, absence);
            }
            for _ in 0..100 {
                thread.run(500);
                assert_eq!(policy.after_look(thread.now.get(), false), Pause::Offer, "{absence}");
            }
            // With work it goes on for a while.
            let mut offers = 0;
            for _ in 0..1_000 {
                thread.run(500);
                offers += u64::from(policy.after_look(thread.now.get(), true) == Pause::Offer);
            }
            assert!((9..=11).contains(&offers), "{offers} offers in 0.5 ms of work");
            assert!(!policy.is_crowded());
            thread.run(20_000_000);
            policy.after_look(thread.now.get(), true);
            thread.run(500);
            assert_eq!(policy.after_look(thread.now.get(), false), Pause::Spin, "nobody came any more");
        }
    }

    #[test]
    fn an_absence_now_and_then_is_not_sharing() {
        let (thread, mut policy) = policy();
        for _ in 0..100 {
            policy.after_look(thread.now.get(), true);
            taken(&thread, &mut policy, 30_000);
            quiet(&thread, &mut policy, 900_000);
        }
        policy.after_look(thread.now.get(), true);
        thread.run(500);
        assert_eq!(policy.after_look(thread.now.get(), false), Pause::Spin);
        assert!(!policy.is_crowded());
    }

    #[test]
    fn a_long_copy_with_a_moment_s_absence_is_no_polling_program() {
        let (thread, mut policy) = policy();
        for _ in 0..100 {
            policy.after_look(thread.now.get(), true);
            thread.run(5_000_000);
            thread.preempted(3_000);
            assert_ne!(policy.after_look(thread.now.get(), true), Pause::Leave);
            assert!(!policy.is_crowded());
        }
    }

    #[test]
    fn what_somebody_else_did_meanwhile_is_neither_quiet_nor_an_absence() {
        let (thread, mut policy) = policy();
        policy.after_look(thread.now.get(), true);
        thread.preempted(10_000_000_000);
        policy.begin(thread.now.get());
        thread.run(500);
        let pause = policy.after_look(thread.now.get(), false);
        assert!(matches!(pause, Pause::Spin | Pause::Offer), "{pause:?}");
        assert!(!policy.is_crowded());
    }

    #[test]
    fn between_polling_programs_it_leaves_once_in_seconds() {
        let (thread, mut policy) = policy();
        thread.pinned.set(false);
        let mut left = 0;
        let end = thread.now.get() + 5_000_000_000;
        while thread.now.get() < end {
            thread.run(300);
            match policy.after_look(thread.now.get(), true) {
                Pause::Leave => left += 1,
                Pause::Sleep(time) => thread.away(time.as_nanos() as u64),
                // A thread that spins long enough meets the scheduler's tick.
                _ if policy.is_crowded() => {}
                _ => thread.preempted(4_000_000),
            }
        }
        assert_eq!(left, 1);
    }

    #[test]
    fn it_leaves_the_core_of_a_polling_program_once_and_then_stays() {
        let (thread, mut policy) = policy();
        thread.pinned.set(false);
        policy.after_look(thread.now.get(), true);
        thread.preempted(4_000_000);
        assert_eq!(policy.after_look(thread.now.get(), true), Pause::Leave);
        assert!(!policy.is_crowded());
        thread.preempted(4_000_000);
        assert_ne!(policy.after_look(thread.now.get(), true), Pause::Leave);
        assert!(policy.is_crowded());
    }

    #[test]
    fn long_work_is_no_absence() {
        let (thread, mut policy) = policy();
        for _ in 0..100 {
            thread.run(300_000);
            policy.after_look(thread.now.get(), true);
        }
        assert!(!policy.is_crowded());
    }

    #[test]
    fn a_preemption_makes_it_crowded_and_time_makes_it_try_again() {
        let (thread, mut policy) = policy();
        policy.after_look(thread.now.get(), true);
        thread.preempted(4_000_000);
        assert_ne!(policy.after_look(thread.now.get(), false), Pause::Spin);
        assert!(policy.is_crowded());
        quiet(&thread, &mut policy, 15_000_000);
        assert!(policy.is_crowded());
        quiet(&thread, &mut policy, 10_000_000);
        assert!(!policy.is_crowded());
        // It proves true again: believed twice as long.
        policy.after_look(thread.now.get(), true);
        taken(&thread, &mut policy, 4_000_000);
        policy.after_look(thread.now.get(), false);
        quiet(&thread, &mut policy, 35_000_000);
        assert!(policy.is_crowded());
        quiet(&thread, &mut policy, 10_000_000);
        assert!(!policy.is_crowded());
    }

    #[test]
    fn crowded_it_sleeps_at_least_as_long_as_it_ran() {
        let (thread, mut policy) = policy();
        policy.after_look(thread.now.get(), true);
        thread.preempted(4_000_000);
        thread.away(sleep_ns(policy.after_look(thread.now.get(), true)));
        let (mut ran, mut slept) = (0, 0);
        for step in 0..10_000u64 {
            // Looks of 3 to 40 µs, two of three with work.
            let ns = 3_000 + step * 7_919 % 37_000;
            thread.run(ns);
            ran += ns;
            let sleep = sleep_ns(policy.after_look(thread.now.get(), step % 3 != 0));
            assert!(sleep <= 300_000, "{sleep} ns");
            thread.away(sleep);
            slept += sleep;
            if !policy.is_crowded() {
                thread.preempted(4_000_000);
            }
        }
        assert!(slept * 100 >= ran * 95, "ran {ran} ns, slept {slept} ns");
        assert!(slept <= ran * 3 / 2, "ran {ran} ns, slept {slept} ns");
    }

    #[test]
    fn sleeping_is_never_taken_for_an_absence() {
        let (thread, mut policy) = policy();
        for _ in 0..1_000 {
            quiet(&thread, &mut policy, 3_000_000);
            // The timer is late, and something else ran meanwhile; that is what sleeping is for.
            thread.away(50_000);
            assert!(!policy.is_crowded());
        }
    }
}
