//! Each command except those of queues: what the device is asked, and what the program gets. Inputs are those
//! seen from libibverbs 44 and libmlx5 1.24 (`SOFTNIC_LOG=1`), with distinct values in every field.

use super::queues::{cq_call, qp_call};
use super::{Bench, Call, get_context};
use crate::abi::layout::{
    Reader, alloc_ucontext_resp, ex_query_device_resp, gid_entry, query_device_resp, query_port_resp,
};
use crate::abi::uar::{self, Mapping};
use crate::config::{Config, LinkLayer, Model};
use crate::dma::testing::Guarded;
use crate::os::testing::own;

fn roce() -> Config {
    Config { link_layer: LinkLayer::Roce, ..Config::default() }
}

#[test]
fn the_probe_for_wrapped_commands_gets_enospc_even_before_a_context() {
    let mut bench = Bench::closed(&Config::default());
    assert_eq!(Call::write(1).run(&mut bench), Err(libc::ENOSPC));
}

#[test]
fn commands_before_get_context_are_refused_and_a_second_one_too() {
    let mut bench = Bench::closed(&Config::default());
    for mut call in [
        Call::write(3).input(0, &[0; 8]).output(1, 4),
        Call::new(1, 0).handle(0, 0),
        Call::new(0, 2).input(0, &[1]).output(1, 48),
        Call::new(0x10, 0).handle(0, 0),
        Call::new(0x1008, 0x1000)
            .handle(0x1000, 0)
            .input(0x1001, &0_u64.to_ne_bytes())
            .output(0x1002, 8)
            .output(0x1003, 4)
            .output(0x1004, 4),
    ] {
        assert_eq!(call.run(&mut bench), Err(libc::EINVAL));
    }
    assert_eq!(bench.asked(), [] as [&str; 0]);
    assert_eq!(get_context().run(&mut bench), Ok(()));
    assert_eq!(get_context().run(&mut bench), Err(libc::EINVAL));
    assert_eq!(bench.asked(), ["open_context 0"]);
}

#[test]
fn a_refused_command_has_a_reason_and_what_every_open_tries_has_none() {
    let mut bench = Bench::closed(&Config::default());
    assert_eq!(Call::write(1).run(&mut bench), Err(libc::ENOSPC));
    get_context().run(&mut bench).unwrap();
    assert_eq!(bench.server.events.1.failures(), []);
    bench.device().refusal = Some(libc::EBUSY);
    assert_eq!(
        Call::write(3).input(0, &[0; 8]).output(1, 4).output(0x1001, 4).run(&mut bench),
        Err(libc::EBUSY)
    );
    assert_eq!(Call::new(9, 1).run(&mut bench), Err(libc::EOPNOTSUPP));
    let failures = bench.server.events.1.failures();
    let first = &failures[0];
    assert_eq!(
        (&*first.kind, first.qpn, first.wqe, first.peer, first.more),
        ("command", None, None, None, 0)
    );
    assert_eq!(first.text, "command refused: ALLOC_PD: as told (errno 16); destroy its users first");
    assert!(failures[1].text.starts_with("command refused: a call: FLOW method 0x1"), "{failures:?}");
}

#[test]
fn get_context_offers_dynamic_uars_and_version_1_cqes() {
    let mut bench = Bench::closed(&Config::default());
    let mut call = get_context();
    call.run(&mut bench).unwrap();
    use alloc_ucontext_resp as at;
    let answer = Reader(call.result(0x1001));
    assert_eq!((answer.u32(at::tot_bfregs), answer.u32(at::num_dyn_bfregs)), (0, 512));
    assert_eq!((answer.u8(at::cqe_version), answer.u8(at::eth_min_inline)), (1, 1));
    assert_eq!(answer.u32(at::response_length), 72);
    assert_eq!(call.result(0), 4_u32.to_ne_bytes(), "completion vectors: one a processor");
}

