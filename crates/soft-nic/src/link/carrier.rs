//! The link as the device's carrier.

use std::net::IpAddr;

use mlx5_device::carrier::{
    Carrier, Disposition, Icrc, MAX_DELAY_NS, Message, PathAddress, Payload, Position, Sent, Unsent,
};
use mlx5_device::memory::Fault;
use roce::{Fragment, Now, Packet, Request};

use super::channel::{ChannelState, Lane};
use super::record::{self, Form};
use super::send::{exactly, fill, room_for};
use super::udp::Wire;
use super::{Inbound, Link, LinkEvent, Room, SLOTS};

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
        mut handler: impl FnMut(&Message, &mut Inbound<'_>) -> Disposition,
    ) -> usize {
        self.pass_time(now) + self.poll_records(budget, |inbound| handler(inbound.message, inbound))
    }

    fn poll_wire(
        &mut self,
        now: Now,
        mut handler: impl FnMut(&Message, &mut Inbound<'_>) -> Disposition,
    ) -> usize {
        self.poll_packets(now, |inbound| handler(inbound.message, inbound))
    }

    fn replies_wait(&self, slot: u8) -> bool {
        let mut of_peer = self.incoming.iter().filter(|incoming| incoming.consumer.ends().from == slot);
        of_peer.any(|incoming| incoming.consumer.pending_in(Lane::Reply))
    }

    fn poll_event(&mut self) -> Option<String> {
        self.events.pop_front().map(|event| event.to_string())
    }

    fn send_request(
        &mut self,
        request: &Request,
        path: &PathAddress,
        payload: Payload<'_>,
    ) -> Result<Sent, Unsent> {
        let slot = mlx5_device::slot_of(request.dst_qpn);
        self.need_room(slot, Lane::Request)?;
        let Some(outgoing) = &mut self.outgoing[usize::from(slot)] else { return Err(Unsent::Full) };
        let head = 8 * record::REQUEST_WORDS
            + if record::carries_path(request) { 8 * record::PATH_WORDS } else { 0 };
        let Fragment { offset, length } = request.fragment;
        let mut request = *request;
        let form = match payload {
            // Its bytes come with the reply.
            _ if request.opcode.wants_response() => Form::None,
            Payload::Nothing => exactly(0, length, Form::None)?,
            Payload::Inline(bytes) => exactly(bytes.len(), length, Form::Inline(length))?,
            Payload::Segments(from) => {
                let carried = room_for(outgoing, Lane::Request, head, from, length)?;
                request.fragment.length = carried;
                Form::Inline(carried)
            }
        };
        let (ring, at) = outgoing.producer.next(Lane::Request);
        if let Form::Inline(len) = form
            && let Err(fault) = fill(ring, &self.host, at + head as u64, payload, offset, len)
        {
            return Err(self.copy_failed(slot, Lane::Request, fault));
        }
        let mut words = record::encode_request(&request, form);
        if path.to_port > 1 {
            words[0] = record::to_second_port(words[0]);
        }
        ring.store(at, words);
        if record::carries_path(&request) {
            ring.store(at + 8 * record::REQUEST_WORDS as u64, record::encode_path(path));
        }
        let offset = outgoing.producer.commit(Lane::Request, head + form.padded());
        let position = Position { channel: outgoing.serial, offset };
        self.counters.requests_sent += 1;
        outgoing.note(slot, &mut self.to_publish);
        Ok(Sent { position, carried: request.fragment.length })
    }

    fn send_reply(&mut self, packet: &Packet, mtu: u32, payload: Payload<'_>) -> Result<Sent, Unsent> {
        let slot = mlx5_device::slot_of(packet.dst_qpn);
        self.need_room(slot, Lane::Reply)?;
        let Some(outgoing) = &mut self.outgoing[usize::from(slot)] else { return Err(Unsent::Full) };
        let head = 8 * record::REPLY_WORDS;
        let Fragment { offset, length: rest } = packet.payload;
        let carried = match payload {
            Payload::Nothing => exactly(0, rest, 0)?,
            Payload::Inline(bytes) => exactly(bytes.len(), rest, rest)?,
            Payload::Segments(from) => {
                let room = room_for(outgoing, Lane::Reply, head, from, rest)?;
                if room < rest { room - room % mtu } else { rest }
            }
        };
        let (ring, at) = outgoing.producer.next(Lane::Reply);
        if carried > 0
            && let Err(fault) = fill(ring, &self.host, at + head as u64, payload, offset, carried)
        {
            return Err(self.copy_failed(slot, Lane::Reply, fault));
        }
        ring.store(at, record::encode_reply(packet, carried));
        let offset = outgoing.producer.commit(Lane::Reply, head + carried.next_multiple_of(8) as usize);
        let position = Position { channel: outgoing.serial, offset };
        self.counters.replies_sent += 1;
        outgoing.note(slot, &mut self.to_publish);
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
        fill: impl FnOnce(&mut [u8]) -> Result<(), Fault>,
    ) -> Result<usize, Unsent> {
        let wire = self.wire.as_mut().filter(|_| self.fabric.is_ours());
        wire.ok_or(Unsent::Unreachable)?.send(from, to, packet, icrc, fill)
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
        // What is delayed is shown by `pass_time`, and stays noted until then.
        let delayed = if self.delays { std::mem::take(&mut self.to_publish) } else { Vec::new() };
        self.publish_and_ring();
        if !delayed.is_empty() {
            self.to_publish = delayed;
        }
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
