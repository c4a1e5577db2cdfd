//! The order in which the device makes a payload visible: what it asks of the link, and what a poller sees.
//!
//! `link/tests/visibility.rs` shows that each way of a payload keeps the asked order; here the device asks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mlx5_device::command::RegMr;
use mlx5_device::commands::*;
use mlx5_device::rereg_change;
use mlx5_layout::SendOpcode;
use mlx5_layout::umr::right;
use roce::ServiceType;
use soft_nic::testing::{Block, Driver, Opening, QpShape, Setup, WorkRequest, block};

use crate::operations::ALL;
use crate::withdrawn::{LONG, TwoNics, run};

/// `IBV_ACCESS_RELAXED_ORDERING`.
const RELAXED: u32 = 1 << 20;
/// `IBV_ACCESS_MW_BIND`.
const BIND: u32 = 1 << 4;

/// A short one, a long one, and one of several records and packets.
const LENGTHS: [u32; 3] = [100, 40_000, 200_000];

/// Bytes that the device let the link copy in any order, for one WRITE, one SEND and one READ of each length.
fn relaxed_bytes(option: bool, access: u32) -> [u64; 3] {
    let name = format!("order-{option}-{access}");
    let mut driver = Driver::new(Setup::new(&name).with(|c| c.relaxed_ordering = option));
    let (a, b) = driver.pair(QpShape::default());
    let (from, to) = (driver.region(1 << 18, ALL), driver.region(1 << 18, ALL | access));
    [SendOpcode::RdmaWrite, SendOpcode::Send, SendOpcode::RdmaRead].map(|opcode| {
        let before = driver.nic.link().counters().relaxed_bytes;
        for len in LENGTHS {
            driver.post_receive(b, &[to.pointer(0, len)]);
            let request = match opcode {
                SendOpcode::RdmaWrite => WorkRequest::write(&from, 0, len, &to, 0),
                SendOpcode::Send => WorkRequest::send(&from, 0, len),
                _ => WorkRequest::read(&to, 0, len, &from, 0),
            };
            driver.post(a, &request).settle();
            let done = driver.poll_send(a).expect("a completion");
            assert!(!done.opcode().expect("a known opcode").is_error(), "{name}: {opcode:?} of {len}");
        }
        driver.nic.link().counters().relaxed_bytes - before
    })
}

#[test]
fn bytes_of_a_write_are_ordered_unless_the_option_or_the_region_lifts_it() {
    let all = LENGTHS.iter().map(|len| u64::from(*len)).sum();
    // Only a WRITE may be polled for. A region's own flag is honoured where a peer writes to it by its key.
    for (name, option, access, wanted) in [
        ("by default", false, 0, [0, all, all]),
        ("a region with relaxed ordering", false, RELAXED, [all, all, all]),
        ("the option", true, 0, [all, all, all]),
        ("both", true, RELAXED, [all, all, all]),
    ] {
        assert_eq!(relaxed_bytes(option, access), wanted, "{name}: WRITE, SEND, READ");
    }
}

#[test]
fn a_window_orders_bytes_as_its_region_does() {
    for (access, wanted) in [(0, 0), (RELAXED, 40_000)] {
        let mut driver = Driver::new(Setup::new(&format!("order-window-{access}")));
        let (a, b) = driver.pair(QpShape::default());
        let (from, to) = (driver.region(1 << 16, ALL), driver.region(1 << 16, ALL | BIND | access));
        let window = driver.window(1);
        let opening = Opening { region: &to, offset: 0, len: 1 << 16, rights: right::REMOTE_WRITE };
        driver.post(b, &driver.bind(b, &window, 7, &opening)).settle();
        let write = WorkRequest::write(&from, 0, 40_000, &to, 0).through(window.key(7));
        driver.post(a, &write).settle();
        for qp in [b, a] {
            let done = driver.poll_send(qp).expect("a completion");
            assert!(!done.opcode().expect("a known opcode").is_error(), "{access:#x}");
        }
        assert_eq!(driver.nic.link().counters().relaxed_bytes, wanted, "{access:#x}");
    }
}

#[test]
fn the_rest_of_a_write_is_ordered_as_its_region_says_by_then() {
    let mut nics = TwoNics::new("order-rest", ServiceType::Rc, |_| ());
    let (a, _) = nics.pair;
    let (from, to) = (nics.near.region(LONG as usize, ALL), nics.far.region(LONG as usize, ALL | RELAXED));
    nics.near.post(a, &WorkRequest::write(&from, 0, LONG, &to, 0));
    run(&mut nics.near);
    // As much as a ring holds has arrived.
    run(&mut nics.far);
    let relaxed = |nics: &mut TwoNics| nics.far.nic.link().counters().relaxed_bytes;
    let before = relaxed(&mut nics);
    assert!((1..u64::from(LONG)).contains(&before), "{before} bytes have arrived");
    let (start, pd) = (to.block.address(), nics.far.pd);
    let (mr, flags, length) = (to.handle, rereg_change::ACCESS, LONG.into());
    let ordered = RegMr { start, length, iova: start, pd, access: ALL };
    nics.far.nic.rereg_mr(nics.far.context, mr, flags, &ordered).expect("other rights");
    nics.settle();
    let done = nics.near.poll_send(a).expect("a completion");
    assert!(!done.opcode().expect("a known opcode").is_error());
    assert_eq!(relaxed(&mut nics), before, "bytes that came after it are ordered");
}

