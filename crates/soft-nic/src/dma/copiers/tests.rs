//! Shared copies: every slice once, none left behind, whatever fails, stops, forks or panics.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use mlx5_device::memory::{Order, Segment};

use super::super::Host;
use super::super::testing::{Guarded, Stop};
use super::*;
use crate::os::testing::true_in_fork_child;

/// Tests with helpers run one by one, the link's too: in parallel they would copy alone and show nothing.
pub(crate) static ONE: Mutex<()> = Mutex::new(());

fn segment(bytes: &[u8]) -> Segment {
    Segment { addr: bytes.as_ptr() as u64, len: bytes.len() as u64 }
}

/// Calls `share` until a helper took part, since a fast sharing thread does all by itself. At most 30 s.
fn until_helped(mut share: impl FnMut()) {
    let before = HELPERS.get().helped.load(Ordering::Relaxed);
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        share();
        if HELPERS.get().helped.load(Ordering::Relaxed) > before {
            return;
        }
        assert!(Instant::now() < end, "no helper took a slice in 30 s");
    }
}

#[test]
fn every_slice_is_copied_once_and_nothing_runs_afterwards() {
    let _one = ONE.lock();
    for helpers in 0..=MAX_COPY_THREADS {
        for slices in [0, 1, 2, 3, 17, 300] {
            let counts: Vec<AtomicU32> = (0..slices).map(|_| AtomicU32::new(0)).collect();
            let inside = AtomicU32::new(0);
            let round = || {
                let copy = |slice: u32| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    counts[slice as usize].fetch_add(1, Ordering::SeqCst);
                    // Long enough that helpers get some.
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    true
                };
                assert!(Copiers::new(helpers).share(slices, &copy), "{helpers} helpers, {slices} slices");
                assert_eq!(inside.load(Ordering::SeqCst), 0, "{helpers} helpers, {slices} slices");
                let wrong = counts.iter().filter(|count| count.swap(0, Ordering::SeqCst) != 1).count();
                assert_eq!(wrong, 0, "{helpers} helpers, {slices} slices");
            };
            if helpers > 0 && slices > 2 { until_helped(round) } else { round() }
        }
    }
}

#[test]
fn a_slice_that_fails_ends_the_copy_and_all_before_it_are_copied() {
    let _one = ONE.lock();
    const SLICES: u32 = 2000;
    let me = std::thread::current().id();
    for (bad, by_helper) in [(0, false), (1, true), (5, false), (6, true), (63, true), (SLICES - 1, false)] {
        let end = Instant::now() + Duration::from_secs(30);
        let failed_there = AtomicBool::new(false);
        // Which thread takes which slice is open.
        while !failed_there.load(Ordering::SeqCst) {
            assert!(
                Instant::now() < end,
                "slice {bad} never fell to the thread it should, helper {by_helper}"
            );
            let seen: Vec<AtomicU32> = (0..SLICES).map(|_| AtomicU32::new(0)).collect();
            let copy = |slice: u32| {
                seen[slice as usize].fetch_add(1, Ordering::SeqCst);
                if slice == bad {
                    let there = (std::thread::current().id() != me) == by_helper;
                    failed_there.fetch_or(there, Ordering::SeqCst);
                    return false;
                }
                // Long enough that a slice that fails ends before all are copied.
                std::thread::sleep(Duration::from_micros(20));
                true
            };
            assert!(!Copiers::new(2).share(SLICES, &copy), "slice {bad}");
            let copied = seen.iter().filter(|count| count.load(Ordering::SeqCst) > 0).count();
            assert!(copied < SLICES as usize || bad == SLICES - 1, "slice {bad}: the copy went on");
            assert!(
                seen[..=bad as usize].iter().all(|count| count.load(Ordering::SeqCst) == 1),
                "slice {bad}"
            );
            assert!(seen.iter().all(|count| count.load(Ordering::SeqCst) <= 1), "slice {bad}");
        }
    }
}

#[test]
fn a_helper_that_panics_fails_the_copy_and_lives_on() {
    let _one = ONE.lock();
    let me = std::thread::current().id();
    let mut failed = false;
    let end = Instant::now() + Duration::from_secs(30);
    while !failed {
        assert!(Instant::now() < end, "no helper took a slice in 30 s");
        let copy = |_: u32| {
            std::thread::yield_now();
            // Not `panic!`, whose hook would write to the test's output.
            if std::thread::current().id() != me {
                std::panic::resume_unwind(Box::new("a planted one"));
            }
            true
        };
        failed = !Copiers::new(1).share(200, &copy);
    }
    until_helped(|| {
        let copy = |_: u32| {
            std::thread::yield_now();
            true
        };
        assert!(Copiers::new(1).share(200, &copy));
    });
}

