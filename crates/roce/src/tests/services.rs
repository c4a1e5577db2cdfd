//! What a responder of unreliable connections (UC) or datagrams (UD) answers to which requests, as dialogues.

use super::described::Request;
use super::responder::{MTU, both_scenes, part, request, scene, sized};
use crate::{Opcode, Psn, ServiceType};

#[test]
fn unreliable_connections_drop_in_silence_and_go_on() {
    let uc = |request: Request| Request { service: ServiceType::Uc, ..request };
    let whole = uc(sized(Opcode::Send, 7, 3000));
    let (one, two, three) = (part(whole, 0, 1024), part(whole, 1024, 1024), part(whole, 2048, 952));
    let write = |psn| uc(sized(Opcode::Write, psn, 16));
    let bad_key = Request { rkey: 100, ..write(8) };
    for (name, arrivals, replies) in [
        ("in order", vec![write(7), write(8)], "write@0+16 | write@0+16"),
        ("a message lost before", vec![write(9), write(10)], "write@0+16 | write@0+16"),
        ("a message again", vec![write(7), write(7)], "write@0+16 | write@0+16"),
        ("fragments", vec![one, two, three], "recv1@0+1024 | recv1@1024+1024 | recv1@2048+952!"),
        (
            "a hole loses the message and keeps the receive",
            vec![one, three, two, one, two, three],
            "recv1@0+1024 | drop:Hole | drop:Hole | recv1@0+1024 | recv1@1024+1024 | recv1@2048+952!",
        ),
        ("a new message ends the old", vec![one, write(10), two], "recv1@0+1024 | write@0+16 | drop:Hole"),
        ("a bad key", vec![write(7), bad_key, write(9)], "write@0+16 | drop:RemoteAccess | write@0+16"),
        ("a read", vec![uc(request(Opcode::Read, 7))], "drop:InvalidRequest"),
        ("an atomic", vec![uc(request(Opcode::FetchAdd, 7))], "drop:InvalidRequest"),
    ] {
        assert_eq!(scene(ServiceType::Uc, &[4096, 4096]).dialogue(&arrivals), replies, "{name}");
    }
    let mut none = scene(ServiceType::Uc, &[]);
    assert_eq!(none.dialogue(&[uc(request(Opcode::Send, 7)), write(8)]), "drop:NoReceive | write@0+16");
}

#[test]
fn datagrams_need_the_qkey_a_receive_and_room_for_the_grh() {
    let ud = |request: Request| Request { service: ServiceType::Ud, ..request };
    let send = ud(request(Opcode::Send, 3));
    for (name, receives, datagram, answer) in [
        ("plain", vec![56], send, "recv1@40+16!"),
        ("any PSN", vec![56], Request { psn: Psn::new(0x80_0000), ..send }, "recv1@40+16!"),
        ("wrong Q_Key", vec![56], Request { qkey: 1, ..send }, "drop:WrongQkey"),
        ("no receive", vec![], send, "drop:NoReceive"),
        ("no room for the GRH", vec![55], send, "drop:TooLong"),
        ("longer than a packet", vec![9000], ud(sized(Opcode::Send, 3, MTU + 1)), "drop:InvalidRequest"),
        ("a full packet", vec![9000], ud(sized(Opcode::Send, 3, MTU)), "recv1@40+1024!"),
        ("in pieces", vec![9000], part(send, 0, 8), "drop:InvalidRequest"),
        ("the end of a message", vec![9000], part(send, 8, 8), "drop:InvalidRequest"),
        ("a write", vec![56], ud(request(Opcode::Write, 3)), "drop:InvalidRequest"),
    ] {
        for mut scene in both_scenes(ServiceType::Ud, &receives) {
            assert_eq!(scene.take(&datagram), answer, "{name}");
        }
    }
}

#[test]
fn a_refused_unreliable_message_uses_its_psns_all_the_same() {
    let mut scene = scene(ServiceType::Uc, &[]);
    let uc = |request: Request| Request { service: ServiceType::Uc, ..request };
    let refused = uc(sized(Opcode::Send, 7, 3 * MTU));
    assert_eq!(scene.dialogue(&[refused, uc(request(Opcode::Write, 10))]), "drop:NoReceive | write@0+16");
}
