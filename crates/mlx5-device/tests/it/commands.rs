//! Commands: what is refused, with which errno, and what closing destroys.

use mlx5_device::UarKind;
use mlx5_device::command::{AddressVector, CreateCq, CreateQp, ModifyQp, QpCap, RegMr};
use mlx5_device::commands::*;
use mlx5_device::config::LinkLayer;
use mlx5_device::errno;
use mlx5_device::testing::{QpShape, RegisterPage};
use roce::ServiceType;
use roce::qp_state::AttrMask;

use crate::machine::{ALL, Driver, Setup, errno};

#[test]
fn regions_are_checked_when_they_are_registered() {
    let mut driver = Driver::new(Setup::new("reg-mr"));
    let block = driver.block(8192);
    let start = block.address();
    let good = RegMr { start, length: 8192, iova: start, pd: driver.pd, access: ALL };
    for (name, request, wanted) in [
        ("good", good, 0),
        ("read-only", RegMr { access: 0, ..good }, 0),
        ("relaxed ordering", RegMr { access: 1 << 20 | 1, ..good }, 0),
        ("remote write without local write", RegMr { access: 0b10, ..good }, errno::EINVAL),
        ("remote atomic without local write", RegMr { access: 0b1000, ..good }, errno::EINVAL),
        ("remote read alone", RegMr { access: 0b100, ..good }, 0),
        ("on-demand paging", RegMr { access: 1 << 6, ..good }, errno::EOPNOTSUPP),
        ("flush", RegMr { access: 1 << 8, ..good }, errno::EOPNOTSUPP),
        ("a flag that does not exist", RegMr { access: 1 << 12, ..good }, errno::EINVAL),
        ("that and on-demand paging", RegMr { access: 1 << 12 | 1 << 6, ..good }, errno::EINVAL),
        ("other page offset of the iova", RegMr { iova: start + 1, ..good }, errno::EINVAL),
        ("other page of the iova", RegMr { iova: start + 4096, ..good }, 0),
        ("wraps around", RegMr { length: u64::MAX - 4, ..good }, errno::EINVAL),
        ("iova wraps around", RegMr { iova: u64::MAX - 4095, ..good }, errno::EINVAL),
        ("one byte into the guard page", RegMr { length: 8193, ..good }, errno::EFAULT),
        ("nowhere", RegMr { start: 0x1000, iova: 0x1000, ..good }, errno::EFAULT),
        ("no PD", RegMr { pd: 77, ..good }, errno::EINVAL),
        ("empty at a page boundary", RegMr { length: 0, ..good }, errno::EINVAL),
        ("empty inside a page", RegMr { start: start + 8, iova: start + 8, length: 0, ..good }, 0),
    ] {
        assert_eq!(errno(driver.nic.reg_mr(driver.context, &request)), wanted, "{name}");
    }
}

#[test]
fn cqs_are_checked_when_they_are_made() {
    let mut driver = Driver::new(Setup::new("create-cq"));
    let (ring, record) = (driver.block(256 * 64), driver.block(64));
    let good = CreateCq {
        cqe: 255,
        cqe_size: 64,
        buffer: ring.address(),
        record: record.address(),
        user_handle: 1,
        channel: None,
        ignore_overrun: false,
    };
    for (name, request, wanted) in [
        ("good", good, 0),
        ("smaller", CreateCq { cqe: 0, ..good }, 0),
        ("no power of two", CreateCq { cqe: 254, ..good }, errno::EINVAL),
        ("above the limit", CreateCq { cqe: (1 << 23) - 1, ..good }, errno::EINVAL),
        ("4 billion", CreateCq { cqe: u32::MAX, ..good }, errno::EINVAL),
        ("CQE size", CreateCq { cqe_size: 32, ..good }, errno::EINVAL),
        ("larger than its memory", CreateCq { cqe: 511, ..good }, errno::EFAULT),
        ("128 bytes are too large", CreateCq { cqe_size: 128, ..good }, errno::EFAULT),
        ("record nowhere", CreateCq { record: 64, ..good }, errno::EFAULT),
        ("ring not aligned", CreateCq { buffer: ring.address() + 4, ..good }, errno::EINVAL),
        ("record not aligned", CreateCq { record: record.address() + 2, ..good }, errno::EINVAL),
    ] {
        assert_eq!(errno(driver.nic.create_cq(driver.context, &request)), wanted, "{name}");
    }
}

