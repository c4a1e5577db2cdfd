//! Completion queues: CQEs with the owner bit, full rings, and the events of an armed CQ.
//!
//! Ring and record as in `providers/mlx5/cq.c`: a CQE belongs to software when its owner bit equals bit
//! log2(n) of the running index. The record holds the consumer index (24 bits) and the arm word. A full ring
//! is an error as on a card: nothing is overwritten, the CQ is dead and takes its QPs with it. A CQ made to
//! ignore overruns is overwritten: its driver bounds posts, and may leave the consumer index alone.
//! Left out: moderation, compressed CQEs, collapsed CQs.

use mlx5_layout::cqe::{CQE_BYTES, LARGE_SLOT_BYTES, owner_bit};
use mlx5_layout::doorbell::{Arm, ArmFor, CONSUMER_MASK, consumer_of};
use mlx5_layout::{CqeFields, CqeOpcode, CqeSyndrome};
use roce::Now;

use super::command::{
    Answer, CommandError, ContextId, CreateCq, DestroyedCq, Handle, ResizeCq, event_type, refusal, refuse_if,
};
use super::host::{EventTarget, HostInterface};
use super::model::Capabilities;
use super::reason::About;
use super::schedule::Walk;
use super::table::Table;
use crate::memory::{Fault, Memory};

/// Value of the arm word that no driver writes: its serial number would have four bits. The NIC writes it to
/// a disarmed CQ's record, because a driver's first arm may well be the word 0.
const DISARMED: u32 = u32::MAX;

#[derive(Debug)]
struct Cq {
    event_target: EventTarget,
    cqn: u32,
    /// Entries, a power of two.
    entries: u32,
    /// 64 or 128.
    cqe_size: u32,
    buffer: u64,
    record: u64,
    channel: Option<u32>,
    /// A full ring is overwritten and no error.
    ignore_overrun: bool,
    /// Overrun or unreachable: takes nothing more.
    dead: bool,
    /// Completion events given and not withdrawn.
    completion_events: u32,
    producer: u32,
    // Last consumer index seen: the record is read again only when the ring seems full.
    consumer: u32,
    // Producer index behind the last solicited CQE.
    solicited_end: u32,
    // Producer index at the last event: `last_notified_index` of the CQ context in the manual.
    notified: u32,
}

/// CQ numbers start here, as on a card whose firmware keeps the first ones.
const FIRST_CQN: u32 = 0x400;

/// Every CQ of the NIC.
#[derive(Debug, Default)]
pub(super) struct Cqs {
    table: Table<Cq>,
    /// Those with a completion channel, and the walk round them.
    channels: Vec<u32>,
    walk: Walk,
    /// Places of CQs that died in this poll; their QPs follow.
    pub dead: Vec<u32>,
}

impl Cqs {
    /// Checks the command as the driver does, and disarms the record; returns the new CQ's place and number.
    pub(super) fn create<M: Memory>(
        &mut self,
        memory: &M,
        id: ContextId,
        request: &CreateCq,
        limits: &Capabilities,
    ) -> Answer<(u32, u32)> {
        self.table.check_room("completion queues", limits.max_cq)?;
        let CreateCq { cqe, cqe_size, buffer, record, .. } = *request;
        let entries = cqe.checked_add(1).filter(|n| n.is_power_of_two());
        let none = || refusal!(EINVAL, "cqe {cqe} plus 1 is no power of two");
        let entries = entries.ok_or_else(none)?;
        refuse_if!(cqe > limits.max_cqe, EINVAL, "cqe {cqe} is above {}", limits.max_cqe);
        refuse_if!(cqe_size != 64 && cqe_size != 128, EINVAL, "cqe_size {cqe_size} is neither 64 nor 128");
        let aligned = buffer.is_multiple_of(64) && record.is_multiple_of(8);
        refuse_if!(!aligned, EINVAL, "CQ ring {buffer:#x} or record {record:#x} is not aligned");
        let fault = CommandError::fault("CQ");
        memory.probe(buffer, u64::from(entries) * u64::from(cqe_size), true).map_err(&fault)?;
        memory.probe(record, 8, true).map_err(&fault)?;
        memory.store32(record + 4, DISARMED).map_err(&fault)?;
        let cqn = FIRST_CQN + self.table.next();
        let place = self.table.insert(Cq {
            event_target: EventTarget::new(id, request.user_handle),
            cqn,
            entries,
            cqe_size,
            buffer,
            record,
            channel: request.channel,
            ignore_overrun: request.ignore_overrun,
            dead: false,
            completion_events: 0,
            producer: 0,
            consumer: 0,
            solicited_end: 0,
            notified: 0,
        });
        if request.channel.is_some() {
            self.channels.push(place);
        }
        Ok((place, cqn))
    }

