//! Instances side by side: each runs again and again beside the others, is timed, and its outputs are
//! compared with those of a run alone, bit for bit.

use std::convert::Infallible;
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::Result;
use measure::Histogram;

use crate::energy::Meter;
use crate::overlap::Overlap;
use crate::run_options::Options;
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
pub struct ConcurrentRuns {
    pub measured: Vec<Measured>,
    /// Energy of a run in mJ, or why it is not known.
    pub energy: Result<f64, String>,
    /// Of graphs that launch themselves.
    pub stamps: Option<Stamps>,
}

/// What the GPU's stamps say beside the runs' times.
#[derive(Default)]
pub struct Stamps {
    /// From a run's end to the next one's. No histogram: its bucket may be wider than what launching adds.
    pub periods_ns: Vec<u64>,
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
) -> Result<ConcurrentRuns> {
    let (warmup, seconds) =
        (Duration::from_secs_f64(options.warmup), Duration::from_secs_f64(options.seconds));
    let runs = options.runs.div_ceil(subjects.len() as u64);
    let (measured, window) = all_at_once(subjects, warmup, (seconds, runs), every, || meter.begin())?;
    let energy = window.end(measured.iter().map(|one| one.histogram.count()).sum());
    Ok(ConcurrentRuns { measured, energy, stamps: None })
}

/// Warms all instances up, calls `begin` while none of them runs, then measures each on its thread.
fn all_at_once<W>(
    subjects: Vec<Alone<Box<dyn Subject>>>,
    warmup: Duration,
    least: (Duration, u64),
    every: u64,
    begin: impl FnOnce() -> W,
) -> Result<(Vec<Measured>, W)> {
    let ((warm, all_warm), begun) = (channel::<Infallible>(), OnceLock::new());
    std::thread::scope(|scope| {
        let start = |(mut subject, wanted): Alone<Box<dyn Subject>>| {
            let (warm, begun) = (warm.clone(), &begun);
            scope.spawn(move || {
                let since = Instant::now();
                while since.elapsed() < warmup {
                    subject.runs()?;
                }
                drop(warm);
                begun.wait();
                again_and_again(subject.as_mut(), &wanted, least, every)
            })
        };
        let threads: Vec<_> = subjects.into_iter().map(start).collect();
        drop(warm);
        // Returns when each thread has dropped its sender; one that fails or panics does so too.
        let _ = all_warm.recv();
        let window = begin();
        begun.get_or_init(|| ());
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Measured>>| {
            thread.join().map_err(|_| anyhow::anyhow!("an instance's thread panicked"))?
        };
        let measured: Result<Vec<Measured>> = threads.into_iter().map(join).collect();
        Ok((measured?, window))
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
    use std::borrow::Cow;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::sync::{Arc, Barrier, Mutex};

    use super::*;

    /// Counts the runs of all instances, those of the warm-up included.
    struct Counted {
        begun: Arc<AtomicU64>,
        ended: Arc<AtomicU64>,
        panics: bool,
    }

    impl Subject for Counted {
        fn runs(&mut self) -> Result<(Duration, u64)> {
            assert!(!self.panics, "as the test wants it");
            self.begun.fetch_add(1, SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            self.ended.fetch_add(1, SeqCst);
            Ok((Duration::from_millis(20), 1))
        }

        fn outputs(&self) -> Result<Cow<'_, [Vec<f32>]>> {
            Ok(Cow::Borrowed(&[]))
        }
    }

    #[test]
    fn release_m14_energy_and_runs_are_counted_over_the_same_window() {
        let [begun, ended] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let subject = |panics| -> Alone<Box<dyn Subject>> {
            let (begun, ended) = (begun.clone(), ended.clone());
            (Box::new(Counted { begun, ended, panics }), Vec::new())
        };
        // A run takes longer than the warm-up: the last one of the warm-up ends after it.
        let (warmup, least) = (Duration::from_millis(1), (Duration::ZERO, 2));
        let begin = || [&begun, &ended].map(|count| count.load(SeqCst));
        let three = vec![subject(false), subject(false), subject(false)];
        let (measured, at_begin) = all_at_once(three, warmup, least, 1, begin).unwrap();
        let counted: u64 = measured.iter().map(|one| one.histogram.count()).sum();
        assert_eq!(at_begin[0], at_begin[1], "no run is in flight when the window begins");
        assert_eq!(counted, ended.load(SeqCst) - at_begin[1]);
        let one_panics = vec![subject(false), subject(true)];
        assert!(all_at_once(one_panics, warmup, least, 1, || ()).is_err(), "the others do not wait for it");
    }

    /// Writes its own number into an output, and meets the others before anyone reads one.
    struct Writes {
        number: f32,
        output: Arc<Mutex<f32>>,
        written: Arc<Barrier>,
        read: Arc<Barrier>,
    }

    impl Subject for Writes {
        fn runs(&mut self) -> Result<(Duration, u64)> {
            *self.output.lock().unwrap() = self.number;
            self.written.wait();
            Ok((Duration::from_micros(10), 1))
        }

        fn outputs(&self) -> Result<Cow<'_, [Vec<f32>]>> {
            let found = *self.output.lock().unwrap();
            self.read.wait();
            Ok(Cow::Owned(vec![vec![found]]))
        }
    }

    /// S13: the release's graphs of one model share all tensors, and nothing looks at what they compute.
    #[test]
    fn release_s13_instances_that_share_a_tensor_are_found_wrong() {
        for (outputs, is_shared) in [(2, false), (1, true)] {
            let outputs: Vec<_> = (0..outputs).map(|_| Arc::new(Mutex::new(0.0))).collect();
            let [written, read] = [(); 2].map(|()| Arc::new(Barrier::new(2)));
            let subject = |(number, output): (f32, &Arc<Mutex<f32>>)| -> Alone<Box<dyn Subject>> {
                let (output, written, read) = (output.clone(), written.clone(), read.clone());
                (Box::new(Writes { number, output, written, read }), vec![vec![number]])
            };
            let subjects = [1.0, 2.0].into_iter().zip(outputs.iter().cycle()).map(subject).collect();
            let (measured, ()) =
                all_at_once(subjects, Duration::ZERO, (Duration::ZERO, 3), 1, || ()).unwrap();
            let wrong: u64 = measured.iter().map(|one| one.wrong).sum();
            let compared: u64 = measured.iter().map(|one| one.compared).sum();
            assert_eq!((wrong, compared), (if is_shared { 3 } else { 0 }, 6));
        }
    }

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

        fn outputs(&self) -> Result<Cow<'_, [Vec<f32>]>> {
            Ok(Cow::Owned(vec![vec![if (self.wrong)(self.runs) { -0.0 } else { 0.0 }]]))
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
            let wanted = fake.outputs().unwrap().into_owned();
            let measured =
                again_and_again(&mut fake, &wanted, (Duration::from_millis(1), 20), every).unwrap();
            assert_eq!(measured.wrong > 0, expected, "every {every}");
            assert!(measured.histogram.count() >= 20);
            assert_eq!(measured.histogram.count(), 2 * u64::from(fake.runs - 1));
        }
    }
}
