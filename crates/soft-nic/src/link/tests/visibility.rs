//! What a program that polls memory sees of a WRITE: bytes in increasing addresses, the last word last.
//!
//! A reader spins on the last word of each message (or one in the middle), then checks all the words before
//! it. Messages go to slots in turn, and none is overwritten before the reader has checked it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use measure::need::is_full;
use mlx5_device::carrier::Inbound as _;
use mlx5_device::carrier::{Carrier as _, Disposition, PathAddress, Payload, Position, Unsent};
use mlx5_device::memory::{Order, Segment};
use roce::Opcode;

use super::processes::{MTU, Peer, Target, child_config, config, connect, fabric_name, go_on, request};
use crate::dma::Copiers;
use crate::link::{Inbound, Link, LinkConfig, MAX_INLINE};

/// One series of messages.
#[derive(Clone, Copy)]
struct Series {
    name: &'static str,
    words: usize,
    count: u64,
    /// Which word the reader spins on.
    watch: Watch,
    order: Order,
    /// From another process, or from this one.
    two_processes: bool,
    /// Threads at either end that help to copy long payloads.
    helpers: u8,
}

#[derive(Clone, Copy, PartialEq)]
enum Watch {
    Last,
    /// Another word for each message.
    Any,
}

impl Series {
    fn slots(&self) -> usize {
        ((1 << 18) / self.words).clamp(4, 4096)
    }
}

/// Checks every message as soon as it shows; returns how many were torn.
fn read(series: Series, memory: &[AtomicU64], checked: &AtomicU64) -> u64 {
    let mut torn = 0;
    for i in 0..series.count {
        let at = (i as usize % series.slots()) * series.words;
        let message = &memory[at..at + series.words];
        let watched = match series.watch {
            Watch::Last => series.words - 1,
            Watch::Any => (i as usize * 7919) % series.words,
        };
        for watched in [watched, series.words - 1] {
            let mut looks = 0u32;
            while message[watched].load(Ordering::Acquire) != i + 1 {
                looks += 1;
                // On crowded cores the NIC may need ours; rarely, or nothing would be seen in the making.
                if looks.is_multiple_of(20_000) {
                    std::thread::yield_now();
                }
                std::hint::spin_loop();
            }
            // Downwards: the word before the watched one is the likeliest to be late.
            let whole = message[..watched].iter().rev().all(|word| word.load(Ordering::Relaxed) == i + 1);
            torn += u64::from(!whole);
        }
        checked.store(i + 1, Ordering::Release);
    }
    torn
}

/// Sends message after message; each has buffers of its own until it is consumed.
struct Writer {
    series: Series,
    to: u64,
    slot: u8,
    sent: u64,
    offset: u32,
    buffers: Vec<Vec<u64>>,
    busy: Vec<Option<Position>>,
}

impl Writer {
    fn new(series: Series, slot: u8, to: u64) -> Writer {
        let buffers = vec![vec![0; series.words]; 16];
        Writer { series, to, slot, sent: 0, offset: 0, buffers, busy: vec![None; 16] }
    }

