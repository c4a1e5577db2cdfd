//! Messages from end to end, counted and checked by both.

use std::io::{BufRead, BufReader, Write, copy};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use measure::need;

use crate::ends::{Generator, device};

/// Sends with these options; both ends must end well. Gives the sender's line.
pub fn transfer(options: &str) -> serde_json::Value {
    transfer_to(&[], options)
}

/// The same to a receiver with options of its own.
pub fn transfer_to(receiver: &[&str], options: &str) -> serde_json::Value {
    let (mut receiver, address) = Generator::receiver(receiver);
    let options: Vec<_> = options.split_whitespace().collect();
    let mut sender = Generator::start(&[&["--connect", &address], &options[..]].concat());
    let (sent, received) = (sender.end(), receiver.end());
    assert_eq!((sent.code, received.code), (Some(0), Some(0)), "{options:?}: {sent:?} {received:?}");
    let (run, other) = (sent.line().clone(), received.line());
    assert_eq!((&run["kind"], &other["kind"]), (&"run".into(), &"received".into()));
    for field in ["received", "received_bytes", "checked", "verified", "torn", "lost"] {
        assert_eq!(run[field], other[field], "{options:?}: the ends tell different stories of {field}");
    }
    assert!(run["content_ok"].as_bool().unwrap() && run["error"].is_null(), "{run}");
    run
}

#[test]
fn every_operation_by_every_poster_arrives_whole() {
    need!(device(), nic, "an RDMA device");
    for poster in ["cpu-ibverbs", "cpu-shim"] {
        for operation in
            ["--op write", "--op write-imm", "--op send", "--service uc --op write-imm --verify all"]
        {
            let run = transfer(&format!("--poster {poster} {operation} --count 5003 --batch 32"));
            for field in ["posted", "completed", "received"] {
                assert_eq!(run[field], 5003, "{poster} {operation}: {field}");
            }
            assert_eq!(run["received_bytes"], 5003 * 64);
            assert_eq!((&run["gpu"], &run["machine"]), (&"none".into(), &serde_json::Value::Null), "{run}");
            assert!(run["post_ns"].as_f64().unwrap() > 0.0 && run["post"]["count"].as_u64().unwrap() >= 157);
            // 64 bytes in one frame: the wire carries 62 more, and the headers of the operation.
            assert!(run["wire_gbps"].as_f64().unwrap() > 1.9 * run["payload_gbps"].as_f64().unwrap());
        }
    }
}

#[test]
fn verify_all_looks_at_every_message_and_sample_at_some() {
    need!(device(), nic, "an RDMA device");
    for (options, checked) in [
        ("--verify all --op write", 2000),
        ("--verify all --op send --poster cpu-shim", 2000),
        ("--verify all --op write-imm --qps 3", 2000),
        // Every 61st message, the first included.
        ("--verify sample --op write", 33),
    ] {
        let run = transfer(&format!("{options} --count 2000 --payload 200"));
        assert_eq!(run["checked"], checked, "{options}");
    }
}

#[test]
fn sizes_queue_pairs_inline_and_doorbell_batches_all_arrive() {
    need!(device(), nic, "an RDMA device");
    for options in [
        "--payload 8 --count 3000",
        "--payload 8 --count 3000 --inline --poster cpu-shim --doorbell blueflame",
        "--payload 4097 --count 1000 --poster cpu-shim --order early",
        "--payload 65536 --count 500",
        "--payload 1048576 --count 40 --poster cpu-shim",
        "--qps 8 --count 8001 --doorbell-batch 16 --poster cpu-shim",
        "--qps 8 --count 8001 --doorbell-batch 16",
        "--count 1",
        "--idle-qps 50 --count 5000",
    ] {
        transfer(options);
    }
}

#[test]
fn a_connection_takes_its_attributes_from_the_command_line() {
    need!(device(), nic, "an RDMA device");
    let (mut receiver, address) = Generator::receiver(&["--mtu", "1024", "--rnr-retry", "0"]);
    let options =
        "--mtu 1024 --sl 7 --traffic-class 255 --timeout 31 --retry 0 --rnr-retry 1 --count 500 --op send";
    let options: Vec<_> = options.split_whitespace().collect();
    let mut sender = Generator::start(&[&["--connect", &address], &options[..]].concat());
    let (sent, received) = (sender.end(), receiver.end());
    assert_eq!((sent.code, received.code), (Some(0), Some(0)), "{sent:?} {received:?}");
    assert_eq!((&sent.line()["mtu"], &sent.line()["received"]), (&1024.into(), &500.into()));
    // 15 service levels are InfiniBand's, on Ethernet there are 8 priorities.
    let mut other = Generator::start(&["--listen", "127.0.0.1:0", "--sl", "8", "--sessions", "1"]);
    if sent.line()["link_layer"] != "InfiniBand" {
        let ended = other.end();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains("service level 8 is out of range: 0 to 7 on Ethernet"), "{ended:?}");
    } else {
        assert_eq!(other.next_line()["kind"], "listening");
    }
}

#[test]
fn release_m6_a_run_without_a_count_sends_until_its_time_is_over_and_all_of_it_arrives() {
    need!(device(), nic, "an RDMA device");
    let run = transfer("--seconds 0.3 --poster cpu-shim");
    let seconds = run["seconds"].as_f64().unwrap();
    assert!((0.3..2.0).contains(&seconds), "{seconds}");
    assert!(run["posted"].as_u64().unwrap() > 0, "{run}");
    assert_eq!(run["posted"], run["received"]);
}

