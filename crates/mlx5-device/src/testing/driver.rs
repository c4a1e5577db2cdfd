//! A driver and a program in one, on a NIC of its own and a virtual clock.
//!
//! Rings, records and registers as in libmlx5 (`mlx5_post_send`, `post_send_db`, `mlx5_poll_cq`), but each
//! step is its own call: a test can leave one out or do it wrong.

use std::sync::atomic::Ordering;

use crate::carrier::Carrier;
use crate::command::{
    AddressVector, CommandError, ContextId, CreateCq, CreateQp, Handle, ModifyQp, QpCap, RegMr,
};
use crate::commands::*;
use crate::config::LinkLayer;
use crate::memory::Memory;
use crate::model::{Capabilities, DeviceConfig};
use crate::{Counters, Nic, UarKind};
use mlx5_layout::Cqe;
use mlx5_layout::doorbell::{Arm, Doorbell};
use mlx5_layout::send_wqe::{self, BLOCK_BYTES, DataPointer};
use mlx5_layout::testing::{consumer_word, counter_word, emit_receive};
use roce::qp_state::AttrMask;
use roce::{Now, ServiceType};

use super::blocks::{Block, Blocks, RegisterPage};
use super::shapes::{CqId, CqShape, QpId, QpShape, Region};
use super::shared_receive::DriverSrq;
use super::sinks::Sinks;
use super::work::WorkRequest;

#[derive(Debug)]
pub struct DriverCq {
    pub handle: Handle,
    pub cqn: u32,
    pub ring: Block,
    /// Consumer and arm words.
    pub record: Block,
    shape: CqShape,
    consumer: u32,
    arms: u8,
}

#[derive(Debug)]
pub struct DriverQp {
    pub handle: Handle,
    pub qpn: u32,
    /// Receive ring, then send ring.
    pub ring: Block,
    /// Receive and send words.
    pub record: Block,
    /// Next send block, 16-bit running index.
    pub posted: u16,
    pub received: u16,
    pub send_cq: CqId,
    /// Receive CQ.
    pub recv_cq: CqId,
    /// User handle in events.
    pub user_handle: u64,
    pub(super) shape: QpShape,
    pub(super) page: usize,
    half: usize,
    last_wqe: [u8; 8],
}

/// INIT, RTR and RTS, each with the attributes that a QP of this service is given for it.
pub fn transitions(service: ServiceType) -> [(u8, u32); 3] {
    use AttrMask as A;
    let any = |set: &[A]| set.iter().fold(0, |mask, a| mask | a.0);
    let (rc, connected) = (service == ServiceType::Rc, service != ServiceType::Ud);
    let mut init = any(&[A::STATE, A::PKEY_INDEX, A::PORT]);
    init |= if connected { A::ACCESS_FLAGS.0 } else { A::QKEY.0 };
    let mut rtr = A::STATE.0;
    rtr |= if connected { any(&[A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN]) } else { 0 };
    rtr |= if rc { any(&[A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]) } else { 0 };
    let mut rts = any(&[A::STATE, A::SQ_PSN]);
    rts |= if rc { any(&[A::TIMEOUT, A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC]) } else { 0 };
    [(1, init), (2, rtr), (3, rts)]
}

/// A NIC as a test drives it, beside its commands.
pub trait TestNic: Commands {
    fn poll(&mut self, now: Now) -> usize;
    fn first_port(&self) -> &DeviceConfig;
    fn counters(&self) -> Counters;
    /// Memory that this NIC reaches, as [`Blocks`] has it.
    fn block(&self, len: usize) -> Block;
}

impl<M: Memory + Blocks, C: Carrier> TestNic for Nic<M, C> {
    fn poll(&mut self, now: Now) -> usize {
        Nic::poll(self, now)
    }

    fn first_port(&self) -> &DeviceConfig {
        &self.ports()[0]
    }

    fn counters(&self) -> Counters {
        Nic::counters(self)
    }

    fn block(&self, len: usize) -> Block {
        self.core.host.memory.block(len)
    }
}

impl<M: Memory, C: Carrier> Nic<M, C> {
    /// Puts limits below the model's, so that a test can reach them: the cards' would take gigabytes.
    pub fn lower_limits(&mut self, lower: impl FnOnce(&mut Capabilities)) {
        lower(&mut self.core.capabilities);
    }
}

/// What a test says of a NIC before it is made.
pub trait MakeNic {
    type Nic: TestNic;

    fn make(self, sinks: &Sinks, now: Now) -> Self::Nic;
}

