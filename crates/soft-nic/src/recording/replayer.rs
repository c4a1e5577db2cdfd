//! What a replayed device asks: answers of a recording, in their order, and what the device does compared with it.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Mutex, MutexGuard};

use mlx5_device::carrier::Unsent;
use mlx5_device::memory::Fault;
use roce::{Now, Packet};

use super::answer::{Answer, failure_of};
use super::decoder::{Body, Decoder, Entry};
use super::entry::{Digest, History, Place, Question, Tag};
use super::events::{Event, Objects, Observer, Transfer};
use super::format::{Reader, RecordingError};
use super::message::{self, Facts};
use crate::os::locked;

/// Longest account of a step, bytes.
const MAX_ACCOUNT: usize = 2048;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Rounds and commands.
    pub steps: u64,
    /// Packets, and messages of shared memory, that left.
    pub packets: u64,
    pub completions: u64,
    /// Of all that the device asked and did: headers, where payload lay, and whole CQEs.
    pub hash: u64,
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Replayed { steps, packets, completions, hash } = self;
        write!(f, "{packets} packets and {completions} completions in {steps} steps, hash {hash:016x}")
    }
}

/// Why a replay did not come to the end of its recording.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("{error} (as recorded until then: {replayed})")]
    Recording { error: RecordingError, replayed: Replayed },
    #[error("differs in step {}, {step}: expected {expected}, came {came} (as recorded until then: {replayed})", replayed.steps)]
    Differs { step: String, expected: String, came: String, replayed: Replayed },
    #[error("the device panics in step {}, {step} (as recorded until then: {replayed})", replayed.steps)]
    Panics { step: String, replayed: Replayed },
}

/// A recording as the device's host. What it answers is cold: its code must not weigh on a device that is recorded.
pub struct Replay(Mutex<State>);

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Replay")
    }
}

struct State {
    decoder: Decoder,
    /// The next entry, or why there is none.
    next: Result<Entry, Option<RecordingError>>,
    /// Answers as guessed since the last entry.
    guessed: u32,
    history: History,
    digest: Digest,
    now: u64,
    objects: Objects,
    replayed: Replayed,
    step: String,
    /// What the device did in this step, in words, when it is the step that is to be told of.
    account: String,
    told_step: Option<u64>,
    observer: Option<Observer>,
}

/// What goes into the device next.
pub enum Step {
    Round(Now),
    LastRound(Now),
    /// Its arguments.
    Command(Vec<u8>),
    End,
}

impl State {
    fn read_next(&mut self) {
        self.next = self.decoder.next_entry().map_err(Some);
    }

    /// Ends the replay: unwinds out of the device, without a panic.
    fn stop(&self, error: ReplayError) -> ! {
        resume_unwind(Box::new(error))
    }

    fn refuse(&self, error: RecordingError) -> ! {
        self.stop(ReplayError::Recording { error, replayed: self.replayed.clone() })
    }

    fn damaged(&self, what: String) -> ! {
        self.refuse(self.decoder.reader.damaged(what))
    }

    fn unreadable(&self, tag: Tag) -> ! {
        self.damaged(format!("{} cannot be read", tag.name()))
    }

    fn differs(&self, expected: String, came: String) -> ! {
        let (step, replayed) = (self.step.clone(), self.replayed.clone());
        self.stop(ReplayError::Differs { step, expected, came, replayed })
    }

    /// Something that the device asks or does.
    fn note(&mut self, tag: Tag, asked: &impl Question) {
        self.digest.note(tag, asked);
        self.replayed.hash = self.digest.0;
        if self.told_step == Some(self.replayed.steps) && self.account.len() < MAX_ACCOUNT {
            let name = if self.account.is_empty() { "" } else { ", " };
            self.account += &format!("{name}{} {asked:?}", tag.name());
        }
    }

    /// The account of the step.
    fn came(&self, tag: Tag) -> String {
        if self.account.is_empty() { tag.name().to_owned() } else { self.account.clone() }
    }

