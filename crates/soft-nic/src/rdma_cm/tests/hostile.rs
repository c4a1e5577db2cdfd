//! Commands and MADs from nowhere: an errno or nothing, never a panic, and no more room than there is.

use std::fmt::Display;
use std::net::Ipv6Addr;

use super::super::address::Address;
use super::super::ids::space;
use super::connections::explained;
use super::*;

/// splitmix64, public domain by S. Vigna.
struct Rng(u64);

impl Rng {
    fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[test]
fn random_commands_are_answered_and_break_nothing() {
    let mut rng = Rng(11);
    let [mut client, mut server] = programs(LinkLayer::Roce);
    let (mut done, mut refused) = (0, 0);
    let mut answer = [0_u8; 512];
    let inside = answer.as_ptr_range();
    for program in [&mut client, &mut server] {
        program.memory.writable = Some(inside.start as u64..inside.end as u64);
    }
    for round in 0..40_000 {
        let program = if rng.one_in(2) { &mut client } else { &mut server };
        let command = (rng.next() % 24) as u32;
        let mut body = vec![0; (rng.next() % 320) as usize];
        for _ in 0..rng.next() % 6 {
            if let Some(at) = (rng.next() as usize).checked_rem(body.len()) {
                body[at] = rng.next() as u8;
            }
        }
        // Mostly an answer that can be written, and an id that may exist, wherever the command has them.
        let address = if rng.one_in(8) { rng.next() } else { answer.as_mut_ptr() as u64 };
        for at in [0, 8] {
            if rng.one_in(2) && body.len() >= at + 8 {
                body[at..at + 8].copy_from_slice(&address.to_ne_bytes());
            }
        }
        for at in [0, 8, 36, 44, 56, 272, 280] {
            if rng.one_in(3) && body.len() >= at + 4 {
                body[at..at + 4].copy_from_slice(&((rng.next() % 40) as u32).to_ne_bytes());
            }
        }
        for at in [0, 8, 16, 28, 144] {
            if rng.one_in(3) && body.len() >= at + 8 {
                body[at..at + 8]
                    .copy_from_slice(&sockaddr(IP[round % 2], 7000 + (rng.next() % 4) as u16)[..8]);
            }
        }
        // The length of such an address, of BIND and of RESOLVE_ADDR.
        for at in [4, 8, 10] {
            if rng.one_in(3) && body.len() >= at + 2 {
                body[at..at + 2].copy_from_slice(&16_u16.to_ne_bytes());
            }
        }
        let room = if rng.one_in(4) { rng.next() as usize % 512 } else { 336 };
        match program.write(&bytes_of(command, room, &body)) {
            Ok(_) => done += 1,
            Err(error) => {
                assert!(error.errno > 0 && error.errno < 134, "{error}");
                refused += 1;
            }
        }
        program.now = Now(program.now.0 + rng.next() % 10_000_000);
        if program.ids.ids.len() > 200 {
            let all: Vec<u32> = program.ids.ids.keys().copied().collect();
            all.into_iter().for_each(|id| _ = program.ids.destroy(Now(1), id));
        }
    }
    assert!(done > 1_000 && refused > 10_000, "{done} done, {refused} refused");
}

#[test]
fn a_listener_that_nobody_serves_takes_what_its_backlog_allows() {
    let [mut client, mut server] = programs(LinkLayer::Roce);
    let id = server.create(space::TCP, 1);
    assert_eq!((server.bind(id, [0; 4], 7174), server.listen(id)), (0, 0));
    for qpn in 0..50 {
        let asking = client.create(space::TCP, 2);
        assert_eq!(client.resolve_addr(asking, IP[1], 7174), 0);
        assert_eq!(client.resolve_route(asking), 0);
        assert_eq!(client.connect(asking, qpn, b""), 0);
    }
    server.ids.turn(Now(2));
    // The backlog of 3, and the listener itself.
    assert_eq!((server.ids.ids.len(), server.ids.cm.counters().full), (4, 47));
}

#[test]
fn a_question_after_a_datagram_service_has_to_have_the_port_s_p_key() {
    use roce::wire::cm::{CmMad, IpCm, Message, SidrReq};
    let [mut client, mut server] = programs(LinkLayer::Ib);
    let id = server.create(space::UDP, 1);
    assert_eq!((server.bind(id, [0; 4], 7174), server.listen(id)), (0, 0));
    let [source, destination] = IP.map(Gid::from_ipv4);
    let [from, to] = [source, destination].map(|ip| super::super::ids::port_gid(&server.ids.devices, ip).0);
    let header = IpCm { version: 0, ip_version: 4, source_port: 1, source, destination }.emit();
    for (request, pkey, status) in [(1, 0x8001, Some(2)), (2, 0xffff, None)] {
        let message = Message::SidrReq(SidrReq { request, pkey, service: 0x0111_1c06 });
        let mad = CmMad { transaction: 1, message, private: &header }.encode().unwrap();
        client.ids.port.send(AddressedMad { from, to, mad: Box::new(mad) });
        assert_eq!(server.event().is_some(), status.is_none(), "{pkey:#x}");
        explained(&server, &["for port 7174 is refused: its P_Key is 0x8001;"]);
        let answers = client.ids.port.receive();
        let said = answers.iter().map(|answer| match CmMad::decode(&*answer.mad).unwrap().message {
            Message::SidrRep(rep) => rep.status,
            other => panic!("{other:?}"),
        });
        assert!(said.eq(status), "{pkey:#x}: {answers:?}");
    }
}

/// Reasons of `cm_init_av_by_path` (12) and of `rdma_cm`, which lets such an id go (28).
#[test]
fn a_request_for_another_port_or_without_an_ip_header_is_refused() {
    use roce::wire::cm::{CmMad, IpCm, Message, Path, Req};
    for layer in [LinkLayer::Roce, LinkLayer::Ib] {
        let [mut client, mut server] = programs(layer);
        let id = server.create(space::TCP, 1);
        assert_eq!((server.bind(id, [0; 4], 7174), server.listen(id)), (0, 0));
        let ends = IP.map(Gid::from_ipv4);
        let [from, to] = ends.map(|ip| super::super::ids::port_gid(&server.ids.devices, ip).0);
        let header = |destination| {
            let header =
                IpCm { version: 0, ip_version: 4, source_port: 1, source: ends[0], destination }.emit();
            [&header[..], &[0; 56]].concat()
        };
        let not_of_port = |what: &dyn Display| format!("{what} is not of port {}", Ipv6Addr::from(to.0));
        let unknown = Gid::from_ipv4([192, 0, 2, 9]);
        for (name, pkey, remote_gid, private, reason, words) in [
            ("another P_Key", 0x8001, to, header(ends[1]), Some(12), "P_Key is 0x8001;".to_owned()),
            (
                "another port's GID",
                0xffff,
                from,
                header(ends[1]),
                Some(12),
                not_of_port(&Ipv6Addr::from(from.0)),
            ),
            (
                "another port's address",
                0xffff,
                to,
                header(ends[0]),
                Some(28),
                not_of_port(&Address::of_gid(ends[0], 7174)),
            ),
            (
                "unknown address",
                0xffff,
                to,
                header(unknown),
                Some(28),
                not_of_port(&Address::of_gid(unknown, 7174)),
            ),
            ("no header", 0xffff, to, vec![0x77; 92], Some(28), "92 private bytes".to_owned()),
            ("a limited member", 0x7fff, to, header(ends[1]), None, String::new()),
        ] {
            let primary = Path { remote_gid, ..Path::default() };
            let service = 0x0106_1c06;
            let req = Req { local_id: 9, service, qpn: 8, pkey, primary, ..Req::default() };
            let message = Message::Req(req);
            let mad = CmMad { transaction: 1, message, private: &private }.encode().unwrap();
            client.ids.port.send(AddressedMad { from, to, mad: Box::new(mad) });
            assert_eq!(server.event().is_some(), reason.is_none(), "{name}");
            let taken = usize::from(reason.is_none());
            if reason.is_some() {
                explained(&server, &["a request of ", " for port 7174 is refused: ", &words]);
            }
            assert_eq!((server.ids.ids.len(), server.ids.cm.connections()), (1 + taken, taken), "{name}");
            let answers = client.ids.port.receive();
            let reasons = answers.iter().map(|answer| match CmMad::decode(&*answer.mad).unwrap().message {
                Message::Rej(rej) => (rej.reason, rej.info_bytes),
                other => panic!("{name}: {other:?}"),
            });
            let named = |reason| (reason, if reason == 12 { 16 } else { 0 });
            assert!(reasons.eq(reason.map(named)), "{layer:?}, {name}: {answers:?}");
        }
    }
}
