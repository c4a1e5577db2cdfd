//! Clients that go, and the server's own end.

use std::io::Write;
use std::net::TcpStream;
use std::time::Instant;

use cli::testing::{Program, Signal};
use measure::need;
use serving::{Arrival, Reply, Transport};
use slots::Status;
use verbs::connect::{Session, Wait};

use crate::rogue::Rogue;
use crate::served::*;

/// Waits until a client has joined.
fn joined(server: &mut Program) {
    while server.next_line()["kind"] != "joined" {}
}

#[test]
fn slots_of_a_killed_client_are_cleared_and_granted_again() {
    let nic = need!(device(), nic, "an RDMA device");
    let runtime = need!(runtime(), reference, "ONNX Runtime");
    let client = need!(client(), "doorbell-client beside the server");
    let expected = Expected::of(&runtime, SLOW, 3);
    let (mut server, address) = server(SLOW, &["--slots", "8"]);
    for arrival in ["flag", "tail", "completion"] {
        let options = ["--connect", &address, "--model", SLOW, "--slots", "8", "--seconds", "60"];
        let mut killed = Program::start(&client, &[&options[..], &["--arrival", arrival]].concat());
        joined(&mut server);
        std::thread::sleep(std::time::Duration::from_millis(50));
        killed.signal(Signal::SIGKILL);
        killed.end();
        let since = Instant::now();
        let mut next = loop {
            let all = setup_request(SLOW, 8, Arrival::Flag, Transport::Rc);
            match Client::open(&nic, &address, SLOW, &all) {
                Ok(client) => break client,
                Err(why) => assert!(since.elapsed() < PATIENCE, "{arrival}: {why}"),
            }
        };
        joined(&mut server);
        next.run(&expected, 20);
    }
    let lines = stopped(&mut server);
    let totals = totals(&lines);
    assert!(totals["answered"].as_u64() >= Some(60) && totals["clients"] == 6, "{lines:?}");
}

#[test]
fn a_client_that_takes_no_answer_holds_up_itself_alone() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    for options in ways(Arrival::Completion) {
        let (mut server, address) = server(SMALL, &[options, &["--patience", "1"]].concat());
        // Without receives each answer waits for ever.
        let mut silent = Rogue::new(&nic, &address, 4, Arrival::Completion);
        (0..4).for_each(|place| silent.ask(place, |_| {}));
        Client::by(&nic, &address, 4, Arrival::Completion).run(&expected, 8);
        let error =
            std::iter::repeat_with(|| server.next_line()["error"].take()).find(|error| error.is_string());
        let error = error.unwrap().to_string();
        let says = ["was not taken within 1 s", "deadline"].iter().any(|words| error.contains(words));
        assert!(says && !silent.session.is_alive(), "{options:?} {error}");
        Client::by(&nic, &address, 64, Arrival::Completion).run(&expected, 3);
        stopped(&mut server);
    }
}

#[test]
fn a_client_that_goes_during_its_set_up_and_a_stranger_leave_nothing_behind() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    let wait = || Wait::at_most(PATIENCE);
    for options in BOTH {
        let (mut server, address) = server(SMALL, &[options, &["--slots", "8"]].concat());
        // These stay, and say nothing or nonsense.
        let silent: Vec<_> = (0..4).map(|_| TcpStream::connect(&address).unwrap()).collect();
        let mut stranger = TcpStream::connect(&address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        for step in 0..12 {
            let mut session = Session::connect(&address, wait()).unwrap();
            // Slots of the client before may not be free yet.
            let reply = loop {
                session.send(&setup_request(SMALL, 8, Arrival::Flag, Transport::Rc)).unwrap();
                if step % 3 == 0 {
                    break None;
                }
                match session.receive("a grant", wait()).unwrap() {
                    Reply::Granted(grant) => break Some(grant),
                    Reply::Refused(_) => session = Session::connect(&address, wait()).unwrap(),
                }
            };
            if step % 3 == 2 {
                assert_eq!(reply.unwrap().sequences.len(), 8);
                session.send(&"no greeting").unwrap();
            }
        }
        let mut next = Client::by(&nic, &address, 8, Arrival::Flag);
        next.run(&expected, 20);
        drop((next, silent, stranger));
        assert_eq!(totals(&stopped(&mut server))["answered"], 20);
    }
}

