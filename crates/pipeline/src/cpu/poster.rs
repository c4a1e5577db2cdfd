//! What posts and polls where the CPU waits: libibverbs, or the shim, whose sends may be a kernel's.

use rdma_shim::kernel::{CpuPart, Machine, Queue};
use rdma_shim::{Completion, Options, PollError};
use slots::layout::FLAG_BYTES;
use verbs::{
    Cq, Pd, Qp, QpBuilder, QpType, QueuePair, ReceiveRequest, SendList, SendOperations, SendRequest,
    WorkCompletion,
};

use super::CpuError;
use crate::Mode;

/// Completions that one poll takes.
const AT_ONCE: usize = 16;
/// Number of each receive. Those of sends are numbers of slots.
pub const RECEIVE: u64 = u64::MAX;

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
    Kernels(Box<Queue>),
}

fn wrong(error: impl std::fmt::Display) -> CpuError {
    CpuError::Post(error.to_string())
}

impl Poster {
    /// With room for so many sends and receives. `machine`: whose kernels post, where the mode has them do so. Error: in the mode the
    /// CPU does not wait, or there is no such machine.
    pub fn new(
        mode: Mode,
        machine: Option<&Machine>,
        pd: &Pd,
        kind: QpType,
        [sends, receives]: [u32; 2],
    ) -> Result<Poster, CpuError> {
        let builder = QpBuilder::new(kind).send_requests(sends).receive_requests(receives.max(1));
        let builder =
            builder.inline_bytes(FLAG_BYTES as u32).operations(SendOperations::WRITE).own_register(true);
        let cq = Cq::new(pd.context(), sends + receives + 1)?;
        match (mode, machine) {
            (Mode::CpuCpuIbverbs, _) => Ok(Poster::Ibverbs(builder.build(pd, &cq, &cq)?, cq)),
            (Mode::CpuCpuShim, _) => {
                let cq = cq.into_direct()?;
                let queue = rdma_shim::QueuePair::create(&builder, pd, cq, None, Options::default());
                Ok(Poster::Shim(Box::new(queue.map_err(wrong)?)))
            }
            (Mode::CpuGpu, Some(machine)) => {
                let cq = cq.into_direct()?;
                let queue = Queue::create_mixed(machine, &builder, pd, cq, None, Options::default());
                Ok(Poster::Kernels(Box::new(queue.map_err(wrong)?)))
            }
            (other, _) => Err(CpuError::Mode(other)),
        }
    }

    pub fn qp(&self) -> &Qp {
        match self {
            Poster::Ibverbs(queue, _) => queue,
            Poster::Shim(queue) => queue.qp(),
            Poster::Kernels(queue) => queue.qp(),
        }
    }

    /// Posts a receive without memory: immediate data alone come to it.
    pub fn receive(&mut self) -> Result<(), CpuError> {
        let request = ReceiveRequest { id: RECEIVE, scatter: &[] };
        match self {
            Poster::Ibverbs(queue, _) => queue.post_receive(&request).map_err(wrong),
            Poster::Shim(queue) => queue.post_receive(&request).map_err(wrong),
            Poster::Kernels(queue) => cpu_part(queue)?.post_receive(&request).map_err(wrong),
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
            Poster::Kernels(queue) => Err(wrong(format!("{}: kernels alone post its sends", queue.name()))),
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
            Poster::Kernels(queue) => {
                let mut part = cpu_part(queue)?;
                take(done, |taken| part.poll_posted_there(taken))?;
            }
        }
        Ok(())
    }
}

fn cpu_part(queue: &mut Queue) -> Result<CpuPart<'_>, CpuError> {
    queue.cpu_part().ok_or_else(|| wrong("a queue that is the kernels' alone"))
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
