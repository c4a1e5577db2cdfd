//! Publishing, waking and sleeping.
//!
//! The handshake is Dekker's: a sender stores the head and then loads the bell; a NIC that goes to sleep
//! stores the bell and then loads the heads; both with a full fence in between. So at least one sees the
//! other, and no message is left before a sleeping NIC.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use mlx5_device::carrier::Carrier;
use roce::Now;

use super::Link;
use super::channel::{ChannelState, Lane, Producer};
use super::fabric::{Fabric, SLOTS};
use crate::os::OneShotEpoll;

impl Link {
    pub(super) fn publish_and_ring(&mut self) {
        // What is delayed is shown by `pass_time`, and stays noted until then.
        let shown = if self.delays { &[] } else { &*self.to_publish };
        if shown.is_empty() && self.to_notify.is_empty() || !self.fabric.is_ours() {
            return;
        }
        for slot in shown {
            if let Some(outgoing) = &mut self.outgoing[usize::from(*slot) % SLOTS] {
                outgoing.producer.publish();
                outgoing.dirty = false;
            }
        }
        self.counters.bells += ring_all(&self.fabric, shown.iter().chain(&self.to_notify));
        if !self.delays {
            self.to_publish.clear();
        }
        self.to_notify.clear();
    }

    /// The delay of what leaves now, ns.
    pub fn delay_ns(&self) -> u64 {
        self.delay_ns
    }

    pub(super) fn hold(&mut self, holds: bool) {
        self.delays = holds;
        if let Some(wire) = &mut self.wire {
            wire.holds = holds;
        }
        self.outgoing.iter_mut().flatten().for_each(|outgoing| outgoing.producer.holds = holds);
    }

    /// Whether a reply lies in a channel whose receiver has not attached, and may while this NIC lives.
    pub fn has_unseen(&self) -> bool {
        let is_unseen = |it: &Producer| it.state() == ChannelState::Published && it.has_laid(Lane::Reply);
        self.open.iter().any(|slot| {
            let outgoing = self.outgoing[usize::from(*slot)].as_ref();
            outgoing.is_some_and(|it| is_unseen(&it.producer)) && !self.fabric.was_refused(*slot)
        })
    }

    /// To be called when a round begins, with a time read after the last one: what was sent since is in
    /// flight from now on, and what is due leaves. Returns how much did; without a delay nothing is done.
    pub fn pass_time(&mut self, now: Now) -> usize {
        if !self.delays || !self.fabric.is_ours() {
            return 0;
        }
        let due = now.after(self.delay_ns);
        let mut gone = self.wire.as_mut().map_or(0, |wire| wire.pass(now, due));
        let (mut shown, outgoing) = (Vec::new(), &mut self.outgoing);
        self.to_publish.retain(|slot| {
            let Some(outgoing) = &mut outgoing[usize::from(*slot)] else { return false };
            if outgoing.producer.pass(now, due) {
                shown.push(*slot);
            }
            outgoing.dirty = outgoing.producer.has_delayed();
            outgoing.dirty
        });
        gone += shown.len();
        self.counters.bells += ring_all(&self.fabric, shown.iter());
        if self.delay_ns == 0 && !self.has_delayed() {
            self.hold(false);
        }
        gone
    }

    /// First half of a sleep: asks peers to ring. `None`: something has arrived. Else wait without the link's
    /// lock, which other threads need meanwhile, and then call [`Link::end_sleep`].
    pub fn prepare_sleep(&mut self) -> Option<Sleep> {
        if !self.fabric.is_ours() {
            return None;
        }
        self.ring_bells();
        self.watch();
        let own_slot = self.slot();
        for slot in &self.open {
            if let Some(outgoing) = &mut self.outgoing[usize::from(*slot)]
                && outgoing.producer.pending()
            {
                outgoing.producer.set_notify(true);
                self.waiting.push(*slot);
            }
        }
        let roused = self.fabric.prepare_sleep();
        // Who attached or refused before that rang no bell.
        let attached = self.open.iter().any(|slot| {
            let Some(outgoing) = &mut self.outgoing[usize::from(*slot)] else { return false };
            let settled =
                outgoing.producer.state() != ChannelState::Published || self.fabric.was_refused(*slot);
            settled && std::mem::take(&mut outgoing.awaits_attach)
        });
        let asked = self.fabric.has_published() || self.fabric.has_call();
        let arrived = roused || asked || self.incoming.iter().any(|i| i.consumer.pending());
        // No bell is rung for what was consumed between the look and the bell. A peer reads that request
        // without a fence and may miss it once: the idle policy's sleep ends, and then we look.
        let progressed = self.waiting.iter().any(|slot| {
            *slot == own_slot
                || self.outgoing[usize::from(*slot)]
                    .as_mut()
                    .is_none_or(|outgoing| !outgoing.producer.pending())
        });
        if arrived || attached || progressed {
            self.end_sleep();
            return None;
        }
        self.counters.sleeps += 1;
        let packets_wait = self.has_packets_waiting() || self.has_delayed();
        Some(Sleep { fabric: Arc::clone(&self.fabric), epoll: self.epoll(), packets_wait })
    }

