//! Whole connections by commands: what each program is told, and what its QP is to be set to.

use super::super::ids::space;
use super::super::queue::event::*;
use super::*;

const UID: u64 = 0x1111;
const LISTENING: u64 = 0x2222;
const ACCEPTED: u64 = 0x3333;

/// A listener at end 1, port 7174.
fn listening(server: &mut Program, port_space: u16) -> u32 {
    let id = server.create(port_space, LISTENING);
    assert_eq!((server.bind(id, [0; 4], 7174), server.listen(id)), (0, 0));
    id
}

/// An id of the client with a route to it.
fn routed(client: &mut Program, port_space: u16) -> u32 {
    let id = client.create(port_space, UID);
    assert_eq!(client.resolve_addr(id, IP[1], 7174), 0);
    client.expect(ADDR_RESOLVED);
    assert_eq!(client.resolve_route(id), 0);
    client.expect(ROUTE_RESOLVED);
    id
}

/// The last reason of this end has these words.
pub fn explained(program: &Program, words: &[&str]) {
    let failures = program.ids.reasons.failures();
    let last = &failures.last().expect("a reason").text;
    assert!(words.iter().all(|word| last.contains(word)), "{words:?} not all in {last}");
}

fn connected() -> ([Program; 2], u32, u32) {
    let [mut client, mut server] = programs(LinkLayer::Roce);
    listening(&mut server, space::TCP);
    let asking = routed(&mut client, space::TCP);
    assert_eq!(client.connect(asking, 0x41, b"hello"), 0);
    let asked = server.expect(CONNECT_REQUEST).id;
    assert_eq!(server.accept(asked, ACCEPTED, 0x42, b"welcome"), 0);
    client.expect(CONNECT_RESPONSE);
    assert_eq!(client.ready(asking), 0);
    server.expect(ESTABLISHED);
    ([client, server], asking, asked)
}

#[test]
fn a_connection_is_made_by_commands_and_both_queue_pairs_fit() {
    let [mut client, mut server] = programs(LinkLayer::Roce);
    listening(&mut server, space::TCP);
    let asking = routed(&mut client, space::TCP);
    // Before it asks, a QP can be initialised and no more.
    let init = client.attributes(asking, 1).unwrap();
    assert_eq!(Reader(&init).u32(uverbs_qp_attr::mask), 0b11_1001);
    assert_eq!(client.connect(asking, 0x41, b"hello"), 0);

    let told = server.expect(CONNECT_REQUEST);
    use ucm_conn_param as conn;
    let fields = told.fields();
    assert_eq!((told.uid, fields.u32(conn::qp_num)), (LISTENING, 0x41));
    assert_eq!((fields.u8(conn::private_data_len), &fields.array::<5>(conn::private_data)), (56, b"hello"));
    // What they hold, we may have outstanding, and the other way round.
    assert_eq!((fields.u8(conn::responder_resources), fields.u8(conn::initiator_depth)), (2, 3));
    assert_eq!((fields.u8(conn::retry_count), fields.u8(conn::rnr_retry_count)), (7, 6));
    let asked = told.id;
    let theirs = [1, 2, 3].map(|state| server.attributes(asked, state).unwrap());
    assert_eq!(server.accept(asked, ACCEPTED, 0x42, b"welcome"), 0);

    let told = client.expect(CONNECT_RESPONSE);
    assert_eq!((told.uid, told.id, told.fields().u32(conn::qp_num)), (UID, asking, 0x42));
    assert_eq!(told.fields().u8(conn::private_data_len), 196);
    assert_eq!(&told.fields().array::<7>(conn::private_data), b"welcome");
    let ours = [1, 2, 3].map(|state| client.attributes(asking, state).unwrap());
    assert_eq!(client.ready(asking), 0);
    assert_eq!((server.expect(ESTABLISHED).uid, client.event().is_none()), (ACCEPTED, true));

    use uverbs_qp_attr as at;
    for (name, mine, other, qpn) in [("client", &ours, &theirs, 0x42), ("server", &theirs, &ours, 0x41)] {
        let (init, rtr, rts) = (Reader(&mine[0]), Reader(&mine[1]), Reader(&mine[2]));
        // REMOTE_WRITE, REMOTE_READ and REMOTE_ATOMIC, as there are responder resources.
        assert_eq!((init.u32(at::access_flags), init.u8(at::port_num)), (0b1110, 1), "{name}");
        assert_eq!(rtr.u32(at::mask), 0x12_9181, "{name}");
        assert_eq!((rtr.u32(at::dest_qp_num), rtr.u32(at::path_mtu)), (qpn, 5), "{name}");
        assert_eq!(rts.u32(at::mask), 0x1_2e01, "{name}");
        assert_eq!((rts.u8(at::retry_cnt), rts.u8(at::rnr_retry)), (7, 6), "{name}");
        assert_eq!(
            rts.u32(at::sq_psn),
            Reader(&other[1]).u32(at::rq_psn),
            "{name} sends what the other expects"
        );
        // At least twice the packet lifetime.
        assert!(rts.u8(at::timeout) > 18, "{name}");
    }
    let vector = |attributes: &[u8]| attributes[at::ah_attr..at::ah_attr + uverbs_ah_attr::SIZE].to_vec();
    let (a, b) = (vector(&ours[1]), vector(&theirs[1]));
    assert_eq!(
        (&a[12..16], &b[12..16]),
        (&IP[1][..], &IP[1][..]),
        "one device has the address, and loops back"
    );
    assert_eq!(
        (a[uverbs_ah_attr::sgid_index], a[uverbs_ah_attr::is_global], a[uverbs_ah_attr::hop_limit]),
        (3, 1, 64)
    );
    assert_eq!(a[16..20], b[16..20], "one flow label both ways");
}