#[test]
fn a_warm_up_is_posted_and_no_number_has_it() {
    need!(device(), nic, "an RDMA device");
    for poster in ["cpu-ibverbs", "cpu-shim", "host-twin"] {
        let cold = transfer(&format!("--poster {poster} --count 2000"));
        let warm = transfer(&format!("--poster {poster} --count 2000 --warm-up 0.05"));
        assert_eq!([&cold["posted"], &warm["posted"]], [2000, 2000], "{poster}");
        assert_eq!(
            cold["post"]["count"], warm["post"]["count"],
            "{poster}: bursts of the warm-up are in the histogram"
        );
        assert_eq!([&cold["warm_up_seconds"], &warm["warm_up_seconds"]], [0.0, 0.05], "{poster}");
    }
    // Two sessions of one sender, through a relay that keeps the first line of each.
    let (mut receiver, address) = Generator::receiver(&[]);
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let to_relay = relay.local_addr().unwrap().to_string();
    let mut sender = Generator::start(&["--connect", &to_relay, "--count", "9", "--warm-up", "0.05"]);
    for warm_up in [true, false] {
        let proposal = relayed(&relay, &address);
        assert!(proposal.contains(&format!("\"warm_up\":{warm_up}")), "{proposal}");
    }
    let (sent, received) = (sender.end(), receiver.end());
    assert_eq!((sent.code, received.code), (Some(0), Some(0)), "{sent:?} {received:?}");
    assert_eq!((received.lines.len(), &received.line()["received"]), (1, &9.into()), "{received:?}");
}

/// The first line of the next client within 20 s, which is connected to this address.
fn relayed(relay: &TcpListener, address: &str) -> String {
    relay.set_nonblocking(true).unwrap();
    let since = Instant::now();
    let client = loop {
        match relay.accept() {
            Ok((client, _)) => break client,
            Err(error) => assert!(since.elapsed() < Duration::from_secs(20), "no client: {error}"),
        }
        sleep(Duration::from_millis(5));
    };
    client.set_nonblocking(false).unwrap();
    let mut server = TcpStream::connect(address).unwrap();
    let (mut to_client, mut from_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let mut from_client = BufReader::new(client);
    let mut line = String::new();
    from_client.read_line(&mut line).unwrap();
    server.write_all(line.as_bytes()).unwrap();
    spawn(move || copy(&mut from_client, &mut server).and_then(|_| server.shutdown(Shutdown::Write)));
    spawn(move || copy(&mut from_server, &mut to_client).and_then(|_| to_client.shutdown(Shutdown::Write)));
    line
}

#[test]
fn a_receiver_serves_one_sender_after_another() {
    need!(device(), nic, "an RDMA device");
    let (mut receiver, address) = Generator::receiver(&["--sessions", "2"]);
    for count in ["100", "200"] {
        let sent = Generator::start(&["--connect", &address, "--count", count]).end();
        assert_eq!(sent.code, Some(0), "{sent:?}");
    }
    let ended = receiver.end();
    let counts: Vec<_> = ended.lines.iter().map(|line| line["received"].as_u64().unwrap()).collect();
    assert_eq!((ended.code, counts), (Some(0), vec![100, 200]));
}

#[test]
fn bench_post_has_a_row_for_each_list_and_doorbell() {
    need!(device(), nic, "an RDMA device");
    let mut bench = Generator::start(&["bench-post", "--rounds", "20"]);
    let ended = bench.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let rows = ended.line()["rows"].as_array().unwrap();
    let lists: Vec<_> = rows.iter().map(|row| row["list"].as_u64().unwrap()).collect();
    assert_eq!(lists, [1, 16, 1, 16, 1, 16]);
    assert!(rows.iter().all(|row| row["ratio"].as_f64().unwrap() > 0.0));
}

#[test]
fn baselines_measure_something_without_a_device() {
    for (what, field) in
        [("flag-ping-pong", "half_round_trip"), ("word-ring", "per_second"), ("process-vm-writev", "gbps")]
    {
        let ended = Generator::start(&["baseline", what, "--seconds", "0.05"]).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(!ended.line()[field].is_null() && ended.line()["count"].as_u64().unwrap() > 0, "{ended:?}");
        assert_eq!(ended.line()["cores"].as_array().map(Vec::len), Some(2), "{ended:?}");
    }
    let mut answers = Generator::start(&["baseline", "udp-ping-pong", "--listen", "127.0.0.1:0"]);
    let address = answers.next_line()["address"].as_str().unwrap().to_owned();
    let asks =
        Generator::start(&["baseline", "udp-ping-pong", "--connect", &address, "--seconds", "0.05"]).end();
    assert_eq!(asks.code, Some(0), "{asks:?}");
    assert!(!asks.line()["half_round_trip"].is_null() && asks.line()["cores"].is_null(), "{asks:?}");
    assert_eq!(answers.end().code, Some(0));
}

#[test]
fn messages_after_pauses_are_timed_one_by_one() {
    need!(device(), nic, "an RDMA device");
    // The pause is longer than a message takes on a busy machine.
    let run = transfer("--pause 0.5 --count 3 --payload 8");
    assert_eq!((&run["posted"], &run["batch"], &run["first"]["count"]), (&3.into(), &1.into(), &3.into()));
    // The pauses are outside the timer, and really were.
    assert!(run["first"]["p50_ns"].as_f64().unwrap() < 0.5e9, "{run}");
    assert!(run["seconds"].as_f64().unwrap() >= 1.5, "{run}");
}
