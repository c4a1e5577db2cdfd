//! perftest: every program, transport type and link layer, and the options that change how queues are used.
//!
//! Message counts follow from perftest 4.5-0.17 (`src/perftest_resources.c`, `src/*_bw.c`, `src/*_lat.c`):
//! - Parameters, handshakes and results travel over TCP ("Data ex. method : Ethernet"), not as messages.
//! - No warm-up without `--perform_warm_up`; credits (WRITEs of the receiver) exist on iWARP only.
//! - `_bw` (`run_iter_bw`): the client posts `-n` requests on each of `-q` queue pairs; the server none.
//! - `_lat` of WRITE and SEND (`run_iter_lat_write`, `run_iter_lat_send`): ping-pong, `-n` from each.
//! - `_lat` of READ and atomics (`run_iter_lat`): `-n` requests from the client only.
//! - `-b` (`run_iter_bi`, `duplex`): both sides do what the client does.
//! - `-a`: once for each size 2^1 … 2^23; UD stops at the MTU, 2^12 here.
//! - `-l` must divide `-n`, hence 192 instead of 200 there.

use measure::need::is_full;

use crate::counters::{Counters, messages};
use crate::fabric::{Fabric, Layer};
use crate::program::{DEADLINE, find, within};

/// Requests of an ordinary run.
const COUNT: u64 = 200;
/// Requests of a run with lists of 16.
const COUNT_IN_LISTS: u64 = 192;
/// Requests of an ordinary latency run. Four threads poll: on two cores each message is a scheduler's turn.
const COUNT_OF_LATENCIES: u64 = 50;
/// Requests for each size of an `-a` run.
const COUNT_EACH: u64 = 20;
/// An `-a` run goes through the sizes 2^1 … 2^23.
const LARGEST_EXPONENT: u32 = 23;
/// The same on UD: 2^1 … 2^12, the MTU.
const LARGEST_EXPONENT_UD: u32 = 12;
/// Atomics take no size. Their operands travel in the request and the reply, so none of it counts as payload.
const ATOMIC_BYTES: u64 = 0;

/// One perftest program.
#[derive(Debug)]
struct Perftest {
    name: &'static str,
    /// Values of `-c`.
    services: &'static [&'static str],
    /// What it asks for: option and the kind of message that follows.
    requests: &'static [(&'static [&'static str], &'static str)],
    /// Whether the server sends as many as the client.
    both_sides: bool,
    /// Whether `-s` is taken: atomics are 8 bytes.
    has_size: bool,
}

const WRITE: (&[&str], &str) = (&[], "write");
const READ: (&[&str], &str) = (&[], "read");
const SEND: (&[&str], &str) = (&[], "send");
const ATOMICS: &[(&[&str], &str)] =
    &[(&["-A", "FETCH_AND_ADD"], "fetch_add"), (&["-A", "CMP_AND_SWAP"], "compare_swap")];

#[rustfmt::skip]
const PROGRAMS: &[Perftest] = &[
    Perftest { name: "ib_write_bw",   services: &["RC", "UC"],       requests: &[WRITE], both_sides: false, has_size: true },
    Perftest { name: "ib_write_lat",  services: &["RC", "UC"],       requests: &[WRITE], both_sides: true,  has_size: true },
    Perftest { name: "ib_read_bw",    services: &["RC"],             requests: &[READ],  both_sides: false, has_size: true },
    Perftest { name: "ib_read_lat",   services: &["RC"],             requests: &[READ],  both_sides: false, has_size: true },
    Perftest { name: "ib_send_bw",    services: &["RC", "UC", "UD"], requests: &[SEND],  both_sides: false, has_size: true },
    Perftest { name: "ib_send_lat",   services: &["RC", "UC", "UD"], requests: &[SEND],  both_sides: true,  has_size: true },
    Perftest { name: "ib_atomic_bw",  services: &["RC"],             requests: ATOMICS,  both_sides: false, has_size: false },
    Perftest { name: "ib_atomic_lat", services: &["RC"],             requests: ATOMICS,  both_sides: false, has_size: false },
];