#[test]
fn qps_are_checked_when_they_are_made() {
    let mut driver = Driver::new(Setup::new("create-qp"));
    let qp = driver.create_qp(QpShape::default());
    let page = driver.create_page(UarKind::BlueFlame) as u32;
    let cq = driver.cq(driver.qp(qp).send_cq).handle;
    let (ring, record) = (driver.block(64 * 128), driver.block(64));
    let good = CreateQp {
        service: ServiceType::Rc,
        pd: driver.pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap: QpCap::default(),
        user_handle: 0,
        signal_all: false,
        buffer: ring.address(),
        record: record.address(),
        sq_wqe_count: 64,
        rq_wqe_count: 64,
        rq_wqe_shift: 6,
        mlx5_flags: 1 << 10,
        user_index: 0,
        uar_page: Some(page),
    };
    let cap = |change: fn(&mut QpCap)| {
        let mut cap = QpCap::default();
        change(&mut cap);
        CreateQp { cap, ..good }
    };
    for (name, request, wanted) in [
        ("good", good, 0),
        ("without queues", CreateQp { sq_wqe_count: 0, rq_wqe_count: 0, ..good }, 0),
        ("SQ no power of two", CreateQp { sq_wqe_count: 48, ..good }, errno::EINVAL),
        ("RQ no power of two", CreateQp { rq_wqe_count: 48, ..good }, errno::EINVAL),
        ("SQ above the limit", CreateQp { sq_wqe_count: 65536, ..good }, errno::EINVAL),
        ("RQ above the limit", CreateQp { rq_wqe_count: 65536, ..good }, errno::EINVAL),
        ("stride", CreateQp { rq_wqe_shift: 10, ..good }, errno::EINVAL),
        ("stride that shifts out", CreateQp { rq_wqe_shift: 200, ..good }, errno::EINVAL),
        ("no RQ, and a stride all the same", CreateQp { rq_wqe_count: 0, rq_wqe_shift: 200, ..good }, 0),
        ("ring outside memory", CreateQp { sq_wqe_count: 128, ..good }, errno::EFAULT),
        ("record nowhere", CreateQp { record: 8, ..good }, errno::EFAULT),
        ("ring not aligned", CreateQp { buffer: ring.address() + 8, ..good }, errno::EINVAL),
        ("no such CQ", CreateQp { recv_cq: 99, ..good }, errno::EINVAL),
        ("no such PD", CreateQp { pd: 99, ..good }, errno::EINVAL),
        ("no such page", CreateQp { uar_page: Some(99), ..good }, errno::EINVAL),
        ("no page", CreateQp { uar_page: None, mlx5_flags: 0, ..good }, errno::EINVAL),
        ("static register", CreateQp { uar_page: None, mlx5_flags: 1 << 3, ..good }, errno::EINVAL),
        ("DC target", CreateQp { mlx5_flags: 1 << 10 | 1 << 4, ..good }, errno::EOPNOTSUPP),
        ("max_send_sge", cap(|c| c.max_send_sge = 31), errno::EINVAL),
        ("max_send_wr", cap(|c| c.max_send_wr = 32769), errno::EINVAL),
        ("max_inline_data", cap(|c| c.max_inline_data = 2000), errno::EINVAL),
    ] {
        assert_eq!(errno(driver.nic.create_qp(driver.context, &request)), wanted, "{name}");
    }
}

#[test]
fn modifies_are_checked_against_state_and_range() {
    let mut driver = Driver::new(Setup::new("modify-qp"));
    let (a, b) = (driver.create_qp(QpShape::default()), driver.create_qp(QpShape::default()));
    let attributes = driver.attributes(driver.qp(b).qpn);
    let init = AttrMask::STATE.0 | AttrMask::PKEY_INDEX.0 | AttrMask::PORT.0 | AttrMask::ACCESS_FLAGS.0;
    let to = |state| ModifyQp { state, mask: AttrMask::STATE.0, ..attributes };
    let to_init = ModifyQp { state: 1, mask: init, ..attributes };
    for (name, request) in [
        ("RESET to RTS", to(3)),
        ("a state that does not exist", to(9)),
        ("INIT without its attributes", to(1)),
        ("port 2", ModifyQp { port: 2, ..to_init }),
        ("P_Key beyond the table", ModifyQp { pkey_index: 1, ..to_init }),
        ("an attribute that does not belong", ModifyQp { mask: init | AttrMask::AV.0, ..to_init }),
    ] {
        assert_eq!(errno(driver.modify(a, &request)), errno::EINVAL, "{name}");
        assert_eq!(driver.state(a), 0, "{name}");
    }
    driver.bring_up_to(a, &attributes, 1);
    let rtr = AttrMask::STATE.0
        | [AttrMask::AV, AttrMask::PATH_MTU, AttrMask::DEST_QPN, AttrMask::RQ_PSN]
            .into_iter()
            .chain([AttrMask::MAX_DEST_RD_ATOMIC, AttrMask::MIN_RNR_TIMER])
            .fold(0, |mask, a| mask | a.0);
    let to_rtr = ModifyQp { state: 2, mask: rtr, ..attributes };
    let grh = AddressVector { dgid: Some([0xfe; 16]), sgid_index: 1, ..attributes.address };
    for (name, request) in [
        ("MTU 0", ModifyQp { path_mtu: 0, ..to_rtr }),
        ("MTU 6", ModifyQp { path_mtu: 6, ..to_rtr }),
        ("17 responder resources", ModifyQp { max_dest_rd_atomic: 17, ..to_rtr }),
        ("RNR timer 32", ModifyQp { min_rnr_timer: 32, ..to_rtr }),
        ("QPN of 25 bits", ModifyQp { dest_qpn: 1 << 24, ..to_rtr }),
        ("source GID beyond the table", ModifyQp { address: grh, ..to_rtr }),
        ("assumed state", ModifyQp { mask: rtr | AttrMask::CUR_STATE.0, current_state: 2, ..to_rtr }),
    ] {
        assert_eq!(errno(driver.modify(a, &request)), errno::EINVAL, "{name}");
        assert_eq!(driver.state(a), 1, "{name}");
    }
    assert_eq!(errno(driver.modify(a, &to_rtr)), 0);
    let queried = driver.nic.query_qp(driver.context, driver.qp(a).handle).expect("the QP").attributes;
    assert_eq!((queried.state, queried.path_mtu, queried.dest_qpn), (2, 3, driver.qp(b).qpn));
    assert_eq!((queried.rq_psn, queried.min_rnr_timer, queried.access), (0x1000, 12, 0xf));
}

