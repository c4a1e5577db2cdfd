//! `softnic ctl link`, `set` and `inject`, and what unmodified programs see of them.

use std::time::Duration;

use crate::c_program::verbs_program;
use crate::counters::messages;
use crate::ctl::{SOON, busy, count, ctl_prints, ctl_refuses, pid_of, wait_for};
use crate::fabric::{Fabric, Layer, OnNic, scratch};
use crate::program::{find, within};

/// QPN of the first QP that a process made on `mlx5_0`.
fn first_qpn(it: &OnNic, fabric: &Fabric) -> String {
    let text = ctl_prints(&["list", "--json", "--fabric", fabric.name()]);
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let line = lines.into_iter().find(|line| line["pid"] == it.program.pid()).expect("its line");
    // `mlx5-device/src/qpn.rs`: 7 bits of slot, 3 of device, 14 of index from 0x40 on.
    format!("{:#x}", line["slot"].as_u64().expect("a slot") << 17 | 0x40)
}

#[test]
fn a_port_that_goes_down_and_up_is_two_events_and_a_port_state() {
    let program = measure::need!(verbs_program("port_watch"), "C compiler and libibverbs-dev");
    for (layer, physical, word) in [(Layer::InfiniBand, 2, "Polling"), (Layer::Roce, 3, "Disabled")] {
        let fabric = Fabric::new(layer).with_options(&["--devices", "2"]);
        let mut it = fabric.start(&[&program]);
        assert!(within(SOON, || it.program.output().contains("ready")), "{}", it.program.tail());
        let pid = pid_of(&it);
        // Another device's port is none of its business, in sysfs alone it shows.
        ctl_prints(&["link", &pid, "down", "--device", "mlx5_1"]);
        ctl_prints(&["link", &pid, "down"]);
        ctl_prints(&["link", &pid, "down"]);
        let down = format!("event 10 port 1 state 1 physical {physical}\n");
        assert!(within(SOON, || it.program.output().contains(&down)), "{}", it.program.tail());
        assert!(
            ctl_prints(&["list", "--fabric", fabric.name()]).contains("mlx5_0 (down, 0), mlx5_1 (down, 0)")
        );
        ctl_refuses(&["link", &pid, "down", "--device", "mlx5_2"], &["mlx5_2"]);
        ctl_prints(&["link", &pid, "up"]);
        let output = it.program.succeed();
        let up = "4: ACTIVE, 5: LinkUp";
        let said: Vec<&str> = output.lines().filter(|line| !line.starts_with("softnic")).collect();
        let wanted = [
            format!("mlx5_0 {up}"),
            "ready".to_owned(),
            down.trim_end().to_owned(),
            format!("mlx5_0 1: DOWN, {physical}: {word}"),
            format!("mlx5_1 1: DOWN, {physical}: {word}"),
            "event 9 port 1 state 4 physical 5".to_owned(),
            format!("mlx5_0 {up}"),
            format!("mlx5_1 1: DOWN, {physical}: {word}"),
        ];
        assert_eq!(said, wanted, "{output}");
        let counters = it.counters();
        assert_eq!(counters.value("ctl_changes"), 3);
        assert_eq!(counters.changes(), ["link mlx5_1 down", "link mlx5_0 down", "link mlx5_0 up"]);
    }
}

#[test]
fn traffic_survives_a_port_that_comes_back_in_time() {
    measure::need!(find("ib_write_bw"), "perftest");
    let fabric = Fabric::new(Layer::Roce);
    // Retries of 2 s: on a busy machine the port is down for longer than those of perftest's own timeout.
    let pair = busy(&fabric, &["ib_write_bw", "-F", "-D", "60", "-s", "4096", "-u", "19"]);
    let pid = pid_of(&pair.client);
    ctl_prints(&["link", &pid, "down"]);
    wait_for(&pair.client, "lost_port_down", |lost| lost > 0);
    let stuck = count(&pair.client, "completed_write");
    std::thread::sleep(Duration::from_millis(100));
    // What arrives while the port is down is dropped: nothing completes.
    assert_eq!(count(&pair.client, "completed_write"), stuck);
    ctl_prints(&["link", &pid, "up"]);
    wait_for(&pair.client, "completed_write", |writes| writes > stuck);
    assert!(count(&pair.client, "retransmissions") > 0);
    assert_eq!(count(&pair.client, "error_retry_exceeded"), 0);
}

