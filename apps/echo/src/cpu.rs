//! A client that posts through libibverbs: the other side of a comparison, and for machines without a GPU.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use echo::kernel::question_word;
use measure::timer;
use verbs::connect::Session;
use verbs::{
    Cq, Mr, Pages, Payload, Pd, Qp, QueuePair, ReceiveRequest, SendOperation, SendRequest, WorkCompletion,
};

use crate::end::{ACCESS, builder, cq};
use crate::outcome::{Outcome, early_end};

/// Polls without a completion before the core is offered to others, and before the service is looked after.
const POLLS: u32 = 64;
const LOOKS: u32 = 1 << 12;

/// A queue pair of libmlx5's, with a buffer for the question and one for its answer.
pub struct Cpu {
    qp: QueuePair,
    cq: Cq,
    memory: Mr<Pages>,
    bytes: u32,
    count: u32,
}

impl Cpu {
    pub fn new(pd: &Pd, bytes: u32, count: u32) -> Result<Cpu> {
        let cq = cq(pd.context(), 2)?;
        let qp = builder(2).build(pd, &cq, &cq)?;
        let pages = Pages::new(2 * bytes as usize).context("memory for a question and its answer")?;
        Ok(Cpu { qp, cq, memory: Mr::register(pd, pages, ACCESS)?, bytes, count })
    }

    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    pub fn ask(mut self, session: &mut Session, stop: &AtomicBool) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for question in 0..self.count {
            match self.ask_one(question, session, stop) {
                Ok(Some(ns)) => outcome.times.push(ns),
                Ok(None) => break,
                Err(error) => {
                    outcome.error =
                        Some(format!("QP {:#x}, request {question}: {error:#}", self.qp.number()));
                    break;
                }
            }
            let wrong = self.wrong_words(question);
            outcome.wrong_words += wrong;
            if wrong > 0 {
                outcome.first_wrong.get_or_insert(question);
            }
        }
        Ok(outcome)
    }

    /// A round trip's nanoseconds, as the kernel takes them; nothing when a signal came first.
    fn ask_one(&mut self, question: u32, session: &mut Session, stop: &AtomicBool) -> Result<Option<u32>> {
        for (word, place) in self.words(0..self.bytes).enumerate() {
            self.memory.word64(place).store(question_word(question, word as u32), Ordering::Relaxed);
        }
        let bytes = self.bytes as usize;
        let (sent, answer) = ([self.memory.sge(0..bytes)?], [self.memory.sge(bytes..2 * bytes)?]);
        self.qp.post_receive(&ReceiveRequest { id: 1, scatter: &answer })?;
        let timer = timer::ROUND_TRIP.start();
        self.qp.post_send(&SendRequest::new(0, SendOperation::Send, Payload::Gather(&sent)))?;
        let (mut took, mut left, mut polls) = (0, 2, 0_u32);
        while left > 0 {
            let mut done = [WorkCompletion::default()];
            if self.cq.poll(&mut done)? == 0 {
                polls = polls.wrapping_add(1);
                if polls.is_multiple_of(POLLS) {
                    std::thread::yield_now();
                    if stop.load(Ordering::Relaxed) {
                        return Ok(None);
                    }
                }
                if polls.is_multiple_of(LOOKS) {
                    early_end(session, Duration::ZERO).map_or(Ok(()), |why| Err(anyhow!(why)))?;
                }
                continue;
            }
            if !done[0].is_success() {
                bail!("{}", done[0].status());
            }
            if done[0].id() == 1 {
                took = u32::try_from(timer.elapsed_ns()).unwrap_or(u32::MAX);
                if done[0].byte_count() != self.bytes {
                    bail!("an answer of {} bytes to a question of {}", done[0].byte_count(), self.bytes);
                }
            }
            left -= 1;
        }
        Ok(Some(took))
    }

    /// Words of the answer that are not the question's, the last one with 1 added.
    fn wrong_words(&self, question: u32) -> u32 {
        let last = self.bytes / 8 - 1;
        let is_wrong = |(word, place): (u32, usize)| {
            let expected = question_word(question, word).wrapping_add(u64::from(word == last));
            self.memory.word64(place).load(Ordering::Acquire) != expected
        };
        (0..).zip(self.words(self.bytes..2 * self.bytes)).filter(|&place| is_wrong(place)).count() as u32
    }

    fn words(&self, bytes: Range<u32>) -> impl Iterator<Item = usize> + use<> {
        (bytes.start as usize..bytes.end as usize).step_by(8)
    }
}
