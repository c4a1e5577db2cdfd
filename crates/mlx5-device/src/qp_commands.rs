//! Commands that create, modify and destroy a queue pair.
//!
//! The table of moves and attributes is `roce::qp_state`; values are checked here as driver and card do.

use roce::qp_state::{AttrMask, QpState, check_modify};
use roce::{Access, Psn, Requester, RequesterConfig, Responder, ResponderConfig, SendWindow, ServiceType};

use super::ah;
use super::command::{
    Answer, CommandError, ContextId, CreateQp, CreatedQp, Handle, ModifyQp, refusal, refuse_if,
};
use super::context::{Contexts, ObjectKind};
use super::core::Core;
use super::model::Capabilities;
use super::mr::REMOTE;
use super::ports::Ports;
use super::qp::{Qp, QpParents, check_queues};
use super::qps::Qps;
use super::route::{Route, Way};
use crate::memory::Memory;

/// Packets that a responder answers with one acknowledgement at most, unless asked.
const ACK_EVERY: u32 = 32;

/// Most bytes that a queue on the wire sends unacknowledged: an ordinary user's socket buffer.
const SENT_AHEAD: u32 = 256 << 10;

/// Messages that a queue has under way at most; what lies behind them waits in the ring.
const WINDOW_MESSAGES: u32 = 128;

/// Least ack time-out code in shared memory: 4.2 ms.
const LEAST_TIMEOUT: u8 = 10;

impl<M: Memory> Core<M> {
    /// Makes a QP in protection domain `pd`; returns its place, and the answer but for its handle.
    pub(super) fn create_qp(
        &mut self,
        qps: &mut Qps,
        contexts: &Contexts,
        id: ContextId,
        pd: u32,
        request: &CreateQp,
    ) -> Answer<(u32, CreatedQp)> {
        let device = contexts.device(id)?;
        let send_cq = contexts.find(id, ObjectKind::Cq, request.send_cq)?;
        let cqs = [send_cq, contexts.find(id, ObjectKind::Cq, request.recv_cq)?];
        let srq = request.srq.map(|handle| contexts.find(id, ObjectKind::Srq, handle)).transpose()?;
        let srq = srq.and_then(|place| Some((place, self.srqs.table.get(place)?.pd)));
        // As `set_rq_size` of the driver: a QP with a shared queue has no own one, whatever was asked.
        let request = &if srq.is_some() { request.without_receive_queue() } else { *request };
        check_queues(&self.host.memory, request, &self.capabilities)?;
        let page = self.uars.find(id, request.uar_page)?;
        let (port, cqe_sizes) = (self.ports.first(device), cqs.map(|cq| self.cqs.cqe_size(cq)));
        let parents = QpParents { device, port, pd, cqs, cqe_sizes, srq, page, unchecked: !self.uars.strict };
        let qp = Qp::new(id, request, &parents, self.ports.configs[port].mtu, self.host.now);
        let limit = self.capabilities.max_qp;
        let made = qps.insert(limit, qp);
        let made = made.ok_or_else(|| CommandError::exhausted("queue pairs", limit))?;
        let (place, qpn, cap) = (made.sched.place, made.qpn, request.cap);
        self.cqs.count_users(cqs, 1);
        self.srqs.table.count_user(srq.map(|(place, _)| place), 1);
        self.uars.join(qps, page, place);
        Ok((place, CreatedQp { handle: 0, qpn, cap }))
    }

    /// Removes a QP from table, schedule, UAR page, and the counts of its CQs and SRQ. `None`: no such QP.
    pub(super) fn destroy_qp(&mut self, qps: &mut Qps, place: u32) -> Option<Box<Qp>> {
        let page = qps.get(place)?.sq.doorbell.page;
        // What it rang last must not look like a doorbell without a queue later.
        self.poll_page(qps, page);
        let mut qp = qps.remove(place)?;
        qp.empty();
        self.mkeys.release_windows(qp.qpn);
        self.schedule.forget_qp(place);
        self.cqs.count_users([qp.sq.cq, qp.rq.cq], -1);
        self.srqs.table.count_user(qp.rq.srq, -1);
        self.uars.leave(page, place);
        Some(qp)
    }

