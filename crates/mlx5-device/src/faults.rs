//! Faults on demand: ports that are down, messages that are lost or held up, one error, one late READ. Nothing of it exists in
//! a NIC that was never asked for any, and everything that happens is counted.
//!
//! Losses fall on messages on their way out, requests and replies alike, before the carrier sees them: to the transport they are
//! what a wire would have lost. Which ones is decided by a seeded generator, so the same traffic loses the same messages.

use std::fmt;

use mlx5_layout::CqeSyndrome;
use roce::packet::Outgoing;
use roce::{Now, Psn, Reply, ReplyKind, Status, Transmit};

use super::counters::{Counters, name_of};
use super::host::HostInterface;
use super::ports::Ports;
use super::qp::Qp;
use super::qps::Qps;
use super::wire::bytes_of;
use crate::carrier::{Icrc, MAX_DELAY_NS};
use crate::random;
use crate::span::Span;
use crate::token_bucket::TokenBucket;

/// Injections that may wait for their message at a time.
const MAX_WAITING: usize = 64;
/// Queues that a refusal names, so that a caller can pick one.
const NAMED: usize = 8;

/// Changes that are kept in words, for the line of counters; all of them count.
const MAX_CHANGES: usize = 64;

/// What may be changed while the NIC runs; what is `None` stays. Shown as `softnic ctl` sends it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Settings {
    /// Probability, 0 to 1, that a message is lost on its way out.
    pub loss: Option<f64>,
    /// Where the generator of losses begins.
    pub seed: Option<u64>,
    /// One-way delay of what leaves.
    pub delay: Option<Span>,
    /// Rate to shape to, 10^9 bits a second of wire bytes; `Some(None)` lifts it.
    pub rate_gbps: Option<Option<f64>>,
    /// Requests and answers to READs that leave in a second; `Some(None)` lifts it.
    pub messages_per_second: Option<Option<f64>>,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |rate: Option<Option<f64>>| {
            rate.map(|rate| rate.map_or("none".to_owned(), |rate| rate.to_string()))
        };
        let words = [
            ("loss", self.loss.map(|loss| loss.to_string())),
            ("seed", self.seed.map(|seed| seed.to_string())),
            ("delay", self.delay.map(|delay| delay.to_string())),
            ("rate-gbps", rate(self.rate_gbps)),
            ("messages-per-second", rate(self.messages_per_second)),
        ];
        let given = words.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        f.write_str(&given.collect::<Vec<_>>().join(" "))
    }
}

/// One fault of a queue. Shown as `softnic ctl` sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Injection {
    pub qpn: u32,
    pub kind: InjectionKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectionKind {
    /// Loses one request: the one that has this PSN, 24 bits, among its own, or the next.
    Drop(Option<u32>),
    /// Ends the next send with this syndrome in its CQE, and the queue with it.
    ErrorCqe(CqeSyndrome),
    /// Sends the next packet of a connected QP on the wire with a wrong ICRC.
    CorruptCrc,
    /// Answers the next READ that arrives so many µs later; other queues' traffic goes on.
    DelayRead(u32),
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let qpn = self.qpn;
        match self.kind {
            InjectionKind::Drop(None) => write!(f, "drop qp={qpn}"),
            InjectionKind::Drop(Some(psn)) => write!(f, "drop qp={qpn} psn={psn}"),
            InjectionKind::ErrorCqe(syndrome) => {
                write!(f, "error-cqe qp={qpn} syndrome={}", name_of(syndrome))
            }
            InjectionKind::CorruptCrc => write!(f, "corrupt-crc qp={qpn}"),
            InjectionKind::DelayRead(us) => write!(f, "delay-read qp={qpn} us={us}"),
        }
    }
}

/// What was asked for.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// The first changes, in words.
    changes: Vec<String>,
    /// A bit for each port that is down.
    down: u16,
    loss: f64,
    random: u64,
    /// Messages a second.
    pace: Option<TokenBucket>,
    waiting: Vec<Injection>,
    /// Sends that fail on demand: QPN, WQE index, and what their CQEs say.
    marked: Vec<(u32, u16, CqeSyndrome)>,
}

impl Settings {
    /// Refuses what is out of range, in a sentence.
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(loss) = self.loss.filter(|loss| !(0.0..=1.0).contains(loss)) {
            return Err(format!("a loss of {loss}; 0 to 1 is possible"));
        }
        if let Some(rate) = self.rate_gbps.flatten().filter(|rate| !(0.001..=1000.0).contains(rate)) {
            return Err(format!("a rate of {rate} Gbit/s; 0.001 to 1000 is possible"));
        }
        if let Some(pace) = self.messages_per_second.flatten().filter(|pace| !(0.1..=1e9).contains(pace)) {
            return Err(format!("{pace} messages a second; 0.1 to 1000000000 is possible"));
        }
        if let Some(delay) = self.delay.filter(|delay| delay.0 > MAX_DELAY_NS) {
            return Err(format!("a delay of {delay}; 0 to {} is possible", Span(MAX_DELAY_NS)));
        }
        Ok(())
    }
}

