//! What the device asks of its host, recorded or from a recording. Without one it asks the host itself.

use std::sync::{Arc, Mutex};

use mlx5_device::Reason;
use mlx5_device::command::{ContextId, EventSink};
use mlx5_device::memory::{Fault, Memory, Registers};

use super::entry::{Place, Tag};
use super::events::Event;
use super::recorder::Recorder;
use super::replayer::Replay;
use crate::os::locked;

/// A part of the host.
pub enum Source<T, R = Arc<Recorder>, P = Arc<Mutex<Replay>>> {
    Recorded(T, R),
    Replayed(P),
}

impl<T> Source<T> {
    /// The part of a device that is recorded.
    pub fn recorded(&mut self) -> &mut T {
        match self {
            Source::Recorded(part, _) => part,
            Source::Replayed(_) => unreachable!("only a device is replayed, without its process"),
        }
    }
}

/// Asks a part of the host, by reference or mutable reference, and records or replays its answer.
macro_rules! ask {
    ($source:expr, $tag:expr, $asked:expr, $part:ident => $answer:expr) => {
        ask!($source, $tag, $asked, $part => $answer, |_| None)
    };
    ($source:expr, $tag:expr, $asked:expr, $part:ident => $answer:expr, $event:expr) => {
        ask!($source, $tag; at $crate::recording::entry::Place::of($tag), $asked, $part => $answer, $event)
    };
    ($source:expr, $tag:expr; at $place:expr, $asked:expr, $part:ident => $answer:expr, $event:expr) => {
        match $source {
            $crate::recording::source::Source::Recorded($part, recorder) => {
                let answer = $answer;
                recorder.note($tag, &$asked);
                $crate::recording::answer::Answer::record(&answer, recorder, $tag, $place);
                answer
            }
            $crate::recording::source::Source::Replayed(replay) => {
                $crate::recording::answer::replayed(replay, $tag, $place, &$asked, $event)
            }
        }
    };
}
pub(super) use ask;

/// Methods that ask the part of the host by its method of the same name; the arguments are the question.
macro_rules! asked {
    ($self:ident: $(fn $name:ident(& $($mut:ident)? $(; $arg:ident: $type:ty)*) -> $answer:ty = $tag:ident;)*) => { $(
        fn $name(& $($mut)? $self $(, $arg: $type)*) -> $answer {
            $crate::recording::source::ask!($self, Tag::$tag, ($($arg),*), part => part.$name($($arg),*))
        }
    )* };
}
pub(super) use asked;

/// Methods whose answer the device does not go by: no recording has it, and a replay has this instead.
macro_rules! unrecorded {
    ($self:ident: $(fn $name:ident(& $($mut:ident)? $(; $arg:ident: $type:ty)*) -> $answer:ty = $replayed:expr;)*) => { $(
        fn $name(& $($mut)? $self $(, $arg: $type)*) -> $answer {
            match $self {
                $crate::recording::source::Source::Recorded(part, _) => part.$name($($arg),*),
                $crate::recording::source::Source::Replayed(_) => $replayed,
            }
        }
    )* };
}
pub(super) use unrecorded;

impl<M: Memory> Memory for Source<M> {
    asked! { self:
        fn store32(&; addr: u64; value: u32) -> Result<(), Fault> = Store;
        fn compare_swap32(&; addr: u64; compare: u32; swap: u32) -> Result<u32, Fault> = Swap32;
        fn compare_swap64(&; addr: u64; compare: u64; swap: u64) -> Result<u64, Fault> = Swap64;
        fn fetch_add64(&; addr: u64; add: u64) -> Result<u64, Fault> = Add64;
        fn probe(&; addr: u64; len: u64; write: bool) -> Result<(), Fault> = Probe;
    }

    unrecorded! { self:
        fn prefetch(&; addr: u64) -> () = ();
    }

    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        match self {
            Source::Recorded(memory, recorder) => {
                let read = memory.read(addr, out);
                recorder.read(addr, out, read);
                read
            }
            Source::Replayed(replay) => locked(replay).read(addr, out),
        }
    }

    /// Counters of a doorbell record are big-endian.
    fn load32(&self, addr: u64) -> Result<u32, Fault> {
        let loaded = ask!(self, Tag::Load; at Place::of_load(addr), addr,
            memory => memory.load32(addr).map(u32::swap_bytes), |_| None);
        loaded.map(u32::swap_bytes)
    }

    fn write(&self, addr: u64, bytes: &[u8], relaxed: bool) -> Result<(), Fault> {
        // Of what the device itself writes in order only CQEs are so long.
        let completion = |written: &Result<(), Fault>| {
            written.ok().filter(|()| !relaxed).and_then(|()| Event::completion(bytes))
        };
        let asked = (addr, bytes, relaxed);
        ask!(self, Tag::Write, asked, memory => memory.write(addr, bytes, relaxed), completion)
    }

    #[inline]
    fn has_lagged(&self) -> bool {
        let lagged: Option<[u64; 0]> =
            ask!(self, Tag::Lagged, (), memory => memory.has_lagged().then_some([]));
        lagged.is_some()
    }
}

impl Registers for Source<Box<dyn Registers>> {
    fn take(&self, offset: usize) -> Option<[u8; 8]> {
        let rung = |taken: &Option<[u64; 1]>| taken.map(|[register]| Event::doorbell(register.to_be_bytes()));
        let taken = ask!(self, Tag::TakeRegister, offset,
            registers => registers.take(offset).map(|register| [u64::from_be_bytes(register)]), rung);
        taken.map(|[register]| register.to_be_bytes())
    }

    fn any(&self, offsets: &[usize]) -> bool {
        let any: Option<[u64; 0]> =
            ask!(self, Tag::AnyRegister, (), registers => registers.any(offsets).then_some([]));
        any.is_some()
    }
}

impl EventSink for Source<Box<dyn EventSink>> {
    asked! { self:
        fn completion(&mut; channel: u32; cq_user_handle: u64) -> bool = Completion;
        fn asynchronous(&mut; context: ContextId; element: u64; event_type: u32) -> bool = Asynchronous;
        fn withdraw_completions(&mut; channel: u32; cq_user_handle: u64) -> u32 = Withdraw;
        fn withdraw_asynchronous(&mut; context: ContextId; element: u64) -> u32 = Withdraw;
    }

    unrecorded! { self:
        fn explain(&mut; reason: Reason) -> () = ();
    }
}