/// The driver. Failures of commands that a test does not expect to fail are panics with the reason.
pub struct DriverOf<N> {
    /// The NIC under test.
    pub nic: N,
    /// Context that everything is made in.
    pub context: ContextId,
    pub pd: Handle,
    pub sinks: Sinks,
    /// Virtual time in ns.
    pub now: u64,
    pages: Vec<(RegisterPage, u32)>,
    cqs: Vec<DriverCq>,
    pub(super) qps: Vec<DriverQp>,
    pub(super) srqs: Vec<DriverSrq>,
}

/// Time that one round of the NIC takes on the virtual clock.
const ROUND_NS: u64 = 1_000;

/// Within this time the NIC looks at every queue; below the RNR time that [`DriverOf::attributes`] sets.
const BACKGROUND_NS: u64 = 500_000;

impl<N: TestNic> DriverOf<N> {
    /// Makes a NIC, and opens device 0.
    pub fn new(setup: impl MakeNic<Nic = N>) -> DriverOf<N> {
        let (sinks, now) = (Sinks::default(), 1_000_000);
        DriverOf::of(setup.make(&sinks, Now(now)), sinks, now)
    }

    /// Opens device 0 of a NIC that was made at this time, ns.
    pub fn of(mut nic: N, sinks: Sinks, now: u64) -> DriverOf<N> {
        let context = nic.open_context(0).expect("device 0 opens");
        let pd = nic.alloc_pd(context).expect("a PD").handle;
        let (pages, cqs, qps, srqs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        DriverOf { nic, context, pd, sinks, now, pages, cqs, qps, srqs }
    }

    /// The NIC's counters.
    pub fn counters(&self) -> Counters {
        self.nic.counters()
    }

    /// Fresh memory of the program.
    pub fn block(&self, len: usize) -> Block {
        self.nic.block(len)
    }

    // Objects.

    /// Registers `len` fresh bytes.
    pub fn region(&mut self, len: usize, access: u32) -> Region {
        let block = self.nic.block(len);
        let address = block.address();
        self.register(&block, len as u64, address, access).expect("memory can be registered")
    }

    /// Registers memory under an address.
    pub fn register(
        &mut self,
        block: &Block,
        length: u64,
        iova: u64,
        access: u32,
    ) -> Result<Region, CommandError> {
        let start = block.address();
        let request = RegMr { start, length, iova, pd: self.pd, access };
        let keys = self.nic.reg_mr(self.context, &request)?;
        let (lkey, rkey, handle) = (keys.lkey, keys.rkey, keys.handle);
        Ok(Region { block: block.clone(), address: iova, lkey, rkey, handle })
    }

    pub fn create_cq(&mut self, shape: CqShape) -> CqId {
        let ring = self.nic.block((shape.entries * shape.cqe_size) as usize);
        // As libmlx5 initialises it: opcode invalid, owner 0.
        for entry in 0..shape.entries {
            ring.write(((entry + 1) * shape.cqe_size) as usize - 1, &[0xf0]);
        }
        let record = self.nic.block(64);
        let request = CreateCq {
            cqe: shape.entries - 1,
            cqe_size: shape.cqe_size,
            buffer: ring.address(),
            record: record.address(),
            user_handle: 0xc0_0000 + self.cqs.len() as u64,
            channel: shape.channel,
            ignore_overrun: shape.ignore_overrun,
        };
        let created = self.nic.create_cq(self.context, &request).expect("a CQ");
        let (handle, cqn) = (created.handle, created.number);
        self.cqs.push(DriverCq { handle, cqn, ring, record, shape, consumer: 0, arms: 0 });
        CqId(self.cqs.len() - 1)
    }

    /// Makes a UAR page; its place is its number among the driver's.
    pub fn create_page(&mut self, kind: UarKind) -> usize {
        let page = RegisterPage::default();
        let allocated = self.nic.alloc_uar(self.context, kind, Box::new(page.clone())).expect("a UAR page");
        self.pages.push((page, allocated.number));
        self.pages.len() - 1
    }

    pub fn create_qp(&mut self, shape: QpShape) -> QpId {
        let send_cq = shape.send_cq.unwrap_or_else(|| self.create_cq(CqShape::default()));
        let recv_cq = shape.recv_cq.unwrap_or_else(|| self.create_cq(CqShape::default()));
        let page = shape.page.unwrap_or_else(|| self.create_page(UarKind::BlueFlame));
        let receive_bytes = (shape.rq_entries as usize) << shape.rq_shift;
        let ring = self.nic.block(receive_bytes + shape.sq_blocks as usize * BLOCK_BYTES);
        let record = self.nic.block(64);
        let user_handle = 0xa0_0000 + self.qps.len() as u64;
        let request = CreateQp {
            service: shape.service,
            pd: self.pd,
            send_cq: self.cqs[send_cq.0].handle,
            recv_cq: self.cqs[recv_cq.0].handle,
            srq: shape.srq.map(|srq| self.srqs[srq.0].handle),
            cap: QpCap::default(),
            user_handle,
            signal_all: shape.signal_all,
            buffer: ring.address(),
            record: record.address(),
            sq_wqe_count: shape.sq_blocks,
            rq_wqe_count: shape.rq_entries,
            rq_wqe_shift: shape.rq_shift,
            mlx5_flags: shape.mlx5_flags,
            user_index: 0x77_0000 + self.qps.len() as u32,
            uar_page: Some(self.pages[page].1),
        };
        let created = self.nic.create_qp(self.context, &request).expect("a QP");
        self.qps.push(DriverQp {
            handle: created.handle,
            qpn: created.qpn,
            ring,
            record,
            posted: 0,
            received: 0,
            send_cq,
            recv_cq,
            user_handle,
            shape,
            page,
            half: 0,
            last_wqe: [0; 8],
        });
        QpId(self.qps.len() - 1)
    }

    /// What the driver knows of a QP.
    pub fn qp(&self, qp: QpId) -> &DriverQp {
        &self.qps[qp.0]
    }

    pub fn qp_mut(&mut self, qp: QpId) -> &mut DriverQp {
        &mut self.qps[qp.0]
    }

    /// What the driver knows of a CQ.
    pub fn cq(&self, cq: CqId) -> &DriverCq {
        &self.cqs[cq.0]
    }

    /// The register page of a QP.
    pub fn page(&self, qp: QpId) -> &RegisterPage {
        &self.pages[self.qps[qp.0].page].0
    }

    /// Destroys a QP and its CQs, and makes equal ones in their place. For QPs that share no CQ.
    pub fn replace_qp(&mut self, qp: QpId) {
        self.remake_qp(qp, |driver, shape| {
            for cq in [shape.send_cq, shape.recv_cq].into_iter().flatten() {
                let (shape, handle) = (driver.cqs[cq.0].shape, driver.cqs[cq.0].handle);
                driver.nic.destroy_cq(driver.context, handle).expect("nobody else uses the CQ");
                driver.create_cq(shape);
                driver.cqs.swap_remove(cq.0);
            }
        });
    }

    /// Destroys a QP and makes an equal one in its place, on the same CQs; `between` remakes other objects.
    pub(super) fn remake_qp(&mut self, qp: QpId, between: impl FnOnce(&mut Self, &QpShape)) {
        let old = &self.qps[qp.0];
        let (send_cq, recv_cq, page) = (Some(old.send_cq), Some(old.recv_cq), Some(old.page));
        let (shape, handle) = (QpShape { send_cq, recv_cq, page, ..old.shape }, old.handle);
        self.nic.destroy_qp(self.context, handle).expect("the QP");
        between(self, &shape);
        self.create_qp(shape);
        self.qps.swap_remove(qp.0);
    }

    /// Rings and records of everything that was made.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        let cqs = self.cqs.iter().flat_map(|cq| [&cq.ring, &cq.record]);
        let srqs = self.srqs.iter().flat_map(|srq| [&srq.ring, &srq.record]);
        cqs.chain(self.qps.iter().flat_map(|qp| [&qp.ring, &qp.record])).chain(srqs)
    }

