//! Messages of the connection manager: golden bytes of each kind, and each way to be refused.

use super::*;

const IDS: Ids = Ids { local: 0x5bb7_52ee, remote: 0x8c99_9297 };

/// A MAD with this attribute, transaction 0x29792998c, and a body that begins with `hex`.
fn mad(attribute: u16, hex: &str) -> [u8; MAD_BYTES] {
    let mut mad = [0; MAD_BYTES];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[8..16].copy_from_slice(&0x2_9792_998c_u64.to_be_bytes());
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    for (at, digits) in (24..).zip((0..hex.len()).step_by(2)) {
        mad[at] = u8::from_str_radix(&hex[digits..digits + 2], 16).unwrap();
    }
    mad
}

fn rep() -> Message {
    Message::Rep(Rep {
        ids: IDS,
        qpn: 0x11,
        starting_psn: 0x1_d750,
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 15,
        rnr_retry: 7,
        ca_guid: 0x5054_00ff_fe00_000a,
        ..Rep::default()
    })
}

#[test]
fn golden_bytes_are_read_and_written() {
    let back = Ids { local: IDS.remote, remote: IDS.local };
    let rej = Rej {
        ids: Ids { local: 0, remote: 0x8899_9297 },
        message: 0,
        reason: reason::INVALID_SERVICE_ID,
        info_bytes: 0,
        info: [0; 72],
    };
    let sidr_rep = SidrRep {
        request: 0x8f99_9297,
        status: 0,
        info_bytes: 0,
        qpn: 0x14,
        // Of IP (Annex A11): 1, the protocol, the port.
        service: 0x0111_1c06,
        qkey: 0x0123_4567,
        info: [0; 72],
    };
    // Packets 2, 3, 28, 29, 126, 119, 120 of `rxe-cm.pcap`; MRA, which Linux did not send, by its format.
    for (attribute, hex, message) in [
        (0x13, "5bb752ee8c99929700000000000011000000000001d75000010178e0505400fffe00000a", rep()),
        (0x14, "8c9992975bb752ee", Message::Rtu(back)),
        (0x15, "8c9992975bb752ee000011", Message::Dreq(Dreq { ids: back, qpn: 0x11 })),
        (0x16, "5bb752ee8c999297", Message::Drep(IDS)),
        (0x12, "000000008899929700000008", Message::Rej(rej)),
        (
            0x17,
            "8f999297ffff00000000000001111c06",
            Message::SidrReq(SidrReq { request: 0x8f99_9297, pkey: 0xffff, service: 0x0111_1c06 }),
        ),
        (0x18, "8f99929700000000000014000000000001111c0601234567", Message::SidrRep(sidr_rep)),
        (0x11, "5bb752ee8c99929740a0", Message::Mra(Mra { ids: IDS, message: 1, timeout: 20 })),
    ] {
        let golden = mad(attribute, hex);
        let read = CmMad::decode(&golden).unwrap();
        assert_eq!((read.message, read.transaction), (message, 0x2_9792_998c));
        assert_eq!(read.private.len(), BODY_BYTES - message.private_at());
        assert_eq!(read.encode(), Ok(golden), "{message:?}");
        assert_eq!(CmMad { private: &[], ..read }.encode(), Ok(golden), "{message:?}");
    }
}

#[test]
fn every_field_has_room_of_its_own() {
    // All bits of a field set, then none, with every other field the other way: a shared bit shows.
    let full = Path {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: Gid([0xff; 16]),
        remote_gid: Gid([0xff; 16]),
        flow_label: 0xf_ffff,
        rate: 0x3f,
        traffic_class: 0xff,
        hop_limit: 0xff,
        service_level: 0xf,
        subnet_local: true,
        ack_timeout: 0x1f,
    };
    let full = Req {
        local_id: u32::MAX,
        service: u64::MAX,
        ca_guid: u64::MAX,
        qkey: u32::MAX,
        qpn: 0xff_ffff,
        responder_resources: 0xff,
        initiator_depth: 0xff,
        remote_response_timeout: 0x1f,
        transport: 3,
        flow_control: true,
        starting_psn: 0xff_ffff,
        local_response_timeout: 0x1f,
        retry: 7,
        pkey: 0xffff,
        path_mtu: 0xf,
        rdc_exists: true,
        rnr_retry: 7,
        max_cm_retries: 0xf,
        srq: true,
        extended_transport: 7,
        primary: full,
        alternate: full,
    };
    let none = Req::default();
    let round = |req: Req| {
        let mad = CmMad { transaction: 1, message: Message::Req(req), private: &[] }.encode().unwrap();
        assert_eq!(CmMad::decode(&mad).unwrap().message, Message::Req(req));
        mad
    };
    let (bytes_full, bytes_none) = (round(full), round(none));
    // Reserved: 4 bytes behind the id, 4 behind the GUID, two EE contexts; 6 bits and twice 3 in each path.
    let bits: u32 = bytes_full.iter().zip(&bytes_none).map(|(full, none)| (full ^ none).count_ones()).sum();
    assert_eq!(bits as usize, (Req::BYTES - 4 - 4 - 3 - 3) * 8 - 2 * (6 + 3 + 3));
    for mixed in [
        Req { transport: 3, ..none },
        Req { flow_control: true, ..none },
        Req { retry: 7, ..none },
        Req { rnr_retry: 7, ..none },
        Req { extended_transport: 7, ..none },
        Req { path_mtu: 0, ..full },
        Req { local_response_timeout: 0, ..full },
        Req { remote_response_timeout: 0, ..full },
        Req { primary: Path { rate: 0, ..full.primary }, ..full },
        Req { alternate: Path { ack_timeout: 0, ..full.alternate }, ..full },
    ] {
        round(mixed);
    }
}

