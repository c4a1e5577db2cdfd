//! A program on a device: one connected queue pair, laid into its memory as libmlx5 does.

use std::cell::RefCell;
use std::rc::Rc;

use mlx5_device::command::{AddressVector, ContextId, CreateCq, CreateQp, Handle, ModifyQp, QpCap, RegMr};
use mlx5_device::commands::*;
use mlx5_device::config::{LinkLayer, LinkPath, NicConfig};
use mlx5_device::{Nic, UarKind};
use mlx5_layout::send_wqe::{BLOCK_BYTES, Control, DataPointer};
use mlx5_layout::testing::{SendWqeBuilder, consumer_word, counter_word, emit_receive};
use mlx5_layout::{Cqe, SendOpcode};
use roce::qp_state::AttrMask;
use roce::{Now, ServiceType};

use crate::machine::{Allocator, Arena, Page, Quiet};
use crate::wire::{End, Wire};

const BLOCKS: u32 = 64;
const RECEIVES: u32 = 64;
const RECEIVE_BYTES: usize = 64;
const CQES: u32 = 256;
const CQE_BYTES: usize = 64;

/// Bytes of the registered region.
pub const REGION: usize = 1 << 20;

/// First byte of a BlueFlame register.
const REGISTER: usize = 0x800;

pub struct Side {
    pub nic: Nic<Arena, End>,
    pub memory: Arena,
    /// The region: address, and its key.
    pub region: u64,
    pub key: u32,
    pub qpn: u32,
    context: ContextId,
    qp: Handle,
    page: Page,
    receive_ring: u64,
    send_ring: u64,
    record: u64,
    cq_ring: u64,
    cq_record: u64,
    posted: u16,
    received: u16,
    consumed: u32,
}

impl Side {
    /// Opens a device that loses packets at one end of a wire, and makes what a program makes.
    pub fn new(side: usize, wire: &Rc<RefCell<Wire>>, (loss, seed): (f64, u64)) -> Side {
        let memory = Arena::new(4 << 20);
        let mut space = Allocator::new();
        let config = NicConfig {
            link_layer: LinkLayer::Roce,
            path: LinkPath::Wire,
            mtu: 1024,
            loss,
            seed,
            ipv4: [10, 0, 0, 1 + side as u8].into(),
            ..NicConfig::default()
        };
        let end = End { side, wire: wire.clone(), memory: memory.clone() };
        let log = Box::new(|text: &str| panic!("the device logs: {text}"));
        let nic = Nic::new(&config, memory.clone(), end, Box::new(Quiet), log, Now(0));
        let mut nic = nic.unwrap();
        let context = nic.open_context(0).unwrap();
        let pd = nic.alloc_pd(context).unwrap().handle;
        let region = space.take(REGION);
        let request = RegMr { start: region, length: REGION as u64, iova: region, pd, access: 0xf };
        let key = nic.reg_mr(context, &request).unwrap().rkey;
        let page = Page::default();
        let uar = nic.alloc_uar(context, UarKind::BlueFlame, Box::new(page.clone())).unwrap();
        let (cq_ring, cq_record) = (space.take(CQES as usize * CQE_BYTES), space.take(64));
        for entry in 0..CQES as u64 {
            // As libmlx5 initialises it: opcode invalid, owner 0.
            memory.store(cq_ring + (entry + 1) * CQE_BYTES as u64 - 1, &[0xf0]);
        }
        let request = CreateCq {
            cqe: CQES - 1,
            cqe_size: CQE_BYTES as u32,
            buffer: cq_ring,
            record: cq_record,
            user_handle: 0,
            channel: None,
            ignore_overrun: false,
        };
        let cq = nic.create_cq(context, &request).unwrap().handle;
        let receive_ring = space.take(RECEIVES as usize * RECEIVE_BYTES + BLOCKS as usize * BLOCK_BYTES);
        let record = space.take(64);
        let request = CreateQp {
            service: ServiceType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: QpCap::default(),
            user_handle: 0,
            signal_all: false,
            buffer: receive_ring,
            record,
            sq_wqe_count: BLOCKS,
            rq_wqe_count: RECEIVES,
            rq_wqe_shift: RECEIVE_BYTES.ilog2(),
            mlx5_flags: 1 << 10,
            user_index: 0,
            uar_page: Some(uar.number),
        };
        let qp = nic.create_qp(context, &request).unwrap();
        Side {
            nic,
            memory,
            region,
            key,
            qpn: qp.qpn,
            context,
            qp: qp.handle,
            page,
            receive_ring,
            send_ring: receive_ring + RECEIVES as u64 * RECEIVE_BYTES as u64,
            record,
            cq_ring,
            cq_record,
            posted: 0,
            received: 0,
            consumed: 0,
        }
    }

