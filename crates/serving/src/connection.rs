//! A client's end over libibverbs: writes requests into the server's slots, and finds answers in its own.
//!
//! [`Connection::ask`] copies a request into registered memory and posts its WRITE. [`Connection::poll`]
//! takes an answer. The last WRITE of each request gives a completion; until then its memory is not reused.
//! One thread calls both in turn: only [`Connection::open`] waits, and it has a deadline.
//!
//! On UC a part of an answer may be lost while its flag arrives. So there the tail flag, in the last packet
//! of the answer's WRITE, must have arrived too. Else the answer is lost.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use slots::client::{Answer, AnswerError, AskError, Request};
use slots::layout::{FLAG_BYTES, PREFIX_BYTES, flag};
use slots::{Client, Geometry, Header, Status};
use verbs::code::{Access, WcStatus};
use verbs::connect::{ConnectError, Hello, Path, QpOffer, RegionOffer, Session, Wait};
use verbs::{
    Context, Cq, InlineSlice, Mr, Pages, Payload, PostError, QpBuilder, QpType, QueuePair, ReceiveRequest,
    Remote, SendFlags, SendList, SendOperation, SendOperations, SendRequest, WorkCompletion,
};

use crate::setup::{Arrival, REGIONS, Reply, SetupError, SetupRequest, Transport};

/// Completions that one poll of the CQ takes.
const AT_ONCE: usize = 16;
/// Bit of a receive's number, whose rest is its place; those of sends are numbers of source buffers.
const RECEIVE: u64 = 1 << 63;
/// The server writes answers and flags.
const ACCESS: Access = Access(Access::LOCAL_WRITE.0 | Access::REMOTE_WRITE.0);

/// Why a connection did not come about, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error("the server refuses: {0}")]
    Refused(String),
    #[error("the server offers {0}")]
    Offer(String),
    #[error("registered memory: {0}")]
    Memory(#[from] io::Error),
    #[error("the input has {given} bytes, the model's has {wanted}")]
    Input { given: usize, wanted: usize },
    #[error("{what} of QP {qpn:#x}: {source}")]
    Post { what: &'static str, qpn: u32, source: PostError },
    #[error("{what} of QP {qpn:#x} completed with an error: {status} (vendor error {vendor:#x})")]
    Completion { what: &'static str, qpn: u32, status: WcStatus, vendor: u32 },
    #[error("request {0} is outstanding")]
    DuplicateId(u64),
}

/// What came: an answer, or what is none.
pub type Found<'a> = Result<Answered<'a>, AnswerError>;

/// An answer, with a copy of its bytes.
#[derive(Debug)]
pub struct Answered<'a> {
    pub answer: Answer,
    /// When it had been copied out of registered memory, by [`Connection::now_ns`].
    pub taken_ns: u64,
    message: &'a [u8],
    geometry: &'a Geometry,
}

impl Answered<'_> {
    /// Bytes of each output, as they were when the answer was taken. Only of status OK they are results.
    pub fn outputs(&self) -> impl Iterator<Item = &[u8]> {
        let place =
            |entry: &slots::layout::Entry| entry.offset as usize..(entry.offset + entry.length) as usize;
        self.geometry.answer.entries().iter().map(move |entry| &self.message[place(entry)])
    }
}

/// A request whose answer did not come yet.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    slot: u32,
    place: usize,
    sequence: u32,
}

/// One client of a server, with slots for one model.
#[derive(Debug)]
pub struct Connection {
    session: Session,
    qp: QueuePair,
    cq: Cq,
    /// Requests while the NIC reads them: one buffer for each slot.
    source: Mr<Pages>,
    /// Numbers of those that the NIC does not read.
    unused: Vec<usize>,
    answers: Mr<Pages>,
    flags: Mr<Pages>,
    client: Client,
    geometry: Geometry,
    arrival: Arrival,
    transport: Transport,
    /// The server's slots and their flags.
    remote: [RegionOffer; REGIONS],
    /// In the order of asking.
    waiting: Vec<Waiting>,
    /// Slots that receive completions named; with SENDs, places whose receives were taken.
    arrived: VecDeque<u32>,
    slots: usize,
    /// The answer that is looked at.
    message: Vec<u8>,
    duplicates: u64,
    began: Instant,
}

