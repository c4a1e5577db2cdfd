//! `gpu-cpu`: kernels wait, compute and leave the answer in its slot. The last one tells a CPU thread, which
//! posts the answer and takes its completion. The wait passes a slot whose answer the NIC still reads. A word
//! in host memory says so: the kernel sets it before it tells, and the thread clears it.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdma_shim::kernel::{CpuPart, HostMemory, Plain, Queue, db_kernel_end};
use rdma_shim::{Completion, PostError};
use slots::layout::{FLAG_BYTES, PREFIX_BYTES};
use slots::{Geometry, Status};
use verbs::{Payload, Remote, SendFlags, SendOperation, SendRequest, Sge};

use super::layout::{db_counts, db_place, db_told};
use super::runs::spawn;
use super::{Arrival, COUNTS, Client, ServedError};
use crate::PATIENCE;

/// `DB_END_COMPLETION` and `DB_EINVAL`.
const COMPLETION: u32 = 0x10000;
const INVALID: u32 = 22;
/// `DB_ETIMEDOUT`.
const TIMED_OUT: u32 = 110;
/// `DB_WC_WR_FLUSH_ERR`.
const FLUSHED: u32 = 5;
/// Completions that one poll takes.
const AT_ONCE: usize = 16;
/// Rounds without anything to do before the core is offered to other threads.
const IDLE_ROUNDS: u32 = 64;
/// Rounds between two looks for clients that take no answers: the clock is not read in between.
const LOOKS: u32 = 1 << 10;

/// The ring by which kernels hand answers to the thread that posts them, and the answers' layout.
#[derive(Debug)]
pub(super) struct AnswerRing {
    /// `struct db_told`, one a slot.
    pub(super) ring: HostMemory,
    /// A word a slot: not 0 while the NIC may read its answer.
    pub(super) sending: HostMemory,
    pub(super) places: HostMemory,
    pub(super) shared: HostMemory,
    pub(super) geometry: Geometry,
    pub(super) arrival: Arrival,
    /// Slot 0 as the NIC addresses it.
    pub(super) slots: u64,
    pub(super) slot_count: u32,
}

/// A place's queue, and its answers that the NIC may still read, in the order of posting.
#[derive(Debug)]
struct PlaceQueue {
    queue: Queue,
    client: Client,
    in_flight: VecDeque<u32>,
    /// Since when a look has found answers in flight and none was sent.
    waits_since: Option<Instant>,
    has_failed: bool,
}

/// The queues of all places, and the thread's part of them where it posts.
#[derive(Debug)]
pub(super) struct Queues {
    places: Vec<Option<PlaceQueue>>,
    pub(super) told: Option<AnswerRing>,
    /// Records that were read.
    pub(super) read: u64,
    sent: u64,
    rounds: u32,
    /// Time for the NIC to take an answer.
    pub(super) patience: Duration,
    /// A planted defect: a slot counts as sent when it is posted.
    #[cfg(test)]
    pub(super) forgets_sending: bool,
}

/// Shared by the pipeline and the thread that posts.
#[derive(Debug)]
pub(super) struct Shared {
    queues: Mutex<Queues>,
    /// Threads that want the queues: the one that posts lets them.
    wanted: AtomicUsize,
}

impl Shared {
    pub(super) fn new(places: u32, told: Option<AnswerRing>) -> Arc<Shared> {
        let places = (0..places).map(|_| None).collect();
        let (read, sent, rounds, patience) = (0, 0, 0, PATIENCE);
        let queues = Queues {
            places,
            told,
            read,
            sent,
            rounds,
            patience,
            #[cfg(test)]
            forgets_sending: false,
        };
        Arc::new(Shared { queues: Mutex::new(queues), wanted: AtomicUsize::new(0) })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Queues> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        queues
    }
}

impl Queues {
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    pub(super) fn free(&self) -> Option<usize> {
        self.places.iter().position(Option::is_none)
    }

    pub(super) fn has(&self, place: usize) -> bool {
        self.places.get(place).is_some_and(Option::is_some)
    }

    pub(super) fn put(&mut self, place: usize, queue: Queue, client: Client) {
        let in_flight = VecDeque::with_capacity(client.count as usize);
        self.places[place] =
            Some(PlaceQueue { queue, client, in_flight, waits_since: None, has_failed: false });
    }

