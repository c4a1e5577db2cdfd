//! UAR pages: the registers that a program rings, the queues that ring them, and whether as a card demands.

use mlx5_layout::doorbell::Doorbell;

use roce::Now;

use super::command::{Answer, CommandError, ContextId, Handle, event_type, refusal};
use super::doorbell::{LOOK_NS, LOOKS};
use super::host::HostInterface;
use super::qp::Qp;
use super::qps::Qps;
use super::reason::{About, STALLED};
use super::schedule::{Schedule, Walk};
use super::sq::Posted;
use super::table::Table;
use crate::config::DoorbellOrder;
use crate::memory::{Memory, Registers};

/// Register offsets of a page, with the register's number: two registers of two halves each
/// (`MLX5_BF_OFFSET`, bf_reg_size 512). libmlx5 rings the halves in turn.
const REGISTERS: [(u8, usize); 4] = [(0, 0x800), (0, 0x900), (1, 0xa00), (1, 0xb00)];

/// `MLX5_IB_UAPI_UAR_ALLOC_TYPE_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum UarKind {
    /// Write combining: BlueFlame registers, two queues a page or queues that share.
    BlueFlame,
    /// Not cached: every queue of `MLX5_SHUT_UP_BF=1`, and CQ arming.
    NonCached,
}

/// A UAR page.
struct Uar {
    context: ContextId,
    kind: UarKind,
    registers: Box<dyn Registers>,
    /// Queues that named the page when they were made.
    queues: Vec<u32>,
    /// Those of them that were seen to ring, and which register each rings.
    rang: Vec<(u32, u8)>,
    /// The page's last register write named a queue not on it, and no violation was blamed on it yet.
    stray: bool,
    /// Poll in which the registers were looked at last.
    polled: u64,
    /// When something was found there last.
    rung: Now,
}

impl Uar {
    /// Whether some register was written since the last look.
    fn is_rung(&self) -> bool {
        self.registers.any(&REGISTERS.map(|(_, offset)| offset))
    }

    /// Takes at most one write from each half: register number and content.
    fn take(&self) -> impl Iterator<Item = (u8, Doorbell)> + '_ {
        let taken = |(register, offset)| self.registers.take(offset).map(|b| (register, Doorbell::parse(b)));
        REGISTERS.into_iter().filter_map(taken)
    }

    /// Whether nothing can be checked from the start: all queues of a non-cached page ring the same register.
    fn is_shared(&self) -> bool {
        self.kind == UarKind::NonCached && self.queues.len() > 1
    }
}

/// Every UAR page of the NIC.
pub(super) struct Uars {
    table: Table<Uar>,
    /// The background's walk round the pages.
    walk: Walk,
    /// Doorbells are checked where they can be.
    pub strict: bool,
    order: DoorbellOrder,
}

impl Uars {
    pub(super) fn new(strict: bool, order: DoorbellOrder) -> Uars {
        Uars { table: Table::default(), walk: Walk::default(), strict, order }
    }

    pub(super) fn alloc(&mut self, context: ContextId, kind: UarKind, registers: Box<dyn Registers>) -> u32 {
        let (queues, rang, rung) = (Vec::new(), Vec::new(), Now(0));
        self.table.insert(Uar { context, kind, registers, queues, rang, stray: false, polled: 0, rung })
    }

    pub(super) fn free(&mut self, page: u32, handle: Handle) -> Answer<()> {
        if self.table.get(page).is_some_and(|uar| !uar.queues.is_empty()) {
            return Err(CommandError::busy("UAR", handle, "queues"));
        }
        self.table.remove(page);
        Ok(())
    }

    /// The page that a queue is to ring. A context with its own pages (`tot_bfregs` 0) has no static
    /// registers: mlx5's `alloc_bfreg` and `bfregn_to_uar_index` say EINVAL; libmlx5 always names a page.
    pub(super) fn find(&self, id: ContextId, named: Option<u32>) -> Answer<u32> {
        let none = || refusal!(EINVAL, "QP without a UAR page: there are no static registers");
        let page = named.ok_or_else(none)?;
        let found = self.table.get(page).filter(|uar| uar.context == id);
        let missing = || refusal!(EINVAL, "UAR page {page} does not exist");
        found.map(|_| page).ok_or_else(missing)
    }

