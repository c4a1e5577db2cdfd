//! States of a GPU's mover, and all that leads from one to the next. In `Runs` it moves the messages, in
//! `Reset` they fail, and in every other state the copy engine moves them.
//!
//! A mover that takes too long shares the GPU with another process, and has it in turns only: it rests, since
//! the copy engine does better. Knows nothing of CUDA; the time is an argument.

use std::time::{Duration, Instant};

/// What a command may take, whatever its length.
const SLOW: Duration = Duration::from_micros(100);
/// And beside that for its bytes: 8 GB/s. One block alone moves 2 MiB into the GPU in 196 µs, 10.7 GB/s
/// (H200). Beside kernels that fill the GPU and poll it takes 450 and counts as slow: the engine takes 60.
const BYTES_PER_NS: u64 = 8;
/// What a launch may take; the driver and a thread add to it (H200, GPU not shared: 45 to 200 µs).
const SLOW_START: Duration = Duration::from_micros(250);
/// How long it rests: when slow once, as while the driver registers pages, and when slow again and again.
const REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_millis(160);

/// Where the mover stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No instance runs: the next command has one launched.
    Ended,
    /// An instance was launched, and is waited for until it begins.
    Launched,
    /// It did not begin in time, and is looked at at each command.
    Late,
    /// It takes commands.
    Runs,
    /// It was slow.
    Rests { until: Instant },
    /// The driver refused a launch.
    Refused { until: Instant },
    /// It left a command unanswered. For good.
    Silent,
    /// The program has reset the GPU: messages fail. For good.
    Reset,
}

/// What happens to a mover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The driver is asked for an instance.
    Launch,
    /// A look at the instance's own words.
    Seen(Seen),
    StartTimedOut,
    LaunchRefused,
    /// A launch or a command took too long.
    Slow,
    CommandTimedOut,
    ContextReset,
}

/// What the present instance says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    Nothing,
    Begun,
    /// It takes no command any more.
    Ended,
}

/// A mover's state, and for how long it rests.
#[derive(Debug)]
pub struct StateMachine {
    state: State,
    /// It never counts as slow.
    patient: bool,
    /// The last rest, and its end.
    rest: Duration,
    rested: Option<Instant>,
}

