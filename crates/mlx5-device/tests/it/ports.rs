//! Two ports of one device: each with its own address, its own state, and the queues that chose it.

use mlx5_device::command::{AddressVector, ModifyQp, event_type};
use mlx5_device::commands::*;
use mlx5_device::config::LinkLayer;
use mlx5_device::errno;
use mlx5_device::testing::{QpId, QpShape, WorkRequest};
use mlx5_layout::CqeSyndrome;
use roce::ServiceType;
use roce::qp_state::AttrMask;

use crate::machine::{ALL, Driver, Setup, errno};

const LAYERS: [LinkLayer; 2] = [LinkLayer::Ib, LinkLayer::Roce];

/// Of each send that completed its error, if any.
fn syndromes(driver: &mut Driver, qp: QpId) -> Vec<Option<CqeSyndrome>> {
    let sends = std::iter::from_fn(|| driver.poll_send(qp));
    sends.map(|cqe| cqe.opcode()?.is_error().then(|| cqe.error().known())?).collect()
}

fn driver(name: &str, layer: LinkLayer) -> Driver {
    Driver::new(Setup::new(&format!("{name}-{layer}")).with(|c| (c.ports, c.link_layer) = (2, layer)))
}

/// Address of a port of device 0, as `from` of the same names it.
fn address(driver: &Driver, from: u8, to: u8) -> AddressVector {
    let port = &driver.nic.ports()[usize::from(to) - 1];
    let common = AddressVector { port: from, hop_limit: 64, ..AddressVector::default() };
    match port.link_layer {
        LinkLayer::Ib => AddressVector { dlid: port.lid, ..common },
        LinkLayer::Roce => {
            AddressVector { dgid: port.gids.last().map(|entry| entry.gid), sgid_index: 3, ..common }
        }
    }
}

fn attributes(driver: &Driver, peer: QpId, from: u8, to: u8) -> ModifyQp {
    let quick =
        ModifyQp { port: from, retry_count: 1, timeout: 10, ..driver.attributes(driver.qp(peer).qpn) };
    ModifyQp { address: address(driver, from, to), ..quick }
}

/// Two queues, on ports 1 and 2, that send to each other's addresses; or to the one that is given.
fn pair(driver: &mut Driver, service: ServiceType, addressed: Option<u8>) -> (QpId, QpId) {
    let shape = QpShape { service, ..QpShape::default() };
    let (a, b) = (driver.create_qp(shape), driver.create_qp(shape));
    let to_b = attributes(driver, b, 1, addressed.unwrap_or(2));
    let to_a = attributes(driver, a, 2, 1);
    driver.bring_up(a, &to_b);
    driver.bring_up(b, &to_a);
    (a, b)
}

#[test]
fn queues_on_both_ports_reach_each_other_and_each_port_counts_its_own() {
    for layer in LAYERS {
        let mut driver = driver("ports", layer);
        let (a, b) = pair(&mut driver, ServiceType::Rc, None);
        let (from, to) = (driver.region(1 << 17, ALL), driver.region(1 << 17, ALL));
        for (sender, len) in [(a, 100_000), (b, 8), (a, 64)] {
            let bytes = from.fill(0, len, len as u8);
            driver.post(sender, &WorkRequest::write(&from, 0, len as u32, &to, 0)).settle();
            assert_eq!(syndromes(&mut driver, sender), [None], "{layer}");
            assert_eq!(to.block.bytes(0, len), bytes, "{layer}");
        }
        let sent = [0, 1].map(|place| driver.nic.port_counters(place).messages_sent);
        let received = [0, 1].map(|place| driver.nic.port_counters(place).requests_received);
        assert_eq!((sent, received), ([2, 1], [1, 2]), "{layer}");
        assert_eq!([0, 1].map(|place| driver.nic.open_qps(place)), [1, 1], "{layer}");
        // The answer leaves by the port of the other.
        driver.post(a, &WorkRequest::read(&to, 0, 64, &from, 0)).settle();
        let wire_bytes = [0, 1].map(|place| driver.nic.port_counters(place).wire_bytes_sent);
        assert_eq!(wire_bytes.iter().sum::<u64>(), driver.counters().wire_bytes_sent, "{layer}");
    }
}

#[test]
fn a_message_for_one_port_is_not_for_a_queue_on_another() {
    for layer in LAYERS {
        for service in [ServiceType::Rc, ServiceType::Uc] {
            let mut driver = driver("other-port", layer);
            let (a, _) = pair(&mut driver, service, Some(1));
            let (from, to) = (driver.region(64, ALL), driver.region(64, ALL));
            from.fill(0, 64, 9);
            driver.post(a, &WorkRequest::write(&from, 0, 64, &to, 0)).settle();
            driver.advance(200_000_000);
            assert!(to.block.bytes(0, 64).iter().all(|byte| *byte == 0), "{layer} {service:?}");
            let lost =
                if service == ServiceType::Rc { Some(CqeSyndrome::TransportRetryExceeded) } else { None };
            assert_eq!(syndromes(&mut driver, a), [lost], "{layer} {service:?}");
            assert!(driver.counters().dropped_address > 0, "{layer} {service:?}");
        }
    }
}

