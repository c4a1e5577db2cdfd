//! Bad requests: each is answered with its status, and the others go on.

use measure::need;
use serving::Arrival;
use slots::layout::MAGIC;
use slots::{Header, Status};

use crate::rogue::Rogue;
use crate::served::*;

#[test]
fn a_bad_request_is_answered_with_its_status_and_others_go_on() {
    type Change = fn(&mut [u8]);
    let nic = need!(device(), nic, "an RDMA device");
    let runtime = need!(runtime(), onnxruntime, "ONNX Runtime");
    let expected = Expected::of(&runtime, SMALL, 3);
    let (mut server, address) = server(SMALL, &[]);
    let mut good = Client::usual(&nic, &address, SMALL, 2);
    let changes: [(Change, Status); 7] = [
        (|prefix| prefix[..4].copy_from_slice(&(MAGIC + 1).to_le_bytes()), Status::BadHeader),
        (|prefix| prefix.fill(0xa5), Status::BadHeader),
        (|prefix| prefix[16] ^= 1, Status::BadModel),
        (|prefix| prefix[20] ^= 4, Status::BadSequence),
        (|prefix| prefix[60] ^= 1, Status::BadSequence),
        (|prefix| prefix[Header::BYTES + 4] ^= 4, Status::BadTensors),
        (|_| {}, Status::Ok),
    ];
    for arrival in [Arrival::Flag, Arrival::Tail, Arrival::Completion] {
        let mut rogue = Rogue::new(&nic, &address, 2, arrival);
        for (change, status) in changes {
            rogue.receive();
            rogue.ask(1, change);
            assert_eq!(rogue.answer(1), Some(status), "{arrival:?}");
            good.run(&expected, 5);
        }
    }
    drop(good);
    assert_eq!(totals(&stopped(&mut server))["refused"], 18);
}

#[test]
fn a_number_that_is_outstanding_is_refused() {
    let nic = need!(device(), nic, "an RDMA device");
    let runtime = need!(runtime(), onnxruntime, "ONNX Runtime");
    let expected = Expected::of(&runtime, SLOW, 1);
    let (_server, address) = server(SLOW, &[]);
    let mut busy = Client::usual(&nic, &address, SLOW, 8);
    let mut rogue = Rogue::of(&nic, &address, SLOW, 2, Arrival::Flag);
    // Both arrive while another's request is computed, unless the server looks just between them: then once more.
    let statuses = (0..20).map(|_| {
        while busy.ask(&expected) {}
        rogue.ask_twice(|prefix| prefix[8..16].fill(9));
        let statuses = [0, 1].map(|place| rogue.answer(place).unwrap());
        while busy.connection.outstanding() > 0 {
            busy.poll(&expected);
        }
        statuses
    });
    let seen: Vec<_> = statuses.take(20).collect();
    assert!(seen.contains(&[Status::Ok, Status::DuplicateId]), "{seen:?}");
    let is_known =
        |pair: &[Status; 2]| pair[0] == Status::Ok && [Status::Ok, Status::DuplicateId].contains(&pair[1]);
    assert!(seen.iter().all(is_known), "{seen:?}");
}