#[test]
fn a_library_without_dynamic_uars_or_user_indexes_is_refused_and_devx_too() {
    for (what, at, value, errno) in [
        ("lib_caps", 24, 1, libc::EOPNOTSUPP),
        ("max_cqe_version", 16, 0, libc::EOPNOTSUPP),
        ("comp_mask", 12, 1, libc::EOPNOTSUPP),
        // A kernel's answer for a card without DEVX, by which libmlx5 and programs open without.
        ("DEVX", 8, 1, libc::EINVAL),
        ("an unknown flag", 8, 2, libc::EINVAL),
    ] {
        let mut request = [0; 32];
        (request[16], request[24]) = (1, 3);
        request[at] = value;
        let mut call = Call::new(0, 3).output(0, 4).input(0x1000, &request).output(0x1001, 72);
        let mut bench = Bench::closed(&Config::default());
        assert_eq!(call.run(&mut bench), Err(errno), "{what}");
        assert_eq!(bench.asked(), [] as [&str; 0], "{what}");
    }
}

#[test]
fn a_context_whose_answer_cannot_be_written_is_closed_again() {
    let mut request = [0; 32];
    (request[16], request[24]) = (1, 3);
    let mut bench = Bench::closed(&Config::default());
    let mut call = Call::new(0, 3).output(0, 4).input(0x1000, &request).raw(0x1001, 72, 1, 0, 0x10);
    assert_eq!(call.run(&mut bench), Err(libc::EFAULT));
    assert_eq!(bench.asked(), ["open_context 0", "close_context 7"]);
    assert_eq!(get_context().run(&mut bench), Ok(()));
}

#[test]
fn ports_show_the_configured_link_layer_and_model() {
    for (config, layer, lid, speed, mtu, gids, flags) in [
        (Config::default(), 1, 1, 64, 5, 8, 0),
        (Config { mtu: 1024, model: Model::ConnectX7, ..roce() }, 2, 0, 128, 3, 16, 1),
        (Config { model: Model::ConnectX5, ..Config::default() }, 1, 1, 32, 5, 8, 0),
        (Config { model: Model::ConnectX6Dx, ..roce() }, 2, 0, 64, 5, 16, 1),
    ] {
        let mut call = Call::new(0, 2).input(0, &[1]).output(1, 48);
        call.run(&mut Bench::open(&config)).unwrap();
        use query_port_resp as at;
        let port = Reader(call.result(1));
        assert_eq!((port.u8(at::link_layer), port.u16(at::lid), port.u8(at::flags)), (layer, lid, flags));
        assert_eq!((port.u8(at::active_speed), port.u8(at::active_mtu), port.u8(at::state)), (speed, mtu, 4));
        assert_eq!(port.u8(at::active_width), 2, "4x");
        assert_eq!((port.u32(at::gid_tbl_len), port.u16(at::pkey_tbl_len)), (gids, 1));
    }
    for port in [0, 2, 255] {
        let mut call = Call::new(0, 2).input(0, &[port]).output(1, 48);
        assert_eq!(call.run(&mut Bench::open(&Config::default())), Err(libc::EINVAL), "port {port}");
    }
}

#[test]
fn gid_entries_say_enodata_when_empty_and_einval_past_the_table() {
    let mut bench = Bench::open(&roce());
    let call = |port: u32, index: u32, flags: u32| {
        let call = Call::new(0, 6).input(0, &port.to_ne_bytes()).input(1, &index.to_ne_bytes());
        call.input(2, &flags.to_ne_bytes()).output(3, 32)
    };
    for (port, index, flags, expected) in [
        (1, 0, 0, Ok(())),
        (1, 3, 0, Ok(())),
        (1, 4, 0, Err(libc::ENODATA)),
        (1, 15, 0, Err(libc::ENODATA)),
        (1, 16, 0, Err(libc::EINVAL)),
        (1, u32::MAX, 0, Err(libc::EINVAL)),
        (2, 0, 0, Err(libc::EINVAL)),
        (1, 0, 1, Err(libc::EINVAL)),
    ] {
        assert_eq!(call(port, index, flags).run(&mut bench), expected, "{port} {index} {flags}");
    }
    let mut third = call(1, 3, 0);
    third.run(&mut bench).unwrap();
    let entry = Reader(third.result(3));
    assert_eq!(entry.array::<16>(gid_entry::gid), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1]);
    let word = |at| entry.u32(at);
    assert_eq!((word(gid_entry::gid_index), word(gid_entry::gid_type)), (3, 2));
    assert_eq!((word(gid_entry::port_num), word(gid_entry::netdev_ifindex)), (1, 1));
}

