//! The posting loops that are measured: libmlx5's and the shim's, over requests that were made before.
//!
//! Requests repeat after [`Plan::source_slots`] messages, so all exist before the first is posted. A loop
//! holds a store of the message number and the post, nothing else: no clock, lock, sleep or allocation.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};
use clap::ValueEnum;
use rdma_shim::{Completion, Options};
use verbs::connect::RegionOffer;
use verbs::{
    Context, Cq, InlineSlice, Mr, Pages, Payload, Pd, Qp, QpBuilder, QueuePair, Remote, SendFlags, SendList,
    SendOperation, SendRequest, Sge, WorkCompletion,
};

use crate::payload::Slots;
use crate::plan::{Op, Plan};

/// Posts the messages of one queue pair.
pub trait Poster {
    /// The queue pair, for its states.
    fn qp(&self) -> &Qp;
    /// Posts messages `first..first + count`, the last signalled: a whole batch, or what was prepared.
    fn post(&mut self, requests: &mut Requests<'_>, first: u64, count: u32) -> Result<()>;
    /// Takes completions; gives how many.
    fn poll(&mut self) -> Result<usize>;
}

/// Code that posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PosterName {
    /// A CPU thread with ibv_post_send.
    CpuIbverbs,
    /// A CPU thread with the shim.
    CpuShim,
    /// A GPU kernel with the shim, one thread for each queue pair.
    GpuThread,
    /// A GPU kernel, one warp for each queue pair.
    GpuWarp,
    /// A GPU kernel, several warps for each queue pair (--producers).
    GpuShared,
    /// A GPU kernel, one thread for each queue pair, in the style of the paper's original release.
    GpuOriginal,
    /// A kernel on threads of this CPU (--kernel). Its speed says nothing about a GPU.
    HostTwin,
}

/// Which code posts and polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `ibv_post_send` and `ibv_poll_cq` of libmlx5.
    Ibverbs,
    /// The shim, with these choices.
    Shim(Options),
}

/// Makes a queue pair with its own CQs, posted to by `kind`. `entries`: of the send CQ.
pub fn create(kind: Kind, builder: &QpBuilder, pd: &Pd, entries: u32) -> Result<Box<dyn Poster>> {
    let context: &Context = pd.context();
    let (send_cq, receive_cq) = (Cq::new(context, entries)?, Cq::new(context, 1)?);
    Ok(match kind {
        Kind::Ibverbs => {
            let qp = builder.build(pd, &send_cq, &receive_cq)?;
            Box::new(Ibverbs { qp, cq: send_cq, _receive_cq: receive_cq })
        }
        Kind::Shim(options) => {
            let (send_cq, receive_cq) = (send_cq.into_direct()?, receive_cq.into_direct()?);
            let qp = rdma_shim::QueuePair::create(builder, pd, send_cq, Some(receive_cq), options)?;
            Box::new(Shim { qp })
        }
    })
}

/// All requests of one queue pair, made before anything is timed.
pub struct Requests<'a> {
    doorbell_batch: usize,
    cycle: usize,
    sequence: Vec<&'a AtomicU64>,
    whole: Lists<'a>,
    /// The messages behind the last whole batch.
    tail: Option<Lists<'a>>,
}

/// Requests as either poster takes them: libmlx5's are a list a doorbell.
pub struct Lists<'a> {
    pub ibverbs: Vec<SendList<'a>>,
    pub shim: rdma_shim::SendList<'a>,
}

