//! Impairment of a link: a carrier round another. A NIC that is asked for none uses the other carrier alone.
//!
//! Settings, but reorder, mean the same on both paths, and act on what leaves; a port that is down also drops
//! arrivals. On the wire they act on packets. In shared memory a message or answer counts as one, however
//! long. Were it lost with any of its packets, a long one would never arrive: unlike on the wire, it is sent
//! again whole.
//!
//! - loss: a packet leaves, is counted and charged, but does not arrive. A seed picks it, by sending order.
//! - reorder: up to [`OVERTAKERS`] later packets arrive before a packet. Shared memory keeps its order.
//! - rate: wire bytes a second of a port, requests and READ answers a second of the NIC. The excess waits: a
//!   request before the transport counts it as sent, an answer from when its READ is taken.
//! - a port that is down loses what leaves, and drops what arrives.
//! - faults of a queue: see [`InjectionKind`].

use core::net::IpAddr;

use mlx5_layout::CqeSyndrome;
use roce::{Fragment, Now, Packet, Psn};

use super::counters::Counters;
use super::faults::{Injection, InjectionKind, Settings};
use super::framing;
use super::qps::Qps;
use crate::carrier::{
    Addressing, Carrier, Disposition, Icrc, Inbound, PathAddress, Payload, Position, Sender, Sent, Unsent,
};
use crate::config::{LinkLayer, NicConfig};
use crate::memory::{Fault, Order, Segment};
use crate::random::chance;
use crate::token_bucket::TokenBucket;

/// Packets that arrive before one that left earlier, at most; fewer when no more leave.
pub(super) const OVERTAKERS: u32 = 3;

/// Injections that may wait for their message at a time.
const MAX_WAITING: usize = 64;
/// Queues that a refusal names, so that a caller can pick one.
const NAMED: usize = 8;

/// A place where nothing lies: the carrier says that it was consumed.
const NOWHERE: Position = Position { channel: 0, offset: 0 };

/// What a NIC was asked for.
#[derive(Debug)]
pub(super) struct Impairment {
    loss: f64,
    reorder: f64,
    /// The host's: hosts of one seed lose different packets. Equal in each run, unlike a slot.
    address: u64,
    /// Where the generator stands, and where it stands when one more has left.
    random: u64,
    drawn: u64,
    link_layer: LinkLayer,
    /// One a port.
    shapers: Vec<TokenBucket>,
    pace: TokenBucket,
    /// A bit for each port that is down.
    down: u16,
    waiting: Vec<Injection>,
    overtaken: Option<Overtaken>,
    /// A packet left since the last bells.
    is_sending: bool,
    now: Now,
    sender: Sender,
    /// Since the last round.
    counts: Counters,
}

/// A packet that others go before.
#[derive(Debug)]
struct Overtaken {
    from: IpAddr,
    to: IpAddr,
    packet: Packet,
    payload: Vec<u8>,
    /// How many may still go before it.
    left: u32,
}

/// What is decided on a packet or message that is to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Leaves,
    Lost,
    Overtaken,
    /// Leaves with a wrong ICRC.
    Corrupt,
    Fails(CqeSyndrome),
}

impl Impairment {
    pub(super) fn new(config: &NicConfig, now: Now) -> Impairment {
        let shaper = |_| TokenBucket::new(config.rate_gbps, now);
        let address = u64::from(u32::from(config.ipv4));
        let random = config.seed ^ address;
        Impairment {
            loss: config.loss,
            reorder: config.reorder,
            address,
            random,
            drawn: random,
            link_layer: config.link_layer,
            shapers: (0..config.all_ports()).map(shaper).collect(),
            pace: TokenBucket::of_messages(None, now),
            down: 0,
            waiting: Vec::new(),
            overtaken: None,
            is_sending: false,
            now,
            sender: Sender::default(),
            counts: Counters::default(),
        }
    }

    /// Whether there is anything to do: if not, the carrier is used as it is.
    pub(super) fn acts(&self) -> bool {
        self.loss > 0.0
            || self.reorder > 0.0
            // All ports have the same rate.
            || self.shapers.first().is_some_and(TokenBucket::is_limited)
            || self.pace.is_limited()
            || self.down != 0
            || !self.waiting.is_empty()
            || self.has_overtaken()
    }

    /// Whether a packet waits for others to go before it.
    pub(super) fn has_overtaken(&self) -> bool {
        self.overtaken.is_some()
    }