impl Connection {
    /// Connects to a server at `address`, as `host:7000`. `geometry`: the model's, whose number the server
    /// chooses.
    ///
    /// # Errors
    /// No server, one that refuses, one of another build, or no memory.
    pub fn open(
        (context, path): (&Context, &Path),
        address: &str,
        setup_request: &SetupRequest,
        geometry: Geometry,
        wait: Wait<'_>,
    ) -> Result<Connection, ConnectionError> {
        let mut session = Session::connect(address, wait)?;
        session.send(setup_request)?;
        let grant = match session.receive("the server's grant", wait)? {
            Reply::Granted(grant) => grant,
            Reply::Refused(why) => return Err(ConnectionError::Refused(why)),
        };
        setup_request.accepts(&grant)?;
        let geometry = Geometry { model_id: grant.model_id, ..geometry };
        let (slots, pd) = (usize::from(setup_request.slots), context.alloc_pd()?);
        let receives = if setup_request.arrival.has_receives() { u32::from(setup_request.slots) } else { 0 };
        let sends =
            u32::from(setup_request.slots) * if setup_request.arrival == Arrival::Flag { 2 } else { 1 };
        let cq = Cq::new(context, sends + receives + 1)?;
        let kind = if setup_request.transport == Transport::Rc { QpType::Rc } else { QpType::Uc };
        let builder = QpBuilder::new(kind).send_requests(sends).receive_requests(receives.max(1));
        let builder =
            builder.inline_bytes(FLAG_BYTES as u32).operations(SendOperations::WRITE | SendOperations::SEND);
        let mut qp = builder.build(&pd, &cq, &cq)?;
        let register = |bytes: usize, access| -> Result<Mr<Pages>, ConnectionError> {
            Ok(Mr::register(&pd, Pages::new(bytes)?, access)?)
        };
        let source = register(slots * geometry.answer_offset(), Access::NONE)?;
        let answers = register(slots * geometry.client_stride(), ACCESS)?;
        let flags = register(slots * FLAG_BYTES, ACCESS)?;
        path.to_init(&qp, ACCESS, 0)?;
        for place in 0..receives as usize {
            post_receive(&mut qp, setup_request.arrival, &answers, &geometry, place)?;
        }
        let (offer, regions) = (QpOffer::new(&qp), [RegionOffer::new(&answers), RegionOffer::new(&flags)]);
        let ours = Hello::new(path, kind, vec![offer], regions.to_vec(), ());
        let theirs = session.exchange(&ours, wait)?;
        let remote = offered(&theirs.regions, [slots * geometry.server_stride(), slots * FLAG_BYTES])?;
        path.connect(&qp, offer, &theirs, theirs.queue_pairs[0])?;
        session.barrier(wait)?;
        let mut client = Client::new(geometry.clone(), &grant.slots());
        client.limit(grant.credits);
        Ok(Connection {
            session,
            qp,
            cq,
            source,
            unused: (0..slots).collect(),
            answers,
            flags,
            client,
            message: vec![0; geometry.answer.bytes()],
            geometry,
            arrival: setup_request.arrival,
            transport: setup_request.transport,
            remote,
            waiting: Vec::with_capacity(slots),
            arrived: VecDeque::with_capacity(slots),
            slots,
            duplicates: 0,
            began: Instant::now(),
        })
    }

    /// This client's clock: nanoseconds since it was connected.
    pub fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Requests that wait for an answer and whose deadline has not passed.
    pub fn outstanding(&self) -> usize {
        self.client.outstanding()
    }

    /// Whether nothing can be asked: as many requests as the credits allow are late, or lost on UC.
    pub fn is_exhausted(&self) -> bool {
        self.client.is_exhausted()
    }

    /// Answers that came once more than they were asked for.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Whether the server still holds the connection.
    pub fn is_alive(&mut self) -> bool {
        self.session.is_alive()
    }

