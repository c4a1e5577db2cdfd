//! One queue pair of the receiver: its receives, what arrived, and whether it is what was sent.

use std::sync::atomic::{AtomicBool, Ordering, fence};

use anyhow::{Context as _, Result, bail};
use verbs::code::Access;
use verbs::connect::{Hello, Path, QpOffer, RegionOffer, Session, Wait};
use verbs::{
    Context, Cq, InlineSlice, Mr, Pages, Payload, Pd, Qp, QpBuilder, QpType, QueuePair, ReceiveRequest,
    Remote, SendOperation, SendRequest, WorkCompletion,
};

use crate::control::{Received, SETUP};
use crate::payload::Slots;
use crate::plan::{Op, Plan, Service, Verify};

/// Credit WRITEs under way at most.
const CREDITS_OUTSTANDING: u32 = 16;

/// Messages that UC may lose in a row; a number beyond that was never sent.
const PLAUSIBLE_GAP: u64 = 1 << 32;

/// What a region of either end may be used for.
pub const ACCESS: Access = Access(Access::LOCAL_WRITE.0 | Access::REMOTE_WRITE.0);

pub fn qp_type(service: Service) -> QpType {
    match service {
        Service::Rc => QpType::Rc,
        Service::Uc => QpType::Uc,
    }
}

/// What a slot holds when all is over.
enum SlotContent {
    Nothing,
    Message(u64),
    /// A number that was never posted, or not to this slot.
    Nonsense,
}

/// One queue pair, and the slots that messages on it fill.
pub struct Lane<'m> {
    plan: &'m Plan,
    region: &'m Mr<Pages>,
    slots: Slots<'m, Pages>,
    qp: QueuePair,
    cq: Cq,
    send_cq: Cq,
    /// First message that did not arrive yet.
    next: u64,
    /// Messages after which the sender's credit word was last written.
    credited: u64,
    credits_outstanding: u32,
    credit_word: Option<Remote>,
    /// For each slot the message in it, counted from 1, as completions told.
    last_in_slot: Vec<u64>,
    counts: Received,
    scratch: Vec<u8>,
}

impl<'m> Lane<'m> {
    /// Makes the queue pair; slots begin at `base`.
    pub fn new(plan: &'m Plan, pd: &Pd, region: &'m Mr<Pages>, base: usize) -> Result<Self> {
        let receives = plan.receives().max(1);
        let (cq, send_cq) =
            (Cq::new(pd.context(), receives + 1)?, Cq::new(pd.context(), 2 * CREDITS_OUTSTANDING)?);
        let builder = QpBuilder::new(qp_type(plan.service))
            .send_requests(2 * CREDITS_OUTSTANDING)
            .receive_requests(receives)
            .inline_bytes(8);
        Ok(Self {
            plan,
            region,
            slots: Slots::new(region, base, plan),
            qp: builder.build(pd, &send_cq, &cq)?,
            cq,
            send_cq,
            next: 0,
            credited: 0,
            credits_outstanding: 0,
            credit_word: None,
            last_in_slot: vec![0; plan.target_slots() as usize],
            counts: Received::default(),
            scratch: Vec::new(),
        })
    }

    pub fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// Fills the receive queue; the queue pair is in INIT.
    pub fn post_receives(&mut self) -> Result<()> {
        (0..self.plan.receives()).try_for_each(|index| self.post_receive(index.into()))
    }

    /// Where credits go.
    pub fn set_credit_word(&mut self, region: RegionOffer, offset: u64) {
        self.credit_word = Some(Remote { address: region.address + offset, rkey: region.rkey });
    }

    fn post_receive(&mut self, index: u64) -> Result<()> {
        let scatter = if self.plan.op == Op::Send {
            let at = self.slots.message_at(index);
            vec![self.region.sge(at..at + self.plan.payload_bytes as usize)?]
        } else {
            Vec::new()
        };
        Ok(self.qp.post_receive(&ReceiveRequest { id: index, scatter: &scatter })?)
    }

    /// Looks for messages; gives how many were found.
    pub fn look(&mut self) -> Result<u64> {
        let before = self.counts.received;
        match self.plan.op {
            Op::WriteImm | Op::Send => self.take_completions()?,
            Op::Write if self.plan.verify.uses_credits() => self.take_written()?,
            // No completion tells of a plain WRITE, and the slots are looked at when all is over.
            Op::Write => {}
        }
        self.give_credit(self.counts.received == before)?;
        Ok(self.counts.received - before)
    }

