//! A client that writes what it wants, where it wants.

use std::sync::atomic::Ordering;
use std::time::Instant;

use cli::testing::Program;
use serving::setup::REGIONS;
use serving::{Arrival, Grant, Reply, Transport};
use slots::layout::{FLAG_BYTES, PREFIX_BYTES, flag};
use slots::{Client, Geometry, Header, Status};
use verbs::code::{Access, WcStatus};
use verbs::connect::{Hello, QpOffer, RegionOffer, Session, Wait};
use verbs::{
    Cq, Mr, Pages, Payload, QpBuilder, QpType, QueuePair, ReceiveRequest, Remote, SendOperation, SendRequest,
    WorkCompletion,
};

use crate::served::{Nic, PATIENCE, PAUSE, SMALL, geometry, setup_request};

/// Number of the first receive; that of each send is 0.
const RECEIVE: u64 = 1;

/// A client whose requests go into fixed slots.
pub struct Rogue {
    pub session: Session,
    /// The server's slots and flags.
    pub remote: [RegionOffer; REGIONS],
    qp: QueuePair,
    cq: Cq,
    /// A request for each slot, and their flags.
    source: Mr<Pages>,
    answers: Mr<Pages>,
    flags: Mr<Pages>,
    geometry: Geometry,
    arrival: Arrival,
    grant: Grant,
    /// The sequence of each slot's last request.
    sequences: Vec<u32>,
    /// Slots that receive completions named, or the headers of SENDs.
    received: Vec<u32>,
    /// Receives that were posted.
    posted: usize,
    /// Of each slot the place of the receive that its answer took; by SENDs alone.
    landed: Vec<usize>,
}

impl Rogue {
    /// Of the small model.
    pub fn new(nic: &Nic, address: &str, slots: u16, arrival: Arrival) -> Rogue {
        Rogue::of(nic, address, SMALL, slots, arrival)
    }

    /// It offers memory for answers that the server may not write.
    pub fn with_wrong_answers(nic: &Nic, address: &str, slots: u16, arrival: Arrival) -> Rogue {
        Rogue::with(nic, address, SMALL, slots, arrival, Access::LOCAL_WRITE)
    }

    pub fn of(nic: &Nic, address: &str, model: &str, slots: u16, arrival: Arrival) -> Rogue {
        Rogue::with(nic, address, model, slots, arrival, Access::LOCAL_WRITE | Access::REMOTE_WRITE)
    }

    fn with(
        nic: &Nic,
        address: &str,
        model: &str,
        slots: u16,
        arrival: Arrival,
        to_answers: Access,
    ) -> Rogue {
        let (wait, geometry, since) = (Wait::at_most(PATIENCE), geometry(model), Instant::now());
        let (mut session, grant) = loop {
            let mut session = Session::connect(address, wait).unwrap();
            session.send(&setup_request(model, slots, arrival, Transport::Rc)).unwrap();
            match session.receive("a grant", wait).unwrap() {
                Reply::Granted(grant) => break (session, grant),
                // Slots of the client before are being cleared.
                Reply::Refused(why) => assert!(since.elapsed() < PATIENCE, "{why}"),
            }
        };
        let (pd, count) = (nic.0.alloc_pd().unwrap(), usize::from(slots));
        let cq = Cq::new(&nic.0, 64).unwrap();
        let mut qp = QpBuilder::new(QpType::Rc).build(&pd, &cq, &cq).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = |bytes, access| Mr::register(&pd, Pages::new(bytes).unwrap(), access).unwrap();
        let source = memory(count * (geometry.answer_offset() + FLAG_BYTES), access);
        let answers = memory(count * geometry.client_stride(), to_answers);
        let flags = memory(count * FLAG_BYTES, access);
        nic.1.to_init(&qp, access, 0).unwrap();
        let offer = QpOffer::new(&qp);
        let regions = vec![RegionOffer::new(&answers), RegionOffer::new(&flags)];
        let ours = Hello::new(&nic.1, QpType::Rc, vec![offer], regions, ());
        let theirs = session.exchange(&ours, wait).unwrap();
        nic.1.connect(&qp, offer, &theirs, theirs.queue_pairs[0]).unwrap();
        session.barrier(wait).unwrap();
        let _ = &mut qp;
        Rogue {
            session,
            remote: theirs.regions.try_into().unwrap(),
            qp,
            cq,
            source,
            answers,
            flags,
            geometry: Geometry { model_id: grant.model_id, ..geometry },
            arrival,
            sequences: grant.sequences.clone(),
            grant,
            received: Vec::new(),
            posted: 0,
            landed: vec![0; count],
        }
    }

    /// Posts a receive, which an answer by a completion needs. A SEND lands in the memory of its place.
    pub fn receive(&mut self) {
        let place = self.posted % self.sequences.len();
        self.posted += 1;
        let start = place * self.geometry.client_stride();
        let piece = [self.answers.sge(start..start + self.geometry.answer.bytes()).unwrap()];
        let scatter = if self.arrival == Arrival::Send { &piece[..] } else { &[] };
        self.qp.post_receive(&ReceiveRequest { id: RECEIVE + place as u64, scatter }).unwrap();
    }