    /// Waits up to a second for the server to close the connection; whether it did. The NIC may notice a dead
    /// server before the kernel has closed its socket.
    pub fn closes_soon(&mut self) -> bool {
        let since = Instant::now();
        while self.is_alive() {
            if since.elapsed() > Duration::from_secs(1) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Sends a request. `input`: the bytes of each input. `deadline_ns`: by [`Self::now_ns`]. False: no slot
    /// is free, or the NIC still reads an earlier request; poll, and ask again.
    ///
    /// # Errors
    /// An input of another length, a number that is outstanding, or a connection that has failed.
    pub fn ask(
        &mut self,
        id: u64,
        cookie: u64,
        inputs: &[&[u8]],
        deadline_ns: u64,
    ) -> Result<bool, ConnectionError> {
        let lengths = self.geometry.request.entries().iter().map(|entry| entry.length as usize);
        let (given, wanted) = (inputs.iter().map(|input| input.len()), lengths);
        if !given.clone().eq(wanted.clone()) {
            return Err(ConnectionError::Input { given: given.sum(), wanted: wanted.sum() });
        }
        let Some(&buffer) = self.unused.last() else { return Ok(false) };
        let request = match self.client.ask(id, cookie, self.now_ns(), deadline_ns) {
            Ok(request) => request,
            Err(AskError::NoCredit) => return Ok(false),
            Err(AskError::DuplicateId(id)) => return Err(ConnectionError::DuplicateId(id)),
        };
        self.unused.pop();
        let start = buffer * self.geometry.answer_offset();
        self.source.write(start, &request.prefix);
        for (entry, input) in self.geometry.request.entries().iter().zip(inputs) {
            self.source.write(start + entry.offset as usize, input);
        }
        self.source.write(start + self.geometry.request.tail, &flag(request.sequence).to_le_bytes());
        // What lies there now answers nothing.
        self.clear(request.place);
        self.post(buffer, start, &request)?;
        let Request { slot, place, sequence, .. } = request;
        self.waiting.push(Waiting { slot, place, sequence });
        Ok(true)
    }

    /// Posts the WRITEs of a request. The last one gives a completion.
    fn post(&mut self, buffer: usize, start: usize, request: &Request) -> Result<(), ConnectionError> {
        let [slots, flags] = self.remote;
        let at = |region: RegionOffer, offset: usize| Remote {
            address: region.address + offset as u64,
            rkey: region.rkey,
        };
        let slot = at(slots, request.place * self.geometry.server_stride());
        let message = [self.source.sge(start..start + self.geometry.request.bytes())?];
        let value = flag(request.sequence).to_le_bytes();
        let inline = [InlineSlice::new(&value)];
        let mut list = SendList::with_capacity(2);
        let operation = match self.arrival {
            Arrival::Completion => SendOperation::WriteImm(slot, request.slot.to_be_bytes()),
            Arrival::Send => SendOperation::Send,
            Arrival::Flag | Arrival::Tail => SendOperation::Write(slot),
        };
        let mut write = SendRequest::new(buffer as u64, operation, Payload::Gather(&message));
        if self.arrival == Arrival::Flag {
            write.flags = SendFlags::NONE;
            list.push(&write);
            let operation = SendOperation::Write(at(flags, request.place * FLAG_BYTES));
            list.push(&SendRequest::new(buffer as u64, operation, Payload::Inline(&inline)));
        } else {
            list.push(&write);
        }
        let what = "a request";
        let qpn = self.qp.number();
        self.qp.post_send_list(&mut list).map_err(|source| ConnectionError::Post { what, qpn, source })
    }

    /// Takes what has come: an answer, or what is none.
    ///
    /// # Errors
    /// The queue pair has failed.
    pub fn poll(&mut self) -> Result<Option<Found<'_>>, ConnectionError> {
        self.complete()?;
        let found = match self.arrival {
            Arrival::Completion | Arrival::Send => self.arrived.pop_front(),
            Arrival::Flag | Arrival::Tail => {
                self.waiting.iter().find(|at| self.is_whole(at)).map(|at| at.slot)
            }
        };
        let Some(mut slot) = found else { return Ok(None) };
        if self.arrival == Arrival::Send {
            let place = slot as usize;
            self.answers.read(place * self.geometry.client_stride(), &mut self.message);
            post_receive(&mut self.qp, self.arrival, &self.answers, &self.geometry, place)?;
            slot = Header::read(&self.message).unwrap_or_default().slot;
        }
        let (place, sequence) = match self.client.expected(slot) {
            Ok(expected) => expected,
            Err(error) => return Ok(Some(Err(error))),
        };
        if self.arrival != Arrival::Send {
            // A peer may write there at any time: what is checked is what was copied.
            self.answers.read(place * self.geometry.client_stride(), &mut self.message);
            self.zero(place);
        }
        let prefix: &[u8; PREFIX_BYTES] = self.message.first_chunk().expect("an answer has a prefix");
        let header = Header::read(prefix).unwrap_or_default();
        let has_tail = self.message[self.geometry.answer.tail..] == flag(sequence).to_le_bytes();
        // What UC has lost, or a part of it, is no answer: its request is lost at its deadline.
        if self.transport == Transport::Uc && is_torn(self.arrival, &header, sequence, has_tail) {
            return Ok(None);
        }
        let answered = self.client.answered(slot, prefix);
        match answered {
            Ok(_) | Err(AnswerError::Late { .. }) => self.waiting.retain(|at| at.slot != slot),
            Err(AnswerError::Unasked { .. }) => self.duplicates += 1,
            Err(_) => {}
        }
        let (taken_ns, message, geometry) = (self.now_ns(), &self.message[..], &self.geometry);
        Ok(Some(answered.map(|answer| Answered { answer, taken_ns, message, geometry })))
    }

    /// Numbers of requests that timed out. Their slots are reused once their answers have come.
    pub fn expired(&mut self) -> Vec<u64> {
        self.client.expired(self.now_ns())
    }

    /// The word by which an answer's arrival is seen.
    fn word(&self, place: usize) -> u64 {
        let word = match self.arrival {
            Arrival::Flag => self.flags.word64(place * FLAG_BYTES),
            Arrival::Tail | Arrival::Completion | Arrival::Send => {
                self.answers.word64(place * self.geometry.client_stride() + self.geometry.answer.tail)
            }
        };
        u64::from_le(word.load(Ordering::Acquire))
    }

    fn is_whole(&self, at: &Waiting) -> bool {
        self.word(at.place) == flag(at.sequence)
    }

    /// Forgets an answer's arrival, so that it is seen if it comes again.
    fn zero(&self, place: usize) {
        self.flags.word64(place * FLAG_BYTES).store(0, Ordering::Relaxed);
        let tail = place * self.geometry.client_stride() + self.geometry.answer.tail;
        self.answers.word64(tail).store(0, Ordering::Relaxed);
    }

    /// Counts an answer that came again to a slot without a request.
    fn clear(&mut self, place: usize) {
        // There the answer of another slot may be on its way.
        if self.arrival == Arrival::Send {
            return;
        }
        if self.arrival != Arrival::Completion && self.word(place) != 0 {
            self.duplicates += 1;
        }
        self.zero(place);
    }

    /// Counts answers that came again to slots without a request: for the end, after the last request.
    pub fn settle(&mut self) {
        for place in 0..self.slots {
            if self.waiting.iter().all(|at| at.place != place) {
                self.clear(place);
            }
        }
    }

    /// Takes completions: source buffers that are unused again, and slots whose answers are whole.
    fn complete(&mut self) -> Result<(), ConnectionError> {
        let mut done = [WorkCompletion::default(); AT_ONCE];
        let count = self.cq.poll(&mut done)?;
        for one in &done[..count] {
            let is_receive = one.id() & RECEIVE != 0;
            if !one.is_success() {
                let what = if is_receive { "the receive of an answer" } else { "a request" };
                let (qpn, status, vendor) = (one.qpn(), one.status(), one.vendor_error());
                return Err(ConnectionError::Completion { what, qpn, status, vendor });
            }
            if !is_receive {
                self.unused.push(one.id() as usize);
                continue;
            }
            if self.arrival == Arrival::Send {
                self.arrived.push_back((one.id() & !RECEIVE) as u32);
                continue;
            }
            post_receive(&mut self.qp, self.arrival, &self.answers, &self.geometry, 0)?;
            // An answer without a number is none of any slot: its request is lost.
            self.arrived.extend(one.immediate().map(u32::from_be_bytes));
        }
        Ok(())
    }
}

/// Whether a part of an answer is lost whose arrival was seen. `has_tail`: its last bytes are there.
fn is_torn(arrival: Arrival, header: &Header, sequence: u32, has_tail: bool) -> bool {
    let is_new = header.sequence == sequence;
    // A refusal is its prefix alone, which one packet holds. Its flag or tail is a WRITE of its own.
    let is_refusal = is_new && Status::of(header.status).is_some_and(|status| status != Status::Ok);
    let is_old = header.sequence == 0 || (sequence.wrapping_sub(header.sequence) as i32) > 0;
    match arrival {
        Arrival::Flag => !is_refusal && !has_tail,
        Arrival::Tail => is_old,
        Arrival::Completion | Arrival::Send => false,
    }
}

/// A receive: for a SEND with a place's memory, for a WRITE with immediate data without any.
fn post_receive(
    qp: &mut QueuePair,
    arrival: Arrival,
    answers: &Mr<Pages>,
    geometry: &Geometry,
    place: usize,
) -> Result<(), ConnectionError> {
    let (what, qpn, start) = ("a receive", qp.number(), place * geometry.client_stride());
    let piece = [answers.sge(start..start + geometry.answer.bytes())?];
    let scatter = if arrival == Arrival::Send { &piece[..] } else { &[] };
    let posted = qp.post_receive(&ReceiveRequest { id: RECEIVE | place as u64, scatter });
    posted.map_err(|source| ConnectionError::Post { what, qpn, source })
}

/// The server's regions, if they are as long as slots and flags are.
fn offered(
    regions: &[RegionOffer],
    bytes: [usize; REGIONS],
) -> Result<[RegionOffer; REGIONS], ConnectionError> {
    let given: [RegionOffer; REGIONS] = regions
        .try_into()
        .map_err(|_| ConnectionError::Offer(format!("{} regions, not {REGIONS}", regions.len())))?;
    if let Some(region) = given.iter().find(|region| region.address.checked_add(region.bytes).is_none()) {
        let text =
            format!("a region of {} bytes at {:#x}, beyond all addresses", region.bytes, region.address);
        return Err(ConnectionError::Offer(text));
    }
    match given.iter().zip(bytes).find(|(region, bytes)| region.bytes < *bytes as u64) {
        None => Ok(given),
        Some((region, bytes)) => {
            let text = format!("a region of {} bytes where {bytes} are needed", region.bytes);
            Err(ConnectionError::Offer(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_its_prefix_or_its_last_bytes_is_torn() {
        const FAILED: Status = Status::ModelFailed;
        for (arrival, status, sequence, has_tail, torn) in [
            (Arrival::Flag, Status::Ok, 9, true, false),
            (Arrival::Flag, Status::Ok, 9, false, true),
            (Arrival::Flag, FAILED, 9, false, false),
            (Arrival::Flag, FAILED, 8, false, true),
            (Arrival::Tail, Status::Ok, 9, true, false),
            (Arrival::Tail, FAILED, 9, true, false),
            (Arrival::Tail, Status::Ok, 8, true, true),
            (Arrival::Tail, Status::Ok, 0, true, true),
            // The server has not sent this number yet: the answer is wrong, not lost.
            (Arrival::Tail, Status::Ok, 10, true, false),
            (Arrival::Completion, Status::Ok, 8, true, false),
        ] {
            let header = Header { status: status.number(), sequence, ..Header::default() };
            assert_eq!(is_torn(arrival, &header, 9, has_tail), torn, "{arrival:?} {status:?} {sequence}");
        }
    }

    #[test]
    fn regions_that_are_too_few_or_too_short_are_refused() {
        let region = |bytes| RegionOffer { address: 4096, bytes, rkey: 7 };
        assert!(offered(&[region(64), region(8)], [64, 8]).is_ok());
        for (regions, words) in [
            (&[region(64)][..], "1 regions"),
            (&[region(64), region(7)], "7 bytes where 8"),
            (&[region(63), region(8)], "63 bytes where 64"),
        ] {
            let error = offered(regions, [64, 8]).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let far = RegionOffer { address: u64::MAX - 7, bytes: 1 << 40, rkey: 7 };
        let error = offered(&[far, region(8)], [64, 8]).unwrap_err().to_string();
        assert!(error.contains("beyond all addresses"), "{error}");
    }
}
