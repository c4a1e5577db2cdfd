//! What posts and polls where the CPU waits: libibverbs, or the shim, whose sends may be a kernel's.

use std::sync::Arc;

use rdma_shim::kernel::{CpuPart, Queue};
use rdma_shim::{Completion, Options, PollError};
use slots::layout::FLAG_BYTES;
use verbs::{
    Context, Cq, Qp, QpBuilder, QpType, QueuePair, ReceiveRequest, SendList, SendOperations, SendRequest,
    Sge, WorkCompletion,
};

use super::CpuError;
use crate::Mode;
use crate::gpu::Pool;

/// Completions that one poll takes.
const AT_ONCE: usize = 16;
/// Bit of a receive's number, whose rest is its slot's place. Numbers of sends are those of slots.
pub const RECEIVE: u64 = 1 << 63;

/// What came of a request.
#[derive(Debug)]
pub struct Done {
    pub id: u64,
    /// In network order.
    pub immediate: Option<[u8; 4]>,
    pub failure: Option<String>,
    /// By the device's clock; 0: libibverbs does not tell.
    pub timestamp: u64,
}

impl Done {
    fn of(id: u64, immediate: Option<[u8; 4]>, is_success: bool, status: impl std::fmt::Display) -> Done {
        let failure = (!is_success).then(|| status.to_string());
        Done { id, immediate: immediate.filter(|_| is_success), failure, timestamp: 0 }
    }
}

/// A queue pair with a CQ of its own.
#[derive(Debug)]
pub enum Poster {
    Ibverbs(QueuePair, Cq),
    Shim(Box<rdma_shim::QueuePair>),
    /// Kernels post, this thread does the rest.
    Kernels(Box<Pooled>),
}

/// A pool's queue, returned on drop. A GPU's that is destroyed while kernels run would stay for good.
#[derive(Debug)]
pub struct Pooled {
    pool: Arc<Pool>,
    kind: QpType,
    slots: u32,
    queue: Option<Queue>,
}

impl Pooled {
    fn take(pool: &Arc<Pool>, kind: QpType, slots: u32) -> Result<Pooled, CpuError> {
        let queue = Some(pool.take(kind, slots).map_err(wrong)?);
        Ok(Pooled { pool: Arc::clone(pool), kind, slots, queue })
    }

    pub(super) fn queue(&self) -> &Queue {
        self.queue.as_ref().expect("`Drop` alone takes it")
    }

    fn cpu_part(&mut self) -> Result<CpuPart<'_>, CpuError> {
        let part = self.queue.as_mut().and_then(Queue::cpu_part);
        part.ok_or_else(|| wrong("a queue that is the kernels' alone"))
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            self.pool.give(self.kind, self.slots, queue);
        }
    }
}

fn wrong(error: impl std::fmt::Display) -> CpuError {
    CpuError::Post(error.to_string())
}

impl Poster {
    /// For so many slots, with its own protection domain. `pool`: of queues to which kernels post, where the
    /// mode has it so. Error: in the mode the CPU does not wait, or there is no such pool.
    pub fn new(
        mode: Mode,
        context: &Context,
        pool: Option<&Arc<Pool>>,
        kind: QpType,
        [slots, receives]: [u32; 2],
    ) -> Result<Poster, CpuError> {
        if let (Mode::CpuGpu, Some(pool)) = (mode, pool) {
            // Clients of other numbers of slots are to find one, too.
            return Ok(Poster::Kernels(Box::new(Pooled::take(pool, kind, slots.next_power_of_two())?)));
        }
        let sends = 2 * slots;
        let builder = QpBuilder::new(kind).send_requests(sends).receive_requests(receives.max(1));
        let builder = builder
            .inline_bytes(FLAG_BYTES as u32)
            .operations(SendOperations::WRITE | SendOperations::SEND)
            .own_register(true);
        let (pd, cq) = (context.alloc_pd()?, Cq::new(context, sends + receives + 1)?);
        match mode {
            Mode::CpuCpuIbverbs => Ok(Poster::Ibverbs(builder.build(&pd, &cq, &cq)?, cq)),
            Mode::CpuCpuShim => {
                let cq = cq.into_direct()?;
                let queue = rdma_shim::QueuePair::create(&builder, &pd, cq, None, Options::default());
                Ok(Poster::Shim(Box::new(queue.map_err(wrong)?)))
            }
            other => Err(CpuError::Mode(other)),
        }
    }

    pub fn qp(&self) -> &Qp {
        match self {
            Poster::Ibverbs(queue, _) => queue,
            Poster::Shim(queue) => queue.qp(),
            Poster::Kernels(pooled) => pooled.queue().qp(),
        }
    }

    /// Posts a receive. Without memory, immediate data alone come to it.
    pub fn receive(&mut self, place: usize, scatter: &[Sge]) -> Result<(), CpuError> {
        let request = ReceiveRequest { id: RECEIVE | place as u64, scatter };
        match self {
            Poster::Ibverbs(queue, _) => queue.post_receive(&request).map_err(wrong),
            Poster::Shim(queue) => queue.post_receive(&request).map_err(wrong),
            Poster::Kernels(pooled) => pooled.cpu_part()?.post_receive(&request).map_err(wrong),
        }
    }

    /// Posts requests in their order, with one doorbell.
    pub fn post(&mut self, requests: &[SendRequest<'_>]) -> Result<(), CpuError> {
        match self {
            Poster::Ibverbs(queue, _) => {
                let mut list = SendList::with_capacity(requests.len());
                requests.iter().for_each(|request| list.push(request));
                queue.post_send_list(&mut list).map_err(wrong)
            }
            Poster::Shim(queue) => {
                requests.iter().try_for_each(|request| queue.try_post(request)).map_err(wrong)?;
                queue.ring();
                Ok(())
            }
            Poster::Kernels(pooled) => {
                Err(wrong(format!("{}: kernels alone post its sends", pooled.queue().name())))
            }
        }
    }

    /// Takes some completions.
    pub fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), CpuError> {
        match self {
            Poster::Ibverbs(_, cq) => {
                let mut taken = [WorkCompletion::default(); AT_ONCE];
                let count = cq.poll(&mut taken)?;
                let all = taken[..count].iter();
                done.extend(
                    all.map(|one| Done::of(one.id(), one.immediate(), one.is_success(), one.status())),
                );
            }
            Poster::Shim(queue) => take(done, |taken| queue.poll(taken))?,
            Poster::Kernels(pooled) => {
                let mut part = pooled.cpu_part()?;
                take(done, |taken| part.poll_posted_there(taken))?;
            }
        }
        Ok(())
    }
}

fn take(
    done: &mut Vec<Done>,
    poll: impl FnOnce(&mut [Completion]) -> Result<usize, PollError>,
) -> Result<(), CpuError> {
    let mut taken = [Completion::default(); AT_ONCE];
    let count = poll(&mut taken).map_err(wrong)?;
    let all = taken[..count].iter();
    done.extend(all.map(|one| Done {
        timestamp: one.timestamp(),
        ..Done::of(one.id(), one.immediate(), one.is_success(), one.status())
    }));
    Ok(())
}
