//! The connection manager under unmodified programs: librdmacm, its tools as distributed, perftest's `-R`.
//!
//! A server is ready when its NIC logs, under `SOFTNIC_LOG=1`, that it listens: no other sign is visible.

use std::time::Duration;

use crate::c_program::compile;
use crate::fabric::{Fabric, Finished, Layer, OnNic, Pair};
use crate::program::{DEADLINE, Signal, find, within};
use crate::tcp_port;
use measure::Hosts;

/// The address that every device 0 has.
const ADDRESS: &str = "127.0.0.1";
/// What the NIC logs of a listening server.
const LISTENS: &str = "rdma_cm LISTEN -> ()";

fn fabric() -> Fabric {
    fabric_of(Layer::Roce)
}

fn fabric_of(layer: Layer) -> Fabric {
    Fabric::new(layer).with_environment("SOFTNIC_LOG", "1")
}

/// Starts a server and waits until it listens.
fn server(fabric: &Fabric, command: &[&str]) -> OnNic {
    let mut server = fabric.start(command);
    let listens = within(Duration::from_secs(30), || {
        server.program.output().contains(LISTENS) || server.program.exited().is_some()
    });
    assert!(
        listens && server.program.exited().is_none(),
        "{}\n{}",
        server.program.ending(),
        server.program.tail()
    );
    server
}

/// Races of the programs themselves when a thread is late; such a run is repeated. rping closes its channel
/// while its other thread returns to it. A perftest server has no listener between its two connections: a
/// client that comes then is refused and does not try again.
const RACES: [&str; 2] = ["rdma_get_cm_event: Bad file descriptor", "RDMA_CM_EVENT_REJECTED; error: 8"];
const ATTEMPTS: usize = 5;

/// A server and its client, both to a good end, by LIDs and by RoCE.
fn pairs(server_command: &[&str], client_command: &[&str]) -> [Finished; 2] {
    Layer::BOTH.map(|layer| pair_on(&fabric_of(layer), 0, server_command, client_command))
}

/// The same on one fabric, with the client on one of its hosts.
fn pair_on(fabric: &Fabric, host: usize, server_command: &[&str], client_command: &[&str]) -> Finished {
    let run = || {
        let server = server(fabric, server_command);
        let mut pair = Pair::of(server, fabric.start_on(host, client_command));
        within(DEADLINE, || {
            let ended = [&mut pair.server, &mut pair.client].map(|side| side.program.exited());
            ended.iter().all(Option::is_some) || ended.iter().flatten().any(|status| !status.success())
        });
        let raced = [&pair.server, &pair.client]
            .into_iter()
            .any(|side| RACES.iter().any(|race| side.program.output().contains(race)));
        (!raced).then(|| pair.finish_on_distribution())
    };
    let finished = (0..ATTEMPTS).find_map(|_| run()).expect("a run without a race of the program's own");
    for side in [&finished.server, &finished.client] {
        let count = |name| side.counters.value(name);
        assert!(count("cm_sent") > 0 && count("cm_taken") > 0, "{:?}", side.counters);
        for trouble in ["cm_malformed", "cm_no_connection", "cm_full", "cm_repeated"] {
            assert_eq!(count(trouble), 0, "{trouble}: {}", side.output);
        }
    }
    finished
}

/// The programs of rdmacm-utils, or why there are none.
fn utilities(name: &str) -> Result<(), String> {
    find(name).map(drop).map_err(|why| format!("{why} (package rdmacm-utils)"))
}

#[test]
fn rping_verifies_what_it_gets_in_every_size() {
    measure::need!(utilities("rping"), "rping");
    for (count, bytes) in [("10", "64"), ("20", "16384"), ("5", "65535")] {
        let port = tcp_port::unused().to_string();
        let common = ["-a", ADDRESS, "-p", &port, "-C", count, "-S", bytes, "-v", "-V"];
        let command = |side| [&["rping", side][..], &common].concat();
        for finished in pairs(&command("-s"), &command("-c")) {
            let pings = finished.client.output.matches("\nping data: rdma-ping-").count();
            assert_eq!(pings.to_string(), count, "{}", finished.client.output);
            assert!(!finished.client.output.contains("mismatch"), "{}", finished.client.output);
            // Each round the client SENDs twice, and the server READs once and WRITEs once.
            let rounds: u64 = count.parse().unwrap();
            assert_eq!(finished.server.counters.posted().get("read"), Some(&rounds));
            assert_eq!(finished.server.counters.posted().get("write"), Some(&rounds));
        }
    }
}

