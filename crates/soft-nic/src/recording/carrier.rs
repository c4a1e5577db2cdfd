//! The link of a device that is recorded or replayed: [`Source`] as a carrier.

use std::net::IpAddr;

use mlx5_device::carrier::{
    Carrier, Disposition, Icrc, Inbound, PathAddress, Payload, Position, Sent, Unsent,
};
use mlx5_device::memory::{Fault, Order, Segment};
use roce::{Fragment, Now, Packet, ServiceType};

use super::entry::{Place, Question, Tag};
use super::events::{Event, Objects};
use super::message::Facts;
use super::recorder::Recorder;
use super::replayer::Replay;
use super::source::{Source, ask, record};
use crate::link::Link;

pub enum Arrived<'a> {
    Recorded(&'a mut dyn Inbound, &'a Recorder),
    /// With the bytes of its payload.
    Replayed(Facts, u32, &'a Replay),
}

/// What is known of a message beside its bytes, and what says it in a replay.
macro_rules! known {
    ($($name:ident() -> $answer:ty, $facts:pat, $bytes:pat => $replayed:expr;)*) => { $(
        fn $name(&self) -> $answer {
            match self {
                Arrived::Recorded(inbound, _) => inbound.$name(),
                Arrived::Replayed($facts, $bytes, _) => $replayed,
            }
        }
    )* };
}

impl Inbound for Arrived<'_> {
    known! {
        path() -> Option<PathAddress>, facts, _ => facts.path;
        to_port() -> Option<u8>, facts, _ => facts.to_port;
        addresses() -> Option<(IpAddr, IpAddr)>, facts, _ => facts.addresses;
        payload_len() -> u32, _, bytes => *bytes;
    }

    fn copy_into(&mut self, to: &[Segment], order: Order) -> Result<(), Fault> {
        match self {
            Arrived::Recorded(inbound, recorder) => {
                let copied = inbound.copy_into(to, order);
                record(recorder, Tag::CopyInto, &(to, order), copied)
            }
            Arrived::Replayed(.., replay) => {
                replay.ask(Tag::CopyInto, Place::of(Tag::CopyInto), &(to, order), |_, _| None)
            }
        }
    }

    fn copy_to_buffer(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        match self {
            Arrived::Recorded(inbound, recorder) => {
                let copied = inbound.copy_to_buffer(out);
                recorder.note(Tag::CopyToBuffer, &out.len());
                recorder.copy(Tag::CopyToBuffer, out, copied);
                copied
            }
            Arrived::Replayed(.., replay) => replay.copy(Tag::CopyToBuffer, &out.len(), out),
        }
    }
}

/// Polls the link, and records each message before the device has it; of the number that the link reports, what it is beyond theirs.
pub(super) fn recorded(
    recorder: &Recorder,
    tag: Tag,
    handler: &mut impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    poll: impl FnOnce(&mut dyn FnMut(&Packet, &mut dyn Inbound) -> Disposition) -> usize,
) -> usize {
    let mut messages = 0;
    let done = poll(&mut |packet, inbound| {
        messages += 1;
        recorder.packet(packet, inbound);
        let disposition = handler(packet, &mut Arrived::Recorded(inbound, recorder));
        recorder.note(Tag::Disposition, &disposition);
        disposition
    });
    record(recorder, tag, &(), done.wrapping_sub(messages));
    done
}

/// Hands on the messages that had come, and says what this counted for.
pub(super) fn replayed(
    replay: &Replay,
    tag: Tag,
    handler: &mut impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
) -> usize {
    let mut messages = 0_usize;
    while let Some((packet, facts)) = replay.next_packet() {
        messages += 1;
        let bytes = packet.payload.length;
        let disposition = handler(&packet, &mut Arrived::Replayed(facts, bytes, replay));
        replay.note(Tag::Disposition, &disposition);
    }
    messages.wrapping_add(replay.ask(tag, Place::of(tag), &(), |_, _| None))
}

impl Carrier for Source<Link> {
    type Inbound<'a> = Arrived<'a>;

    fn slot(&self) -> u8 {
        ask!(self, Tag::Slot, (), link => Carrier::slot(link))
    }

    fn has_wire(&self) -> bool {
        ask!(self, Tag::HasWire, (), link => link.has_wire())
    }

    fn set_delay(&mut self, delay_ns: u64) {
        match self {
            Source::Recorded(link, recorder) => {
                link.set_delay(delay_ns);
                recorder.note(Tag::Delay, &delay_ns);
            }
            Source::Replayed(replay) => replay.note(Tag::Delay, &delay_ns),
        }
    }

    fn poll_rings(
        &mut self,
        now: Now,
        budget: usize,
        mut handler: impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    ) -> usize {
        match self {
            Source::Recorded(link, recorder) => recorded(recorder, Tag::Rings, &mut handler, |take| {
                link.poll_rings(now, budget, |packet, inbound| take(packet, inbound))
            }),
            Source::Replayed(replay) => replayed(replay, Tag::Rings, &mut handler),
        }
    }

