//! Requests that cannot be: one line that says what, where and what to do; exit code 2.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use measure::need;

use crate::ends::{GENERATOR, Generator, command, device};

fn refused(arguments: &[&str], words: &[&str]) {
    cli::testing::refused(&GENERATOR, arguments, words);
}

#[test]
fn options_that_do_not_exist_or_do_not_fit_are_named() {
    for (arguments, words) in [
        (&[][..], &["--listen", "--connect"][..]),
        (&["--frobnicate"], &["--frobnicate", "(--help tells more)"]),
        (
            &["--conect", "h:1"],
            &["--conect", "a similar argument exists: '--connect'", "(--help tells more)"],
        ),
        (&["--connect", "localhost"], &["--connect localhost has no port", "localhost:18515"]),
        (&["--listen", "0.0.0.0"], &["--listen 0.0.0.0 has no port", "0.0.0.0:18515"]),
        (&["--connect", "h:1", "--op", "read"], &["read", "write-imm"]),
        (&["--connect", "h:1", "--payload", "7"], &["--payload 7", "8 to"]),
        (&["--connect", "h:1", "--payload", "999999999"], &["--payload 999999999", "to 67108864"]),
        (&["--connect", "h:1", "--payload", "x"], &["--payload", "x"]),
        (&["--connect", "h:1", "--qps", "100000"], &["--qps 100000", "1 to 1024"]),
        (&["--connect", "h:1", "--batch", "10", "--doorbell-batch", "3"], &["multiple of"]),
        (&["--connect", "h:1", "--count", "0"], &["--count 0"]),
        (&["--connect", "h:1", "--seconds", "-1"], &["--seconds"]),
        (&["--connect", "h:1", "--warm-up", "0"], &["--warm-up 0", "to 60"]),
        (&["--connect", "h:1", "--pause", "1"], &["--count"]),
        (&["--connect", "h:1", "--pause", "0", "--count", "1"], &["--pause 0", "to 60"]),
        (&["--connect", "h:1", "--pause", "1", "--count", "1", "--qps", "2"], &["--pause", "--qps"]),
        (&["--connect", "h:1", "--mtu", "1500"], &["1500 is no MTU"]),
        (&["--connect", "h:1", "--sl", "16"], &["--sl", "16", "0 to 15"]),
        (&["--connect", "h:1", "--traffic-class", "256"], &["--traffic-class", "256", "0 to 255"]),
        (&["--connect", "h:1", "--timeout", "32"], &["--timeout", "32", "0 to 31"]),
        (&["--connect", "h:1", "--retry", "-1"], &["--retry", "-1", "0 to 7"]),
        (&["--connect", "h:1", "--rnr-retry", "x"], &["--rnr-retry", "x", "0 to 7"]),
        (&["--connect", "h:1", "--service", "uc"], &["UC WRITEs"]),
        (&["--connect", "h:1", "--listen", "h:2"], &["--connect", "--listen"]),
        (
            &["--connect", "h:1", "--poster", "cpu-shim", "--gpu", "0"],
            &["--gpu 0 would do nothing", "a gpu --poster"],
        ),
        (
            &["--connect", "h:1", "--receiver", "host-twin"],
            &["--receiver host-twin would do nothing", "--listen"],
        ),
        (
            &["--listen", "h:1", "--poster", "host-twin"],
            &["--poster host-twin would do nothing", "--connect"],
        ),
        (&["baseline", "word-ring", "--seconds", "0"], &["--seconds 0"]),
        (&["baseline", "word-ring", "--cores", "1,2,3"], &["--cores"]),
        (&["baseline", "udp-ping-pong"], &["--listen", "--connect"]),
        (
            &["baseline", "word-ring", "--listen", "127.0.0.1:1"],
            &["--listen 127.0.0.1:1 would do nothing", "baseline udp-ping-pong", "leave it out"],
        ),
        (
            &["baseline", "udp-ping-pong", "--connect", "127.0.0.1:1", "--cores", "0,1"],
            &["--cores 0,1 would do nothing", "leave it out"],
        ),
        (&["bench-post", "--payload", "1"], &["--payload 1", "8 to 4096"]),
    ] {
        refused(arguments, words);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    for arguments in [
        &["probe"][..],
        &["probe", "--json"],
        &["baseline", "word-ring", "--seconds", "0.02"],
        &["baseline", "word-ring", "--seconds", "0.02", "--json", "-"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(arguments).stdout(writer).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        // 101 is a panic's. JSON that nobody got is an error of one line.
        assert!(output.status.code().is_some_and(|code| code <= 2), "{arguments:?}: {output:?}");
        assert!(said.lines().count() <= 1 && !said.contains("panicked"), "{arguments:?}: {said}");
        assert_eq!(said.contains("Broken pipe"), arguments.contains(&"--json"), "{said}");
    }
}

#[test]
fn a_host_without_a_device_is_told_where_there_is_one() {
    // What may lie beneath this test is left out: a host with a card, or without libibverbs, cannot tell.
    let bare = |arguments: &[&str]| command(arguments).env_remove("LD_PRELOAD").output().unwrap();
    let said = String::from_utf8(bare(&["probe", "--json"]).stdout).unwrap();
    need!(said.contains("no RDMA device"), none, "a host with libibverbs and no device of its own");
    for end in [["--listen", "127.0.0.1:0"], ["--connect", "127.0.0.1:1"]] {
        let output = bare(&end);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        for words in ["no RDMA device", "`softnic run -- generator", "--help"] {
            assert!(said.contains(words), "{said}");
        }
    }
}

#[test]
fn a_device_port_or_gid_that_is_not_there_is_named() {
    need!(device(), nic, "an RDMA device");
    refused(&["--listen", "127.0.0.1:0", "--nic", "mlx5_99"], &["mlx5_99"]);
    refused(&["--listen", "127.0.0.1:0", "--port", "77"], &["77"]);
    refused(&["--listen", "127.0.0.1:0", "--gid-index", "250"], &["250"]);
}

#[test]
fn addresses_that_cannot_be_used_say_what_to_do() {
    need!(device(), nic, "an RDMA device");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(&["--listen", &address], &[&address, "in use", "a free port (0: any)"]);
    drop(taken);
    refused(&["--connect", &address], &[&address, "is a receiver listening there?"]);
}

#[test]
fn a_peer_that_is_no_generator_is_refused_by_both_ends() {
    need!(device(), nic, "an RDMA device");
    for (line, words) in [
        ("HTTP/1.1 400 Bad Request\r\n", "is not a generator"),
        ("{\"generator\":7}\n", "is a generator of version 7"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stranger = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heard = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut heard).unwrap();
            stream.write_all(line.as_bytes()).unwrap();
        });
        refused(&["--connect", &address], &[words, &address]);
        stranger.join().unwrap();
    }
}