#[test]
fn objects_in_use_are_busy_and_handles_of_nothing_invalid() {
    let mut driver = Driver::new(Setup::new("busy"));
    let qp = driver.create_qp(QpShape::default());
    let region = driver.region(64, ALL);
    let context = driver.context;
    let cq = driver.cq(driver.qp(qp).recv_cq).handle;
    assert_eq!(errno(driver.nic.dealloc_pd(context, driver.pd)), errno::EBUSY);
    assert_eq!(errno(driver.nic.destroy_cq(context, cq)), errno::EBUSY);
    assert_eq!(errno(driver.nic.free_uar(context, 0)), errno::EBUSY);
    assert_eq!(errno(driver.nic.destroy_qp(context, driver.qp(qp).handle)), 0);
    assert_eq!(errno(driver.nic.destroy_qp(context, driver.qp(qp).handle)), errno::EINVAL, "again");
    assert_eq!(errno(driver.nic.destroy_cq(context, cq)), 0);
    assert_eq!(errno(driver.nic.free_uar(context, 0)), 0);
    let vector = AddressVector { port: 1, dlid: 1, ..AddressVector::default() };
    let ah = driver.nic.create_ah(context, driver.pd, &vector).expect("an AH");
    assert_eq!(errno(driver.nic.dealloc_pd(context, driver.pd)), errno::EBUSY, "region and AH");
    assert_eq!(errno(driver.nic.dereg_mr(context, region.handle)), 0);
    assert_eq!(errno(driver.nic.destroy_ah(context, ah.handle)), 0);
    assert_eq!(errno(driver.nic.dealloc_pd(context, driver.pd)), 0);
    for result in [
        errno(driver.nic.dereg_mr(context, region.handle)),
        errno(driver.nic.destroy_ah(context, 5)),
        errno(driver.nic.dealloc_pd(context, driver.pd)),
        errno(driver.nic.free_uar(context, 1 << 30)),
    ] {
        assert_eq!(result, errno::EINVAL);
    }
}

#[test]
fn closing_a_context_destroys_everything_in_it_and_nothing_else() {
    let mut driver = Driver::new(Setup::new("close"));
    let (a, b) = driver.pair(QpShape::default());
    let region = driver.region(64, ALL);
    let other = driver.nic.open_context(0).expect("a second open");
    let pd = driver.nic.alloc_pd(other).expect("a PD");
    driver.nic.alloc_uar(other, UarKind::BlueFlame, Box::new(RegisterPage::default())).expect("a page");
    assert_eq!(
        errno(driver.nic.dereg_mr(other, region.handle)),
        errno::EINVAL,
        "handles are the context's own"
    );
    driver.nic.close_context(other);
    assert_eq!(errno(driver.nic.dealloc_pd(other, pd.handle)), errno::EINVAL);
    let write = mlx5_device::testing::WorkRequest::write(&region, 0, 8, &region, 32);
    driver.post(a, &write).settle();
    assert!(driver.poll_send(a).is_some(), "the first context still works");
    driver.post(a, &write).post(b, &write);
    driver.nic.close_context(driver.context);
    driver.settle();
    assert_eq!(errno(driver.nic.alloc_pd(driver.context)), errno::EINVAL);
}

#[test]
fn address_handles_know_the_mac_of_who_is_on_the_fabric() {
    let setup = Setup::new("ah").with(|c| {
        c.link_layer = LinkLayer::Roce;
        c.devices = 2;
    });
    let mut driver = Driver::new(setup);
    let gid = driver.nic.ports()[1].gids[3].gid;
    let mac = driver.nic.ports()[1].mac;
    let vector = AddressVector { dgid: Some(gid), sgid_index: 3, port: 1, ..AddressVector::default() };
    let (context, pd) = (driver.context, driver.pd);
    assert_eq!(driver.nic.create_ah(context, pd, &vector).map(|ah| ah.dmac), Ok(mac));
    assert_eq!(
        errno(driver.nic.create_ah(context, pd, &AddressVector { dgid: None, ..vector })),
        errno::EINVAL
    );
    assert_eq!(errno(driver.nic.create_ah(context, pd, &AddressVector { port: 3, ..vector })), errno::EINVAL);
}
