//! Unmodified programs over RoCEv2: on the loopback interface, and between two network namespaces as hosts.

use std::time::{Duration, Instant};

use measure::Hosts;
use measure::need::is_full;

use crate::counters::Counters;
use crate::ctl::wait_for;
use crate::fabric::{Fabric, Layer};
use crate::perftest::{Variant, run_variant};
use crate::program::{Signal, find, within};
use crate::tcp_port;

/// Every program and type. Unreliable ones lose what overflows a socket's buffer: these send little at once.
#[rustfmt::skip]
const EVERY_PROGRAM: &[Variant] = &[
    ("ib_write_bw",   "RC", &[], "write", 65536),
    ("ib_write_bw",   "UC", &[], "write", 64),
    ("ib_write_lat",  "RC", &[], "write", 8),
    ("ib_write_lat",  "UC", &[], "write", 4096),
    ("ib_read_bw",    "RC", &[], "read",  65536),
    ("ib_read_bw",    "RC", &[], "read",  1000),
    ("ib_read_lat",   "RC", &[], "read",  8),
    ("ib_send_bw",    "RC", &[], "send",  65536),
    ("ib_send_bw",    "UD", &[], "send",  64),
    ("ib_send_lat",   "RC", &[], "send",  1000),
    ("ib_send_lat",   "UC", &[], "send",  65536),
    ("ib_send_lat",   "UD", &[], "send",  64),
    ("ib_atomic_bw",  "RC", &["-A", "FETCH_AND_ADD"], "fetch_add", 0),
    ("ib_atomic_lat", "RC", &["-A", "CMP_AND_SWAP"], "compare_swap", 0),
];

/// The same with queues in other use.
#[rustfmt::skip]
const OTHER_USE: &[Variant] = &[
    ("ib_write_bw",  "RC", &["-q", "8"],      "write",     4096),
    ("ib_read_bw",   "RC", &["-q", "8"],      "read",      4096),
    ("ib_send_bw",   "RC", &["-e"],           "send",      4096),
    ("ib_read_lat",  "RC", &["-e"],           "read",      64),
    ("ib_write_bw",  "RC", &["-l", "16"],     "write",     4096),
    ("ib_send_bw",   "RC", &["-I", "200"],    "send",      200),
    ("ib_write_bw",  "RC", &["-b"],           "write",     4096),
    ("ib_atomic_bw", "RC", &["-b"],           "fetch_add", 0),
    ("ib_send_bw",   "RC", &["--use-srq"],    "send",      65536),
    ("ib_send_lat",  "UD", &["--use-srq"],    "send",      64),
];

/// Rows of the reliable service, which loses nothing for good. Of queues in other use a run that is not full
/// has many queues and a shared receive queue.
fn reliable() -> impl Iterator<Item = &'static Variant> {
    let is_chosen = |row: &&Variant| {
        is_full() || row.2.contains(&"--use-srq") || row.0 == "ib_write_bw" && row.2.contains(&"-q")
    };
    EVERY_PROGRAM.iter().chain(OTHER_USE.iter().filter(is_chosen)).filter(|row| row.1 == "RC")
}

/// Packets went both ways, and nothing else.
fn wired(row: &Variant, sides: &[Counters; 2]) {
    for side in sides {
        assert!(side.value("wire_packets_sent") > 0 || row.1 != "RC", "{row:?}");
        assert_eq!(side.value("link_requests_sent"), 0, "{row:?}: messages through shared memory");
        for broken in ["wire_icrc_errors", "wire_malformed", "wire_pkey_violations", "wire_socket_errors"] {
            assert_eq!(side.value(broken), 0, "{row:?}: {broken}");
        }
    }
}

fn loopback() -> Fabric {
    Fabric::new(Layer::Roce).with_options(&["--path", "wire"])
}

/// Two hosts; the program's addresses are those of their interfaces.
fn hosts(mtu: u32, options: &[&str]) -> Result<Fabric, String> {
    let hosts = Hosts::new(mtu)?;
    Ok(Fabric::new(Layer::Roce).with_options(&["--path", "wire"]).with_options(options).on_hosts(hosts))
}

#[test]
fn every_program_runs_over_loopback_packets() {
    measure::need!(find("ib_write_bw"), "perftest");
    let fabric = loopback();
    for row in EVERY_PROGRAM.iter().chain(OTHER_USE) {
        wired(row, &run_variant(&fabric, row));
    }
}

#[test]
fn every_program_runs_between_two_hosts() {
    measure::need!(find("ib_write_bw"), "perftest");
    let fabric = measure::need!(hosts(4500, &[]), "network namespaces");
    for row in EVERY_PROGRAM {
        wired(row, &run_variant(&fabric, row));
    }
}