    fn at(&self, region: usize, offset: usize) -> Remote {
        let RegionOffer { address, rkey, .. } = self.remote[region];
        Remote { address: address + offset as u64, rkey }
    }

    /// Writes the next request of a slot into the source buffer, its prefix changed.
    fn prepare(&mut self, place: usize, change: impl Fn(&mut [u8])) -> SendRequestParts {
        let slot = self.grant.first + place as u32;
        let mut client = Client::new(self.geometry.clone(), &[(slot, self.sequences[place])]);
        let mut request = client.ask(place as u64, 0, 0, u64::MAX).unwrap();
        self.sequences[place] = request.sequence;
        change(&mut request.prefix);
        let start = place * self.geometry.answer_offset();
        self.source.write(start, &request.prefix);
        self.source.write(start + self.geometry.request.tail, &flag(request.sequence).to_le_bytes());
        self.source.write(self.flag_source(place), &flag(request.sequence).to_le_bytes());
        self.flags.word64(place * FLAG_BYTES).store(0, Ordering::Relaxed);
        if self.arrival != Arrival::Send {
            self.answers
                .write(place * self.geometry.client_stride(), &vec![0; self.geometry.client_stride()]);
        }
        SendRequestParts { start, target: self.at(0, place * self.geometry.server_stride()), slot }
    }

    fn flag_source(&self, place: usize) -> usize {
        self.sequences.len() * self.geometry.answer_offset() + place * FLAG_BYTES
    }

    fn post(&mut self, operation: SendOperation, range: std::ops::Range<usize>) {
        let piece = [self.source.sge(range).unwrap()];
        self.qp.post_send(&SendRequest::new(0, operation, Payload::Gather(&piece))).unwrap();
    }

    /// What brings a message into a slot, or the last part of it.
    fn operation(&self, target: Remote, slot: u32) -> SendOperation {
        match self.arrival {
            Arrival::Completion => SendOperation::WriteImm(target, slot.to_be_bytes()),
            Arrival::Send => SendOperation::Send,
            Arrival::Flag | Arrival::Tail => SendOperation::Write(target),
        }
    }

    /// Sends more bytes than a slot has for a request.
    pub fn send_too_many(&mut self) {
        self.post(SendOperation::Send, 0..self.geometry.request.bytes() + FLAG_BYTES);
    }

    /// Sends the next request of a slot, its prefix changed.
    pub fn ask(&mut self, place: usize, change: impl Fn(&mut [u8])) {
        let parts = self.prepare(place, change);
        self.finish(place, 0, &parts);
    }

    /// Writes the part of a request from `begin` on, and has it arrive.
    pub fn finish(&mut self, place: usize, begin: usize, parts: &SendRequestParts) {
        let SendRequestParts { start, target, slot } = *parts;
        let message = start + begin..start + self.geometry.request.bytes();
        let target = Remote { address: target.address + begin as u64, ..target };
        self.post(self.operation(target, slot), message);
        if self.arrival == Arrival::Flag {
            let (from, to) = (self.flag_source(place), self.at(1, place * FLAG_BYTES));
            self.post(SendOperation::Write(to), from..from + FLAG_BYTES);
        }
    }

    /// Writes the first half of a request; returns its length. [`Self::finish`] writes the rest from there.
    pub fn begin(&mut self, place: usize) -> (usize, SendRequestParts) {
        let (parts, half) = (self.prepare(place, |_| {}), self.geometry.request.bytes() / 2);
        self.post(SendOperation::Write(parts.target), parts.start..parts.start + half);
        (half, parts)
    }

    /// Has a request arrive of which the header is there alone.
    pub fn ask_cut(&mut self, place: usize) {
        let SendRequestParts { start, target, slot } = self.prepare(place, |_| {});
        let header = start..start + Header::BYTES;
        self.post(self.operation(target, slot), header);
        let (from, flag) = (self.flag_source(place), self.at(1, place * FLAG_BYTES));
        let tail = Remote { address: target.address + self.geometry.request.tail as u64, ..target };
        match self.arrival {
            Arrival::Flag => self.post(SendOperation::Write(flag), from..from + FLAG_BYTES),
            Arrival::Tail => self.post(SendOperation::Write(tail), from..from + FLAG_BYTES),
            Arrival::Completion | Arrival::Send => {}
        }
    }

    /// Sends requests into both slots, which arrive one right behind the other: their flags by one WRITE.
    pub fn ask_twice(&mut self, change: impl Fn(&mut [u8])) {
        let both = [0, 1].map(|place| self.prepare(place, &change));
        for SendRequestParts { start, target, slot } in both {
            self.post(self.operation(target, slot), start..start + self.geometry.request.bytes());
        }
        if self.arrival == Arrival::Flag {
            let from = self.flag_source(0);
            self.post(SendOperation::Write(self.at(1, 0)), from..from + 2 * FLAG_BYTES);
        }
    }

