//! Connections whose other end is silent: absent, killed or slow. Each wait ends, and none too soon.
//!
//! Two fabrics at two loopback addresses are two hosts here: their processes see only each other's packets.
//! Of times only the guarantee is asserted: no end times out before its whole time-out has passed.

use std::net::UdpSocket;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use measure::Loopback;

use crate::c_program::compile;
use crate::counters::Counters;
use crate::fabric::{Fabric, Layer, OnNic};
use crate::program::{DEADLINE, Signal, within};
use crate::tcp_port;

/// Codes of the response time-out: where nothing answers, and where a starved program must not be late.
const SHORT: u32 = 16;
const LONG: u32 = 18;
/// How often it is asked again.
const RETRIES: u64 = 3;

/// What all attempts have at least, in milliseconds: 4.096 µs times two to the code each (IBTA vol. 1 §12.6).
fn patience_ms(code: u32) -> u64 {
    (RETRIES + 1) * (4_096 << code) / 1_000_000
}

/// Two loopback addresses, and what keeps them from other tests.
fn addresses() -> ([String; 2], [Loopback; 2]) {
    let held = [Loopback::unused(), Loopback::unused()];
    (held.each_ref().map(|one| one.address().to_string()), held)
}

fn program() -> Result<String, String> {
    let header = std::path::Path::new("/usr/include/rdma/rdma_cma.h");
    header.exists().then_some(()).ok_or("rdma_cma.h not found (package librdmacm-dev)")?;
    Ok(compile("cm_silence", &["-lrdmacm", "-libverbs"])?.display().to_string())
}

/// Two hosts with this connection manager time-out: servers at the first address, clients at the second.
fn two_hosts(code: u32, places: &[String; 2]) -> [Fabric; 2] {
    let config = format!("cm_timeout = {code}\ncm_retries = {RETRIES}\n");
    let all = Fabric::new(Layer::Roce).with_config(&config).with_options(&["--path", "wire"]);
    let client = all.neighbour().with_options(&["--ipv4", &places[1]]);
    [all.with_options(&["--ipv4", &places[0]]), client]
}

/// Waits until a program has printed this line.
fn says(it: &mut OnNic, wanted: &str) {
    let is_it = |line: &str| line == wanted;
    let said = within(DEADLINE, || it.program.output().lines().any(is_it) || it.program.exited().is_some());
    let still = it.program.exited().is_none();
    assert!(said && still, "{wanted}: {}\n{}", it.program.ending(), it.program.tail());
}

/// Kills a program; returns when it is gone.
fn kill(mut it: OnNic) {
    it.program.signal(Signal::SIGKILL);
    assert!(within(Duration::from_secs(20), || it.program.exited().is_some()), "{}", it.program.tail());
}

/// A client to its good end: what it waited for last, in milliseconds, and what its NIC counted.
fn waited(mut it: OnNic) -> (u64, Counters) {
    let output = it.program.succeed();
    let ms = output.lines().rev().find_map(|line| line.strip_prefix("waited ")?.strip_suffix(" ms"));
    let ms = ms.unwrap_or_else(|| panic!("no wait in {output}")).parse().expect("a number");
    (ms, it.counters())
}

#[test]
fn who_does_not_answer_is_unreachable_after_all_requests_and_not_sooner() {
    let program = measure::need!(program(), "a C compiler and headers of librdmacm");
    let (places, _held) = addresses();
    let [_, client] = two_hosts(SHORT, &places);
    // First a socket that takes every packet and answers none, then no socket at all.
    for is_there in [true, false] {
        let taker = is_there.then(|| UdpSocket::bind((&*places[0], 4791)).expect("nobody has its port"));
        let ask = client.start(&[&program, "ask", "nobody", &places[0], "7471", &places[1]]);
        let (ms, counters) = waited(ask);
        assert!(ms >= patience_ms(SHORT), "{ms} of {} ms", patience_ms(SHORT));
        let counted = ["cm_sent", "cm_repeated", "cm_taken"].map(|name| counters.value(name));
        assert_eq!(counted, [RETRIES + 1, RETRIES, 0]);
        let Some(taker) = taker else { continue };
        taker.set_nonblocking(true).expect("every socket does that");
        let mut packet = [0; 2048];
        let got: Vec<usize> = std::iter::from_fn(|| taker.recv(&mut packet).ok()).collect();
        // BTH, DETH, the datagram, the ICRC.
        assert_eq!(got, [12 + 8 + 256 + 4; RETRIES as usize + 1], "every request, and nothing else");
    }
}

#[test]
fn who_dies_before_the_answer_is_refused_for_on_the_same_host_and_unreachable_from_another() {
    let program = measure::need!(program(), "a C compiler and headers of librdmacm");
    let (places, _held) = addresses();
    let [server, client] = two_hosts(LONG, &places);
    let port = tcp_port::unused().to_string();
    let (there, here) = (&*places[0], &*places[1]);
    let once = Duration::from_millis(patience_ms(LONG) / (RETRIES + 1));
    for (case, fabric, from) in [("orphan", &server, there), ("nobody", &client, here)] {
        let attempt = || {
            let mut dies = server.start(&[&program, "serve", "dies", there, &port]);
            says(&mut dies, "listening");
            let begun = Instant::now();
            let asks = fabric.start(&[&program, "ask", case, there, &port, from]);
            assert!(within(DEADLINE, || dies.program.exited().is_some()), "{}", dies.program.tail());
            let lived = begun.elapsed();
            assert!(dies.program.output().contains("asked"), "{}", dies.program.tail());
            // Without a core it may live to be asked again and say that it takes its time: over a minute.
            if case == "nobody" && lived >= once {
                kill(asks);
                return None;
            }
            Some(asks)
        };
        let asks = (0..20).find_map(|_| attempt()).expect("a core for a second, once in twenty times");
        let (ms, counters) = waited(asks);
        if case == "nobody" {
            assert!(ms >= patience_ms(LONG), "{ms} of {} ms", patience_ms(LONG));
            assert_eq!(counters.value("cm_repeated"), RETRIES);
        }
    }
}

