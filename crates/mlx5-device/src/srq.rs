//! Shared receive queues: one list of receives that several QPs take from, and the commands that make, arm and destroy it.
//!
//! The ring is a list linked by the driver (`mlx5_layout::srq_wqe`); the NIC follows the links from entry 0 and compares the
//! count of posts in the record with what it took. Limits and errnos as `mlx5_ib_create_srq` and `mlx5_ib_modify_srq`. Keys are
//! those of the queue's own protection domain (IBTA vol. 1 §10.2.9). The limit event comes once an arming, at once when fewer
//! are posted already. A link or a record that leads out of the ring, or a ring that is gone, is the end of the queue: an event,
//! and its QPs in error.
//! Left out: XRC and tag matching queues, signatures, the limit given at creation (the mlx5 driver ignores it too).

use mlx5_layout::SrqWqe;
use mlx5_layout::doorbell::counter_of;
use mlx5_layout::send_wqe::DataPointer;
use mlx5_layout::srq_wqe;
use roce::Receive;

use super::command::{
    CommandError, ContextId, CreateSrq, CreatedSrq, Handle, ModifySrq, QueriedSrq, event_type, refuse_if,
};
use super::commands::Answer;
use super::core::Core;
use super::nic::Nic;
use super::qp::Qp;
use super::qpn::Qps;
use super::rq::MAX_ENTRY_BYTES;
use crate::carrier::Carrier;
use crate::errno;
use crate::memory::Memory;

/// SRQ numbers start here.
const FIRST_SRQN: u32 = 0x40;

/// `IBV_SRQ_MAX_WR`, `IBV_SRQ_LIMIT`.
pub mod mask {
    /// Resize: the mlx5 driver refuses it.
    pub const MAX_WR: u32 = 1;
    /// Arm the limit event.
    pub const LIMIT: u32 = 2;
}

/// An event of the queue that is to be raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SrqNotice {
    LimitReached,
    Failed(&'static str),
}

#[derive(Debug)]
pub(super) struct Srq {
    pub context: ContextId,
    pub srqn: u32,
    pub user_handle: u64,
    pub pd: u32,
    /// QPs that take from it.
    pub users: u32,
    pub async_events: u32,
    ring: u64,
    record: u64,
    /// Entries, a power of two.
    entries: u32,
    /// log2 of an entry's bytes.
    shift: u32,
    max_sge: u32,
    /// Entry to be consumed next, as the last link said it: checked when it is used.
    next: u16,
    /// Entries consumed, 16-bit running counter.
    taken: u16,
    /// What the record said last.
    posted: u16,
    /// Fewer than these posted is an event; 0: not armed.
    limit: u32,
    failed: bool,
    news: Option<SrqNotice>,
}

impl Srq {
    /// Takes the next receive; its pointers go into `pointers`. `None`: nothing is posted.
    pub(super) fn take<M: Memory>(&mut self, memory: &M, pointers: &mut Vec<DataPointer>) -> Option<Receive> {
        // Armed, the count must be that of now; else it is read when what was known is used up, as a receive queue's is.
        if self.failed || ((self.taken == self.posted || self.limit > 0) && self.count(memory) == 0) {
            return None;
        }
        let index = self.next;
        if u32::from(index) >= self.entries {
            return self.fail("a link leads out of the ring");
        }
        let mut entry = [0; MAX_ENTRY_BYTES];
        let bytes = (1usize << self.shift).min(MAX_ENTRY_BYTES);
        let at = self.ring + (u64::from(index) << self.shift);
        let wqe = match memory.read(at, &mut entry[..bytes]) {
            Ok(()) => SrqWqe::new(&entry[..bytes]),
            Err(_) => return self.fail("its ring cannot be read"),
        };
        pointers.clear();
        if let Ok(wqe) = wqe {
            self.next = wqe.next_index();
            pointers.extend(wqe.pointers().iter().flat_map(|list| list.segments()));
        }
        self.taken = self.taken.wrapping_add(1);
        if self.limit > 0 {
            self.look_at_limit();
        }
        Some(Receive {
            capacity: pointers.iter().map(|p| u64::from(p.byte_count & !(1 << 31))).sum(),
            id: index.into(),
        })
    }

