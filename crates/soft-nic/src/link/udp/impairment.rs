//! Packet loss and reordering on demand, by seed: applied to packets that have come, before the engine sees them.

use mlx5_device::random::chance;

use super::{Arrived, Kept};

/// Probabilities of loss and reordering, and the seed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Impairment {
    /// Probability, 0 to 1, that a packet is lost.
    pub loss: f64,
    /// Probability, 0 to 1, that a packet is overtaken by those that come within the next [`OVERTAKERS`].
    pub reorder: f64,
    /// Seed of the generator.
    pub seed: u64,
}

/// Packets that go before one that is overtaken, at most; fewer when no more come.
pub const OVERTAKERS: u32 = 3;

/// What happens to one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PacketAction {
    Comes,
    Lost,
    Overtaken,
}

#[derive(Debug)]
pub(super) struct Impairer {
    impairment: Impairment,
    random: u64,
    /// A packet that is overtaken now, and how many may still go before it.
    held: Option<(Kept, u32)>,
    /// Packets lost so far.
    pub lost: u64,
    /// Packets overtaken so far.
    pub overtaken: u64,
}

impl Impairer {
    pub(super) fn new(impairment: Impairment) -> Impairer {
        Impairer { impairment, random: impairment.seed, held: None, lost: 0, overtaken: 0 }
    }

    /// Lets a packet through, or not, or later.
    pub(super) fn pass(&mut self, arrived: Arrived<'_>, deliver: &mut impl FnMut(Arrived<'_>)) {
        let fine = self.impairment.loss <= 0.0 && self.impairment.reorder <= 0.0;
        match if fine { PacketAction::Comes } else { self.action() } {
            PacketAction::Comes => {
                deliver(arrived);
                self.overtake(deliver);
            }
            PacketAction::Lost => self.lost += 1,
            PacketAction::Overtaken => {
                self.overtaken += 1;
                self.held = Some((arrived.into(), OVERTAKERS));
            }
        }
    }

    /// Nothing more has come: nothing more overtakes.
    pub(super) fn settle(&mut self, deliver: &mut impl FnMut(Arrived<'_>)) {
        if let Some((packet, _)) = self.held.take() {
            deliver(packet.arrived());
        }
    }

    fn overtake(&mut self, deliver: &mut impl FnMut(Arrived<'_>)) {
        let Some((_, left)) = &mut self.held else { return };
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.settle(deliver);
        }
    }

    fn action(&mut self) -> PacketAction {
        if chance(&mut self.random) < self.impairment.loss {
            return PacketAction::Lost;
        }
        let overtaken = chance(&mut self.random) < self.impairment.reorder;
        if overtaken && self.held.is_none() { PacketAction::Overtaken } else { PacketAction::Comes }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use roce::Packet;
    use roce::packet::{Content, Deth, Trailer};
    use roce::{Fragment, Position, Psn, ServiceType};

    /// PSNs in the order in which they come.
    fn through(impairment: Impairment, count: u32) -> (Vec<u32>, Impairer) {
        let mut impairer = Impairer::new(impairment);
        let mut came = Vec::new();
        let mut deliver = |a: Arrived<'_>| {
            assert_eq!(a.payload, [a.packet.psn.value() as u8]);
            came.push(a.packet.psn.value());
        };
        for psn in 0..count {
            let packet = Packet {
                service: ServiceType::Uc,
                dst_qpn: 1,
                psn: Psn::new(psn),
                ack_requested: false,
                solicited: false,
                deth: Deth::default(),
                content: Content::Send { position: Position::Only, trailer: Trailer::None },
                payload: Fragment { offset: 0, length: 1 },
            };
            let here = IpAddr::from([127, 0, 0, 1]);
            impairer.pass(Arrived { from: here, at: here, packet, payload: &[psn as u8] }, &mut deliver);
        }
        impairer.settle(&mut deliver);
        (came, impairer)
    }

    #[test]
    fn without_impairment_everything_comes_in_order() {
        let (came, impairer) = through(Impairment { seed: 7, ..Impairment::default() }, 1000);
        assert_eq!(came, (0..1000).collect::<Vec<_>>());
        assert_eq!((impairer.lost, impairer.overtaken), (0, 0));
    }

    #[test]
    fn as_many_are_lost_and_overtaken_as_asked_and_the_same_ones_again() {
        let impairment = Impairment { loss: 0.1, reorder: 0.05, seed: 3 };
        let (came, impairer) = through(impairment, 10_000);
        assert_eq!(came.len() as u64 + impairer.lost, 10_000);
        assert!((900..1100).contains(&impairer.lost), "{}", impairer.lost);
        assert!((350..500).contains(&impairer.overtaken), "{}", impairer.overtaken);
        let mut sorted = came.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), came.len(), "each once");
        let early = came.windows(2).filter(|pair| pair[0] > pair[1]).count() as u64;
        assert!(
            early <= impairer.overtaken && early * 10 >= impairer.overtaken * 9,
            "{early} of {}",
            impairer.overtaken
        );
        let place = |psn: &u32| came.iter().position(|p| p == psn).unwrap() as i64;
        assert!(came.iter().all(|psn| place(psn) - i64::from(*psn) <= i64::from(OVERTAKERS)));
        assert_eq!(through(impairment, 10_000).0, came, "by seed");
        assert_ne!(through(Impairment { seed: 4, ..impairment }, 10_000).0, came);
    }

    #[test]
    fn the_last_one_comes_when_nothing_overtakes_it() {
        let (came, _) = through(Impairment { reorder: 1.0, ..Impairment::default() }, 2);
        assert_eq!(came, [1, 0]);
    }
}
