//! One command each: its answer, and its errno when it is wrong, as Linux's `ucma.c` and `cma.c` have them.

use super::super::address::Address;
use super::super::ids::space;
use super::super::queue::event::*;
use super::*;

#[test]
fn wrong_lengths_and_numbers_are_refused_as_a_kernel_does() {
    let [mut program, _] = programs(LinkLayer::Roce);
    let header =
        |command: u32, given: u16| Writer::<8>::new().u32(0, command).u16(4, given).finish().to_vec();
    for (name, bytes, errno) in [
        ("no header", vec![0; 7], libc::EINVAL),
        ("a command beyond what was written", header(7, 1), libc::EINVAL),
        ("an unknown command", header(23, 0), libc::EINVAL),
        ("GET_OPTION, which no kernel has", header(13, 0), libc::ENOSYS),
        ("CREATE_ID without room for an answer", bytes_of(0, 3, &[0; 24]), libc::ENOSPC),
        ("GET_EVENT without room", bytes_of(12, 323, &[0; 8]), libc::ENOSPC),
        ("BIND_IP, which no library sends that knows BIND", bytes_of(2, 0, &[0; 40]), libc::ENOSYS),
        ("INIT_QP_ATTR without room", bytes_of(11, 143, &[0; 16]), libc::ENOSPC),
        ("an empty command for no id", header(10, 0), libc::ENOENT),
        ("LEAVE_MCAST of no group", bytes_of(17, 4, &[0; 16]), libc::ENOENT),
    ] {
        assert_eq!(program.write(&bytes).map_err(|error| error.errno), Err(errno), "{name}");
    }
    let create =
        Writer::<24>::new().u64(ucm_create_id::response, 8).u16(ucm_create_id::ps, space::TCP).finish();
    assert_eq!(program.write(&bytes_of(0, 4, &create)).unwrap_err().errno, libc::EFAULT);
    assert!(program.ids.ids.is_empty(), "and nothing is left");
    let wrong = Writer::<24>::new().u16(ucm_create_id::ps, 7).finish();
    assert_eq!(program.write(&bytes_of(0, 4, &wrong)).unwrap_err().errno, libc::EINVAL, "no such port space");
}

#[test]
fn an_address_is_a_device_s_or_nobody_s_and_a_port_one_program_s() {
    let [mut one, mut other] = programs(LinkLayer::Roce);
    let free = |program: &mut Program| program.create(space::TCP, 1);
    for (name, ip, port, errno) in [
        ("an address in the GID table", IP[0], 7000, 0),
        ("the second device's", IP[1], 7000, 0),
        ("every address, another port", [0; 4], 7001, 0),
        ("a port of every address", IP[0], 7001, libc::EADDRINUSE),
        ("the same again", IP[0], 7000, libc::EADDRINUSE),
        ("every address at a port of one", [0; 4], 7000, libc::EADDRINUSE),
        ("an address of nobody", [192, 0, 2, 1], 7000, libc::ENODEV),
        ("any port", IP[0], 0, 0),
    ] {
        let id = free(&mut one);
        assert_eq!(one.bind(id, ip, port), errno, "{name}");
    }
    let twice = free(&mut one);
    assert_eq!((one.bind(twice, IP[0], 0), one.bind(twice, IP[0], 0)), (0, libc::EINVAL));
    // Of another process: what listens.
    let listener = free(&mut one);
    assert_eq!((one.bind(listener, IP[0], 8000), one.listen(listener)), (0, 0));
    let id = free(&mut other);
    assert_eq!(other.bind(id, [0; 4], 8000), libc::EADDRINUSE);
    assert_eq!(other.bind(id, IP[1], 8000), 0);
    one.destroy(listener).unwrap();
    let id = free(&mut other);
    assert_eq!(other.bind(id, IP[0], 8000), 0, "free again");
    assert_eq!(one.bind(999, IP[0], 0), libc::ENOENT);
}

