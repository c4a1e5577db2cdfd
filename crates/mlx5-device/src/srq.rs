//! Shared receive queues: a list of receives for several QPs, and the commands that make, arm and destroy it.
//!
//! The ring is a list linked by the driver (`mlx5_layout::srq_wqe`). The NIC follows the links from entry 0
//! and compares the record's count of posts with what it took. Limits and errnos as `mlx5_ib_create_srq` and
//! `mlx5_ib_modify_srq`. Keys are those of the queue's own protection domain (IBTA vol. 1 §10.2.9). The limit
//! event comes once per arming, at once when fewer are posted already. A link or record that leads out of the
//! ring, or an unmapped ring, ends the queue: an event, and its QPs in error.
//! Left out: XRC and tag matching, signatures, the limit at creation (the mlx5 driver ignores it too).

use mlx5_layout::SrqWqe;
use mlx5_layout::send_wqe::DataPointer;
use mlx5_layout::srq_wqe;
use roce::Receive;

use super::command::{
    Answer, CommandError, ContextId, CreateSrq, CreatedSrq, Handle, ModifySrq, QueriedSrq, event_type,
    refuse_if,
};
use super::host::{EventTarget, HostInterface};
use super::model::Capabilities;
use super::reason::About;
use super::ring::Ring;
use super::rq::MAX_ENTRY_BYTES;
use super::table::Table;
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

#[derive(Debug)]
pub(super) struct Srq {
    event_target: EventTarget,
    srqn: u32,
    pub pd: u32,
    ring: Ring,
    max_sge: u32,
    /// Entry to be consumed next, as the last link said it: checked when it is used.
    next: u16,
    /// Entries consumed, 16-bit running counter.
    taken: u16,
    /// What the record said last.
    posted: u16,
    /// Fewer than these posted is an event; 0: not armed.
    limit: u32,
    /// Why it cannot be used any more.
    failed: Option<&'static str>,
    /// The event that is to be raised.
    event: Option<u32>,
}

