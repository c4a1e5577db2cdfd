//! A queue pair of which the CPU has one part, and kernels the other.

use verbs::{DirectCq, Pd, QpBuilder, ReceiveRequest, SendRequest};

use super::error::KernelError;
use super::machine::Machine;
use super::queue::Queue;
use crate::completion::Completion;
use crate::queue_pair::{Options, PollError, poll_one, post_receives, try_post};
use crate::request::{PostError, ReceiveList};
use crate::sys::db_c_ring;

impl Queue {
    /// [`Queue::create`] for a queue pair that the CPU uses too; its request slots lie in host memory.
    pub fn create_mixed(
        machine: &Machine,
        builder: &QpBuilder,
        pd: &Pd,
        send_cq: DirectCq,
        receive_cq: Option<DirectCq>,
        options: Options,
    ) -> Result<Queue, KernelError> {
        Queue::of(machine, builder, pd, (send_cq, receive_cq), options, true)
    }

    /// Whether the CPU may have a part of it.
    pub fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// The send queue's consumer index, as the CPU has it.
    pub fn sends_completed(&self) -> u64 {
        self.host.sq.consumer
    }

    /// The CPU's part. `None`: kernels have all of the queue.
    pub fn cpu_part(&mut self) -> Option<CpuPart<'_>> {
        self.is_mixed.then_some(CpuPart(self))
    }
}

/// What the CPU does with a queue pair while kernels do the rest. Kernels post all sends or none. They take
/// the completions of what they posted, or else the CPU does: [`CpuPart::poll_posted_there`].
#[derive(Debug)]
pub struct CpuPart<'a>(&'a mut Queue);

impl CpuPart<'_> {
    /// Writes one request; [`CpuPart::ring`] publishes it. No kernel posts sends.
    pub fn try_post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        // SAFETY: host addresses are libmlx5's, which the queue keeps, and host slots'; no kernel posts here.
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

    /// Takes completions of the sends' CQ, where kernels posted the sends and the CPU the receives. Tell a
    /// kernel [`Queue::sends_completed`] before it posts again.
    pub fn poll_posted_there(&mut self, out: &mut [Completion]) -> Result<usize, PollError> {
        let sq = &mut self.0.host.sq;
        // Only kernels know how far they rang. A completion names what they did: any WQE that the ring holds.
        sq.rung = sq.consumer + u64::from(sq.blocks);
        self.poll_sends(out)
    }
}
