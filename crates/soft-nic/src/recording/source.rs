//! What the device asks of its machine: live, recorded, or answered from a recording.

use std::sync::Arc;

use mlx5_device::Reason;
use mlx5_device::command::{ContextId, EventSink};
use mlx5_device::memory::{Fault, Memory, Registers};
use mlx5_device::threads::{ThreadTime, Threads};

use super::answer::Answer;
use super::recorder::Recorder;
use super::replayer::Replay;
use super::tag::Tag;
use super::values::{Put, Take};

/// Most threads that one look at them keeps.
const MAX_THREADS: usize = 1024;

/// Where the answers to a part of the device come from.
#[derive(Debug)]
pub enum Source<T> {
    Live(T),
    Recorded(T, Arc<Recorder>),
    Replayed(Arc<Replay>),
}

impl<T> Source<T> {
    pub fn new(machine: T, recorder: Option<&Arc<Recorder>>) -> Source<T> {
        match recorder {
            None => Source::Live(machine),
            Some(recorder) => Source::Recorded(machine, recorder.clone()),
        }
    }

    #[inline]
    fn by_ref(&self) -> Asked<'_, &T> {
        match self {
            Source::Live(machine) => Asked::Live(machine),
            Source::Recorded(machine, recorder) => Asked::Recorded(machine, recorder),
            Source::Replayed(replay) => Asked::Replayed(replay),
        }
    }

    #[inline]
    fn by_mut(&mut self) -> Asked<'_, &mut T> {
        match self {
            Source::Live(machine) => Asked::Live(machine),
            Source::Recorded(machine, recorder) => Asked::Recorded(machine, recorder),
            Source::Replayed(replay) => Asked::Replayed(replay),
        }
    }

    /// A question. What is asked is kept with an answer that is not the usual one.
    #[inline]
    pub(super) fn ask<A: Answer>(&self, tag: Tag, asked: impl Put, answer: impl FnOnce(&T) -> A) -> A {
        self.by_ref().ask(tag, asked, answer)
    }

    #[inline]
    pub(super) fn ask_mut<A: Answer>(
        &mut self,
        tag: Tag,
        asked: impl Put,
        answer: impl FnOnce(&mut T) -> A,
    ) -> A {
        self.by_mut().ask(tag, asked, answer)
    }

    /// Something that the device does: always kept, and compared.
    #[inline]
    pub(super) fn tell<A: Put + Take>(&self, tag: Tag, told: impl Put, answer: impl FnOnce(&T) -> A) -> A {
        self.by_ref().tell(tag, told, answer)
    }

    #[inline]
    pub(super) fn tell_mut<A: Put + Take>(
        &mut self,
        tag: Tag,
        told: impl Put,
        answer: impl FnOnce(&mut T) -> A,
    ) -> A {
        self.by_mut().tell(tag, told, answer)
    }
}

/// A [`Source`] for one question, by reference.
enum Asked<'a, M> {
    Live(M),
    Recorded(M, &'a Recorder),
    Replayed(&'a Replay),
}

impl<M> Asked<'_, M> {
    #[inline]
    fn ask<A: Answer>(self, tag: Tag, asked: impl Put, answer: impl FnOnce(M) -> A) -> A {
        match self {
            Asked::Live(machine) => answer(machine),
            Asked::Recorded(machine, recorder) => note(recorder, tag, asked, answer(machine)),
            Asked::Replayed(replay) => replay.answer(tag, asked),
        }
    }

    #[inline]
    fn tell<A: Put + Take>(self, tag: Tag, told: impl Put, answer: impl FnOnce(M) -> A) -> A {
        match self {
            Asked::Live(machine) => answer(machine),
            Asked::Recorded(machine, recorder) => {
                let answer = answer(machine);
                recorder.entry(tag, (told, &answer));
                answer
            }
            Asked::Replayed(replay) => replay.told(tag, told),
        }
    }
}

pub(super) fn note<A: Answer>(recorder: &Recorder, tag: Tag, asked: impl Put, answer: A) -> A {
    if answer.is_usual() {
        recorder.usual(tag);
    } else {
        recorder.entry(tag, (asked, &answer));
    }
    answer
}