#[test]
fn what_cannot_be_reached_is_an_event_and_the_wrong_order_an_error() {
    let [mut program, _] = programs(LinkLayer::Roce);
    let id = program.create(space::TCP, 5);
    for (name, errno) in [
        ("RESOLVE_ROUTE first", program.resolve_route(id)),
        ("CONNECT first", program.connect(id, 1, b"")),
        ("ACCEPT first", program.accept(id, 1, 1, b"")),
        ("DISCONNECT first", program.disconnect(id)),
        ("NOTIFY first", program.run(15, &Writer::<8>::new().u32(0, id).u32(4, 4).finish())),
        ("INIT_QP_ATTR first", program.attributes(id, 1).unwrap_err()),
    ] {
        assert_eq!(errno, libc::EINVAL, "{name}");
    }
    assert_eq!(program.resolve_addr(id, [192, 0, 2, 9], 1), 0);
    let told = program.expect(ADDR_ERROR);
    assert_eq!((told.uid, told.status), (5, -libc::EHOSTUNREACH));
    assert_eq!(program.resolve_addr(id, IP[1], 7174), 0, "another try");
    program.expect(ADDR_RESOLVED);
    assert_eq!(program.resolve_addr(id, IP[1], 7174), libc::EINVAL, "once");
    assert_eq!(program.connect(id, 1, b""), libc::EINVAL, "no route yet");
    assert_eq!(program.listen(id), libc::EINVAL);
    assert_eq!(program.resolve_route(id), 0);
    assert_eq!(program.connect(id, 1, &[0; 57]), libc::EINVAL, "56 bytes of private data and no more");
    assert_eq!(program.connect(id, 1, &[0; 56]), 0);
    let [mut ib, _] = programs(LinkLayer::Ib);
    let id = ib.create(space::TCP, 5);
    assert_eq!(ib.resolve_addr(id, [192, 0, 2, 9], 1), 0);
    assert_eq!(ib.expect(ADDR_ERROR).status, -libc::EHOSTUNREACH, "no port of the subnet");
}

#[test]
fn queries_tell_addresses_gids_and_the_one_path() {
    let [mut program, _] = programs(LinkLayer::Roce);
    let id = program.create(space::TCP, 5);
    let query = |option| Writer::<16>::new().u32(ucm_query::id, id).u32(ucm_query::option, option).finish();
    use ucm_query_addr_resp as addr;
    let before: [u8; addr::SIZE] = program.ask(19, 0, &query(0)).unwrap();
    assert_eq!((Reader(&before).u64(addr::node_guid), Reader(&before).u16(addr::src_size)), (0, 0));
    assert_eq!(program.resolve_addr(id, IP[1], 7174), 0);
    let told: [u8; addr::SIZE] = program.ask(19, 0, &query(0)).unwrap();
    let guid = program.ids.devices[1].guid;
    assert_eq!(told[addr::node_guid..addr::node_guid + 8], guid.to_be_bytes());
    assert_eq!((told[addr::port_num], Reader(&told).u16(addr::dst_size)), (1, 16));
    assert_eq!(told[addr::dst..addr::dst + 8], sockaddr(IP[1], 7174)[..8]);
    assert_eq!(told[addr::src + 4..addr::src + 8], IP[1], "one's own address is reached from itself");
    let gids: [u8; addr::SIZE] = program.ask(19, 0, &query(2)).unwrap();
    let destination = Address::read(&gids[addr::dst..]).unwrap();
    assert_eq!((destination.size(), &gids[addr::dst + 20..addr::dst + 24]), (48, &IP[1][..]));
    let path: [u8; 80] = program.ask(19, 0, &query(1)).unwrap();
    assert_eq!(Reader(&path).u32(0), 0, "no route yet");
    assert_eq!(program.resolve_route(id), 0);
    let path: [u8; 80] = program.ask(19, 0, &query(1)).unwrap();
    assert_eq!(Reader(&path).u32(0), 1);
    // Flow label and hop limit, class, reversible, P_Key; selectors «exactly», MTU 4096, rate, lifetime 18.
    let record = &path[16..];
    assert_eq!((record[47], record[49], &record[50..52]), (64, 0x81, &[0xff, 0xff][..]));
    assert_eq!(record[54..57], [0x85, 0x90, 0x92]);
    assert_eq!(program.ask::<280>(19, 0, &query(3)), Err(libc::ENOSYS));
}

#[test]
fn addresses_are_as_long_as_commands_say() {
    let [mut program, _] = programs(LinkLayer::Roce);
    let bind = |id, size, address: &[u8]| {
        use ucm_bind as at;
        Writer::<{ at::SIZE }>::new()
            .u32(at::id, id)
            .u16(at::addr_size, size)
            .bytes(at::addr, address)
            .finish()
    };
    let id = program.create(space::TCP, 5);
    assert_eq!(program.run(20, &bind(id, 28, &sockaddr(IP[0], 0))), libc::EINVAL, "IPv4 has 16 bytes");
    assert_eq!(program.run(20, &bind(id, 0, &sockaddr(IP[0], 0))), libc::EINVAL);
    assert_eq!(program.run(20, &bind(id, 16, &sockaddr(IP[0], 0))), 0);
    // How librdmacm asks whether there are these commands.
    let probe = program.create(space::IB, 6);
    assert_eq!(program.run(20, &bind(probe, 48, &Address::ib(Gid([0; 16]), 0x0106_0000).write())), 0);
    use ucm_resolve_addr as at;
    let resolve = |source: u16, destination: u16| {
        Writer::<{ at::SIZE }>::new()
            .u32(at::id, id)
            .u16(at::src_size, source)
            .u16(at::dst_size, destination)
            .bytes(at::dst, &sockaddr(IP[1], 7174))
            .finish()
    };
    assert_eq!(program.run(21, &resolve(0, 0)), libc::EINVAL);
    assert_eq!(program.run(21, &resolve(16, 16)), libc::EINVAL, "a source that is none");
    assert_eq!(program.run(21, &resolve(0, 16)), 0);
    program.expect(ADDR_RESOLVED);
}

