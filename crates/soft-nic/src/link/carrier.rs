//! The link as the device's carrier: packets go into the ring of the peer's channel, or to the wire.

use std::net::IpAddr;

use mlx5_device::carrier::{
    Addressing, Carrier, Disposition, Icrc, MAX_DELAY_NS, PathAddress, Payload, Position, Sent, Unsent,
};
use mlx5_device::memory::{Fault, Segment};
use roce::{Fragment, Now, Packet};

use super::channel::{ChannelState, Lane};
use super::receive::Body;
use super::record::{self, MAX_FRAGMENT, MAX_GPU_FRAGMENT};
use super::udp::{Arrived, Wire};
use super::{Inbound, Link, LinkEvent, MAX_INLINE, Outgoing, Room, SLOTS, path_of_wire};
use crate::dma::{RingMemory, gpu};

/// A payload that is not as long as announced.
const NO_SUCH_PAYLOAD: Unsent = Unsent::Fault(Fault { addr: 0 });

impl Carrier for Link {
    type Inbound<'a> = Inbound<'a>;

    fn slot(&self) -> u8 {
        self.fabric.slot()
    }

    fn has_wire(&self) -> bool {
        self.wire.is_some()
    }

    /// What is under way keeps its time.
    fn set_delay(&mut self, delay_ns: u64) {
        self.delay_ns = delay_ns.min(MAX_DELAY_NS);
        if self.delay_ns > 0 && !self.delays {
            // What was sent before leaves as it was to.
            self.ring_bells();
            self.hold(true);
        }
    }