    // States.

    /// Modifies a QP.
    pub fn modify(&mut self, qp: QpId, request: &ModifyQp) -> Result<(), CommandError> {
        self.nic.modify_qp(self.context, self.qps[qp.0].handle, request)
    }

    /// Address of a QPN on the first device, on either link layer.
    pub fn address(&self) -> AddressVector {
        let device = self.nic.first_port();
        match device.link_layer {
            LinkLayer::Ib => AddressVector { dlid: device.lid, port: 1, ..AddressVector::default() },
            LinkLayer::Roce => {
                let index = device.gids.len() - 1;
                let (dgid, sgid_index) = (Some(device.gids[index].gid), index as u8);
                AddressVector { dgid, sgid_index, hop_limit: 64, port: 1, ..AddressVector::default() }
            }
        }
    }

    /// Address vector of a datagram to a QP of this driver.
    pub fn vector(&self, to: QpId, qkey: u32) -> send_wqe::AddressVector {
        let address = self.address();
        let roce = self.nic.first_port().link_layer == LinkLayer::Roce;
        send_wqe::AddressVector {
            qkey,
            destination_qpn: self.qp(to).qpn,
            extended: true,
            rate_service_level: if roce { 3 << 1 } else { 3 },
            lid_or_udp_port: if roce { 0xc000 } else { address.dlid },
            hop_limit: address.hop_limit,
            source_gid_index: address.sgid_index,
            gid: address.dgid.unwrap_or_default(),
            ..send_wqe::AddressVector::default()
        }
    }