impl StateMachine {
    /// Of a mover that was not launched yet.
    pub fn new(patient: bool) -> StateMachine {
        StateMachine { state: State::Ended, patient, rest: REST, rested: None }
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Takes an event; the state after it.
    pub fn on(&mut self, event: Event, now: Instant) -> State {
        self.state = match (self.state, event) {
            (State::Reset, _) | (_, Event::ContextReset) => State::Reset,
            (State::Silent, _) | (_, Event::CommandTimedOut) => State::Silent,
            (_, Event::LaunchRefused) => State::Refused { until: self.rest_until(now, LONGEST_REST) },
            (_, Event::Slow) => State::Rests { until: self.rest_until(now, self.rest) },
            (State::Rests { until } | State::Refused { until }, _) if now < until => self.state,
            // The words are of an instance before.
            (State::Refused { .. }, Event::Seen(_)) | (State::Ended, Event::Seen(_)) => State::Ended,
            (State::Ended, Event::Launch) => State::Launched,
            (_, Event::Seen(Seen::Ended)) => State::Ended,
            (_, Event::Seen(Seen::Begun)) => State::Runs,
            (State::Rests { .. }, Event::Seen(Seen::Nothing)) => State::Late,
            (State::Launched, Event::StartTimedOut) => State::Late,
            (state, _) => state,
        };
        self.state
    }

    fn rest_until(&mut self, now: Instant, rest: Duration) -> Instant {
        let until = now + rest;
        self.rested = Some(until);
        until
    }

    /// A launch, from when it was asked for until it had begun. True: that was slow, and it rests.
    pub fn note_launch(&mut self, since: Instant, now: Instant) -> bool {
        self.note(since, now, SLOW_START)
    }

    /// A command about `len` bytes. True: that was slow, and it rests.
    pub fn note_command(&mut self, since: Instant, now: Instant, len: u64) -> bool {
        self.note(since, now, SLOW + Duration::from_nanos(len / BYTES_PER_NS))
    }

    /// A slow mover rests for a while, and for longer where it is slow again soon after.
    fn note(&mut self, since: Instant, now: Instant, slow: Duration) -> bool {
        if now.saturating_duration_since(since) <= slow || self.patient {
            return false;
        }
        let soon = self.rested.is_some_and(|end| since < end + 2 * self.rest);
        self.rest = if soon { (2 * self.rest).min(LONGEST_REST) } else { REST };
        self.on(Event::Slow, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn rests(machine: &mut StateMachine, now: Instant) -> bool {
        matches!(machine.on(Event::Seen(Seen::Nothing), now), State::Rests { .. } | State::Refused { .. })
    }

    #[test]
    fn every_state_has_its_way_on_and_two_have_none() {
        use Event::*;
        let now = Instant::now();
        let (soon, later) = (now + REST / 2, now + LONGEST_REST);
        let rests = State::Rests { until: now + REST };
        let refused = State::Refused { until: later };
        let [begun, nothing, ended] =
            [super::Seen::Begun, super::Seen::Nothing, super::Seen::Ended].map(Seen);
        for (what, events, at, after) in [
            ("an instance that was never launched", &[begun][..], now, State::Ended),
            ("a launch", &[Launch], now, State::Launched),
            ("a look before it begins", &[Launch, nothing], now, State::Launched),
            ("it begins", &[Launch, begun], now, State::Runs),
            ("it ends by itself", &[Launch, begun, ended], now, State::Ended),
            ("the next one", &[Launch, begun, ended, Launch], now, State::Launched),
            ("begun and ended between two looks", &[Launch, ended], now, State::Ended),
            ("not begun in time", &[Launch, StartTimedOut], now, State::Late),
            ("late, and still not there", &[Launch, StartTimedOut, nothing], now, State::Late),
            ("late, and begins", &[Launch, StartTimedOut, begun], now, State::Runs),
            ("late, and it was all for nothing", &[Launch, StartTimedOut, ended], now, State::Ended),
            ("slow", &[Launch, begun, Slow], now, rests),
            ("slow, though it runs", &[Launch, Slow, begun], soon, rests),
            ("rested, and runs", &[Launch, Slow, begun], later, State::Runs),
            ("rested, and has ended", &[Launch, Slow, ended], later, State::Ended),
            ("rested, and has not begun", &[Launch, Slow, nothing], later, State::Late),
            ("refused", &[Launch, LaunchRefused], now, refused),
            ("refused, and tried too early", &[Launch, LaunchRefused, nothing], soon, refused),
            ("refused, and tried again", &[Launch, LaunchRefused, nothing], later, State::Ended),
            ("silent", &[Launch, begun, CommandTimedOut], now, State::Silent),
            ("silent for good", &[CommandTimedOut, Slow, ended, Launch], later, State::Silent),
            ("reset for good", &[CommandTimedOut, ContextReset, Slow, ended, Launch], later, State::Reset),
        ] {
            let mut machine = StateMachine::new(false);
            for (index, event) in events.iter().enumerate() {
                machine.on(*event, if index + 1 == events.len() { at } else { now });
            }
            assert_eq!(machine.state(), after, "{what}");
        }
    }

    #[test]
    fn a_command_is_slow_by_what_its_length_takes_without_help() {
        let begun = Instant::now();
        // As measured on an H200 (`docs/soft-nic.md`); kernels of two processes have it for some 2 ms each.
        for (what, len, took, slow) in [
            ("an atomic", 8, 11, false),
            ("an atomic in turns", 8, 2000, true),
            ("a short message that waited", 4096, 110, true),
            ("1 MiB into the GPU, eight blocks", 1 << 20, 32, false),
            ("1 MiB into the GPU, one block", 1 << 20, 102, false),
            ("2 MiB into the GPU, one block", 2 << 20, 200, false),
            ("2 MiB in turns", 2 << 20, 2000, true),
        ] {
            for patient in [false, true] {
                let (mut machine, end) = (StateMachine::new(patient), begun + took * US);
                assert_eq!(machine.note_command(begun, end, len), slow && !patient, "{what}");
                assert_eq!(rests(&mut machine, end), slow && !patient, "{what}");
            }
        }
    }

    #[test]
    fn a_mover_that_is_slow_again_rests_longer_each_time_and_one_that_was_not_begins_anew() {
        let mut machine = StateMachine::new(false);
        let mut now = Instant::now();
        for rest in [1, 2, 4, 8, 16, 32, 64, 128, 160, 160] {
            let since = now;
            now += 300 * US;
            assert!(machine.note_launch(since, now), "{rest}");
            assert!(rests(&mut machine, now + (rest * 1000 - 1) * US), "{rest}");
            now += rest * 1000 * US;
            assert!(!rests(&mut machine, now), "{rest}");
        }
        let later = now + 330_000 * US;
        assert!(
            !machine.note_launch(later, later + 250 * US) && machine.note_launch(later, later + 251 * US)
        );
        assert!(!rests(&mut machine, later + 1251 * US));
        machine.on(Event::LaunchRefused, later);
        assert!(rests(&mut machine, later + 159_999 * US) && !rests(&mut machine, later + 160_000 * US));
    }
}
