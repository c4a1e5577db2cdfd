//! The order of a client's requests, how many of them it may have, and how many slots there are.

use std::time::Instant;

use measure::need;
use serving::{Arrival, Transport};
use slots::Status;

use crate::rogue::Rogue;
use crate::served::*;

/// Runs `then` while the server is busy with `busy`'s requests, so that its own wait together; drains `busy`.
fn while_busy<T>(busy: &mut Client, expected: &Expected, then: impl FnOnce() -> T) -> T {
    while busy.ask(expected) {}
    let found = then();
    take_all(busy, expected);
    found
}

/// Waits for the answers to all requests of a client: with results, and right ones.
fn take_all(client: &mut Client, expected: &Expected) {
    let since = Instant::now();
    while client.connection.outstanding() > 0 {
        assert!(since.elapsed() < PATIENCE, "{} requests without an answer", client.connection.outstanding());
        assert!(matches!(client.poll(expected), None | Some(Status::Ok)));
        std::thread::sleep(PAUSE);
    }
}

#[test]
fn a_client_s_requests_are_served_in_the_order_that_was_asked_for() {
    const ASKED: [usize; 3] = [3, 1, 2];
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 1);
    let kernels = ["--machine", "twin", "--mode", "gpu-graph", "--arrival", "completion"];
    for (options, order, wanted) in [
        (&["--engine", "twin"][..], "arrival", ASKED),
        (&["--engine", "twin"], "index", [1, 2, 3]),
        (&kernels, "index", [1, 2, 3]),
    ] {
        let (_server, address) = server(SMALL, &[options, &["--slot-order", order]].concat());
        let mut busy = Client::by(&nic, &address, 4, Arrival::Completion);
        let mut rogue = Rogue::new(&nic, &address, 4, Arrival::Completion);
        let mut once = || {
            (0..4).for_each(|_| rogue.receive());
            rogue.ask(0, |_| {});
            assert_eq!(rogue.answers_in_order(1), [0]);
            while_busy(&mut busy, &expected, || {
                ASKED.into_iter().for_each(|place| rogue.ask(place, |_| {}));
                rogue.answers_in_order(3)
            })
        };
        if order == "arrival" {
            // Whenever each is taken. A walk gives this order too if it takes the first before others arrive.
            (0..10).for_each(|_| assert_eq!(once(), wanted, "{options:?} {order}"));
        } else {
            // The first of them may be taken before the others have arrived: then once more.
            assert!((0..50).any(|_| once() == wanted), "{options:?} {order}");
        }
    }
}

#[test]
fn a_client_has_as_many_requests_as_its_limit_and_more_are_refused() {
    const CREDITS: u64 = 2;
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    for (options, arrivals) in WAYS {
        let (mut server, address) = server(SMALL, &[options, &["--credits", "2"]].concat());
        let arrival = arrivals[0];
        let mut good = Client::by(&nic, &address, 4, arrival);
        // It hears of the limit with its slots, and with each answer again.
        for _ in 0..3 {
            let asked =
                std::iter::repeat_with(|| good.ask(&expected)).take_while(|asked| *asked).count() as u64;
            assert_eq!(asked, CREDITS, "{options:?}");
            take_all(&mut good, &expected);
        }
        let mut rogue = Rogue::new(&nic, &address, 4, arrival);
        // They arrive while another's requests are computed, unless the server is faster: then once more.
        let mut refused = 0;
        let mut once = || {
            let statuses = while_busy(&mut good, &expected, || {
                (0..if arrival.has_receives() { 4 } else { 0 }).for_each(|_| rogue.receive());
                (0..4).for_each(|place| rogue.ask(place, |_| {}));
                [0, 1, 2, 3].map(|place| rogue.answer(place).unwrap())
            });
            assert_eq!(rogue.credits(3), CREDITS as u16, "{options:?}");
            let of = |wanted: Status| statuses.iter().filter(|status| **status == wanted).count() as u64;
            assert!(
                of(Status::Ok) >= CREDITS && of(Status::Ok) + of(Status::NoCredit) == 4,
                "{options:?} {statuses:?}"
            );
            refused += of(Status::NoCredit);
            of(Status::NoCredit) > 0
        };
        assert!((0..20).any(|_| once()), "{options:?}");
        good.run(&expected, 4);
        drop((good, rogue));
        assert_eq!(totals(&stopped(&mut server))["refused"], refused, "{options:?}");
    }
}

/// A slot's bytes on the server, its flag included.
fn slot_bytes() -> u64 {
    geometry(SMALL).server_stride() as u64 + slots::layout::FLAG_BYTES as u64
}

#[test]
fn as_many_as_4096_slots_serve_and_the_memory_says_how_many_there_can_be() {
    const SLOTS: u64 = 4096;
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    let memory = (SLOTS * slot_bytes()).to_string();
    for options in BOTH {
        let options =
            [options, &["--slots", "4096", "--slots-per-client", "4096", "--memory", &memory]].concat();
        let (mut server, address) = server(SMALL, &options);
        let mut all = Rogue::new(&nic, &address, SLOTS as u16, Arrival::Flag);
        // Their requests wait side by side.
        let places = [0, 1, 511, 512, 2047, 4094, 4095];
        places.into_iter().for_each(|place| all.ask(place, |_| {}));
        for place in places {
            assert_eq!(all.answer(place), Some(Status::Ok), "{options:?} slot {place}");
        }
        let more =
            Client::open(&nic, &address, SMALL, &setup_request(SMALL, 1, Arrival::Flag, Transport::Rc));
        assert!(more.is_err_and(|why| why.contains("0 are free")), "{options:?}");
        all.close(&mut server);
        Client::by(&nic, &address, SLOTS as u16, Arrival::Flag).run(&expected, 8);
        stopped(&mut server);
    }
    for options in BOTH {
        let one_less = (SLOTS * slot_bytes() - 1).to_string();
        let wanted = [options, &["--slots", "4096", "--memory", &one_less]].concat();
        refused(&wanted, &["--slots 4096", &memory, &one_less, "at most --slots 4095"]);
    }
}
