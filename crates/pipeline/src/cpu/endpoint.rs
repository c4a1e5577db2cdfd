//! One client's end on the server: a protection domain, regions over its slots and flags only, a queue pair.
//!
//! No key of a client opens another client's slots. An error ends this client's queue pair alone.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use rdma_shim::kernel::{HostMemory, Machine, db_kernel_queue};
use slots::layout::{FLAG_BYTES, PREFIX_BYTES, flag, next};
use slots::{Arrival, Geometry, Status, Work};
use verbs::code::Access;
use verbs::connect::RegionOffer;
use verbs::{
    Context, InlineSlice, Mr, Pages, Part, Payload, Qp, QpType, Remote, SendFlags, SendOperation, SendRequest,
};

use super::CpuError;
use super::job::Job;
use super::poster::{Done, Poster, RECEIVE};
use crate::Mode;
use crate::gpu::{Client, Pool, answer_regions};
use crate::trace::{OffloadTimes, Sample, Step, Trace, unix_ns};

/// The client writes requests and flags.
pub const ACCESS: Access = Access(Access::LOCAL_WRITE.0 | Access::REMOTE_WRITE.0);

/// Memory of all slots of a model, and their flags.
#[derive(Debug, Clone)]
pub struct Memory {
    pub geometry: Geometry,
    slots: Arc<Pages>,
    flags: Arc<Pages>,
    shown: Option<KernelView>,
}

/// The slots as kernels of a machine see them, and queues to which these post.
#[derive(Debug, Clone)]
struct KernelView {
    machine: Machine,
    slots: HostMemory,
    pool: Arc<OnceLock<Arc<Pool>>>,
}

impl Memory {
    /// Bytes of so many slots with their flags.
    pub fn bytes(geometry: &Geometry, slots: u32) -> u64 {
        (geometry.server_stride() + FLAG_BYTES) as u64 * u64::from(slots)
    }

    pub fn new(geometry: Geometry, slots: u32) -> std::io::Result<Memory> {
        let pages = |each: usize| Ok::<_, std::io::Error>(Arc::new(Pages::new(each * slots as usize)?));
        let (slots, flags) = (pages(geometry.server_stride())?, pages(FLAG_BYTES)?);
        Ok(Memory { geometry, slots, flags, shown: None })
    }

    /// Slots that kernels of a machine reach: on a GPU they are pinned.
    pub fn shown_to(mut self, machine: &Machine) -> Result<Memory, CpuError> {
        let slots = machine.show(&self.slots).map_err(|error| CpuError::Offload(error.to_string()))?;
        self.shown = Some(KernelView { machine: machine.clone(), slots, pool: Arc::default() });
        Ok(self)
    }

    /// Where the CPU has the first slot.
    pub fn address(&self) -> Result<u64, CpuError> {
        let mut all = Part::new(&self.slots, 0..verbs::Memory::len(&*self.slots))?;
        Ok(verbs::Memory::start(&mut all).as_ptr().expose_provenance() as u64)
    }

    /// The slots as kernels see them, if they do.
    pub fn shown(&self) -> Option<&HostMemory> {
        self.shown.as_ref().map(|shown| &shown.slots)
    }

    fn pool(&self, context: &Context) -> Option<&Arc<Pool>> {
        let KernelView { machine, pool, .. } = self.shown.as_ref()?;
        Some(pool.get_or_init(|| Arc::new(Pool::polled_by_cpu(machine, context))))
    }
}

/// What a client gets.
#[derive(Debug, Clone)]
pub struct Setting<'a> {
    pub mode: Mode,
    pub kind: QpType,
    pub arrival: Arrival,
    /// Numbers of its slots, one behind the other, with the sequences of their last requests.
    pub granted: &'a [(u32, u32)],
    /// Notes when its requests' steps are taken: of arrivals by receive completions that the shim polls.
    pub is_traced: bool,
}

/// Answers that were posted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub answered: u64,
    /// Answers that say why there is no result.
    pub refused: u64,
}

/// What is traced of a client.
#[derive(Debug)]
struct Tracing {
    context: Context,
    /// When the look began that runs.
    looks_ns: u64,
    begun: Vec<RequestTimes>,
    trace: Trace,
}

