//! When requests are due. Pure: time is an argument.
//!
//! In a closed loop a request is due when fewer are in flight than the window; in an open loop the times are
//! fixed beforehand. A due request waits in a queue for a free slot. Its latency counts from the time at
//! which it was due, so that a server that stalls cannot hide the requests it held up (coordinated omission).

use std::collections::VecDeque;

use zoo::seed::Stream;

/// A process by which requests are due.
#[derive(Debug, Clone)]
pub enum Arrivals {
    /// So many in flight.
    Closed { window: usize },
    /// So many a second, at equal distances.
    Constant { rate: f64 },
    /// So many a second on average, independent of one another. `at`: seconds of the next one.
    Poisson { rate: f64, at: f64, random: Stream },
}

impl Arrivals {
    pub fn poisson(rate: f64, seed: u64) -> Arrivals {
        let mut random = Stream::of(&format!("arrivals {seed}"));
        Arrivals::Poisson { rate, at: gap(rate, &mut random), random }
    }
}

/// An exponentially distributed time in seconds.
fn gap(rate: f64, random: &mut Stream) -> f64 {
    let unit = ((random.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    -unit.ln() / rate
}

/// After which request the load is over.
#[derive(Debug, Clone, Copy)]
pub enum End {
    Count(u64),
    /// By the client's clock.
    At(u64),
}

/// A request to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueRequest {
    pub id: u64,
    pub at_ns: u64,
}

/// The requests of a run, numbered from 0.
#[derive(Debug)]
pub struct Load {
    arrivals: Arrivals,
    end: End,
    start_ns: u64,
    made: u64,
    queue: VecDeque<DueRequest>,
}

impl Load {
    pub fn new(arrivals: Arrivals, end: End, start_ns: u64) -> Load {
        Load { arrivals, end, start_ns, made: 0, queue: VecDeque::new() }
    }

    /// When the next request outside the queue is due, unless the load is over. `now_ns`: the time of a
    /// closed loop.
    fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let seconds = |seconds: f64| self.start_ns.saturating_add((seconds * 1e9) as u64);
        let at_ns = match &self.arrivals {
            Arrivals::Closed { .. } => now_ns,
            Arrivals::Constant { rate } => seconds(self.made as f64 / rate),
            Arrivals::Poisson { at, .. } => seconds(*at),
        };
        let is_wanted = match self.end {
            End::Count(count) => self.made < count,
            End::At(end_ns) => at_ns < end_ns,
        };
        is_wanted.then_some(at_ns)
    }

    /// The request that waits longest, if one is due. It stays the next one until [`Self::sent`].
    pub fn due(&mut self, now_ns: u64, outstanding: usize) -> Option<DueRequest> {
        while let Some(at_ns) = self.next_ns(now_ns).filter(|at_ns| *at_ns <= now_ns) {
            match &mut self.arrivals {
                Arrivals::Closed { window } if outstanding >= *window || !self.queue.is_empty() => break,
                Arrivals::Closed { .. } | Arrivals::Constant { .. } => {}
                Arrivals::Poisson { rate, at, random } => *at += gap(*rate, random),
            }
            self.queue.push_back(DueRequest { id: self.made, at_ns });
            self.made += 1;
        }
        self.queue.front().copied()
    }

    /// Time until an open loop's next request, 0 with one queued. Closed loop: for ever; answers decide.
    pub fn idle_ns(&self, now_ns: u64) -> u64 {
        match (&self.arrivals, self.queue.is_empty()) {
            (Arrivals::Closed { .. }, _) => u64::MAX,
            (_, true) => self.next_ns(now_ns).map_or(u64::MAX, |at_ns| at_ns.saturating_sub(now_ns)),
            (_, false) => 0,
        }
    }

    /// Takes the next request out of the queue.
    pub fn sent(&mut self) {
        self.queue.pop_front();
    }

    /// Forgets requests that have waited in the queue for so long: how many.
    pub fn expired(&mut self, now_ns: u64, patience_ns: u64) -> u64 {
        let is_late = |due: &DueRequest| due.at_ns.saturating_add(patience_ns) <= now_ns;
        let count = self.queue.iter().take_while(|due| is_late(due)).count();
        self.queue.drain(..count);
        count as u64
    }

    /// Whether nothing is, or will be, due.
    pub fn is_over(&self, now_ns: u64) -> bool {
        self.queue.is_empty() && self.next_ns(now_ns).is_none()
    }
}

