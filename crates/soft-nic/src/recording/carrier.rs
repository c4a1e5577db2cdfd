//! The link of a device that may be recorded, or replayed: [`Source`] as a carrier.

use std::net::IpAddr;
use std::ops::{Deref, DerefMut};

use mlx5_device::carrier::{
    Carrier, Disposition, Icrc, Inbound, Message, PathAddress, Payload, Position, Sent, Unsent,
};
use mlx5_device::memory::{Fault, Order, Segment};
use roce::{Now, Packet, Reply, Request, ServiceType};

use super::recorder::Recorder;
use super::replayer::Replay;
use super::source::{Source, note};
use super::tag::Tag;
use super::values::{Facts, ReplyPiece};
use crate::link::Link;

impl Deref for Source<Link> {
    type Target = Link;

    fn deref(&self) -> &Link {
        match self {
            Source::Live(link) | Source::Recorded(link, _) => link,
            Source::Replayed(_) => unreachable!("only the device uses the link in a replay"),
        }
    }
}

impl DerefMut for Source<Link> {
    fn deref_mut(&mut self) -> &mut Link {
        match self {
            Source::Live(link) | Source::Recorded(link, _) => link,
            Source::Replayed(_) => unreachable!("only the device uses the link in a replay"),
        }
    }
}

/// A message that arrived.
pub enum Arrived<'a> {
    Live(&'a mut dyn Inbound),
    Recorded(&'a mut dyn Inbound, &'a Recorder),
    Replayed(Facts, &'a Replay),
}

impl Inbound for Arrived<'_> {
    fn path(&self) -> Option<PathAddress> {
        match self {
            Arrived::Live(inbound) | Arrived::Recorded(inbound, _) => inbound.path(),
            Arrived::Replayed((path, ..), _) => *path,
        }
    }

    fn to_port(&self) -> Option<u8> {
        match self {
            Arrived::Live(inbound) | Arrived::Recorded(inbound, _) => inbound.to_port(),
            Arrived::Replayed((_, port, _), _) => *port,
        }
    }

    fn payload_len(&self) -> u32 {
        match self {
            Arrived::Live(inbound) | Arrived::Recorded(inbound, _) => inbound.payload_len(),
            Arrived::Replayed((.., len), _) => *len,
        }
    }

    fn copy_into(&mut self, to: &[Segment], order: Order) -> Result<(), Fault> {
        match self {
            Arrived::Live(inbound) => inbound.copy_into(to, order),
            Arrived::Recorded(inbound, recorder) => {
                let copied = inbound.copy_into(to, order);
                recorder.entry(Tag::CopyInto, (to, order, copied));
                copied
            }
            Arrived::Replayed(_, replay) => replay.told(Tag::CopyInto, (to, order)),
        }
    }

    fn copy_to_buffer(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        match self {
            Arrived::Live(inbound) => inbound.copy_to_buffer(out),
            Arrived::Recorded(inbound, recorder) => {
                let copied = inbound.copy_to_buffer(out);
                recorder.entry(Tag::CopyToBuffer, (out.len(), copied.map(|()| &*out)));
                copied
            }
            Arrived::Replayed(_, replay) => replay.bytes(Tag::CopyToBuffer, out.len(), out),
        }
    }
}

/// Notes a message before the device has it.
fn recorded<'a>(recorder: &'a Recorder, message: &Message, inbound: &'a mut dyn Inbound) -> Arrived<'a> {
    let facts = (inbound.path(), inbound.to_port(), inbound.payload_len());
    recorder.entry(Tag::Message, (message, facts));
    Arrived::Recorded(inbound, recorder)
}