/// The way of a slot's request until it was begun, by the system's clock.
#[derive(Debug, Clone, Copy, Default)]
struct RequestTimes {
    arrived_ns: u64,
    /// When the look began that found it, and when it was found.
    looked_ns: [u64; 2],
    /// Its turn began, and its prefix was checked and its work begun.
    turn_ns: [u64; 2],
}

impl RequestTimes {
    /// Its steps so far: it waits while it is looked for and begun, and else is in the queue.
    fn sample(&self, rung_ns: u64) -> Sample {
        let RequestTimes { arrived_ns, looked_ns: [looks, found], turn_ns: [turn, begun] } = *self;
        let mut sample = Sample { service_ns: rung_ns.saturating_sub(arrived_ns), ..Sample::default() };
        let wait_ns = found.saturating_sub(looks.max(arrived_ns)) + begun.saturating_sub(turn);
        sample.set(Step::Wait, wait_ns);
        sample.set(Step::Queue, begun.saturating_sub(arrived_ns).saturating_sub(wait_ns));
        sample
    }
}

/// What is known of a slot.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Of the request that is served, or else of the next one.
    flag: u64,
    is_served: bool,
}

/// A client's end, its queue pair in any state.
#[derive(Debug)]
pub struct Endpoint {
    slots: Mr<Part>,
    flags: Mr<Part>,
    // Behind the regions: the next client of its protection domain finds none of them.
    poster: Poster,
    geometry: Geometry,
    arrival: Arrival,
    is_reliable: bool,
    first: u32,
    places: Vec<Place>,
    /// The client's slots and flags.
    answers: [RegionOffer; 2],
    /// Slots whose answers the NIC may still read, in the order of posting, and the offload's turns of them.
    sending: VecDeque<(u32, u64)>,
    /// Since when looks have found an answer there, of a turn that has begun, and none was sent.
    waits_since_ns: Option<u64>,
    done: Vec<Done>,
    tracing: Option<Box<Tracing>>,
    pub counts: Counts,
    pub failure: Option<String>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Before the regions go: a client that still asks gets no answer, not the error of a lost region.
        let _ = self.poster.qp().reset();
    }
}

impl Endpoint {
    /// Registers and clears the granted slots, and makes a queue pair. The last client's data there is gone.
    pub fn new(context: &Context, memory: &Memory, setting: &Setting<'_>) -> Result<Endpoint, CpuError> {
        let Setting { mode, kind, arrival, granted, is_traced } = *setting;
        if is_traced && (mode != Mode::CpuCpuShim || arrival != Arrival::Completion) {
            return Err(CpuError::NoTimestamps(mode));
        }
        let (first, count) = (granted.first().ok_or(CpuError::NoSlots)?.0, granted.len());
        let receives = if arrival.has_receives() { count as u32 } else { 0 };
        let poster = Poster::new(mode, context, memory.pool(context), kind, [count as u32, receives])?;
        let region = |pages: &Arc<Pages>, each: usize| {
            let start = first as usize * each;
            let region =
                Mr::register(poster.qp().pd(), Part::new(pages, start..start + count * each)?, ACCESS)?;
            let zeros = [0; 4096];
            for at in (0..region.len()).step_by(zeros.len()) {
                region.write(at, &zeros[..zeros.len().min(region.len() - at)]);
            }
            Ok::<_, CpuError>(region)
        };
        let slots = region(&memory.slots, memory.geometry.server_stride())?;
        let flags = region(&memory.flags, FLAG_BYTES)?;
        let none = RegionOffer { address: 0, bytes: 0, rkey: 0 };
        Ok(Endpoint {
            slots,
            flags,
            poster,
            geometry: memory.geometry.clone(),
            arrival,
            is_reliable: kind == QpType::Rc,
            first,
            places: granted
                .iter()
                .map(|&(_, last)| Place { flag: flag(next(last)), is_served: false })
                .collect(),
            answers: [none; 2],
            sending: VecDeque::with_capacity(count),
            waits_since_ns: None,
            done: Vec::new(),
            tracing: is_traced.then(|| {
                let (context, begun) = (context.clone(), vec![RequestTimes::default(); count]);
                Box::new(Tracing { context, looks_ns: 0, begun, trace: Trace::default() })
            }),
            counts: Counts::default(),
            failure: None,
        })
    }