/// On InfiniBand: the listener at one address, the path as a subnet administrator says it, the QPs by LID.
#[test]
fn on_infiniband_an_address_leads_to_a_gid_and_lids() {
    let [mut client, mut server] = programs(LinkLayer::Ib);
    let listener = server.create(space::TCP, LISTENING);
    assert_eq!((server.bind(listener, IP[1], 7174), server.listen(listener)), (0, 0));
    let asking = client.create(space::TCP, UID);
    assert_eq!((client.bind(asking, IP[0], 0), client.resolve_addr(asking, IP[1], 7174)), (0, 0));
    client.expect(ADDR_RESOLVED);
    assert_eq!(client.resolve_route(asking), 0);
    client.expect(ROUTE_RESOLVED);

    let [source, destination] = [0, 1].map(|port: usize| client.ids.devices[port].gids[0].gid);
    let query = Writer::<16>::new().u32(ucm_query::id, asking).u32(ucm_query::option, 1).finish();
    let path: [u8; 80] = client.ask(19, 0, &query).unwrap();
    // DGID, SGID; LIDs 2, 1; flow label, hop 0; reversible, P_Key; «exactly» MTU 4096, 200 Gb/s, lifetime 18.
    let record = &path[16..];
    assert_eq!((&record[8..24], &record[24..40]), (&destination[..], &source[..]));
    assert_eq!(record[40..58], [0, 2, 0, 1, 0, 0, 0, 0, 0, 0x81, 0xff, 0xff, 0, 0, 0x85, 0x91, 0x92, 0]);
    let gids = Writer::<16>::new().u32(ucm_query::id, asking).u32(ucm_query::option, 2).finish();
    let told: [u8; ucm_query_addr_resp::SIZE] = client.ask(19, 0, &gids).unwrap();
    assert_eq!(told[ucm_query_addr_resp::dst + 8..][..16], destination);

    assert_eq!(client.connect(asking, 0x41, b""), 0);
    let asked = server.expect(CONNECT_REQUEST).id;
    assert_eq!(server.accept(asked, ACCEPTED, 0x42, b""), 0);
    client.expect(CONNECT_RESPONSE);
    let mine = client.attributes(asking, 2).unwrap();
    for (attributes, dlid) in [(mine, 2), (server.attributes(asked, 2).unwrap(), 1)] {
        let vector = Reader(&attributes[uverbs_qp_attr::ah_attr..]);
        assert_eq!((vector.u16(uverbs_ah_attr::dlid), vector.u8(uverbs_ah_attr::is_global)), (dlid, 0));
    }
    let port = server.create(space::TCP, LISTENING);
    assert_eq!(server.bind(port, IP[1], 7174), libc::EADDRINUSE);
    server.destroy(listener).unwrap();
    assert_eq!((server.bind(port, IP[1], 7174), server.listen(port)), (0, 0), "the port is free again");
}

#[test]
fn a_connection_that_ends_is_told_once_on_each_side_and_its_names_rest() {
    let ([mut client, mut server], asking, asked) = connected();
    assert_eq!(client.disconnect(asking), 0);
    assert_eq!(server.expect(DISCONNECTED).status, 0);
    assert!(client.event().is_none(), "not before the other end answers");
    assert_eq!(server.disconnect(asked), 0);
    client.expect(DISCONNECTED);
    assert_eq!((client.disconnect(asking), client.event().is_none()), (0, true), "once more is nothing");
    for program in [&mut client, &mut server] {
        program.now = Now(100_000_000_000);
        program.expect(TIMEWAIT_EXIT);
    }
    // ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_RESPONSE, DISCONNECTED, TIMEWAIT_EXIT.
    assert_eq!(client.destroy(asking), Ok(5));
    // ESTABLISHED, DISCONNECTED, TIMEWAIT_EXIT; the request was the listener's.
    assert_eq!(server.destroy(asked), Ok(3));
}

#[test]
fn letting_a_connection_go_ends_it_for_the_other_side() {
    let ([mut client, mut server], asking, asked) = connected();
    client.destroy(asking).unwrap();
    server.expect(DISCONNECTED);
    server.destroy(asked).unwrap();
    client.ids.turn(Now(2));
    assert!(client.event().is_none());
    let ([mut client, mut server], _, _) = connected();
    let file = server.file;
    server.ids.close(Now(2), file);
    server.ids.turn(Now(2));
    client.expect(DISCONNECTED);
}