    /// Writes the flags of the next requests, which a client with this arrival does not need.
    pub fn foretell(&mut self) {
        assert_eq!(self.arrival, Arrival::Completion);
        for place in 0..self.sequences.len() {
            let value = flag(slots::layout::next(self.sequences[place]));
            self.source.write(0, &value.to_le_bytes());
            assert_eq!(self.write(self.at(1, place * FLAG_BYTES)), WcStatus::Success);
            let tail = place * self.geometry.server_stride() + self.geometry.request.tail;
            assert_eq!(self.write(self.at(0, tail)), WcStatus::Success);
        }
    }

    /// Names a slot without writing anything.
    pub fn name(&mut self, slot: u32) {
        let slot = if slot == self.grant.first { slot + 1000 } else { slot };
        let target = self.at(0, 0);
        self.post(SendOperation::WriteImm(target, slot.to_be_bytes()), 0..0);
    }

    /// Whether the answer to a slot's last request has come.
    pub fn is_answered(&mut self, place: usize) -> bool {
        let _ = self.completion(false);
        let (whole, start) = (flag(self.sequences[place]), place * self.geometry.client_stride());
        match self.arrival {
            Arrival::Flag => self.flags.word64(place * FLAG_BYTES).load(Ordering::Acquire) == whole,
            Arrival::Tail => {
                self.answers.word64(start + self.geometry.answer.tail).load(Ordering::Acquire) == whole
            }
            // Of several answers any may come first.
            Arrival::Completion | Arrival::Send => self.received.contains(&(self.grant.first + place as u32)),
        }
    }

    /// What lies where the answer of a slot begins.
    fn header(&self, place: usize) -> Header {
        self.header_at(if self.arrival == Arrival::Send { self.landed[place] } else { place })
    }

    fn header_at(&self, place: usize) -> Header {
        let mut prefix = [0; PREFIX_BYTES];
        self.answers.read(place * self.geometry.client_stride(), &mut prefix);
        Header::read(&prefix).unwrap()
    }

    /// Requests that the client may have outstanding, by the answer in a slot.
    pub fn credits(&self, place: usize) -> u16 {
        self.header(place).credits
    }

    /// Waits for the answer to a slot's last request: its status.
    pub fn answer(&mut self, place: usize) -> Option<Status> {
        let since = Instant::now();
        loop {
            if self.is_answered(place) {
                self.received.retain(|slot| *slot != self.grant.first + place as u32);
                return Status::of(self.header(place).status);
            }
            assert!(since.elapsed() < PATIENCE, "no answer in slot {place}");
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for so many answers by completions: their places in the order in which they came.
    pub fn answers_in_order(&mut self, count: usize) -> Vec<usize> {
        let since = Instant::now();
        while self.received.len() < count {
            assert!(since.elapsed() < PATIENCE, "{} of {count} answers", self.received.len());
            let _ = self.completion(false);
            std::thread::sleep(PAUSE);
        }
        self.received.drain(..).map(|slot| (slot - self.grant.first) as usize).collect()
    }

    /// The next completion of a send, if there is one. Those of receives are noted.
    fn completion(&mut self, waits: bool) -> Option<WcStatus> {
        let (since, mut done) = (Instant::now(), [WorkCompletion::default()]);
        loop {
            while self.cq.poll(&mut done).unwrap() == 1 {
                let Some(place) = done[0].id().checked_sub(RECEIVE).map(|place| place as usize) else {
                    return Some(done[0].status());
                };
                if self.arrival != Arrival::Send {
                    self.received.extend(done[0].immediate().map(u32::from_be_bytes));
                } else if done[0].is_success() {
                    let slot = self.header_at(place).slot;
                    self.landed[(slot - self.grant.first) as usize] = place;
                    self.received.push(slot);
                }
            }
            if !waits {
                return None;
            }
            assert!(since.elapsed() < PATIENCE);
            std::thread::sleep(PAUSE);
        }
    }

    /// Writes eight bytes: how that ends.
    pub fn write(&mut self, to: Remote) -> WcStatus {
        self.post(SendOperation::Write(to), 0..8);
        self.completion(true).unwrap()
    }

    /// Reads eight bytes: how that ends.
    pub fn read(&mut self, from: Remote) -> WcStatus {
        self.post(SendOperation::Read(from), 0..8);
        self.completion(true).unwrap()
    }

    /// Goes, and waits for the server's line about it.
    pub fn close(self, server: &mut Program) {
        drop(self);
        while server.next_line()["kind"] != "left" {}
    }
}

/// Where a request lies, and where it goes.
#[derive(Debug, Clone, Copy)]
pub struct SendRequestParts {
    start: usize,
    target: Remote,
    slot: u32,
}