    pub fn qp(&self) -> &Qp {
        self.poster.qp()
    }

    /// Slots and flags, as the client is to name them.
    pub fn regions(&self) -> Vec<RegionOffer> {
        vec![RegionOffer::new(&self.slots), RegionOffer::new(&self.flags)]
    }

    /// Posts a receive for each slot where arrivals need one. The queue pair is in INIT.
    pub fn post_receives(&mut self) -> Result<(), CpuError> {
        let receives = if self.arrival.has_receives() { self.places.len() } else { 0 };
        (0..receives).try_for_each(|place| self.post_receive(place))
    }

    /// A receive: for a SEND with the memory of a slot's request.
    fn post_receive(&mut self, place: usize) -> Result<(), CpuError> {
        let start = self.request_at(place);
        let piece = [self.slots.sge(start..start + self.geometry.request.bytes())?];
        let scatter = if self.arrival == Arrival::Send { &piece[..] } else { &[] };
        self.poster.receive(place, scatter)
    }

    /// Where the client wants its answers. Error: they do not fit there.
    pub fn answer_to(&mut self, offered: &[RegionOffer]) -> Result<(), CpuError> {
        let regions = answer_regions(offered, &self.geometry, self.places.len());
        self.answers = regions.map_err(CpuError::Answers)?;
        Ok(())
    }

    fn place(&self, slot: u32) -> Option<usize> {
        let place = slot.checked_sub(self.first)? as usize;
        (place < self.places.len()).then_some(place)
    }

    fn request_at(&self, place: usize) -> usize {
        place * self.geometry.server_stride()
    }

    /// Takes completions and looks at flags: slots whose answers were sent, and slots with a new request.
    pub(super) fn look(&mut self, sent: &mut Vec<u32>, arrived: &mut Vec<u32>) {
        if self.failure.is_none()
            && let Err(why) = self.try_look(sent, arrived)
        {
            self.failure = Some(why);
        }
    }

    fn try_look(&mut self, sent: &mut Vec<u32>, arrived: &mut Vec<u32>) -> Result<(), String> {
        if let Some(tracing) = &mut self.tracing {
            tracing.looks_ns = unix_ns();
        }
        let mut done = std::mem::take(&mut self.done);
        self.poster.poll(&mut done).map_err(|error| error.to_string())?;
        for Done { id, immediate, failure, timestamp } in done.drain(..) {
            let is_receive = id & RECEIVE != 0;
            let what = if is_receive { "a receive".into() } else { format!("the answer in slot {id}") };
            if let Some(failure) = failure {
                return Err(format!("QP {:#x}, {what}: {failure}", self.qp().number()));
            }
            if !is_receive {
                let (slot, _) = self.sending.pop_front().ok_or_else(|| format!("{what} was not posted"))?;
                sent.push(slot);
                self.waits_since_ns = None;
                continue;
            }
            let slot = match self.arrival {
                Arrival::Send => self.first + (id & !RECEIVE) as u32,
                _ => u32::from_be_bytes(immediate.ok_or("a message without immediate data")?),
            };
            let place = self.place(slot).ok_or_else(|| format!("slot {slot} is none of the client's"))?;
            if std::mem::replace(&mut self.places[place].is_served, true) {
                return Err(format!("a request in slot {slot}, whose request is not answered"));
            }
            if self.arrival != Arrival::Send {
                self.post_receive(place).map_err(|error| error.to_string())?;
            }
            if let Some(tracing) = &mut self.tracing {
                let clock = tracing.context.clock().map_err(|error| error.to_string())?;
                let (arrived_ns, looked_ns) = (clock.unix_ns(timestamp), [tracing.looks_ns, unix_ns()]);
                tracing.begun[place] = RequestTimes { arrived_ns, looked_ns, turn_ns: [0; 2] };
            }
            arrived.push(slot);
        }
        self.done = done;
        if !self.arrival.has_receives() {
            for place in 0..self.places.len() {
                if !self.places[place].is_served && self.is_whole(place) {
                    self.places[place].is_served = true;
                    arrived.push(self.first + place as u32);
                }
            }
        }
        Ok(())
    }

