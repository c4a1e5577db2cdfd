//! Time: what was not answered is sent again, and what is over rests.

use super::{Cause, Cm, State, code_ns};
use crate::Now;

impl Cm {
    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Now) {
        while let Some((due, id)) = self.timers.first().copied().filter(|(due, _)| *due <= now) {
            self.timers.remove(&(due, id));
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.timer = None;
            let again = connection.sent.as_mut().and_then(|sent| {
                sent.retries_left = sent.retries_left.checked_sub(1)?;
                Some((sent.mad.clone(), sent.timeout_ns))
            });
            match again {
                Some((mad, timeout_ns)) => {
                    let route = connection.route;
                    self.counters.repeated += 1;
                    self.send(route, mad);
                    self.start_timer(id, now.after(timeout_ns));
                }
                None => self.give_up(now, id),
            }
        }
    }

    /// The last attempt has not been answered either, or the rest is over.
    fn give_up(&mut self, now: Now, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        match connection.state {
            State::DreqSent => {
                self.tell(id, Cause::Unanswered);
                self.rest(now, id);
            }
            State::TimeWait => {
                self.tell(id, Cause::TimeWaitOver);
                self.remove(id);
            }
            _ => {
                self.tell(id, Cause::Unreachable);
                self.remove(id);
            }
        }
    }

    /// The connection is over; its names are kept for as long as packets of it may be in flight.
    pub(super) fn rest(&mut self, now: Now, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = State::TimeWait;
        connection.sent = None;
        let rest_ns = code_ns(connection.attributes.primary.ack_timeout);
        self.start_timer(id, now.after(rest_ns));
    }

    /// What was sent has been answered.
    pub(super) fn answered(&mut self, id: u32) {
        self.stop_timer(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.sent = None;
        }
    }
}