    /// Second half: peers need not ring any more.
    pub fn end_sleep(&mut self) {
        self.fabric.end_sleep();
        for slot in self.waiting.drain(..) {
            if let Some(outgoing) = &self.outgoing[usize::from(slot)] {
                outgoing.producer.set_notify(false);
            }
        }
    }
}

/// Rings at these slots, but our own, after what was written for them; how many slept.
fn ring_all<'s>(fabric: &Fabric, slots: impl Iterator<Item = &'s u8>) -> u64 {
    // Between our head and their bell: either they see the head before they sleep, or we see that they sleep.
    fence(Ordering::SeqCst);
    slots.filter(|slot| **slot != fabric.slot() && fabric.ring(**slot)).count() as u64
}

/// A sleep about to begin: what it waits on does not need the link.
#[derive(Debug)]
pub struct Sleep {
    fabric: Arc<Fabric>,
    epoll: Option<Arc<OneShotEpoll>>,
    packets_wait: bool,
}

/// For shorter sleeps the epoll is not armed: that costs more than it saves. A packet may wait so long.
const MIN_ARMED_SLEEP: Duration = Duration::from_micros(150);

/// Longest sleep while packets wait for their time or for room in the kernel, which no bell reports.
const STALLED: Duration = Duration::from_micros(50);

impl Sleep {
    /// Sleeps until a bell rings or `max` is over; not long where packets wait to leave.
    pub fn wait(&self, max: Duration) {
        let max = if self.packets_wait { max.min(STALLED) } else { max };
        if let Some(epoll) = self.epoll.as_ref().filter(|_| max > MIN_ARMED_SLEEP) {
            // What came before is reported too.
            epoll.arm();
        }
        self.fabric.sleep(max);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Instant;

    use roce::packet::{Content, Deth, Position, Trailer};
    use roce::{Fragment, Packet, Psn, ServiceType};

    use super::*;
    use crate::link::LinkConfig;
    use mlx5_device::carrier::{Icrc, Payload};

    #[test]
    fn a_nic_whose_packets_the_kernel_has_no_room_for_does_not_sleep_over_them() {
        let process = std::process::id().to_be_bytes();
        let address = IpAddr::from([127, 194 + 8 * (process[1] & 7), process[2], process[3]]);
        let config = LinkConfig {
            fabric: format!("stalled-{}", std::process::id()),
            addresses: vec![address],
            ..LinkConfig::default()
        };
        let mut link = Link::join(config).unwrap();
        let packet = Packet {
            service: ServiceType::Rc,
            dst_qpn: mlx5_device::first_qpn(link.slot()) | 5,
            psn: Psn::new(7),
            ack_requested: false,
            solicited: false,
            deth: Deth::default(),
            content: Content::Send { position: Position::Only, trailer: Trailer::None },
            payload: Fragment::default(),
        };
        link.wire.as_mut().unwrap().stall(true);
        link.send_packet(address, address, &packet, Icrc::Right, Payload::Nothing).unwrap();
        let long = Duration::from_secs(20);
        let begun = Instant::now();
        link.sleep(long);
        assert!(begun.elapsed() < long / 4, "it slept for {:?} with a packet to send", begun.elapsed());
        // And then it leaves, and nothing is left to hurry for.
        link.wire.as_mut().unwrap().stall(false);
        link.ring_bells();
        assert!(!link.wire.as_ref().unwrap().has_waiting());
        let mut came = 0;
        while came == 0 && begun.elapsed() < long {
            link.poll(16, |_| {
                came += 1;
                mlx5_device::carrier::Disposition::Consumed
            });
        }
        assert_eq!(came, 1);
        assert!(link.prepare_sleep().is_some_and(|sleep| !sleep.packets_wait));
        link.end_sleep();
    }
}
