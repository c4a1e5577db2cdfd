//! Joins a test's devices: shared-memory records for a slot, packets to an address, each noted by its hash. A
//! message is one record in an endless ring: soft-nic's link tests the rest. The impairment loses and delays.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::rc::Rc;

use mlx5_device::carrier::{
    Addressing, Carrier, Disposition, Icrc, Inbound, PathAddress, Payload, Position, Sent, Unsent,
};
use mlx5_device::config::{LinkPath, NicConfig};
use mlx5_device::memory::{Fault, Memory, Order, Segment};
use roce::wire::icrc::ICRC_BYTES;
use roce::{Fragment, Now, Packet, ServiceType};

use crate::machine::Arena;

/// Time that a packet takes, ns.
const LATENCY_NS: u64 = 2_000;

/// All devices of a test, and what went from one to another by address.
#[derive(Default)]
pub struct Fabric {
    now: Now,
    /// By slot.
    lanes: Vec<Lanes>,
    /// No record of a request has room.
    pub full: bool,
    /// No reply has room.
    pub replies_full: bool,
    /// Of every packet that leaves a device its time, sender and bytes.
    pub hashes: Vec<u64>,
}

/// What is on its way to one device.
#[derive(Default)]
struct Lanes {
    addresses: Vec<IpAddr>,
    replies: VecDeque<Message>,
    requests: VecDeque<Message>,
    /// Requests sent and taken, by the slot of their sender.
    sent: Vec<u64>,
    taken: Vec<u64>,
    packets: VecDeque<Message>,
}

struct Message {
    due: Now,
    from: u8,
    packet: Packet,
    payload: Vec<u8>,
    addressing: Addressing,
}

impl Lanes {
    fn of_records(&mut self, requests: bool) -> &mut VecDeque<Message> {
        if requests { &mut self.requests } else { &mut self.replies }
    }
}

