//! Instances whose graphs launch themselves, side by side, timed by the GPU's stamps of their runs.
//!
//! The CPU waits, and now and then copies an instance's outputs while it runs. The inputs are the same in
//! each turn, so that every bit that is found must be that of the run alone.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gpu::Stamp;
use inference::engine::gpu::{Instance, SelfLaunchingInstance};

use crate::energy::Meter;
use crate::overlap::{clock_step_ns, overlap};
use crate::run_options::{Launch, Options};
use crate::together::{Alone, ConcurrentRuns, Measured, Stamps, same};

/// Longest wait for the end of a graph that was cancelled, and for a turn.
const END: Duration = Duration::from_secs(60);
/// Time between two comparisons of outputs, each of one instance.
const LOOK: Duration = Duration::from_millis(10);
/// Longest copy of outputs beside graphs that run.
const COPY: Duration = Duration::from_secs(2);
/// Most runs whose stamps are kept, of an instance and of all together: 16 bytes each.
const KEPT: usize = 1 << 20;
const KEPT_OF_ALL: usize = 1 << 24;

/// Graphs that launch themselves, all at once. Their outputs hold nothing of the runs alone any more.
pub fn by_themselves(
    instances: Vec<Alone<Instance>>,
    launch: Launch,
    options: &Options,
    meter: &Meter,
) -> Result<ConcurrentRuns> {
    let kept = KEPT.min(KEPT_OF_ALL / instances.len().max(1));
    let mut all: Vec<Alone<SelfLaunchingInstance>> = Vec::new();
    for (mut instance, alone) in instances {
        instance.stamp(kept)?;
        let graph = match launch {
            Launch::While => instance.while_loop(0)?,
            _ => instance.self_launching(0)?,
        };
        all.push((graph, alone));
    }
    for (graph, _) in &mut all {
        graph.start()?;
    }
    let mut watch = GraphMonitor::new(&all);
    watch.first_turns()?;
    watch.until(Duration::from_secs_f64(options.warmup), 0)?;
    let runs = options.runs.div_ceil(all.len() as u64);
    let (window, first) = (meter.begin(), watch.turns());
    watch.until(Duration::from_secs_f64(options.seconds), runs.max(2))?;
    let last = watch.turns();
    let ended = first.iter().zip(&last).map(|(first, last)| u64::from(last.wrapping_sub(*first))).sum();
    let energy = window.end(ended);
    let GraphMonitor { mut measured, copies_wait, .. } = watch;
    all.iter().for_each(|(graph, _)| graph.graph().cancel());
    let meanwhile = measured.iter().map(|one| one.compared).sum();
    ensure!(copies_wait || meanwhile > 0, "no outputs were compared while the instances ran");
    let mut stamps = Stamps { meanwhile, copies_wait, ..Stamps::default() };
    let mut of_all: Vec<Vec<Stamp>> = Vec::new();
    for (((graph, alone), measured), (first, last)) in
        all.iter().zip(&mut measured).zip(first.iter().zip(&last))
    {
        graph.graph().wait(END)?;
        measured.compared += 1;
        measured.wrong += u64::from(!same(&graph.outputs()?, alone));
        let (found, lost) = graph.stamps(u64::from(*first)..u64::from(*last))?;
        stamps.lost += lost;
        timed(&found, measured, &mut stamps.periods_ns)?;
        of_all.push(found);
    }
    stamps.clock_step_ns = clock_step_ns(&of_all);
    stamps.overlap = overlap(&of_all);
    Ok(ConcurrentRuns { measured, energy, stamps: Some(stamps) })
}

/// Records runs by their stamps. The rate is that of the turns behind the first one.
fn timed(stamps: &[Stamp], measured: &mut Measured, periods_ns: &mut Vec<u64>) -> Result<()> {
    for stamp in stamps {
        ensure!(stamp.end_ns >= stamp.start_ns, "the GPU's clock went back: {stamp:?}");
        measured.histogram.record(stamp.end_ns - stamp.start_ns);
    }
    for pair in stamps.windows(2) {
        ensure!(pair[1].start_ns >= pair[0].end_ns, "a run begins before the one before it ends: {pair:?}");
        periods_ns.push(pair[1].end_ns - pair[0].end_ns);
    }
    if let [first, .., last] = stamps {
        let whole_ns = (last.end_ns - first.end_ns).max(1);
        measured.rate = (stamps.len() - 1) as f64 * 1e9 / whole_ns as f64;
    }
    Ok(())
}