impl<M: Memory> Memory for Source<M> {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        match self {
            Source::Live(memory) => memory.read(addr, out),
            Source::Recorded(memory, recorder) => {
                let read = memory.read(addr, out);
                recorder.read(addr, out, read);
                read
            }
            Source::Replayed(replay) => replay.read(addr, out),
        }
    }

    fn load32(&self, addr: u64) -> Result<u32, Fault> {
        match self {
            Source::Live(memory) => memory.load32(addr),
            Source::Recorded(memory, recorder) => {
                let loaded = memory.load32(addr);
                recorder.load(addr, loaded);
                loaded
            }
            Source::Replayed(replay) => replay.load(addr),
        }
    }

    fn store32(&self, addr: u64, value: u32) -> Result<(), Fault> {
        self.tell(Tag::Store, (addr, value), |memory| memory.store32(addr, value))
    }

    fn write(&self, addr: u64, bytes: &[u8], relaxed: bool) -> Result<(), Fault> {
        self.tell(Tag::Write, (addr, bytes), |memory| memory.write(addr, bytes, relaxed))
    }

    fn compare_swap32(&self, addr: u64, compare: u32, swap: u32) -> Result<u32, Fault> {
        let told = (addr, compare, swap);
        self.tell(Tag::Swap32, told, |memory| memory.compare_swap32(addr, compare, swap))
    }

    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        let told = (addr, compare, swap);
        self.tell(Tag::Swap64, told, |memory| memory.compare_swap64(addr, compare, swap))
    }

    fn fetch_add64(&self, addr: u64, add: u64) -> Result<u64, Fault> {
        self.tell(Tag::Add64, (addr, add), |memory| memory.fetch_add64(addr, add))
    }

    fn prefetch(&self, addr: u64) {
        if let Source::Live(memory) | Source::Recorded(memory, _) = self {
            memory.prefetch(addr);
        }
    }

    fn has_lagged(&self) -> bool {
        self.ask(Tag::Lagged, (), M::has_lagged)
    }

    fn probe(&self, addr: u64, len: u64, write: bool) -> Result<(), Fault> {
        self.ask(Tag::Probe, (addr, len, write), |memory| memory.probe(addr, len, write))
    }
}

impl Registers for Source<Box<dyn Registers>> {
    fn take(&self, offset: usize) -> Option<[u8; 8]> {
        self.ask(Tag::TakeRegister, offset, |registers| registers.take(offset))
    }

    fn any(&self, offsets: &[usize]) -> bool {
        self.ask(Tag::AnyRegister, (), |registers| registers.any(offsets))
    }
}

impl EventSink for Source<Box<dyn EventSink>> {
    fn completion(&mut self, channel: u32, cq_user_handle: u64) -> bool {
        let told = (channel, cq_user_handle);
        self.tell_mut(Tag::Completion, told, |events| events.completion(channel, cq_user_handle))
    }

    fn asynchronous(&mut self, context: ContextId, element: u64, event_type: u32) -> bool {
        let told = (context, element, event_type);
        self.tell_mut(Tag::Asynchronous, told, |events| events.asynchronous(context, element, event_type))
    }

    fn explain(&mut self, reason: Reason) {
        if let Source::Live(events) | Source::Recorded(events, _) = self {
            events.explain(reason);
        }
    }

    fn withdraw_completions(&mut self, channel: u32, cq_user_handle: u64) -> u32 {
        let told = (channel, cq_user_handle);
        self.tell_mut(Tag::Withdraw, told, |events| events.withdraw_completions(channel, cq_user_handle))
    }

    fn withdraw_asynchronous(&mut self, context: ContextId, element: u64) -> u32 {
        let told = (context, element);
        self.tell_mut(Tag::Withdraw, told, |events| events.withdraw_asynchronous(context, element))
    }
}

impl Threads for Source<Box<dyn Threads>> {
    fn look(&mut self) -> Vec<ThreadTime> {
        self.ask_mut(Tag::Threads, (), |threads| {
            let mut times = threads.look();
            times.truncate(MAX_THREADS);
            times
        })
    }
}
