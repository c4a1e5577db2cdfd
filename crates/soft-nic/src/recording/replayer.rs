//! The machine of a replayed device: answers of a recording, in their order, and what the device does compared with it.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mlx5_device::carrier::Message;
use mlx5_device::memory::Fault;
use roce::{Now, Packet, Request};

use super::answer::Answer;
use super::events::{Objects, split};
use super::format::{Reader, RecordingError};
use super::recorder::{Head, Loads, Usual};
use super::tag::Tag;
use super::values::{Facts, Put, ReplyPiece, Take, Words, words_of};

/// Longest payload of a packet, bytes.
const MAX_FILL: u32 = 64 * 1024;

/// What was replayed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Rounds and commands.
    pub steps: u64,
    /// Packets, and messages of shared memory, that left.
    pub packets: u64,
    pub completions: u64,
    /// Of all these in their order: headers, where payload lay, and whole CQEs.
    pub hash: u64,
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Replayed { steps, packets, completions, hash } = self;
        write!(f, "{packets} packets and {completions} completions in {steps} steps, hash {hash:016x}")
    }
}

impl Replayed {
    /// Takes what left or was completed.
    fn note(&mut self, tag: Tag, words: &[u64]) {
        *if tag == Tag::Write { &mut self.completions } else { &mut self.packets } += 1;
        let mix = |hash: u64, word: &u64| (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = words.iter().fold(mix(self.hash, &(tag as u64)), mix);
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

/// A recording as the device's machine.
pub struct Replay(Mutex<State>);

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Replay")
    }
}

struct State {
    reader: Reader,
    block: Vec<u64>,
    /// Words of the block that were read.
    at: usize,
    /// The next entry, or why there is none.
    next: Result<(Head, Vec<u64>), Option<RecordingError>>,
    /// The usual answers since the last entry.
    asked: Usual,
    now: u64,
    loads: Loads,
    filling: bool,
    objects: Objects,
    replayed: Replayed,
    step: String,
}

/// What goes into the device next.
pub enum Step {
    Round(Now),
    LastRound(Now),
    Command(Vec<u64>),
    End,
}

impl State {
    fn new(reader: Reader) -> State {
        let now = reader.start_ns;
        let mut state = State {
            reader,
            block: Vec::new(),
            at: 0,
            next: Err(None),
            asked: Usual::default(),
            now,
            loads: Loads::default(),
            filling: false,
            objects: Objects::default(),
            replayed: Replayed::default(),
            step: "the start".to_owned(),
        };
        state.read_next();
        state
    }

    fn read_next(&mut self) {
        self.next = self.read_entry().map_err(Some);
    }

    fn read_entry(&mut self) -> Result<(Head, Vec<u64>), RecordingError> {
        if self.at == self.block.len() {
            let block = self.reader.block()?;
            self.block = block.ok_or_else(|| self.reader.cut_off("the end mark is missing"))?;
            self.at = 0;
        }
        let mut rest = &self.block[self.at..];
        let entry = split(&mut rest, &self.reader)?;
        let (head, words) = entry.ok_or_else(|| self.reader.damaged("an empty block".to_owned()))?;
        let words = words.to_vec();
        self.at = self.block.len() - rest.len();
        Ok((head, words))
    }

    /// Ends the replay: unwinds out of the device, without a panic.
    fn stop(&self, error: ReplayError) -> ! {
        resume_unwind(Box::new(error))
    }

    fn spoilt(&self, error: RecordingError) -> ! {
        self.stop(ReplayError::Recording { error, replayed: self.replayed.clone() })
    }

    fn differs(&self, expected: String, came: String) -> ! {
        let (step, replayed) = (self.step.clone(), self.replayed.clone());
        self.stop(ReplayError::Differs { step, expected, came, replayed })
    }

    fn senseless(&self, tag: Tag) -> ! {
        self.spoilt(self.reader.damaged(format!("{} cannot be read", tag.name())))
    }