    pub(super) fn modify_qp(
        &mut self,
        qps: &mut Qps,
        place: u32,
        handle: Handle,
        request: &ModifyQp,
    ) -> Answer<()> {
        let qp = qps.get(place).ok_or_else(|| CommandError::no_such("QP", handle))?;
        let (from, to) = check_move(&self.ports, &self.capabilities, qp, request)?;
        if to == QpState::Reset {
            let page = qp.sq.doorbell.page;
            // An earlier register write, not yet taken, must not count for what is posted afterwards.
            self.poll_page(qps, page);
        }
        let qp = qps.get_mut(place).ok_or_else(|| CommandError::no_such("QP", handle))?;
        let before = (qp.attributes, qp.path);
        apply(&mut qp.attributes, request);
        qp.path.port = port_of(&self.ports, qp, request);
        if request.mask & (AttrMask::AV.0 | AttrMask::DEST_QPN.0) != 0 {
            let (way, address) =
                self.ports.way_to(qp.path.port, &qp.attributes.address, qp.attributes.dest_qpn);
            if way == Way::Nowhere {
                self.explain_no_route(qp, &address, qp.attributes.dest_qpn);
            }
            (qp.path.way, qp.path.address) = (way, address);
        }
        if qp.responses.responder.is_some() && qp.path.way.route().is_some() != before.1.way.route().is_some()
        {
            (qp.attributes, qp.path) = before;
            return Err(refusal!(
                EINVAL,
                "a connection moves neither from shared memory to the wire nor back: reset the QP"
            ));
        }
        self.enter_state(qp, from, to, request.mask);
        self.schedule.heat(&mut qp.sched, self.host.now);
        Ok(())
    }

    /// What a move does, after everything was checked.
    fn enter_state(&mut self, qp: &mut Qp, from: QpState, to: QpState, mask: u32) {
        let changed = |attribute: AttrMask| AttrMask(mask).contains(attribute);
        match (from, to) {
            (_, QpState::Reset) => {
                qp.empty();
                qp.attributes = ModifyQp::default();
            }
            (_, QpState::Err) => {
                qp.responses.drop_all();
                return self.fail_qp(qp, "the program moved it there");
            }
            (QpState::Init, QpState::Rtr) => {
                let config = responder_config(qp);
                qp.responses.responder = Some(match qp.path.way.route() {
                    Some(_) => Responder::by_packet(config, ACK_EVERY),
                    None => Responder::new(config),
                });
            }
            (QpState::Rtr, QpState::Rts) => {
                let config = requester_config(qp);
                qp.sq.requester = Some(match qp.path.way.route() {
                    Some(_) => Requester::by_packet(config, SendWindow::of_bytes(SENT_AHEAD, qp.mtu_bytes())),
                    None => Requester::new(config),
                });
            }
            (QpState::Sqe, QpState::Rts) => {
                qp.sq.stopped = false;
                if let Some(requester) = &mut qp.sq.requester {
                    requester.resume();
                }
            }
            (QpState::Rts, QpState::Sqd) => qp.sq.drain_event = changed(AttrMask::EN_SQD_ASYNC_NOTIFY),
            _ => {}
        }
        qp.state = to;
        let attributes = &qp.attributes;
        if let Some(requester) = &mut qp.sq.requester {
            let retry =
                [AttrMask::TIMEOUT, AttrMask::RETRY_CNT, AttrMask::RNR_RETRY, AttrMask::MAX_QP_RD_ATOMIC];
            if from == QpState::Sqd && retry.into_iter().any(changed) {
                let ModifyQp { retry_count, rnr_retry, timeout, max_rd_atomic, .. } = *attributes;
                let timeout = patient(qp.path.way.route(), timeout);
                requester.set_retry(retry_count, rnr_retry, timeout, max_rd_atomic);
            }
        }
        if let Some(responder) = &mut qp.responses.responder {
            let ModifyQp { access, min_rnr_timer, qkey, .. } = *attributes;
            responder.set_attributes(Access(access & REMOTE.0), min_rnr_timer, qkey);
        }
    }
}

fn check_move(
    ports: &Ports,
    limits: &Capabilities,
    qp: &Qp,
    request: &ModifyQp,
) -> Answer<(QpState, QpState)> {
    let mask = AttrMask(request.mask);
    let from = qp.state;
    let wanted =
        if mask.contains(AttrMask::STATE) { QpState::from_number(request.state) } else { Some(from) };
    let to = wanted.ok_or_else(|| refusal!(EINVAL, "QP state {} is not in 0..=6", request.state))?;
    if mask.contains(AttrMask::CUR_STATE) && request.current_state != from.number() {
        let assumed = request.current_state;
        return Err(refusal!(EINVAL, "the QP is in {from:?}, not in state {assumed}"));
    }
    check_modify(qp.service, from, to, mask).map_err(|e| refusal!(EINVAL, "{e}"))?;
    check_values(ports, limits, qp, request)?;
    Ok((from, to))
}

/// Place of the port that a queue has after this; checked before.
fn port_of(ports: &Ports, qp: &Qp, request: &ModifyQp) -> usize {
    let named = AttrMask(request.mask).contains(AttrMask::PORT).then_some(request.port);
    named.and_then(|number| ports.place(qp.path.device, number).ok()).unwrap_or(qp.path.port)
}