    /// Attributes that bring a QP of any service to RTS, to `peer_qpn`; [`DriverOf::bring_up`] uses all.
    pub fn attributes(&self, peer_qpn: u32) -> ModifyQp {
        ModifyQp {
            path_mtu: 3,
            qkey: 0x1111_1111,
            rq_psn: 0x00_1000,
            sq_psn: 0x00_1000,
            dest_qpn: peer_qpn,
            access: 0xf,
            address: self.address(),
            port: 1,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            ..ModifyQp::default()
        }
    }

    /// Moves a QP through INIT and RTR to RTS.
    pub fn bring_up(&mut self, qp: QpId, attributes: &ModifyQp) {
        self.bring_up_to(qp, attributes, 3);
    }

    /// Moves a QP from RESET as far as INIT (1), RTR (2) or RTS (3).
    pub fn bring_up_to(&mut self, qp: QpId, attributes: &ModifyQp, last: u8) {
        for (state, mask) in transitions(self.qps[qp.0].shape.service).into_iter().take(last.into()) {
            self.modify(qp, &ModifyQp { state, mask, ..*attributes }).expect("the QP moves");
        }
    }

    /// Connects two QPs of this driver with each other.
    pub fn connect(&mut self, a: QpId, b: QpId) {
        let (qpn_a, qpn_b) = (self.qps[a.0].qpn, self.qps[b.0].qpn);
        self.bring_up(a, &self.attributes(qpn_b));
        self.bring_up(b, &self.attributes(qpn_a));
    }

    /// Two connected QPs of one shape.
    pub fn pair(&mut self, shape: QpShape) -> (QpId, QpId) {
        let (a, b) = (self.create_qp(shape), self.create_qp(shape));
        self.connect(a, b);
        (a, b)
    }

    /// The state that the device says.
    pub fn state(&self, qp: QpId) -> u8 {
        self.nic.query_qp(self.context, self.qps[qp.0].handle).expect("the QP").attributes.state
    }

    /// RESET, as libmlx5 does it: both record words and the indices go to 0.
    pub fn reset(&mut self, qp: QpId) {
        let request = ModifyQp { state: 0, mask: AttrMask::STATE.0, ..ModifyQp::default() };
        self.modify(qp, &request).expect("RESET is always allowed");
        let qp = &mut self.qps[qp.0];
        qp.posted = 0;
        qp.received = 0;
        qp.record.write(0, &[0; 8]);
    }

    // Posting.

    /// Lays a WQE into the ring and moves the producer index; neither record nor register is touched.
    pub fn lay(&mut self, qp: QpId, request: &WorkRequest) -> &mut Self {
        let state = &self.qps[qp.0];
        let wqe = request.wqe(state.qpn, state.posted).expect("a WQE");
        self.lay_bytes(qp, &wqe)
    }

    /// Lays bytes as one WQE.
    pub fn lay_bytes(&mut self, qp: QpId, wqe: &[u8]) -> &mut Self {
        let qp = &mut self.qps[qp.0];
        let send_ring = (qp.shape.rq_entries as usize) << qp.shape.rq_shift;
        for (i, block) in wqe.chunks(BLOCK_BYTES).enumerate() {
            let index = (usize::from(qp.posted) + i) & (qp.shape.sq_blocks as usize - 1);
            qp.ring.write(send_ring + index * BLOCK_BYTES, block);
        }
        if let Some(first) = wqe.first_chunk() {
            qp.last_wqe = *first;
        }
        qp.posted = qp.posted.wrapping_add(wqe.len().div_ceil(BLOCK_BYTES) as u16);
        self
    }

    /// Stores the send word of the record.
    pub fn write_record(&mut self, qp: QpId) -> &mut Self {
        let qp = &self.qps[qp.0];
        let word = u32::from_ne_bytes(counter_word(qp.posted.into()));
        qp.record.word(4).store(word, Ordering::Release);
        self
    }

    /// Writes the register: the first bytes of the last WQE, as libmlx5 does.
    pub fn write_register(&mut self, qp: QpId) -> &mut Self {
        let bytes = self.qps[qp.0].last_wqe;
        self.write_register_with(qp, bytes)
    }