    /// Receives posted and not consumed, by the record as it is now.
    fn count<M: Memory>(&mut self, memory: &M) -> u32 {
        let Ok(word) = memory.load32(self.record) else {
            self.fail("its record cannot be read");
            return 0;
        };
        self.posted = counter_of(word.to_ne_bytes());
        if self.known() > self.entries {
            self.fail("its record is further ahead than the ring is long");
            return 0;
        }
        self.known()
    }

    /// The same by the record as it was read last.
    fn known(&self) -> u32 {
        self.posted.wrapping_sub(self.taken).into()
    }

    fn look_at_limit(&mut self) {
        if self.known() < self.limit {
            self.limit = 0;
            self.news = Some(SrqNotice::LimitReached);
        }
    }

    fn fail(&mut self, why: &'static str) -> Option<Receive> {
        self.failed = true;
        self.news = Some(SrqNotice::Failed(why));
        None
    }
}

pub trait SrqCommands {
    fn create_srq(&mut self, context: ContextId, command: &CreateSrq) -> Answer<CreatedSrq>;
    /// Arms its limit.
    fn modify_srq(&mut self, context: ContextId, srq: Handle, command: &ModifySrq) -> Answer<()>;
    fn query_srq(&self, context: ContextId, srq: Handle) -> Answer<QueriedSrq>;
    /// Destroys it; returns how many asynchronous events of it the program has read.
    fn destroy_srq(&mut self, context: ContextId, srq: Handle) -> Answer<u32>;
}

impl<M: Memory, C: Carrier> SrqCommands for Nic<M, C> {
    fn create_srq(&mut self, id: ContextId, request: &CreateSrq) -> Answer<CreatedSrq> {
        let pd = self.core.find_pd(id, request.pd)?;
        let limits = &self.core.capabilities;
        let (max, max_wr, max_sge) =
            (limits.max_srq, limits.max_srq_wr, limits.max_recv_descriptor_bytes / 16);
        let CreateSrq { max_wr: wr, max_sge: sge, .. } = *request;
        let large = wr > max_wr || sge > max_sge;
        refuse_if!(large, EINVAL, "SRQ of {wr} receives of {sge} entries: {max_wr} and {max_sge} at most");
        let (entries, stride) =
            ((request.max_wr + 1).next_power_of_two(), srq_wqe::stride(request.max_sge as usize));
        let most = MAX_ENTRY_BYTES;
        refuse_if!(stride > most, EINVAL, "SRQ entries of {stride} bytes: {most} at most");
        let (ring, record) = (request.buffer, request.record);
        let aligned = ring.is_multiple_of(64) && record.is_multiple_of(8);
        refuse_if!(!aligned, EINVAL, "SRQ ring {ring:#x} or record {record:#x} is not aligned");
        if self.core.srqs.len() >= max as usize {
            return Err(CommandError::exhausted("shared receive queues", max));
        }
        let fault =
            |f: crate::memory::Fault| CommandError { errno: errno::EFAULT, reason: format!("SRQ: {f}") };
        self.core.memory.probe(ring, u64::from(entries) * stride as u64, false).map_err(fault)?;
        self.core.memory.probe(record, 8, false).map_err(fault)?;
        let place = self.core.srqs.insert(Srq {
            context: id,
            srqn: 0,
            user_handle: request.user_handle,
            pd,
            users: 0,
            async_events: 0,
            ring,
            record,
            entries,
            shift: stride.ilog2(),
            max_sge: request.max_sge,
            next: 0,
            taken: 0,
            posted: 0,
            limit: 0,
            failed: false,
            news: None,
        });
        let srqn = FIRST_SRQN + place;
        if let Some(srq) = self.core.srqs.get_mut(place) {
            srq.srqn = srqn;
        }
        self.core.count_pd(pd, 1);
        let handle = self.core.context_mut(id)?.srqs.insert(place);
        Ok(CreatedSrq { handle, srqn, max_wr: entries - 1, max_sge: request.max_sge })
    }