    fn poll_wire(
        &mut self,
        now: Now,
        mut handler: impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    ) -> usize {
        match self {
            Source::Recorded(link, recorder) => recorded(recorder, Tag::Wire, &mut handler, |take| {
                link.poll_wire(now, |packet, inbound| take(packet, inbound))
            }),
            Source::Replayed(replay) => replayed(replay, Tag::Wire, &mut handler),
        }
    }

    fn replies_wait(&self, slot: u8) -> bool {
        ask!(self, Tag::RepliesWait, slot, link => link.replies_wait(slot))
    }

    fn poll_event(&mut self) -> Option<String> {
        match self {
            Source::Recorded(link, recorder) => {
                let event = link.poll_event();
                recorder.note(Tag::LinkEvent, &());
                match &event {
                    None => recorder.guessed(),
                    Some(event) => recorder.bytes(Tag::LinkEvent, event.as_bytes()),
                }
                event
            }
            Source::Replayed(replay) => replay.text(Tag::LinkEvent, &()),
        }
    }

    fn send_record(
        &mut self,
        packet: &Packet,
        mtu: u32,
        path: &PathAddress,
        payload: Payload<'_>,
    ) -> Result<Sent, Unsent> {
        // Of connected services the path is the port alone.
        let datagram = (packet.service == ServiceType::Ud).then_some(path);
        let asked = (packet, mtu, path.to_port, datagram, payload);
        let event = |_: &Objects, sent: &Result<Sent, Unsent>| Event::of_record(packet, sent);
        ask!(self, Tag::SendRecord, asked, link => link.send_record(packet, mtu, path, payload), event)
    }

    fn has_reply_room(&mut self, slot: u8) -> bool {
        ask!(self, Tag::ReplyRoom, slot, link => link.has_reply_room(slot))
    }

    fn consumed(&mut self, slot: u8, position: Position) -> bool {
        ask!(self, Tag::Consumed, (slot, position), link => link.consumed(slot, position))
    }

    fn has_wire_room(&mut self, from: IpAddr) -> bool {
        ask!(self, Tag::WireRoom, from, link => link.has_wire_room(from))
    }

    fn send_packet(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        packet: &Packet,
        icrc: Icrc,
        payload: Payload<'_>,
    ) -> Result<usize, Unsent> {
        // An overtaken packet's bytes are zeros in a replay; their length is the packet's.
        let known = if let Payload::Inline(_) = payload { Payload::Nothing } else { payload };
        let asked = (packet, from, to, icrc, known);
        let event = |objects: &Objects, sent: &Result<usize, Unsent>| objects.packet(packet, sent.err());
        ask!(self, Tag::SendPacket, asked, link => link.send_packet(from, to, packet, icrc, payload), event)
    }

    /// The bytes are not kept.
    fn read_payload(&mut self, part: Fragment, payload: Payload<'_>) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0; part.length as usize];
        let read: Result<(), Fault> = ask!(self, Tag::ReadPayload, (part, payload), link => {
            link.read_payload(part, payload).map(|read| bytes = read)
        });
        read.map(|()| bytes)
    }

    fn loses_packet(&mut self, from: IpAddr, to: IpAddr, packet: &Packet) {
        let asked = (packet, from, to, Icrc::Right, Payload::Nothing);
        // It has no way to its peer.
        let lost = Err::<usize, _>(Unsent::Unreachable);
        let event = |objects: &Objects, sent: &Result<usize, Unsent>| objects.packet(packet, sent.err());
        let _ = ask!(self, Tag::SendPacket, asked, _link => lost, event);
    }

    fn has_packets_waiting(&self) -> bool {
        ask!(self, Tag::PacketsWait, (), link => link.has_packets_waiting())
    }

    /// The device does not go by it.
    fn has_delayed(&self) -> bool {
        match self {
            Source::Recorded(link, _) => link.has_delayed(),
            Source::Replayed(_) => false,
        }
    }

    fn ring_bells(&mut self) {
        match self {
            Source::Recorded(link, recorder) => {
                link.ring_bells();
                recorder.note(Tag::Bells, &());
            }
            Source::Replayed(replay) => replay.note(Tag::Bells, &()),
        }
    }

    fn fabric_in_words(&self) -> String {
        words(self, &(), Carrier::fabric_in_words)
    }

    fn peer_in_words(&self, slot: u8) -> String {
        words(self, &slot, |link| link.peer_in_words(slot))
    }
}

fn words(source: &Source<Link>, asked: &impl Question, answer: impl FnOnce(&Link) -> String) -> String {
    match source {
        Source::Recorded(link, recorder) => {
            let words = answer(link);
            recorder.note(Tag::Words, asked);
            recorder.bytes(Tag::Words, words.as_bytes());
            words
        }
        Source::Replayed(replay) => replay.text(Tag::Words, asked).unwrap_or_default(),
    }
}