/// Message sizes: one within a WQE or no power of two, and one of many packets or, on UD, of a whole one.
const SIZES: [&[u64]; 2] = [&[8, 65536], &[1000, 65536]];
const SIZES_UD: [&[u64]; 2] = [&[8, 4096], &[1000, 4096]];
/// Around every boundary: inline limits, the 64-byte block, the MTU, what a message carries itself.
const SIZES_FULL: &[u64] = &[1, 2, 63, 64, 65, 220, 236, 1000, 4095, 4096, 4097, 8191, 65536, 1 << 20];
const SIZES_FULL_UD: &[u64] = &[1, 2, 63, 64, 65, 188, 1000, 2048, 4095, 4096];

/// What tells of packets that were lost or overtaken, and of nothing else.
const REPAIRED: [&str; 8] = [
    "retransmissions",
    "duplicates",
    "naks_sent",
    "dropped_transport",
    "dropped_replies",
    "injected_lost_requests",
    "injected_lost_replies",
    "injected_overtaken",
];

fn program(name: &str) -> &'static Perftest {
    PROGRAMS.iter().find(|program| program.name == name).expect("a row of the table")
}

fn sizes(service: &str, layer: Layer) -> &'static [u64] {
    let [infiniband, roce] = if service == "UD" { SIZES_UD } else { SIZES };
    match (is_full(), service, layer) {
        (true, "UD", _) => SIZES_FULL_UD,
        (true, _, _) => SIZES_FULL,
        (false, _, Layer::InfiniBand) => infiniband,
        (false, _, Layer::Roce) => roce,
    }
}

/// What a run must have made: `count` messages of one kind, `bytes` of payload in all.
struct Expected {
    kind: &'static str,
    count: u64,
    bytes: u64,
}

/// Runs one pair and compares both NICs' counters with what was asked for; returns server's and client's.
fn counted(
    fabric: &Fabric,
    program: &Perftest,
    service: &str,
    options: &[&str],
    expected: Expected,
) -> [Counters; 2] {
    let duplex = options.contains(&"-b");
    // -F: perftest would otherwise complain of a changing CPU frequency.
    let mut command = vec![program.name, "-F", "-u", fabric.ack_timeout(), "-c", service];
    command.extend(options);
    let finished = fabric.pair(&command).finish_on_distribution();
    let (server, client) = (finished.server.counters, finished.client.counters);
    let what = format!("{} over {:?}", command.join(" "), fabric.layer());
    let back = if program.both_sides || duplex { (expected.count, expected.bytes) } else { (0, 0) };
    for (side, requester, responder, (count, bytes)) in
        [("client", &client, &server, (expected.count, expected.bytes)), ("server", &server, &client, back)]
    {
        let all = messages(expected.kind, count);
        assert_eq!(requester.posted(), all, "{what}: read from the {side}'s send queues");
        assert_eq!(requester.completed(), all, "{what}: completed for the {side}");
        assert_eq!(responder.executed(), count, "{what}: executed for the {side}");
        assert_eq!(responder.executed_bytes(), bytes, "{what}: bytes executed for the {side}");
        let mut trouble = requester.trouble();
        if fabric.is_wired() {
            // A socket's buffer may overflow while its NIC has no core; lost packets are sent again.
            trouble.retain(|name, _| !REPAIRED.contains(name));
        }
        if options.contains(&"--use-srq") && options.contains(&"-q") {
            // perftest shares one queue pair's number of receives among all. A receiver that posts late finds
            // RNR NAKs, since the shared queue was empty, and drops what follows.
            let late = ["rnr_naks_sent", "rnr_naks_received", "dropped_transport", "retransmissions"];
            trouble.retain(|name, _| !late.contains(name));
        }
        assert!(trouble.is_empty(), "{what}: the {side} had {trouble:?}");
        if !fabric.is_pumped() {
            assert_eq!(requester.value("pump_ns"), 0, "{what}: the {side} ran the NIC on its own time");
        }
    }
    [server, client]
}