#[test]
fn the_gid_table_lists_entries_in_use_in_the_size_asked_for() {
    let mut bench = Bench::open(&roce());
    let call = |size: u64, room| Call::new(0, 5).input(0, &size.to_ne_bytes()).output(2, room).output(3, 8);
    for (size, room, expected) in [
        (32, 4 * 32, Ok(4_u64)),
        (40, 4 * 40, Ok(4)),
        (24, 1000, Ok(4)),
        (32, 3 * 32, Err(libc::EINVAL)),
        (0, 64, Err(libc::EINVAL)),
        (u64::MAX, 64, Err(libc::EINVAL)),
    ] {
        let mut call = call(size, room);
        let count = call.run(&mut bench).map(|()| Reader(call.result(3)).u64(0));
        assert_eq!(count, expected, "{size} {room}");
        if expected.is_ok() {
            let second = &call.result(2)[size as usize..];
            assert_eq!(second[..2], [0xfe, 0x80], "{size}: the second entry starts where it should");
        }
    }
}

#[test]
fn query_device_gives_the_models_numbers_in_both_forms() {
    let mut bench = Bench::open(&Config { model: Model::ConnectX6Dx, ..Config::default() });
    let mut plain = Call::write(1).input(0, &[0; 8]).output(1, 176);
    plain.run(&mut bench).unwrap();
    let mut extended = Call::write(0x8000_0001).input(0, &[0; 8]).output(1, 304).output(0x1001, 104);
    extended.run(&mut bench).unwrap();
    assert_eq!(plain.result(1), &extended.result(1)[..176]);
    let device = Reader(extended.result(1));
    assert_eq!(device.u32(query_device_resp::vendor_part_id), 0x101d);
    assert_eq!(device.u8(query_device_resp::phys_port_cnt), 1);
    assert_eq!(device.u32(ex_query_device_resp::response_length), 304);
    assert_eq!(device.u64(ex_query_device_resp::hca_core_clock), 1_000_000);
    assert_eq!(Reader(extended.result(0x1001)).u32(4), 104);
    assert_eq!(Call::write(1).input(0, &[0; 8]).output(1, 100).run(&mut bench), Err(libc::ENOSPC));
    let mut mask = Call::write(0x8000_0001).input(0, &[1, 0, 0, 0, 0, 0, 0, 0]).output(1, 304);
    assert_eq!(mask.run(&mut bench), Err(libc::EINVAL));
}

#[test]
fn protection_domains_and_regions_carry_every_field() {
    let mut bench = Bench::open(&Config::default());
    let mut pd = Call::write(3).input(0, &[0; 8]).output(1, 4).output(0x1001, 4);
    pd.run(&mut bench).unwrap();
    assert_eq!((Reader(pd.result(1)).u32(0), Reader(pd.result(0x1001)).u32(0)), (4, 0x44));
    let fields: [u64; 4] = [0, 0x1000, 0x2000, 0x3000];
    let mut input: Vec<u8> = fields.iter().flat_map(|field| field.to_ne_bytes()).collect();
    input.extend([4_u32, 0x7].iter().flat_map(|field| field.to_ne_bytes()));
    let mut mr = Call::write(9).input(0, &input).output(1, 12);
    mr.run(&mut bench).unwrap();
    let answer = Reader(mr.result(1));
    assert_eq!((answer.u32(0), answer.u32(4), answer.u32(8)), (5, 0x500, 0x501));
    Call::new(7, 1).handle(0, 5).run(&mut bench).unwrap();
    Call::new(1, 0).handle(0, 4).run(&mut bench).unwrap();
    assert_eq!(
        bench.asked(),
        [
            "alloc_pd",
            "RegMr { start: 1000, length: 2000, iova: 3000, pd: 4, access: 7 }",
            "dereg_mr 5",
            "dealloc_pd 4"
        ]
    );
    assert_eq!(Call::write(9).input(0, &input[..39]).output(1, 12).run(&mut bench), Err(libc::ENOSPC));
    let mut lost = Call::write(9).input(0, &input).raw(1, 12, 1, 0, 0x10);
    assert_eq!(lost.run(&mut bench), Err(libc::EFAULT));
    assert_eq!(bench.asked()[1], "dereg_mr 5", "a region nobody knows the key of is gone");
}

