//! A port's rate: by its configuration, and as it is set while the NIC runs.

use mlx5_device::Span;
use mlx5_device::faults::Settings;
use roce::ServiceType;
use soft_nic::config::LinkLayer;
use soft_nic::testing::{Driver, QpShape, Setup, WorkRequest};

use crate::operations::ALL;
use crate::two::{By, MS, Two, joined, sent};

#[test]
fn a_port_keeps_to_its_rate_both_ways() {
    for (name, read) in [("rate-write", false), ("rate-read", true)] {
        let mut driver = Driver::new(Setup::new(name).with(|c| c.rate_gbps = Some(10.0)));
        let (a, _) = driver.pair(QpShape::default());
        let (near, far) = (driver.region(1 << 16, ALL), driver.region(1 << 16, ALL));
        let request = match read {
            false => WorkRequest::write(&near, 0, 1 << 16, &far, 0),
            true => WorkRequest::read(&near, 0, 1 << 16, &far, 0),
        };
        let mut completed = 0u64;
        let start = driver.now;
        while driver.now - start < 20_000_000 {
            while driver.qp(a).posted.wrapping_sub(completed as u16) < 8 {
                driver.post(a, &request);
            }
            driver.poll();
            while driver.poll_send(a).is_some() {
                completed += 1;
            }
        }
        // Packets of 1024 bytes with 26 bytes around them on InfiniBand; a burst of 64 KiB comes on top, and
        // up to 8 are outstanding.
        let payload_gbps = (completed << 16) as f64 * 8.0 / (driver.now - start) as f64;
        let ideal = 10.0 * 1024.0 / 1050.0;
        assert!(
            (ideal * 0.96..ideal * 1.06).contains(&payload_gbps),
            "{name}: {payload_gbps} Gbit/s of {ideal}"
        );
    }
}

/// While a message takes its time on the link, the one before is copied and acknowledged. So with figure 4's
/// windows and bursts, and a round trip of half its time (copies at twice the rate), the link is full.
#[test]
fn a_shaped_link_is_full_while_messages_are_copied_at_twice_its_rate() {
    const MESSAGES: u64 = 48;
    for gbps in [10.0, 40.0, 100.0] {
        for (len, window, burst) in
            [(1 << 16, 4, 2), (1 << 17, 2, 1), (1 << 18, 2, 1), (1 << 19, 2, 1), (1 << 20, 2, 1)]
        {
            // With what packets of 1024 bytes have around them on Ethernet, 82 bytes, and a RETH.
            let wire_bits = 8.0 * (f64::from(len) + f64::from(len / 1024) * 82.0 + 16.0);
            let message_ns = wire_bits / gbps;
            let mut driver = Driver::new(Setup::new(&format!("full-{gbps}-{len}")).with(|c| {
                c.link_layer = LinkLayer::Roce;
                c.rate_gbps = Some(gbps);
                c.delay = Span((message_ns / 4.0) as u64);
            }));
            let (a, _) = driver.pair(QpShape::default());
            let (near, far) = (driver.region(len as usize, ALL), driver.region(len as usize, ALL));
            let request = WorkRequest::write(&near, 0, len, &far, 0);
            let (mut posted, mut completed) = (0u64, 0u64);
            // The burst that a full bucket lets go at first is over after the first messages.
            let (mut begun, mut ended) = (0, 0);
            while ended == 0 {
                while posted - completed + burst <= window {
                    (0..burst).for_each(|_| _ = driver.post(a, &request));
                    posted += burst;
                }
                driver.poll();
                while driver.poll_send(a).is_some() {
                    completed += 1;
                    match completed {
                        8 => begun = driver.now,
                        _ if completed == 8 + MESSAGES => ended = driver.now,
                        _ => {}
                    }
                }
                let patience = (2 * (8 + MESSAGES)) as f64 * message_ns;
                assert!((driver.now as f64) < begun as f64 + 1e9 + patience, "{gbps} Gbit/s, {len} bytes");
            }
            let share = MESSAGES as f64 * message_ns / (ended - begun) as f64;
            assert!((0.97..1.02).contains(&share), "{gbps} Gbit/s, {len} bytes: {share:.3} of the link");
        }
    }
}

/// Keeps 8 requests posted for 20 ms in rounds of 1 µs; returns how much this counter grew.
fn busy_for_20_ms(two: &mut Two, request: &WorkRequest, (on_left, counter): (bool, &str)) -> u64 {
    let before = two.count(on_left, counter);
    let (end, mut waiting) = (two.left.now + 20 * MS, 0);
    while two.left.now < end {
        while waiting < 8 {
            two.left.post(two.a, request);
            waiting += 1;
        }
        two.rounds(1);
        while let Some(outcome) = sent(&mut two.left, two.a) {
            assert_eq!(outcome, Ok(()));
            waiting -= 1;
        }
    }
    let grown = two.count(on_left, counter) - before;
    two.rounds(1000);
    while sent(&mut two.left, two.a).is_some() {}
    grown
}

#[test]
fn a_rate_set_while_the_nic_runs_is_what_it_counts_until_it_is_lifted() {
    let gbps = |rate| Settings { rate_gbps: Some(rate), ..Settings::default() };
    let per_second = |pace| Settings { messages_per_second: Some(pace), ..Settings::default() };
    // In 20 ms; on top a full bucket and the message that overdraws it, or the READs answered at once.
    let (bytes, messages) = (25_000_000, 100);
    let cases = [
        ("WRITE", gbps(Some(10.0)), gbps(None), false, 1 << 16, (true, "wire_bytes_sent"), bytes, 140_000),
        ("READ", gbps(Some(10.0)), gbps(None), true, 1 << 16, (false, "wire_bytes_sent"), bytes, 620_000),
        ("WRITE", per_second(Some(5e3)), per_second(None), false, 8, (true, "messages_sent"), messages, 2),
        ("READ", per_second(Some(5e3)), per_second(None), true, 8, (true, "completed_read"), messages, 9),
    ];
    // On a wire each round asks the kernel: what differs there, requests and answers by number.
    let on_wire = [cases[2], cases[3]].map(|case| (By::Wire, case));
    for (by, case) in cases.map(|case| (By::Memory, case)).into_iter().chain(on_wire) {
        let (name, setting, lifted, read, len, (on_left, counter), rate, on_top) = case;
        let mut two = joined(&format!("rate-{name}-{rate}"), ServiceType::Rc, by);
        let request = match read {
            false => WorkRequest::write(&two.from, 0, len, &two.to, 0),
            true => WorkRequest::read(&two.from, 0, len, &two.to, 0),
        };
        let free = busy_for_20_ms(&mut two, &request, (on_left, counter));
        let whose = |two: &mut Two, settings: &Settings| {
            let side = if on_left && !read { &mut two.left } else { &mut two.right };
            side.nic.set(settings).expect("a possible rate");
        };
        whose(&mut two, &setting);
        let held = busy_for_20_ms(&mut two, &request, (on_left, counter));
        assert!(
            (rate * 96 / 100..=rate + on_top).contains(&held),
            "{by:?}, {name}, {setting}: {held} of {rate}"
        );
        whose(&mut two, &lifted);
        let again = busy_for_20_ms(&mut two, &request, (on_left, counter));
        assert!(free > 2 * held && again > 2 * held, "{by:?}, {name}, {setting}: {free}, {held}, {again}");
    }
}