impl Faults {
    /// The faults of a NIC from a first change on. Counts and says that this NIC is no longer as it was configured: the reader of the
    /// result must know.
    pub(super) fn changed<'a, M>(
        faults: &'a mut Option<Box<Faults>>,
        host: &mut HostInterface<M>,
        what: String,
    ) -> &'a mut Faults {
        host.counters.ctl_changes += 1;
        host.log_line(&format!("softnic ctl changed this NIC: {what}"));
        let faults = faults.get_or_insert_default();
        if faults.changes.len() < MAX_CHANGES {
            faults.changes.push(what);
        }
        faults
    }

    /// The changes so far, in the words of `softnic ctl`; of very many the first.
    pub(super) fn changes(&self) -> &[String] {
        &self.changes
    }

    /// Takes the port at this place down, or up again.
    pub(super) fn toggle(&mut self, port: usize) {
        self.down ^= 1 << port;
    }

    /// Changes what is set, but for rate and delay.
    pub(super) fn set(&mut self, settings: &Settings, now: Now) {
        self.loss = settings.loss.unwrap_or(self.loss);
        self.random = settings.seed.unwrap_or(self.random);
        if let Some(pace) = settings.messages_per_second {
            self.pace = pace.map(|pace| TokenBucket::of_messages(Some(pace), now));
        }
    }

    /// Whether the queue of a fault is there, and a further one may wait. The error is a sentence.
    pub(super) fn check(faults: Option<&Faults>, qps: &Qps, injection: &Injection) -> Result<(), String> {
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
        if faults.is_some_and(|faults| faults.waiting.len() >= MAX_WAITING) {
            return Err(format!("{MAX_WAITING} faults wait for their messages already"));
        }
        Ok(())
    }

    /// Keeps the fault until a message fits it.
    pub(super) fn wait(&mut self, injection: Injection) {
        self.waiting.push(injection);
    }

    /// Whether the next message is lost.
    fn loses(&mut self) -> bool {
        if self.loss <= 0.0 {
            return false;
        }
        random::chance(&mut self.random) < self.loss
    }

    /// Whether the port at this place is down.
    pub(super) fn is_down(&self, port: usize) -> bool {
        self.down & 1 << port != 0
    }

    /// Takes the first injection of a queue that waits and `is_it`.
    fn take(&mut self, qpn: u32, is_it: impl Fn(InjectionKind) -> bool) -> Option<InjectionKind> {
        let at = self.waiting.iter().position(|waiting| waiting.qpn == qpn && is_it(waiting.kind))?;
        Some(self.waiting.remove(at).kind)
    }

    /// Whether the messages of this second leave room for one more.
    pub(super) fn keeps_pace(&mut self, now: Now) -> bool {
        self.pace.as_mut().is_none_or(|pace| pace.allows(now))
    }

    /// A message leaves, of those whose number in a second is bounded.
    fn spend_pace(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.spend(1);
        }
    }

    /// The send at this place among the outstanding ones of its queue fails, and its CQE says why.
    fn fail_send(&mut self, counters: &mut Counters, qp: &mut Qp, place: usize, syndrome: CqeSyndrome) {
        let request = &mut qp.sq.outstanding[place];
        request.why = "`softnic ctl inject error-cqe` asked for it".to_owned();
        self.marked.push((qp.qpn, request.wqe.index, syndrome));
        counters.injected_errors += 1;
        let ticket = request.ticket;
        qp.sq.fail(ticket, Status::LocalQpOperation);
    }

    /// Applies an injection, the loss or a down port to a request. True: it is not sent, because it was lost or has failed.
    #[cold]
    pub(super) fn apply_to_message(
        &mut self,
        counters: &mut Counters,
        ports: &mut Ports,
        qp: &mut Qp,
        transmit: Transmit,
    ) -> bool {
        let Some(place) = qp.sq.find(transmit.ticket) else { return false };
        self.spend_pace();
        let (port, mtu) = (qp.path.port, qp.mtu_bytes());
        let request = qp.sq.outstanding[place].request;
        if self.is_down(port) {
            counters.lost_port_down += 1;
        } else {
            let count = roce::message::psn_count(request.opcode, request.length, mtu);
            let covers = |psn: u32| (0..count).any(|at| transmit.psn.plus(at) == Psn::new(psn));
            let hit = self.take(qp.qpn, |waiting| match waiting {
                InjectionKind::Drop(psn) => psn.is_none_or(covers),
                kind => matches!(kind, InjectionKind::ErrorCqe(_)),
            });
            if let Some(InjectionKind::ErrorCqe(syndrome)) = hit {
                self.fail_send(counters, qp, place, syndrome);
                return true;
            }
            if hit.is_none() && !self.loses() {
                return false;
            }
            counters.injected_lost_requests += 1;
        }
        ports.count_sent(counters, port, mtu, &request, transmit);
        qp.sent(transmit.ticket);
        true
    }

    /// Applies them to a packet of a connected queue, of the message at this place. Returns the ICRC that it leaves with; none: it is lost.
    #[cold]
    pub(super) fn apply_to_packet(
        &mut self,
        counters: &mut Counters,
        ports: &mut Ports,
        qp: &mut Qp,
        message: Option<usize>,
        outgoing: &Outgoing,
    ) -> Option<Icrc> {
        let Some(message) = message else { return Some(Icrc::Right) };
        let packet = &outgoing.packet;
        // A message counts with its last packet: all of them go once the first went.
        if packet.content.position().ends() {
            self.spend_pace();
        }
        if self.is_down(qp.path.port) {
            counters.lost_port_down += 1;
        } else {
            let hit = self.take(qp.qpn, |waiting| match waiting {
                InjectionKind::Drop(psn) => psn.is_none_or(|psn| Psn::new(psn) == packet.psn),
                kind => !matches!(kind, InjectionKind::DelayRead(_)),
            });
            match hit {
                Some(InjectionKind::ErrorCqe(syndrome)) => {
                    self.fail_send(counters, qp, message, syndrome);
                    return None;
                }
                Some(InjectionKind::CorruptCrc) => return Some(Icrc::Wrong),
                None if !self.loses() => return Some(Icrc::Right),
                _ => counters.injected_lost_requests += 1,
            }
        }
        if let Some(route) = qp.path.way.route() {
            let bytes = Ok(bytes_of(packet));
            ports.count_packet(counters, qp.path.port, route.to, &bytes, packet, outgoing.retransmission);
        }
        None
    }

    /// A packet that was to leave with a wrong ICRC did; or it did not, and the queue's next one is to.
    #[cold]
    pub(super) fn corrupted(&mut self, counters: &mut Counters, qpn: u32, left: bool) {
        if left {
            counters.injected_crc_errors += 1;
        } else {
            self.waiting.insert(0, Injection { qpn, kind: InjectionKind::CorruptCrc });
        }
    }

    /// Whether a packet of an answer is lost instead of being sent.
    #[cold]
    pub(super) fn loses_answer(&mut self, counters: &mut Counters, port: usize) -> bool {
        if self.is_down(port) {
            counters.lost_port_down += 1;
            return true;
        }
        let lost = self.loses();
        counters.injected_lost_replies += u64::from(lost);
        lost
    }

    /// Whether a reply that is about to be sent is lost instead.
    #[cold]
    pub(super) fn loses_reply(&mut self, counters: &mut Counters, qp: &mut Qp, reply: &Reply) -> bool {
        let lost = self.loses_answer(counters, qp.path.port);
        let answers = |qp: &Qp| qp.responses.answers.front().is_some_and(|answer| answer.psn == reply.psn);
        if lost && reply.kind == ReplyKind::ReadResponse && answers(qp) {
            qp.responses.answers.pop_front();
        }
        lost
    }

    /// A READ arrived: no reply of its queue leaves before it is to be answered.
    #[cold]
    pub(super) fn delay_answer<M>(&mut self, host: &mut HostInterface<M>, qp: &mut Qp) {
        self.spend_pace();
        let mut earliest = self.pace.as_ref().and_then(TokenBucket::ready_at).unwrap_or(host.now);
        let delays = |kind| matches!(kind, InjectionKind::DelayRead(_));
        if let Some(InjectionKind::DelayRead(us)) = self.take(qp.qpn, delays) {
            host.counters.injected_read_delays += 1;
            earliest = earliest.max(host.now.after(u64::from(us) * 1000));
        }
        qp.responses.not_before = qp.responses.not_before.max(earliest);
    }

    /// What the CQE of a failed send says, when its failure was asked for.
    #[cold]
    pub(super) fn chosen_syndrome(
        &mut self,
        qpn: u32,
        wqe_index: u16,
        status: Status,
    ) -> Option<CqeSyndrome> {
        let at = self.marked.iter().position(|mark| (mark.0, mark.1) == (qpn, wqe_index))?;
        let (_, _, syndrome) = self.marked.remove(at);
        // Flushed before it was posted: nothing wrong was reported of it.
        (status == Status::LocalQpOperation).then_some(syndrome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_have_their_rate_and_come_again_with_their_seed() {
        let draw = |loss: f64, seed: u64| {
            let mut faults = Faults { loss, random: seed, ..Faults::default() };
            (0..100_000).map(|_| faults.loses()).collect::<Vec<_>>()
        };
        let count = |draws: &[bool]| draws.iter().filter(|lost| **lost).count();
        // Six standard deviations of a binomial distribution.
        for (loss, least, most) in
            [(0.0, 0, 0), (0.01, 812, 1188), (0.5, 49_052, 50_948), (1.0, 100_000, 100_000)]
        {
            let lost = count(&draw(loss, 7));
            assert!((least..=most).contains(&lost), "{loss}: {lost}");
        }
        assert_eq!(draw(0.1, 3), draw(0.1, 3));
        assert_ne!(draw(0.1, 3), draw(0.1, 4));
    }
}