#[test]
fn strangers_cost_a_receiver_a_line_each_and_are_no_sessions() {
    need!(device(), nic, "an RDMA device");
    for sessions in ["1", "2"] {
        let (mut receiver, address) = Generator::receiver(&["--sessions", sessions]);
        for line in ["GET / HTTP/1.1\r\n", "{\"generator\":7}\n", ""] {
            TcpStream::connect(&address).unwrap().write_all(line.as_bytes()).unwrap();
        }
        for _ in 0..sessions.parse().unwrap() {
            let sent = Generator::start(&["--connect", &address, "--count", "100"]).end();
            assert_eq!(sent.code, Some(0), "{sent:?}");
        }
        let ended = receiver.end();
        // All of it: that a sender has ended as it should is no news to a NIC either.
        let said: Vec<&str> = ended.stderr.lines().collect();
        assert_eq!(
            (ended.code, said.len(), ended.lines.len().to_string()),
            (Some(0), 3, sessions.into()),
            "{ended:?}"
        );
        for (line, words) in said.iter().zip(["is not a generator", "of version 7", "closed the connection"])
        {
            assert!(line.contains(words) && line.ends_with("; still listening"), "{ended:?}");
        }
    }
}

#[test]
fn a_plan_beyond_the_limits_is_refused_by_the_receiver_too() {
    need!(device(), nic, "an RDMA device");
    let (mut receiver, address) = Generator::receiver(&[]);
    let mut stream = TcpStream::connect(&address).unwrap();
    let plan = r#"{"op":"write","service":"rc","payload_bytes":99999999999,"qps":1,"batch":1,"doorbell_batch":1,"window":2,"inline":false,"verify":"end"}"#;
    stream.write_all(format!("{{\"generator\":2,\"warm_up\":false,\"plan\":{plan}}}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert!(answer.contains("payload 99999999999 is out of range"), "{answer}");
    assert_eq!(receiver.end().code, Some(2));
}

#[test]
fn ends_with_different_mtus_refuse_each_other_by_name() {
    need!(device(), nic, "an RDMA device");
    let (mut receiver, address) = Generator::receiver(&["--mtu", "1024"]);
    refused(&["--connect", &address, "--mtu", "512"], &["MTUs differ", "512", "1024"]);
    assert_eq!(receiver.end().code, Some(2));
}