/// Index of a request's input. Successive requests differ, and so do successive ones of a slot.
pub fn input_of(id: u64, inputs: usize) -> usize {
    let inputs = inputs as u64;
    ((id + id / inputs) % inputs) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn all(load: &mut Load, now_ns: u64) -> Vec<DueRequest> {
        let mut found = Vec::new();
        while let Some(due) = load.due(now_ns, 0) {
            found.push(due);
            load.sent();
        }
        found
    }

    #[test]
    fn a_closed_loop_keeps_its_window_and_ends_at_its_count() {
        let mut load = Load::new(Arrivals::Closed { window: 2 }, End::Count(3), 0);
        assert_eq!(load.due(5, 0), Some(DueRequest { id: 0, at_ns: 5 }));
        // It did not go out: it still waits, since then.
        assert_eq!(load.due(9, 0), Some(DueRequest { id: 0, at_ns: 5 }));
        load.sent();
        assert_eq!(load.due(9, 1), Some(DueRequest { id: 1, at_ns: 9 }));
        load.sent();
        assert_eq!((load.due(9, 2), load.is_over(9)), (None, false));
        assert_eq!(load.due(10, 1).map(|due| due.id), Some(2));
        load.sent();
        assert_eq!((load.due(11, 0), load.is_over(11)), (None, true));
    }

    #[test]
    fn release_m10_requests_that_a_stall_held_up_are_due_since_their_own_times() {
        let mut load = Load::new(Arrivals::Constant { rate: 10.0 }, End::At(8 + SECOND), 8);
        assert_eq!(load.due(7, 0), None);
        // Nothing looked for half a second.
        let times: Vec<u64> = all(&mut load, 8 + SECOND / 2).iter().map(|due| due.at_ns - 8).collect();
        assert_eq!(times, [0, 1, 2, 3, 4, 5].map(|tenth| tenth * SECOND / 10));
        assert!(!load.is_over(8 + SECOND / 2));
        assert_eq!(load.idle_ns(8 + SECOND / 2), SECOND / 10);
        assert_eq!((all(&mut load, 9 * SECOND).len(), load.is_over(9 * SECOND)), (4, true));
    }

    #[test]
    fn a_poisson_process_has_its_rate_and_its_spread() {
        let run = |seed| {
            let mut load = Load::new(Arrivals::poisson(1000.0, seed), End::Count(20_000), 0);
            all(&mut load, u64::MAX)
        };
        let times: Vec<f64> = run(1).iter().map(|due| due.at_ns as f64 / 1e9).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 1000.0 - 1.0).abs() < 0.03, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{variance}");
        assert!(run(1) == run(1) && run(1) != run(2));
    }

    #[test]
    fn a_request_that_waits_too_long_is_forgotten_and_counted() {
        let mut load = Load::new(Arrivals::Constant { rate: 1.0 }, End::Count(3), 0);
        assert!(load.due(2 * SECOND, 0).is_some());
        assert_eq!(load.expired(2 * SECOND, SECOND), 2);
        assert_eq!(load.due(2 * SECOND, 0).map(|due| due.id), Some(2));
    }

    #[test]
    fn successive_requests_differ_and_so_do_those_of_a_slot() {
        for (inputs, slots) in [(16, 16), (16, 1), (3, 3), (16, 8)] {
            let input = |id| input_of(id, inputs);
            assert!((0..1000).all(|id| input(id) != input(id + 1)), "{inputs}");
            let repeats = (0..1000).filter(|id| input(*id) == input(id + slots)).count();
            assert!(repeats < 500, "{inputs} {slots}: {repeats}");
            assert!((0..inputs).all(|wanted| (0..inputs as u64).any(|id| input(id) == wanted)));
        }
    }
}
