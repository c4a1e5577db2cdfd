//! Publishing, waking and sleeping.
//!
//! The handshake is Dekker's: who sends stores the head and then loads the bell; who goes to sleep stores the bell and
//! then loads the heads; a full fence between the two on either side. So at least one sees the other, and no message is
//! left lying before a sleeping NIC.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::{Link, Pause};

impl Link {
    /// Shows peers what was sent and consumed since the last call, and wakes those that sleep.
    pub fn ring_bells(&mut self) {
        if self.to_publish.is_empty() && self.to_notify.is_empty() || !self.fabric.is_ours() {
            return;
        }
        for slot in &self.to_publish {
            if let Some(outgoing) = &mut self.outgoing[usize::from(*slot)] {
                outgoing.producer.publish();
                outgoing.dirty = false;
            }
        }
        // Between our head and their bell: either they see the head before they sleep, or we see that they sleep.
        fence(Ordering::SeqCst);
        let own = self.slot();
        for slot in self.to_publish.drain(..).chain(self.to_notify.drain(..)) {
            if slot != own && self.fabric.ring(slot) {
                self.counters.bells += 1;
            }
        }
    }

    /// Sleeps until a peer rings, [`Waker::wake`] is called, or `max` is over. Returns at once when something has
    /// arrived meanwhile. Zero: another thread that waits for this core gets it, and no peer needs to ring.
    pub fn sleep(&mut self, max: Duration) {
        if !self.fabric.is_ours() {
            return;
        }
        self.ring_bells();
        if max.is_zero() {
            std::thread::yield_now();
            return;
        }
        self.watch();
        let own = self.slot();
        let mut waiting = Vec::new();
        for slot in &self.open {
            if let Some(outgoing) = &mut self.outgoing[usize::from(*slot)]
                && outgoing.producer.pending()
            {
                outgoing.producer.set_notify(true);
                waiting.push(*slot);
            }
        }
        let roused = self.fabric.lie_down();
        let arrived =
            roused || self.fabric.has_published() || self.incoming.iter().any(|i| i.consumer.pending());
        // What was consumed between the look and the bell would ring nobody.
        let progressed = waiting.iter().any(|slot| {
            *slot == own
                || self.outgoing[usize::from(*slot)]
                    .as_mut()
                    .is_none_or(|outgoing| !outgoing.producer.pending())
        });
        if !arrived && !progressed {
            self.counters.sleeps += 1;
            self.fabric.sleep(max);
        }
        self.fabric.get_up();
        for slot in waiting {
            if let Some(outgoing) = &self.outgoing[usize::from(slot)] {
                outgoing.producer.set_notify(false);
            }
        }
    }

    /// Spins or sleeps, as an [`IdlePolicy`] said.
    pub fn pause(&mut self, pause: Pause) {
        match pause {
            Pause::Spin => {
                self.ring_bells();
                std::hint::spin_loop();
            }
            Pause::Sleep(max) => self.sleep(max),
        }
    }
}
