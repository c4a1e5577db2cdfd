//! A recording run again: the device gets the calls of the file, and a [`Replay`] as its host.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};

use mlx5_device::command::EventSink;

use super::events::Observer;
use super::format::{Reader, RecordingError};
use super::nic::{Device, replay_command};
use super::replayer::{Replay, ReplayError, Replayed, Step};
use super::source::Source;
use crate::config::Config;
use crate::os::locked;

/// Runs a recording again.
///
/// Errors: a file that is no whole recording, and a device that does not do what was recorded.
pub fn replay(file: &Path) -> Result<Replayed, ReplayError> {
    match run(file, None, None) {
        // Once more, for an account of the step that differs: that of every step would take long.
        Err(ReplayError::Differs { replayed, .. }) => run(file, Some(replayed.steps), None),
        ran => ran,
    }
}

/// When a recording began, ns.
///
/// Errors: a file that is no recording.
pub fn start_ns(file: &Path) -> Result<u64, RecordingError> {
    Reader::open(file).map(|reader| reader.start_ns)
}

/// Runs a recording again, with its events for the observer.
///
/// Errors: as those of [`replay`].
pub fn observe(file: &Path, observer: Observer) -> Result<Replayed, ReplayError> {
    run(file, None, Some(observer))
}

fn run(file: &Path, told_step: Option<u64>, observer: Option<Observer>) -> Result<Replayed, ReplayError> {
    let refused = |error| ReplayError::Recording { error, replayed: Replayed::default() };
    let reader = Reader::open(file).map_err(refused)?;
    let config = Config::parse(&reader.settings, "its settings");
    let config = config.map_err(|error| refused(reader.damaged(error.to_string())))?;
    let replay = Arc::new(Mutex::new(Replay::new(reader, told_step, observer)));
    let ran = catch_unwind(AssertUnwindSafe(|| run_steps(&replay, &config)));
    let (step, replayed) = locked(&replay).standing();
    match ran {
        Ok(()) => Ok(replayed),
        Err(stopped) => Err(match stopped.downcast::<ReplayError>() {
            Ok(error) => *error,
            Err(_) => ReplayError::Panics { step, replayed },
        }),
    }
}

/// Runs it to its end, or until the replay unwinds.
fn run_steps(replay: &Arc<Mutex<Replay>>, config: &Config) {
    let (memory, link) = (Source::Replayed(replay.clone()), Source::Replayed(replay.clone()));
    let now = locked(replay).now();
    let events = Box::new(Source::<Box<dyn EventSink>>::Replayed(replay.clone()));
    let silent = Box::new(|_: &str| ());
    let device = Device::new(&config.nic(), memory, link, events, silent, now);
    let mut device = device.unwrap_or_else(|error| locked(replay).damaged(error.to_string()));
    let clock = replay.clone();
    device.stamp_by(move || locked(&clock).stamp());
    loop {
        let step = locked(replay).step();
        match step {
            Step::Round(now) => drop(device.poll(now)),
            Step::LastRound(now) => drop(device.poll_last(now)),
            Step::Command(arguments) => {
                let answer = replay_command(&mut device, replay, &arguments);
                locked(replay).answered(&arguments, answer);
            }
            Step::End => return,
        }
    }
}