impl<'a> Lists<'a> {
    pub fn new(requests: &[SendRequest<'a>], doorbell_batch: usize) -> Result<Lists<'a>> {
        let list = |requests: &[SendRequest<'a>]| {
            let mut list = SendList::with_capacity(requests.len());
            requests.iter().for_each(|request| list.push(request));
            list
        };
        let mut shim = rdma_shim::SendList::with_capacity(requests.len());
        requests.iter().try_for_each(|request| shim.push(request))?;
        Ok(Lists { ibverbs: requests.chunks(doorbell_batch).map(list).collect(), shim })
    }
}

/// What requests point into; lives as long as they do.
pub struct Entries<'m> {
    gather: Vec<[Sge; 1]>,
    inline: Vec<[InlineSlice<'m>; 1]>,
}

impl<'m> Entries<'m> {
    /// One entry for each source slot of `region` that starts at `base`.
    pub fn new(plan: &Plan, region: &'m Mr<Pages>, base: usize) -> Result<Self> {
        let slots = Slots::new(region, base, plan);
        let range = |slot: u32| {
            let at = slots.message_at(slot.into());
            at..at + plan.payload_bytes as usize
        };
        let all = 0..plan.source_slots();
        let gather = all.clone().map(|slot| Ok([region.sge(range(slot))?])).collect::<Result<_>>()?;
        let inline = all.map(|slot| Ok([region.inline(range(slot))?])).collect::<Result<_>>()?;
        Ok(Self { gather, inline })
    }
}

impl<'a> Requests<'a> {
    /// Makes the requests: source slots from `slots`, target slots of `peer` from `peer_base` on.
    pub fn new(
        plan: &Plan,
        entries: &'a Entries<'a>,
        slots: &Slots<'a, Pages>,
        peer: RegionOffer,
        peer_base: u64,
    ) -> Result<Self> {
        let cycle = plan.source_slots() as usize;
        let sequence = match plan.op {
            Op::WriteImm => Vec::new(),
            Op::Write | Op::Send => (0..cycle as u64).map(|slot| slots.sequence(slot)).collect(),
        };
        let doorbell_batch = plan.doorbell_batch as usize;
        let all: Vec<_> = (0..cycle as u64)
            .map(|message| {
                let signalled = (message + 1).is_multiple_of(plan.batch.into());
                request(plan, entries, message, peer, peer_base, signalled)
            })
            .collect();
        Ok(Self { doorbell_batch, cycle, sequence, whole: Lists::new(&all, doorbell_batch)?, tail: None })
    }

    /// Makes the requests of messages that do not fill a batch.
    pub fn prepare_tail(
        &mut self,
        plan: &Plan,
        entries: &'a Entries<'a>,
        messages: std::ops::Range<u64>,
        peer: RegionOffer,
        peer_base: u64,
    ) -> Result<()> {
        let last = messages.end;
        let all: Vec<_> = messages
            .map(|message| request(plan, entries, message, peer, peer_base, message + 1 == last))
            .collect();
        self.tail = Some(Lists::new(&all, self.doorbell_batch)?);
        Ok(())
    }
}

fn request<'a>(
    plan: &Plan,
    entries: &'a Entries<'a>,
    message: u64,
    peer: RegionOffer,
    peer_base: u64,
    signalled: bool,
) -> SendRequest<'a> {
    let slot = plan.source_slot(message) as usize;
    let payload = if plan.inline {
        Payload::Inline(&entries.inline[slot])
    } else {
        Payload::Gather(&entries.gather[slot])
    };
    let place = (plan.target_slot(message) + 1) * plan.slot_bytes() as u64 - plan.payload_bytes;
    let remote = Remote { address: peer.address + peer_base + place, rkey: peer.rkey };
    let operation = match plan.op {
        Op::Write => SendOperation::Write(remote),
        Op::WriteImm => SendOperation::WriteImm(remote, plan.immediate(message).to_be_bytes()),
        Op::Send => SendOperation::Send,
    };
    let mut request = SendRequest::new(slot as u64, operation, payload);
    request.flags = if signalled { SendFlags::SIGNALED } else { SendFlags::NONE };
    request
}

/// Numbers the messages of one doorbell: the store that makes each of them differ.
#[inline]
fn number(sequence: &[&AtomicU64], first: u64) {
    for (word, message) in sequence.iter().zip(first..) {
        word.store(message + 1, Ordering::Relaxed);
    }
}

struct Ibverbs {
    qp: QueuePair,
    cq: Cq,
    _receive_cq: Cq,
}

impl Poster for Ibverbs {
    fn qp(&self) -> &Qp {
        &self.qp
    }

    fn post(&mut self, requests: &mut Requests<'_>, first: u64, count: u32) -> Result<()> {
        let (chunk, start) = (requests.doorbell_batch, (first % requests.cycle as u64) as usize);
        let lists = match &mut requests.tail {
            Some(tail) if count as usize == tail.shim.len() => &mut tail.ibverbs[..],
            _ => &mut requests.whole.ibverbs[start / chunk..(start + count as usize) / chunk],
        };
        let mut message = first;
        for list in lists {
            let at = (message % requests.cycle as u64) as usize;
            if !requests.sequence.is_empty() {
                number(&requests.sequence[at..at + list.len()], message);
            }
            self.qp.post_send_list(list)?;
            message += list.len() as u64;
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<usize> {
        let mut found = [WorkCompletion::default(); 16];
        let count = self.cq.poll(&mut found)?;
        match found[..count].iter().find(|wc| !wc.is_success()) {
            None => Ok(count),
            Some(wc) => bail!("QP {:#x}: {} (vendor error {:#x})", wc.qpn(), wc.status(), wc.vendor_error()),
        }
    }
}

struct Shim {
    qp: rdma_shim::QueuePair,
}

impl Poster for Shim {
    fn qp(&self) -> &Qp {
        self.qp.qp()
    }

    fn post(&mut self, requests: &mut Requests<'_>, first: u64, count: u32) -> Result<()> {
        let (chunk, start) = (requests.doorbell_batch, (first % requests.cycle as u64) as usize);
        let (list, mut at) = match &requests.tail {
            Some(tail) if count as usize == tail.shim.len() => (&tail.shim, 0),
            _ => (&requests.whole.shim, start),
        };
        let (mut message, mut slot, end) = (first, start, at + count as usize);
        while at < end {
            let next = (at + chunk).min(end);
            if !requests.sequence.is_empty() {
                number(&requests.sequence[slot..slot + next - at], message);
            }
            self.qp.post(list, at..next)?;
            message += (next - at) as u64;
            slot += next - at;
            at = next;
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<usize> {
        let mut found = [Completion::default(); 16];
        let count = self.qp.poll(&mut found)?;
        match found[..count].iter().find(|done| !done.is_success()) {
            None => Ok(count),
            Some(done) => bail!(
                "QP {:#x}: {} (syndrome {:#x}, vendor syndrome {:#x})",
                done.qpn(),
                done.status(),
                done.syndrome(),
                done.vendor_syndrome()
            ),
        }
    }
}