#[test]
fn a_port_that_stays_down_is_a_retry_error() {
    measure::need!(find("ib_write_bw"), "perftest");
    let fabric = Fabric::new(Layer::InfiniBand);
    let mut pair = busy(&fabric, &["ib_write_bw", "-F", "-D", "20", "-u", "10"]);
    ctl_prints(&["link", &pid_of(&pair.client), "down"]);
    let ended = within(SOON, || pair.client.program.exited().is_some());
    assert!(ended, "{}", pair.account());
    // IBV_WC_RETRY_EXC_ERR.
    assert!(pair.client.program.output().contains("Failed status 12"), "{}", pair.account());
}

#[test]
fn what_is_lost_is_sent_again_and_arrives_whole() {
    measure::need!(find("ibv_rc_pingpong"), "ibverbs-utils");
    for (size, seed) in [("1000", "1"), ("65536", "2")] {
        let fabric = Fabric::new(Layer::InfiniBand);
        let command = ["ibv_rc_pingpong", "-n", "1000", "-c", "-s", size];
        let pair = fabric.pair_prepared(&command, |server| {
            ctl_prints(&["set", &pid_of(server), "--loss", "0.01", "--seed", seed]);
        });
        let finished = pair.finish();
        let lost = |name: &str| finished.server.counters.value(name);
        for side in [&finished.server, &finished.client] {
            assert!(
                side.output.contains("1000 iters in") && !side.output.contains("invalid data"),
                "{}",
                side.output
            );
            assert_eq!(side.counters.completed(), messages("send", 1000));
            assert_eq!(side.counters.executed(), 1000, "executed once each");
        }
        assert!(lost("injected_lost_requests") > 0 && lost("injected_lost_replies") > 0);
        assert!(lost("retransmissions") >= lost("injected_lost_requests"));
        assert!(finished.client.counters.value("retransmissions") > 0, "for lost acknowledgements");
        assert_eq!(lost("ctl_changes"), 1);
        assert_eq!(finished.server.counters.changes(), [format!("set loss=0.01 seed={seed}")]);
        assert!(finished.client.counters.changes().is_empty());
        assert!(
            finished.server.output.contains("softnic ctl changed this NIC"),
            "{}",
            finished.server.output
        );
    }
}

#[test]
fn an_error_cqe_has_the_chosen_syndrome_and_ends_the_queue() {
    measure::need!(find("ib_write_bw"), "perftest");
    // Numbers of `ibv_wc_status`.
    for (syndrome, status) in [("local_length", 1), ("remote_access", 10), ("retry_exceeded", 12)] {
        let fabric = Fabric::new(Layer::InfiniBand);
        let mut pair = busy(&fabric, &["ib_write_bw", "-F", "-D", "20"]);
        let (pid, qpn) = (pid_of(&pair.client), first_qpn(&pair.client, &fabric));
        ctl_refuses(&["inject", &pid, "error-cqe", "--qp", "0x41", "--syndrome", syndrome], &["no QP 0x41"]);
        ctl_refuses(
            &["inject", &pid, "error-cqe", "--qp", &qpn, "--syndrome", "bad_mood"],
            &["bad_mood", "remote_access"],
        );
        ctl_prints(&["inject", &pid, "error-cqe", "--qp", &qpn, "--syndrome", syndrome]);
        assert!(within(SOON, || pair.client.program.exited().is_some()), "{}", pair.account());
        let output = pair.client.program.output();
        assert!(output.contains(&format!("Failed status {status}:")), "{syndrome}: {output}");
        let counters = pair.client.counters();
        assert_eq!((counters.value("injected_errors"), counters.value(&format!("error_{syndrome}"))), (1, 1));
    }
}

