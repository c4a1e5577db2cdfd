//! Two programs that poll and their two NICs, on however few cores there are. Printed, not asserted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mlx5_device::carrier::{Carrier as _, Inbound as _};
use mlx5_device::carrier::{Disposition, PathAddress, Payload};
use mlx5_device::memory::Order;
use roce::Opcode;

use super::processes::{
    MTU, Peer, Target, acknowledge, child_config, config, end_flag, fabric_name, msn, request, send,
};
use crate::link::{Link, LinkConfig};
use crate::os::system;
use crate::runtime::idle::{DEEP_SLEEP_NS, IdlePolicy, Pause, SystemClock};

/// What a program and its NIC's thread share: a doorbell, a completion counter, memory that the peer writes.
#[derive(Default)]
struct Words {
    posted: AtomicU64,
    completed: AtomicU64,
    received: AtomicU64,
    peer_slot: AtomicU64,
    peer_word: AtomicU64,
    my_slot: AtomicU64,
    stop: AtomicBool,
    cpu_ns: AtomicU64,
}

/// Does as the policy said.
fn rest(link: &mut Link, pause: Pause) {
    link.ring_bells();
    match pause {
        Pause::Spin => std::hint::spin_loop(),
        Pause::Offer => std::thread::yield_now(),
        Pause::Leave => system::leave_core(),
        Pause::Sleep(max) => link.sleep(max),
    }
}

/// The NIC's thread: sends one WRITE of the running number for each post.
fn nic(words: &Words, config: LinkConfig) {
    system::tune_thread();
    let mut link = Link::join(config).unwrap();
    words.my_slot.store(u64::from(link.slot()) + 1, Ordering::Release);
    let mut idle = IdlePolicy::new(SystemClock, system::monotonic_ns());
    let (mut sent, mut received) = (0u64, 0u32);
    while !words.stop.load(Ordering::Relaxed) {
        let mut last = None;
        let mut worked = link.poll(64, |inbound| {
            let packet = *inbound.packet;
            if packet.content.is_request() {
                inbound.copy_into(&[Target::default().next(&packet)], Order::Increasing).unwrap();
                received = received.wrapping_add(1);
                last = Some(packet);
            } else {
                words.completed.store(msn(&packet).into(), Ordering::Release);
            }
            Disposition::Consumed
        }) > 0;
        if let Some(request) = last {
            let reply = acknowledge(&request, received);
            // At the end of the test the peer may have left first, and its last message stays unanswered.
            while link.send_record(&reply, MTU, &PathAddress::default(), Payload::Nothing).is_err()
                && !words.stop.load(Ordering::Relaxed)
            {
                link.poll(0, |_| Disposition::NotNow);
            }
        }
        let posted = words.posted.load(Ordering::Acquire);
        let until = posted.min(sent + 64);
        while sent < until {
            sent += 1;
            let slot = words.peer_slot.load(Ordering::Acquire) as u8;
            let to = words.peer_word.load(Ordering::Acquire);
            let write =
                request(&link, mlx5_device::first_qpn(slot), Opcode::Write, sent as u32 & 0xff_ffff, to, 8);
            send(&mut link, &write, Payload::Inline(&sent.to_ne_bytes()), |_| Disposition::NotNow);
            worked = true;
        }
        rest(&mut link, idle.after_look(system::monotonic_ns(), worked));
    }
    words.cpu_ns.store(system::thread_cpu_ns(), Ordering::Release);
}

fn start(config: LinkConfig) -> (Arc<Words>, std::thread::JoinHandle<()>) {
    let words = Arc::new(Words::default());
    let theirs = Arc::clone(&words);
    let thread = std::thread::spawn(move || nic(&theirs, config));
    while words.my_slot.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    (words, thread)
}