    /// Kind and number of the next entry, and whether usual answers go before it.
    fn peek(&mut self) -> (Tag, u32, bool) {
        loop {
            let head = match &mut self.next {
                Ok((head, _)) => *head,
                Err(error) => {
                    let error = error.take().unwrap_or_else(|| self.reader.cut_off("nothing follows"));
                    self.spoilt(error)
                }
            };
            let is_due = self.asked.count >= head.usual.count;
            match Tag::of(head.tag) {
                Some(Tag::Usual) if is_due => drop(self.consume()),
                Some(tag) => return (tag, head.number, !is_due),
                None => self.spoilt(self.reader.damaged("an entry of unknown kind".to_owned())),
            }
        }
    }

    /// Takes the next entry, whose usual answers must all have been asked for.
    fn consume(&mut self) -> Vec<u64> {
        let next = std::mem::replace(&mut self.next, Err(None));
        let Ok((head, words)) = next else { self.spoilt(self.reader.cut_off("nothing follows")) };
        if head.usual != self.asked {
            let expected =
                format!("{} questions with the usual answer (sum {:#x})", head.usual.count, head.usual.sum);
            self.differs(expected, format!("{} (sum {:#x})", self.asked.count, self.asked.sum));
        }
        self.asked = Usual::default();
        if head.tag == Tag::End as u8 {
            self.next = Err(self.after_end());
        } else {
            self.read_next();
        }
        words
    }

    /// What is wrong when something follows the end.
    fn after_end(&mut self) -> Option<RecordingError> {
        let follows = match self.reader.block() {
            Ok(block) => block.is_some() || self.at < self.block.len(),
            Err(error) => return Some(error),
        };
        follows.then(|| self.reader.damaged("something follows the end".to_owned()))
    }

    /// Takes the entry of this kind; `came` says what the device does instead of another.
    fn expect(&mut self, tag: Tag, came: impl Fn() -> String) -> Vec<u64> {
        let (next, _, waits) = self.peek();
        if waits {
            self.differs("a question with the usual answer".to_owned(), came());
        }
        if next != tag {
            let words = self.consume();
            self.differs(describe(next, &words), came());
        }
        self.consume()
    }

    /// The answer to something that was asked or done, which must be what was recorded.
    fn compare<A: Take>(&mut self, tag: Tag, told: &[u64]) -> A {
        let words = self.expect(tag, || describe(tag, told));
        let Some(answer) = words.strip_prefix(told) else {
            self.differs(describe(tag, &words), describe(tag, told));
        };
        let is_done = answer.first() == Some(&0);
        let counts = match tag {
            Tag::SendPacket | Tag::SendRequest | Tag::SendReply => is_done,
            Tag::Write => is_done && told.first().is_some_and(|addr| self.objects.is_completion(*addr)),
            _ => false,
        };
        if counts {
            self.replayed.note(tag, told);
        }
        A::take(&mut Words(answer)).unwrap_or_else(|| self.senseless(tag))
    }

    fn pass(&mut self, number: u32) -> Now {
        self.now = self.now.saturating_add(number.into());
        Now(self.now)
    }

    /// Takes the times that go before a round or a stamp.
    fn times(&mut self) -> (Tag, u32) {
        loop {
            let (tag, number, waits) = self.peek();
            if waits || tag != Tag::Time {
                return (tag, number);
            }
            let words = self.consume();
            self.now = u64::take(&mut Words(&words)).unwrap_or_else(|| self.senseless(tag));
        }
    }

