//! Limits: what a model shows is what it enforces. At a limit it works, one above it is refused.
//!
//! Where the card's number would take gigabytes, the limit is lowered first. The errno shows that the number
//! shown is the one compared: above it `EINVAL`, at it `EFAULT` for memory that the test lacks.

use mlx5_device::UarKind;
use mlx5_device::command::{AddressVector, AllocMw, CreateCq, CreateQp, ModifyQp, QpCap, RegMr};
use mlx5_device::commands::*;
use mlx5_device::config::Model;
use mlx5_device::errno;
use mlx5_device::testing::{Block, QpShape, Region, RegisterPage, WorkRequest};
use mlx5_layout::{CqeSyndrome, SendOpcode};
use roce::ServiceType;
use roce::qp_state::AttrMask;

use crate::fabric::End;
use crate::machine::{ALL, Arena, Driver, Setup, errno};

fn driver_of(model: Model, what: &str) -> Driver {
    let driver = Driver::new(Setup::new(&format!("{what}-{model}")).with(|c| c.model = model));
    assert_eq!(driver.nic.ports()[0].model, model, "the model asked for");
    driver
}

/// A request for a QP of no entries, whose record lies in `memory`; a test fills in what it is about.
fn qp_request(driver: &mut Driver, cq: u32, memory: &Block) -> CreateQp {
    let registers = Box::new(RegisterPage::default());
    let page = driver.nic.alloc_uar(driver.context, UarKind::BlueFlame, registers).expect("a page");
    CreateQp {
        service: ServiceType::Rc,
        pd: driver.pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap: QpCap::default(),
        user_handle: 0,
        signal_all: false,
        buffer: memory.address(),
        record: memory.address(),
        sq_wqe_count: 0,
        rq_wqe_count: 0,
        rq_wqe_shift: 6,
        mlx5_flags: 1 << 10,
        user_index: 0,
        uar_page: Some(page.number),
    }
}

fn cq_request(cqe: u32, memory: &Block) -> CreateCq {
    CreateCq {
        cqe,
        cqe_size: 64,
        buffer: memory.address(),
        record: memory.address(),
        user_handle: 0,
        channel: None,
        ignore_overrun: false,
    }
}

#[test]
fn queues_are_as_long_and_wide_as_the_model_shows_and_no_more() {
    for model in Model::ALL {
        let mut driver = driver_of(*model, "queues");
        let limits = *driver.nic.capabilities();
        let (context, memory) = (driver.context, driver.block(limits.max_qp_wr as usize * 64));
        let cq = driver.nic.create_cq(context, &cq_request(255, &memory)).expect("a CQ").handle;
        let base = qp_request(&mut driver, cq, &memory);
        // The first of each pair at the limit, the second the next that can be asked for.
        for (name, limit, next, set) in [
            (
                "send blocks",
                limits.max_qp_wr,
                limits.max_qp_wr * 2,
                (|q, n| q.sq_wqe_count = n) as fn(&mut CreateQp, u32),
            ),
            ("receive entries", limits.max_qp_wr, limits.max_qp_wr * 2, |q, n| q.rq_wqe_count = n),
            ("max_send_wr", limits.max_qp_wr, limits.max_qp_wr + 1, |q, n| q.cap.max_send_wr = n),
            ("max_recv_wr", limits.max_qp_wr, limits.max_qp_wr + 1, |q, n| q.cap.max_recv_wr = n),
            ("max_send_sge", limits.max_sge, limits.max_sge + 1, |q, n| q.cap.max_send_sge = n),
            // libmlx5 rounds the entry up to 512 bytes, and asks for the 32 pointers that fit.
            ("max_recv_sge", limits.max_sge + 2, limits.max_sge + 3, |q, n| q.cap.max_recv_sge = n),
            ("max_inline_data", limits.max_inline_data, limits.max_inline_data + 1, |q, n| {
                q.cap.max_inline_data = n
            }),
        ] {
            let mut at = base;
            set(&mut at, limit);
            let mut above = base;
            set(&mut above, next);
            let made = driver.nic.create_qp(context, &at);
            assert!(made.is_ok(), "{model}: {name} {limit}: {made:?}");
            assert_eq!(errno(driver.nic.create_qp(context, &above)), errno::EINVAL, "{model}: {name} {next}");
        }
        let (at, above) = (limits.max_cqe, limits.max_cqe * 2 + 1);
        let large = |cqe| cq_request(cqe, &memory);
        assert_eq!(errno(driver.nic.create_cq(context, &large(at))), errno::EFAULT, "{model}: {at}");
        assert_eq!(errno(driver.nic.create_cq(context, &large(above))), errno::EINVAL, "{model}: {above}");
        driver.nic.lower_limits(|limits| limits.max_cqe = 1023);
        assert_eq!(errno(driver.nic.create_cq(context, &large(1023))), 0, "{model}");
        assert_eq!(errno(driver.nic.create_cq(context, &large(2047))), errno::EINVAL, "{model}");
    }
}