/// Every type and a few sizes.
fn every_type(program: &Perftest, layer: Layer) {
    let fabric = Fabric::new(layer);
    let count = if program.name.ends_with("_lat") { COUNT_OF_LATENCIES } else { COUNT };
    for &service in program.services {
        for &(request, kind) in program.requests {
            let sizes = if program.has_size { sizes(service, layer) } else { &[ATOMIC_BYTES] };
            for &bytes in sizes {
                let (size, n) = (bytes.to_string(), count.to_string());
                let mut options = vec!["-n", &n];
                options.extend(request);
                options.extend(program.has_size.then_some(["-s", &size]).iter().flatten());
                counted(&fabric, program, service, &options, Expected { kind, count, bytes: count * bytes });
            }
        }
    }
}

/// Every size in one run. By default one type and layer of each bandwidth program; `full` takes all.
///
/// A latency program does the same one message at a time, and calibrates its clock for 0.2 s after each size
/// while its peer polls. By default it takes the smallest and the largest size, a run each.
fn all_sizes(program: &Perftest) {
    let one = [(*program.services.last().expect("at least one type"), Layer::Roce)];
    let every = || program.services.iter().flat_map(|&service| Layer::BOTH.map(|layer| (service, layer)));
    let chosen: Vec<_> = if is_full() { every().collect() } else { one.to_vec() };
    for (service, layer) in chosen {
        let fabric = Fabric::new(layer);
        let largest = if service == "UD" { LARGEST_EXPONENT_UD } else { LARGEST_EXPONENT };
        if program.name.ends_with("_lat") && !is_full() {
            for bytes in [2, 1 << largest] {
                let &[(_, kind)] = program.requests else { panic!("{}: one kind has sizes", program.name) };
                let size = bytes.to_string();
                let expected = Expected { kind, count: COUNT_EACH, bytes: COUNT_EACH * bytes };
                counted(&fabric, program, service, &["-s", &size, "-n", "20"], expected);
            }
            continue;
        }
        let bytes: u64 = (1..=largest).map(|exponent| COUNT_EACH << exponent).sum();
        for &(_, kind) in program.requests {
            let expected = Expected { kind, count: COUNT_EACH * u64::from(largest), bytes };
            counted(&fabric, program, service, &["-a", "-n", "20"], expected);
        }
    }
}

macro_rules! each_program {
    ($($name:ident: $($all_sizes:ident)?;)*) => { $(
        mod $name {
            use super::*;

            #[test]
            fn counts_every_message_over_infiniband() {
                measure::need!(find(stringify!($name)), "perftest");
                every_type(program(stringify!($name)), Layer::InfiniBand);
            }

            #[test]
            fn counts_every_message_over_roce() {
                measure::need!(find(stringify!($name)), "perftest");
                every_type(program(stringify!($name)), Layer::Roce);
            }

            $(#[test]
            fn $all_sizes() {
                measure::need!(find(stringify!($name)), "perftest");
                all_sizes(program(stringify!($name)));
            })?
        }
    )* };
}

each_program! {
    ib_write_bw: counts_every_message_of_all_sizes;
    ib_write_lat: counts_every_message_of_all_sizes;
    ib_read_bw: counts_every_message_of_all_sizes;
    ib_read_lat: counts_every_message_of_all_sizes;
    ib_send_bw: counts_every_message_of_all_sizes;
    ib_send_lat: counts_every_message_of_all_sizes;
    ib_atomic_bw: ;
    ib_atomic_lat: ;
}

/// Options that change how queues are used: program, type, options without `-n` and `-s`, kind, size.
pub type Variant = (&'static str, &'static str, &'static [&'static str], &'static str, u64);

#[rustfmt::skip]
const MANY_QUEUES: &[Variant] = &[
    ("ib_write_bw",  "RC", &["-q", "8"], "write",     4096),
    ("ib_read_bw",   "RC", &["-q", "8"], "read",      4096),
    ("ib_send_bw",   "RC", &["-q", "8"], "send",      4096),
    ("ib_send_bw",   "UD", &["-q", "8"], "send",      1024),
    ("ib_atomic_bw", "RC", &["-q", "8"], "fetch_add", ATOMIC_BYTES),
];