    /// Whether the port at this place is down.
    pub(super) fn is_down(&self, port: usize) -> bool {
        self.down & 1 << port != 0
    }

    /// Takes the port at this place down, or up again.
    pub(super) fn toggle(&mut self, port: usize) {
        self.down ^= 1 << port;
    }

    /// Changes what is set, but for the delay, which the carrier has.
    pub(super) fn set(&mut self, settings: &Settings, now: Now) {
        self.loss = settings.loss.unwrap_or(self.loss);
        self.reorder = settings.reorder.unwrap_or(self.reorder);
        self.random = settings.seed.map_or(self.random, |seed| seed ^ self.address);
        if let Some(rate) = settings.rate_gbps {
            self.shapers.fill(TokenBucket::new(rate, now));
        }
        if let Some(pace) = settings.messages_per_second {
            self.pace = TokenBucket::of_messages(pace, now);
        }
    }

    /// Keeps a fault until a message fits it. The error, a sentence: no such queue, or too many wait.
    pub(super) fn wait(&mut self, qps: &Qps, injection: Injection) -> Result<(), String> {
        let qpn = injection.qpn;
        let Some(qp) = qps.numbered(qpn) else {
            let some: Vec<_> = qps.iter().map(|qp| format!("{:#x}", qp.qpn)).take(NAMED + 1).collect();
            return Err(match some.len() {
                0 => format!("this NIC has no QP {qpn:#x}, and no other either"),
                more if more > NAMED => {
                    format!("this NIC has no QP {qpn:#x}; it has {} and more", some[..NAMED].join(", "))
                }
                _ => format!("this NIC has no QP {qpn:#x}; it has {}", some.join(", ")),
            });
        };
        if injection.kind == InjectionKind::CorruptCrc && qp.path.way.route().is_none() {
            return Err(format!("QP {qpn:#x} is not connected over the wire: there is no CRC to corrupt"));
        }
        if self.waiting.len() >= MAX_WAITING {
            return Err(format!("{MAX_WAITING} faults wait for their messages already"));
        }
        self.waiting.push(injection);
        Ok(())
    }

    /// The queue is gone: its number may be another's one day.
    pub(super) fn forget_qp(&mut self, qpn: u32) {
        self.waiting.retain(|waiting| waiting.qpn != qpn);
    }

    /// Adds what happened since the last time.
    pub(super) fn report(&mut self, counters: &mut Counters) {
        *counters += &std::mem::take(&mut self.counts);
    }

    /// Takes the first injection of a queue that waits and `is_it`.
    fn take(&mut self, qpn: u32, is_it: impl Fn(InjectionKind) -> bool) -> Option<InjectionKind> {
        let at = self.waiting.iter().position(|waiting| waiting.qpn == qpn && is_it(waiting.kind))?;
        Some(self.waiting.remove(at).kind)
    }

    /// Whether the rates have room for what the sender sends.
    fn has_room(&mut self) -> bool {
        let paced = self.sender.is_requester && !self.pace.allows(self.now);
        !paced && (!self.sender.is_shaped || self.shapers[self.sender.port].allows(self.now))
    }

    /// Decides on the next packet or message of the sender; `fits`: a fault may be its.
    fn decide(&mut self, fits: impl Fn(InjectionKind) -> bool) -> Verdict {
        self.drawn = self.random;
        let is_request = self.sender.is_requester;
        if self.is_down(self.sender.port) {
            self.counts.lost_port_down += 1;
            return Verdict::Lost;
        }
        let hit = if is_request { self.take(self.sender.qpn, fits) } else { None };
        match hit {
            Some(InjectionKind::ErrorCqe(syndrome)) => {
                self.counts.injected_errors += 1;
                return Verdict::Fails(syndrome);
            }
            Some(InjectionKind::CorruptCrc) => return Verdict::Corrupt,
            None if self.loss <= 0.0 || chance(&mut self.drawn) >= self.loss => return Verdict::Leaves,
            _ => {}
        }
        let counts = &mut self.counts;
        let lost =
            if is_request { &mut counts.injected_lost_requests } else { &mut counts.injected_lost_replies };
        *lost += 1;
        Verdict::Lost
    }

    /// The same of a packet, which others may overtake.
    fn decide_on_packet(&mut self, packet: &Packet) -> Verdict {
        let verdict = self.decide(|kind| match kind {
            InjectionKind::Drop(psn) => psn.is_none_or(|psn| Psn::new(psn) == packet.psn),
            kind => !matches!(kind, InjectionKind::DelayRead(_)),
        });
        let draws = verdict == Verdict::Leaves && self.reorder > 0.0;
        let is_overtaken = draws && chance(&mut self.drawn) < self.reorder;
        if is_overtaken && self.overtaken.is_none() { Verdict::Overtaken } else { verdict }
    }

