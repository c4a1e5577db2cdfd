//! The idle policy on the clocks of a thread that the test moves.

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

#[test]
fn after_long_pauses_it_spins_less_and_after_short_ones_as_long_as_at_first() {
    let (thread, mut policy) = policy();
    // No polling program was met lately.
    thread.away(LONGEST_BELIEF_NS);
    policy.begin(thread.now.get());
    let spun_ns = |policy: &mut IdlePolicy<Thread>, pause_ns| {
        policy.after_look(thread.now.get(), true);
        let (begin, mut spun) = (thread.now.get(), 0);
        while thread.now.get() < begin + pause_ns {
            thread.run(500);
            let pause = sleep_ns(policy.after_look(thread.now.get(), false));
            spun += if pause == 0 { 500 } else { 0 };
            thread.away(pause);
        }
        spun
    };
    let long: Vec<u64> = (0..6).map(|_| spun_ns(&mut policy, 16_000_000) / 1000).collect();
    assert_eq!(long, [1999, 999, 499, 249, 124, 124]);
    assert_eq!(spun_ns(&mut policy, 100_000), 100_000, "a request's own steps are shorter");
    let short: Vec<u64> = (0..5).map(|_| spun_ns(&mut policy, 1_500_000) / 1000).collect();
    assert_eq!(short, [124, 249, 499, 999, 1500]);
}

#[test]
fn pauses_beside_a_polling_program_teach_nothing() {
    let (thread, mut policy) = policy();
    policy.after_look(thread.now.get(), true);
    thread.preempted(4_000_000);
    policy.after_look(thread.now.get(), true);
    assert!(policy.is_crowded());
    for _ in 0..100 {
        quiet(&thread, &mut policy, 4_000_000);
        policy.after_look(thread.now.get(), true);
    }
    assert!(!policy.is_crowded());
    assert_eq!(sleep_ns(quiet(&thread, &mut policy, 1_900_000)), 0, "it still spins");
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