    fn poll_rings(
        &mut self,
        now: Now,
        budget: usize,
        mut handler: impl FnMut(&Packet, &mut Inbound<'_>) -> Disposition,
    ) -> usize {
        self.pass_time(now) + self.poll_records(budget, |inbound| handler(inbound.packet, inbound))
    }

    /// Returns how many datagrams were looked at. For an address without recent datagrams the kernel is asked
    /// only every few microseconds.
    fn poll_wire(
        &mut self,
        now: Now,
        mut handler: impl FnMut(&Packet, &mut Inbound<'_>) -> Disposition,
    ) -> usize {
        let Self { wire, fabric, host, counters, mads, .. } = self;
        let Some(wire) = wire.as_mut().filter(|_| fabric.is_ours()) else { return 0 };
        wire.poll(
            now,
            |slot, address| fabric.port_of(slot, address),
            |Arrived { from, at, packet, payload }| {
                if packet.dst_qpn == roce::wire::mad::QP1 {
                    mads.take_packet(from, at, &packet, &payload);
                    return true;
                }
                let datagram = packet.service == roce::ServiceType::Ud;
                let path = datagram.then(|| path_of_wire(from, at));
                let mut inbound = Inbound {
                    packet: &packet,
                    words: &[0; record::REQUEST_WORDS],
                    addressing: Addressing { path, to_port: None, addresses: Some((from, at)) },
                    body: Body::Here(&payload),
                    host,
                    counters: &mut *counters,
                    given_up: false,
                };
                handler(&packet, &mut inbound) != Disposition::ConsumedLate
            },
        )
    }

    fn replies_wait(&self, slot: u8) -> bool {
        let mut of_peer = self.incoming.iter().filter(|incoming| incoming.consumer.ends.from == slot);
        of_peer.any(|incoming| incoming.consumer.pending_in(Lane::Reply))
    }

    fn poll_event(&mut self) -> Option<String> {
        self.events.pop_front().map(|event| event.to_string())
    }

    fn send_record(
        &mut self,
        packet: &Packet,
        mtu: u32,
        path: &PathAddress,
        payload: Payload<'_>,
    ) -> Result<Sent, Unsent> {
        let slot = mlx5_device::slot_of(packet.dst_qpn);
        let lane = if packet.content.is_request() { Lane::Request } else { Lane::Reply };
        match self.lane_room(slot, lane) {
            Room::Yes => {}
            Room::Full => return Err(Unsent::Full),
            Room::NoPeer(_) => return Err(Unsent::Unreachable),
        }
        let Some(outgoing) = &mut self.outgoing[usize::from(slot)] else { return Err(Unsent::Full) };
        let head = record::head_bytes(packet);
        let Fragment { offset, length } = packet.payload;
        let carried = match payload {
            // The bytes of a READ come with its answer.
            _ if length == 0 => 0,
            Payload::Nothing => return Err(NO_SUCH_PAYLOAD),
            Payload::Inline(_) if length as usize > MAX_INLINE => return Err(NO_SUCH_PAYLOAD),
            Payload::Inline(_) => length,
            Payload::Segments(from) | Payload::Mixed(from) => {
                let room = room_for(outgoing, lane, head, from, length)?;
                if room < length { room - room % mtu } else { length }
            }
        };
        if carried == 0 && length > 0 {
            return Err(Unsent::Full);
        }
        let (ring, at) = outgoing.producer.next(lane);
        if carried > 0
            && let Err(fault) = fill(ring, at + head as u64, payload, offset, carried)
        {
            return Err(self.copy_failed(slot, lane, fault));
        }
        let mut words = record::encode(packet, carried);
        if path.to_port > 1 {
            words[0] |= record::SECOND_PORT;
        }
        match words.first_chunk::<{ record::REPLY_WORDS }>() {
            Some(answer) if lane == Lane::Reply => ring.store(at, *answer),
            _ => ring.store(at, words),
        }
        if record::carries_path(packet) {
            ring.store(at + (head - 8 * record::PATH_WORDS) as u64, record::encode_path(path));
        }
        let offset = outgoing.producer.commit(lane, head + carried.next_multiple_of(8) as usize);
        let position = Position { channel: outgoing.serial, offset };
        let sent = &mut self.counters;
        *if lane == Lane::Request { &mut sent.requests_sent } else { &mut sent.replies_sent } += 1;
        if !std::mem::replace(&mut outgoing.dirty, true) {
            self.to_publish.push(slot);
        }
        Ok(Sent { position, carried })
    }

    fn has_reply_room(&mut self, slot: u8) -> bool {
        self.lane_room(slot, Lane::Reply) != Room::Full
    }

    /// The peer took it, or the ring is gone with the peer or closed: nothing is taken from it any more.
    fn consumed(&mut self, slot: u8, position: Position) -> bool {
        match &mut self.outgoing[usize::from(slot) % SLOTS] {
            Some(outgoing) if outgoing.serial == position.channel => {
                outgoing.producer.consumed(position.offset)
                    || outgoing.producer.state() == ChannelState::Published && self.fabric.was_refused(slot)
            }
            _ => true,
        }
    }

    /// Where enough wait, the kernel gets them first.
    fn has_wire_room(&mut self, from: IpAddr) -> bool {
        let Some(wire) = &mut self.wire else { return true };
        if !self.delays && !wire.has_room(from) && self.fabric.is_ours() {
            wire.flush();
        }
        wire.has_room(from)
    }

    fn send_packet(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        packet: &Packet,
        icrc: Icrc,
        payload: Payload<'_>,
    ) -> Result<usize, Unsent> {
        let wire = self.wire.as_mut().filter(|_| self.fabric.is_ours());
        wire.ok_or(Unsent::Unreachable)?.send(from, to, packet, icrc, payload, &self.host)
    }

    fn read_payload(&mut self, part: Fragment, payload: Payload<'_>) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0; part.length as usize];
        payload.read(&self.host, part.offset, &mut bytes)?;
        Ok(bytes)
    }

    /// The kernel had no room for them, or so many wait for their time that there is no room there.
    fn has_packets_waiting(&self) -> bool {
        self.wire.as_ref().is_some_and(Wire::has_waiting)
    }

    fn has_delayed(&self) -> bool {
        let in_memory =
            |slot: &u8| self.outgoing[usize::from(*slot)].as_ref().is_some_and(|o| o.producer.has_delayed());
        self.delays && (self.wire.as_ref().is_some_and(Wire::has_delayed) || self.open.iter().any(in_memory))
    }

    fn ring_bells(&mut self) {
        self.send_mads();
        if let Some(wire) = self.wire.as_mut().filter(|_| self.fabric.is_ours()) {
            wire.flush();
            if let Some((address, errno)) = wire.take_refusal() {
                self.happened(LinkEvent::Unsent { address, errno });
            }
        }
        self.publish_and_ring();
    }

    fn fabric_in_words(&self) -> String {
        self.fabric.place()
    }

    fn peer_in_words(&self, slot: u8) -> String {
        let Some(pid) = self.fabric.slot_owner(slot).map(|slot_owner| slot_owner.pid) else {
            return "no process there has such QP numbers".to_owned();
        };
        match self.is_alive(slot) {
            _ if pid == std::process::id() => "such QP numbers are its own".to_owned(),
            Ok(true) => format!("process {pid} there has such QP numbers, and is silent"),
            Ok(false) => format!("process {pid}, which had such QP numbers there, has ended"),
            Err(error) => format!("process {pid} there has such QP numbers, and cannot be watched: {error}"),
        }
    }
}

impl Link {
    /// A payload was not laid into the ring. If a GPU may still write it, nothing more is laid there.
    #[cold]
    fn copy_failed(&mut self, slot: u8, lane: Lane, fault: Fault) -> Unsent {
        if let Some(outgoing) = &mut self.outgoing[usize::from(slot)]
            && outgoing.producer.next(lane).0.may_still_change()
        {
            outgoing.producer.closed = true;
            self.happened(LinkEvent::CopyGivenUp { slot });
        }
        Unsent::Fault(fault)
    }
}

/// How many of `rest` bytes the next record takes: all of a short payload, of a long one what there is room
/// for. The ring is given time to empty, since long pieces are faster, until other queues' records have taken
/// as much room as the shortest piece needs.
#[inline]
fn room_for(
    outgoing: &mut Outgoing,
    lane: Lane,
    head: usize,
    from: &[Segment],
    rest: u32,
) -> Result<u32, Unsent> {
    if rest as usize <= MAX_INLINE {
        return Ok(rest);
    }
    let most = if gpu::touched_by(from) { MAX_GPU_FRAGMENT } else { MAX_FRAGMENT };
    let most = most.min(rest as usize);
    let Some(free) = outgoing.producer.free(lane, head + most.next_multiple_of(8)).checked_sub(head) else {
        // There was room, and a closer look at the receiver's tail found none: it wrote an impossible one.
        return Err(match outgoing.producer.state() {
            ChannelState::Closed => Unsent::Unreachable,
            _ => Unsent::Full,
        });
    };
    let stretch = most.min(MAX_FRAGMENT / 2).min(outgoing.producer.next(lane).0.capacity() / 4);
    let head = outgoing.producer.next(lane).1;
    let since = &mut outgoing.waits_since[lane as usize];
    if free < stretch && head.wrapping_sub(*since.get_or_insert(head)) < MAX_INLINE as u64 {
        return Err(Unsent::Full);
    }
    *since = None;
    Ok(most.min(free & !7) as u32)
}

/// Lays the bytes from `offset` on into a record.
#[inline]
fn fill(ring: &RingMemory, at: u64, payload: Payload<'_>, offset: u32, len: u32) -> Result<(), Fault> {
    match payload {
        Payload::Segments(from) | Payload::Mixed(from) => ring.gather(at, from, offset.into(), len as usize),
        Payload::Inline(bytes) => {
            match bytes.get(offset as usize..).and_then(|rest| rest.get(..len as usize)) {
                Some(bytes) => ring.put(at, bytes),
                None => Err(Fault { addr: 0 }),
            }
        }
        Payload::Nothing => Ok(()),
    }
}