/// One series of WRITEs to slots in turn; none is overwritten before the reader has checked it.
#[derive(Clone, Copy)]
struct Series {
    name: &'static str,
    /// 32-bit words of one message.
    words: usize,
    count: u64,
    /// In the WQE, not by pointer.
    inline: bool,
}

impl Series {
    fn slots(&self) -> u64 {
        ((1 << 16) / self.words as u64).clamp(4, 512)
    }
}

/// Longest wait of either thread for the other: a crowded machine is slow, a lost message never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Spins on the last word of each message, of every other one on some word first, and checks all words before
/// it. Returns how many were torn, or `None` when one never came.
fn watch(series: Series, memory: &Block, checked: &AtomicU64) -> Option<u64> {
    let mut torn = 0;
    for i in 0..series.count {
        let at = (i % series.slots()) as usize * series.words;
        let word = |n: usize| memory.word(4 * (at + n));
        // Another word each time: inside one process every word is ordered.
        let (some, last) = ((i as usize * 7919) % series.words, series.words - 1);
        for watched in if i % 2 == 0 { [last, last] } else { [some, last] } {
            let begun = Instant::now();
            let mut looks = 0u32;
            while word(watched).load(Ordering::Acquire) != i as u32 + 1 {
                looks += 1;
                if looks.is_multiple_of(20_000) {
                    std::thread::yield_now();
                    if begun.elapsed() > PATIENCE {
                        return None;
                    }
                }
                std::hint::spin_loop();
            }
            // Downwards: the word before the watched one is likeliest late. A pair of words is one store.
            let whole = (0..watched & !1).rev().all(|n| word(n).load(Ordering::Relaxed) == i as u32 + 1);
            torn += u64::from(!whole);
        }
        checked.store(i + 1, Ordering::Release);
    }
    Some(torn)
}

/// Says that the reader is done, also when it panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Posts the series and runs the NIC, until the reader is done.
fn write(
    series: Series,
    driver: &mut Driver<soft_nic::dma::Host>,
    memory: &Block,
    checked: &AtomicU64,
    done: &AtomicBool,
) {
    let (a, _) = driver.pair(QpShape::default());
    let bytes = 4 * series.words;
    let to = driver.register(memory, memory.len() as u64, memory.address(), ALL).expect("memory");
    let from = driver.region(bytes, ALL);
    let mut sent = 0;
    while !done.load(Ordering::Acquire) {
        if sent < series.count && sent < checked.load(Ordering::Acquire) + series.slots() {
            let value = sent as u32 + 1;
            let at = (sent % series.slots()) * bytes as u64;
            let write = WorkRequest::new(SendOpcode::RdmaWrite).remote(&to, at);
            let write = if series.inline {
                write.inline(&value.to_ne_bytes().repeat(series.words))
            } else {
                (0..series.words).for_each(|n| from.block.word(4 * n).store(value, Ordering::Relaxed));
                write.pointer(&from, 0, bytes as u32)
            };
            driver.post(a, &write);
            // The source is filled anew for the next one, so this one must be through.
            let begun = Instant::now();
            while driver.poll_send(a).is_none() {
                driver.poll();
                // The reader timed out, and its verdict is what fails. With all checked, it was only early.
                if done.load(Ordering::Acquire) && checked.load(Ordering::Acquire) < series.count {
                    return;
                }
                let waited = begun.elapsed();
                assert!(waited < PATIENCE, "{}: no completion of WRITE {sent} in {PATIENCE:?}", series.name);
            }
            sent += 1;
        } else {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_program_that_polls_for_a_write_never_sees_a_later_word_first() {
    for series in [
        Series { name: "64 B in the WQE", words: 16, count: 300_000, inline: true },
        Series { name: "1000 B in the record", words: 250, count: 50_000, inline: false },
        Series { name: "64 KiB", words: 16_384, count: 1_000, inline: false },
    ] {
        let mut driver = Driver::new(Setup::new(&format!("polled-{}", series.words)));
        let memory = block(series.slots() as usize * 4 * series.words);
        let (checked, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let torn = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let _done = Done(&done);
                watch(series, &memory, &checked)
            });
            write(series, &mut driver, &memory, &checked, &done);
            reader.join().expect("the reader")
        });
        assert_eq!(torn, Some(0), "{}: torn of {}", series.name, series.count);
        assert_eq!(driver.counters().completed(SendOpcode::RdmaWrite), series.count, "{}", series.name);
    }
}
