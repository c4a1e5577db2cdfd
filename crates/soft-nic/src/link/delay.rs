//! One-way delay: what leaves the NIC waits in a delay line until it is due, and goes on in arrival order.
//! In the link, not the device's impairment: what waits stays where it was written, uncopied; MADs wait too.
//!
//! On the wire a line holds packets ready to be sent; in shared memory, how far a receiver may see the rings.
//! What left in one round of the NIC is put in at the beginning of the next, by a clock read after it left.
//! So a delay is never shorter than asked for, and longer by at most a round and the NIC's rest. A changed
//! delay holds for what leaves from then on: what is in flight keeps its time, and nothing overtakes.
//!
//! What is in flight is bounded: packets by [`MAX_BYTES`] an address, messages by their ring. When it is
//! full, the queues wait, as for a busy wire; nothing is lost.

use std::collections::VecDeque;

use roce::Now;

/// Bytes of packets that may be under way from one address, with what describes them: 10 ms of 13 Gbit/s.
pub const MAX_BYTES: usize = 16 << 20;

/// A queue of what waits, with the time at which each is due.
#[derive(Debug, Default)]
pub struct DelayLine<T> {
    waiting: VecDeque<(Now, T)>,
}

impl<T> DelayLine<T> {
    /// Puts something in that goes on at `due`, or later when what is in front of it does.
    pub fn put(&mut self, due: Now, what: T) {
        self.waiting.push_back((due, what));
    }

    /// The first, when it is due.
    pub fn due(&mut self, now: Now) -> Option<&mut T> {
        self.waiting.front_mut().filter(|(due, _)| *due <= now).map(|(_, what)| what)
    }

    pub fn take(&mut self) -> Option<T> {
        self.waiting.pop_front().map(|(_, what)| what)
    }

    pub fn last(&self) -> Option<&T> {
        self.waiting.back().map(|(_, what)| what)
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goes_on(line: &mut DelayLine<u32>, now: u64) -> Vec<u32> {
        let mut out = Vec::new();
        while line.due(Now(now)).is_some() {
            out.extend(line.take());
        }
        out
    }

    #[test]
    fn what_is_due_goes_on_and_nothing_before_it() {
        let mut line = DelayLine::default();
        line.put(Now(10), 1);
        line.put(Now(20), 2);
        assert_eq!(goes_on(&mut line, 9), [0; 0]);
        assert_eq!(goes_on(&mut line, 10), [1]);
        assert_eq!(goes_on(&mut line, 19), [0; 0]);
        assert_eq!(goes_on(&mut line, 1_000), [2]);
        assert!(line.is_empty());
    }

    #[test]
    fn a_shorter_delay_overtakes_nothing_and_a_longer_one_holds_up_nothing() {
        let mut line = DelayLine::default();
        // 100 at 0, then a delay of 5 at 1, then of 1000 at 2.
        line.put(Now(100), 1);
        line.put(Now(6), 2);
        line.put(Now(1_002), 3);
        assert_eq!(goes_on(&mut line, 99), [0; 0]);
        assert_eq!(line.last(), Some(&3));
        assert_eq!(goes_on(&mut line, 100), [1, 2], "in order, the first at its own time");
        assert_eq!(goes_on(&mut line, 1_001), [0; 0]);
        assert_eq!(goes_on(&mut line, 1_002), [3]);
    }
}