    fn take_completions(&mut self) -> Result<()> {
        let mut found = [WorkCompletion::default(); 32];
        let count = self.cq.poll(&mut found)?;
        for wc in &found[..count] {
            if !wc.is_success() {
                bail!("QP {:#x}: {} (vendor error {:#x})", wc.qpn(), wc.status(), wc.vendor_error());
            }
            let (slot, message) = match wc.immediate() {
                Some(immediate) => {
                    let message = self.message_of(u32::from_be_bytes(immediate));
                    (self.plan.target_slot(message), Some(message))
                }
                None => (wc.id(), self.slots.message(wc.id())),
            };
            self.arrived(slot, message);
            self.post_receive(wc.id())?;
        }
        Ok(())
    }

    /// The message that an immediate stands for: from the next on, the first with this place in the cycle.
    fn message_of(&self, immediate: u32) -> u64 {
        let cycle = u64::from(self.plan.source_slots());
        self.next + (u64::from(immediate) + cycle - self.next % cycle) % cycle
    }

    fn take_written(&mut self) -> Result<()> {
        while let Some(message) = self.written() {
            self.arrived(self.plan.target_slot(message), Some(message));
        }
        Ok(())
    }

    /// The next message in the slots. On UC one may be missing: since order is kept, a later one is there.
    fn written(&self) -> Option<u64> {
        let is_there = |message: u64| self.slots.message(self.plan.target_slot(message)) == Some(message);
        if is_there(self.next) {
            return Some(self.next);
        }
        let behind = match self.plan.service {
            Service::Rc => 0,
            Service::Uc => u64::from(self.plan.window),
        };
        (self.next + 1..self.next + behind).find(|&message| is_there(message))
    }

    /// Counts a message that says to be number `claimed`, and compares its body where the plan says so.
    fn arrived(&mut self, slot: u64, claimed: Option<u64>) {
        let gap = claimed.and_then(|message| message.checked_sub(self.next));
        let gap = match (self.plan.service, gap) {
            // Order is kept and nothing is lost: whatever it says, this is the next one.
            (Service::Rc, Some(0)) => Some(0),
            (Service::Rc, _) => None,
            (Service::Uc, gap) => gap.filter(|&gap| gap < PLAUSIBLE_GAP),
        };
        let message = self.next + gap.unwrap_or(0);
        self.counts.lost += gap.unwrap_or(0);
        self.counts.received += 1;
        self.counts.received_bytes += self.plan.payload_bytes;
        self.next = message + 1;
        self.last_in_slot[slot as usize] = message + 1;
        if gap.is_none() {
            self.counts.checked += 1;
            self.counts.torn += 1;
        } else if self.plan.verify.looks_at(message) {
            self.check(slot, message);
        }
    }

    fn check(&mut self, slot: u64, message: u64) {
        let whole = self.slots.holds(slot, self.plan.source_slot(message), &mut self.scratch);
        self.counts.checked += 1;
        if whole {
            self.counts.verified += 1;
        } else {
            self.counts.torn += 1;
        }
    }

    /// Tells the sender how many messages were checked: every quarter window, and whenever idle (`pause`).
    fn give_credit(&mut self, pause: bool) -> Result<()> {
        let Some(remote) = self.credit_word.filter(|_| self.plan.verify.uses_credits()) else {
            return Ok(());
        };
        let step = if pause { 1 } else { u64::from(self.plan.window / 4).max(1) };
        if self.next - self.credited < step {
            return Ok(());
        }
        let mut found = [WorkCompletion::default(); CREDITS_OUTSTANDING as usize];
        let done = self.send_cq.poll(&mut found)?;
        self.credits_outstanding -= done as u32;
        if let Some(wc) = found[..done].iter().find(|wc| !wc.is_success()) {
            bail!("writing credits on QP {:#x}: {}", wc.qpn(), wc.status());
        }
        if self.credits_outstanding == CREDITS_OUTSTANDING {
            return Ok(());
        }
        // The slots were read; from here on they may be overwritten.
        fence(Ordering::SeqCst);
        let bytes = self.next.to_ne_bytes();
        let inline = [InlineSlice::new(&bytes)];
        self.qp.post_send(&SendRequest::new(0, SendOperation::Write(remote), Payload::Inline(&inline)))?;
        self.credits_outstanding += 1;
        self.credited = self.next;
        Ok(())
    }

    /// Whether everything that the sender completed has been seen.
    pub fn is_complete(&self, completed: u64) -> bool {
        let counts_itself = self.plan.op != Op::Write || self.plan.verify.uses_credits();
        if counts_itself { self.next >= completed } else { self.ends_with(completed) }
    }