    /// Writes the register with the next index, as GPU libraries do.
    pub fn write_register_next_index(&mut self, qp: QpId) -> &mut Self {
        let state = &self.qps[qp.0];
        let bytes = Doorbell::of_next_index(state.posted, state.qpn).emit();
        self.write_register_with(qp, bytes)
    }

    /// Writes the register with any bytes.
    pub fn write_register_with(&mut self, qp: QpId, bytes: [u8; 8]) -> &mut Self {
        let qp = &mut self.qps[qp.0];
        let offset = 0x800 + 0x200 * qp.shape.register + 0x100 * qp.half;
        qp.half ^= 1;
        self.pages[qp.page].0.store(offset, bytes);
        self
    }

    pub fn ring_doorbell(&mut self, qp: QpId) -> &mut Self {
        self.write_record(qp).write_register(qp)
    }

    pub fn post(&mut self, qp: QpId, request: &WorkRequest) -> &mut Self {
        self.lay(qp, request).ring_doorbell(qp)
    }

    pub fn post_receive(&mut self, qp: QpId, pointers: &[DataPointer]) -> &mut Self {
        let qp = &mut self.qps[qp.0];
        let entry = 1usize << qp.shape.rq_shift;
        let index = usize::from(qp.received) & (qp.shape.rq_entries as usize - 1);
        let mut bytes = vec![0; entry];
        emit_receive(&mut bytes, pointers).expect("the pointers fit");
        qp.ring.write(index * entry, &bytes);
        qp.received = qp.received.wrapping_add(1);
        let word = u32::from_ne_bytes(counter_word(qp.received.into()));
        qp.record.word(0).store(word, Ordering::Release);
        self
    }

    // The NIC's time.

    pub fn poll(&mut self) -> usize {
        self.now += ROUND_NS;
        self.nic.poll(Now(self.now))
    }

    /// Rounds until nothing moved for as long as the NIC may take to notice a queue in the background.
    pub fn settle(&mut self) -> &mut Self {
        let mut quiet = 0;
        for _ in 0..100_000 {
            quiet = if self.poll() == 0 { quiet + 1 } else { 0 };
            if quiet > 3 {
                self.now += BACKGROUND_NS / 5;
            }
            if quiet == 9 {
                return self;
            }
        }
        panic!("the NIC does not come to rest");
    }

    /// Lets time pass, in rounds of 1 ms at most.
    pub fn advance(&mut self, ns: u64) -> &mut Self {
        let end = self.now + ns;
        while self.now < end {
            self.now += (end - self.now).min(1_000_000);
            self.nic.poll(Now(self.now));
        }
        self.settle()
    }

    // Completions.

    /// The next CQE, with its slot, if the NIC has written it; the consumer word is stored.
    pub fn poll_cq(&mut self, cq: CqId) -> Option<Cqe<Vec<u8>>> {
        let cqe = self.peek_cq(cq)?;
        let cq = &mut self.cqs[cq.0];
        cq.consumer = cq.consumer.wrapping_add(1) & 0xff_ffff;
        let word = u32::from_ne_bytes(consumer_word(cq.consumer));
        cq.record.word(0).store(word, Ordering::Release);
        Some(cqe)
    }

    /// The next CQE; nothing is given back.
    pub fn peek_cq(&self, cq: CqId) -> Option<Cqe<Vec<u8>>> {
        let cq = &self.cqs[cq.0];
        let size = cq.shape.cqe_size as usize;
        let index = (cq.consumer & (cq.shape.entries - 1)) as usize;
        let cqe = Cqe::in_slot(cq.ring.bytes(index * size, size)).expect("a slot");
        cqe.op_own().is_valid(cq.consumer, cq.shape.entries).then_some(cqe)
    }

    /// The next CQE of a QP's send CQ.
    pub fn poll_send(&mut self, qp: QpId) -> Option<Cqe<Vec<u8>>> {
        self.poll_cq(self.qps[qp.0].send_cq)
    }

    /// The next CQE of a QP's receive CQ.
    pub fn poll_receive(&mut self, qp: QpId) -> Option<Cqe<Vec<u8>>> {
        self.poll_cq(self.qps[qp.0].recv_cq)
    }

    /// Arms a CQ, as `mlx5_arm_cq` does: the word in the record; the register is not looked at by the NIC.
    pub fn arm(&mut self, cq: CqId, what: mlx5_layout::doorbell::ArmFor) {
        let cq = &mut self.cqs[cq.0];
        let arm = Arm { sequence: cq.arms & 3, what, consumer_index: cq.consumer };
        cq.arms = cq.arms.wrapping_add(1);
        cq.record.word(4).store(u32::from_ne_bytes(arm.word()), Ordering::Release);
    }
}