    /// A queue was made on a page: from the second one of a non-cached page on nothing can be checked there.
    pub(super) fn join(&mut self, qps: &mut Qps, page: u32, place: u32) {
        let Some(uar) = self.table.get_mut(page) else { return };
        uar.queues.push(place);
        if !uar.is_shared() {
            return;
        }
        for place in &uar.queues {
            if let Some(qp) = qps.get_mut(*place) {
                qp.sq.doorbell.unchecked = true;
            }
        }
    }

    pub(super) fn leave(&mut self, page: u32, place: u32) {
        if let Some(uar) = self.table.get_mut(page) {
            uar.queues.retain(|queue| *queue != place);
            uar.rang.retain(|(queue, _)| *queue != place);
        }
    }

    /// Pages to look at in the background now.
    pub(super) fn background(&mut self, now: Now) -> impl Iterator<Item = u32> + use<> {
        self.walk.places(now, self.table.bound()).into_iter().flatten()
    }

    pub(super) fn is_rung(&self, page: u32) -> bool {
        self.table.get(page).is_some_and(Uar::is_rung)
    }

    /// Whether a page has something to take, by one look a round. `busy`: messages of its queue are
    /// outstanding; then no look comes within [`LOOK_NS`] of one that found something.
    pub(super) fn is_rung_now(&mut self, page: u32, round: u64, now: Now, busy: bool) -> bool {
        let rests = |uar: &Uar| busy && now.0.saturating_sub(uar.rung.0) < LOOK_NS;
        let Some(uar) = self.table.get_mut(page).filter(|uar| uar.polled != round && !rests(uar)) else {
            return false;
        };
        uar.polled = round;
        let is_rung = uar.is_rung();
        if is_rung {
            uar.rung = now;
        }
        is_rung
    }

    /// Takes the register writes of a page. Returns how many.
    pub(super) fn take<M: Memory>(
        &mut self,
        host: &mut HostInterface<M>,
        qps: &mut Qps,
        schedule: &mut Schedule,
        page: u32,
    ) -> usize {
        let Some(uar) = self.table.get(page) else { return 0 };
        let mut taken = [None; 4];
        let mut count = 0;
        for (place, write) in taken.iter_mut().zip(uar.take()) {
            *place = Some(write);
            count += 1;
        }
        for (register, doorbell) in taken.into_iter().flatten() {
            host.counters.doorbells_taken += 1;
            self.ring(host, qps, schedule, (page, register), doorbell);
        }
        count
    }

    /// One register write.
    fn ring<M: Memory>(
        &mut self,
        host: &mut HostInterface<M>,
        qps: &mut Qps,
        schedule: &mut Schedule,
        (page, register): (u32, u8),
        doorbell: Doorbell,
    ) {
        let Some(uar) = self.table.get_mut(page) else { return };
        let on_page = |qp: &&mut Qp| qp.sq.doorbell.page == page;
        let qp = qps.numbered_mut(doorbell.qpn).filter(on_page);
        uar.stray = qp.is_none();
        let Some(qp) = qp else {
            host.counters.doorbells_stray += 1;
            return;
        };
        let has_sharers = self.learn(host, qp, register);
        if let Some(record) = qp.sq.read_record(&host.memory, host.now) {
            let ahead = qp.sq.distance(record);
            // A record beyond the ring covers nothing.
            let posted = if u32::from(ahead) <= qp.sq.ring.entries { record } else { qp.sq.fetched };
            qp.sq.doorbell.ring(doorbell.next_index(), qp.sq.fetched, posted, self.order);
        }
        schedule.heat(&mut qp.sched, host.now);
        let (own, uar) = (qp.sched.place, self.table.get(page).filter(|_| has_sharers));
        let rang = uar.into_iter().flat_map(|uar| &uar.rang);
        for (place, _) in rang.filter(|(place, rung)| *rung == register && *place != own) {
            if let Some(other) = qps.get_mut(*place) {
                self.share(host, other);
                schedule.heat(&mut other.sched, host.now);
            }
        }
    }