#[test]
fn attributes_of_a_qp_reach_the_limits_that_the_model_shows() {
    use AttrMask as A;
    for model in Model::ALL {
        let mut driver = driver_of(*model, "attributes");
        let limits = *driver.nic.capabilities();
        let qp = driver.create_qp(QpShape::default());
        let right = driver.attributes(driver.qp(qp).qpn);
        let any = |set: &[A]| set.iter().fold(0, |mask, a| mask | a.0);
        let init = any(&[A::STATE, A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS]);
        let rtr = any(&[
            A::STATE,
            A::AV,
            A::PATH_MTU,
            A::DEST_QPN,
            A::RQ_PSN,
            A::MAX_DEST_RD_ATOMIC,
            A::MIN_RNR_TIMER,
        ]);
        let rts = any(&[A::STATE, A::SQ_PSN, A::TIMEOUT, A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC]);
        let (pkeys, responder) = (limits.max_pkeys, limits.max_qp_rd_atom as u8);
        let initiator = limits.max_qp_init_rd_atom as u8;
        let mtu = driver.nic.ports()[0].mtu;
        for (name, above, at) in [
            (
                "P_Key index",
                ModifyQp { state: 1, mask: init, pkey_index: pkeys, ..right },
                ModifyQp { state: 1, mask: init, pkey_index: pkeys - 1, ..right },
            ),
            (
                "path MTU",
                ModifyQp { state: 2, mask: rtr, path_mtu: mtu + 1, ..right },
                ModifyQp { state: 1, mask: A::STATE.0, ..right },
            ),
            (
                "READs and atomics as responder",
                ModifyQp { state: 2, mask: rtr, path_mtu: mtu, max_dest_rd_atomic: responder + 1, ..right },
                ModifyQp { state: 2, mask: rtr, path_mtu: mtu, max_dest_rd_atomic: responder, ..right },
            ),
            (
                "READs and atomics as initiator",
                ModifyQp { state: 3, mask: rts, max_rd_atomic: initiator + 1, ..right },
                ModifyQp { state: 3, mask: rts, max_rd_atomic: initiator, ..right },
            ),
        ] {
            assert_eq!(errno(driver.modify(qp, &above)), errno::EINVAL, "{model}: {name} above the limit");
            let moved = driver.modify(qp, &at);
            assert!(moved.is_ok(), "{model}: {name} at the limit: {moved:?}");
        }
    }
}

/// Syndrome of the error that a request of a fresh QP ends with.
fn syndrome(driver: &mut Driver, request: &WorkRequest) -> Option<CqeSyndrome> {
    let (a, _) = driver.pair(QpShape::default());
    driver.post(a, request).settle();
    let done = driver.poll_send(a).expect("a completion");
    crate::machine::syndrome(&done)
}

/// This many entries of one byte.
fn entries(opcode: SendOpcode, count: u32, ours: &Region, theirs: &Region) -> WorkRequest {
    let request = WorkRequest::new(opcode).remote(theirs, 0);
    (0..count).fold(request, |request, n| request.pointer(ours, n.into(), 1))
}