    /// Moves a CQ to another ring; returns `cqe` as it is now.
    pub(super) fn resize<M: Memory>(
        &mut self,
        memory: &M,
        place: u32,
        handle: Handle,
        request: &ResizeCq,
        max: u32,
    ) -> Answer<u32> {
        refuse_if!(request.cqe == 0 || request.cqe > max, EINVAL, "cqe {} is not in 1..={max}", request.cqe);
        let cq = self.table.get_mut(place).ok_or_else(|| CommandError::no_such("CQ", handle))?;
        // Not above 2^22: `max_cqe` is below that.
        let entries = (request.cqe + 1).next_power_of_two();
        if entries != cq.entries {
            cq.check_resize(memory, request, entries)?;
            // The last CQE of the old ring, whose room was checked. An error leaves everything as it was.
            let mut last = CqeFields { opcode: CqeOpcode::ResizeCq, ..CqeFields::default() };
            cq.write(memory, &mut last, None).map_err(CommandError::fault(format_args!("CQ {handle}")))?;
            cq.move_to(request.buffer, entries);
        }
        Ok(entries - 1)
    }

    /// Destroys a CQ; returns how many events of it the program has read.
    pub(super) fn destroy<M>(
        &mut self,
        host: &mut HostInterface<M>,
        place: u32,
        handle: Handle,
    ) -> Answer<DestroyedCq> {
        self.table.check_unused(place, "CQ", handle, "queue pairs")?;
        self.channels.retain(|p| *p != place);
        let Some(cq) = self.table.remove(place) else { return Ok(DestroyedCq::default()) };
        // The library waits until the program has acknowledged this number, so unread events are withdrawn
        // and not counted.
        let user_handle = cq.event_target.user_handle;
        let withdrawn =
            cq.channel.map_or(0, |channel| host.events.withdraw_completions(channel, user_handle));
        Ok(DestroyedCq {
            completion_events: cq.completion_events.wrapping_sub(withdrawn),
            async_events: cq.event_target.withdraw(host),
        })
    }

    /// Queues that complete in these two, one more or one less.
    pub(super) fn count_users(&mut self, places: [u32; 2], change: i32) {
        places.into_iter().for_each(|place| self.table.count_user(place, change));
    }

    /// Bytes of an entry of the CQ here.
    pub(super) fn cqe_size(&self, place: u32) -> usize {
        self.table.get(place).map_or(64, |cq| cq.cqe_size as usize)
    }

    /// Writes a CQE, and gives the event that the CQ was armed for. A full CQ fails here, its QPs after
    /// this poll.
    #[inline(always)]
    pub(super) fn complete<M: Memory>(
        &mut self,
        host: &mut HostInterface<M>,
        place: u32,
        mut fields: CqeFields,
        payload: Option<&[u8]>,
    ) {
        let Some(cq) = self.table.get_mut(place).filter(|cq| !cq.dead) else { return };
        // A card stamps what is whole.
        host.copied(fields.byte_count);
        fields.timestamp = host.now.0;
        let written = cq.write(&host.memory, &mut fields, payload);
        if written == Ok(true) {
            roce::count(&mut host.counters.cqes, 1);
            if fields.opcode.is_error() {
                let syndrome = CqeSyndrome::from_u8(fields.error.syndrome);
                host.counters.error(syndrome.unwrap_or(CqeSyndrome::RemoteAborted));
            }
            if cq.channel.is_some() && cq.announce(&host.memory, fields.solicited || fields.opcode.is_error())
            {
                cq.give_event(host);
            }
            return;
        }
        self.dead.push(place);
        cq.fail(host, written.err());
    }