    /// Notes which register the queue rings. Two queues on one register cannot be checked: true if this queue
    /// has newly joined others there.
    fn learn<M>(&mut self, host: &mut HostInterface<M>, qp: &mut Qp, register: u8) -> bool {
        let known = qp.sq.doorbell.register.is_some();
        let moved = known && qp.sq.doorbell.register != Some(register);
        let Some(uar) = self.table.get_mut(qp.sq.doorbell.page) else { return false };
        if moved && !uar.is_shared() {
            // Queues do not change their register: the owner of this one named the wrong QP.
            uar.stray = true;
            host.counters.doorbells_stray += 1;
            return false;
        }
        if !known || moved {
            qp.sq.doorbell.register = Some(register);
            uar.rang.retain(|(place, _)| *place != qp.sched.place);
            uar.rang.push((qp.sched.place, register));
        }
        if uar.is_shared() {
            self.share(host, qp);
            return false;
        }
        if known {
            return false;
        }
        let has_sharers = uar.rang.iter().any(|(place, rung)| *rung == register && *place != qp.sched.place);
        // It was taken for one that shares only because its register was not known.
        qp.sq.doorbell.unchecked = !self.strict;
        if has_sharers {
            self.share(host, qp);
        }
        has_sharers
    }

    /// The doorbells of this queue cannot be checked: counted once; only the first of dozens is logged.
    fn share<M>(&self, host: &mut HostInterface<M>, qp: &mut Qp) {
        qp.sq.doorbell.unchecked = true;
        if !self.strict || std::mem::replace(&mut qp.sq.doorbell.noted, true) {
            return;
        }
        host.counters.doorbells_unchecked_queues += 1;
        if host.counters.doorbells_unchecked_queues == 1 {
            host.log_line(&format!(
                "QP {:#x} shares its doorbell register: such queues are executed by their records, their doorbells not \
                 checked (said once, counted in doorbells_unchecked_queues)",
                qp.qpn
            ));
        }
    }

    /// Compares record and register; says so when they disagree in [`LOOKS`] looks.
    pub(super) fn watch<M>(&mut self, host: &mut HostInterface<M>, qp: &mut Qp, posted: Posted) {
        if posted.agree {
            return qp.sq.doorbell.agrees();
        }
        let doorbell = &mut qp.sq.doorbell;
        let stray = self.table.get(doorbell.page).is_some_and(|uar| uar.stray);
        let Some(looks) = doorbell.disagrees(host.now, stray) else { return };
        if !posted.range && !self.is_provable(qp) {
            // Its register may have been rung and hidden by another queue's write.
            return self.share(host, qp);
        }
        if looks < LOOKS {
            return;
        }
        let violation = qp.sq.doorbell.violation(posted.range);
        if let Some(uar) = self.table.get_mut(qp.sq.doorbell.page) {
            uar.stray = false;
        }
        host.counters.violate(violation);
        qp.event_target.raise(host, event_type::QP_REQ_ERR);
        let (fetched, entries) = (qp.sq.fetched, qp.sq.ring.entries);
        let (rung, record) = (fetched.wrapping_add(posted.available), posted.record.unwrap_or_default());
        let why = format!(
            "for a second or more record {record}, rung up to {rung}, executed up to {fetched}, ring of {entries} blocks, and a card \
             would not execute this: {violation}"
        );
        host.explain(About::Qp(qp.qpn, None), STALLED, why);
    }

    /// Only another queue's write on the same register can hide one. If this queue's register is known, or no
    /// other queue on the page was seen to ring, nothing was hidden.
    fn is_provable(&self, qp: &Qp) -> bool {
        let Some(uar) = self.table.get(qp.sq.doorbell.page) else { return false };
        qp.sq.doorbell.register.is_some() || uar.rang.iter().all(|(place, _)| *place == qp.sched.place)
    }
}