#[test]
fn a_refusal_comes_with_its_reason_and_private_data() {
    for refuser in ["no listener", "the program", "the program, which ends", "its end"] {
        let [mut client, mut server] = programs(LinkLayer::Roce);
        let listener = (refuser != "no listener").then(|| listening(&mut server, space::TCP));
        let asking = routed(&mut client, space::TCP);
        assert_eq!(client.connect(asking, 0x41, b""), 0);
        match refuser {
            "the program" | "the program, which ends" => {
                let id = server.expect(CONNECT_REQUEST).id;
                assert_eq!(server.reject(id, b"why"), 0);
                // The client learns of the refusal and of the end at once.
                if refuser != "the program" {
                    client.departs(2, asking);
                }
            }
            // The request waits unread, and goes with its listener.
            "its end" => {
                server.ids.turn(Now(2));
                server.destroy(listener.unwrap()).unwrap();
            }
            _ => _ = server.ids.turn(Now(2)),
        }
        let told = client.expect(REJECTED);
        assert_eq!(told.status, if refuser == "no listener" { 8 } else { 28 }, "{refuser}");
        let help = if refuser == "no listener" { "rdma_listen first" } else { "rejected by its program" };
        explained(&client, &["connection: 10.9.0.", " to 10.9.0.2:7174: ", help]);
        let private = told.fields().array::<3>(ucm_conn_param::private_data);
        assert_eq!(&private == b"why", refuser.starts_with("the program"), "{refuser}");
        assert_eq!(told.fields().u8(ucm_conn_param::private_data_len), 148, "{refuser}");
        assert_eq!(client.ready(asking), libc::EINVAL, "{refuser}: it is no more");
        assert!(client.event().is_none(), "{refuser}: told once");
    }
}

#[test]
fn nobody_there_is_an_event_after_its_time() {
    let [mut client, _] = programs(LinkLayer::Roce);
    let asking = routed(&mut client, space::TCP);
    assert_eq!(client.connect(asking, 0x41, b""), 0);
    let begun = client.now;
    let told = loop {
        client.now = client.ids.cm.poll_timeout().expect("something is due until it is told");
        if let Some(told) = client.event() {
            break told;
        }
    };
    assert_eq!((told.kind, told.status), (UNREACHABLE, -libc::ETIMEDOUT));
    explained(&client, &["to 10.9.0.2:7174: no answer", "cm_timeout", "4791"]);
    // 16 times 4.3 s for the answer and twice 1.1 s for the way.
    assert_eq!(client.now.0 - begun.0, 16 * ((4_096 << 20) + 2 * (4_096 << 18)));
}

#[test]
fn a_datagram_service_is_found_by_its_port() {
    let [mut client, mut server] = programs(LinkLayer::Roce);
    listening(&mut server, space::UDP);
    let asking = routed(&mut client, space::UDP);
    let attributes = client.attributes(asking, 1).unwrap();
    assert_eq!(Reader(&attributes).u32(uverbs_qp_attr::qkey), 0x0123_4567);
    assert_eq!(client.connect(asking, 0, b"who"), 0);
    let told = server.expect(CONNECT_REQUEST);
    assert_eq!(told.fields().u8(ucm_ud_param::private_data_len), 180);
    assert_eq!(&told.fields().array::<3>(ucm_ud_param::private_data), b"who");
    assert_eq!(server.accept(told.id, ACCEPTED, 0x42, b"me"), 0);
    let told = client.expect(ESTABLISHED);
    use ucm_ud_param as at;
    assert_eq!((told.fields().u32(at::qp_num), told.fields().u32(at::qkey)), (0x42, 0x0123_4567));
    assert_eq!(told.fields().array::<4>(at::ah_attr + 12), IP[1]);
    assert_eq!(told.fields().u8(at::ah_attr + uverbs_ah_attr::is_global), 1);
    assert!(server.event().is_none(), "a datagram service hears no more");
}

#[test]
fn an_id_moves_to_another_file_with_its_events() {
    let ([mut client, mut server], asking, asked) = connected();
    server.disconnect(asked);
    client.ids.turn(Now(3));
    let (queue, fd) = Queue::new().unwrap();
    let other = own(fd);
    let (old, old_pipe) = (client.file, std::mem::replace(&mut client.pipe, other));
    client.file = client.ids.open(queue);
    client.others.insert(77, old);
    use ucm_migrate_id as at;
    let body = |fd| Writer::<{ at::SIZE }>::new().u32(at::id, asking).u32(at::fd, fd).finish();
    assert_eq!(client.ask::<4>(18, 0, &body(78)), Err(libc::EINVAL), "a descriptor of something else");
    // ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_RESPONSE.
    assert_eq!(client.ask(18, 0, &body(77)).map(u32::from_ne_bytes), Ok(3));
    client.expect(DISCONNECTED);
    assert_eq!(client.ask::<4>(18, 0, &body(77)), Err(libc::EINVAL), "it is not there any more");
    drop(old_pipe);
}