/// The CPU's look at graphs that run.
struct GraphMonitor<'a> {
    all: &'a [Alone<SelfLaunchingInstance>],
    /// The last change that was seen of each counter of turns.
    seen: Vec<(u32, Instant)>,
    measured: Vec<Measured>,
    /// The instance whose outputs are compared next.
    next: usize,
    /// A copy did not come through beside the graphs: no further one is tried.
    copies_wait: bool,
}

impl<'a> GraphMonitor<'a> {
    fn new(all: &'a [Alone<SelfLaunchingInstance>]) -> GraphMonitor<'a> {
        let seen = all.iter().map(|(graph, _)| (graph.graph().turns(), Instant::now())).collect();
        let measured = all.iter().map(|_| Measured::default()).collect();
        GraphMonitor { all, seen, measured, next: 0, copies_wait: false }
    }

    fn turns(&self) -> Vec<u32> {
        self.all.iter().map(|(graph, _)| graph.graph().turns()).collect()
    }

    /// Until each instance has written its outputs once: before that they hold nothing to compare.
    fn first_turns(&mut self) -> Result<()> {
        while self.turns().contains(&0) {
            self.alive()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// For so long, until each instance has had so many turns, and until the outputs of each were compared.
    fn until(&mut self, seconds: Duration, turns: u64) -> Result<()> {
        let (since, first) = (Instant::now(), self.turns());
        let mut looks = 0;
        loop {
            self.alive()?;
            let mut have = self.turns().into_iter().zip(&first).map(|(now, first)| now.wrapping_sub(*first));
            let is_over = since.elapsed() >= seconds && have.all(|have| u64::from(have) >= turns);
            if is_over && (self.copies_wait || looks >= self.all.len() || turns == 0) {
                return Ok(());
            }
            self.compare()?;
            looks += 1;
            std::thread::sleep(LOOK);
        }
    }

    /// Error: a graph has ended, or stands.
    fn alive(&mut self) -> Result<()> {
        for ((graph, _), seen) in self.all.iter().zip(&mut self.seen) {
            let (turns, ended) = (graph.graph().turns(), graph.graph().ended()?);
            ensure!(ended.is_none(), "a graph ended by itself after {turns} turns: {ended:?}");
            if turns != seen.0 {
                *seen = (turns, Instant::now());
            }
            ensure!(seen.1.elapsed() < END, "an instance has had no turn for {} s", END.as_secs());
        }
        Ok(())
    }

    /// Compares the outputs of one instance while it runs.
    fn compare(&mut self) -> Result<()> {
        if self.copies_wait {
            return Ok(());
        }
        let (graph, alone) = &self.all[self.next];
        match graph.outputs_meanwhile(COPY)? {
            Some(found) => {
                self.measured[self.next].compared += 1;
                self.measured[self.next].wrong += u64::from(!same(&found, alone));
            }
            None => self.copies_wait = true,
        }
        self.next = (self.next + 1) % self.all.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_m7_runs_are_timed_from_begin_to_end_by_one_clock_and_stamps_out_of_order_are_an_error() {
        let stamp = |start_ns, end_ns| Stamp { start_ns, end_ns };
        let (mut measured, mut periods) = (Measured::default(), Vec::new());
        timed(&[stamp(0, 100), stamp(110, 210), stamp(230, 330)], &mut measured, &mut periods).unwrap();
        assert_eq!((measured.histogram.count(), measured.histogram.percentile_ns(100.0)), (3, 100));
        assert_eq!(periods, [110, 120]);
        assert!((measured.rate - 2.0 / 230e-9).abs() < 1.0, "{}", measured.rate);
        for wrong in [[stamp(10, 0), stamp(20, 30)], [stamp(0, 20), stamp(10, 30)]] {
            assert!(timed(&wrong, &mut Measured::default(), &mut Vec::new()).is_err(), "{wrong:?}");
        }
    }
}
