//! Clients that come, go and die: the server keeps nothing of them, and serves the others.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cli::testing::{Program, Signal};
use measure::need;
use serving::{Arrival, Connection, ConnectionError, Transport, Wish, model};
use slots::Geometry;
use verbs::connect::{PathOptions, Wait};
use zoo::Manifest;

use crate::nic_faults::listed;
use crate::played::MODEL;
use crate::server::{PATIENCE, World, assert_clean, joined, totals};

/// Connections of the test that counts what they leave behind; more of them on demand.
const CONNECTIONS: &str = "DOORBELL_CONNECTIONS";
/// Slots of the server, which one client can have.
const SLOTS: &str = "8";

/// Waits until a client gets all slots, and is served.
fn all_slots_serve(world: &World, address: &str) {
    let since = Instant::now();
    loop {
        let ended = world.client(address, &["--slots", SLOTS, "--count", "160"]).end();
        if ended.code == Some(0) {
            return assert_clean(&ended, 160);
        }
        assert!(ended.stderr.contains("slots are wanted") && since.elapsed() < PATIENCE, "{ended:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Passes a connection's messages on, and counts them; the one after `steps` others comes never. Returns the address, and the count.
fn proxy(server: &str, steps: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (server, passed) = (server.to_owned(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&passed);
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(server).unwrap();
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let count = Arc::clone(&count);
            std::thread::spawn(move || {
                let mut message = [0; 1 << 16];
                while let Ok(bytes @ 1..) = from.read(&mut message) {
                    if count.fetch_add(1, Ordering::SeqCst) >= steps
                        || to.write_all(&message[..bytes]).is_err()
                    {
                        // Until the other end goes.
                        continue;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    (address, passed)
}

#[test]
fn a_client_that_is_killed_at_any_step_leaves_its_slots() {
    let world = need!(World::new("steps"), server, "a NIC, ONNX Runtime and inference-server");
    let (mut server, address) = world.server(&["--slots", SLOTS]);
    let load = ["--slots", SLOTS, "--seconds", "60"];
    let mut steps = 0;
    // A wish, a grant, a greeting and a barrier's message from each end, some of them together: then nothing more comes over TCP.
    let last = loop {
        let (through, passed) = proxy(&address, steps);
        let mut client = world.client(&through, &load);
        let since = Instant::now();
        let is_last = loop {
            if passed.load(Ordering::SeqCst) > steps {
                break false;
            }
            // The set-up is over when the server has the client.
            if steps >= 4 && since.elapsed() > Duration::from_secs(1) {
                break true;
            }
            assert!(since.elapsed() < PATIENCE, "step {steps}");
            std::thread::yield_now();
        };
        client.signal(Signal::SIGKILL);
        client.end();
        all_slots_serve(&world, &address);
        if is_last {
            break steps;
        }
        steps += 1;
    };
    assert!((4..12).contains(&last), "{last} messages");
    assert_eq!(totals(&mut server)["refused"], 0);
}

#[test]
fn a_client_that_is_killed_while_it_asks_leaves_its_slots() {
    let world = need!(World::new("asking"), server, "a NIC, ONNX Runtime and inference-server");
    for (arrival, ms) in [("flag", 0), ("flag", 3), ("tail", 1), ("completion", 20)] {
        let (mut server, address) = world.server(&["--slots", SLOTS]);
        let load = ["--slots", SLOTS, "--seconds", "60", "--arrival", arrival];
        let mut client = world.client(&address, &load);
        joined(&mut server, 1);
        std::thread::sleep(Duration::from_millis(ms));
        client.signal(Signal::SIGKILL);
        client.end();
        all_slots_serve(&world, &address);
        assert_eq!(totals(&mut server)["clients"], 2);
    }
}

/// Descriptors, threads and resident KiB of a process.
fn holds(process: &str) -> [usize; 3] {
    let folder = Path::new("/proc").join(process);
    let status = std::fs::read_to_string(folder.join("status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    [std::fs::read_dir(folder.join("fd")).unwrap().count(), field("Threads:"), field("VmRSS:")]
}

/// A connection of this process that asks once, and is answered or goes without waiting for it.
fn come_and_go(
    nic: (&verbs::Context, &verbs::connect::Path),
    address: &str,
    wish: &Wish,
    geometry: &Geometry,
    waits: bool,
) {
    let wait = Wait::at_most(PATIENCE);
    let since = Instant::now();
    let mut connection = loop {
        match Connection::open(nic, address, wish, geometry.clone(), wait) {
            Ok(connection) => break connection,
            // The server says that a client has left, and then takes its slots.
            Err(ConnectionError::Refused(_)) if since.elapsed() < PATIENCE => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    let input = vec![0; geometry.request.entries()[0].length as usize];
    let deadline_ns = PATIENCE.as_nanos() as u64;
    assert!(connection.ask(1, 2, &[&input], deadline_ns).unwrap());
    let since = Instant::now();
    while waits && connection.poll().unwrap().is_none() {
        assert!(since.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

/// Waits for the line of a client that has left.
fn left(server: &mut Program) {
    while server.next_line()["kind"] != "left" {}
}

#[test]
fn a_thousand_connections_leave_no_descriptor_thread_memory_slot_or_queue_pair() {
    let world = need!(World::new("thousand"), server, "a NIC, ONNX Runtime and inference-server");
    let count: usize = std::env::var(CONNECTIONS).map_or(1000, |count| count.parse().unwrap());
    let (mut server, address) = world.server(&["--slots", SLOTS]);
    let (context, path) = PathOptions::default().open().unwrap();
    let (manifest, _) = Manifest::find(MODEL, Some(Path::new(world.files.folder()))).unwrap();
    let geometry = model::geometry(&manifest, 0).unwrap();
    let process = server.id().to_string();
    let mut before = None;
    for number in 0..count {
        // What a few of each kind leave in caches is no leak.
        if number == count / 10 {
            before = Some((holds(&process), holds("self")));
        }
        let arrival = [Arrival::Flag, Arrival::Tail, Arrival::Completion][number % 3];
        let transport = [Transport::Rc, Transport::Uc][number % 2];
        let wish = Wish::new(MODEL, &geometry, 8, arrival, transport);
        come_and_go((&context, &path), &address, &wish, &geometry, number % 7 > 0);
        left(&mut server);
    }
    // Its thread ends behind its line.
    let ([descriptors, threads, kib], ours) = before.unwrap();
    let since = Instant::now();
    let now = loop {
        let now = holds(&process);
        if now[1] <= threads || since.elapsed() > PATIENCE {
            break now;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    println!(
        "{count} connections: the server had {descriptors} descriptors, {threads} threads, {kib} KiB, and has {now:?}"
    );
    assert!(now[0] <= descriptors && now[1] <= threads, "{now:?}");
    // 900 connections that each left a page would be 3,600 KiB.
    assert!(now[2] < kib + 2048, "{now:?} KiB, {kib} before");
    // Other tests of this process open files too, but not one for each connection.
    assert!(holds("self")[0] < ours[0] + count / 4, "{:?}, {ours:?} before", holds("self"));
    // A card does not say what this process has on it.
    if let Ok(nic) = listed(&server) {
        assert_eq!(nic["devices"][0]["qps"], 0, "{nic}");
    }
    all_slots_serve(&world, &address);
    let totals = totals(&mut server);
    assert_eq!(
        (&totals["failed"], totals["clients"].as_u64()),
        (&0.into(), Some(count as u64 + 1)),
        "{totals}"
    );
}
