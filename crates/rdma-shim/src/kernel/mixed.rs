//! A queue pair of which the CPU has one part, and kernels the other.

use verbs::{DirectCq, Pd, Qp, QpBuilder, ReceiveRequest, SendRequest};

use super::error::KernelError;
use super::machine::Machine;
use super::memory::Memory;
use super::queue::{Queue, Room, db_kernel_queue};
use crate::completion::Completion;
use crate::queue_pair::{Options, PollError, poll_one, post_receives, try_post};
use crate::request::{PostError, ReceiveList};
use crate::sys::db_c_ring;

/// A queue pair of which the CPU has one part, and kernels the other; what is remembered of requests lies in host memory. Kernels
/// post all sends or none. They take the completions of what they posted, or else the CPU does: [`MixedQueue::poll_posted_there`].
#[derive(Debug)]
pub struct MixedQueue(Queue);

impl MixedQueue {
    /// As [`Queue::create`].
    pub fn create(
        machine: &Machine,
        builder: &QpBuilder,
        pd: &Pd,
        send_cq: DirectCq,
        receive_cq: Option<DirectCq>,
        options: Options,
    ) -> Result<MixedQueue, KernelError> {
        let tables = |bytes| machine.host_memory(bytes).map(Memory::from);
        Queue::with_tables(machine, builder, pd, [Some(send_cq), receive_cq], options, tables).map(MixedQueue)
    }

    /// The queue pair, for its states.
    pub fn qp(&self) -> &Qp {
        self.0.qp()
    }

    /// For sentences: `QP 0x49`.
    pub fn name(&self) -> String {
        self.0.name()
    }

    /// Where kernels find its structs.
    pub fn addresses(&self) -> db_kernel_queue {
        self.0.addresses()
    }

    /// How much fits in it.
    pub fn room(&self) -> Result<Room, KernelError> {
        self.0.room()
    }

    /// Writes one request; [`MixedQueue::ring`] publishes it. No kernel posts sends.
    pub fn try_post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        // SAFETY: the host's addresses are libmlx5's, which the queue keeps, and of slots in host memory; no kernel posts here.
        unsafe { try_post(&mut self.0.host.sq, request) }
    }

    /// Tells the device of everything written since the last ring.
    pub fn ring(&mut self) {
        // SAFETY: as above.
        unsafe { db_c_ring(&raw mut self.0.host.sq) }
    }

    /// Posts one receive. No kernel posts any.
    pub fn post_receive(&mut self, request: &ReceiveRequest<'_>) -> Result<(), PostError> {
        let mut list = ReceiveList::with_capacity(1);
        list.push(request);
        // SAFETY: as in `try_post`, for the receive queue.
        unsafe { post_receives(&mut self.0.host.rq, list.as_raw()) }
    }

    /// Takes completions of the sends' CQ, of what the CPU has posted.
    pub fn poll_sends(&mut self, out: &mut [Completion]) -> Result<usize, PollError> {
        let host = &mut self.0.host;
        // SAFETY: as in `try_post`; no kernel polls this CQ.
        unsafe { poll_one(&mut host.send_cq, &mut host.sq, &mut host.rq, out) }
    }

    /// Takes completions of the sends' CQ, where kernels have posted the sends and the CPU the receives. A kernel is to be told
    /// [`MixedQueue::sends_completed`] before it posts again.
    pub fn poll_posted_there(&mut self, out: &mut [Completion]) -> Result<usize, PollError> {
        let sq = &mut self.0.host.sq;
        // How much kernels have rung for is theirs to know. A completion names what they have: any that the ring holds.
        sq.rung = sq.consumer + u64::from(sq.blocks);
        self.poll_sends(out)
    }

    /// The send queue's consumer index.
    pub fn sends_completed(&self) -> u64 {
        self.0.host.sq.consumer
    }

    /// Any state → RESET, with empty queues. No kernel uses it, and what kernels posted was stored back.
    pub fn emptied(self) -> Result<MixedQueue, KernelError> {
        self.0.emptied().map(MixedQueue)
    }
}
