//! What a client can reach: its own slots and flags to the byte, and nothing else.

use std::time::Instant;

use cli::testing::Signal;
use measure::need;
use serving::Arrival;
use slots::Status;
use verbs::Remote;
use verbs::code::WcStatus;

use crate::rogue::Rogue;
use crate::served::*;

#[test]
fn a_key_opens_its_client_s_own_slots_alone() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    for options in BOTH {
        let (mut server, address) = server(SMALL, &[options, &["--slots", "16"]].concat());
        let mut good = Client::usual(&nic, &address, SMALL, 4);
        let victim = Rogue::new(&nic, &address, 4, Arrival::Flag);
        let foreign = victim.remote;
        // Slots and flags: another's key, and bytes around one's own. A try costs the queue pair.
        for (region, bytes) in [4 * geometry(SMALL).server_stride() as u64, 4 * 8].into_iter().enumerate() {
            for place in ["inside", "another's", "before", "behind", "far"] {
                let mut rogue = Rogue::new(&nic, &address, 4, Arrival::Flag);
                let own = rogue.remote[region];
                let (address, rkey) = match place {
                    "inside" => (own.address + bytes - 8, own.rkey),
                    "another's" => (foreign[region].address, foreign[region].rkey),
                    "before" => (own.address - 1, own.rkey),
                    "behind" => (own.address + bytes - 7, own.rkey),
                    _ => (own.address + bytes, own.rkey),
                };
                let status = rogue.write(Remote { address, rkey });
                let wanted = if place == "inside" { WcStatus::Success } else { WcStatus::RemoteAccess };
                assert_eq!(status, wanted, "{options:?} {place} region {region}");
                good.run(&expected, 1);
                rogue.close(&mut server);
            }
            let mut rogue = Rogue::new(&nic, &address, 4, Arrival::Flag);
            let own = rogue.remote[region];
            let at = Remote { address: own.address, rkey: own.rkey };
            assert_ne!(rogue.read(at), WcStatus::Success, "a client reads nothing");
            rogue.close(&mut server);
        }
        drop((good, victim));
        stopped(&mut server);
    }
}

#[test]
fn a_client_that_names_another_s_slot_harms_itself_alone() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    for options in ways(Arrival::Completion) {
        let (mut server, address) = server(SMALL, &[options, &["--status", "-"]].concat());
        let mut good = Client::by(&nic, &address, 4, Arrival::Completion);
        // A slot in which the other client has no request now, and one that is nobody's.
        for (strays, slot) in [(1, 3), (2, 1000)] {
            let mut rogue = Rogue::new(&nic, &address, 2, Arrival::Completion);
            while server.next_line()["client"] != strays {}
            rogue.name(slot);
            good.run(&expected, 3);
            if options.iter().any(|word| word.starts_with("gpu-")) {
                // Kernels count it, and go on: it has used one of its own receives.
                let since = Instant::now();
                let model = loop {
                    server.signal(Signal::SIGUSR1);
                    let model = server.next_line()["models"][0].take();
                    if model["strays"] == strays || since.elapsed() > PATIENCE {
                        break model;
                    }
                    // A wait tells of them when it ends.
                    good.run(&expected, 1);
                };
                let counts = (&model["strays"], &model["refused"]);
                assert_eq!(counts, (&strays.into(), &0.into()), "{options:?} {model}");
                rogue.receive();
                rogue.ask(1, |_| {});
                assert_eq!(rogue.answer(1), Some(Status::Ok), "{options:?}");
                rogue.close(&mut server);
            } else {
                let line = server.next_line();
                let error = line["error"].as_str().unwrap_or_default();
                assert!(
                    error.contains(&format!("slot {slot} is none of the client's")),
                    "{options:?} {line}"
                );
                assert!(!rogue.session.is_alive());
            }
            good.run(&expected, 1);
        }
        drop(good);
        stopped(&mut server);
    }
}

#[test]
fn a_bad_send_is_answered_with_its_status_and_one_that_is_too_long_costs_its_client_alone() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    for options in [
        &["--engine", "twin"][..],
        &["--machine", "twin", "--mode", "cpu-gpu"],
        &["--machine", "twin", "--mode", "gpu-cpu", "--arrival", "send"],
        &["--machine", "twin", "--mode", "gpu-graph", "--arrival", "send"],
    ] {
        let (mut server, address) = server(SMALL, options);
        let mut good = Client::by(&nic, &address, 4, Arrival::Send);
        let mut rogue = Rogue::new(&nic, &address, 2, Arrival::Send);
        let mut status = |rogue: &mut Rogue, place: usize| {
            good.run(&expected, 3);
            rogue.answer(place)
        };
        rogue.receive();
        rogue.ask_cut(0);
        assert_eq!(status(&mut rogue, 0), Some(Status::BadTensors), "{options:?}");
        // It lands in slot 1, and names another.
        rogue.receive();
        rogue.ask(1, |prefix| prefix[60] ^= 2);
        assert_eq!(status(&mut rogue, 1), Some(Status::BadSequence), "{options:?}");
        rogue.receive();
        rogue.ask(0, |_| {});
        assert_eq!(status(&mut rogue, 0), Some(Status::Ok), "{options:?}");
        rogue.send_too_many();
        let since = Instant::now();
        while rogue.session.is_alive() {
            assert!(since.elapsed() < PATIENCE, "{options:?}");
            good.run(&expected, 1);
        }
        good.run(&expected, 3);
        drop(good);
        let totals = totals(&stopped(&mut server)).clone();
        assert_eq!((&totals["failed"], &totals["refused"]), (&1.into(), &2.into()), "{options:?} {totals}");
    }
}

#[test]
fn what_a_client_left_in_its_slots_is_no_request_of_the_next_one() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    for (options, arrivals) in WAYS {
        let (mut server, address) = server(SMALL, &[options, &["--slots", "4"]].concat());
        for arrival in
            arrivals.iter().filter(|arrival| arrivals.len() == 1 || **arrival != Arrival::Completion)
        {
            if arrivals.len() > 1 {
                let mut rogue = Rogue::new(&nic, &address, 4, Arrival::Completion);
                rogue.foretell();
                rogue.close(&mut server);
            } else {
                // Where kernels wait, sequences restart: these requests' flags are what the next ones have.
                let mut rogue = Rogue::new(&nic, &address, 4, *arrival);
                for place in 0..4 {
                    rogue.receive();
                    rogue.ask(place, |_| {});
                    assert_eq!(rogue.answer(place), Some(Status::Ok));
                }
                rogue.close(&mut server);
            }
            // As a client that is served slots of its own after the rogue's are clear.
            let mut next = Client::by(&nic, &address, 4, *arrival);
            next.run(&expected, 8);
            next.connection.settle();
            assert_eq!(next.connection.duplicates(), 0);
            drop(next);
            let left =
                std::iter::repeat_with(|| server.next_line()).find(|line| line["kind"] == "left").unwrap();
            let counts = ["answered", "refused"].map(|name| left[name].as_u64().unwrap());
            assert_eq!(counts, [8, 0], "{options:?} {arrival:?} {left}");
        }
        stopped(&mut server);
    }
}