    /// Something has left, or is lost: so many wire bytes; `whole`: a request, or all that was left of it.
    fn charge(&mut self, wire: u64, whole: bool) {
        self.random = self.drawn;
        self.shapers[self.sender.port].spend(wire);
        self.pace.spend(whole.into());
    }

    /// A READ is answered: when it may be.
    fn delay_answer(&mut self, qpn: u32) -> Now {
        self.pace.allows(self.now);
        self.pace.spend(1);
        let mut earliest = self.pace.ready_at().unwrap_or_default();
        let delays = |kind| matches!(kind, InjectionKind::DelayRead(_));
        if let Some(InjectionKind::DelayRead(us)) = self.take(qpn, delays) {
            self.counts.injected_read_delays += 1;
            earliest = earliest.max(self.now.after(u64::from(us) * 1000));
        }
        earliest
    }
}

/// Methods that a field answers.
macro_rules! forward {
    ($self:ident.$to:ident: $(fn $name:ident(& $($mut:ident)? $(; $arg:ident: $type:ty)*) $(-> $answer:ty)?;)*) => {
        $(fn $name(& $($mut)? $self $(, $arg: $type)*) $(-> $answer)? {
            $self.$to.$name($($arg),*)
        })*
    };
}

/// A carrier with its impairment, for one round.
pub(super) struct Impaired<'a, C> {
    pub carrier: &'a mut C,
    pub impairment: &'a mut Impairment,
}

impl<C: Carrier> Impaired<'_, C> {
    /// A packet has left: the one that it overtook follows when enough have.
    fn has_left(&mut self) {
        self.impairment.is_sending = true;
        let Some(overtaken) = &mut self.impairment.overtaken else { return };
        overtaken.left = overtaken.left.saturating_sub(1);
        if overtaken.left == 0 {
            self.release();
        }
    }

    /// Sends the packet that was overtaken.
    fn release(&mut self) {
        let Some(overtaken) = self.impairment.overtaken.take() else { return };
        let Overtaken { from, to, packet, payload, .. } = &overtaken;
        let payload = Payload::Inline(payload);
        if self.carrier.send_packet(*from, *to, packet, Icrc::Right, payload) == Err(Unsent::Full) {
            self.impairment.overtaken = Some(overtaken);
        }
    }
}