#[test]
fn one_request_is_lost_and_sent_again_and_a_read_comes_late() {
    measure::need!(find("ib_read_bw"), "perftest");
    let fabric = Fabric::new(Layer::InfiniBand);
    let pair = fabric.pair(&["ib_read_bw", "-F", "-D", "60", "-s", "4096"]);
    let reads = |it: &OnNic| {
        ctl_prints(&["list", "--fabric", fabric.name()]).contains(&pid_of(it))
            && count(it, "completed_read") > 0
    };
    assert!(within(SOON, || reads(&pair.client)), "{}", pair.client.program.tail());
    let qpn = first_qpn(&pair.client, &fabric);
    ctl_prints(&["inject", &pid_of(&pair.client), "drop", "--qp", &qpn]);
    wait_for(&pair.client, "injected_lost_requests", |lost| lost == 1);
    wait_for(&pair.client, "retransmissions", |again| again > 0);
    let server_qpn = first_qpn(&pair.server, &fabric);
    ctl_prints(&["inject", &pid_of(&pair.server), "delay-read", "--qp", &server_qpn, "--us", "20000"]);
    wait_for(&pair.server, "injected_read_delays", |late| late == 1);
    assert_eq!(count(&pair.client, "injected_lost_requests"), 1);
}

#[test]
fn a_rate_is_kept_by_the_bytes_and_messages_that_were_counted_and_lifted_again() {
    measure::need!(find("ib_write_bw"), "perftest");
    let fabric = Fabric::new(Layer::Roce);
    let pair = busy(&fabric, &["ib_write_bw", "-F", "-D", "8", "-s", "65536"]);
    let pid = pid_of(&pair.client);
    // Traffic between two looks takes at most the time between them; a burst and a message may be on top.
    for (option, rate, counter, most_per_s, on_top) in [
        ("--rate-gbps", "0.1", "wire_bytes_sent", 0.1e9 / 8.0, 64.0 * 1024.0 + 80_000.0),
        ("--messages-per-second", "100", "messages_sent", 100.0, 2.0),
    ] {
        ctl_prints(&["set", &pid, option, rate]);
        let begun = std::time::Instant::now();
        let before = count(&pair.client, counter);
        std::thread::sleep(Duration::from_millis(500));
        let sent = (count(&pair.client, counter) - before) as f64;
        let most = begun.elapsed().as_secs_f64() * most_per_s + on_top;
        assert!(sent <= most, "{option} {rate}: {sent} of {most}");
        // However little of the machine it has: a tenth of what 500 ms allow.
        assert!(sent >= most_per_s / 20.0, "{option} {rate}: {sent}");
        ctl_prints(&["set", &pid, option, "none"]);
        wait_for(&pair.client, counter, |now| (now - before) as f64 > 5.0 * most);
    }
    let changes = pair.finish().client.counters.changes().to_vec();
    let set = ["rate-gbps=0.1", "rate-gbps=none", "messages-per-second=100", "messages-per-second=none"];
    assert_eq!(changes, set.map(|set| format!("set {set}")));
}

#[test]
fn a_delay_is_waited_for_live_and_from_the_start_and_what_a_program_sent_last_arrives_after_its_end() {
    measure::need!(find("ibv_rc_pingpong"), "ibverbs-utils");
    // One way and both: the server's is set while it waits, the client's is its configuration's.
    let (delay, rounds) = (Duration::from_millis(10), 20);
    let iterations = rounds.to_string();
    let wire = ["--path", "wire"];
    for (layer, options) in [(Layer::InfiniBand, &[][..]), (Layer::Roce, &wire)] {
        let fabric = Fabric::new(layer).with_options(options).with_config("delay = \"10ms\"\n");
        let gid = fabric.gid_arguments();
        let mut command = vec!["ibv_rc_pingpong", "-n", &iterations, "-c"];
        command.extend(gid.iter().map(String::as_str));
        let mut begun = None;
        let pair = fabric.pair_prepared(&command, |server| {
            let pid = pid_of(server);
            let listed = || ctl_prints(&["list", "--fabric", fabric.name()]);
            assert!(listed().contains("delay 10ms"), "{}", listed());
            ctl_prints(&["set", &pid, "--delay", "5ms"]);
            assert!(listed().contains("delay 5ms"), "{}", listed());
            assert_eq!(count(server, "link_delay_ns"), 5_000_000);
            ctl_prints(&["set", &pid, "--delay", "10ms"]);
            // The client starts after this.
            begun = Some(std::time::Instant::now());
        });
        let begun = begun.expect("prepared");
        let finished = pair.finish();
        assert!(begun.elapsed() >= 2 * delay * rounds, "{:?}", begun.elapsed());
        for side in [&finished.server, &finished.client] {
            assert!(side.output.contains(&format!("{rounds} iters in")), "{}", side.output);
            assert!(!side.output.contains("invalid data"), "{}", side.output);
            assert_eq!(side.counters.executed(), u64::from(rounds));
            // The end that ended first has acknowledged before, as if the network had kept it.
            assert_eq!(side.counters.value("error_retry_exceeded"), 0);
        }
        assert_eq!(finished.server.counters.changes(), ["set delay=5ms", "set delay=10ms"]);
    }
}