#[test]
fn when_a_model_s_kernel_fails_the_server_ends_and_each_request_is_answered_or_lost() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    for mode in [
        "--mode gpu-graph",
        "--mode gpu-while",
        "--mode gpu-persistent",
        "--mode gpu-cpu",
        "--mode cpu-gpu",
        "--engine gpu --baseline fair",
        "--engine gpu --baseline faithful",
    ] {
        // Blocks of the model's kernels have more lanes than others; its first run is the first request's.
        let of_mode: Vec<&str> = mode.split(' ').collect();
        let options = [&["--machine", "twin", "--warmup", "0"], &of_mode[..]].concat();
        let (mut server, address) = server_in(Some(("DOORBELL_TWIN_LANES", "64")), SMALL, &options);
        // Where one kernel does all, it fails when it starts, before a client comes.
        let count = if mode.ends_with("persistent") { 0 } else { 3 };
        let mut clients: Vec<_> = (0..count).map(|_| Client::usual(&nic, &address, SMALL, 4)).collect();
        let since = Instant::now();
        let asked: usize = clients
            .iter_mut()
            .map(|client| std::iter::repeat_with(|| client.ask(&expected)).take_while(|asked| *asked).count())
            .sum();
        let (mut answered, mut lost) = (0, 0);
        while !clients.is_empty() {
            assert!(
                since.elapsed() < PATIENCE,
                "{mode}: {answered} answers and {lost} lost of {asked} requests"
            );
            clients.retain_mut(|client| {
                let is_alive = client.connection.is_alive();
                // What came before the end counts. A queue pair whose peer is gone fails.
                let is_up = loop {
                    match client.connection.poll() {
                        Ok(Some(found)) => answered += usize::from(found.is_ok()),
                        Ok(None) => break is_alive,
                        Err(_) => break false,
                    }
                };
                lost += if is_up { 0 } else { client.connection.outstanding() };
                is_up
            });
            std::thread::sleep(PAUSE);
        }
        assert!(
            asked == 4 * count && answered + lost == asked && (lost > 0) == (count > 0),
            "{mode}: {asked} {answered} {lost}"
        );
        let ended = server.end_since(since);
        assert_eq!(ended.code, Some(1), "{mode}: {ended:?}");
        assert!(ended.stderr.contains("memory for the stacks of its lanes"), "{mode}: {ended:?}");
    }
}

#[test]
fn release_s12_at_its_end_the_server_answers_each_request_or_says_that_it_stops() {
    let nic = need!(device(), nic, "an RDMA device");
    let runtime = need!(runtime(), reference, "ONNX Runtime");
    let expected = Expected::of(&runtime, SLOW, 3);
    for arrival in [Arrival::Flag, Arrival::Completion] {
        let (mut server, address) = server(SLOW, &["--slots", "64"]);
        let setup_request = setup_request(SLOW, 8, arrival, Transport::Rc);
        let mut clients: Vec<_> =
            (0..8).map(|_| Client::open(&nic, &address, SLOW, &setup_request).unwrap()).collect();
        clients[0].run(&expected, 1);
        for client in &mut clients {
            while client.ask(&expected) {}
        }
        let signalled = server.signal(Signal::SIGTERM);
        let (mut ok, mut stopping) = (1, 0);
        while ok + stopping < 65 {
            assert!(signalled.elapsed() < PATIENCE, "{ok} results, {stopping} refusals of 65");
            for client in &mut clients {
                match client.poll(&expected) {
                    Some(Status::Ok) => ok += 1,
                    Some(Status::Stopping) => stopping += 1,
                    Some(other) => panic!("{other:?}"),
                    None => {}
                }
            }
        }
        assert!(stopping > 0);
        let ended = server.end_since(signalled);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let totals = totals(&ended.lines);
        let counts = ["answered", "refused"].map(|name| totals[name].as_u64().unwrap());
        assert_eq!((counts, &totals["interrupted"]), ([ok, stopping], &true.into()), "{ended:?}");
    }
}