/// The peer: answers every message with one of its own, polling.
pub fn node() {
    let (words, thread) = start(child_config());
    println!("node {} {}", words.my_slot.load(Ordering::Acquire) - 1, words.received.as_ptr() as u64);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let numbers: Vec<u64> = line.split_whitespace().map(|n| n.parse().unwrap()).collect();
    words.peer_slot.store(numbers[0], Ordering::Release);
    words.peer_word.store(numbers[1], Ordering::Release);
    let end = end_flag();
    while !end.load(Ordering::Relaxed) {
        if numbers[2] == 1 {
            words.posted.store(words.received.load(Ordering::Acquire), Ordering::Release);
        } else if numbers[2] == 2 {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::hint::spin_loop();
    }
    words.stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    println!("used {}", words.cpu_ns.load(Ordering::Acquire));
}

/// Runs one scenario; the peer's program answers (1), only polls (0), or sleeps (2).
fn run(peer_does: u32, scenario: impl FnOnce(&Words) -> String) -> String {
    let fabric = fabric_name();
    let (words, thread) = start(config(&fabric));
    let mut peer = Peer::start("node", &fabric);
    let [slot, word] = peer.read_line("node ")[..] else { panic!("two numbers") };
    words.peer_slot.store(slot, Ordering::Release);
    words.peer_word.store(word, Ordering::Release);
    let own = words.my_slot.load(Ordering::Acquire) - 1;
    peer.say(&format!("{own} {} {peer_does}", words.received.as_ptr() as u64));
    let result = scenario(&words);
    words.stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    peer.finish();
    result
}

fn percentiles(mut ns: Vec<u64>) -> String {
    ns.sort_unstable();
    let at = |share: f64| ns[((ns.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    format!(
        "p50 {:.1} p90 {:.1} p99 {:.1} p99.9 {:.1} max {:.1} us",
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        at(1.0)
    )
}

/// Half round trips, with a program that waits by polling memory.
fn ping_pong(words: &Words, count: u64, gap: Duration) -> String {
    let mut halves = Vec::new();
    for i in 1..=count {
        let begun = Instant::now();
        words.posted.store(i, Ordering::Release);
        while words.received.load(Ordering::Acquire) < i {
            std::hint::spin_loop();
        }
        halves.push(begun.elapsed().as_nanos() as u64 / 2);
        if !gap.is_zero() {
            std::thread::sleep(gap);
        }
    }
    percentiles(halves)
}

/// Messages a second with a window of 128.
fn flood(words: &Words, time: Duration) -> String {
    let begun = Instant::now();
    let mut posted = 0;
    while begun.elapsed() < time {
        let completed = words.completed.load(Ordering::Acquire);
        if posted - completed < 128 {
            posted += 1;
            words.posted.store(posted, Ordering::Release);
        } else {
            std::hint::spin_loop();
        }
    }
    format!(
        "{:.3} M messages/s",
        words.completed.load(Ordering::Acquire) as f64 / begun.elapsed().as_secs_f64() / 1e6
    )
}

#[test]
fn crowded_cores_are_shared_in_microseconds_and_the_figures_are_printed() {
    println!("ping-pong, both poll:   {}", run(1, |words| ping_pong(words, 2_000, Duration::ZERO)));
    println!("flood, peer polls:      {}", run(0, |words| flood(words, Duration::from_millis(500))));
    println!("flood, peer sleeps:     {}", run(2, |words| flood(words, Duration::from_millis(500))));
    println!("after 50 ms idle:       {}", run(1, |words| ping_pong(words, 20, Duration::from_millis(50))));
}

/// CPU time and sleeps in a second, after 2.6 s without work.
fn second_of_rest(deepest_sleep_ns: Option<u64>) -> (u64, u64) {
    let mut link = Link::join(config(&fabric_name())).unwrap();
    let resting = std::thread::spawn(move || {
        system::tune_thread();
        let mut idle = IdlePolicy::new(SystemClock, system::monotonic_ns());
        idle.deepest_sleep_ns = deepest_sleep_ns.unwrap_or(idle.deepest_sleep_ns);
        let mut idle_for = |link: &mut Link, time: Duration| {
            let begun = Instant::now();
            while begun.elapsed() < time {
                let worked = link.poll(64, |_| Disposition::Consumed) > 0;
                rest(link, idle.after_look(system::monotonic_ns(), worked));
            }
        };
        idle_for(&mut link, Duration::from_millis(2_600));
        let (before, sleeps) = (system::thread_cpu_ns(), link.counters().sleeps);
        idle_for(&mut link, Duration::from_secs(1));
        (system::thread_cpu_ns() - before, link.counters().sleeps - sleeps)
    });
    resting.join().unwrap()
}

#[test]
fn an_idle_nic_sleeps_and_its_share_of_a_core_is_printed() {
    // As in the second that follows one without work, for longer, to see what that costs.
    let early = Some(DEEP_SLEEP_NS);
    for (name, deepest_sleep_ns, looks) in [("after a second", early, 700), ("after three", None, 300)] {
        let (used, sleeps) = second_of_rest(deepest_sleep_ns);
        println!("idle {name}: {:.2} % of a core, {sleeps} looks a second", used as f64 / 1e7);
        assert!(sleeps <= looks, "{name}: {sleeps} looks in a second");
    }
}