#[test]
fn requests_are_as_long_and_have_as_many_entries_as_the_model_shows() {
    for model in Model::ALL {
        let mut driver = driver_of(*model, "requests");
        let limits = *driver.nic.capabilities();
        let (ours, theirs) = (driver.region(4096, ALL), driver.region(4096, ALL));
        for (opcode, limit) in
            [(SendOpcode::RdmaWrite, limits.max_sge), (SendOpcode::RdmaRead, limits.max_sge_rd)]
        {
            let at = syndrome(&mut driver, &entries(opcode, limit, &ours, &theirs));
            assert_eq!(at, None, "{model}: {opcode:?} of {limit} entries");
            let above = syndrome(&mut driver, &entries(opcode, limit + 1, &ours, &theirs));
            assert_eq!(above, Some(CqeSyndrome::LocalQpOperation), "{model}: {opcode:?} of {limit} and one");
        }
        // A region has not so many bytes; the length of a message is looked at before its bytes are.
        for (len, wanted) in [
            (limits.max_message_bytes, CqeSyndrome::LocalProtection),
            (limits.max_message_bytes + 1, CqeSyndrome::LocalLength),
        ] {
            let write = WorkRequest::write(&ours, 0, len, &theirs, 0);
            assert_eq!(syndrome(&mut driver, &write), Some(wanted), "{model}: {len} bytes");
        }
        // A WQE ends after 63 units, so a longer inline payload cannot even be laid.
        let bytes = vec![7; limits.max_inline_data as usize];
        let write = WorkRequest::new(SendOpcode::RdmaWrite).remote(&theirs, 0).inline(&bytes);
        assert_eq!(syndrome(&mut driver, &write), None, "{model}: {} bytes inline", bytes.len());
        assert_eq!(theirs.block.bytes(0, bytes.len()), bytes);
    }
}

#[test]
fn one_object_more_than_there_may_be_is_enomem_until_one_is_destroyed() {
    for model in Model::ALL {
        let mut driver = driver_of(*model, "objects");
        driver.nic.lower_limits(|limits| {
            // Not the same for all, so that none is compared with another's; a PD is in use by the driver.
            (limits.max_pd, limits.max_mr, limits.max_cq) = (4, 5, 6);
            (limits.max_qp, limits.max_ah, limits.max_mw) = (7, 8, 9);
        });
        let (context, pd, memory) = (driver.context, driver.pd, driver.block(64 * 1024));
        let (start, length) = (memory.address(), 4096);
        let mr = RegMr { start, length, iova: start, pd, access: ALL };
        let vector = AddressVector { port: 1, dlid: 1, ..AddressVector::default() };
        let cq = driver.nic.create_cq(context, &cq_request(255, &memory)).expect("a CQ").handle;
        let qp = qp_request(&mut driver, cq, &memory);
        let nic = &mut driver.nic;
        macro_rules! fill {
            ($name:literal, $more:literal, $make:expr, $destroy:expr) => {
                let made: Vec<u32> = (0..$more)
                    .map(|n| {
                        let made = $make;
                        made.unwrap_or_else(|error| panic!("{model}: {} {n}: {error}", $name)).handle
                    })
                    .collect();
                assert_eq!(errno($make), errno::ENOMEM, "{model}: one {} more", $name);
                let destroy = $destroy;
                assert_eq!(destroy(nic, made[0]), 0, "{model}: {}", $name);
                assert_eq!(errno($make), 0, "{model}: a {} in its place", $name);
                assert_eq!(errno($make), errno::ENOMEM, "{model}: and no other {}", $name);
            };
        }
        type Nic = mlx5_device::Nic<Arena, End>;
        fill!("PD", 3, nic.alloc_pd(context), |nic: &mut Nic, h| errno(nic.dealloc_pd(context, h)));
        fill!("MR", 5, nic.reg_mr(context, &mr), |nic: &mut Nic, h| errno(nic.dereg_mr(context, h)));
        // Five keys are the regions'.
        let window = AllocMw { pd, kind: 2 };
        fill!("MW", 4, nic.alloc_mw(context, &window), |nic: &mut Nic, h| errno(nic.dealloc_mw(context, h)));
        fill!("CQ", 5, nic.create_cq(context, &cq_request(255, &memory)), |nic: &mut Nic, h| errno(
            nic.destroy_cq(context, h)
        ));
        fill!("QP", 7, nic.create_qp(context, &qp), |nic: &mut Nic, h| errno(nic.destroy_qp(context, h)));
        fill!("AH", 8, nic.create_ah(context, pd, &vector), |nic: &mut Nic, h| errno(
            nic.destroy_ah(context, h)
        ));
    }
}
