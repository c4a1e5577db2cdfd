//! Channels to and from peers: made when first needed, watched, given up when their process ends.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::channel::{ChannelState, Consumer, Ends, Lane, Producer};
use super::fabric::{Process, SLOTS, SlotOwner, is_shortage};
use super::{Incoming, Link, LinkEvent, NoPeer, Outgoing, Peer, ROOM, Room};
use crate::os::system;

/// How often peers are looked at, in ns: well below the second within which a killed peer must be noticed.
const WATCH_NS: u64 = 10_000_000;

/// Slots that [`Fabric::still_here`] examines each time, at a system call or two for each peer. All slots are
/// examined within 160 ms.
///
/// [`Fabric::still_here`]: super::fabric::Fabric::still_here
const EXAMINED: usize = 8;

impl Link {
    /// Whether a process with a NIC is in this slot and has not ended.
    ///
    /// Errors: the kernel's, where the process cannot be watched.
    pub fn is_alive(&self, slot: u8) -> io::Result<bool> {
        if slot == self.slot() {
            return Ok(self.fabric.is_ours());
        }
        match (&self.peers[usize::from(slot) % SLOTS], self.fabric.slot_owner(slot)) {
            (_, None) => Ok(false),
            (Some(peer), Some(owner)) if peer.owner == owner => Ok(!peer.process.has_ended()),
            (_, Some(owner)) => match owner.watch() {
                Ok(process) => Ok(!process.has_ended()),
                Err(error) if means_ended(&error) => Ok(false),
                Err(error) => Err(error),
            },
        }
    }

    /// Whether a message can be sent to a slot now. Makes the channel when there is none.
    #[inline]
    pub(super) fn lane_room(&mut self, slot: u8, lane: Lane) -> Room {
        // The common case: a channel that the receiver has attached to, with room.
        let outgoing = self.outgoing[usize::from(slot) % SLOTS].as_mut().filter(|_| self.fabric.is_ours());
        let has_room = outgoing.is_some_and(|outgoing| {
            outgoing.producer.state() == ChannelState::Attached && outgoing.producer.has_room(lane, ROOM)
        });
        if has_room { Room::Yes } else { self.closer_room(slot, lane) }
    }

    fn closer_room(&mut self, slot: u8, lane: Lane) -> Room {
        if !self.fabric.is_ours() {
            return Room::NoPeer(NoPeer::Forked);
        }
        let index = usize::from(slot) % SLOTS;
        if let Some(outgoing) = &mut self.outgoing[index] {
            return match outgoing.producer.state() {
                ChannelState::Closed => Room::NoPeer(NoPeer::Closed(slot)),
                ChannelState::Published if self.fabric.was_refused(slot) => {
                    Room::NoPeer(NoPeer::Closed(slot))
                }
                // A reply may precede the receiver's attach: its queue may go first, and could not repeat it.
                ChannelState::Published if lane == Lane::Reply && outgoing.producer.has_room(lane, ROOM) => {
                    Room::Yes
                }
                _ => Room::Full,
            };
        }
        match self.open_channel(slot) {
            Ok(()) if slot == self.slot() || lane == Lane::Reply => Room::Yes,
            Ok(()) => Room::Full,
            Err(reason) => {
                if let NoPeer::Kernel(errno) = reason
                    && !std::mem::replace(&mut self.is_short, true)
                {
                    self.happened(LinkEvent::NoChannel { slot, errno });
                }
                Room::NoPeer(reason)
            }
        }
    }

    fn open_channel(&mut self, slot: u8) -> Result<(), NoPeer> {
        let index = usize::from(slot) % SLOTS;
        let (from, from_generation) = (self.slot(), self.fabric.generation());
        // A message to another queue of this process takes the same way as to a peer.
        let to_generation = if slot == from { from_generation } else { self.meet(slot)?.generation };
        let ends = Ends { from, to: slot, from_generation, to_generation };
        let refused = |error: io::Error| NoPeer::Kernel(error.raw_os_error().unwrap_or(0));
        let mut producer = Producer::create(self.host, ends, self.config.ring_bytes).map_err(refused)?;
        producer.holds = self.delays;
        if slot == from {
            self.receive_from(&producer.fd, ends)?;
        } else {
            self.fabric.publish_channel(slot, to_generation, producer.fd.as_raw_fd());
        }
        self.serial = self.serial.wrapping_add(1);
        let (serial, awaits_attach) = (self.serial, slot != from);
        self.outgoing[index] =
            Some(Outgoing { producer, serial, dirty: false, awaits_attach, waits_since: [None; 2] });
        self.open.push(slot);
        Ok(())
    }

    /// Starts watching the process in a slot. Its entry in the directory is read here, once.
    fn meet(&mut self, slot: u8) -> Result<SlotOwner, NoPeer> {
        let index = usize::from(slot) % SLOTS;
        let owner = self.fabric.slot_owner(slot).ok_or(NoPeer::Empty(slot))?;
        if let Some(peer) = &self.peers[index] {
            // A new process where the old one's end was not noticed yet: the next look clears it.
            return if peer.owner == owner { Ok(owner) } else { Err(NoPeer::Gone(slot)) };
        }
        if self.dead[index] == owner.generation {
            return Err(NoPeer::Gone(slot));
        }
        let process = self.begin_watch(slot, &owner)?;
        self.peers[index] = Some(Peer { owner, process });
        Ok(owner)
    }