#[test]
fn a_port_has_the_mtu_that_its_interface_has_room_for() {
    measure::need!(find("ib_write_bw"), "perftest");
    let fabric = measure::need!(hosts(1500, &[]), "network namespaces");
    let (output, _) = fabric.run(&["ibv_devinfo"]);
    assert!(output.contains("active_mtu:\t\t1024 (3)"), "{output}");
    let row = &("ib_write_bw", "RC", &[][..], "write", 65536);
    let [_, client] = run_variant(&fabric, row);
    assert!(client.value("wire_packets_sent") >= 200 * 64, "packets of 1024 bytes");
}

/// Interfaces' MTU and seeds; the first alone, or all when the whole matrix was asked for.
const IMPAIRMENTS: [(u32, u64); 3] = [(4500, 42), (1500, 1), (9000, 2)];

#[test]
fn reliable_programs_survive_losses_and_overtaking() {
    measure::need!(find("ib_write_bw"), "perftest");
    for (mtu, seed) in &IMPAIRMENTS[..if is_full() { IMPAIRMENTS.len() } else { 1 }] {
        let config = format!("loss = 0.01\nreorder = 0.01\nseed = {seed}\n");
        let fabric = measure::need!(hosts(*mtu, &[]), "network namespaces").with_config(&config);
        let mut sums = [0; 3];
        for row in reliable() {
            let sides = run_variant(&fabric, row);
            wired(row, &sides);
            let names = ["injected_lost_requests", "injected_overtaken", "retransmissions"];
            for (sum, name) in sums.iter_mut().zip(names) {
                *sum += sides.iter().map(|side| side.value(name)).sum::<u64>();
            }
        }
        assert!(sums.iter().all(|sum| *sum > 20), "lost, overtaken, sent again: {sums:?}");
    }
}

#[test]
fn packets_travel_over_ipv6_as_well() {
    measure::need!(find("ib_write_bw"), "perftest");
    let hosts = measure::need!(Hosts::new(4500), "network namespaces");
    let [one, other] = Hosts::ADDRESSES_6;
    let plain = Fabric::new(Layer::Roce).with_options(&["--path", "wire"]).on_hosts(hosts);
    let clients = plain.neighbour().with_options(&["--ipv6", other]);
    let servers = plain.with_options(&["--ipv6", one]);
    // GID 5: RoCE v2 of the IPv6 address.
    let finished = servers
        .pair_across(&clients, &["ib_write_bw", "-F", "-x", "5", "-n", "200", "-s", "65536"])
        .finish_on_distribution();
    assert_eq!(finished.server.counters.executed_bytes(), 200 * 65536);
    assert!(finished.client.counters.value("wire_packets_sent") >= 200 * 16);
    assert!(finished.client.output.contains("GID: 253:119:"), "{}", finished.client.output);
}

/// Two servers and two clients of one address, each a process; one server is killed.
#[test]
fn four_processes_share_an_address_and_outlive_its_owner() {
    measure::need!(find("ib_send_bw"), "perftest");
    let fabric = loopback();
    let serve = |seconds: &str| {
        let port = tcp_port::unused();
        let words =
            ["ib_write_bw", "-F", "-x", "3", "-D", seconds, "-p", &port.to_string()].map(str::to_owned);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let server = fabric.start(&words);
        assert!(within(Duration::from_secs(20), || tcp_port::is_listening(server.program.pid(), port)));
        let client = fabric.start(&[&words[..], &["127.0.0.1"]].concat());
        (server, client)
    };
    let (first, mut first_client) = serve("8");
    wait_for(&first, "wire_ports_owned", |owned| owned == 1);
    let (mut second, mut second_client) = serve("3");
    wait_for(&second, "wire_packets_received", |packets| packets > 100);
    first.program.signal(Signal::SIGKILL);
    let killed = Instant::now();
    // The killed one's client ends with a retry error, after all its time-outs: 8 times 2^14 * 4.096 µs.
    let status = first_client.program.wait(Duration::from_secs(60)).expect("an end");
    assert!(!status.success());
    assert!(killed.elapsed() > Duration::from_millis(8 * 67), "{:?}", killed.elapsed());
    assert!(first_client.program.output().contains("Failed status 12"), "{}", first_client.program.tail());
    second.program.succeed();
    second_client.program.succeed();
    let owned: u64 = [&second, &second_client, &first_client]
        .iter()
        .map(|it| it.counters().value("wire_ports_owned"))
        .sum();
    assert!(owned > 0, "somebody took the port");
    let counters = second.counters();
    assert!(counters.executed() > 0 && counters.value("wire_packets_received") > 0);
}
