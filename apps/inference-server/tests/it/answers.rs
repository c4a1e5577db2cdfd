//! Answers of each engine and mode, by each arrival and transport, alone and with many clients.

use std::time::Instant;

use measure::need;
use serving::{Arrival, Transport};

use crate::served::*;

const MODES: [&str; 2] = ["cpu-cpu-ibverbs", "cpu-cpu-shim"];

#[test]
fn answers_are_the_engine_s_own_however_they_come() {
    let nic = need!(device(), nic, "an RDMA device");
    let runtime = need!(runtime(), reference, "ONNX Runtime");
    let expected = Expected::of(&runtime, SMALL, 3);
    for mode in MODES {
        let (mut server, address) = server(SMALL, &["--mode", mode, "--sessions", "7"]);
        for transport in [Transport::Rc, Transport::Uc] {
            for arrival in [Arrival::Flag, Arrival::Tail, Arrival::Completion] {
                let setup_request = setup_request(SMALL, 4, arrival, transport);
                Client::open(&nic, &address, SMALL, &setup_request).unwrap().run(&expected, 100);
            }
        }
        let sends = |transport| setup_request(SMALL, 4, Arrival::Send, transport);
        let refused = Client::open(&nic, &address, SMALL, &sends(Transport::Uc));
        assert!(refused.is_err_and(|why| why.contains("--transport rc")));
        Client::open(&nic, &address, SMALL, &sends(Transport::Rc)).unwrap().run(&expected, 100);
        let ended = server.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let totals = totals(&ended.lines);
        let counts = ["clients", "failed", "answered", "refused"].map(|name| totals[name].as_u64().unwrap());
        assert_eq!(counts, [7, 0, 700, 0], "{mode}: {ended:?}");
        assert_eq!(totals["mode"], mode);
    }
}

#[test]
fn the_twin_serves_its_own_answers() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 2);
    let (mut server, address) = server(SMALL, &["--engine", "twin"]);
    Client::usual(&nic, &address, SMALL, 2).run(&expected, 6);
    assert_eq!(totals(&stopped(&mut server))["engine"], "twin");
}

#[test]
fn release_s11_two_models_have_their_own_slots_and_answers() {
    let nic = need!(device(), nic, "an RDMA device");
    let runtime = need!(runtime(), reference, "ONNX Runtime");
    let models = [SLOW, "mobilenet-v3-small"];
    let (_server, address) =
        server(models[0], &["--model", models[1], "--slots", "2", "--slots-per-client", "2"]);
    let mut clients =
        models.map(|model| (Client::usual(&nic, &address, model, 2), Expected::of(&runtime, model, 2)));
    let since = Instant::now();
    while clients.iter().any(|(client, _)| client.answered < 5) {
        assert!(since.elapsed() < PATIENCE);
        for (client, expected) in &mut clients {
            client.ask(expected);
            client.poll(expected);
        }
    }
    let refused = Client::open(&nic, &address, SLOW, &setup_request(SLOW, 1, Arrival::Flag, Transport::Rc));
    assert!(refused.is_err_and(|why| why.contains("1 slots are wanted, 0 are free")));
}

#[test]
fn clients_have_their_turn_however_many_slots_one_has() {
    const CLIENTS: usize = 32;
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    for options in BOTH {
        let (mut server, address) = server(SMALL, &[options, &["--slots", "160"]].concat());
        // The first one has 32 slots, the others two: always a request more than is served.
        let slots = |number| if number == 0 { 32 } else { 2 };
        let mut clients: Vec<_> =
            (0..CLIENTS).map(|number| Client::usual(&nic, &address, SMALL, slots(number))).collect();
        let since = Instant::now();
        let mut serve = |answers: u64| -> Vec<u64> {
            let answered = |clients: &[Client]| clients.iter().map(|client| client.answered).sum::<u64>();
            while answered(&clients) < answers {
                assert!(since.elapsed() < PATIENCE);
                for client in &mut clients {
                    while client.ask(&expected) {}
                    client.poll(&expected);
                }
                std::thread::sleep(PAUSE);
            }
            clients.iter().map(|client| client.answered).collect()
        };
        // The first one is alone while the others write their first requests.
        let before = serve(3 * CLIENTS as u64 / 2);
        let after = serve(4 * CLIENTS as u64);
        let answered: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        // How many each has depends on when its process writes; `slots` tests their order.
        assert!(answered.iter().all(|count| *count > 0), "{options:?} {answered:?}");
        drop(clients);
        assert_eq!(totals(&stopped(&mut server))["clients"], CLIENTS as u64);
    }
}