    /// Kind of the next entry; `None`: an answer as guessed goes before it.
    fn peek(&mut self) -> Option<Tag> {
        loop {
            let (tag, guessed) = match &mut self.next {
                Ok(entry) => (entry.tag, entry.guessed),
                Err(error) => {
                    let error = error.take();
                    let error = error.unwrap_or_else(|| self.decoder.reader.cut_off("nothing follows"));
                    self.refuse(error)
                }
            };
            match tag {
                _ if self.guessed < guessed => return None,
                Tag::Guessed => drop(self.consume()),
                tag => return Some(tag),
            }
        }
    }

    /// Takes the next entry, before which all answers as guessed must have been asked for.
    fn consume(&mut self) -> Body {
        let entry = match std::mem::replace(&mut self.next, Err(None)) {
            Ok(entry) => entry,
            Err(error) => {
                self.next = Err(error);
                self.peek();
                unreachable!("there is no entry")
            }
        };
        if entry.guessed != self.guessed {
            let expected = format!("{} questions before {}", entry.guessed, entry.tag.name());
            self.differs(expected, format!("{} questions", self.guessed));
        }
        self.guessed = 0;
        if entry.tag == Tag::End {
            let ended = self.decoder.is_at_end();
            let more = || self.decoder.reader.damaged("something follows the end".to_owned());
            self.next = Err(ended.map_or_else(Some, |ended| (!ended).then(more)));
        } else {
            self.read_next();
        }
        entry.body
    }

    fn values(&mut self, tag: Tag, place: Place) -> Vec<u64> {
        let Body::Values(mut values) = self.consume() else { self.unreadable(tag) };
        self.history.apply(place, &mut values);
        values
    }

    fn failure(&mut self) -> Unsent {
        let Body::Values(values) = self.consume() else { self.unreadable(Tag::Failed) };
        failure_of(&values).unwrap_or_else(|| self.unreadable(Tag::Failed))
    }

    fn bytes(&mut self, tag: Tag) -> Vec<u8> {
        match self.consume() {
            Body::Bytes(bytes) => bytes,
            _ => self.unreadable(tag),
        }
    }

    /// The device asks what was not recorded here.
    fn unexpected(&self, next: Option<Tag>, tag: Tag) -> ! {
        let expected = next.map_or("a question with an answer as guessed", Tag::name);
        self.differs(expected.to_owned(), self.came(tag))
    }

    fn answer<const N: usize, A: Answer<N>>(&mut self, tag: Tag, place: Place) -> A {
        let answer = match self.peek() {
            None => {
                let mut values = [0; N];
                self.guessed += 1;
                self.history.apply(place, &mut values);
                A::of(values)
            }
            Some(Tag::Failed) => A::failed(self.failure()),
            Some(next) if next == tag => self.values(tag, place).try_into().ok().and_then(A::of),
            next => self.unexpected(next, tag),
        };
        answer.unwrap_or_else(|| self.unreadable(tag))
    }

    /// The entry of a question that has one seldom.
    fn seldom<T>(&mut self, tag: Tag, take: impl FnOnce(&mut State) -> T) -> Option<T> {
        match self.peek() {
            None => {
                self.guessed += 1;
                None
            }
            Some(next) if next == tag => Some(take(self)),
            next => self.unexpected(next, tag),
        }
    }

    /// Takes a time; compares what the device did before it.
    fn time(&mut self, tag: Tag) -> Now {
        let Body::Time { passed_ns, digest } = self.consume() else { self.unreadable(tag) };
        if digest != self.digest.short() {
            let expected = format!("what was recorded (digest {digest:04x})");
            let came = format!("{} (digest {:04x})", self.account, self.digest.short());
            self.differs(expected, came);
        }
        self.now = self.now.saturating_add(passed_ns.into());
        Now(self.now)
    }