#[test]
fn pages_of_a_region_are_brought_in_before_the_device_is_locked() {
    let mut bench = Bench::open(&Config::default());
    let page = Guarded::new(4096).unwrap();
    let fields: [u64; 4] = [0, page.address(), 4096, page.address()];
    let mut input: Vec<u8> = fields.iter().flat_map(|field| field.to_ne_bytes()).collect();
    input.extend([4_u32, 1].iter().flat_map(|field| field.to_ne_bytes()));
    Call::write(9).input(0, &input).output(1, 12).run(&mut bench).unwrap();
    assert!(page.is_present(), "the recording device itself touches nothing");
}

#[test]
fn windows_come_and_go() {
    let mut bench = Bench::open(&Config::default());
    let input = [0, 0, 4, 2].map(u32::to_ne_bytes).concat();
    let alloc = || Call::write(0xe).input(0, &input).output(1, 8);
    let mut made = alloc();
    made.run(&mut bench).unwrap();
    assert_eq!((Reader(made.result(1)).u32(0), Reader(made.result(1)).u32(4)), (9, 0x900));
    Call::new(8, 0).handle(0, 9).run(&mut bench).unwrap();
    assert_eq!(bench.asked(), ["AllocMw { pd: 4, kind: 2 }", "dealloc_mw 9"]);
    // The driver's part: what is not there must not be asked for.
    for (what, part, answer) in [
        ("zeros", [0, 0, 0, 0, 0, 0, 0, 0], Ok(())),
        ("one piece", [0, 0, 0, 0, 1, 0, 0, 0], Ok(())),
        ("two pieces", [0, 0, 0, 0, 2, 0, 0, 0], Err(libc::EOPNOTSUPP)),
        ("a mask", [1, 0, 0, 0, 0, 0, 0, 0], Err(libc::EOPNOTSUPP)),
        ("a reserved byte", [0, 0, 0, 0, 0, 1, 0, 0], Err(libc::EOPNOTSUPP)),
    ] {
        assert_eq!(alloc().input(0x1000, &part).run(&mut bench), answer, "{what}");
    }
    let mut lost = Call::write(0xe).input(0, &input).raw(1, 8, 1, 0, 0x10);
    assert_eq!(lost.run(&mut bench), Err(libc::EFAULT));
    assert_eq!(bench.asked().last().map(String::as_str), Some("dealloc_mw 9"), "nobody knows its key");
}

#[test]
fn address_handles_tell_the_mac_and_need_a_gid_on_ethernet() {
    let mut input = [0; 56];
    (input[16], input[24], input[44], input[50], input[53], input[54]) = (4, 0xfe, 3, 2, 1, 1);
    let mut bench = Bench::open(&roce());
    let mut call = Call::write(5).input(0, &input).output(1, 4).output(0x1001, 16);
    call.run(&mut bench).unwrap();
    assert_eq!((Reader(call.result(1)).u32(0), &call.result(0x1001)[4..10]), (9, &[1, 2, 3, 4, 5, 6][..]));
    Call::new(6, 0).handle(0, 9).run(&mut bench).unwrap();
    let asked = bench.asked();
    assert!(asked[0].starts_with("create_ah 4 AddressVector { dlid: 0, dgid: Some([fe,"), "{asked:?}");
    assert_eq!(asked[1], "destroy_ah 9");
    input[53] = 0;
    assert_eq!(Call::write(5).input(0, &input).output(1, 4).run(&mut bench), Err(libc::EINVAL));
}

