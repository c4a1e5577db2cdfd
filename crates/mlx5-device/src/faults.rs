//! What a running NIC may be asked for: settings of its impairment, and single faults of a queue.

use std::fmt;

use mlx5_layout::CqeSyndrome;
use serde::{Deserialize, Serialize};

use super::counters::name_of;
use crate::carrier::MAX_DELAY_NS;
use crate::span::Span;

/// What may be changed while the NIC runs; what is `None` stays. Shown as `softnic ctl` sends it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Probability, 0 to 1, that a packet sent is lost; in shared memory a message counts as a packet.
    pub loss: Option<f64>,
    /// Probability, 0 to 1, that later packets arrive before a packet; shared memory keeps its order.
    pub reorder: Option<f64>,
    /// Where the generator of losses and of reordering begins.
    pub seed: Option<u64>,
    /// One-way delay of what leaves.
    pub delay: Option<Span>,
    /// Rate to shape to, 10^9 bits a second of wire bytes; `Some(None)` lifts it.
    pub rate_gbps: Option<Option<f64>>,
    /// Requests and answers to READs in a second; `Some(None)` lifts it.
    pub messages_per_second: Option<Option<f64>>,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |rate: Option<Option<f64>>| {
            rate.map(|rate| rate.map_or("none".to_owned(), |rate| rate.to_string()))
        };
        let words = [
            ("loss", self.loss.map(|loss| loss.to_string())),
            ("reorder", self.reorder.map(|reorder| reorder.to_string())),
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injection {
    pub qpn: u32,
    pub kind: InjectionKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum InjectionKind {
    /// Loses one request: the one that has this PSN, 24 bits, among its own, or the next.
    Drop(Option<u32>),
    /// Ends the next send with this syndrome in its CQE, and the queue with it.
    ErrorCqe(#[serde(with = "crate::carrier::syndrome")] CqeSyndrome),
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

impl Settings {
    /// Refuses what is out of range, in a sentence.
    pub(super) fn check(&self) -> Result<(), String> {
        for (name, share) in [("loss", self.loss), ("reorder", self.reorder)] {
            if let Some(share) = share.filter(|share| !(0.0..=1.0).contains(share)) {
                return Err(format!("a {name} of {share}; 0 to 1 is possible"));
            }
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
