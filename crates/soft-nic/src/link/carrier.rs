//! The link as the device's carrier.

use std::net::IpAddr;

use mlx5_device::carrier::{
    Carrier, Disposition, Icrc, MAX_DELAY_NS, Message, PathAddress, Payload, Position, Sent, Unsent,
};
use mlx5_device::memory::Fault;
use roce::{Now, Packet, Reply, Request};

use super::shared_memory::{ChannelState, Lane};
use super::udp::Wire;
use super::{Inbound, Link, Room, SLOTS, SendError};

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
            Link::ring_bells(self);
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
        Link::poll_event(self).map(|event| event.to_string())
    }

    fn send_request(
        &mut self,
        request: &Request,
        path: &PathAddress,
        payload: Payload<'_>,
    ) -> Result<Sent, Unsent> {
        Link::send_request(self, request, path, payload).map_err(Unsent::from)
    }

    fn send_reply(&mut self, reply: &Reply, payload: Payload<'_>, offset: u32) -> Result<Sent, Unsent> {
        Link::send_reply(self, reply, payload, offset).map_err(Unsent::from)
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
        wire.ok_or(Unsent::NoWay)?.send(from, to, packet, icrc, fill)
    }

    /// The kernel had no room for them, or so many wait for their time that there is no room there.
    fn has_packets_waiting(&self) -> bool {
        self.wire.as_ref().is_some_and(Wire::has_waiting)
    }

    fn is_under_way(&self) -> bool {
        let in_memory =
            |slot: &u8| self.outgoing[usize::from(*slot)].as_ref().is_some_and(|o| o.producer.is_under_way());
        self.delays && (self.wire.as_ref().is_some_and(Wire::is_under_way) || self.open.iter().any(in_memory))
    }

    fn ring_bells(&mut self) {
        Link::ring_bells(self);
    }

    fn place(&self) -> String {
        self.fabric.place()
    }

    fn peer_in_words(&self, slot: u8) -> String {
        let Some(pid) = self.fabric.occupant(slot).map(|occupant| occupant.pid) else {
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

impl From<SendError> for Unsent {
    fn from(error: SendError) -> Unsent {
        match error {
            SendError::Full => Unsent::Full,
            SendError::NoPeer(_) => Unsent::NoWay,
            SendError::LocalFault(fault) => Unsent::Fault(fault),
            SendError::Length { .. } => Unsent::Fault(Fault { addr: 0 }),
        }
    }
}