#[test]
fn a_program_that_takes_longer_than_all_requests_would_is_waited_for_once_it_says_so() {
    let program = measure::need!(program(), "a C compiler and headers of librdmacm");
    let (places, _held) = addresses();
    let [server, client] = two_hosts(LONG, &places);
    let port = tcp_port::unused().to_string();
    let mut late = server.start(&[&program, "serve", "late", &places[0], &port]);
    says(&mut late, "listening");
    let (ms, counters) = waited(client.start(&[&program, "ask", "late", &places[0], &port, &places[1]]));
    assert!(ms > patience_ms(LONG), "{ms} ms, and without an MRA it is over after {}", patience_ms(LONG));
    // One MRA for the second request, and no third one but where that MRA lacked a core.
    let repeated = counters.value("cm_repeated");
    assert!((1..=RETRIES).contains(&repeated), "{repeated} requests were sent again");
    late.program.succeed();
    assert!(late.counters().value("cm_answered_again") >= 1);
}

#[test]
fn who_dies_while_connected_ends_in_retries_and_the_end_of_the_connection_is_not_waited_for_for_ever() {
    let program = measure::need!(program(), "a C compiler and headers of librdmacm");
    let (places, _held) = addresses();
    let [server, client] = two_hosts(SHORT, &places);
    let port = tcp_port::unused().to_string();
    let mut holds = server.start(&[&program, "serve", "hold", &places[0], &port]);
    says(&mut holds, "listening");
    let mut widow = client.start(&[&program, "ask", "widow", &places[0], &port, &places[1]]);
    says(&mut widow, "sending");
    says(&mut holds, "connected");
    kill(holds);
    let (ms, counters) = waited(widow);
    assert!(ms >= patience_ms(SHORT), "{ms} of {} ms", patience_ms(SHORT));
    // DREQs; a REQ of a server that lacked a core may be among them.
    assert!(counters.value("cm_repeated") >= RETRIES);
    assert_eq!(counters.value("error_retry_exceeded"), 1);
}

#[test]
fn refusals_and_private_data_cross_the_wire() {
    let program = measure::need!(program(), "a C compiler and headers of librdmacm");
    let cases =
        compile("cm_cases", &["-lrdmacm", "-libverbs"]).expect("as the other one").display().to_string();
    let (places, _held) = addresses();
    let [server, client] = two_hosts(LONG, &places);
    let port = tcp_port::unused().to_string();
    let (there, here) = (&*places[0], &*places[1]);
    for case in ["accept", "reject"] {
        let mut serves = server.start(&[&cases, "serve", case, there, &port]);
        says(&mut serves, "listening");
        let mut asks = client.start(&[&cases, "ask", case, there, &port, here]);
        asks.program.succeed();
        serves.program.succeed();
    }
    // No program listens on this port. The NIC that owns the address says so; its program has another port.
    let mut other = server.start(&[&program, "serve", "hold", there, &port]);
    says(&mut other, "listening");
    let other_port = tcp_port::unused().to_string();
    let mut asks = client.start(&[&program, "ask", "unserved", there, &other_port, here]);
    asks.program.succeed();
}

/// The NIC's lines about the owner of a port.
fn reports(it: &OnNic) -> Vec<String> {
    let output = it.program.output();
    output.lines().filter(|line| line.contains("UDP port 4791")).map(ToOwned::to_owned).collect()
}

#[test]
fn a_port_that_a_foreign_process_owns_is_reported_once_and_one_of_the_fabric_never() {
    let program = measure::need!(program(), "a C compiler and headers of librdmacm");
    let (places, _held) = addresses();
    let [fabric, other] = two_hosts(SHORT, &places);
    let (there, here) = (&*places[0], &*places[1]);
    let serve = |fabric: &Fabric, place: &str| {
        let mut serves = fabric.start(&[&program, "serve", "hold", place, &tcp_port::unused().to_string()]);
        says(&mut serves, "listening");
        serves
    };
    // A plain socket, which is this process's.
    let socket = UdpSocket::bind((there, 4791)).expect("nobody has its port");
    let one = serve(&fabric, there);
    assert!(within(DEADLINE, || !reports(&one).is_empty()), "{}", one.program.tail());
    let told = &reports(&one)[0];
    let own = std::fs::metadata("/proc/self").expect("the owner's user is this process's").uid();
    for part in [there, &format!("user {own} "), "--ipv4", "--fabric"] {
        assert!(told.contains(part), "no {part} in {told}");
    }
    drop(socket);
    drop(one);
    // A NIC of another fabric: the second of three, whose third is told of the first as well.
    let first = serve(&other, here);
    let foreign = other.neighbour();
    let owners = [serve(&foreign, here), serve(&foreign, here)];
    let of_fabric = serve(&other, here);
    for owner in &owners {
        assert!(within(DEADLINE, || !reports(owner).is_empty()), "{}", owner.program.tail());
        assert!(
            reports(owner)[0]
                .contains(&format!("UDP port 4791 of {here} belongs to a process of user {own} "))
        );
    }
    // Looks go on while these lines are read again.
    std::thread::sleep(Duration::from_secs(3));
    let counts = owners.iter().chain([&first, &of_fabric]).map(|it| reports(it).len());
    assert_eq!(counts.collect::<Vec<_>>(), [1, 1, 0, 0]);
}
