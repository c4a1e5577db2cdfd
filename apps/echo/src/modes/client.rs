//! A client of a mode: writes questions into the service's slots through libibverbs and checks the answers.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, anyhow, bail};
use echo::kernel::question_word;
use pipeline::Mode;
use serving::Connection;
use slots::Status;
use verbs::connect::Wait;

use super::{geometry, setup_request};
use crate::asking::{BYTES, CONNECT, say_run};
use crate::end::SETUP;
use crate::options::Options;
use crate::outcome::Outcome;

/// Polls without an answer before the core is yielded, and before deadlines and the service are checked.
const POLLS: u32 = 64;
const LOOKS: u32 = 1 << 12;

/// Asks a service of this mode, and says what came of it.
pub fn run(options: &Options, mode: Mode, address: &str, stop: &AtomicBool) -> Result<u8> {
    let (context, path) = options.nic.open("doorbell-echo")?;
    let bytes = options.payload.unwrap_or(BYTES);
    let geometry = geometry(bytes)?;
    let setup_request = setup_request(mode, &geometry, options.window());
    let wait = Wait::at_most(CONNECT).unless(stop);
    let connection = Connection::open((&context, &path), address, &setup_request, geometry, wait);
    let connection = connection.with_context(|| format!("the service at {address}"))?;
    let mut asking = ClientRun {
        connection,
        question: vec![0; bytes as usize],
        filled: None,
        asked: 0,
        outcome: Outcome::default(),
    };
    let ended = asking.ask_all(options, stop);
    let outcome = Outcome { error: ended.err().map(|error| format!("{error:#}")), ..asking.outcome };
    say_run(options, bytes, context.name(), &path, &outcome, stop.load(Ordering::Relaxed))
}

struct ClientRun {
    connection: Connection,
    question: Vec<u8>,
    /// Number of the question that `question` has.
    filled: Option<u32>,
    asked: u32,
    outcome: Outcome,
}

impl ClientRun {
    /// Until every question has its answer, or a signal comes.
    fn ask_all(&mut self, options: &Options, stop: &AtomicBool) -> Result<()> {
        let mut polls = 0_u32;
        while self.outcome.times.len() < options.count as usize {
            while self.asked < options.count && self.ask_one().map_err(|error| self.explained(error))? {}
            if self.take_one().map_err(|error| self.explained(error))? {
                polls = 0;
                continue;
            }
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS) {
                std::thread::yield_now();
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
            if polls.is_multiple_of(LOOKS) {
                self.look()?;
            }
        }
        self.connection.settle();
        match self.connection.duplicates() {
            0 => Ok(()),
            twice => Err(anyhow!("{twice} answers came twice")),
        }
    }

    /// Sends the next question, if there is a slot.
    fn ask_one(&mut self) -> Result<bool> {
        // It is tried at each poll until a slot is free.
        if self.filled.replace(self.asked) != Some(self.asked) {
            for (word, bytes) in (0..).zip(self.question.as_chunks_mut().0) {
                *bytes = question_word(self.asked, word).to_le_bytes();
            }
        }
        let now_ns = self.connection.now_ns();
        let deadline_ns = now_ns + SETUP.as_nanos() as u64;
        let asked = self.connection.ask(self.asked.into(), now_ns, &[&self.question], deadline_ns)?;
        self.asked += u32::from(asked);
        Ok(asked)
    }

    /// Takes an answer, if there is one, and compares each of its words.
    fn take_one(&mut self) -> Result<bool> {
        let Some(found) = self.connection.poll()? else { return Ok(false) };
        let answered = found?;
        let header = answered.answer.header;
        if answered.answer.status != Status::Ok {
            bail!("question {}: the service says {:?}", header.request_id, answered.answer.status);
        }
        let output = answered.outputs().next().context("an answer without a tensor")?;
        let (question, words) = (header.request_id as u32, output.as_chunks().0);
        let last = words.len() as u32 - 1;
        let is_wrong = |(word, bytes): (u32, &[u8; 8])| {
            let expected = question_word(question, word).wrapping_add(u64::from(word == last));
            u64::from_le_bytes(*bytes) != expected
        };
        let wrong = (0..).zip(words).filter(|&word| is_wrong(word)).count() as u32;
        let ns = answered.taken_ns.saturating_sub(header.cookie);
        self.outcome.times.push(u32::try_from(ns).unwrap_or(u32::MAX));
        self.outcome.wrong_words += wrong;
        if wrong > 0 {
            self.outcome.first_wrong.get_or_insert(question);
        }
        Ok(true)
    }

    /// The error of a request or an answer, with its reason where the service has died.
    fn explained(&mut self, error: anyhow::Error) -> anyhow::Error {
        if self.connection.closes_soon() { error.context("the service is gone") } else { error }
    }

    /// Errors: an answer that did not come in time, and a service that is gone.
    fn look(&mut self) -> Result<()> {
        if let Some(late) = self.connection.expired().first() {
            bail!("question {late} has had no answer for {SETUP:?}");
        }
        if !self.connection.is_alive() {
            bail!("the service is gone, with {} questions outstanding", self.connection.outstanding());
        }
        Ok(())
    }
}
