//! What a client can reach: its own slots and flags to the byte, and nothing else.

use measure::need;
use serving::{Arrival, Transport};
use verbs::Remote;
use verbs::code::WcStatus;

use crate::rogue::Rogue;
use crate::served::*;

#[test]
fn a_key_opens_its_client_s_own_slots_alone() {
    let nic = need!(device(), nic, "an RDMA device");
    let runtime = need!(runtime(), onnxruntime, "ONNX Runtime");
    let expected = Expected::of(&runtime, SMALL, 3);
    let (mut server, address) = server(SMALL, &["--slots", "16"]);
    let mut good = Client::usual(&nic, &address, SMALL, 4);
    let victim = Rogue::new(&nic, &address, 4, Arrival::Flag);
    let foreign = victim.remote;
    // Of slots and of flags: another's key, and bytes around its own. Each try costs the client its queue pair.
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
            assert_eq!(status, wanted, "{place} region {region}");
            good.run(&expected, 5);
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

#[test]
fn a_client_that_names_another_s_slot_loses_its_own_connection() {
    let nic = need!(device(), nic, "an RDMA device");
    let runtime = need!(runtime(), onnxruntime, "ONNX Runtime");
    let expected = Expected::of(&runtime, SMALL, 3);
    let (mut server, address) = server(SMALL, &[]);
    let mut good = Client::usual(&nic, &address, SMALL, 4);
    let mut rogue = Rogue::new(&nic, &address, 2, Arrival::Completion);
    rogue.name(0);
    let line = std::iter::repeat_with(|| server.next_line()).find(|line| line["kind"] == "left").unwrap();
    let error = line["error"].as_str().unwrap();
    assert!(error.contains("slot 0 is none of the client's"), "{line}");
    assert!(!rogue.session.is_alive());
    good.run(&expected, 50);
    drop(good);
    stopped(&mut server);
}

#[test]
fn what_a_client_left_in_its_slots_is_no_request_of_the_next_one() {
    let nic = need!(device(), nic, "an RDMA device");
    let runtime = need!(runtime(), onnxruntime, "ONNX Runtime");
    let expected = Expected::of(&runtime, SMALL, 3);
    let (mut server, address) = server(SMALL, &["--slots", "4"]);
    for arrival in [Arrival::Flag, Arrival::Tail] {
        let mut rogue = Rogue::new(&nic, &address, 4, Arrival::Completion);
        rogue.foretell();
        rogue.close(&mut server);
        // As a client that is served slots of its own after the rogue's are clear.
        let mut next = loop {
            if let Ok(next) = Client::open(&nic, &address, SMALL, &wish(SMALL, 4, arrival, Transport::Rc)) {
                break next;
            }
        };
        next.run(&expected, 20);
        next.connection.settle();
        assert_eq!(next.connection.duplicates(), 0);
        drop(next);
        while server.next_line()["kind"] != "left" {}
    }
    let lines = stopped(&mut server);
    assert_eq!(totals(&lines)["refused"], 0, "{lines:?}");
}