    fn modify_srq(&mut self, id: ContextId, handle: Handle, request: &ModifySrq) -> Answer<()> {
        let place = self.core.find_srq(id, handle)?;
        refuse_if!(request.mask & mask::MAX_WR != 0, EINVAL, "the size of an SRQ stays as it was made");
        let srq = self.core.srqs.get_mut(place).ok_or_else(|| CommandError::no_such("SRQ", handle))?;
        if request.mask & mask::LIMIT == 0 {
            return Ok(());
        }
        let (limit, most) = (request.limit, srq.entries - 1);
        refuse_if!(limit > most, EINVAL, "SRQ limit {limit}: {most} at most");
        if !srq.failed {
            srq.limit = request.limit;
            srq.count(&self.core.memory);
            srq.look_at_limit();
        }
        self.core.tell_of_srq(place);
        Ok(())
    }

    fn query_srq(&self, id: ContextId, handle: Handle) -> Answer<QueriedSrq> {
        let place = self.core.find_srq(id, handle)?;
        let srq = self.core.srqs.get(place).ok_or_else(|| CommandError::no_such("SRQ", handle))?;
        Ok(QueriedSrq { max_wr: srq.entries - 1, max_sge: srq.max_sge, limit: srq.limit })
    }

    fn destroy_srq(&mut self, id: ContextId, handle: Handle) -> Answer<u32> {
        let place = self.core.find_srq(id, handle)?;
        if self.core.srqs.get(place).is_some_and(|srq| srq.users > 0) {
            return Err(CommandError::busy("SRQ", handle, "queue pairs"));
        }
        self.core.context_mut(id)?.srqs.remove(handle);
        let Some(srq) = self.core.srqs.remove(place) else { return Ok(0) };
        self.core.count_pd(srq.pd, -1);
        let withdrawn = self.core.events.withdraw_asynchronous(id, srq.user_handle);
        Ok(srq.async_events.wrapping_sub(withdrawn))
    }
}

impl<M: Memory> Core<M> {
    pub(super) fn find_srq(&self, id: ContextId, handle: Handle) -> Result<u32, CommandError> {
        self.context(id)?.srqs.get(handle).copied().ok_or_else(|| CommandError::no_such("SRQ", handle))
    }

    /// Gives the event that taking a receive, or arming, has brought about.
    pub(super) fn tell_of_srq(&mut self, place: u32) {
        let Some(srq) = self.srqs.get_mut(place) else { return };
        let Some(news) = srq.news.take() else { return };
        let kind = match news {
            SrqNotice::LimitReached => event_type::SRQ_LIMIT_REACHED,
            SrqNotice::Failed(why) => {
                let srqn = srq.srqn;
                self.dead_srqs.push((place, srqn));
                self.log.line(&format!("softnic: SRQ {srqn:#x}: {why}; it and its QPs are in error"));
                event_type::SRQ_ERR
            }
        };
        if self.events.asynchronous(srq.context, srq.user_handle, kind) {
            srq.async_events = srq.async_events.wrapping_add(1);
            self.counters.async_events += 1;
        }
    }

    /// A shared receive queue failed: so do the queues that take from it.
    pub(super) fn fail_takers(&mut self, qps: &mut Qps, srq: u32) {
        for place in 0..qps.bound() {
            let takes = |qp: &&mut Qp| qp.srq.is_some_and(|from| from.place == srq);
            if let Some(qp) = qps.get_mut(place).filter(takes) {
                self.raise(qp, event_type::QP_FATAL);
                self.fail_qp(qp);
            }
        }
    }
}