/// Hands on the messages that had come, and says what this counted for.
fn replayed(
    replay: &Replay,
    tag: Tag,
    mut handler: impl FnMut(&Message, &mut Arrived<'_>) -> Disposition,
) -> usize {
    while let Some((message, facts)) = replay.next_message() {
        handler(&message, &mut Arrived::Replayed(facts, replay));
    }
    replay.answer(tag, ())
}

impl Carrier for Source<Link> {
    type Inbound<'a> = Arrived<'a>;

    fn slot(&self) -> u8 {
        self.ask(Tag::Slot, (), Carrier::slot)
    }

    fn has_wire(&self) -> bool {
        self.ask(Tag::HasWire, (), Carrier::has_wire)
    }

    fn set_delay(&mut self, delay_ns: u64) {
        if let Source::Live(link) | Source::Recorded(link, _) = self {
            link.set_delay(delay_ns);
        }
    }

    fn poll_rings(
        &mut self,
        now: Now,
        budget: usize,
        mut handler: impl FnMut(&Message, &mut Arrived<'_>) -> Disposition,
    ) -> usize {
        match self {
            Source::Live(link) => {
                link.poll_rings(now, budget, |message, inbound| handler(message, &mut Arrived::Live(inbound)))
            }
            Source::Recorded(link, recorder) => {
                let done = link.poll_rings(now, budget, |message, inbound| {
                    handler(message, &mut recorded(recorder, message, inbound))
                });
                note(recorder, Tag::Rings, (), done)
            }
            Source::Replayed(replay) => replayed(replay, Tag::Rings, handler),
        }
    }

    fn poll_wire(
        &mut self,
        now: Now,
        mut handler: impl FnMut(&Message, &mut Arrived<'_>) -> Disposition,
    ) -> usize {
        match self {
            Source::Live(link) => {
                link.poll_wire(now, |message, inbound| handler(message, &mut Arrived::Live(inbound)))
            }
            Source::Recorded(link, recorder) => {
                let done = link.poll_wire(now, |message, inbound| {
                    handler(message, &mut recorded(recorder, message, inbound))
                });
                note(recorder, Tag::Wire, (), done)
            }
            Source::Replayed(replay) => replayed(replay, Tag::Wire, handler),
        }
    }

    fn replies_wait(&self, slot: u8) -> bool {
        self.ask(Tag::RepliesWait, slot, |link| link.replies_wait(slot))
    }

    fn poll_event(&mut self) -> Option<String> {
        self.ask_mut(Tag::LinkEvent, (), Carrier::poll_event)
    }

    fn send_request(
        &mut self,
        request: &Request,
        path: &PathAddress,
        payload: Payload<'_>,
    ) -> Result<Sent, Unsent> {
        // Of connected services the path is the port alone.
        let datagram = (request.service == ServiceType::Ud).then_some(path);
        let told = (request, path.to_port, datagram, payload);
        self.tell_mut(Tag::SendRequest, told, |link| link.send_request(request, path, payload))
    }

    fn send_reply(&mut self, reply: &Reply, payload: Payload<'_>, offset: u32) -> Result<Sent, Unsent> {
        let told = (ReplyPiece(*reply, offset, 0, true), payload, offset);
        self.tell_mut(Tag::SendReply, told, |link| link.send_reply(reply, payload, offset))
    }

    fn has_reply_room(&mut self, slot: u8) -> bool {
        !self.ask_mut(Tag::NoReplyRoom, slot, |link| !link.has_reply_room(slot))
    }

    fn consumed(&mut self, slot: u8, position: Position) -> bool {
        !self.ask_mut(Tag::NotConsumed, (slot, position), |link| !link.consumed(slot, position))
    }

    fn has_wire_room(&mut self, from: IpAddr) -> bool {
        !self.ask_mut(Tag::NoWireRoom, from, |link| !link.has_wire_room(from))
    }

    fn send_packet(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        packet: &Packet,
        icrc: Icrc,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Fault>,
    ) -> Result<usize, Unsent> {
        match self {
            Source::Live(link) => link.send_packet(from, to, packet, icrc, fill),
            Source::Recorded(link, recorder) => {
                let sent = link.send_packet(from, to, packet, icrc, |out| {
                    recorder.fill(Some(out.len()));
                    let filled = fill(out);
                    recorder.fill(None);
                    filled
                });
                recorder.entry(Tag::SendPacket, ((packet, from, to, icrc), sent));
                sent
            }
            Source::Replayed(replay) => {
                replay.fill(fill);
                replay.told(Tag::SendPacket, (packet, from, to, icrc))
            }
        }
    }

    fn loses_packet(&mut self, from: IpAddr, to: IpAddr, packet: &Packet) {
        let told = (packet, from, to, Icrc::Right);
        // It has no way to its peer.
        let _ = self.tell_mut(Tag::SendPacket, told, |_| Err::<usize, _>(Unsent::Unreachable));
    }

    fn has_packets_waiting(&self) -> bool {
        self.ask(Tag::PacketsWait, (), Carrier::has_packets_waiting)
    }

    /// The device does not go by it.
    fn has_delayed(&self) -> bool {
        match self {
            Source::Live(link) | Source::Recorded(link, _) => link.has_delayed(),
            Source::Replayed(_) => false,
        }
    }

    fn ring_bells(&mut self) {
        if let Source::Live(link) | Source::Recorded(link, _) = self {
            link.ring_bells();
        }
    }

    fn fabric_in_words(&self) -> String {
        self.ask(Tag::Words, (), Carrier::fabric_in_words)
    }

    fn peer_in_words(&self, slot: u8) -> String {
        self.ask(Tag::Words, slot, |link| link.peer_in_words(slot))
    }
}