/// perftest has no events on WRITE.
#[rustfmt::skip]
const EVENTS: &[Variant] = &[
    ("ib_read_bw",   "RC", &["-e"], "read",      4096),
    ("ib_read_lat",  "RC", &["-e"], "read",      64),
    ("ib_send_bw",   "RC", &["-e"], "send",      4096),
    ("ib_send_bw",   "UD", &["-e"], "send",      1024),
    ("ib_send_lat",  "RC", &["-e"], "send",      64),
    ("ib_atomic_bw", "RC", &["-e"], "fetch_add", ATOMIC_BYTES),
];

#[rustfmt::skip]
const LISTS: &[Variant] = &[
    ("ib_write_bw",  "RC", &["-l", "16"], "write",     4096),
    ("ib_write_bw",  "UC", &["-l", "16"], "write",     64),
    ("ib_read_bw",   "RC", &["-l", "16"], "read",      4096),
    ("ib_send_bw",   "RC", &["-l", "16"], "send",      4096),
    ("ib_send_bw",   "UD", &["-l", "16"], "send",      1024),
    ("ib_atomic_bw", "RC", &["-l", "16"], "fetch_add", ATOMIC_BYTES),
];

#[rustfmt::skip]
const INLINE: &[Variant] = &[
    ("ib_write_bw",  "RC", &["-I", "64"],  "write", 64),
    ("ib_write_bw",  "UC", &["-I", "220"], "write", 220),
    ("ib_write_lat", "RC", &["-I", "0"],   "write", 8),
    ("ib_send_bw",   "RC", &["-I", "200"], "send",  200),
    ("ib_send_bw",   "UD", &["-I", "100"], "send",  100),
    ("ib_send_lat",  "UC", &["-I", "128"], "send",  128),
    // One doorbell for many requests of several blocks each.
    ("ib_write_bw",  "RC", &["-I", "64", "-l", "16"], "write", 64),
];

#[rustfmt::skip]
const BOTH_DIRECTIONS: &[Variant] = &[
    ("ib_write_bw",  "RC", &["-b"], "write",     4096),
    ("ib_read_bw",   "RC", &["-b"], "read",      4096),
    ("ib_send_bw",   "RC", &["-b"], "send",      4096),
    ("ib_atomic_bw", "RC", &["-b"], "fetch_add", ATOMIC_BYTES),
];

/// One shared receive queue a process, which all its queue pairs take from. perftest refuses it on UC.
#[rustfmt::skip]
const SHARED_RECEIVES: &[Variant] = &[
    ("ib_send_bw",  "RC", &["--use-srq"],            "send", 65536),
    ("ib_send_bw",  "RC", &["--use-srq", "-q", "8"], "send", 1000),
    ("ib_send_bw",  "UD", &["--use-srq"],            "send", 1000),
    ("ib_send_bw",  "RC", &["--use-srq", "-e"],      "send", 4096),
    ("ib_send_lat", "RC", &["--use-srq"],            "send", 8),
    ("ib_send_lat", "UD", &["--use-srq"],            "send", 64),
];

/// Run under each of libmlx5's switches of how it drives a queue.
#[rustfmt::skip]
const SWITCHES: &[Variant] = &[
    ("ib_write_bw", "RC", &[],            "write", 4096),
    ("ib_write_bw", "RC", &["-q", "8"],   "write", 64),
    // Payloads that a CQE can carry, on either side of 32 bytes.
    ("ib_read_bw",  "RC", &[],            "read",  8),
    ("ib_read_bw",  "RC", &[],            "read",  64),
    ("ib_send_bw",  "RC", &[],            "send",  16),
    ("ib_send_bw",  "UD", &[],            "send",  64),
    ("ib_send_lat", "RC", &[],            "send",  64),
    ("ib_send_lat", "RC", &["-I", "128"], "send",  32),
];

/// Runs one row; returns server's and client's counters.
pub fn run_variant(fabric: &Fabric, &(name, service, options, kind, bytes): &Variant) -> [Counters; 2] {
    let program = program(name);
    let each = if options.contains(&"-l") { COUNT_IN_LISTS } else { COUNT };
    let count = if options.contains(&"-q") { 8 * each } else { each };
    let (each, size) = (each.to_string(), bytes.to_string());
    let mut options = options.to_vec();
    options.extend(["-n", &each]);
    options.extend(program.has_size.then_some(["-s", &size]).iter().flatten());
    counted(fabric, program, service, &options, Expected { kind, count, bytes: count * bytes })
}