impl<C: Carrier> Carrier for Impaired<'_, C> {
    type Inbound<'a> = Arrived<'a>;

    forward! { self.carrier:
        fn slot(&) -> u8;
        fn has_wire(&) -> bool;
        fn set_delay(&mut; delay_ns: u64);
        fn replies_wait(&; slot: u8) -> bool;
        fn poll_event(&mut) -> Option<String>;
        fn has_reply_room(&mut; slot: u8) -> bool;
        fn read_payload(&mut; part: Fragment; payload: Payload<'_>) -> Result<Vec<u8>, Fault>;
        fn consumed(&mut; slot: u8; position: Position) -> bool;
        fn has_packets_waiting(&) -> bool;
        fn has_delayed(&) -> bool;
        fn fabric_in_words(&) -> String;
        fn peer_in_words(&; slot: u8) -> String;
    }

    fn sends(&mut self, sender: impl FnOnce() -> Sender) {
        self.impairment.sender = sender();
    }

    fn poll_rings(
        &mut self,
        now: Now,
        budget: usize,
        mut handler: impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    ) -> usize {
        self.impairment.now = now;
        self.carrier.poll_rings(now, budget, |packet, inbound| {
            handler(packet, &mut Arrived { inbound, impairment: self.impairment })
        })
    }

    fn poll_wire(
        &mut self,
        now: Now,
        mut handler: impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    ) -> usize {
        self.carrier.poll_wire(now, |packet, inbound| {
            handler(packet, &mut Arrived { inbound, impairment: self.impairment })
        })
    }

    fn has_request_room(&mut self) -> bool {
        self.impairment.has_room()
    }

    /// On a message, or an answer, is decided where it begins.
    fn send_record(
        &mut self,
        packet: &Packet,
        mtu: u32,
        path: &PathAddress,
        payload: Payload<'_>,
    ) -> Result<Sent, Unsent> {
        let impairment = &mut *self.impairment;
        let (whole, is_request) = (packet.payload.length, packet.content.is_request());
        let starts = if is_request { impairment.sender.begins } else { packet.content.position().starts() };
        // An acknowledgement is small beside what it acknowledges: it waits for no rate.
        if starts && !is_request && whole > 0 && !impairment.has_room() {
            return Err(Unsent::Paced);
        }
        let covers = |psn| Psn::new(psn).distance_from(packet.psn) < packet.psn_count(mtu);
        let fits = |kind| match kind {
            InjectionKind::Drop(psn) => psn.is_none_or(covers),
            kind => matches!(kind, InjectionKind::ErrorCqe(_)),
        };
        let verdict = if starts { impairment.decide(fits) } else { Verdict::Leaves };
        let sent = match verdict {
            Verdict::Fails(syndrome) => return Err(Unsent::Failed(syndrome)),
            Verdict::Lost if is_request => {
                let position = impairment.sender.last_sent.unwrap_or(NOWHERE);
                Sent { position, carried: whole }
            }
            Verdict::Lost => Sent { position: NOWHERE, carried: whole },
            _ => self.carrier.send_record(packet, mtu, path, payload)?,
        };
        if is_request {
            impairment.sender.last_sent = Some(sent.position);
        }
        if starts {
            impairment.charge(framing::record_bytes(impairment.link_layer, packet, whole, mtu), is_request);
        }
        Ok(sent)
    }

    fn has_wire_room(&mut self, from: IpAddr) -> bool {
        self.impairment.has_room() && self.carrier.has_wire_room(from)
    }

    fn send_packet(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        packet: &Packet,
        icrc: Icrc,
        payload: Payload<'_>,
    ) -> Result<usize, Unsent> {
        let verdict = self.impairment.decide_on_packet(packet);
        let icrc = if verdict == Verdict::Corrupt { Icrc::Wrong } else { icrc };
        let sent = match verdict {
            Verdict::Fails(syndrome) => return Err(Unsent::Failed(syndrome)),
            Verdict::Lost => {
                self.carrier.loses_packet(from, to, packet);
                Ok(framing::bytes_of(packet))
            }
            Verdict::Overtaken => {
                let payload = self.carrier.read_payload(packet.payload, payload)?;
                self.impairment.counts.injected_overtaken += 1;
                self.impairment.is_sending = true;
                // The bytes that are kept are its own, not the message's.
                let packet = Packet { payload: Fragment { offset: 0, ..packet.payload }, ..*packet };
                self.impairment.overtaken = Some(Overtaken { from, to, packet, payload, left: OVERTAKERS });
                Ok(framing::bytes_of(&packet))
            }
            Verdict::Leaves | Verdict::Corrupt => {
                let sent = self.carrier.send_packet(from, to, packet, icrc, payload);
                if sent.is_ok() {
                    self.has_left();
                }
                sent
            }
        };
        if verdict == Verdict::Corrupt {
            let again = Injection { qpn: self.impairment.sender.qpn, kind: InjectionKind::CorruptCrc };
            match sent {
                Ok(_) => self.impairment.counts.injected_crc_errors += 1,
                Err(_) => self.impairment.waiting.insert(0, again),
            }
        }
        let bytes = sent?;
        // A message counts with its last packet.
        let whole = self.impairment.sender.is_requester && packet.content.position().ends();
        self.impairment.charge(framing::packet_framing(to) + bytes as u64, whole);
        Ok(bytes)
    }

    /// Where nothing more has left, nothing more overtakes.
    fn ring_bells(&mut self) {
        if !std::mem::take(&mut self.impairment.is_sending) {
            self.release();
        }
        self.carrier.ring_bells();
    }
}

/// A message that arrived while there is an impairment.
pub(super) struct Arrived<'a> {
    inbound: &'a mut dyn Inbound,
    impairment: &'a mut Impairment,
}

impl Inbound for Arrived<'_> {
    forward! { self.inbound:
        fn addressing(&) -> &Addressing;
        fn copy_into(&mut; to: &[Segment]; order: Order) -> Result<(), Fault>;
        fn copy_to_buffer(&mut; out: &mut [u8]) -> Result<(), Fault>;
    }

    fn is_dropped_at(&self, port: usize) -> bool {
        self.impairment.is_down(port)
    }

    fn answer_from(&mut self, qpn: u32) -> Now {
        self.impairment.delay_answer(qpn)
    }
}

#[cfg(test)]
mod tests;
