//! What a replayed device asks: a recording's answers in order; what the device does is compared with it.

use std::fmt;
use std::panic::resume_unwind;

use mlx5_device::carrier::Addressing;
use mlx5_device::memory::Fault;
use roce::{Now, Packet};
use serde::de::DeserializeOwned;

use super::entry::{Digest, History, Place, Question, Tag};
use super::events::{Event, Objects, Observer, Transfer};
use super::format::{Body, Entry, Reader, RecordingError};
use super::message;

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

/// A recording as the device's host. Its answers are cold: their code must not weigh on a recorded device.
pub struct Replay {
    reader: Reader,
    /// The next entry, where it was looked at already.
    next: Option<Entry>,
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

impl Replay {
    /// `told_step`: the step of which a difference has an account.
    pub fn new(reader: Reader, told_step: Option<u64>, observer: Option<Observer>) -> Replay {
        let now = reader.start_ns;
        Replay {
            reader,
            next: None,
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
        }
    }

    pub fn now(&self) -> Now {
        Now(self.now)
    }

    /// The step that is run, and what was replayed so far.
    pub fn standing(&self) -> (String, Replayed) {
        (self.step.clone(), self.replayed.clone())
    }

    /// Ends the replay: unwinds out of the device, without a panic.
    fn stop(&self, error: ReplayError) -> ! {
        resume_unwind(Box::new(error))
    }

    fn refuse(&self, error: RecordingError) -> ! {
        self.stop(ReplayError::Recording { error, replayed: self.replayed.clone() })
    }

    /// Ends the replay: the recording cannot be used.
    pub fn damaged(&self, what: String) -> ! {
        self.refuse(self.reader.damaged(what))
    }

    pub fn unreadable(&self, tag: Tag) -> ! {
        self.damaged(format!("{} cannot be read", tag.name()))
    }

    fn differs(&self, expected: String, came: String) -> ! {
        let (step, replayed) = (self.step.clone(), self.replayed.clone());
        self.stop(ReplayError::Differs { step, expected, came, replayed })
    }