    /// On UC a part of the request may be lost while its flag arrives: its last bytes must have arrived too.
    fn is_whole(&self, place: usize) -> bool {
        let expected = self.places[place].flag;
        let at_flag = || u64::from_le(self.flags.word64(place * FLAG_BYTES).load(Ordering::Acquire));
        let at_tail = || {
            let tail = self.slots.word64(self.request_at(place) + self.geometry.request.tail);
            u64::from_le(tail.load(Ordering::Acquire))
        };
        let is_flagged = self.arrival == Arrival::Tail || at_flag() == expected;
        is_flagged && ((self.arrival == Arrival::Flag && self.is_reliable) || at_tail() == expected)
    }

    /// Where kernels find its queue, if they post there.
    pub fn kernel_queue(&self) -> Option<db_kernel_queue> {
        match &self.poster {
            Poster::Kernels(pooled) => Some(pooled.queue().addresses()),
            _ => None,
        }
    }

    /// The client as kernels know it that post its answers: they look at no flags of its requests.
    pub fn client(&self) -> Client {
        let [answers, flags] = self.answers.map(|region| (region.address, region.rkey));
        let (first, count, lkey) = (self.first, self.places.len() as u32, self.slots.lkey());
        Client { first, count, sequence: 0, answers, flags, lkey, is_reliable: true }
    }

    /// The request of a slot as what computes it is told; `None`: no slot of the client.
    pub(super) fn job(&self, work: &Work, status: Status) -> Option<Job> {
        let place = self.place(work.slot)?;
        let completed = match &self.poster {
            Poster::Kernels(pooled) => pooled.queue().sends_completed(),
            _ => 0,
        };
        Some(Job {
            client: work.client,
            slot: work.slot,
            sequence: (self.places[place].flag >> 32) as u32,
            status,
            header: work.header,
            arrival: self.arrival,
            completed,
        })
    }

    /// Notes that a slot's request begins now, if it is traced. `turn_ns`: since when there was room for it.
    pub(super) fn note_begin(&mut self, slot: u32, turn_ns: u64) {
        if let (Some(place), Some(tracing)) = (self.place(slot), &mut self.tracing) {
            tracing.begun[place].turn_ns = [turn_ns, unix_ns()];
        }
    }

    /// Notes a slot's answer, if it is traced. `times`: of the steps between its begin and its answer;
    /// `sent_ns`: when the answer began to be written, and when its doorbell was rung.
    pub(super) fn note_end(&mut self, slot: u32, times: OffloadTimes, sent_ns: [u64; 2]) {
        let Some(place) = self.place(slot) else { return };
        let Some(tracing) = &mut self.tracing else { return };
        let ([sends_ns, rung_ns], begun) = (sent_ns, tracing.begun[place]);
        let mut sample = begun.sample(rung_ns).with(times);
        sample.set(Step::Send, rung_ns.saturating_sub(sends_ns));
        let late_ns = begun.arrived_ns.saturating_sub(begun.looked_ns[1]);
        tracing.trace.push(sample, late_ns, 0);
    }

    pub(super) fn is_traced(&self) -> bool {
        self.tracing.is_some()
    }

    /// Takes what was traced; `None`: nothing is traced.
    pub fn take_trace(&mut self) -> Option<Trace> {
        self.tracing.as_mut().map(|tracing| std::mem::take(&mut tracing.trace))
    }

    /// Notes that a turn of its offload posts a slot's answer. `next`: sequence of its next request.
    pub(super) fn handed_over(&mut self, (slot, next): (u32, u32), is_refused: bool, turn: u64) {
        if let Some(place) = self.place(slot) {
            self.places[place] = Place { flag: flag(next), is_served: false };
            if let Err(error) = self.make_room(place) {
                self.failure.get_or_insert(error.to_string());
            }
        }
        self.sending.push_back((slot, turn));
        *(if is_refused { &mut self.counts.refused } else { &mut self.counts.answered }) += 1;
    }

    /// Posts the receive of a slot's next request, before the answer: once it has that the client may send.
    fn make_room(&mut self, place: usize) -> Result<(), CpuError> {
        if self.arrival == Arrival::Send { self.post_receive(place) } else { Ok(()) }
    }