    /// The queue of a client that kernels have let go: no record tells of it any more.
    pub(super) fn take(&mut self, place: usize) -> Option<Queue> {
        self.round();
        self.places.get_mut(place)?.take().map(|taken| taken.queue)
    }

    /// Posts what was told and takes completions: whether there was anything.
    fn round(&mut self) -> bool {
        let Some(told) = &self.told else { return false };
        let mut did = false;
        while let Some(record) = told.record(self.read) {
            self.read += 1;
            did = true;
            if let Some(Some(taken)) = self.places.get_mut(record.client as usize) {
                told.answer(taken, &record);
                #[cfg(test)]
                if self.forgets_sending {
                    told.sending.words()[record.slot as usize].store(0, Ordering::Release);
                }
            }
        }
        self.rounds = self.rounds.wrapping_add(1);
        let now = self.rounds.is_multiple_of(LOOKS).then(Instant::now);
        let mut sent = 0;
        for (place, taken) in self.places.iter_mut().enumerate() {
            let Some(taken) = taken else { continue };
            sent += told.poll(place, taken);
            if let Some(now) = now {
                told.expire(place, taken, now, self.patience);
            }
        }
        if sent > 0 {
            self.sent += sent;
            let at = (COUNTS + offset_of!(db_counts, sent)) / 8;
            told.shared.long_words()[at].store(self.sent, Ordering::Relaxed);
        }
        did || sent > 0
    }
}

impl AnswerRing {
    /// The record that was told behind so many.
    fn record(&self, read: u64) -> Option<db_told> {
        let at = (read % u64::from(self.slot_count)) as usize * size_of::<db_told>();
        let number = &self.ring.long_words()[(at + offset_of!(db_told, number)) / 8];
        if number.load(Ordering::Acquire) != read + 1 {
            return None;
        }
        let words = &self.ring.words()[at / 4..];
        let [slot, client, status] = [0, 1, 2].map(|word| words[word].load(Ordering::Relaxed));
        (slot < self.slot_count).then_some(db_told { slot, client, status, pad: 0, number: read + 1 })
    }

    /// Posts an answer that lies in its slot.
    fn answer(&self, taken: &mut PlaceQueue, record: &db_told) {
        if taken.has_failed {
            return;
        }
        match self.post(taken, record) {
            Ok(()) => taken.in_flight.push_back(record.slot),
            Err(_) => {
                let qpn = taken.queue.qp().number();
                let end = db_kernel_end {
                    wr_id: record.slot.into(),
                    code: INVALID,
                    qpn,
                    is_send: 1,
                    ..Default::default()
                };
                self.fail(record.client as usize, taken, end);
            }
        }
    }

    fn post(&self, taken: &mut PlaceQueue, record: &db_told) -> Result<(), ()> {
        let Client { first, answers, flags, lkey, .. } = taken.client;
        let nth = u64::from(record.slot.checked_sub(first).ok_or(())?);
        let geometry = &self.geometry;
        let start = self.slots
            + u64::from(record.slot) * geometry.server_stride() as u64
            + geometry.answer_offset() as u64;
        let is_whole = record.status == u32::from(Status::Ok.number()) || self.arrival == Arrival::Tail;
        let length = if is_whole { geometry.answer.bytes() } else { PREFIX_BYTES };
        let whole = [Sge::new(start, length as u32, lkey)];
        let flag = [Sge::new(start + geometry.answer.tail as u64, FLAG_BYTES as u32, lkey)];
        let to =
            |(address, rkey): (u64, u32), offset: u64| Remote { address: address.wrapping_add(offset), rkey };
        let target = to(answers, nth * geometry.client_stride() as u64);
        let id = record.slot.into();
        let operation = match self.arrival {
            Arrival::Completion => SendOperation::WriteImm(target, record.slot.to_be_bytes()),
            Arrival::Send => SendOperation::Send,
            Arrival::Flag | Arrival::Tail => SendOperation::Write(target),
        };
        let mut part = taken.queue.cpu_part().ok_or(())?;
        let mut write = SendRequest::new(id, operation, Payload::Gather(&whole));
        let post =
            |part: &mut CpuPart<'_>, write: &SendRequest<'_>| part.try_post(write).map_err(|_: PostError| ());
        if self.arrival == Arrival::Flag {
            write.flags = SendFlags::NONE;
            post(&mut part, &write)?;
            let operation = SendOperation::Write(to(flags, nth * FLAG_BYTES as u64));
            post(&mut part, &SendRequest::new(id, operation, Payload::Gather(&flag)))?;
        } else {
            post(&mut part, &write)?;
        }
        part.ring();
        Ok(())
    }

