//! One model in several formats on one GPU: the one whose graph has the shortest period.
//!
//! All are loaded and timed in turns, so that a change of the GPU's clock meets each of them alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::{Gpu, Toolkit};

use super::instance::Instance;
use super::libraries::Libraries;
use super::loaded::{Loaded, Took};
use crate::engine::EngineError;
use crate::plan::{Format, Plan};

/// Timings of each format; their median counts.
const ROUNDS: usize = 5;
/// One timing takes about so long, between 2 and 100 launches.
const STRETCH: Duration = Duration::from_millis(10);

/// A model in the format that was the fastest.
#[derive(Debug)]
pub struct Fastest {
    /// The model.
    pub loaded: Arc<Loaded>,
    /// Each format that was timed with its graph's period when the host launches it, in the order of the
    /// plans; empty for one plan, which is not timed.
    pub periods: Vec<(Format, Duration)>,
    /// How long loading all of them took. Choices include the timing.
    pub took: Took,
}

/// Loads a model's plans, and keeps the one whose graph has the shortest period. Errors: [`Loaded::new`]'s;
/// there is no plan.
pub fn fastest(
    gpu: Gpu,
    toolkit: &Toolkit,
    plans: Vec<Plan>,
    libraries: &Libraries,
) -> Result<Fastest, EngineError> {
    let load = |plan| Loaded::new(gpu, toolkit.clone(), plan, libraries);
    let mut all = plans.into_iter().map(load).collect::<Result<Vec<Arc<Loaded>>, _>>()?;
    let mut took = all.iter().fold(Took::default(), |sum, loaded| sum + loaded.took());
    let since = Instant::now();
    let periods = if all.len() > 1 { periods(&all)? } else { vec![Duration::ZERO; all.len()] };
    took.choices += since.elapsed();
    let least = least(&periods).ok_or_else(|| gpu::Error::Refused("no plan to choose from".into()))?;
    let formats = all.iter().map(|loaded| loaded.plan().format);
    let periods = formats.zip(periods).filter(|(_, period)| !period.is_zero()).collect();
    Ok(Fastest { loaded: all.swap_remove(least), periods, took })
}

/// The first of the shortest.
fn least(periods: &[Duration]) -> Option<usize> {
    (0..periods.len()).min_by_key(|&at| periods[at])
}

/// The period of each model's graph, by launches of the host one behind the other.
fn periods(all: &[Arc<Loaded>]) -> Result<Vec<Duration>, EngineError> {
    let instances = all.iter().map(Instance::new).collect::<Result<Vec<_>, _>>()?;
    let mut times = Vec::new();
    for instance in &instances {
        // The first launches may wait for code that the driver loads.
        instance.period(2)?;
        let once = instance.period(2)?.max(Duration::from_nanos(1));
        times.push((STRETCH.as_nanos() / once.as_nanos()).clamp(2, 100) as usize);
    }
    let mut seen = vec![Vec::new(); instances.len()];
    for _ in 0..ROUNDS {
        for ((instance, &times), seen) in instances.iter().zip(&times).zip(&mut seen) {
            seen.push(instance.period(times)?.max(Duration::from_nanos(1)));
        }
    }
    let median = |mut seen: Vec<Duration>| {
        seen.sort();
        seen[seen.len() / 2]
    };
    Ok(seen.into_iter().map(median).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_period_wins_and_of_equal_ones_the_first() {
        for (periods, wanted) in
            [(&[][..], None), (&[5], Some(0)), (&[5, 3], Some(1)), (&[3, 5], Some(0)), (&[4, 4], Some(0))]
        {
            let periods: Vec<Duration> = periods.iter().map(|&us| Duration::from_micros(us)).collect();
            assert_eq!(least(&periods), wanted, "{periods:?}");
        }
    }
}