    /// What a request begins with. Read it once.
    pub(super) fn prefix(&self, slot: u32) -> [u8; PREFIX_BYTES] {
        let mut prefix = [0; PREFIX_BYTES];
        if let Some(place) = self.place(slot) {
            self.slots.read(self.request_at(place), &mut prefix);
        }
        prefix
    }

    /// Copies the request's tensors out of registered memory.
    pub(super) fn read(&self, slot: u32, inputs: &mut [Vec<f32>]) {
        let Some(place) = self.place(slot) else { return };
        for (entry, input) in self.geometry.request.entries().iter().zip(inputs) {
            self.slots.read_f32(self.request_at(place) + entry.offset as usize, input);
        }
    }

    /// Writes a result into the slot's answer. The NIC no longer reads the answer before it:
    /// [`slots::Server::take`] sees to that.
    pub(super) fn put(&self, slot: u32, outputs: &[Vec<f32>]) -> Status {
        let Some(place) = self.place(slot) else { return Status::Stopping };
        let start = self.request_at(place) + self.geometry.answer_offset();
        for (entry, output) in self.geometry.answer.entries().iter().zip(outputs) {
            self.slots.write_f32(start + entry.offset as usize, output);
        }
        Status::Ok
    }

    /// Completes an answer, whose tensors are in its slot unless it is a refusal, and posts it. `next`:
    /// sequence of the slot's next request.
    pub(super) fn answer(
        &mut self,
        (slot, next): (u32, u32),
        prefix: &[u8; PREFIX_BYTES],
        is_refused: bool,
    ) -> Result<(), CpuError> {
        let place = self.place(slot).ok_or(CpuError::NoSlots)?;
        self.make_room(place)?;
        let (start, message) =
            (self.request_at(place) + self.geometry.answer_offset(), &self.geometry.answer);
        self.slots.write(start, prefix);
        let value = self.places[place].flag.to_le_bytes();
        self.slots.write(start + message.tail, &value);
        // Before the answer: the client may send the next request as soon as it has it.
        self.places[place] = Place { flag: flag(next), is_served: false };
        let to = |region: RegionOffer, offset: usize| Remote {
            address: region.address.wrapping_add(offset as u64),
            rkey: region.rkey,
        };
        let target = to(self.answers[0], place * self.geometry.client_stride());
        // A refusal is its prefix alone, unless its arrival is seen by the last bytes.
        let is_whole = !is_refused || self.arrival == Arrival::Tail;
        let length = if is_whole { message.bytes() } else { prefix.len() };
        let gather = [self.slots.sge(start..start + length)?];
        let inline = [InlineSlice::new(&value)];
        let operation = match self.arrival {
            Arrival::Completion => SendOperation::WriteImm(target, slot.to_be_bytes()),
            Arrival::Send => SendOperation::Send,
            Arrival::Flag | Arrival::Tail => SendOperation::Write(target),
        };
        let mut write = SendRequest::new(slot.into(), operation, Payload::Gather(&gather));
        if self.arrival == Arrival::Flag {
            write.flags = SendFlags::NONE;
            let operation = SendOperation::Write(to(self.answers[1], place * FLAG_BYTES));
            self.poster.post(&[write, SendRequest::new(slot.into(), operation, Payload::Inline(&inline))])?;
        } else {
            self.poster.post(&[write])?;
        }
        self.sending.push_back((slot, 0));
        *(if is_refused { &mut self.counts.refused } else { &mut self.counts.answered }) += 1;
        Ok(())
    }

    /// Slots whose answers the NIC may still read.
    pub(super) fn sending(&self) -> impl Iterator<Item = u32> {
        self.sending.iter().map(|(slot, _)| *slot)
    }

    /// Fails a client that took no answer in time. The offload has begun `begun` turns.
    pub(super) fn expire(&mut self, now_ns: u64, patience_ns: u64, begun: u64) {
        let Some(&(slot, _)) = self.sending.front().filter(|(_, turn)| *turn < begun) else {
            self.waits_since_ns = None;
            return;
        };
        let since_ns = *self.waits_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) > patience_ns {
            let took = patience_ns / 1_000_000_000;
            let why = format!("the answer in slot {slot} was not taken within {took} s");
            self.failure.get_or_insert(why);
        }
    }
}
