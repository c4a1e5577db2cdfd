//! Instances side by side: each runs again and again beside the others, is timed, and its outputs are compared
//! with those of a run alone, bit for bit.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::Result;
use measure::Histogram;

use crate::energy::Meter;
use crate::overlap::Overlap;
use crate::run::Options;
use crate::subject::Subject;

/// An instance, and the outputs of its run alone.
pub type Alone<T> = (T, Vec<Vec<f32>>);

/// What was measured of one instance.
#[derive(Default)]
pub struct Measured {
    pub histogram: Histogram,
    /// Runs a second.
    pub rate: f64,
    pub compared: u64,
    pub wrong: u64,
}

/// What was measured of all of them.
pub struct Together {
    pub measured: Vec<Measured>,
    /// Energy of a run in mJ, or why it is not known.
    pub energy: Result<f64, String>,
    /// Of graphs that launch themselves.
    pub stamps: Option<Stamps>,
}

/// What the GPU's stamps say beside the runs' times.
#[derive(Default)]
pub struct Stamps {
    /// From the end of a run to the end of the next one.
    pub period: Histogram,
    pub overlap: Option<Overlap>,
    /// The step of the GPU's clock.
    pub clock_step_ns: u64,
    /// Runs whose stamps were overwritten.
    pub lost: u64,
    /// Outputs that were compared while the instances ran.
    pub meanwhile: u64,
    /// No copy of outputs came through beside the graphs.
    pub copies_wait: bool,
}

/// Each instance on a thread of its own, all at once. `every`: after how many waits outputs are compared.
pub fn side_by_side(
    subjects: Vec<Alone<Box<dyn Subject>>>,
    options: &Options,
    every: u64,
    meter: &Meter,
) -> Result<Together> {
    let (warmup, seconds) =
        (Duration::from_secs_f64(options.warmup), Duration::from_secs_f64(options.seconds));
    let runs = options.runs.div_ceil(subjects.len() as u64);
    // The instances, and this thread, which reads the energy.
    let together = Barrier::new(subjects.len() + 1);
    let (measured, window) = std::thread::scope(|scope| {
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
        together.wait();
        std::thread::sleep(warmup);
        let window = meter.begin();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Measured>>| {
            thread.join().map_err(|_| anyhow::anyhow!("an instance's thread panicked"))?
        };
        let measured: Result<Vec<Measured>> = threads.into_iter().map(join).collect();
        (measured, window)
    });
    let measured = measured?;
    let energy = window.end(measured.iter().map(|one| one.histogram.count()).sum());
    Ok(Together { measured, energy, stamps: None })
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
            measured.rate = measured.histogram.count() as f64 / since.elapsed().as_secs_f64().max(1e-9);
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
pub fn same(found: &[Vec<f32>], wanted: &[Vec<f32>]) -> bool {
    let bits = |tensors: &[Vec<f32>]| -> Vec<Vec<u32>> {
        tensors.iter().map(|tensor| tensor.iter().map(|element| element.to_bits()).collect()).collect()
    };
    bits(found) == bits(wanted)
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