/// Runs the rows over one layer, or in the full matrix over both. `look` sees all counters of a run.
fn variants(
    rows: &[Variant],
    layer: Layer,
    environment: &[(&str, &str)],
    look: impl Fn(&Variant, &[Counters; 2]),
) {
    let layers: &[Layer] = if is_full() { &Layer::BOTH } else { &[layer] };
    for &layer in layers {
        let mut fabric = Fabric::new(layer);
        for (variable, value) in environment {
            fabric = fabric.with_environment(variable, value);
        }
        for row in rows {
            look(row, &run_variant(&fabric, row));
        }
    }
}

/// Looks at nothing more than every run is checked for.
fn as_ever(_: &Variant, _: &[Counters; 2]) {}

#[test]
fn eight_queue_pairs_share_one_device() {
    measure::need!(find("ib_write_bw"), "perftest");
    variants(MANY_QUEUES, Layer::InfiniBand, &[], as_ever);
}

#[test]
fn queue_pairs_share_a_receive_queue() {
    measure::need!(find("ib_send_bw"), "perftest");
    for layer in Layer::BOTH {
        variants(SHARED_RECEIVES, layer, &[], |row, [server, _]| {
            assert!(server.value("receives_shared") > 0, "{row:?}: none came from a shared queue");
            assert_eq!(server.value("receives_shared"), server.value("receives_consumed"), "{row:?}");
        });
    }
}

#[test]
fn completion_events_wake_sleeping_programs() {
    measure::need!(find("ib_write_bw"), "perftest");
    variants(EVENTS, Layer::Roce, &[], |row, [_, client]| {
        assert!(client.value("completion_events") > 0, "{row:?}: no event");
    });
}

#[test]
fn lists_of_requests_are_all_executed() {
    measure::need!(find("ib_write_bw"), "perftest");
    variants(LISTS, Layer::InfiniBand, &[], as_ever);
}

#[test]
fn inline_payloads_arrive() {
    measure::need!(find("ib_write_bw"), "perftest");
    variants(INLINE, Layer::Roce, &[], as_ever);
}

#[test]
fn both_directions_run_at_once() {
    measure::need!(find("ib_write_bw"), "perftest");
    variants(BOTH_DIRECTIONS, Layer::InfiniBand, &[], as_ever);
}

#[test]
fn programs_run_with_blue_flame_shut_up() {
    measure::need!(find("ib_write_bw"), "perftest");
    variants(SWITCHES, Layer::InfiniBand, &[("MLX5_SHUT_UP_BF", "1")], as_ever);
}

#[test]
fn programs_run_with_128_byte_cqes() {
    measure::need!(find("ib_write_bw"), "perftest");
    variants(SWITCHES, Layer::Roce, &[("MLX5_CQE_SIZE", "128")], as_ever);
}

#[test]
fn programs_run_without_scatter_to_cqe() {
    measure::need!(find("ib_write_bw"), "perftest");
    variants(SWITCHES, Layer::InfiniBand, &[("MLX5_SCATTER_TO_CQE", "0")], as_ever);
}

/// Runs the rows over a fabric with this configuration.
fn configured(toml: &str, rows: &[Variant]) -> Vec<[Counters; 2]> {
    let fabric = Fabric::new(Layer::InfiniBand).with_config(toml);
    rows.iter().map(|row| run_variant(&fabric, row)).collect()
}

#[test]
fn threads_help_to_copy_long_payloads_where_they_are_asked_to() {
    measure::need!(find("ib_write_bw"), "perftest");
    let rows: &[Variant] = &[
        ("ib_write_bw", "RC", &[], "write", 65536),
        ("ib_read_bw", "RC", &[], "read", 200_000),
        ("ib_send_bw", "UC", &[], "send", 1 << 20),
        ("ib_write_bw", "RC", &[], "write", 65_535),
    ];
    for (row, [server, client]) in rows.iter().zip(configured("copy_threads = 2\n", rows)) {
        let sum = |name: &str| server.value(name) + client.value(name);
        let long = row.4 >= 65_536;
        assert_eq!(sum("link_payload_bytes"), COUNT * row.4, "{row:?}");
        assert_eq!(
            sum("copy_helpers"),
            if long { 4 } else { 0 },
            "{row:?}: two at each end, once there is something"
        );
    }
}