    /// Takes a clock's time where there is one. Returns the kind of what follows.
    fn clock(&mut self) -> Option<Tag> {
        let next = self.peek();
        if next != Some(Tag::Clock) {
            return next;
        }
        let values = self.values(Tag::Clock, Place::of(Tag::Clock));
        let [now] = values[..] else { self.unreadable(Tag::Clock) };
        self.now = now;
        self.peek()
    }

    fn step(&mut self) -> Step {
        let Some(tag) = self.clock() else { self.unexpected(None, Tag::End) };
        let step = match tag {
            Tag::Round => Step::Round(self.time(tag)),
            Tag::LastRound => Step::LastRound(self.time(tag)),
            Tag::Command => {
                self.time(tag);
                if self.peek() != Some(Tag::Arguments) {
                    self.unreadable(tag);
                }
                Step::Command(self.bytes(Tag::Arguments))
            }
            Tag::End => {
                let values = self.values(tag, Place::of(tag));
                let [digest] = values[..] else { self.unreadable(tag) };
                if digest != self.digest.0 {
                    let came = format!("{} (digest {:016x})", self.account, self.digest.0);
                    self.differs(format!("what was recorded (digest {digest:016x})"), came);
                }
                if let Err(Some(_)) = self.next {
                    self.peek();
                }
                return Step::End;
            }
            _ => self.differs(tag.name().to_owned(), "the end of the step".to_owned()),
        };
        self.replayed.steps += 1;
        let at_ms = self.now.saturating_sub(self.decoder.reader.start_ns) as f64 / 1e6;
        self.step = format!("{} at {at_ms:.6} ms", tag.name());
        self.account.clear();
        step
    }

    fn happened(&mut self, event: Option<(u32, Event)>) {
        match event {
            Some((_, Event::Sent(Transfer { lost: false, .. }))) => self.replayed.packets += 1,
            Some((_, Event::Completion { .. })) => self.replayed.completions += 1,
            _ => {}
        }
        if let (Some(observer), Some((qpn, event))) = (&mut self.observer, event) {
            observer(self.now, qpn, event);
        }
    }
}

impl Replay {
    /// `told_step`: the step of which a difference has an account.
    pub fn new(reader: Reader, told_step: Option<u64>, observer: Option<Observer>) -> Replay {
        let now = reader.start_ns;
        let mut state = State {
            decoder: Decoder::new(reader),
            next: Err(None),
            guessed: 0,
            history: History::default(),
            digest: Digest::default(),
            now,
            objects: Objects::default(),
            replayed: Replayed::default(),
            step: "the start".to_owned(),
            account: String::new(),
            told_step,
            observer,
        };
        state.read_next();
        Replay(Mutex::new(state))
    }

    pub fn now(&self) -> Now {
        Now(self.state().now)
    }

    pub fn step(&self) -> Step {
        self.state().step()
    }

    /// The step that is run, and what was replayed so far.
    pub fn standing(&self) -> (String, Replayed) {
        let state = self.state();
        (state.step.clone(), state.replayed.clone())
    }

