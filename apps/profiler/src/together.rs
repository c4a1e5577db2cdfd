//! Instances side by side: each runs again and again beside the others, is timed, and its outputs are compared
//! with those of a run alone, bit for bit.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use inference::engine::gpu::{Instance, SelfLaunchingInstance};
use measure::Histogram;

use crate::run::{Launch, Options};
use crate::subject::Subject;

/// Longest wait for the end of a graph that was cancelled.
const END: Duration = Duration::from_secs(60);

/// An instance, and the outputs of its run alone.
pub type Alone<T> = (T, Vec<Vec<f32>>);

/// What was measured of one instance.
#[derive(Default)]
pub struct Measured {
    pub histogram: Histogram,
    pub elapsed: Duration,
    pub compared: u64,
    pub wrong: u64,
}

/// Each instance on a thread of its own, all at once. `every`: after how many waits outputs are compared.
pub fn side_by_side(
    subjects: Vec<Alone<Box<dyn Subject>>>,
    options: &Options,
    every: u64,
) -> Result<Vec<Measured>> {
    let (warmup, seconds) =
        (Duration::from_secs_f64(options.warmup), Duration::from_secs_f64(options.seconds));
    let runs = options.runs.div_ceil(subjects.len() as u64);
    let together = Barrier::new(subjects.len());
    std::thread::scope(|scope| {
        let start = |(mut subject, wanted): Alone<Box<dyn Subject>>| {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                let since = Instant::now();
                while since.elapsed() < warmup {
                    subject.runs()?;
                }
                again_and_again(subject.as_mut(), &wanted, (seconds, runs), every)
            })
        };
        let threads: Vec<_> = subjects.into_iter().map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Measured>>| {
            thread.join().map_err(|_| anyhow::anyhow!("an instance's thread panicked"))?
        };
        threads.into_iter().map(join).collect()
    })
}

/// Runs for so long, and so often, and once at least.
fn again_and_again(
    subject: &mut dyn Subject,
    wanted: &[Vec<f32>],
    (seconds, runs): (Duration, u64),
    every: u64,
) -> Result<Measured> {
    let mut measured = Measured::default();
    let since = Instant::now();
    for wait in 1.. {
        let (time, times) = subject.runs()?;
        measured.histogram.record_n(time.as_nanos() as u64, times);
        let is_last = since.elapsed() >= seconds && measured.histogram.count() >= runs;
        if is_last {
            measured.elapsed = since.elapsed();
        }
        if is_last || wait % every == 0 {
            measured.compared += 1;
            measured.wrong += u64::from(!same(&subject.outputs()?, wanted));
        }
        if is_last {
            break;
        }
    }
    Ok(measured)
}

/// The same bits.
fn same(found: &[Vec<f32>], wanted: &[Vec<f32>]) -> bool {
    let bits = |tensors: &[Vec<f32>]| -> Vec<Vec<u32>> {
        tensors.iter().map(|tensor| tensor.iter().map(|element| element.to_bits()).collect()).collect()
    };
    bits(found) == bits(wanted)
}

/// Graphs that launch themselves, all at once; this thread looks at their counters of turns.
pub fn by_themselves(
    instances: Vec<Alone<Instance>>,
    launch: Launch,
    options: &Options,
) -> Result<Vec<Measured>> {
    let mut all: Vec<Alone<SelfLaunchingInstance>> = Vec::new();
    for (instance, alone) in instances {
        let graph = match launch {
            Launch::While => instance.while_loop(0)?,
            _ => instance.self_launching(0)?,
        };
        all.push((graph, alone));
    }
    for (graph, _) in &mut all {
        graph.start()?;
    }
    watch(&all, Duration::from_secs_f64(options.warmup), 0)?;
    let runs = options.runs.div_ceil(all.len() as u64);
    let mut measured = watch(&all, Duration::from_secs_f64(options.seconds), runs.max(1))?;
    all.iter().for_each(|(graph, _)| graph.graph().cancel());
    for ((graph, alone), measured) in all.iter().zip(&mut measured) {
        graph.graph().wait(END)?;
        measured.compared += 1;
        measured.wrong += u64::from(!same(&graph.outputs()?, alone));
    }
    Ok(measured)
}

/// Looks at all counters of turns, again and again, for so long and until each instance has had so many
/// turns. The first change that is seen of each begins its measurement.
fn watch(all: &[Alone<SelfLaunchingInstance>], seconds: Duration, runs: u64) -> Result<Vec<Measured>> {
    let mut measured: Vec<Measured> = all.iter().map(|_| Measured::default()).collect();
    let since = Instant::now();
    // Of each: its turns, when the last one was seen to end, and whether that was seen as it happened.
    let mut seen: Vec<(u32, Instant, bool)> =
        all.iter().map(|(graph, _)| (graph.graph().turns(), since, false)).collect();
    while since.elapsed() < seconds || measured.iter().any(|one| one.histogram.count() < runs) {
        for (((graph, _), seen), measured) in all.iter().zip(&mut seen).zip(&mut measured) {
            let (turns, now) = (graph.graph().turns(), Instant::now());
            let (more, time) = (turns.wrapping_sub(seen.0), now - seen.1);
            if more == 0 {
                ensure!(time < END, "an instance has had no turn for {} s", END.as_secs());
                continue;
            }
            if seen.2 {
                measured.histogram.record_n(time.as_nanos() as u64 / u64::from(more), more.into());
                measured.elapsed += time;
            }
            *seen = (turns, now, true);
        }
    }
    for (graph, _) in all {
        ensure!(graph.graph().ended()?.is_none(), "a graph ended by itself: {:?}", graph.graph().ended()?);
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives another output each time that it is `wrong`.
    struct Fake {
        runs: u32,
        wrong: fn(u32) -> bool,
    }

    impl Subject for Fake {
        fn runs(&mut self) -> Result<(Duration, u64)> {
            self.runs += 1;
            Ok((Duration::from_micros(10), 2))
        }

        fn outputs(&mut self) -> Result<Vec<Vec<f32>>> {
            Ok(vec![vec![if (self.wrong)(self.runs) { -0.0 } else { 0.0 }]])
        }
    }

    #[test]
    fn an_output_that_differs_in_one_bit_is_wrong() {
        for (wrong, every, expected) in [
            ((|_| false) as fn(u32) -> bool, 1, false),
            (|run| run == 2, 1, true),
            // Between two comparisons, and in the last run, which is always compared.
            (|run| run == 2, 1_000_000, false),
            (|run| run > 1, 1_000_000, true),
        ] {
            let mut fake = Fake { runs: 0, wrong };
            fake.runs().unwrap();
            let wanted = fake.outputs().unwrap();
            let measured =
                again_and_again(&mut fake, &wanted, (Duration::from_millis(1), 20), every).unwrap();
            assert_eq!(measured.wrong > 0, expected, "every {every}");
            assert!(measured.histogram.count() >= 20);
            assert_eq!(measured.histogram.count(), 2 * u64::from(fake.runs - 1));
        }
    }
}