#[test]
fn where_there_are_no_packets_a_capture_says_so_and_leaves_no_file() {
    let own = std::process::id().to_string();
    ctl_refuses(&["capture", &own, "x.pcapng"], &["has no NIC"]);
    ctl_refuses(&["capture", &own], &["FILE"]);
    ctl_refuses(&["capture", &own, "x.pcapng", "--packets", "0"], &["--packets"]);
    let program = measure::need!(verbs_program("leave_open"), "C compiler and libibverbs-dev");
    let fabric = Fabric::new(Layer::Roce);
    let it = fabric.start(&[&program, "1", "polling"]);
    assert!(within(SOON, || it.program.output().contains("ready")), "{}", it.program.tail());
    let file = scratch("capture").join("shared-memory.pcapng");
    ctl_refuses(&["capture", &pid_of(&it), &file.display().to_string()], &["shared memory", "no packets"]);
    assert!(!file.exists());
    assert_eq!(count(&it, "ctl_changes"), 0, "to look changes nothing");
}

#[test]
fn what_cannot_be_set_is_named() {
    let own = std::process::id().to_string();
    ctl_refuses(&["set", &own], &["--loss"]);
    ctl_refuses(&["set", &own, "--loss", "much"], &["--loss"]);
    ctl_refuses(&["set", &own, "--rate-gbps", "fast"], &["--rate-gbps", "a number or `none`"]);
    ctl_refuses(&["set", &own, "--delay", "5"], &["--delay", "\"5\" is no time", "250us"]);
    ctl_refuses(&["set", &own, "--delay", "-1ms"], &["\"-1ms\" is no time"]);
    ctl_refuses(&["set", &own, "--loss", "0.5"], &["has no NIC"]);
    ctl_refuses(&["link", &own, "sideways"], &["sideways"]);
    ctl_refuses(&["inject", &own], &["softnic ctl"]);
    ctl_refuses(&["inject", &own, "drop", "--qp", "-1"], &["-1"]);
    let program = measure::need!(verbs_program("leave_open"), "C compiler and libibverbs-dev");
    let fabric = Fabric::new(Layer::InfiniBand);
    let it = fabric.start(&[&program, "-1", "polling"]);
    assert!(within(SOON, || it.program.output().contains("ready")), "{}", it.program.tail());
    for (option, value, words) in [
        ("--loss", "1.5", "a loss of 1.5; 0 to 1"),
        ("--loss", "-1", "0 to 1"),
        ("--loss", "NaN", "0 to 1"),
        ("--rate-gbps", "0", "0.001 to 1000"),
        ("--rate-gbps", "inf", "0.001 to 1000"),
        ("--delay", "1001ms", "a delay of 1001ms; 0 to 1s"),
        ("--messages-per-second", "0", "0.1 to 1000000000"),
        ("--messages-per-second", "NaN", "0.1 to 1000000000"),
    ] {
        ctl_refuses(&["set", &pid_of(&it), option, value], &[words]);
    }
    ctl_prints(&["set", &pid_of(&it), "--rate-gbps", "1"]);
    ctl_prints(&["set", &pid_of(&it), "--rate-gbps", "none"]);
    ctl_refuses(&["set", &own, "--messages-per-second", "few"], &["messages-per-second"]);
    assert_eq!(count(&it, "ctl_changes"), 2, "refusals change nothing");
}
