//! A driver's shared receive queues: the list that `mlx5_alloc_srq_buf` links and `mlx5_post_srq_recv` fills.

use std::sync::atomic::Ordering;

use crate::command::{CommandError, CreateSrq, Handle, ModifySrq};
use mlx5_layout::send_wqe::DataPointer;
use mlx5_layout::srq_wqe::{self, SrqWqe};
use mlx5_layout::testing::{counter_word, emit_shared_receive, link_shared_receive};

use super::blocks::Block;
use super::driver::{DriverOf, TestNic};
use super::shapes::{QpId, SrqId};

#[derive(Debug)]
pub struct DriverSrq {
    pub handle: Handle,
    pub srqn: u32,
    pub ring: Block,
    /// The count of posts.
    pub record: Block,
    /// User handle in events.
    pub user_handle: u64,
    /// Count of posts.
    pub posted: u16,
    /// Entry to be filled next.
    pub head: u16,
    /// Last entry of the list.
    pub tail: u16,
    max_wr: u32,
    max_sge: u32,
    stride: usize,
}

impl<N: TestNic> DriverOf<N> {
    /// Makes a queue of `max_wr` receives of `max_sge` pointers.
    pub fn create_srq(&mut self, max_wr: u32, max_sge: u32) -> SrqId {
        let (entries, stride) =
            ((max_wr + 1).next_power_of_two() as usize, srq_wqe::stride(max_sge as usize));
        let (ring, record) = (self.nic.block(entries * stride), self.nic.block(64));
        for index in 0..entries - 1 {
            let mut entry = ring.bytes(index * stride, stride);
            link_shared_receive(&mut entry, index as u16 + 1).expect("a whole entry");
            ring.write(index * stride, &entry);
        }
        let user_handle = 0xd0_0000 + self.srqs.len() as u64;
        let (buffer, record_address) = (ring.address(), record.address());
        let request = CreateSrq { pd: self.pd, max_wr, max_sge, user_handle, buffer, record: record_address };
        let made = self.nic.create_srq(self.context, &request).expect("an SRQ");
        assert_eq!((made.max_wr, made.max_sge), (entries as u32 - 1, max_sge));
        let (handle, srqn, tail) = (made.handle, made.srqn, entries as u16 - 1);
        self.srqs.push(DriverSrq {
            handle,
            srqn,
            ring,
            record,
            user_handle,
            posted: 0,
            head: 0,
            tail,
            max_wr,
            max_sge,
            stride,
        });
        SrqId(self.srqs.len() - 1)
    }

    /// What the driver knows of a queue.
    pub fn srq(&self, srq: SrqId) -> &DriverSrq {
        &self.srqs[srq.0]
    }

    /// Posts a receive; returns its entry. The record is stored.
    pub fn post_shared(&mut self, srq: SrqId, pointers: &[DataPointer]) -> u16 {
        let queue = &mut self.srqs[srq.0];
        assert_ne!(queue.head, queue.tail, "the queue is full");
        let (index, at) = (queue.head, usize::from(queue.head) * queue.stride);
        let mut entry = queue.ring.bytes(at, queue.stride);
        emit_shared_receive(&mut entry, pointers).expect("the pointers fit");
        queue.ring.write(at, &entry);
        queue.head = SrqWqe::new(&entry).expect("a whole entry").next_index();
        queue.posted = queue.posted.wrapping_add(1);
        let posted = queue.posted;
        self.write_shared_record(srq, posted);
        index
    }

    /// Stores any count of posts.
    pub fn write_shared_record(&mut self, srq: SrqId, posted: u16) {
        let word = u32::from_ne_bytes(counter_word(posted.into()));
        self.srqs[srq.0].record.word(0).store(word, Ordering::Release);
    }

    /// Links an entry to any other.
    pub fn link_shared(&mut self, srq: SrqId, index: u16, next: u16) {
        let queue = &self.srqs[srq.0];
        let at = usize::from(index) * queue.stride;
        let mut entry = queue.ring.bytes(at, queue.stride);
        link_shared_receive(&mut entry, next).expect("a whole entry");
        queue.ring.write(at, &entry);
    }

    /// Gives an entry back whose completion was polled: behind the last of the list.
    pub fn free_shared(&mut self, srq: SrqId, index: u16) {
        let tail = self.srqs[srq.0].tail;
        self.link_shared(srq, tail, index);
        self.srqs[srq.0].tail = index;
    }

    /// Destroys a QP and its shared queue, and makes equal ones in their places. For queues of one QP.
    pub fn replace_shared(&mut self, qp: QpId) {
        self.remake_qp(qp, |driver, shape| {
            let Some(srq) = shape.srq else { return };
            let DriverSrq { handle, max_wr, max_sge, .. } = driver.srqs[srq.0];
            driver.nic.destroy_srq(driver.context, handle).expect("nobody else uses the SRQ");
            driver.create_srq(max_wr, max_sge);
            driver.srqs.swap_remove(srq.0);
        });
    }

    /// Arms the limit event.
    pub fn arm_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), CommandError> {
        let request = ModifySrq { mask: crate::srq_mask::LIMIT, limit };
        self.nic.modify_srq(self.context, self.srqs[srq.0].handle, &request)
    }
}