/// From LID 1 to LID 2: each device has an address.
#[test]
fn rping_goes_from_one_port_to_another_by_lid() {
    measure::need!(utilities("rping"), "rping");
    let fabric = fabric_of(Layer::InfiniBand).with_options(&["--devices", "2"]);
    let rping = |side| ["rping", side, "-a", "127.0.0.2", "-C", "5", "-v", "-V"];
    let finished = pair_on(&fabric, 0, &rping("-s"), &[&rping("-c")[..], &["-I", ADDRESS]].concat());
    assert!(finished.client.output.contains("ping data: rdma-ping-4"), "{}", finished.client.output);
}

#[test]
fn ucmatose_makes_many_connections_at_once() {
    measure::need!(utilities("ucmatose"), "ucmatose");
    let port = tcp_port::unused().to_string();
    let common = ["-c", "40", "-C", "10", "-S", "500", "-p", &port];
    let finished = pairs(
        &[&["ucmatose", "-b", ADDRESS][..], &common].concat(),
        &[&["ucmatose", "-s", ADDRESS][..], &common].concat(),
    );
    for side in finished.iter().flat_map(|pair| [&pair.server, &pair.client]) {
        assert!(side.output.contains("return status 0"), "{}", side.output);
        assert_eq!(side.counters.posted().get("send"), Some(&400));
    }
}

#[test]
fn udaddy_finds_datagram_services_by_their_port() {
    measure::need!(utilities("udaddy"), "udaddy");
    // Its port is always 7174; `-p` is the port space.
    let common = ["-c", "5", "-C", "10"];
    for finished in pairs(
        &[&["udaddy", "-b", ADDRESS][..], &common].concat(),
        &[&["udaddy", "-s", ADDRESS][..], &common].concat(),
    ) {
        assert!(finished.client.output.contains("return status 0"), "{}", finished.client.output);
        assert_eq!(finished.server.counters.executed(), 50);
    }
}

/// Its address handles have the path's LID and no GRH, so that it is for InfiniBand alone.
#[test]
fn datagram_sockets_reach_their_peer_by_the_path_s_lid() {
    measure::need!(utilities("udpong"), "udpong");
    let fabric = fabric_of(Layer::InfiniBand);
    let port = tcp_port::unused().to_string();
    let server = fabric.start(&["udpong", "-b", ADDRESS, "-p", &port, "-C", "3"]);
    let ready = || server.program.output().contains("ASYNC_EVENT.ALLOC");
    assert!(within(Duration::from_secs(30), ready), "{}", server.program.tail());
    let (output, counters) = fabric.run(&["udpong", "-s", ADDRESS, "-p", &port, "-C", "3"]);
    assert!(counters.posted().get("send").is_some_and(|sent| *sent >= 3), "{output}");
}

#[test]
fn rdma_server_and_rdma_client_meet() {
    measure::need!(utilities("rdma_server"), "rdma_server");
    let port = tcp_port::unused().to_string();
    for finished in pairs(&["rdma_server", "-p", &port], &["rdma_client", "-s", ADDRESS, "-p", &port]) {
        assert!(finished.server.output.contains("rdma_server: end 0"), "{}", finished.server.output);
        assert!(finished.client.output.contains("rdma_client: end 0"), "{}", finished.client.output);
    }
}