#[test]
fn a_thread_that_unwinds_leaves_no_helper_behind() {
    let _one = ONE.lock();
    let me = std::thread::current().id();
    let inside = AtomicU32::new(0);
    until_helped(|| {
        let mine = AtomicU32::new(0);
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let copy = |_: u32| {
                inside.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_micros(100));
                inside.fetch_sub(1, Ordering::SeqCst);
                if std::thread::current().id() == me && mine.fetch_add(1, Ordering::SeqCst) == 3 {
                    std::panic::resume_unwind(Box::new("a planted one"));
                }
                true
            };
            Copiers::new(2).share(MOST_SLICES, &copy)
        }));
        assert!(unwound.is_err());
        assert_eq!(inside.load(Ordering::SeqCst), 0);
    });
    // The turn was given back: else all would be copied here.
    until_helped(|| {
        let yielding = |_: u32| {
            std::thread::yield_now();
            true
        };
        assert!(Copiers::new(2).share(200, &yielding));
    });
}

#[test]
fn the_second_thread_copies_alone() {
    let _one = ONE.lock();
    let me = std::thread::current().id();
    let end = Instant::now() + Duration::from_secs(30);
    let (asked, alone) = (AtomicU32::new(0), AtomicU32::new(0));
    // The first slice that is ours; helpers may be quicker with all of them.
    while asked.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < end, "no slice was ours in 30 s");
        let outer = |_: u32| {
            if std::thread::current().id() == me && asked.fetch_add(1, Ordering::SeqCst) == 0 {
                let inner = |_: u32| {
                    std::thread::yield_now();
                    std::thread::current().id() == me
                };
                alone.fetch_add(u32::from(Copiers::new(2).share(50, &inner)), Ordering::SeqCst);
            }
            true
        };
        assert!(Copiers::new(2).share(4, &outer));
    }
    assert_eq!(alone.into_inner(), 1);
}

#[test]
fn a_fork_child_shares_with_helpers_of_its_own_whatever_its_parent_was_at() {
    let _one = ONE.lock();
    let me = std::thread::current().id();
    let forked = Mutex::new(None);
    // In the middle of a copy: the child's word says that slices are under way, of threads that it has not.
    let copy = |slice: u32| {
        if slice == 0 && std::thread::current().id() == me {
            let child = true_in_fork_child(|| {
                let shares = || {
                    let copied = AtomicU32::new(0);
                    let copy = |_: u32| {
                        std::thread::yield_now();
                        copied.fetch_add(1, Ordering::SeqCst);
                        true
                    };
                    assert!(Copiers::new(1).share(100, &copy));
                    assert_eq!(copied.load(Ordering::SeqCst), 100);
                };
                until_helped(shares);
                true
            });
            *forked.lock().unwrap() = Some(child);
        }
        std::thread::sleep(Duration::from_millis(1));
        true
    };
    while forked.lock().unwrap().is_none() {
        assert!(Copiers::new(1).share(20, &copy));
    }
    assert_eq!(forked.into_inner().unwrap(), Some(true));
}

#[test]
fn the_cuts_of_a_copy_are_its_bytes_in_order_at_pages_of_the_destination() {
    for helpers in 1..=MAX_COPY_THREADS {
        for len in [
            SHARED_FROM - 1024,
            SHARED_FROM,
            SHARED_FROM + 1,
            200_001,
            1 << 20,
            (8 << 20) + 4095,
            u64::from(u32::MAX),
        ] {
            for to in [0x10_0000, 0x10_0001, 0x10_0fff] {
                let cut = Cut::new(Copiers::new(helpers), to, len);
                assert!((2..=MOST_SLICES).contains(&cut.count()), "{cut:?}");
                let mut end = 0;
                for slice in 0..cut.count() {
                    let range = cut.range(slice);
                    assert!(range.start == end && range.end > end, "{cut:?}, slice {slice}: {range:?}");
                    assert!(
                        range.end == len || (to + range.end).is_multiple_of(PAGE),
                        "{cut:?}, slice {slice}"
                    );
                    end = range.end;
                }
                assert_eq!(end, len, "{cut:?}");
            }
        }
    }
}

#[test]
fn helpers_are_at_most_as_many_as_a_process_may_have() {
    assert_eq!(Copiers::new(200).helpers(), MAX_COPY_THREADS);
}

fn helped_by(helpers: u8) -> Host {
    Host::new().unwrap().helped_by(Copiers::new(helpers))
}

#[test]
fn what_helpers_have_a_part_in_begins_at_a_length_and_needs_helpers() {
    for (helpers, len, helped) in
        [(0, 1 << 30, false), (1, SHARED_FROM - 1, false), (1, SHARED_FROM, true), (4, 1 << 30, true)]
    {
        assert_eq!(helped_by(helpers).is_helped(len), helped, "{helpers} helpers, {len} bytes");
    }
}