    /// Ends the replay: the recording cannot be used.
    pub fn refuse(&self, what: String) -> ! {
        self.state().damaged(what)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0)
    }

    /// Something that the device does without an answer.
    #[cold]
    pub fn note(&self, tag: Tag, done: &impl Question) {
        self.state().note(tag, done);
    }

    /// The answer to a question. `event` says what it means for a queue pair.
    #[cold]
    pub fn ask<const N: usize, A: Answer<N>>(
        &self,
        tag: Tag,
        place: Place,
        asked: &impl Question,
        event: impl FnOnce(&Objects, &A) -> Option<(u32, Event)>,
    ) -> A {
        let mut state = self.state();
        state.note(tag, asked);
        let answer = state.answer(tag, place);
        let event = event(&state.objects, &answer);
        state.happened(event);
        answer
    }

    /// A register that was written.
    #[cold]
    pub fn take_register(&self, offset: usize) -> Option<[u8; 8]> {
        let tag = Tag::TakeRegister;
        let mut state = self.state();
        state.note(tag, &offset);
        let values = state.seldom(tag, |state| state.values(tag, Place::of(tag)))?;
        let [register] = values[..] else { state.unreadable(tag) };
        state.happened(Some(Event::doorbell(register.to_be_bytes())));
        Some(register.to_be_bytes())
    }

    /// Whether the answer is the one that comes seldom.
    #[cold]
    pub fn is(&self, tag: Tag) -> bool {
        let mut state = self.state();
        state.note(tag, &());
        state.seldom(tag, |state| drop(state.consume())).is_some()
    }

    #[cold]
    pub fn bytes(&self, tag: Tag, asked: &impl Question) -> Option<Vec<u8>> {
        let mut state = self.state();
        state.note(tag, asked);
        state.seldom(tag, |state| state.bytes(tag))
    }

    #[cold]
    pub fn text(&self, tag: Tag, asked: &impl Question) -> Option<String> {
        self.bytes(tag, asked).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Bytes that the memory, or a message, gave.
    #[cold]
    pub fn copy(&self, tag: Tag, asked: &impl Question, out: &mut [u8]) -> Result<(), Fault> {
        let mut state = self.state();
        state.note(tag, asked);
        let bytes = match state.peek() {
            Some(Tag::Failed) => match state.failure() {
                Unsent::Fault(fault) => return Err(fault),
                _ => state.unreadable(tag),
            },
            Some(next) if next == tag => state.bytes(tag),
            next => state.unexpected(next, tag),
        };
        if bytes.len() != out.len() {
            let came = format!("{} with {} bytes", state.came(tag), out.len());
            state.differs(format!("{} with {} bytes", tag.name(), bytes.len()), came);
        }
        out.copy_from_slice(&bytes);
        Ok(())
    }

    /// A read of memory, a WQE's among others.
    #[cold]
    pub fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        let asked = (addr, out.len());
        let tag = Tag::of_read(out.len());
        let read = match out.len() {
            64 => self.read_words::<8>(&asked, out),
            32 => self.read_words::<4>(&asked, out),
            16 => self.read_words::<2>(&asked, out),
            _ => self.copy(tag, &asked, out),
        };
        read?;
        let mut state = self.state();
        let event = state.objects.wqe(addr, out);
        state.happened(event);
        Ok(())
    }

    fn read_words<const N: usize>(&self, asked: &impl Question, out: &mut [u8]) -> Result<(), Fault> {
        let words: Result<[u64; N], Fault> = self.ask(Tag::Read, Place::of(Tag::Read), asked, |_, _| None);
        words?.iter().zip(out.as_chunks_mut().0).for_each(|(word, place)| *place = word.to_be_bytes());
        Ok(())
    }

    /// The next packet that had come when the device looked.
    #[cold]
    pub fn next_packet(&self) -> Option<(Packet, Facts)> {
        let mut state = self.state();
        let tag = state.peek()?;
        if !matches!(tag, Tag::Record | Tag::Datagram | Tag::Packet) {
            return None;
        }
        let values = state.values(tag, Place::of(tag));
        let (packet, facts) = message::decode(tag, &values).unwrap_or_else(|| state.unreadable(tag));
        state.happened(Some(Event::arrival(&packet)));
        Some((packet, facts))
    }

    /// The time of the device's clock.
    pub fn stamp(&self) -> Now {
        let mut state = self.state();
        match state.clock() {
            Some(Tag::Stamp) => state.time(Tag::Stamp),
            next => state.unexpected(next, Tag::Stamp),
        }
    }

    /// Takes the answer to a command; `None`: there is no such command.
    pub fn answered(&self, arguments: &[u8], answer: Option<Vec<u8>>) {
        let mut state = self.state();
        let Some(answer) = answer else { state.unreadable(Tag::Command) };
        state.note(Tag::Command, &&*answer);
        for qpn in state.objects.answered(arguments, &answer).unwrap_or_default() {
            state.happened(Some((qpn, Event::Reset)));
        }
    }
}
