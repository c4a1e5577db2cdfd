//! Datagrams: what comes with each, and which are dropped.

use mlx5_layout::send_wqe::AddressVector;
use mlx5_layout::{CqeOpcode, SendOpcode};
use roce::ServiceType;
use soft_nic::config::LinkLayer;
use soft_nic::testing::{Driver, QpShape, Setup, WorkRequest};

use crate::operations::{ALL, gather, on_the_wire, opcode_of};

#[test]
fn datagrams_arrive_behind_forty_bytes_and_name_their_sender() {
    for (layer, setup) in [
        (LinkLayer::Ib, Setup::new("ud-ib")),
        (LinkLayer::Roce, Setup::new("ud-roce").with(|c| c.link_layer = LinkLayer::Roce)),
        (LinkLayer::Roce, on_the_wire("ud-wire")),
    ] {
        let mut driver = Driver::new(setup);
        let (a, b) = driver.pair(QpShape { service: ServiceType::Ud, ..QpShape::default() });
        let (from, to) = (driver.region(8192, ALL), driver.region(8192, ALL));
        for len in [0u32, 1, 100, 4096] {
            let bytes = from.fill(0, len as usize, len as u8);
            to.fill(0, 8192, 0xee);
            driver.post_receive(b, &[to.pointer(0, 17), to.pointer(17, 8000)]);
            let request = gather(WorkRequest::new(SendOpcode::SendImm), &from, len);
            let datagram = Some(driver.vector(b, 0x1111_1111));
            let request = WorkRequest { datagram, immediate: [9, 8, 7, 6], ..request };
            driver.post(a, &request).settle();
            let cqe = driver.poll_receive(b).unwrap_or_else(|| panic!("{layer}: {len} bytes did not arrive"));
            assert_eq!((cqe.opcode(), cqe.byte_count()), (Some(CqeOpcode::ResponderSendImm), len + 40));
            // On Ethernet: IPv4.
            let level = if layer == LinkLayer::Roce { 2 } else { 3 };
            assert_eq!((cqe.source_qpn(), cqe.service_level()), (driver.qp(a).qpn, level));
            assert_eq!(cqe.immediate(), [9, 8, 7, 6]);
            assert_eq!(to.block.bytes(40, len as usize), bytes);
            let roce = layer == LinkLayer::Roce;
            assert_eq!((cqe.has_grh(), cqe.source_lid()), (roce, if roce { 0 } else { 1 }));
            let first = if roce { 0 } else { 0xee };
            assert_eq!(to.block.bytes(0, 1)[0], first, "without a GRH the bytes stay as they are");
            assert_eq!(opcode_of(driver.poll_send(a)).map(|c| c.0), Some(CqeOpcode::Requester));
        }
    }
}

#[test]
fn datagrams_that_nobody_wants_vanish_and_their_senders_do_not_know() {
    let mut driver = Driver::new(Setup::new("ud-lost"));
    let (a, b) = driver.pair(QpShape { service: ServiceType::Ud, ..QpShape::default() });
    let (from, to) = (driver.region(64, ALL), driver.region(4096, ALL));
    let good = driver.vector(b, 0x1111_1111);
    let counter =
        |driver: &Driver<_>, name: &str| driver.counters().fields().find(|f| f.0 == name).map(|f| f.1);
    driver.post_receive(b, &[to.pointer(0, 4096)]);
    for (name, datagram, dropped) in [
        ("wrong Q_Key", AddressVector { qkey: 1, ..good }, "dropped_qkey"),
        ("LID of nobody", AddressVector { lid_or_udp_port: 77, ..good }, "lost_unreachable"),
        (
            "QPN of nobody",
            AddressVector { destination_qpn: good.destination_qpn + 9, ..good },
            "dropped_unknown_qp",
        ),
    ] {
        let before = counter(&driver, dropped);
        let request = WorkRequest { datagram: Some(datagram), ..WorkRequest::send(&from, 0, 8) };
        driver.post(a, &request).settle();
        assert_eq!(opcode_of(driver.poll_send(a)).map(|c| c.0), Some(CqeOpcode::Requester), "{name}");
        assert_eq!(opcode_of(driver.poll_receive(b)), None, "{name}");
        assert_eq!(counter(&driver, dropped), before.map(|b| b + 1), "{name}");
    }
    // The sender's own Q_Key when the vector's has its top bit set (IBTA).
    let own = AddressVector { qkey: 1 << 31, ..good };
    driver.post(a, &WorkRequest { datagram: Some(own), ..WorkRequest::send(&from, 0, 8) }).settle();
    assert_eq!(opcode_of(driver.poll_receive(b)), Some((CqeOpcode::ResponderSend, 48)));
}
