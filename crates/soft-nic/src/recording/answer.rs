//! Answers to the device: how a recording has each, and how a replay gives it again.

use std::sync::Mutex;

use mlx5_device::carrier::{Position, Sent};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::entry::{MOST_VALUES, Place, Question, Tag};
use super::events::Event;
use super::recorder::Recorder;
use super::replayer::Replay;
use crate::os::locked;

pub trait Answer: Sized {
    fn record(&self, recorder: &Recorder, tag: Tag, place: Place);

    fn replay(replay: &mut Replay, tag: Tag, place: Place) -> Self;
}

/// Answers that are numbers: as these, and of these, if any device gets such an answer.
macro_rules! plain {
    ($($type:ty, $count:literal: $answer:pat => $values:expr, $taken:pat => $of:expr;)*) => { $(
        const _: () = assert!(MOST_VALUES.checked_sub($count).is_some());

        impl Answer for $type {
            #[inline(always)]
            fn record(&self, recorder: &Recorder, tag: Tag, place: Place) {
                let $answer = *self;
                let mut values: [u64; $count] = $values;
                recorder.values(tag, place, &mut values);
            }

            fn replay(replay: &mut Replay, tag: Tag, place: Place) -> Self {
                let mut values = [0; $count];
                replay.values(tag, place, &mut values);
                let of = |$taken: [u64; $count]| $of;
                of(values).unwrap_or_else(|| replay.unreadable(tag))
            }
        }
    )* };
}
plain! {
    (), 0: () => [], [] => Some(());
    bool, 1: value => [value.into()], [value] => Some(value != 0);
    u8, 1: value => [value.into()], [value] => value.try_into().ok();
    u32, 1: value => [value.into()], [value] => value.try_into().ok();
    u64, 1: value => [value], [value] => Some(value);
    usize, 1: value => [value as u64], [value] => value.try_into().ok();
    Sent, 3: Sent { position: Position { channel, offset }, carried } => [channel.into(), offset, carried.into()],
        [channel, offset, carried] => {
            let position = Position { channel: channel.try_into().ok()?, offset };
            Some(Sent { position, carried: carried.try_into().ok()? })
        };
}

/// A failure is an entry of its own.
impl<A: Answer, E: Serialize + DeserializeOwned> Answer for Result<A, E> {
    #[inline(always)]
    fn record(&self, recorder: &Recorder, tag: Tag, place: Place) {
        match self {
            Ok(answer) => answer.record(recorder, tag, place),
            Err(failure) => recorder.failed(failure),
        }
    }

    fn replay(replay: &mut Replay, tag: Tag, place: Place) -> Self {
        match replay.failure() {
            Some(failure) => Err(failure),
            None => Ok(A::replay(replay, tag, place)),
        }
    }
}

/// What is seldom there: nothing is as guessed.
impl<const N: usize> Answer for Option<[u64; N]> {
    #[inline(always)]
    fn record(&self, recorder: &Recorder, tag: Tag, _: Place) {
        match *self {
            None => recorder.guessed(),
            Some(values) => recorder.entry(tag, values),
        }
    }

    fn replay(replay: &mut Replay, tag: Tag, place: Place) -> Self {
        if replay.takes_guessed() { None } else { Some(replay.entry(tag, place)) }
    }
}

/// The answer that a recording has. `event` says what it means for a queue pair.
#[cold]
pub fn replayed<A: Answer>(
    replay: &Mutex<Replay>,
    tag: Tag,
    place: Place,
    asked: &impl Question,
    event: impl FnOnce(&A) -> Option<(u32, Event)>,
) -> A {
    let mut replay = locked(replay);
    replay.note(tag, asked);
    let answer = A::replay(&mut replay, tag, place);
    replay.happened(event(&answer));
    answer
}
