//! Completion queues: writing CQEs with the owner bit, noticing a full ring, and the events an armed CQ gives.
//!
//! Ring and record as in `providers/mlx5/cq.c`: a CQE belongs to software when its owner bit equals bit log2(n) of the
//! running index; the record holds the consumer index (24 bits) and the arm word. A full ring is an error as on a card:
//! nothing is overwritten, the CQ is dead and takes its QPs with it. A CQ made to ignore overruns is overwritten instead: its
//! driver bounds what is posted, and may leave the consumer index in the record as it is.
//! `RESIZE_CQ` is in `resize.rs`. Left out: moderation, compressed CQEs, collapsed CQs.

use mlx5_layout::CqeFields;
use mlx5_layout::cqe::{CQE_BYTES, LARGE_SLOT_BYTES, owner_bit};
use mlx5_layout::doorbell::{Arm, ArmFor, CONSUMER_MASK, consumer_of};

use super::command::{
    CommandError, ContextId, CreateCq, CreatedCq, DestroyedCq, Handle, ResizeCq, refuse_if,
};
use super::commands::Answer;
use super::core::Core;
use super::nic::Nic;
use crate::carrier::Carrier;
use crate::errno;
use crate::memory::{Fault, Memory};

/// Value of the arm word that no driver writes: its serial number would have four bits. The NIC puts it into a disarmed
/// CQ's record, because the first arm of a driver may well be the word 0.
const DISARMED: u32 = u32::MAX;

#[derive(Debug)]
pub struct Cq {
    /// The context that made it.
    pub context: ContextId,
    pub cqn: u32,
    /// Entries, a power of two.
    pub entries: u32,
    /// 64 or 128.
    pub cqe_size: u32,
    pub buffer: u64,
    pub record: u64,
    /// Echoed in events.
    pub user_handle: u64,
    pub channel: Option<u32>,
    /// Queues that complete here, counted once for each of their two sides.
    pub users: u32,
    /// A full ring is overwritten and no error.
    pub ignore_overrun: bool,
    /// Overrun or unreachable: takes nothing more.
    pub dead: bool,
    /// Completion events given and not withdrawn.
    pub completion_events: u32,
    /// Asynchronous events given and not withdrawn.
    pub async_events: u32,
    pub(super) producer: u32,
    // Last consumer index seen: the record is read again only when the ring seems full.
    pub(super) consumer: u32,
    // Producer index behind the last solicited CQE.
    pub(super) solicited_end: u32,
    // Producer index at the last event: `last_notified_index` of the CQ context in the manual.
    pub(super) notified: u32,
}

/// What one CQE did to its CQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// Written; `event` says that the completion channel gets an event.
    Written {
        /// The CQ was armed for this CQE.
        event: bool,
    },
    /// No room, or the ring or record cannot be reached: the CQ failed now.
    Died,
    /// The CQ was dead already.
    Dead,
}

/// CQ numbers start here, as on a card whose firmware keeps the first ones.
const FIRST_CQN: u32 = 0x400;

pub trait CqCommands {
    fn create_cq(&mut self, context: ContextId, command: &CreateCq) -> Answer<CreatedCq>;
    /// Moves it to another ring; returns `cqe` as it is now.
    fn resize_cq(&mut self, context: ContextId, cq: Handle, command: &ResizeCq) -> Answer<u32>;
    /// Destroys it; returns how many events of it the program has read.
    fn destroy_cq(&mut self, context: ContextId, cq: Handle) -> Answer<DestroyedCq>;
}

impl<M: Memory, C: Carrier> CqCommands for Nic<M, C> {
    fn create_cq(&mut self, id: ContextId, request: &CreateCq) -> Answer<CreatedCq> {
        self.core.context(id)?;
        let limit = self.core.capabilities.max_cq;
        if self.core.cqs.len() >= limit as usize {
            return Err(CommandError::exhausted("completion queues", limit));
        }
        let cq = Cq::create(&self.core.memory, id, request, self.core.capabilities.max_cqe)?;
        let place = self.core.cqs.insert(cq);
        let cqn = FIRST_CQN + place;
        if let Some(cq) = self.core.cqs.get_mut(place) {
            cq.cqn = cqn;
        }
        if request.channel.is_some() {
            self.core.schedule.watch_cq(place);
        }
        Ok(CreatedCq { handle: self.core.context_mut(id)?.cqs.insert(place), cqn, cqe: request.cqe })
    }

    fn resize_cq(&mut self, id: ContextId, handle: Handle, request: &ResizeCq) -> Answer<u32> {
        let place = self.core.find_cq(id, handle)?;
        let max = self.core.capabilities.max_cqe;
        refuse_if!(request.cqe == 0 || request.cqe > max, EINVAL, "cqe {} is not in 1..={max}", request.cqe);
        let cq = self.core.cqs.get_mut(place).ok_or_else(|| CommandError::no_such("CQ", handle))?;
        // Not above 2^22: `max_cqe` is below that.
        let entries = (request.cqe + 1).next_power_of_two();
        if entries == cq.entries {
            return Ok(entries - 1);
        }
        cq.check_resize(&self.core.memory, request, entries)?;
        let fault = |f: Fault| CommandError { errno: errno::EFAULT, reason: format!("CQ {handle}: {f}") };
        cq.write_resized(&self.core.memory).map_err(fault)?;
        cq.move_to(request.buffer, entries);
        Ok(entries - 1)
    }