impl Srq {
    /// Takes the next receive; its pointers go into `pointers`. `None`: nothing is posted.
    pub(super) fn take<M: Memory>(&mut self, memory: &M, pointers: &mut Vec<DataPointer>) -> Option<Receive> {
        // Armed, the count must be current; else it is read when the known receives are used up.
        if self.failed.is_some() || ((self.taken == self.posted || self.limit > 0) && self.count(memory) == 0)
        {
            return None;
        }
        let index = self.next;
        if u32::from(index) >= self.ring.entries {
            return self.fail("a link leads out of the ring");
        }
        let mut entry = [0; MAX_ENTRY_BYTES];
        let bytes = (1usize << self.ring.shift).min(MAX_ENTRY_BYTES);
        let wqe = match memory.read(self.ring.entry(index), &mut entry[..bytes]) {
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
        let Some(posted) = self.ring.read_record(memory) else {
            self.fail("its record cannot be read");
            return 0;
        };
        self.posted = posted;
        if self.known() > self.ring.entries {
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
        if self.failed.is_none() && self.known() < self.limit {
            self.limit = 0;
            self.event = Some(event_type::SRQ_LIMIT_REACHED);
        }
    }

    fn fail(&mut self, why: &'static str) -> Option<Receive> {
        (self.failed, self.event) = (Some(why), Some(event_type::SRQ_ERR));
        None
    }
}

/// Every SRQ of the NIC; its users are the QPs that take from it.
#[derive(Debug, Default)]
pub(super) struct Srqs {
    pub table: Table<Srq>,
    /// Places of SRQs that failed in this poll; their QPs follow.
    pub dead: Vec<u32>,
}

impl Srqs {
    /// Makes an SRQ in protection domain `pd`; returns its place, and the answer but for its handle.
    pub(super) fn create<M: Memory>(
        &mut self,
        memory: &M,
        id: ContextId,
        pd: u32,
        request: &CreateSrq,
        limits: &Capabilities,
    ) -> Answer<(u32, CreatedSrq)> {
        let (max_wr, max_sge) = (limits.max_srq_wr, limits.max_recv_descriptor_bytes / 16);
        let CreateSrq { max_wr: wr, max_sge: sge, buffer: ring, record, .. } = *request;
        let large = wr > max_wr || sge > max_sge;
        refuse_if!(large, EINVAL, "SRQ of {wr} receives of {sge} entries: {max_wr} and {max_sge} at most");
        let (entries, stride) = ((wr + 1).next_power_of_two(), srq_wqe::stride(sge as usize));
        let most = MAX_ENTRY_BYTES;
        refuse_if!(stride > most, EINVAL, "SRQ entries of {stride} bytes: {most} at most");
        let aligned = ring.is_multiple_of(64) && record.is_multiple_of(8);
        refuse_if!(!aligned, EINVAL, "SRQ ring {ring:#x} or record {record:#x} is not aligned");
        self.table.check_room("shared receive queues", limits.max_srq)?;
        let fault = CommandError::fault("SRQ");
        memory.probe(ring, u64::from(entries) * stride as u64, false).map_err(&fault)?;
        memory.probe(record, 8, false).map_err(&fault)?;
        let srqn = FIRST_SRQN + self.table.next();
        let place = self.table.insert(Srq {
            event_target: EventTarget::new(id, request.user_handle),
            srqn,
            pd,
            ring: Ring { address: ring, entries, shift: stride.ilog2(), record },
            max_sge: sge,
            next: 0,
            taken: 0,
            posted: 0,
            limit: 0,
            failed: None,
            event: None,
        });
        Ok((place, CreatedSrq { handle: 0, srqn, max_wr: entries - 1, max_sge: sge }))
    }

    pub(super) fn modify<M: Memory>(
        &mut self,
        host: &mut HostInterface<M>,
        place: u32,
        handle: Handle,
        request: &ModifySrq,
    ) -> Answer<()> {
        refuse_if!(request.mask & mask::MAX_WR != 0, EINVAL, "the size of an SRQ stays as it was made");
        let srq = self.table.get_mut(place).ok_or_else(|| CommandError::no_such("SRQ", handle))?;
        if request.mask & mask::LIMIT == 0 {
            return Ok(());
        }
        let (limit, most) = (request.limit, srq.ring.entries - 1);
        refuse_if!(limit > most, EINVAL, "SRQ limit {limit}: {most} at most");
        if srq.failed.is_none() {
            srq.limit = request.limit;
            srq.count(&host.memory);
            srq.look_at_limit();
        }
        self.give_events(host, place);
        Ok(())
    }

    pub(super) fn query(&self, place: u32, handle: Handle) -> Answer<QueriedSrq> {
        let srq = self.table.get(place).ok_or_else(|| CommandError::no_such("SRQ", handle))?;
        Ok(QueriedSrq { max_wr: srq.ring.entries - 1, max_sge: srq.max_sge, limit: srq.limit })
    }

    /// Destroys an SRQ; returns its protection domain, and how many of its events the program has read.
    pub(super) fn destroy<M>(
        &mut self,
        host: &mut HostInterface<M>,
        place: u32,
        handle: Handle,
    ) -> Answer<(u32, u32)> {
        self.table.check_unused(place, "SRQ", handle, "queue pairs")?;
        let srq = self.table.remove(place).ok_or_else(|| CommandError::no_such("SRQ", handle))?;
        Ok((srq.pd, srq.event_target.withdraw(host)))
    }

    /// Gives the event that taking a receive, or arming, has brought about.
    pub(super) fn give_events<M>(&mut self, host: &mut HostInterface<M>, place: u32) {
        let Some(srq) = self.table.get_mut(place) else { return };
        let Some(event) = srq.event.take() else { return };
        if let (event_type::SRQ_ERR, Some(why)) = (event, srq.failed) {
            self.dead.push(place);
            host.explain(About::Srq(srq.srqn), "srq", format!("it and its QPs are in error: {why}"));
        }
        srq.event_target.raise(host, event);
    }

    /// Whether the SRQ here failed, and no other came in its place.
    pub(super) fn is_dead(&self, place: u32) -> bool {
        self.table.get(place).is_some_and(|srq| srq.failed.is_some())
    }
}