#[test]
fn perftest_connects_by_the_connection_manager() {
    measure::need!(find("ib_write_bw"), "perftest");
    for (program, kind, count) in [("ib_write_bw", "write", 200), ("ib_send_lat", "send", 100)] {
        let (count_text, port) = (count.to_string(), tcp_port::unused().to_string());
        let command = [program, "-R", "-F", "-d", "mlx5_0", "-n", &count_text, "-p", &port];
        for finished in pairs(&command, &[&command[..], &[ADDRESS]].concat()) {
            let output = &finished.client.output;
            assert!(output.contains("Data ex. method : rdma_cm"), "{output}");
            let posted = finished.client.counters.posted().get(kind).copied().unwrap_or(0);
            // The exchange of parameters is SENDs too.
            assert!(posted >= count, "{posted} of {count} messages");
            if kind == "write" {
                assert_eq!(posted, count);
            }
        }
    }
}

#[test]
fn what_nobody_listens_to_is_refused_and_what_nobody_has_is_not_resolved() {
    measure::need!(utilities("rping"), "rping");
    let fabrics = Layer::BOTH.map(fabric_of);
    let cases =
        [(ADDRESS, "RDMA_CM_EVENT_REJECTED, error 8"), ("192.0.2.1", "RDMA_CM_EVENT_ADDR_ERROR, error -113")];
    for (fabric, (address, event)) in fabrics.iter().flat_map(|fabric| cases.map(|case| (fabric, case))) {
        let mut client = fabric.start(&["rping", "-c", "-a", address, "-p", "7174", "-C", "1"]);
        let status = client.program.wait(Duration::from_secs(30)).unwrap_or_else(|why| panic!("{why}"));
        assert!(!status.success(), "{}", client.program.tail());
        assert!(client.program.output().contains(event), "{event}: {}", client.program.tail());
    }
}

#[test]
fn private_data_refusals_and_events_without_waiting_are_as_programs_expect() {
    let header = std::path::Path::new("/usr/include/rdma/rdma_cma.h");
    let there = header.exists().then_some(()).ok_or("rdma_cma.h not found (package librdmacm-dev)");
    measure::need!(there, "headers of librdmacm");
    let program = measure::need!(compile("cm_cases", &["-lrdmacm", "-libverbs"]), "a C compiler and headers");
    let program = program.display().to_string();
    for case in ["accept", "reject", "poll"] {
        let port = tcp_port::unused().to_string();
        let finished =
            pairs(&[&program, "serve", case, ADDRESS, &port], &[&program, "ask", case, ADDRESS, &port]);
        for side in finished.iter().flat_map(|pair| [&pair.server, &pair.client]) {
            assert!(side.output.contains("done"), "{case}: {}", side.output);
        }
    }
}

/// A client without a core from the refusal to the server's end learns of both at once: it gets the refusal.
#[test]
fn a_refusal_is_heard_after_the_end_of_the_process_that_refused() {
    let header = std::path::Path::new("/usr/include/rdma/rdma_cma.h");
    let there = header.exists().then_some(()).ok_or("rdma_cma.h not found (package librdmacm-dev)");
    measure::need!(there, "headers of librdmacm");
    let program = measure::need!(compile("cm_cases", &["-lrdmacm", "-libverbs"]), "a C compiler and headers");
    let program = program.display().to_string();
    for fabric in Layer::BOTH.map(fabric_of) {
        let port = tcp_port::unused().to_string();
        let mut server = server(&fabric, &[&program, "serve", "reject", ADDRESS, &port]);
        server.program.signal(Signal::SIGSTOP);
        let mut client = fabric.start(&[&program, "ask", "reject", ADDRESS, &port]);
        let asks =
            within(Duration::from_secs(30), || client.program.output().contains("rdma_cm CONNECT -> ()"));
        assert!(asks, "{}", client.program.tail());
        client.program.signal(Signal::SIGSTOP);
        server.program.signal(Signal::SIGCONT);
        server.program.succeed();
        client.program.signal(Signal::SIGCONT);
        client.program.succeed();
    }
}