#[test]
fn uar_pages_are_mapped_at_the_offset_that_they_were_given() {
    let mut bench = Bench::open(&Config::default());
    let alloc = |kind: u64| {
        Call::new(0x1008, 0x1000)
            .handle(0x1000, 0)
            .input(0x1001, &kind.to_ne_bytes())
            .output(0x1002, 8)
            .output(0x1003, 4)
            .output(0x1004, 4)
    };
    let mut call = alloc(0);
    call.run(&mut bench).unwrap();
    let offset = Reader(call.result(0x1002)).u64(0);
    assert_eq!((Reader(call.result(0x1003)).u32(0), Reader(call.result(0x1004)).u32(0)), (4096, 0x21));
    let map = |bench: &Bench, offset, length| match uar::mapping(&bench.file, offset, length) {
        Ok(Mapping::Uar) => Ok("uar"),
        Ok(Mapping::Clock) => Ok("clock"),
        Err(error) => Err(error.errno),
    };
    for (what, offset, length, expected) in [
        ("the page", offset, 4096, Ok("uar")),
        ("its neighbour", offset + 4096, 4096, Err(libc::EINVAL)),
        ("two pages", offset, 8192, Err(libc::EINVAL)),
        ("between pages", offset + 8, 4096, Err(libc::EINVAL)),
        ("core clock", 0x50_0000, 4096, Ok("clock")),
        ("clock info", 0x70_0000, 4096, Ok("clock")),
        ("core clock with an index", 0x50_1000, 4096, Err(libc::EINVAL)),
        ("static UAR", 0, 4096, Err(libc::EINVAL)),
        ("device memory", 0x80_0000, 4096, Err(libc::EINVAL)),
        ("the far end", u64::MAX - 4095, 4096, Err(libc::EINVAL)),
    ] {
        assert_eq!(map(&bench, offset, length), expected, "{what}");
    }
    assert_eq!(alloc(2).run(&mut bench), Err(libc::EOPNOTSUPP));
    alloc(1).run(&mut bench).unwrap();
    Call::new(0x1008, 0x1001).handle(0x1000, 3).run(&mut bench).unwrap();
    assert_eq!(map(&bench, offset, 4096), Err(libc::EINVAL), "after its destruction");
    assert_eq!(bench.asked(), ["alloc_uar BlueFlame", "alloc_uar NonCached", "free_uar 3"]);
}

#[test]
fn a_panic_in_the_nic_stops_it_for_good() {
    use std::io::Read;
    let mut bench = Bench::open(&Config::default());
    let mut call = Call::new(0x10, 0).handle(0, 0);
    call.run(&mut bench).unwrap();
    let fd = call.attribute(0).1 as i32;
    let mut events = own(fd);
    assert!(bench.server.nic.attempt(|_| ()));
    assert!(!bench.server.nic.attempt(|_| panic!("the test's")));
    assert!(bench.server.nic.poll().is_none(), "nobody works on what a panic left");
    bench.server.stop();
    bench.server.stop();
    let mut event = [0; 16];
    events.read_exact(&mut event).unwrap();
    assert_eq!(event[8], 8, "IBV_EVENT_DEVICE_FATAL");
    assert_eq!(
        Call::write(3).input(0, &[0; 8]).output(1, 4).output(0x1001, 4).run(&mut bench),
        Err(libc::EIO)
    );
}