    fn destroy_cq(&mut self, id: ContextId, handle: Handle) -> Answer<DestroyedCq> {
        let place = self.core.find_cq(id, handle)?;
        if self.core.cqs.get(place).is_some_and(|cq| cq.users > 0) {
            return Err(CommandError::busy("CQ", handle, "queue pairs"));
        }
        self.core.context_mut(id)?.cqs.remove(handle);
        self.core.schedule.forget_cq(place);
        let Some(cq) = self.core.cqs.remove(place) else { return Ok(DestroyedCq::default()) };
        // The library waits until the program has acknowledged what is reported here, so what nobody can read any more
        // is withdrawn and not counted.
        let withdrawn =
            cq.channel.map_or(0, |channel| self.core.events.withdraw_completions(channel, cq.user_handle));
        let withdrawn_async = self.core.events.withdraw_asynchronous(id, cq.user_handle);
        Ok(DestroyedCq {
            completion_events: cq.completion_events.wrapping_sub(withdrawn),
            async_events: cq.async_events.wrapping_sub(withdrawn_async),
        })
    }
}

impl<M: Memory> Core<M> {
    pub(super) fn find_cq(&self, id: ContextId, handle: Handle) -> Result<u32, CommandError> {
        self.context(id)?.cqs.get(handle).copied().ok_or_else(|| CommandError::no_such("CQ", handle))
    }
}

impl Cq {
    /// Checks the command as the driver does, and disarms the record.
    pub(super) fn create<M: Memory>(
        memory: &M,
        context: ContextId,
        request: &CreateCq,
        max_cqe: u32,
    ) -> Result<Cq, CommandError> {
        let refuse = |errno, reason: String| Err(CommandError { errno, reason });
        let Some(entries) = request.cqe.checked_add(1).filter(|n| n.is_power_of_two()) else {
            return refuse(errno::EINVAL, format!("cqe {} plus 1 is no power of two", request.cqe));
        };
        if request.cqe > max_cqe {
            return refuse(errno::EINVAL, format!("cqe {} is above {max_cqe}", request.cqe));
        }
        if request.cqe_size != 64 && request.cqe_size != 128 {
            return refuse(errno::EINVAL, format!("cqe_size {} is neither 64 nor 128", request.cqe_size));
        }
        if !request.buffer.is_multiple_of(64) || !request.record.is_multiple_of(8) {
            let (buffer, record) = (request.buffer, request.record);
            return refuse(
                errno::EINVAL,
                format!("CQ ring {buffer:#x} or record {record:#x} is not aligned"),
            );
        }
        let fault = |f: Fault| CommandError { errno: errno::EFAULT, reason: format!("CQ: {f}") };
        let bytes = u64::from(entries) * u64::from(request.cqe_size);
        memory.probe(request.buffer, bytes, true).map_err(fault)?;
        memory.probe(request.record, 8, true).map_err(fault)?;
        memory.store32(request.record + 4, DISARMED).map_err(fault)?;
        Ok(Cq {
            context,
            cqn: 0,
            entries,
            cqe_size: request.cqe_size,
            buffer: request.buffer,
            record: request.record,
            user_handle: request.user_handle,
            channel: request.channel,
            users: 0,
            ignore_overrun: request.ignore_overrun,
            dead: false,
            completion_events: 0,
            async_events: 0,
            producer: 0,
            consumer: 0,
            solicited_end: 0,
            notified: 0,
        })
    }

    /// Writes one CQE, with `payload` inside where that is given (see [`CqeFields::emit_slot`]). The owner bit is set here.
    pub(super) fn push<M: Memory>(
        &mut self,
        memory: &M,
        fields: &mut CqeFields,
        payload: Option<&[u8]>,
    ) -> Pushed {
        if self.dead {
            return Pushed::Dead;
        }
        match self.write(memory, fields, payload) {
            Ok(true) => Pushed::Written { event: self.channel.is_some() && self.announce(memory, fields) },
            Ok(false) | Err(Fault { .. }) => {
                self.dead = true;
                Pushed::Died
            }
        }
    }

    /// `Ok(false)`: full.
    pub(super) fn write<M: Memory>(
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
        if payload.is_none() || !write_slot(memory, slot, size, fields, payload)? {
            let mut cqe = [0; CQE_BYTES];
            fields.emit_into(&mut cqe);
            memory.write(slot + (size - CQE_BYTES) as u64, &cqe, false)?;
        }
        self.producer = self.producer.wrapping_add(1);
        Ok(true)
    }

    pub(super) fn read_consumer<M: Memory>(&self, memory: &M) -> Result<u32, Fault> {
        Ok(consumer_of(memory.load32(self.record)?.to_ne_bytes()))
    }

    /// CQEs that the driver has not given back, by the last consumer index seen. A record ahead of the producer counts as a
    /// full ring: it would let the NIC overwrite.
    pub(super) fn unconsumed(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & CONSUMER_MASK
    }

    /// Whether the CQ was armed for the CQE just written; it is disarmed then.
    fn announce<M: Memory>(&mut self, memory: &M, fields: &CqeFields) -> bool {
        let solicited = fields.solicited || fields.opcode.is_error();
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

    /// Looks whether CQEs that no event has told of wait behind the present arm: the arm crossed them on its way, and nobody
    /// else would ever wake the reader. CQEs that an event did tell of may wait there too, when a program arms before it
    /// polls; a second event for those would find an empty CQ (perftest takes that as an error), so a card keeps the index
    /// of the last notification, and so does this.
    pub(super) fn rescan<M: Memory>(&mut self, memory: &M) -> bool {
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
        let told = end.wrapping_sub(self.notified) as i32 <= 0;
        waiting && !told && self.disarm(memory, word)
    }
}

/// Writes a whole slot, payload and all. False: it has no room for that, which callers see to; nothing was written.
#[inline(never)]
fn write_slot<M: Memory>(
    memory: &M,
    slot: u64,
    size: usize,
    fields: &CqeFields,
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