    /// Brings the queue pair to RTS, towards that of `peer`.
    pub fn connect(&mut self, peer: &Side) {
        use AttrMask as A;
        let any = |set: &[A]| set.iter().fold(0, |mask, attribute| mask | attribute.0);
        let gids = &peer.nic.ports()[0].gids;
        let last = gids.len() - 1;
        let address = AddressVector {
            dgid: Some(gids[last].gid),
            sgid_index: last as u8,
            hop_limit: 64,
            port: 1,
            ..AddressVector::default()
        };
        let attributes = ModifyQp {
            path_mtu: 3,
            rq_psn: 0xff_fff0,
            sq_psn: 0xff_fff0,
            dest_qpn: peer.qpn,
            access: 0xf,
            address,
            port: 1,
            timeout: 8,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            ..ModifyQp::default()
        };
        let rtr = [A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN, A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER];
        let rts = [A::SQ_PSN, A::TIMEOUT, A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC];
        for (state, mask) in
            [(1, any(&[A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS])), (2, any(&rtr)), (3, any(&rts))]
        {
            let request = ModifyQp { state, mask: mask | A::STATE.0, ..attributes };
            self.nic.modify_qp(self.context, self.qp, &request).unwrap();
        }
    }

    /// Lays a signalled WQE, and rings for it.
    pub fn post(&mut self, opcode: SendOpcode, build: impl FnOnce(SendWqeBuilder) -> SendWqeBuilder) {
        let control = Control {
            wqe_index: self.posted,
            opcode: opcode.to_u8(),
            qpn: self.qpn,
            fm_ce_se: 0x08,
            ..Control::default()
        };
        let wqe = build(SendWqeBuilder::new(control)).finish().unwrap();
        assert!(wqe.len() <= BLOCK_BYTES, "these WQEs have one block");
        let index = u64::from(self.posted) % u64::from(BLOCKS);
        self.memory.store(self.send_ring + index * BLOCK_BYTES as u64, &wqe);
        self.posted = self.posted.wrapping_add(1);
        self.memory.store(self.record + 4, &counter_word(self.posted.into()));
        self.page.ring(REGISTER, *wqe.first_chunk().unwrap());
    }

    pub fn post_receive(&mut self, offset: u64, len: u32) {
        let mut entry = [0; RECEIVE_BYTES];
        let pointer = DataPointer { byte_count: len, lkey: self.key, va: self.region + offset };
        emit_receive(&mut entry, &[pointer]).unwrap();
        let index = u64::from(self.received) % u64::from(RECEIVES);
        self.memory.store(self.receive_ring + index * RECEIVE_BYTES as u64, &entry);
        self.received = self.received.wrapping_add(1);
        self.memory.store(self.record, &counter_word(self.received.into()));
    }

    /// The next CQE, if the device has written it.
    pub fn poll_cq(&mut self) -> Option<Vec<u8>> {
        let at = self.cq_ring + u64::from(self.consumed % CQES) * CQE_BYTES as u64;
        let slot = self.memory.load(at, CQE_BYTES);
        if !Cqe::in_slot(&slot[..]).unwrap().op_own().is_valid(self.consumed, CQES) {
            return None;
        }
        self.consumed += 1;
        self.memory.store(self.cq_record, &consumer_word(self.consumed));
        Some(slot)
    }
}
