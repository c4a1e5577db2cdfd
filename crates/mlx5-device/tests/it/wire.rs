//! A wire between two devices: packets with a latency, each of them noted by its hash. What is lost the devices' impairment loses.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::rc::Rc;

use mlx5_device::carrier::{
    Addressing, Carrier, Disposition, Icrc, Inbound, PathAddress, Payload, Position, Sent, Unsent,
};
use mlx5_device::memory::{Fault, Memory, Order, Segment};
use roce::wire::icrc::ICRC_BYTES;
use roce::{Fragment, Now, Packet};

use crate::machine::Arena;

/// Time that a packet takes, ns.
const LATENCY_NS: u64 = 2_000;

/// Both directions of the wire, and all that went over it.
pub struct Wire {
    now: Now,
    /// Packets under way to each end.
    to: [VecDeque<InFlight>; 2],
    /// Of every packet that leaves a device its time, sender and bytes.
    pub hashes: Vec<u64>,
}

struct InFlight {
    due: Now,
    from: IpAddr,
    at: IpAddr,
    packet: Packet,
    payload: Vec<u8>,
}

impl Wire {
    pub fn new() -> Rc<RefCell<Wire>> {
        let to = [VecDeque::new(), VecDeque::new()];
        Rc::new(RefCell::new(Wire { now: Now(0), to, hashes: Vec::new() }))
    }
}

pub fn hash_of(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// One end of a wire: the carrier of a device.
pub struct End {
    pub side: usize,
    pub wire: Rc<RefCell<Wire>>,
    /// Memory of the device's program.
    pub memory: Arena,
}

impl Carrier for End {
    type Inbound<'a> = Arrived<'a>;

    fn slot(&self) -> u8 {
        self.side as u8
    }

    fn has_wire(&self) -> bool {
        true
    }

    fn set_delay(&mut self, delay_ns: u64) {
        assert_eq!(delay_ns, 0, "this wire has one latency");
    }

    fn poll_rings(
        &mut self,
        now: Now,
        _budget: usize,
        _handler: impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    ) -> usize {
        self.wire.borrow_mut().now = now;
        0
    }

    fn poll_wire(
        &mut self,
        now: Now,
        mut handler: impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    ) -> usize {
        let mut count = 0;
        loop {
            let InFlight { from, at, packet, payload, .. } = {
                let queue = &mut self.wire.borrow_mut().to[self.side];
                match queue.front().is_some_and(|next| next.due <= now) {
                    true => queue.pop_front().unwrap(),
                    false => return count,
                }
            };
            let addressing = Addressing { addresses: Some((from, at)), ..Addressing::default() };
            handler(&packet, &mut Arrived { payload: &payload, memory: &self.memory, addressing });
            count += 1;
        }
    }

    fn replies_wait(&self, _slot: u8) -> bool {
        false
    }

    fn poll_event(&mut self) -> Option<String> {
        None
    }

    fn send_record(&mut self, _: &Packet, _: u32, _: &PathAddress, _: Payload<'_>) -> Result<Sent, Unsent> {
        Err(Unsent::Unreachable)
    }

    fn has_reply_room(&mut self, _slot: u8) -> bool {
        true
    }

    fn consumed(&mut self, _slot: u8, _position: Position) -> bool {
        true
    }

    fn has_wire_room(&mut self, _from: IpAddr) -> bool {
        true
    }

    fn send_packet(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        packet: &Packet,
        _icrc: Icrc,
        payload: Payload<'_>,
    ) -> Result<usize, Unsent> {
        let payload = self.read_payload(packet.payload, payload)?;
        let bytes = packet.to_wire(&payload).ok_or(Unsent::Unreachable)?;
        let mut headers = vec![0; bytes.header_bytes()];
        bytes.emit_headers(&mut headers).map_err(|_| Unsent::Unreachable)?;
        let mut wire = self.wire.borrow_mut();
        let now = wire.now;
        wire.hashes.push(hash_of((now.0, self.side, &headers, &payload)));
        let len = headers.len() + payload.len().next_multiple_of(4) + ICRC_BYTES;
        // The offset is not in a packet's bytes.
        let packet = Packet { payload: Fragment { offset: 0, ..packet.payload }, ..*packet };
        let in_flight = InFlight { due: now.after(LATENCY_NS), from, at: to, packet, payload };
        wire.to[1 - self.side].push_back(in_flight);
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
        self.wire.borrow().to.iter().any(|queue| !queue.is_empty())
    }

    fn ring_bells(&mut self) {}

    fn fabric_in_words(&self) -> String {
        "a test's wire".to_owned()
    }

    fn peer_in_words(&self, slot: u8) -> String {
        format!("end {slot} of the wire is silent")
    }
}

/// A packet that arrived.
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
        out.copy_from_slice(self.payload);
        Ok(())
    }
}