pub fn hash_of(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// The carrier of one device.
pub struct End {
    slot: u8,
    has_wire: bool,
    pub fabric: Rc<RefCell<Fabric>>,
    /// Memory of the device's program.
    memory: Arena,
    /// Records taken.
    pub received: usize,
}

impl End {
    pub fn join(fabric: &Rc<RefCell<Fabric>>, config: &NicConfig, memory: Arena) -> End {
        let lanes = &mut fabric.borrow_mut().lanes;
        let slot = lanes.len() as u8;
        let addresses = (0..config.all_ports()).flat_map(|place| config.addresses(place)).collect();
        lanes.push(Lanes { addresses, ..Lanes::default() });
        let slots = lanes.len();
        for to in lanes {
            to.sent.resize(slots, 0);
            to.taken.resize(slots, 0);
        }
        End { slot, has_wire: config.path == LinkPath::Wire, fabric: fabric.clone(), memory, received: 0 }
    }

    fn deliver(
        &self,
        message: &Message,
        handler: &mut impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    ) -> Disposition {
        let Message { packet, payload, addressing, .. } = message;
        handler(packet, &mut Arrived { payload, memory: &self.memory, addressing: *addressing })
    }
}

impl Carrier for End {
    type Inbound<'a> = Arrived<'a>;

    fn slot(&self) -> u8 {
        self.slot
    }

    fn has_wire(&self) -> bool {
        self.has_wire
    }

    fn set_delay(&mut self, delay_ns: u64) {
        assert_eq!(delay_ns, 0, "this fabric has one latency");
    }

    fn poll_rings(
        &mut self,
        now: Now,
        budget: usize,
        mut handler: impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    ) -> usize {
        self.fabric.borrow_mut().now = now;
        let (mut count, slot) = (0, usize::from(self.slot));
        for requests in [false, true] {
            while count < budget {
                let next = self.fabric.borrow_mut().lanes[slot].of_records(requests).pop_front();
                let Some(message) = next else { break };
                let disposition = self.deliver(&message, &mut handler);
                let lanes = &mut self.fabric.borrow_mut().lanes[slot];
                if disposition == Disposition::NotNow {
                    lanes.of_records(requests).push_front(message);
                    break;
                }
                lanes.taken[usize::from(message.from)] += u64::from(requests);
                count += 1;
            }
        }
        self.received += count;
        count
    }

    fn poll_wire(
        &mut self,
        now: Now,
        mut handler: impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    ) -> usize {
        let mut count = 0;
        loop {
            let next = {
                let queue = &mut self.fabric.borrow_mut().lanes[usize::from(self.slot)].packets;
                if queue.front().is_some_and(|next| next.due <= now) { queue.pop_front() } else { None }
            };
            let Some(message) = next else { return count };
            self.deliver(&message, &mut handler);
            count += 1;
        }
    }

    fn replies_wait(&self, slot: u8) -> bool {
        let replies = &self.fabric.borrow().lanes[usize::from(self.slot)].replies;
        replies.iter().any(|reply| reply.from == slot)
    }

    fn poll_event(&mut self) -> Option<String> {
        None
    }

    fn send_record(
        &mut self,
        packet: &Packet,
        _mtu: u32,
        path: &PathAddress,
        payload: Payload<'_>,
    ) -> Result<Sent, Unsent> {
        let payload = self.read_payload(packet.payload, payload)?;
        let mut fabric = self.fabric.borrow_mut();
        let (due, to, from) = (fabric.now, mlx5_device::slot_of(packet.dst_qpn), self.slot);
        if fabric.full && packet.content.is_request() {
            return Err(Unsent::Full);
        }
        let lanes = fabric.lanes.get_mut(usize::from(to)).ok_or(Unsent::Unreachable)?;
        let datagram = packet.service == ServiceType::Ud;
        let addressing = Addressing {
            path: datagram.then_some(PathAddress { to_port: 0, ..*path }),
            to_port: Some(path.to_port.max(1)),
            addresses: None,
        };
        let (carried, requests) = (packet.payload.length, packet.content.is_request());
        let packet = Packet { payload: Fragment { offset: 0, length: carried }, ..*packet };
        lanes.of_records(requests).push_back(Message { due, from, packet, payload, addressing });
        let sent = &mut lanes.sent[usize::from(from)];
        *sent += u64::from(requests);
        Ok(Sent { position: Position { channel: to.into(), offset: *sent }, carried })
    }

    fn has_reply_room(&mut self, _slot: u8) -> bool {
        !self.fabric.borrow().replies_full
    }

    fn consumed(&mut self, slot: u8, position: Position) -> bool {
        let fabric = self.fabric.borrow();
        fabric
            .lanes
            .get(usize::from(slot))
            .is_none_or(|to| to.taken[usize::from(self.slot)] >= position.offset)
    }

    fn has_wire_room(&mut self, _from: IpAddr) -> bool {
        true
    }

    fn send_packet(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        packet: &Packet,
        icrc: Icrc,
        payload: Payload<'_>,
    ) -> Result<usize, Unsent> {
        let payload = self.read_payload(packet.payload, payload)?;
        let bytes = packet.to_wire(&payload).ok_or(Unsent::Unreachable)?;
        let mut headers = vec![0; bytes.header_bytes()];
        bytes.emit_headers(&mut headers).map_err(|_| Unsent::Unreachable)?;
        let mut fabric = self.fabric.borrow_mut();
        let now = fabric.now;
        fabric.hashes.push(hash_of((now.0, self.slot, &headers, &payload)));
        let len = headers.len() + payload.len().next_multiple_of(4) + ICRC_BYTES;
        // A receiver drops what it computes another ICRC of.
        let owner = fabric.lanes.iter_mut().find(|lanes| lanes.addresses.contains(&to));
        if let Some(lanes) = owner.filter(|_| icrc == Icrc::Right) {
            // The offset is not in a packet's bytes.
            let packet = Packet { payload: Fragment { offset: 0, ..packet.payload }, ..*packet };
            let addressing = Addressing { addresses: Some((from, to)), ..Addressing::default() };
            let due = now.after(LATENCY_NS);
            lanes.packets.push_back(Message { due, from: self.slot, packet, payload, addressing });
        }
        Ok(len)
    }

    fn read_payload(&mut self, part: Fragment, payload: Payload<'_>) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0; part.length as usize];
        payload.read(&self.memory, part.offset, &mut bytes)?;
        Ok(bytes)
    }

    fn has_packets_waiting(&self) -> bool {
        false
    }

    fn has_delayed(&self) -> bool {
        let fabric = self.fabric.borrow();
        fabric.lanes.iter().flat_map(|lanes| &lanes.packets).any(|packet| packet.due > fabric.now)
    }

    fn ring_bells(&mut self) {}

    fn fabric_in_words(&self) -> String {
        "a test's fabric".to_owned()
    }

    fn peer_in_words(&self, slot: u8) -> String {
        format!("slot {slot} of the fabric is silent")
    }
}

/// A message that arrived.
pub struct Arrived<'a> {
    payload: &'a [u8],
    memory: &'a Arena,
    addressing: Addressing,
}

impl Inbound for Arrived<'_> {
    fn addressing(&self) -> &Addressing {
        &self.addressing
    }

    fn copy_into(&mut self, to: &[Segment], _order: Order) -> Result<(), Fault> {
        let mut rest = self.payload;
        for segment in to {
            let (now, later) = rest.split_at((segment.len as usize).min(rest.len()));
            self.memory.write(segment.addr, now, false)?;
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(Fault { addr: 0 }) }
    }

    fn copy_to_buffer(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        if out.len() != self.payload.len() {
            return Err(Fault { addr: 0 });
        }
        out.copy_from_slice(self.payload);
        Ok(())
    }
}