#[test]
fn a_listener_s_port_is_its_own_until_it_ends_even_by_sigkill() {
    measure::need!(utilities("rping"), "rping");
    let fabric = fabric();
    let port = tcp_port::unused().to_string();
    let command = ["rping", "-s", "-a", ADDRESS, "-p", &port, "-C", "3"];
    let mut first = server(&fabric, &command);
    let mut second = fabric.start(&command);
    let status = second.program.wait(Duration::from_secs(30)).unwrap_or_else(|why| panic!("{why}"));
    assert!(!status.success() && second.program.output().contains("in use"), "{}", second.program.tail());
    first.program.signal(Signal::SIGKILL);
    within(Duration::from_secs(10), || first.program.exited().is_some());
    pair_on(&fabric, 0, &command, &["rping", "-c", "-a", ADDRESS, "-p", &port, "-C", "3"]);
}

#[test]
fn a_peer_that_is_killed_is_a_connection_that_ends() {
    measure::need!(utilities("rping"), "rping");
    let fabric = fabric();
    let port = tcp_port::unused().to_string();
    let server = server(&fabric, &["rping", "-s", "-a", ADDRESS, "-p", &port]);
    let mut client = fabric.start(&["rping", "-c", "-a", ADDRESS, "-p", &port, "-v"]);
    let read = |client: &OnNic, what: &str| client.program.output().contains(what);
    let pings = within(Duration::from_secs(30), || read(&client, "rdma-ping-20"));
    assert!(pings, "{}", client.program.tail());
    server.program.signal(Signal::SIGKILL);
    client.program.wait(Duration::from_secs(60)).unwrap_or_else(|why| panic!("{why}"));
    // As the kernel of a process that is killed says it; the queue's retries would take 17 s more.
    assert!(read(&client, "client DISCONNECT EVENT"), "{}", client.program.tail());
}

/// Two hosts, and the address of the first.
fn hosts() -> Result<(Fabric, &'static str), String> {
    let fabric = fabric().with_options(&["--path", "wire"]).on_hosts(Hosts::new(4200)?);
    Ok((fabric, Hosts::ADDRESSES[0]))
}

#[test]
fn programs_of_two_hosts_connect_by_datagrams_on_the_wire() {
    measure::need!(utilities("rping"), "rping");
    let (fabric, address) = measure::need!(hosts(), "two network namespaces");
    let rping = |side| ["rping", side, "-a", address, "-C", "10", "-S", "5000", "-v", "-V"];
    let ucmatose = |side| ["ucmatose", side, address, "-c", "10", "-C", "5"];
    let udaddy = |side| ["udaddy", side, address, "-C", "5"];
    let write = ["ib_write_bw", "-R", "-F", "-d", "mlx5_0", "-n", "100"];
    for (server, client) in [
        (&rping("-s")[..], &rping("-c")[..]),
        (&ucmatose("-b"), &ucmatose("-s")),
        (&udaddy("-b"), &udaddy("-s")),
        (&write, &[&write[..], &[address]].concat()),
    ] {
        let finished = pair_on(&fabric, 1, server, client);
        for side in [&finished.server, &finished.client] {
            let packets = side.counters.value("wire_packets_sent");
            assert!(packets > side.counters.value("cm_sent"), "{packets} packets: {}", side.output);
        }
    }
}

#[test]
fn the_owner_of_an_address_hands_datagrams_on_and_refuses_for_who_is_not_there() {
    measure::need!(utilities("rping"), "rping");
    let (fabric, address) = measure::need!(hosts(), "two network namespaces");
    let command = |side, port| ["rping", side, "-a", address, "-p", port, "-C", "3"];
    // It owns the port of the address, and listens to something else.
    let owner = server(&fabric, &command("-s", "7001"));
    pair_on(&fabric, 1, &command("-s", "7002"), &command("-c", "7002"));
    let mut foreign = fabric.start_on(1, &command("-c", "7003"));
    let status = foreign.program.wait(Duration::from_secs(30)).unwrap_or_else(|why| panic!("{why}"));
    assert!(!status.success(), "{}", foreign.program.tail());
    let event = "RDMA_CM_EVENT_REJECTED, error 8";
    assert!(foreign.program.output().contains(event), "{}", foreign.program.tail());
    drop(owner);
}
