//! The link of a device that is recorded or replayed: [`Source`] as a carrier.

use std::net::IpAddr;
use std::sync::Mutex;

use mlx5_device::carrier::{
    Addressing, Carrier, Disposition, Icrc, Inbound, PathAddress, Payload, Position, Sent, Unsent,
};
use mlx5_device::memory::{Fault, Order, Segment};
use roce::{Fragment, Now, Packet, ServiceType};

use super::answer::{self, Answer};
use super::entry::{Place, Tag};
use super::events::Event;
use super::recorder::Recorder;
use super::replayer::Replay;
use super::source::{Source, ask, asked, unrecorded};
use crate::link::Link;
use crate::link::record::REQUEST_WORDS;
use crate::os::locked;

/// A message, with what is known of it beside its bytes.
pub struct Arrived<'a> {
    addressing: Addressing,
    payload: Source<&'a mut dyn Inbound, &'a Recorder, &'a Mutex<Replay>>,
}

impl Inbound for Arrived<'_> {
    fn addressing(&self) -> &Addressing {
        &self.addressing
    }

    fn copy_into(&mut self, to: &[Segment], order: Order) -> Result<(), Fault> {
        ask!(&mut self.payload, Tag::CopyInto, (to, order), inbound => inbound.copy_into(to, order))
    }

    fn copy_to_buffer(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        match &mut self.payload {
            Source::Recorded(inbound, recorder) => {
                let copied = inbound.copy_to_buffer(out);
                recorder.note(Tag::CopyToBuffer, &out.len());
                recorder.copy(Tag::CopyToBuffer, out, copied);
                copied
            }
            Source::Replayed(replay) => locked(replay).copy(Tag::CopyToBuffer, &out.len(), out),
        }
    }
}

/// Polls the link; records each message before the device has it, and what the link's count is beyond them.
pub(super) fn recorded(
    recorder: &Recorder,
    tag: Tag,
    handler: &mut impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    poll: impl FnOnce(&mut dyn FnMut(&Packet, &[u64; REQUEST_WORDS], &mut dyn Inbound) -> Disposition) -> usize,
) -> usize {
    let mut messages = 0;
    let done = poll(&mut |packet, words, inbound| {
        messages += 1;
        let addressing = *inbound.addressing();
        recorder.packet(packet, words, &addressing);
        let mut arrived = Arrived { addressing, payload: Source::Recorded(inbound, recorder) };
        let disposition = handler(packet, &mut arrived);
        recorder.note(Tag::Disposition, &disposition);
        disposition
    });
    recorder.note(tag, &());
    done.wrapping_sub(messages).record(recorder, tag, Place::of(tag));
    done
}

/// Hands on the messages that had come, and says what this counted for.
pub(super) fn replayed(
    replay: &Mutex<Replay>,
    tag: Tag,
    handler: &mut impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
) -> usize {
    let mut messages = 0_usize;
    while let Some((packet, addressing)) = { locked(replay).next_packet() } {
        messages += 1;
        let disposition = handler(&packet, &mut Arrived { addressing, payload: Source::Replayed(replay) });
        locked(replay).note(Tag::Disposition, &disposition);
    }
    messages.wrapping_add(answer::replayed(replay, tag, Place::of(tag), &(), |_| None))
}

impl Carrier for Source<Link> {
    type Inbound<'a> = Arrived<'a>;

    asked! { self:
        fn slot(&) -> u8 = Slot;
        fn has_wire(&) -> bool = HasWire;
        fn replies_wait(&; slot: u8) -> bool = RepliesWait;
        fn has_reply_room(&mut; slot: u8) -> bool = ReplyRoom;
        fn consumed(&mut; slot: u8; position: Position) -> bool = Consumed;
        fn has_wire_room(&mut; from: IpAddr) -> bool = WireRoom;
        fn has_packets_waiting(&) -> bool = PacketsWait;
        fn set_delay(&mut; delay_ns: u64) -> () = Delay;
        fn ring_bells(&mut) -> () = Bells;
    }

    unrecorded! { self:
        fn has_delayed(&) -> bool = false;
        fn poll_event(&mut) -> Option<String> = None;
        fn fabric_in_words(&) -> String = String::new();
        fn peer_in_words(&; slot: u8) -> String = String::new();
    }

    fn poll_rings(
        &mut self,
        now: Now,
        budget: usize,
        mut handler: impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    ) -> usize {
        match self {
            Source::Recorded(link, recorder) => recorded(recorder, Tag::Rings, &mut handler, |take| {
                link.poll_rings(now, budget, |packet, inbound| take(packet, inbound.words, inbound))
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
                link.poll_wire(now, |packet, inbound| take(packet, inbound.words, inbound))
            }),
            Source::Replayed(replay) => replayed(replay, Tag::Wire, &mut handler),
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
        let event = |sent: &Result<Sent, Unsent>| Event::of_record(packet, sent);
        ask!(self, Tag::SendRecord, asked, link => link.send_record(packet, mtu, path, payload), event)
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
        let event = |sent: &Result<usize, Unsent>| Event::of_packet(packet, sent);
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
        let event = |sent: &Result<usize, Unsent>| Event::of_packet(packet, sent);
        let _ = ask!(self, Tag::SendPacket, asked, _link => lost, event);
    }
}