#[test]
fn ports_that_are_not_there_and_addresses_of_the_other_port_are_refused() {
    for (ports, layer) in [(1, LinkLayer::Ib), (2, LinkLayer::Ib), (2, LinkLayer::Roce)] {
        let name = format!("no-port-{ports}-{layer}");
        let setup = Setup::new(&name).with(|c| (c.ports, c.link_layer) = (ports, layer));
        let mut driver = Driver::new(setup);
        let qp = driver.create_qp(QpShape::default());
        let mask = AttrMask::STATE.0 | AttrMask::PKEY_INDEX.0 | AttrMask::PORT.0 | AttrMask::ACCESS_FLAGS.0;
        let init = |port| ModifyQp { mask, state: 1, port, ..ModifyQp::default() };
        let ah = |driver: &mut Driver, port| {
            let address = AddressVector { port, ..address(driver, 1, 1) };
            errno(driver.nic.create_ah(driver.context, driver.pd, &address))
        };
        for port in [0, ports + 1, 3, 255] {
            assert_eq!(errno(driver.modify(qp, &init(port))), errno::EINVAL, "{name}: INIT on port {port}");
            assert_eq!(ah(&mut driver, port), errno::EINVAL, "{name}: AH of port {port}");
        }
        for port in 1..=ports {
            assert_eq!(ah(&mut driver, port), 0, "{name}: AH of port {port}");
        }
        assert_eq!(errno(driver.modify(qp, &init(ports))), 0, "{name}");
        let rtr = AttrMask::STATE.0
            | AttrMask::AV.0
            | AttrMask::PATH_MTU.0
            | AttrMask::DEST_QPN.0
            | AttrMask::RQ_PSN.0
            | AttrMask::MAX_DEST_RD_ATOMIC.0
            | AttrMask::MIN_RNR_TIMER.0;
        for port in [0, 3 - ports, 3] {
            let wrong = ModifyQp { mask: rtr, state: 2, ..attributes(&driver, qp, port, 1) };
            assert_eq!(errno(driver.modify(qp, &wrong)), errno::EINVAL, "{name}: RTR by port {port}");
        }
        let right = ModifyQp { mask: rtr, state: 2, ..attributes(&driver, qp, ports, 1) };
        assert_eq!(errno(driver.modify(qp, &right)), 0, "{name}");
    }
}

#[test]
fn one_port_goes_down_and_the_other_stays() {
    for layer in LAYERS {
        let mut driver = driver("port-down", layer);
        let (a, b) = pair(&mut driver, ServiceType::Rc, None);
        let shape = QpShape::default();
        let (c, d) = (driver.create_qp(shape), driver.create_qp(shape));
        for (qp, peer) in [(c, d), (d, c)] {
            let first = attributes(&driver, peer, 1, 1);
            driver.bring_up(qp, &first);
        }
        let (from, to) = (driver.region(64, ALL), driver.region(64, ALL));
        driver.nic.set_link(0, 2, false).expect("port 2");
        assert_eq!([0, 1].map(|place| driver.nic.port_is_down(place)), [false, true]);
        let events: Vec<_> = driver.sinks.take_events().into_iter().map(|e| (e.element, e.kind)).collect();
        assert_eq!(events, [(2, event_type::PORT_ERR)], "{layer}");
        driver.post(c, &WorkRequest::write(&from, 0, 64, &to, 0));
        driver.post(a, &WorkRequest::write(&from, 0, 64, &to, 0)).settle();
        driver.advance(200_000_000);
        assert_eq!(syndromes(&mut driver, c), [None], "{layer}: port 1 goes on");
        assert_eq!(syndromes(&mut driver, a), [Some(CqeSyndrome::TransportRetryExceeded)], "{layer}");
        assert!(driver.nic.port_counters(1).dropped_port_down > 0, "{layer}");
        assert_eq!(driver.nic.port_counters(0).dropped_port_down, 0, "{layer}");
        driver.nic.set_link(0, 2, true).expect("port 2");
        assert_eq!(
            driver.sinks.take_events().last().map(|e| (e.element, e.kind)),
            Some((2, event_type::PORT_ACTIVE))
        );
        assert!(driver.nic.set_link(0, 3, false).is_err_and(|why| why.contains("port 3")));
        let _ = b;
    }
}