    /// Gives the events of CQs whose arm crossed their CQE.
    pub(super) fn rescan<M: Memory>(&mut self, host: &mut HostInterface<M>) {
        // They come round ten times as fast as queues: such an arm waits for this.
        let now = Now(host.now.0.saturating_mul(10));
        for index in self.walk.places(now, self.channels.len() as u32).into_iter().flatten() {
            let place = self.channels.get(index as usize).copied();
            let Some(cq) = place.and_then(|place| self.table.get_mut(place)) else { continue };
            if cq.rescan(&host.memory) {
                cq.give_event(host);
            }
        }
    }

    /// Whether the CQ here failed, and no other came in its place.
    pub(super) fn is_dead(&self, place: u32) -> bool {
        self.table.get(place).is_some_and(|cq| cq.dead)
    }
}

impl Cq {
    // `RESIZE_CQ` as on a card (`mlx5_cq_resize_copy_cqes` and `mlx5_ib_resize_cq` read the result): the last
    // CQE in the old ring says «resized» and takes an index. Later ones go to the new ring; the library
    // copies those before it, each one index further on. A refusal leaves the CQ as it was.

    fn check_resize<M: Memory>(&mut self, memory: &M, request: &ResizeCq, entries: u32) -> Answer<()> {
        let cqn = self.cqn;
        refuse_if!(self.dead, EINVAL, "CQ {cqn:#x} is in error");
        let (old, new) = (self.cqe_size, request.cqe_size);
        refuse_if!(old != new, EINVAL, "CQEs of {old} bytes, the new ring is for {new}");
        let buffer = request.buffer;
        refuse_if!(!buffer.is_multiple_of(64), EINVAL, "CQ ring {buffer:#x} is not aligned");
        let fault = CommandError::fault("CQ");
        let bytes = u64::from(entries) * u64::from(self.cqe_size);
        memory.probe(buffer, bytes, true).map_err(&fault)?;
        // The firmware's BAD_SIZE_OUTS_CQES: the new ring must hold what waits, the old one its last CQE.
        self.consumer = self.read_consumer(memory).map_err(&fault)?;
        let waiting = self.unconsumed();
        let fits = waiting < entries.min(self.entries);
        refuse_if!(
            !fits,
            EINVAL,
            "CQ {cqn:#x}: {waiting} CQEs wait, a ring of {entries} has no room for them"
        );
        Ok(())
    }

    /// Later CQEs go to this ring. The library carries the waiting ones over, one index further on.
    fn move_to(&mut self, buffer: u64, entries: u32) {
        let empty = self.unconsumed() == 1;
        (self.buffer, self.entries) = (buffer, entries);
        self.solicited_end = self.solicited_end.wrapping_add(1);
        // The index that «resized» took is no completion to tell of.
        self.notified = if empty { self.producer } else { self.notified.wrapping_add(1) };
    }

    /// Writes one CQE, with `payload` inside if given (see [`CqeFields::emit_slot`]), and sets the owner bit.
    /// `Ok(false)`: full.
    #[inline(always)]
    fn write<M: Memory>(
        &mut self,
        memory: &M,
        fields: &mut CqeFields,
        payload: Option<&[u8]>,
    ) -> Result<bool, Fault> {
        if !self.ignore_overrun && self.unconsumed() >= self.entries {
            self.consumer = self.read_consumer(memory)?;
            if self.unconsumed() >= self.entries {
                return Ok(false);
            }
        }
        fields.owner = owner_bit(self.producer, self.entries);
        let size = self.cqe_size as usize;
        let slot = self.buffer + u64::from(self.producer & (self.entries - 1)) * size as u64;
        // The owner bit is in the last word, which such a write stores last, with release.
        if payload.is_none() || !write_slot(memory, slot, size, *fields, payload)? {
            memory.write(slot + (size - CQE_BYTES) as u64, &fields.emit(), false)?;
        }
        self.producer = self.producer.wrapping_add(1);
        Ok(true)
    }