#[test]
fn what_the_device_lacks_is_refused_as_a_kernel_refuses_it_and_counted() {
    let mut bench = Bench::open(&Config::default());
    for command in [0x4, 0x20, 0x27, 0x28, 0x25, 0x1e, 0x8000_0032, 0x8000_0039, 0x99, 0x1234_5678] {
        assert_eq!(
            Call::write(command).input(0, &[0; 16]).run(&mut bench),
            Err(libc::EOPNOTSUPP),
            "{command:#x}"
        );
    }
    Call::write(0x27).input(0, &[0; 16]).run(&mut bench).unwrap_err();
    assert_eq!(Call::new(0x1000, 0x1000).run(&mut bench), Err(libc::EOPNOTSUPP));
    let refused = bench.server.events.1.refusals();
    assert!(refused.contains(&("CREATE_XSRQ".to_owned(), 2)), "{refused:?}");
    assert!(refused.contains(&("DEVX method 0x1000 (firmware commands)".to_owned(), 1)), "{refused:?}");
    assert!(refused.contains(&("write command 0x99".to_owned(), 1)), "{refused:?}");
    // Whatever refuses it: the method's decoder, the command, the device.
    cq_call(64, 2, 0, 4, 0).run(&mut bench).unwrap_err();
    qp_call(0xff, 0, 0x400).run(&mut bench).unwrap_err();
    bench.device().refusal = Some(libc::EOPNOTSUPP);
    Call::write(3).input(0, &[0; 8]).output(1, 4).run(&mut bench).unwrap_err();
    let refused = bench.server.events.1.refusals();
    for name in ["CQ.CREATE: flags 0x4", "DC QP (type 255)", "as told"] {
        assert!(refused.contains(&(name.to_owned(), 1)), "{name}: {refused:?}");
    }
}

/// What libmlx5 and its users try first. These errnos make `ibv_query_gid_ex`, UCX and gpunetio fall back.
#[test]
fn devx_and_unknown_methods_are_refused_so_that_callers_fall_back() {
    let mut bench = Bench::open(&Config::default());
    let absent = [
        ("DEVX", 0x1000, 4),
        ("DEVX_OBJ", 0x1001, 5),
        ("DEVX_UMEM", 0x1002, 2),
        ("FLOW_MATCHER", 0x1003, 3),
        ("DEVX_ASYNC_CMD_FD", 0x1004, 1),
        ("DEVX_ASYNC_EVENT_FD", 0x1005, 1),
        ("VAR", 0x1006, 2),
        ("PP", 0x1007, 2),
        ("STEERING_ANCHOR", 0x1009, 2),
    ];
    for (name, object, methods) in absent {
        for method in 0x1000..0x1000 + methods {
            let refused = Call::new(object, method).input(0x1001, &[0; 16]).run(&mut bench);
            assert_eq!(refused, Err(libc::EOPNOTSUPP), "{name}.{method:#x}");
        }
    }
    let unknown = [
        ("DEVICE.QUERY_PORT_SPEED", 0, 8),
        ("MR.DM_MR_REG", 7, 0),
        ("MR.ADVISE", 7, 2),
        ("MR.QUERY", 7, 3),
        ("MR.REG_MR", 7, 5),
        ("PD of mlx5's own", 1, 0x1000),
        ("an object of a later kernel", 18, 0),
        ("an object of mlx5's of a later kernel", 0x1010, 0x1000),
        ("nothing at all", 0xffff, 0xffff),
    ];
    for (name, object, method) in unknown {
        assert_eq!(Call::new(object, method).run(&mut bench), Err(libc::EPROTONOSUPPORT), "{name}");
    }
    assert_eq!(bench.asked(), [] as [&str; 0]);
}

#[test]
fn closing_closes_the_context_and_its_event_files() {
    use std::io::Read;
    let mut bench = Bench::open(&Config::default());
    let mut call = Call::new(0x10, 0).handle(0, 0);
    call.run(&mut bench).unwrap();
    let mut events = own(call.attribute(0).1 as i32);
    let file = std::mem::replace(&mut bench.file, super::OpenFile::new(0));
    bench.server.close(file);
    assert_eq!(bench.asked(), ["close_context 7"]);
    assert_eq!(events.read(&mut [0; 16]).unwrap(), 0, "a reader sees the end");
}

#[test]
fn the_devices_own_refusals_reach_the_program() {
    let mut bench = Bench::open(&Config::default());
    bench.device().refusal = Some(libc::ENOMEM);
    assert_eq!(Call::write(3).input(0, &[0; 8]).output(1, 4).run(&mut bench), Err(libc::ENOMEM));
    assert_eq!(cq_call(64, 2, 0, 0, 0).run(&mut bench), Err(libc::ENOMEM));
    assert_eq!(qp_call(2, 0, 0x400).run(&mut bench), Err(libc::ENOMEM));
}