    /// Something that the device asks or does.
    #[cold]
    pub fn note(&mut self, tag: Tag, asked: &impl Question) {
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

    /// Takes the next entry out.
    fn next_entry(&mut self) -> Entry {
        let next = self.next.take().map_or_else(|| self.reader.next_entry(), Ok);
        next.unwrap_or_else(|error| self.refuse(error))
    }

    /// Kind of the next entry; `None`: an answer as guessed goes before it.
    fn peek(&mut self) -> Option<Tag> {
        loop {
            let entry = self.next_entry();
            let (tag, guessed) = (entry.tag, entry.guessed);
            self.next = Some(entry);
            match tag {
                _ if self.guessed < guessed => return None,
                Tag::Guessed => drop(self.consume()),
                tag => return Some(tag),
            }
        }
    }

    /// Takes the next entry, before which all answers as guessed must have been asked for.
    fn consume(&mut self) -> Body {
        let entry = self.next_entry();
        if entry.guessed != self.guessed {
            let expected = format!("{} questions before {}", entry.guessed, entry.tag.name());
            self.differs(expected, format!("{} questions", self.guessed));
        }
        self.guessed = 0;
        entry.body
    }

    /// Whether the next answer is as guessed, which is taken then.
    pub fn takes_guessed(&mut self) -> bool {
        let is_guessed = self.peek().is_none();
        self.guessed += u32::from(is_guessed);
        is_guessed
    }

    /// What follows must be an entry of this kind.
    fn expect(&mut self, tag: Tag) {
        let next = self.peek();
        if next != Some(tag) {
            self.unexpected(next, tag);
        }
    }

    /// The values of the next entry, as many as there may be.
    fn any_values(&mut self, tag: Tag, place: Place) -> Vec<u64> {
        self.expect(tag);
        let Body::Values(mut values) = self.consume() else { self.unreadable(tag) };
        self.history.apply(place, &mut values);
        values
    }

    /// The values of the next entry.
    pub fn entry<const N: usize>(&mut self, tag: Tag, place: Place) -> [u64; N] {
        self.any_values(tag, place).try_into().unwrap_or_else(|_| self.unreadable(tag))
    }

    /// The values of an answer.
    pub fn values(&mut self, tag: Tag, place: Place, values: &mut [u64]) {
        if self.takes_guessed() {
            values.fill(0);
            return self.history.apply(place, values);
        }
        let recorded = self.any_values(tag, place);
        if recorded.len() != values.len() {
            self.unreadable(tag);
        }
        values.copy_from_slice(&recorded);
    }

    /// Why there is no answer, if there is none.
    pub fn failure<E: DeserializeOwned>(&mut self) -> Option<E> {
        if self.peek() != Some(Tag::Failed) {
            return None;
        }
        let bytes = self.take_bytes(Tag::Failed);
        Some(postcard::from_bytes(&bytes).unwrap_or_else(|_| self.unreadable(Tag::Failed)))
    }

    fn take_bytes(&mut self, tag: Tag) -> Vec<u8> {
        self.expect(tag);
        let Body::Bytes(bytes) = self.consume() else { self.unreadable(tag) };
        bytes
    }

    /// The device asks what was not recorded here.
    fn unexpected(&self, next: Option<Tag>, tag: Tag) -> ! {
        let expected = next.map_or("a question with an answer as guessed", Tag::name);
        self.differs(expected.to_owned(), self.came(tag))
    }

    /// Compares what the device did with what was recorded: so many digits of the digest.
    fn compare(&self, recorded: u64, own: u64, digits: usize) {
        if recorded != own {
            let expected = format!("what was recorded (digest {recorded:0digits$x})");
            self.differs(expected, format!("{} (digest {own:0digits$x})", self.account));
        }
    }

    /// Takes a time; compares what the device did before it.
    fn time(&mut self, tag: Tag) -> Now {
        let Body::Time { passed_ns, digest } = self.consume() else { self.unreadable(tag) };
        self.compare(digest.into(), self.digest.short().into(), 4);
        self.now = self.now.saturating_add(passed_ns.into());
        Now(self.now)
    }

    /// Takes a clock's time where there is one. Returns the kind of what follows.
    fn clock(&mut self) -> Option<Tag> {
        let next = self.peek();
        if next != Some(Tag::Clock) {
            return next;
        }
        [self.now] = self.entry(Tag::Clock, Place::of(Tag::Clock));
        self.peek()
    }

    pub fn step(&mut self) -> Step {
        let Some(tag) = self.clock() else { self.unexpected(None, Tag::End) };
        let step = match tag {
            Tag::Round => Step::Round(self.time(tag)),
            Tag::LastRound => Step::LastRound(self.time(tag)),
            Tag::Command => {
                self.time(tag);
                if self.peek() != Some(Tag::Arguments) {
                    self.unreadable(tag);
                }
                Step::Command(self.take_bytes(Tag::Arguments))
            }
            Tag::End => {
                let [digest] = self.entry(tag, Place::of(tag));
                self.compare(digest, self.digest.0, 16);
                match self.reader.is_at_end() {
                    Ok(true) => return Step::End,
                    Ok(false) => self.damaged("something follows the end".to_owned()),
                    Err(error) => self.refuse(error),
                }
            }
            _ => self.differs(tag.name().to_owned(), "the end of the step".to_owned()),
        };
        self.replayed.steps += 1;
        let at_ms = self.now.saturating_sub(self.reader.start_ns) as f64 / 1e6;
        self.step = format!("{} at {at_ms:.6} ms", tag.name());
        self.account.clear();
        step
    }

    pub fn happened(&mut self, event: Option<(u32, Event)>) {
        match event {
            Some((_, Event::Sent(Transfer { lost: false, .. }))) => self.replayed.packets += 1,
            Some((_, Event::Completion { .. })) => self.replayed.completions += 1,
            _ => {}
        }
        if let (Some(observer), Some((qpn, event))) = (&mut self.observer, event) {
            observer(self.now, qpn, event);
        }
    }

    /// Bytes that the memory, or a message, gave.
    #[cold]
    pub fn copy(&mut self, tag: Tag, asked: &impl Question, out: &mut [u8]) -> Result<(), Fault> {
        self.note(tag, asked);
        if let Some(fault) = self.failure() {
            return Err(fault);
        }
        let bytes = self.take_bytes(tag);
        if bytes.len() != out.len() {
            let came = format!("{} with {} bytes", self.came(tag), out.len());
            self.differs(format!("{} with {} bytes", tag.name(), bytes.len()), came);
        }
        out.copy_from_slice(&bytes);
        Ok(())
    }

    /// A read of memory, a WQE's among others.
    #[cold]
    pub fn read(&mut self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        let asked = (addr, out.len());
        let tag = Tag::of_read(out.len());
        if tag == Tag::ReadLong {
            self.copy(tag, &asked, out)?;
        } else {
            self.note(tag, &asked);
            if let Some(fault) = self.failure() {
                return Err(fault);
            }
            let mut words = vec![0; out.len() / 8];
            self.values(tag, Place::of(tag), &mut words);
            out.as_chunks_mut().0.iter_mut().zip(words).for_each(|(eight, word)| *eight = word.to_be_bytes());
        }
        self.happened(self.objects.wqe(addr, out));
        Ok(())
    }

    /// The next packet that had come when the device looked.
    #[cold]
    pub fn next_packet(&mut self) -> Option<(Packet, Addressing)> {
        let tag = self.peek()?;
        if !matches!(tag, Tag::Record | Tag::Datagram | Tag::Packet) {
            return None;
        }
        let values = self.any_values(tag, Place::of(tag));
        let (packet, addressing) = message::decode(tag, &values).unwrap_or_else(|| self.unreadable(tag));
        self.happened(Some(Event::arrival(&packet)));
        Some((packet, addressing))
    }

    /// The time of the device's clock.
    pub fn stamp(&mut self) -> Now {
        match self.clock() {
            Some(Tag::Stamp) => self.time(Tag::Stamp),
            next => self.unexpected(next, Tag::Stamp),
        }
    }

    /// Takes the answer to a command; `None`: there is no such command.
    pub fn answered(&mut self, arguments: &[u8], answer: Option<Vec<u8>>) {
        let Some(answer) = answer else { self.unreadable(Tag::Command) };
        self.note(Tag::Command, &&*answer);
        for qpn in self.objects.answered(arguments, &answer).unwrap_or_default() {
            self.happened(Some((qpn, Event::Reset)));
        }
    }
}