    fn step(&mut self) -> Step {
        let (tag, number) = self.times();
        let words = self.consume();
        self.replayed.steps += 1;
        let at_ms = self.now.saturating_sub(self.reader.start_ns) as f64 / 1e6;
        self.step = format!("{} at {at_ms:.6} ms", tag.name());
        match tag {
            Tag::Round => Step::Round(self.pass(number)),
            Tag::LastRound => Step::LastRound(self.pass(number)),
            Tag::Command => {
                self.objects.note(tag, &words);
                Step::Command(words)
            }
            Tag::End => {
                self.replayed.steps -= 1;
                if let Err(Some(_)) = self.next {
                    self.peek();
                }
                Step::End
            }
            _ => self.differs(describe(tag, &words), "nothing".to_owned()),
        }
    }
}

/// An entry in words.
fn describe(tag: Tag, words: &[u64]) -> String {
    let mut rest = Words(words);
    let value = match tag {
        Tag::SendPacket => Packet::take(&mut rest).map(|packet| format!("{packet:?}")),
        Tag::SendRequest => Request::take(&mut rest).map(|request| format!("{request:?}")),
        Tag::SendReply => ReplyPiece::take(&mut rest).map(|ReplyPiece(reply, ..)| format!("{reply:?}")),
        _ => None,
    };
    let value = value.unwrap_or_else(|| {
        let shown: Vec<String> = words.iter().take(16).map(|word| format!("{word:x}")).collect();
        shown.join(" ")
    });
    format!("{} ({value})", tag.name())
}

impl Replay {
    pub fn new(reader: Reader) -> Replay {
        Replay(Mutex::new(State::new(reader)))
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
        let state = self.state();
        state.spoilt(state.reader.damaged(what))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a question.
    pub fn answer<A: Answer>(&self, tag: Tag, asked: impl Put) -> A {
        let mut state = self.state();
        let (_, _, waits) = state.peek();
        if waits {
            state.asked = state.asked.and(tag);
            let usual = A::usual();
            return usual.unwrap_or_else(|| state.differs("a usual answer".into(), tag.name().to_owned()));
        }
        state.compare(tag, &words_of(&asked))
    }

    /// The answer to something that the device did.
    pub fn told<A: Take>(&self, tag: Tag, told: impl Put) -> A {
        self.state().compare(tag, &words_of(&told))
    }

    pub fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        if self.state().filling {
            return self.told(Tag::Payload, (addr, out.len()));
        }
        self.bytes(Tag::Read, (addr, out.len()), out)
    }

    /// Bytes that the machine gave.
    pub fn bytes(&self, tag: Tag, asked: impl Put, out: &mut [u8]) -> Result<(), Fault> {
        let mut state = self.state();
        let bytes = state.compare::<Result<Vec<u8>, Fault>>(tag, &words_of(&asked))?;
        if bytes.len() != out.len() {
            state.senseless(tag);
        }
        out.copy_from_slice(&bytes);
        Ok(())
    }

    pub fn load(&self, addr: u64) -> Result<u32, Fault> {
        let mut state = self.state();
        let (_, _, waits) = state.peek();
        if waits {
            state.asked = state.asked.and(Tag::Load);
            let last = state.loads.last(addr);
            return Ok(last.unwrap_or_else(|| {
                state.differs("a load of a word that is known".to_owned(), describe(Tag::Load, &[addr]))
            }));
        }
        let value = state.compare::<Result<u32, Fault>>(Tag::Load, &[addr])?;
        state.loads.note(addr, value);
        Ok(value)
    }

    /// Has the payload of a packet read, if that was.
    pub fn fill(&self, fill: impl FnOnce(&mut [u8]) -> Result<(), Fault>) {
        let mut state = self.state();
        let (Tag::Fill, len, false) = state.peek() else { return };
        if len > MAX_FILL {
            let what = format!("a packet with {len} bytes of payload, at most {MAX_FILL} can be");
            state.spoilt(state.reader.damaged(what));
        }
        state.consume();
        state.filling = true;
        drop(state);
        let _ = fill(&mut vec![0; len as usize]);
        self.state().filling = false;
    }

    /// The next message that had come when the device looked.
    pub fn next_message(&self) -> Option<(Message, Facts)> {
        let mut state = self.state();
        let (Tag::Message, _, false) = state.peek() else { return None };
        let words = state.consume();
        let message = Take::take(&mut Words(&words));
        Some(message.unwrap_or_else(|| state.senseless(Tag::Message)))
    }

    /// The time of the device's clock.
    pub fn stamp(&self) -> Now {
        let mut state = self.state();
        let (_, number) = state.times();
        state.expect(Tag::Stamp, || Tag::Stamp.name().to_owned());
        state.pass(number)
    }

    /// Compares the answer to a command.
    pub fn answered(&self, answer: Option<Vec<u64>>) {
        let mut state = self.state();
        let Some(answer) = answer else { state.senseless(Tag::Command) };
        let words = state.expect(Tag::Answer, || describe(Tag::Answer, &answer));
        if words != answer {
            state.differs(describe(Tag::Answer, &words), describe(Tag::Answer, &answer));
        }
        state.objects.note(Tag::Answer, &words);
    }
}