    /// Watches the process in a slot. If that fails, the process is not reached while it holds the slot; an
    /// event says so unless it ended. While descriptors or memory run short, the next message tries again.
    fn begin_watch(&mut self, slot: u8, owner: &SlotOwner) -> Result<Process, NoPeer> {
        let error = match owner.watch() {
            Ok(process) => return Ok(process),
            Err(error) => error,
        };
        let errno = error.raw_os_error().unwrap_or(0);
        if is_shortage(&error) {
            return Err(NoPeer::Kernel(errno));
        }
        self.dead[usize::from(slot) % SLOTS] = owner.generation;
        if !means_ended(&error) {
            self.happened(LinkEvent::Unwatched { pid: owner.pid, errno });
        }
        Err(NoPeer::Gone(slot))
    }

    pub(super) fn attach_published(&mut self) {
        let mut published = self.fabric.take_published();
        while published != 0 {
            let slot = published.trailing_zeros() as u8;
            published &= published - 1;
            if let Err(why) = self.attach(slot) {
                self.fabric.refuse_channel(slot);
                self.counters.attach_failures += 1;
                self.happened(LinkEvent::AttachFailed { slot, why });
            }
        }
    }

    fn attach(&mut self, slot: u8) -> Result<(), NoPeer> {
        let descriptor =
            self.fabric.channel_from(slot).ok_or(NoPeer::Foreign("it is for an earlier process"))?;
        if self.peers[usize::from(slot)].as_ref().is_some_and(|peer| peer.process.has_ended()) {
            self.lose(slot);
        }
        // Only this process makes the channel to itself: a second reader would take every message twice.
        if slot == self.slot() {
            return Err(NoPeer::Foreign("both ends are one process"));
        }
        let SlotOwner { pid, generation: from_generation, .. } = self.meet(slot)?;
        // One for each life of a peer: mappings of one that publishes without end would fill our memory.
        let of_this_life = |ends: Ends| (ends.from, ends.from_generation) == (slot, from_generation);
        if self.incoming.iter().any(|incoming| of_this_life(incoming.consumer.ends)) {
            return Err(NoPeer::Foreign("there is one already"));
        }
        let fd = system::open_memfd(&format!("/proc/{pid}/fd/{descriptor}"))?;
        let ends =
            Ends { from: slot, to: self.slot(), from_generation, to_generation: self.fabric.generation() };
        self.receive_from(&fd, ends)?;
        // The sender may sleep until it can send.
        self.fabric.wake(slot);
        Ok(())
    }

    fn receive_from(&mut self, fd: &OwnedFd, ends: Ends) -> Result<(), NoPeer> {
        let consumer = Consumer::attach(self.host, fd, ends)?;
        consumer.set_state(ChannelState::Attached);
        // What an earlier owner published has had all the time in between to be taken.
        self.incoming.retain(|i| i.consumer.ends.from != ends.from);
        self.incoming.push(Incoming { consumer, ended: false, closed: false, requests_waited: false });
        Ok(())
    }

    /// Looks after the peers, every few milliseconds.
    pub(super) fn watch(&mut self) {
        let now = system::monotonic_ns();
        if now.wrapping_sub(self.watched_ns) < WATCH_NS {
            return;
        }
        self.watched_ns = now;
        if let Some(wire) = &mut self.wire
            && wire.take_over_ports()
        {
            self.fabric.publish_ports(wire.own_ports());
        }
        self.check_foreign_ports(now);
        for slot in 0..SLOTS as u8 {
            let Some(peer) = &self.peers[usize::from(slot)] else { continue };
            let closer = usize::from(slot.wrapping_sub(self.examined)) % SLOTS < EXAMINED;
            let here = self.fabric.slot_owner(slot) == Some(peer.owner)
                && !peer.process.has_ended()
                && (!closer || self.fabric.still_here(&peer.owner));
            if !here {
                self.lose(slot);
            }
        }
        self.examined = self.examined.wrapping_add(EXAMINED as u8) % SLOTS as u8;
    }

    fn lose(&mut self, slot: u8) {
        let index = usize::from(slot);
        let Some(peer) = self.peers[index].take() else { return };
        self.dead[index] = peer.owner.generation;
        self.outgoing[index] = None;
        self.open.retain(|open| *open != slot);
        for incoming in &mut self.incoming {
            // What it sent before it ended still counts; the channel goes when it is empty.
            incoming.ended |= incoming.consumer.ends.from == slot;
        }
        self.counters.peers_lost += 1;
        // A leaving process frees its slot first. If a slot has a new owner, the old one left or ended.
        if self.fabric.slot_owner(slot) == Some(peer.owner) {
            self.happened(LinkEvent::PeerLost { slot, pid: peer.owner.pid });
        }
    }
}

/// Whether a process could not be watched because it is not there any more.
fn means_ended(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}
