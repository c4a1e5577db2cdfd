//! UCX's own benchmark (package `ucx-utils`) on its verbs transports; only the transport is configured.
//!
//! `rc_v` and `ud_v` are libibverbs calls. `rc_x` and `ud_x` post into queues that libmlx5 made and UCX took
//! over. They prefer DEVX objects, which this NIC refuses, and fall back to these. UCX patches `mmap` in the
//! program's code, so its doorbell pages are mapped by system calls that no hook sees. `ucx_perftest` 1.13
//! does not check the data that it moves; the NIC's counters say that it was moved, and how.

use crate::counters::Counters;
use crate::fabric::{Fabric, Layer};
use crate::program::{DEADLINE, find};
use measure::Hosts;
use measure::need::is_full;

/// Iterations that are measured; UCX makes a tenth of it, and at least 100, before.
const ITERATIONS: u64 = 300;

/// What a test must have made of its iterations, by the counters of client and server.
type Traffic = fn(&Counters, &Counters) -> u64;

fn writes(client: &Counters, _: &Counters) -> u64 {
    client.value("completed_write")
}

fn reads(client: &Counters, _: &Counters) -> u64 {
    client.value("completed_read")
}

/// A long tagged message is read by its receiver, which is the server.
fn server_reads(_: &Counters, server: &Counters) -> u64 {
    server.value("completed_read")
}

/// Messages that the other side executed: over UD everything is a SEND, and so are short tagged messages.
fn sends(client: &Counters, server: &Counters) -> u64 {
    client.value("posted_send").min(server.value("receives_consumed"))
}

fn run(layer: Layer, transport: &str, test: &str, bytes: u64, traffic: Traffic) {
    run_on(Fabric::new(layer), transport, test, bytes, traffic);
}

fn run_on(fabric: Fabric, transport: &str, test: &str, bytes: u64, traffic: Traffic) {
    let layer = fabric.layer();
    let what = format!("{test} of {bytes} bytes over {transport}, {layer:?}");
    // Debian 13's program takes a standard input that is no terminal for that of a process of MPI.
    let fabric = fabric.with_environment("UCX_TLS", &format!("{transport},self")).with_terminal();
    let (count, size) = (ITERATIONS.to_string(), bytes.to_string());
    let command = ["ucx_perftest", "-t", test, "-n", &count, "-s", &size];
    let finished = fabric.pair(&command).loading_late().finish_on_distribution();
    let (client, server) = (&finished.client.counters, &finished.server.counters);
    let result = finished.client.output.lines().any(|line| line.starts_with("Final:"));
    assert!(result, "{what}: no result in\n{}", finished.client.output);
    let moved = traffic(client, server);
    assert!(moved >= ITERATIONS, "{what}: {moved} messages");
    for (name, counters) in [("client", client), ("server", server)] {
        // UCX repeats datagrams itself, and a side that has enough leaves while the other still acknowledges.
        let trouble: Vec<_> = counters
            .trouble()
            .into_iter()
            .filter(|(name, _)| name.starts_with("error_") && *name != "error_flush" || *name == "naks_sent")
            .collect();
        assert!(trouble.is_empty(), "{what}: the {name} had {trouble:?}");
    }
}

#[test]
fn programs_read_from_a_terminal_where_a_test_says_so() {
    for (is_terminal, status) in [(false, 1), (true, 0)] {
        let mut fabric = Fabric::new(Layer::Roce);
        if is_terminal {
            fabric = fabric.with_terminal();
        }
        let mut asked = fabric.start(&["sh", "-c", "[ -t 0 ]"]);
        assert_eq!(asked.program.wait(DEADLINE).map(|ended| ended.code()), Ok(Some(status)));
    }
}

#[test]
fn put_get_and_tags_over_the_verbs_transports() {
    measure::need!(find("ucx_perftest"), "ucx-utils");
    for layer in Layer::BOTH {
        run(layer, "rc_v", "ucp_put_bw", 4096, writes);
        run(layer, "rc_v", "ucp_get", 4096, reads);
        run(layer, "rc_v", "tag_lat", 64, sends);
        run(layer, "ud_v", "ucp_put_lat", 1000, sends);
        run(layer, "ud_v", "tag_bw", 3000, sends);
        if is_full() {
            run(layer, "rc_v", "ucp_put_lat", 8, writes);
            run(layer, "rc_v", "tag_bw", 1 << 20, server_reads);
            run(layer, "ud_v", "ucp_get", 1000, sends);
            run(layer, "ud_v", "tag_lat", 8, sends);
        }
    }
}

#[test]
fn put_get_and_tags_into_queues_that_were_taken_over() {
    measure::need!(find("ucx_perftest"), "ucx-utils");
    for layer in Layer::BOTH {
        run(layer, "rc_x", "ucp_put_bw", 4096, writes);
        run(layer, "rc_x", "ucp_get", 4096, reads);
        run(layer, "rc_x", "tag_lat", 64, sends);
        run(layer, "ud_x", "tag_bw", 3000, sends);
    }
}

#[test]
fn put_get_and_tags_between_two_hosts() {
    measure::need!(find("ucx_perftest"), "ucx-utils");
    let tests: [(&str, &str, u64, Traffic); 5] = [
        ("rc_v", "ucp_put_bw", 4096, writes),
        ("rc_v", "ucp_get", 4096, reads),
        ("rc_v", "tag_lat", 64, sends),
        ("ud_v", "ucp_put_lat", 1000, sends),
        ("ud_v", "tag_lat", 3000, sends),
    ];
    for (transport, test, bytes, traffic) in tests {
        let hosts = measure::need!(Hosts::new(4500), "network namespaces");
        let fabric = Fabric::new(Layer::Roce).with_options(&["--path", "wire"]).on_hosts(hosts);
        run_on(fabric, transport, test, bytes, traffic);
    }
}