#[test]
fn the_pump_changes_no_count() {
    measure::need!(find("ib_send_lat"), "perftest");
    let rows: &[Variant] = &[
        ("ib_send_lat", "RC", &[], "send", 8),
        ("ib_send_bw", "UD", &[], "send", 1000),
        ("ib_write_bw", "RC", &[], "write", 65536),
        ("ib_read_lat", "RC", &[], "read", 64),
    ];
    for (row, [server, client]) in rows.iter().zip(configured("pump = true\n", rows)) {
        // Only an empty poll pumps. A bandwidth run may find each completion there already: no poll is empty.
        // Of 200 round trips at least one poll comes before its completion.
        let polls_empty = row.0.ends_with("_lat");
        assert!(!polls_empty || client.value("pump_ns") > 0, "{row:?}: the client polls, nothing was pumped");
        if row.3 != "send" {
            // What is written or read at a server, it never polls for.
            assert_eq!(server.value("pump_ns"), 0, "{row:?}: the server polls for nothing, and was pumped");
        } else if polls_empty {
            assert!(server.value("pump_ns") > 0, "{row:?}: the server polls, nothing was pumped");
        }
    }
}

#[test]
fn every_model_carries_messages() {
    measure::need!(find("ib_send_bw"), "perftest");
    for model in ["cx5", "cx6", "cx6dx", "cx7"] {
        configured(&format!("model = \"{model}\"\n"), &[("ib_send_bw", "RC", &[], "send", 65536)]);
    }
}

#[test]
fn a_smaller_mtu_carries_messages_of_many_packets() {
    measure::need!(find("ib_send_bw"), "perftest");
    configured(
        "mtu = 1024\n",
        &[("ib_send_bw", "RC", &[], "send", 65536), ("ib_send_bw", "UD", &[], "send", 1024)],
    );
}

#[test]
fn shaping_bounds_what_perftest_measures() {
    measure::need!(find("ib_write_bw"), "perftest");
    let fabric = Fabric::new(Layer::Roce).with_options(&["--rate-gbps", "2"]);
    let command = ["ib_write_bw", "-F", "-n", "2000", "-s", "65536", "--report_gbits"];
    let finished = fabric.pair(&command).finish_on_distribution();
    // Columns: bytes, iterations, peak, average, message rate.
    let row = finished.client.output.lines().find(|line| line.trim_start().starts_with("65536"));
    let average =
        row.and_then(|row| row.split_whitespace().nth(3)).and_then(|average| average.parse::<f64>().ok());
    let average = average.unwrap_or_else(|| panic!("no result in\n{}", finished.client.output));
    // The first messages leave before the shaper takes effect. How close two programs come to the rate
    // depends on the machine's load; the shaper's own tests check it, on their own clock.
    assert!(average > 0.0 && average <= 2.05, "{average} Gbit/s of payload at 2 Gbit/s on the wire");
}

#[test]
fn programs_on_another_fabric_are_out_of_reach() {
    measure::need!(find("ib_write_bw"), "perftest");
    // Addresses differ as on cards; with equal ones a QP number could name a queue pair on either fabric.
    let fabric = Fabric::new(Layer::Roce);
    let clients = fabric.neighbour().with_config("ipv4 = \"192.0.2.2\"\n");
    let mut pair = fabric.pair_across(&clients, &["ib_write_bw", "-F", "-n", "200"]);
    let ended = within(DEADLINE, || pair.client.program.exited().is_some());
    assert!(ended, "{}", pair.account());
    assert!(!pair.client.program.exited().is_some_and(|status| status.success()), "{}", pair.account());
    let said = pair.client.program.output();
    assert!(said.contains("Failed status 12"), "{}", pair.account());
    // Which fabric it looked on, and how to see that the server is on another.
    for words in ["does not answer", "on fabric \"test-", "network namespace", "softnic ctl list"] {
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
    assert_eq!(pair.client.counters().value("error_retry_exceeded"), 1);
}