    /// Whether the last message is in its slot: on RC all are then.
    fn ends_with(&self, completed: u64) -> bool {
        let Some(last) = completed.checked_sub(1) else { return true };
        self.slots.message(self.plan.target_slot(last)).is_some_and(|message| message >= last)
    }

    /// Counts what never came, and looks at every slot if that was left to the end.
    pub fn finish(&mut self, posted: u64, completed: u64) -> Received {
        if self.plan.verify == Verify::End {
            self.check_slots(posted);
        }
        if self.plan.op == Op::Write && self.plan.verify == Verify::End {
            // The receiver's own count. RC keeps order: all before the newest number in a slot came too,
            // except where a slot holds too old a message. What the sender completed is not part of it.
            let newest = self.newest_in_slots(posted);
            self.counts.received = newest - self.missing(posted, newest);
            self.counts.received_bytes = self.counts.received.saturating_mul(self.plan.payload_bytes);
            let never_came = completed.saturating_sub(newest);
            self.counts.lost = never_came.saturating_add(self.missing(posted, newest.min(completed)));
        } else {
            self.counts.lost = self.counts.lost.saturating_add(completed.saturating_sub(self.next));
        }
        self.counts.clone()
    }

    /// A slot's content after `posted` messages: of plain WRITEs by its sequence word, else by completions.
    fn held(&self, slot: u64, posted: u64) -> SlotContent {
        let plain = self.plan.op == Op::Write;
        let told = || self.last_in_slot[slot as usize].checked_sub(1);
        match if plain { self.slots.message(slot) } else { told() } {
            None => SlotContent::Nothing,
            Some(message) if message >= posted || plain && self.plan.target_slot(message) != slot => {
                SlotContent::Nonsense
            }
            Some(message) => SlotContent::Message(message),
        }
    }

    fn all_slots(&self) -> std::ops::Range<u64> {
        0..self.plan.target_slots().into()
    }

    /// The highest message number in any slot, counted from 1.
    fn newest_in_slots(&self, posted: u64) -> u64 {
        let number = |slot| match self.held(slot, posted) {
            SlotContent::Message(message) => message + 1,
            SlotContent::Nothing | SlotContent::Nonsense => 0,
        };
        self.all_slots().map(number).max().unwrap_or(0)
    }

    /// Slots that hold nothing, or an older message than their last one before message `end`.
    fn missing(&self, posted: u64, end: u64) -> u64 {
        let slots = u64::from(self.plan.target_slots());
        let is_missing = |slot: &u64| {
            let last = (end > *slot).then(|| slot + (end - 1 - slot) / slots * slots);
            last.is_some_and(|last| match self.held(*slot, posted) {
                SlotContent::Nothing => true,
                SlotContent::Message(message) => message < last,
                SlotContent::Nonsense => false,
            })
        };
        self.all_slots().filter(is_missing).count() as u64
    }

    fn check_slots(&mut self, posted: u64) {
        for slot in self.all_slots() {
            match self.held(slot, posted) {
                SlotContent::Nothing => {}
                SlotContent::Message(message) => self.check(slot, message),
                SlotContent::Nonsense => {
                    self.counts.checked += 1;
                    self.counts.torn += 1;
                }
            }
        }
    }

    pub fn counts(&self) -> Received {
        self.counts.clone()
    }
}

/// Connects queue pairs in INIT, each with its peer, up to RTS. Returns the other end's region, if any.
pub fn connect(
    session: &mut Session,
    plan: &Plan,
    path: &Path,
    qps: &[&Qp],
    region: RegionOffer,
    stop: &AtomicBool,
) -> Result<Option<RegionOffer>> {
    let offers: Vec<_> = qps.iter().map(|qp| QpOffer::new(qp)).collect();
    let ours = Hello::new(path, qp_type(plan.service), offers.clone(), vec![region], ());
    let theirs = session.exchange(&ours, Wait::at_most(SETUP).unless(stop))?;
    for (index, qp) in qps.iter().enumerate() {
        path.connect(qp, offers[index], &theirs, theirs.queue_pairs[index])?;
    }
    Ok(theirs.regions.first().copied())
}

/// A domain and registered memory.
pub fn memory(context: &Context, bytes: usize) -> Result<(Pd, Mr<Pages>)> {
    let pd = context.alloc_pd()?;
    let pages = Pages::new(bytes).with_context(|| format!("{bytes} bytes for messages"))?;
    let region = Mr::register(&pd, pages, ACCESS)?;
    Ok((pd, region))
}

#[cfg(test)]
mod tests;