    /// The ring is full, or cannot be reached.
    #[cold]
    fn fail<M>(&mut self, host: &mut HostInterface<M>, fault: Option<Fault>) {
        self.dead = true;
        host.counters.cq_overruns += 1;
        self.event_target.raise(host, event_type::CQ_ERR);
        let why = match fault {
            Some(fault) => format!("{fault}; keep its ring and record mapped"),
            None => {
                format!("overrun: {} entries, none given back; poll sooner, or make it longer", self.entries)
            }
        };
        host.explain(About::Cq(self.cqn), "cq", format!("it and its QPs are in error: {why}"));
    }

    fn read_consumer<M: Memory>(&self, memory: &M) -> Result<u32, Fault> {
        Ok(consumer_of(memory.load32(self.record)?.to_ne_bytes()))
    }

    /// CQEs that the driver has not consumed, by the last consumer index seen. A record ahead of the producer
    /// counts as a full ring: otherwise the NIC would overwrite.
    fn unconsumed(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & CONSUMER_MASK
    }

    /// Gives the completion event that the CQ was armed for.
    fn give_event<M>(&mut self, host: &mut HostInterface<M>) {
        if let Some(channel) = self.channel
            && host.events.completion(channel, self.event_target.user_handle)
        {
            self.completion_events = self.completion_events.wrapping_add(1);
            host.counters.completion_events += 1;
        }
    }

    /// Whether the CQ was armed for the CQE just written; it is disarmed then.
    fn announce<M: Memory>(&mut self, memory: &M, solicited: bool) -> bool {
        if solicited {
            self.solicited_end = self.producer;
        }
        // Compare-and-swap of the sentinel by itself: a load that cannot pass the CQE store before it.
        match memory.compare_swap32(self.record + 4, DISARMED, DISARMED) {
            Ok(DISARMED) | Err(_) => false,
            Ok(word) if wants_solicited(word) && !solicited => false,
            Ok(word) => self.disarm(memory, word),
        }
    }

    fn disarm<M: Memory>(&mut self, memory: &M, word: u32) -> bool {
        let done = memory.compare_swap32(self.record + 4, word, DISARMED) == Ok(word);
        if done {
            self.notified = self.producer;
        }
        done
    }

    /// Whether CQEs without an event wait behind the present arm: the arm crossed them, and nothing else
    /// would wake the reader. CQEs that had an event may wait there too, when a program arms before it polls.
    /// A second event for those would find an empty CQ, an error to perftest. So a card keeps the index of
    /// the last notification, and so does this.
    fn rescan<M: Memory>(&mut self, memory: &M) -> bool {
        if self.dead || self.channel.is_none() {
            return false;
        }
        let Ok(word) = memory.load32(self.record + 4) else { return false };
        if word == DISARMED {
            return false;
        }
        let Ok(consumer) = self.read_consumer(memory) else { return false };
        self.consumer = consumer;
        let end = if wants_solicited(word) { self.solicited_end } else { self.producer };
        let waiting = (1..=self.entries).contains(&(end.wrapping_sub(consumer) & CONSUMER_MASK));
        // Never more than half the counter's range behind, or "before" and "after" would change places.
        self.notified = self.producer.wrapping_sub(self.producer.wrapping_sub(self.notified).min(1 << 30));
        let notified = end.wrapping_sub(self.notified) as i32 <= 0;
        waiting && !notified && self.disarm(memory, word)
    }
}

/// Writes a whole slot with its payload. False: no room, which callers prevent; nothing was written.
#[inline(never)]
fn write_slot<M: Memory>(
    memory: &M,
    slot: u64,
    size: usize,
    fields: CqeFields,
    payload: Option<&[u8]>,
) -> Result<bool, Fault> {
    let mut whole = [0; LARGE_SLOT_BYTES];
    let fits = fields.emit_slot(payload, &mut whole[..size]).is_ok();
    if fits {
        memory.write(slot, &whole[..size], false)?;
    }
    Ok(fits)
}

fn wants_solicited(word: u32) -> bool {
    Arm::of_word(word.to_ne_bytes()).what == ArmFor::Solicited
}