#[test]
fn bytes_of_any_cut_and_length_arrive_whole_and_in_place() {
    let _one = ONE.lock();
    let source: Vec<u8> = (0..400_000u32).map(|i| (i * 7 % 251) as u8 ^ (i >> 12) as u8).collect();
    let cut = |bytes: &[u8], n: usize| bytes.chunks(bytes.len().div_ceil(n)).map(segment).collect::<Vec<_>>();
    for helpers in [1, 2, 4] {
        let host = helped_by(helpers);
        for (i, len) in
            [SHARED_FROM as usize, 65_537 + 1024, 131_072, 200_001, 400_000].into_iter().enumerate()
        {
            for (ours, theirs) in [(1, 1), (3, 7), (60, 1), (1, 60)] {
                let order = if (i + ours) % 2 == 0 { Order::Increasing } else { Order::Relaxed };
                // A border at either end that must stay.
                let target = vec![0xee_u8; len + 64];
                let (to, from) = (cut(&target[32..32 + len], ours), cut(&source[..len], theirs));
                host.copy(&to, &from, len as u64, order).unwrap();
                let what = format!("{helpers} helpers, {len} bytes, {ours} and {theirs} pieces");
                assert!(target[32..32 + len] == source[..len], "{what}");
                assert!(target[..32].iter().chain(&target[32 + len..]).all(|byte| *byte == 0xee), "{what}");
            }
        }
    }
    let target = vec![0u8; source.len()];
    let (to, from) = ([segment(&target)], [segment(&source)]);
    until_helped(|| helped_by(2).copy(&to, &from, to[0].len, Order::Increasing).unwrap());
}

#[test]
fn a_side_that_is_too_short_is_a_fault_and_not_a_copy_of_what_lies_behind() {
    let _one = ONE.lock();
    let (long, short) = (vec![7u8; 300_000], vec![9u8; 200_000]);
    let host = helped_by(2);
    for (to, from) in [(&long, &short), (&short, &long)] {
        let copied = host.copy(&[segment(to)], &[segment(from)], long.len() as u64, Order::Increasing);
        assert!(copied.is_err(), "{} bytes from {}", to.len(), from.len());
    }
}

#[test]
fn a_fault_on_either_side_in_any_slice_is_the_first_by_address() {
    let _one = ONE.lock();
    const LEN: u64 = 512 << 10;
    let whole = vec![7u8; LEN as usize];
    for helpers in [0, 1, 3] {
        let host = helped_by(helpers);
        // Bytes before the hole: in the first slice, at a slice's end, in the middle, within the last KiB.
        for good in [0, 4096, 65_536, 300_000 & !63, LEN - 512] {
            let hole = Guarded::new(good.max(64) as usize).unwrap();
            let start = hole.address() + if good == 0 { hole.len() as u64 } else { 0 };
            let good = if good == 0 { 0 } else { hole.len() as u64 };
            let broken = [Segment { addr: start, len: LEN }];
            for (to, from) in [(&[segment(&whole)], &broken), (&broken, &[segment(&whole)])] {
                let fault = host.copy(to, from, LEN, Order::Increasing).unwrap_err();
                assert_eq!(fault.addr, start + good, "{helpers} helpers, {good} bytes before the hole");
            }
        }
    }
    // Two holes, and the one in front is told, however the slices are dealt out.
    let (first, second) = (Guarded::new(150_016).unwrap(), Guarded::new(100_032).unwrap());
    let broken =
        [&first, &second].map(|hole| Segment { addr: hole.address(), len: hole.len() as u64 + 4096 });
    let len = broken[0].len + broken[1].len;
    let host = helped_by(3);
    for _ in 0..50 {
        let fault = host.copy(&[segment(&whole)], &broken, len, Order::Increasing).unwrap_err();
        assert_eq!(fault.addr, first.address() + first.len() as u64);
    }
}

#[test]
fn a_shared_copy_shows_its_last_word_when_all_is_there() {
    let _one = ONE.lock();
    const WORDS: usize = 40_000;
    let memory: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    let to = [Segment { addr: memory.as_ptr() as u64, len: 8 * WORDS as u64 }];
    for helpers in [1, 3] {
        let host = helped_by(helpers);
        memory.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let (torn, stop, checked) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
        let before = HELPERS.get().helped.load(Ordering::Relaxed);
        let end = Instant::now() + Duration::from_secs(30);
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            scope.spawn(|| {
                let mut last = 0;
                while !stop.load(Ordering::Relaxed) {
                    let seen = memory[WORDS - 1].load(Ordering::Acquire);
                    if seen == last {
                        std::thread::yield_now();
                        continue;
                    }
                    last = seen;
                    let late = memory.iter().any(|word| word.load(Ordering::Relaxed) < seen);
                    torn.fetch_add(u64::from(late), Ordering::Relaxed);
                    checked.store(seen, Ordering::Release);
                }
            });
            for i in 1.. {
                if i > 60 && HELPERS.get().helped.load(Ordering::Relaxed) > before {
                    break;
                }
                assert!(Instant::now() < end, "no helper took a slice in 30 s");
                let source = vec![i; WORDS];
                let from = [Segment { addr: source.as_ptr() as u64, len: 8 * WORDS as u64 }];
                host.copy(&to, &from, 8 * WORDS as u64, Order::Increasing).unwrap();
                while checked.load(Ordering::Acquire) < i {
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(torn.into_inner(), 0, "{helpers} helpers");
    }
}