#[test]
fn private_data_fills_its_room_and_no_more() {
    for (message, room) in [
        (Message::Req(Req::default()), 92),
        (Message::Mra(Mra { ids: IDS, message: 0, timeout: 0 }), 222),
        (rep(), 196),
        (Message::Rtu(IDS), 224),
        (Message::Dreq(Dreq { ids: IDS, qpn: 1 }), 220),
        (Message::Drep(IDS), 224),
        (Message::SidrReq(SidrReq { request: 1, pkey: 1, service: 1 }), 216),
    ] {
        let private = [0xab; BODY_BYTES];
        let fits = CmMad { transaction: 1, message, private: &private[..room] };
        let mad = fits.encode().unwrap();
        assert_eq!(CmMad::decode(&mad), Ok(fits));
        let over = CmMad { private: &private[..room + 1], ..fits };
        assert_eq!(over.encode(), Err(WireError::PrivateData { have: room + 1, limit: room }));
    }
}

#[test]
fn what_is_no_message_of_the_manager_is_refused() {
    let golden = mad(0x14, "8c9992975bb752ee");
    let short = WireError::Truncated { what: "a MAD", need: 256, have: 255 };
    assert_eq!(CmMad::decode(&golden[..255]), Err(short));
    let other = mad(0x19, "");
    assert_eq!(CmMad::decode(&other), Err(WireError::UnknownAttribute { attribute: 0x19 }));
    for (at, value) in [(0, 2), (1, 4), (2, 1), (3, 0x81)] {
        let mut mad = golden;
        mad[at] = value;
        assert!(matches!(CmMad::decode(&mad), Err(WireError::NotCm { .. })), "byte {at}");
    }
}

#[test]
fn no_body_makes_a_decoder_panic_and_what_is_read_is_written_back() {
    let mut state = 7_u64;
    for attribute in 0x10..=0x18 {
        for _ in 0..2_000 {
            let mut bytes = mad(attribute, "");
            for chunk in bytes[24..].chunks_mut(8) {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                chunk.copy_from_slice(&(state ^ state >> 29).to_le_bytes());
            }
            let read = CmMad::decode(&bytes).unwrap();
            let written = read.encode().unwrap();
            assert_eq!(CmMad::decode(&written), Ok(read), "{attribute:#x}");
            let _ = IpCm::parse(read.private);
        }
    }
}

#[test]
fn an_ip_header_of_private_data_is_read_and_written() {
    // `rxe-cm.pcap`, packet 1: rping on 10.9.0.2, port 47098, asks 10.9.0.1.
    let mut golden = [0; 36];
    golden[1] = 0x40;
    golden[2..4].copy_from_slice(&[0xb7, 0xfa]);
    golden[16..20].copy_from_slice(&[10, 9, 0, 2]);
    golden[32..36].copy_from_slice(&[10, 9, 0, 1]);
    let gid = |last| Gid::from_ipv4([10, 9, 0, last]);
    let header = IpCm { version: 0, ip_version: 4, source_port: 0xb7fa, source: gid(2), destination: gid(1) };
    assert_eq!(IpCm::parse(&golden), Ok(header));
    assert_eq!(header.emit(), golden);
    let v6 = IpCm { ip_version: 6, source: Gid([1; 16]), destination: Gid([2; 16]), ..header };
    assert_eq!(IpCm::parse(&v6.emit()), Ok(v6));
    golden[1] = 0x50;
    assert_eq!(IpCm::parse(&golden), Err(WireError::IpVersion { version: 5 }));
    let short = WireError::Truncated { what: "an IP CM header", need: 36, have: 35 };
    assert_eq!(IpCm::parse(&golden[..35]), Err(short));
}