fn check_values(ports: &Ports, limits: &Capabilities, qp: &Qp, request: &ModifyQp) -> Answer<()> {
    let device = &ports.configs[port_of(ports, qp, request)];
    let (rd, init) = (limits.max_qp_rd_atom, limits.max_qp_init_rd_atom);
    for (attribute, name, value, range) in [
        (AttrMask::PORT, "port", u32::from(request.port), 1..=ports.each.into()),
        (AttrMask::PKEY_INDEX, "pkey_index", request.pkey_index.into(), 0..=u32::from(limits.max_pkeys) - 1),
        (AttrMask::PATH_MTU, "path_mtu", request.path_mtu.into(), 1..=device.mtu.into()),
        (AttrMask::TIMEOUT, "timeout", request.timeout.into(), 0..=31),
        (AttrMask::RETRY_CNT, "retry_cnt", request.retry_count.into(), 0..=7),
        (AttrMask::RNR_RETRY, "rnr_retry", request.rnr_retry.into(), 0..=7),
        (AttrMask::MIN_RNR_TIMER, "min_rnr_timer", request.min_rnr_timer.into(), 0..=31),
        (AttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic", request.max_rd_atomic.into(), 0..=init),
        (AttrMask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", request.max_dest_rd_atomic.into(), 0..=rd),
        (AttrMask::DEST_QPN, "dest_qp_num", request.dest_qpn, 0..=0xff_ffff),
    ] {
        let wrong = AttrMask(request.mask).contains(attribute) && !range.contains(&value);
        refuse_if!(wrong, EINVAL, "{name} {value} is not in {range:?}");
    }
    if AttrMask(request.mask).contains(AttrMask::AV) {
        // The kernel compares both ports as well, and knows no port 0 (`modify_qp` in `uverbs_cmd.c`).
        ah::check(device, &request.address)?;
    }
    Ok(())
}

impl ModifyQp {
    /// Whether the QP is to go where it answers nothing: to RESET or ERR.
    pub(super) fn ends_connection(&self) -> bool {
        let wanted = QpState::from_number(self.state);
        AttrMask(self.mask).contains(AttrMask::STATE) && matches!(wanted, Some(QpState::Reset | QpState::Err))
    }
}

/// Copies the attributes that the mask names.
fn apply(to: &mut ModifyQp, request: &ModifyQp) {
    let named = |attribute: AttrMask| AttrMask(request.mask).contains(attribute);
    macro_rules! copy {
        ($($bit:ident => $field:ident;)*) => { $(if named(AttrMask::$bit) { to.$field = request.$field; })* };
    }
    copy! {
        ACCESS_FLAGS => access;
        PKEY_INDEX => pkey_index;
        PORT => port;
        QKEY => qkey;
        AV => address;
        PATH_MTU => path_mtu;
        TIMEOUT => timeout;
        RETRY_CNT => retry_count;
        RNR_RETRY => rnr_retry;
        MAX_QP_RD_ATOMIC => max_rd_atomic;
        MIN_RNR_TIMER => min_rnr_timer;
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic;
        DEST_QPN => dest_qpn;
        RQ_PSN => rq_psn;
        SQ_PSN => sq_psn;
    }
    to.rq_psn &= 0xff_ffff;
    to.sq_psn &= 0xff_ffff;
}

fn responder_config(qp: &Qp) -> ResponderConfig {
    let attributes = &qp.attributes;
    let datagram = qp.service == ServiceType::Ud;
    ResponderConfig {
        service: qp.service,
        peer_qpn: (!datagram).then_some(attributes.dest_qpn),
        expected_psn: Psn::new(attributes.rq_psn),
        path_mtu_bytes: qp.mtu_bytes(),
        access: Access(attributes.access & REMOTE.0),
        max_dest_rd_atomic: attributes.max_dest_rd_atomic,
        min_rnr_timer: attributes.min_rnr_timer,
        qkey: attributes.qkey,
    }
}

fn requester_config(qp: &Qp) -> RequesterConfig {
    let attributes = &qp.attributes;
    RequesterConfig {
        service: qp.service,
        first_psn: Psn::new(attributes.sq_psn),
        path_mtu_bytes: qp.mtu_bytes(),
        retry_count: attributes.retry_count,
        rnr_retry: attributes.rnr_retry,
        timeout: patient(qp.path.way.route(), attributes.timeout),
        max_rd_atomic: attributes.max_rd_atomic,
        window_messages: WINDOW_MESSAGES,
    }
}

/// Ack time-out code of the transport. A NIC's thread may lose its core for some milliseconds between request
/// and answer; codes below 4.2 ms would then end healthy connections. Cards have a floor too. A wire loses
/// packets, and a program with a short time-out wants them sent again soon.
fn patient(route: Option<Route>, timeout: u8) -> u8 {
    if timeout == 0 || route.is_some() { timeout } else { timeout.max(LEAST_TIMEOUT) }
}
