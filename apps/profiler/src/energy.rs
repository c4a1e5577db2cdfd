//! The energy of a measurement, by the GPU's own counter, or why it is not known.

use std::time::{Duration, Instant};

use gpu::Gpu;
use gpu::nvml::EnergyCounter;

/// The counter moves in steps of up to 100 ms: over less time than this a step is a tenth of it or more.
const LEAST: Duration = Duration::from_secs(1);

/// The energy counter of what runs a model; or why there is none.
pub struct Meter(Result<EnergyCounter, String>);

/// A measurement that goes on, with the counter at its begin.
pub struct Window<'a> {
    meter: &'a Meter,
    begin: Result<(Instant, u64), String>,
}

impl Meter {
    /// That of a GPU, if it has one.
    pub fn of(gpu: Gpu) -> Meter {
        Meter(EnergyCounter::of(gpu).map_err(|error| error.to_string()))
    }

    /// None, with the reason.
    pub fn none(why: &str) -> Meter {
        Meter(Err(why.to_owned()))
    }

    fn read(&self) -> Result<(Instant, u64), String> {
        let counter = self.0.as_ref().map_err(Clone::clone)?;
        Ok((Instant::now(), counter.read_mj().map_err(|error| error.to_string())?))
    }

    /// A measurement begins.
    pub fn begin(&self) -> Window<'_> {
        Window { meter: self, begin: self.read() }
    }
}

impl Window<'_> {
    /// It ends, after so many runs: the energy of one in mJ, or why it is not known.
    pub fn end(self, runs: u64) -> Result<f64, String> {
        let ((since, before), (until, after)) = (self.begin?, self.meter.read()?);
        of_a_run(until - since, after.checked_sub(before), runs)
    }
}

/// Energy of one run, if the counter has moved for long enough.
fn of_a_run(time: Duration, energy_mj: Option<u64>, runs: u64) -> Result<f64, String> {
    match energy_mj {
        _ if time < LEAST => Err(format!(
            "measured for {:.2} s, and the counter needs {} s: give --seconds",
            time.as_secs_f64(),
            LEAST.as_secs()
        )),
        _ if runs == 0 => Err("no run ended".into()),
        None => Err("the counter went back".into()),
        Some(0) => Err("the counter did not move".into()),
        Some(energy_mj) => Ok(energy_mj as f64 / runs as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_is_that_of_a_run_or_says_why_it_is_not_known() {
        let (long, short) = (Duration::from_secs(2), Duration::from_millis(250));
        for (time, energy, runs, wanted) in [
            (long, Some(5000), 100, Ok(50.0)),
            (short, Some(5000), 100, Err("measured for 0.25 s")),
            (long, Some(0), 100, Err("did not move")),
            (long, None, 100, Err("went back")),
            (long, Some(5000), 0, Err("no run")),
        ] {
            match (of_a_run(time, energy, runs), wanted) {
                (Ok(found), Ok(wanted)) => assert!(f64::abs(found - wanted) < 1e-9, "{found}"),
                (Err(found), Err(words)) => assert!(found.contains(words), "{found}"),
                (found, wanted) => panic!("{found:?}, not {wanted:?}"),
            }
        }
        let none = Meter::none("no GPU");
        assert_eq!(none.begin().end(1), Err("no GPU".into()));
    }
}