#[test]
fn options_are_checked_by_level_name_and_length() {
    let [mut program, _] = programs(LinkLayer::Roce);
    let id = program.create(space::TCP, 5);
    let value = [5_u8, 0, 0, 0, 0, 0, 0, 0];
    let mut set = |id, level, name, len| {
        use ucm_set_option as at;
        let body = Writer::<{ at::SIZE }>::new()
            .u64(at::optval, value.as_ptr() as u64)
            .u32(at::id, id)
            .u32(at::level, level)
            .u32(at::optname, name)
            .u32(at::optlen, len);
        program.run(14, &body.finish())
    };
    for (name, level, option, len, errno) in [
        ("type of service", 0, 0, 1, 0),
        ("type of service, too long", 0, 0, 4, libc::EINVAL),
        ("reuse", 0, 1, 4, 0),
        ("family only", 0, 2, 4, 0),
        ("ACK time-out", 0, 3, 1, 0),
        ("unknown", 0, 4, 1, libc::ENOSYS),
        ("a path of InfiniBand", 1, 1, 8, libc::EINVAL),
        ("another level", 2, 0, 1, libc::ENOSYS),
        ("longer than a kernel takes", 0, 0, u32::MAX, libc::EINVAL),
    ] {
        assert_eq!(set(id, level, option, len), errno, "{name}");
    }
    assert_eq!(set(id + 1, 0, 0, 1), libc::ENOENT);
    assert_eq!(program.ids.ids[&id].traffic_class, 5);
}

#[test]
fn groups_are_refused_as_by_a_device_without_multicast() {
    let [mut program, _] = programs(LinkLayer::Roce);
    let id = program.create(space::UDP, 5);
    let join = Writer::<{ ucm_join_mcast::SIZE }>::new().u32(ucm_join_mcast::id, id).finish();
    assert_eq!(program.run(22, &join), libc::EINVAL, "not bound to a device");
    assert_eq!(program.bind(id, IP[0], 0), 0);
    assert_eq!(program.run(22, &join), libc::ENOSYS);
}

#[test]
fn what_is_elsewhere_is_reached_from_where_packets_leave() {
    let v6 = |text: &str| Gid(text.parse::<std::net::Ipv6Addr>().unwrap().octets());
    let away_v4 = Address::Ip("192.0.2.9:7174".parse().unwrap());
    let away_v6 = Address::Ip("[2001:db8::9]:7174".parse().unwrap());
    let first_v4 = Gid::from_ipv4(IP[0]);
    for (name, route, bound, to, expected) in [
        ("from the route's address", Some(first_v4), Address::None, away_v4, Ok((0, first_v4))),
        (
            "over IPv6, and not link-local",
            Some(v6("fd00::10")),
            Address::None,
            away_v6,
            Ok((0, v6("fd00::10"))),
        ),
        ("by the second device", Some(v6("fd00::11")), Address::None, away_v6, Ok((1, v6("fd00::11")))),
        (
            "from a device of one's choice",
            Some(first_v4),
            Address::of_gid(Gid::from_ipv4(IP[1]), 0),
            away_v4,
            Ok((1, Gid::from_ipv4(IP[1]))),
        ),
        (
            "from an address that no device has",
            Some(Gid::from_ipv4([192, 0, 2, 1])),
            Address::None,
            away_v4,
            Err(libc::ENODEV),
        ),
        (
            "from an address of one's choice, where the route's is no device's",
            Some(Gid::from_ipv4([192, 0, 2, 1])),
            Address::of_gid(first_v4, 0),
            away_v4,
            Ok((0, first_v4)),
        ),
        ("no route of that family", Some(first_v4), Address::None, away_v6, Err(libc::EHOSTUNREACH)),
    ] {
        let [mut program, _] = programs_with_wire(LinkLayer::Roce, route);
        let id = program.create(space::TCP, 5);
        program.ids.resolve_addr(program.file, id, bound, to).unwrap();
        let told = program.event().unwrap();
        let found = &program.ids.ids[&id];
        let reached = match told.kind {
            ADDR_RESOLVED => Ok((found.device.unwrap(), found.source.gid().unwrap())),
            _ => Err(-told.status),
        };
        assert_eq!(reached, expected, "{name}");
    }
}