    /// Sends what fits; whether all is sent.
    fn write(&mut self, link: &mut Link) -> bool {
        let bytes = 8 * self.series.words as u32;
        while self.sent < self.series.count {
            let turn = self.sent as usize % self.buffers.len();
            if self.offset == 0 {
                if let Some(position) = self.busy[turn]
                    && !link.consumed(self.slot, position)
                {
                    return false;
                }
                self.buffers[turn].fill(self.sent + 1);
            }
            let from = [Segment { addr: self.buffers[turn].as_ptr() as u64, len: bytes.into() }];
            let to = self.to + (self.sent % self.series.slots() as u64) * u64::from(bytes);
            let psn = self.sent as u32 & 0xff_ffff;
            let mut write = request(link, mlx5_device::first_qpn(self.slot), Opcode::Write, psn, to, bytes);
            if self.offset > 0 {
                go_on(&mut write, self.offset);
            }
            match link.send_record(&write, MTU, &PathAddress::default(), Payload::Segments(&from)) {
                Ok(sent) => {
                    self.offset = (self.offset + sent.carried) % bytes;
                    if self.offset == 0 {
                        // A small message was gathered; its buffer is free at once.
                        self.busy[turn] = (bytes as usize > MAX_INLINE).then_some(sent.position);
                        self.sent += 1;
                    }
                }
                Err(Unsent::Full) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        true
    }
}

/// The receiving side of the NIC: takes a message only when the reader has checked what its slot held.
fn take(
    series: Series,
    inbound: &mut Inbound<'_>,
    (received, target): (&mut u64, &mut Target),
    checked: &AtomicU64,
) -> Disposition {
    if *received >= checked.load(Ordering::Acquire) + series.slots() as u64 {
        return Disposition::NotNow;
    }
    let to = target.next(inbound.packet);
    inbound.copy_into(&[to], series.order).unwrap();
    *received += u64::from(inbound.packet.content.position().ends());
    Disposition::Consumed
}

/// In a child: writes what the parent says.
pub fn writer() {
    println!("writer");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let numbers: Vec<u64> = line.split_whitespace().map(|n| n.parse().unwrap()).collect();
    let copiers = Copiers::new(numbers[4] as u8);
    let mut link = Link::join(LinkConfig { copiers, ..child_config() }).unwrap();
    println!("joined");
    let series = Series { words: numbers[2] as usize, count: numbers[3], ..SERIES[0] };
    let mut writer = Writer::new(series, numbers[0] as u8, numbers[1]);
    connect(&mut link, numbers[0] as u8);
    while !writer.write(&mut link) {
        link.sleep(Duration::from_micros(50));
    }
    link.ring_bells();
    // Stay until the parent has read all records.
    std::io::stdin().read_line(&mut line).unwrap();
}

fn run(series: Series) -> u64 {
    let fabric = fabric_name();
    let memory: Vec<AtomicU64> = (0..series.slots() * series.words).map(|_| AtomicU64::new(0)).collect();
    let (checked, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let _one = (series.helpers > 0).then(|| crate::dma::copiers::tests::ONE.lock());
    let copiers = Copiers::new(series.helpers);
    let link_config = LinkConfig { ring_bytes: 512 * 1024, copiers, ..config(&fabric) };
    let mut link = Link::join(link_config).unwrap();
    let to = memory.as_ptr() as u64;
    let peer = series.two_processes.then(|| {
        let mut peer = Peer::start("writer", &fabric);
        peer.read_line("writer");
        peer.say(&format!("{} {to} {} {} {}", link.slot(), series.words, series.count, series.helpers));
        peer.read_line("joined");
        peer
    });
    let mut own = (!series.two_processes).then(|| Writer::new(series, link.slot(), to));
    let torn = std::thread::scope(|scope| {
        let (memory, checked, done) = (&memory, &checked, &done);
        let reader = scope.spawn(move || {
            let torn = read(series, memory, checked);
            done.store(true, Ordering::Release);
            torn
        });
        let mut target = Target::default();
        let mut received = 0;
        while !done.load(Ordering::Acquire) {
            if let Some(writer) = &mut own {
                writer.write(&mut link);
            }
            link.ring_bells();
            if link.poll(64, |inbound| take(series, inbound, (&mut received, &mut target), checked)) == 0
                && own.is_none()
            {
                link.sleep(Duration::from_micros(50));
            }
        }
        reader.join().unwrap()
    });
    if let Some(peer) = peer {
        peer.finish();
    }
    torn
}

const fn series(name: &'static str, words: usize, count: u64) -> Series {
    let (watch, order) = (Watch::Last, Order::Increasing);
    Series { name, words, count, watch, order, two_processes: true, helpers: 0 }
}

const SERIES: [Series; 10] = [
    series("64 B", 8, 3_000_000),
    Series { two_processes: false, ..series("64 B within one process", 8, 2_000_000) },
    Series { watch: Watch::Any, ..series("256 B, any word", 32, 500_000) },
    series("4 KiB", 512, 100_000),
    Series { watch: Watch::Any, ..series("64 KiB, any word", 8192, 10_000) },
    Series { watch: Watch::Any, ..series("1 MiB, any word", 131_072, 300) },
    Series { helpers: 1, ..series("64 KiB, copied with helpers", 8192, 2_000) },
    Series { helpers: 2, ..series("1 MiB, copied with helpers", 131_072, 200) },
    Series {
        watch: Watch::Any,
        two_processes: false,
        ..series("64 KiB within one process, any word", 8192, 10_000)
    },
    Series { watch: Watch::Any, two_processes: false, ..series("odd 1000 B, any word", 125, 200_000) },
];

#[test]
fn the_last_word_of_a_write_is_visible_after_all_others() {
    for mut series in SERIES {
        series.count /= if is_full() { 1 } else { 4 };
        let begun = std::time::Instant::now();
        let torn = run(series);
        println!("{:>40}: {} messages, {torn} torn, {:.1?}", series.name, series.count, begun.elapsed());
        assert_eq!(torn, 0, "{}", series.name);
    }
}

#[test]
fn with_relaxed_order_all_bytes_arrive_and_the_rest_is_printed() {
    for (name, words, count) in [("64 B", 8, 500_000), ("4 KiB", 512, 50_000), ("64 KiB", 8192, 5_000)] {
        let relaxed = Series { order: Order::Relaxed, watch: Watch::Any, ..series(name, words, count) };
        println!("relaxed {name}: {} of {count} seen torn", run(relaxed));
    }
}