    /// Takes a queue's completions of sends: how many answers were sent.
    fn poll(&self, place: usize, taken: &mut PlaceQueue) -> u64 {
        // Before the poll: what flushed the receives has its completion by then.
        let at = (place * size_of::<db_place>() + offset_of!(db_place, flushed)) / 4;
        let is_flushed = self.places.words()[at].load(Ordering::Acquire) != 0;
        if taken.has_failed || (taken.in_flight.is_empty() && !is_flushed) {
            return 0;
        }
        let mut done = [Completion::default(); AT_ONCE];
        let polled = taken.queue.cpu_part().map(|mut part| part.poll_sends(&mut done));
        let qpn = taken.queue.qp().number();
        let Some(Ok(count)) = polled else {
            self.fail(place, taken, db_kernel_end { code: INVALID, qpn, ..Default::default() });
            return 0;
        };
        let mut sent = 0;
        for one in &done[..count] {
            match taken.in_flight.pop_front() {
                Some(slot) if one.is_success() => {
                    self.sending.words()[slot as usize].store(0, Ordering::Release);
                    taken.waits_since = None;
                    sent += 1;
                }
                _ => {
                    self.fail(place, taken, db_kernel_end::of(one));
                    return sent;
                }
            }
        }
        if is_flushed && count == 0 {
            let end = db_kernel_end { code: COMPLETION, qpn, status: FLUSHED, ..Default::default() };
            self.fail(place, taken, end);
        }
        sent
    }

    /// Gives a client up of which no answer was sent for too long.
    fn expire(&self, place: usize, taken: &mut PlaceQueue, now: Instant, patience: Duration) {
        let Some(&slot) = taken.in_flight.front().filter(|_| !taken.has_failed) else {
            taken.waits_since = None;
            return;
        };
        let since = *taken.waits_since.get_or_insert(now);
        if now.saturating_duration_since(since) > patience {
            let (qpn, wr_id) = (taken.queue.qp().number(), slot.into());
            let end = db_kernel_end { wr_id, code: TIMED_OUT, qpn, is_send: 1, ..Default::default() };
            self.fail(place, taken, end);
        }
    }

    /// Tells kernels and host of a queue that has failed. The reason that is there first stays.
    fn fail(&self, place: usize, taken: &mut PlaceQueue, end: db_kernel_end) {
        taken.has_failed = true;
        let at = place * size_of::<db_place>() + offset_of!(db_place, end);
        let code = &self.places.words()[(at + offset_of!(db_kernel_end, code)) / 4];
        if code.load(Ordering::Acquire) == 0 {
            let whole = db_kernel_end { code: 0, ..end };
            // The place is there: it has a queue.
            let _ = self.places.write(at, whole.bytes());
            code.store(end.code, Ordering::Release);
        }
    }
}

/// The thread that posts; dropped, it ends.
#[derive(Debug)]
pub(super) struct Poster {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Poster {
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Poster, ServedError> {
        let stop = Arc::<AtomicBool>::default();
        let (mine, stops) = (Arc::clone(shared), Arc::clone(&stop));
        let work = move || {
            let mut idle = 0_u32;
            while !stops.load(Ordering::Relaxed) {
                let did = mine.queues.lock().unwrap_or_else(PoisonError::into_inner).round();
                idle = if did { 0 } else { idle.saturating_add(1) };
                if idle >= IDLE_ROUNDS || mine.wanted.load(Ordering::Relaxed) > 0 {
                    std::thread::yield_now();
                }
                while mine.wanted.load(Ordering::Relaxed) > 0 && !stops.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
        };
        Ok(Poster { stop, thread: Some(spawn("poster", work)?) })
    }
}

impl Drop for Poster {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
