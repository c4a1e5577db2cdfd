//! Bad requests: each is answered with its status in every way of serving, and the others go on.

use measure::need;
use slots::layout::MAGIC;
use slots::{Header, Status};

use crate::rogue::Rogue;
use crate::served::*;

#[test]
fn a_bad_request_is_answered_with_its_status_and_others_go_on() {
    type Change = fn(&mut [u8]);
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    let changes: [(Change, Status); 8] = [
        (|prefix| prefix[..4].copy_from_slice(&(MAGIC + 1).to_le_bytes()), Status::BadHeader),
        (|prefix| prefix.fill(0xa5), Status::BadHeader),
        (|prefix| prefix[16] ^= 1, Status::BadModel),
        // Another sequence, and so another phase.
        (|prefix| prefix[20] ^= 4, Status::BadSequence),
        // Another slot than that in which it lies.
        (|prefix| prefix[60] ^= 1, Status::BadSequence),
        (|prefix| prefix[Header::BYTES + 4] ^= 4, Status::BadTensors),
        (|prefix| prefix[Header::BYTES..].fill(0xff), Status::BadTensors),
        (|_| {}, Status::Ok),
    ];
    for (options, arrivals) in WAYS {
        let (mut server, address) = server(SMALL, options);
        for arrival in arrivals {
            let mut good = Client::by(&nic, &address, 2, *arrival);
            let mut rogue = Rogue::new(&nic, &address, 2, *arrival);
            for (nth, (change, status)) in changes.into_iter().enumerate() {
                rogue.receive();
                rogue.ask(1, change);
                assert_eq!(rogue.answer(1), Some(status), "{options:?} {arrival:?} change {nth}");
                good.run(&expected, 1);
            }
        }
        let refused = 7 * arrivals.len() as u64;
        assert_eq!(totals(&stopped(&mut server))["refused"], refused, "{options:?}");
    }
}

#[test]
fn half_a_request_is_none_until_the_rest_has_come() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 3);
    for (options, arrivals) in WAYS {
        let (mut server, address) = server(SMALL, options);
        for arrival in arrivals {
            let mut good = Client::by(&nic, &address, 2, *arrival);
            let mut rogue = Rogue::new(&nic, &address, 2, *arrival);
            // One that is said to be there with its header alone.
            rogue.receive();
            rogue.ask_cut(0);
            assert_eq!(rogue.answer(0), Some(Status::BadTensors), "{options:?} {arrival:?}");
            rogue.receive();
            let (half, parts) = rogue.begin(1);
            // The server looks at all slots while it serves these.
            good.run(&expected, 3);
            assert!(!rogue.is_answered(1), "{options:?} {arrival:?}");
            rogue.finish(1, half, &parts);
            assert_eq!(rogue.answer(1), Some(Status::Ok), "{options:?} {arrival:?}");
            // The rest of this one never comes.
            rogue.begin(0);
            rogue.close(&mut server);
            good.run(&expected, 1);
        }
        let totals = totals(&stopped(&mut server)).clone();
        assert_eq!((&totals["refused"], &totals["failed"]), (&arrivals.len().into(), &0.into()), "{totals}");
    }
}

#[test]
fn a_number_that_is_outstanding_is_refused() {
    let nic = need!(device(), nic, "an RDMA device");
    need!(inference::engine::has_twin(), cc, "a C++ compiler");
    let expected = Expected::of_twin(SMALL, 1);
    for (options, arrivals) in WAYS {
        let (_server, address) = server(SMALL, options);
        let arrival = arrivals[0];
        let mut busy = Client::by(&nic, &address, 4, arrival);
        let mut rogue = Rogue::new(&nic, &address, 2, arrival);
        // Both arrive while another's request is computed, unless the server polls between them: then retry.
        let mut once = || {
            while busy.ask(&expected) {}
            (0..2).for_each(|_| rogue.receive());
            rogue.ask_twice(|prefix| prefix[8..16].fill(9));
            let statuses = [0, 1].map(|place| rogue.answer(place).unwrap());
            while busy.connection.outstanding() > 0 {
                busy.poll(&expected);
                std::thread::sleep(PAUSE);
            }
            // Either may be taken first: the slots of a client have their turn.
            let refused = statuses.iter().filter(|status| **status == Status::DuplicateId).count();
            let served = statuses.iter().filter(|status| **status == Status::Ok).count();
            assert!(served > 0 && served + refused == 2, "{options:?} {statuses:?}");
            refused == 1
        };
        assert!((0..20).any(|_| once()), "{options:?}");
    }
}
