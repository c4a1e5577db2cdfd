//! The server's side: what a request is checked for, which client's request is next, and when a slot's answer
//! may be overwritten.

use std::collections::{HashSet, VecDeque};

use crate::geometry::Geometry;
use crate::layout::{Header, MAGIC, PREFIX_BYTES, Status, VERSION, next};

/// What went wrong with a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    #[error("slot {0} does not exist, or the client does not have it")]
    NoSlot(u32),
    #[error(
        "{wanted} slots are wanted, {free} are free one behind the other: ask for fewer slots, or wait until a client leaves"
    )]
    Full { wanted: usize, free: usize },
    #[error("client {0} is unknown")]
    Client(u32),
    #[error("slot {0} is not in a state in which that happens")]
    State(u32),
}

/// Which of a client's requests that wait is served first. Clients have their turn in either order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotOrder {
    /// The one that arrived first.
    #[default]
    Arrival,
    /// The one behind the last request's slot, as the release walks its slots. An older request behind waits.
    Index,
}

/// A request to be computed, or one that is to be refused with this status and without being computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub slot: u32,
    pub client: u32,
    pub header: Header,
    pub refused: Option<Status>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Idle,
    Ready(Work),
    Running(Work),
}

/// A request may arrive while the answer before it is still read by the NIC: they do not share bytes.
#[derive(Debug, Clone, Copy)]
struct Slot {
    client: Option<u32>,
    sequence: u32,
    stage: Stage,
    /// The completion of the WRITE that reads the answer was not polled yet.
    is_sending: bool,
    /// The request's number that is outstanding until then.
    handed_over: Option<u64>,
}

impl Slot {
    /// Whether no client has it, and nothing uses it any more.
    fn is_free(&self) -> bool {
        self.client.is_none() && self.stage == Stage::Idle && !self.is_sending
    }
}

#[derive(Debug)]
struct Peer {
    number: u32,
    /// Slots with a request, in the order of arrival.
    ready: VecDeque<u32>,
    outstanding: HashSet<u64>,
    credits: u16,
    /// Requests that have arrived and are neither answered nor handed over.
    in_flight: u16,
    /// The slot behind that of its request that was served last.
    turn: u32,
}

/// The slots of one model, and the clients that have them.
#[derive(Debug)]
pub struct Server {
    geometry: Geometry,
    slots: Vec<Slot>,
    /// The client whose turn is next stands first.
    peers: VecDeque<Peer>,
    /// Of the next client: no number is given twice.
    next_client: u32,
    order: SlotOrder,
}

impl Server {
    /// `slots` of them, with these numbers from 0.
    pub fn new(geometry: Geometry, slots: u32) -> Server {
        let slot =
            Slot { client: None, sequence: 0, stage: Stage::Idle, is_sending: false, handed_over: None };
        let (slots, order) = (vec![slot; slots as usize], SlotOrder::default());
        Server { geometry, slots, peers: VecDeque::new(), next_client: 0, order }
    }

    /// Serves each client's requests in this order from now on.
    pub fn set_order(&mut self, order: SlotOrder) {
        self.order = order;
    }

    /// Slots that one new client can get: as many as lie free one behind the other.
    pub fn free(&self) -> usize {
        let longest = self.slots.chunk_by(|one, next| one.is_free() == next.is_free());
        longest.filter(|run| run[0].is_free()).map(<[Slot]>::len).max().unwrap_or(0)
    }

    /// Gives so many slots, one behind the other, to a new client: its number, those of the slots, and the
    /// sequences of their last requests. The caller sets their flags and tail flags to 0 before the client
    /// hears of them: an earlier client may have written there what looks like the next request.
    pub fn grant(&mut self, wanted: u16) -> Result<(u32, Vec<(u32, u32)>), ServerError> {
        let full = ServerError::Full { wanted: wanted.into(), free: self.free() };
        let count = usize::from(wanted);
        let windows = (wanted > 0).then(|| self.slots.windows(count)).ok_or(full)?;
        let first = { windows }.position(|run| run.iter().all(Slot::is_free)).ok_or(full)?;
        let client = self.next_client;
        self.next_client = client.wrapping_add(1);
        let granted = (first..).zip(&mut self.slots[first..first + count]).map(|(number, slot)| {
            slot.client = Some(client);
            (number as u32, slot.sequence)
        });
        let granted = granted.collect();
        let (ready, outstanding, turn) = (VecDeque::new(), HashSet::new(), first as u32);
        self.peers.push_back(Peer {
            number: client,
            ready,
            outstanding,
            credits: wanted,
            in_flight: 0,
            turn,
        });
        Ok((client, granted))
    }

    /// Takes a client's slots back. Its queue pair was destroyed before and its completions were polled, so
    /// that nothing of it arrives any more. A slot whose request runs, or whose answer is being sent, is
    /// granted again after that.
    pub fn withdraw(&mut self, client: u32) -> Result<(), ServerError> {
        let at = self.peers.iter().position(|peer| peer.number == client);
        self.peers.remove(at.ok_or(ServerError::Client(client))?);
        for slot in self.slots.iter_mut().filter(|slot| slot.client == Some(client)) {
            slot.client = None;
            if matches!(slot.stage, Stage::Ready(_)) {
                slot.stage = Stage::Idle;
            }
        }
        Ok(())
    }

    /// Sets how many requests a client may have outstanding, at least 1: answers say so, more are refused. A
    /// lowered limit refuses some in flight: set it before the client gets its slots.
    pub fn limit(&mut self, client: u32, credits: u16) -> Result<(), ServerError> {
        self.peer(client)?.credits = credits.max(1);
        Ok(())
    }

    /// The sequence that the next request in a slot has to have.
    pub fn expected(&self, slot: u32) -> Result<u32, ServerError> {
        Ok(next(self.slot(slot)?.sequence))
    }

    /// The client that has a slot.
    pub fn owner(&self, slot: u32) -> Option<u32> {
        self.slot(slot).ok()?.client
    }

    /// Takes the request that is whole in a slot. `client`: the owner of the completion's queue pair; with
    /// flags [`Self::owner`]. `prefix`: the request's first bytes, read once. A bad request is taken too, to
    /// be answered with its status. Errors leave all as it is: the slot is another client's, or its request
    /// is not answered yet.
    pub fn arrived(
        &mut self,
        client: u32,
        slot: u32,
        prefix: &[u8; PREFIX_BYTES],
    ) -> Result<(), ServerError> {
        let header = Header::read(prefix).unwrap_or_default();
        let found = *self.slot(slot)?;
        if found.client != Some(client) {
            return Err(ServerError::NoSlot(slot));
        }
        if found.stage != Stage::Idle {
            return Err(ServerError::State(slot));
        }
        let mut refused = self.fault(slot, found.sequence, &header, prefix);
        let peer = self.peer(client)?;
        // The next request of a slot is one whose client has the answer before.
        if let Some(before) = found.handed_over {
            peer.outstanding.remove(&before);
        }
        if refused.is_none() && peer.in_flight >= peer.credits {
            refused = Some(Status::NoCredit);
        }
        if refused.is_none() && !peer.outstanding.insert(header.request_id) {
            refused = Some(Status::DuplicateId);
        }
        peer.in_flight += 1;
        peer.ready.push_back(slot);
        let place = &mut self.slots[slot as usize];
        place.handed_over = None;
        place.sequence = next(place.sequence);
        place.stage = Stage::Ready(Work { slot, client, header, refused });
        Ok(())
    }

    /// What is wrong with a request whose slot had `last` before.
    fn fault(&self, slot: u32, last: u32, header: &Header, prefix: &[u8; PREFIX_BYTES]) -> Option<Status> {
        if (header.magic, header.version, header.status) != (MAGIC, VERSION, 0) {
            Some(Status::BadHeader)
        } else if (header.sequence, header.slot) != (next(last), slot) {
            Some(Status::BadSequence)
        } else if header.model_id != self.geometry.model_id {
            Some(Status::BadModel)
        } else if prefix[Header::BYTES..] != self.geometry.request.table()
            || usize::from(header.tensors) != self.geometry.request.entries().len()
        {
            Some(Status::BadTensors)
        } else {
            None
        }
    }

    /// The next request, clients in turn. It is none whose slot's answer the NIC still reads.
    pub fn take(&mut self) -> Option<Work> {
        for turn in 0..self.peers.len() {
            let peer = &self.peers[turn];
            let mut may =
                peer.ready.iter().enumerate().filter(|(_, slot)| !self.slots[**slot as usize].is_sending);
            let next = match self.order {
                SlotOrder::Arrival => may.next(),
                // Slots before the turn wrap around, and so come last.
                SlotOrder::Index => may.min_by_key(|(_, slot)| slot.wrapping_sub(peer.turn)),
            };
            let Some((at, _)) = next else { continue };
            let mut peer = self.peers.remove(turn)?;
            let number = peer.ready.remove(at)?;
            peer.turn = number.wrapping_add(1);
            self.peers.push_back(peer);
            let slot = &mut self.slots[number as usize];
            let Stage::Ready(work) = slot.stage else { continue };
            slot.stage = Stage::Running(work);
            return Some(work);
        }
        None
    }

    /// Ends a request that runs: what its answer begins with. Until [`Self::sent`] the answer stays as it is.
    /// `None`: the client is gone, and nothing is to be sent.
    pub fn done(
        &mut self,
        slot: u32,
        status: Status,
        [begun_ns, ended_ns]: [u64; 2],
    ) -> Result<Option<[u8; PREFIX_BYTES]>, ServerError> {
        let Some(work) = self.end(slot)? else { return Ok(None) };
        let peer = self.peer(work.client)?;
        if work.refused.is_none() {
            peer.outstanding.remove(&work.header.request_id);
        }
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            status: work.refused.unwrap_or(status).number(),
            begun_ns,
            ended_ns,
            credits: peer.credits,
            slot,
            ..work.header
        };
        Ok(Some(self.geometry.answer.prefix(&header)))
    }

    /// As [`Self::done`], of a request computed and answered elsewhere: whether its client is there. Its
    /// number stays outstanding until [`Self::sent`], but not against the client's credits. The client may
    /// have the answer, and send its next request, before this server hears of it.
    pub fn hand_over(&mut self, slot: u32) -> Result<bool, ServerError> {
        let Some(work) = self.end(slot)? else { return Ok(false) };
        self.slots[slot as usize].handed_over = work.refused.is_none().then_some(work.header.request_id);
        Ok(true)
    }

    /// Ends a request that runs; `None`: its client is gone.
    fn end(&mut self, slot: u32) -> Result<Option<Work>, ServerError> {
        let Stage::Running(work) = self.slot(slot)?.stage else { return Err(ServerError::State(slot)) };
        let place = &mut self.slots[slot as usize];
        place.stage = Stage::Idle;
        place.is_sending = place.client == Some(work.client);
        if !place.is_sending {
            return Ok(None);
        }
        let peer = self.peer(work.client)?;
        peer.in_flight = peer.in_flight.saturating_sub(1);
        Ok(Some(work))
    }

    /// The completion of the WRITE that read a slot's answer was polled.
    pub fn sent(&mut self, slot: u32) -> Result<(), ServerError> {
        let Slot { client, is_sending, handed_over, .. } = *self.slot(slot)?;
        let place = &mut self.slots[slot as usize];
        (place.is_sending, place.handed_over) = (false, None);
        if let (Some(client), Some(number)) = (client, handed_over) {
            self.peer(client)?.outstanding.remove(&number);
        }
        if is_sending { Ok(()) } else { Err(ServerError::State(slot)) }
    }

    fn peer(&mut self, client: u32) -> Result<&mut Peer, ServerError> {
        let peer = self.peers.iter_mut().find(|peer| peer.number == client);
        peer.ok_or(ServerError::Client(client))
    }

    fn slot(&self, slot: u32) -> Result<&Slot, ServerError> {
        self.slots.get(slot as usize).ok_or(ServerError::NoSlot(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Client, Request};
    use crate::geometry::Tensor;
    use crate::layout::TensorKind;

    const TIMES: [u64; 2] = [5, 9];

    fn geometry() -> Geometry {
        let tensor = Tensor { kind: TensorKind::F32, count: 1 };
        Geometry::new(5, &[tensor], &[tensor]).unwrap()
    }

    fn both(slots: u16) -> (Server, Client) {
        let mut server = Server::new(geometry(), u32::from(slots));
        let (client, granted) = server.grant(slots).unwrap();
        assert_eq!(client, 0);
        (server, Client::new(geometry(), &granted))
    }

    fn changed(request: &Request, change: fn(&mut Header)) -> [u8; PREFIX_BYTES] {
        let mut header = Header::read(&request.prefix).unwrap();
        change(&mut header);
        geometry().request.prefix(&header)
    }

    #[test]
    fn a_bad_request_is_answered_with_its_status_and_is_not_computed() {
        for (byte, status) in [
            (0, Status::BadHeader),
            (4, Status::BadHeader),
            (6, Status::BadHeader),
            (16, Status::BadModel),
            (20, Status::BadSequence),
            (20 + 3, Status::BadSequence),
            (56, Status::BadTensors),
            (60, Status::BadSequence),
            (Header::BYTES, Status::BadTensors),
            (PREFIX_BYTES - 1, Status::BadTensors),
        ] {
            let (mut server, mut client) = both(1);
            let mut prefix = client.ask(1, 0, 0, 9).unwrap().prefix;
            prefix[byte] ^= if byte == 20 { 1 } else { 2 };
            server.arrived(0, 0, &prefix).unwrap();
            assert_eq!(server.take().unwrap().refused, Some(status), "byte {byte}");
            let answer = server.done(0, Status::Ok, TIMES).unwrap().unwrap();
            assert_eq!(Header::read(&answer).unwrap().status, status.number());
            server.sent(0).unwrap();
            assert_eq!((server.take(), server.expected(0)), (None, Ok(2)));
        }
    }

    #[test]
    fn a_number_that_is_outstanding_is_refused_and_stays_outstanding() {
        let (mut server, mut client) = both(2);
        let [first, second] = [1, 2].map(|id| client.ask(id, 0, 0, 9).unwrap());
        server.arrived(0, 0, &first.prefix).unwrap();
        server.arrived(0, 1, &changed(&second, |header| header.request_id = 1)).unwrap();
        let refused = [server.take().unwrap(), server.take().unwrap()].map(|work| work.refused);
        assert_eq!(refused, [None, Some(Status::DuplicateId)]);
        server.done(1, Status::Ok, TIMES).unwrap();
        server.sent(1).unwrap();
        let again = Header { sequence: 2, slot: 1, ..Header::read(&first.prefix).unwrap() };
        server.arrived(0, 1, &geometry().request.prefix(&again)).unwrap();
        assert_eq!(server.take().unwrap().refused, Some(Status::DuplicateId));
    }

    #[test]
    fn a_number_that_was_handed_over_is_outstanding_until_its_answer_was_sent() {
        // Or until the slot's next request says that its client has it.
        for is_sent in [true, false] {
            let (mut server, mut client) = both(3);
            let requests = [1, 2, 3].map(|id| client.ask(id, 0, 0, 9).unwrap());
            let same = |server: &mut Server, slot: usize| {
                let prefix = changed(&requests[slot], |header| header.request_id = 1);
                server.arrived(0, slot as u32, &prefix).unwrap();
                server.take().unwrap().refused
            };
            assert_eq!(same(&mut server, 0), None);
            assert_eq!(server.hand_over(0), Ok(true));
            assert_eq!(same(&mut server, 1), Some(Status::DuplicateId));
            let next = changed(&requests[0], |header| (header.sequence, header.request_id) = (2, 4));
            match is_sent {
                true => server.sent(0),
                false => server.arrived(0, 0, &next),
            }
            .unwrap();
            assert_eq!(same(&mut server, 2), None);
        }
    }

    #[test]
    fn an_arrival_in_a_slot_that_is_anothers_or_in_use_changes_nothing() {
        let (mut server, mut client) = both(1);
        let request = client.ask(1, 0, 0, 9).unwrap();
        for (client, slot) in [(1, 0), (0, 1), (0, u32::MAX)] {
            assert_eq!(server.arrived(client, slot, &request.prefix), Err(ServerError::NoSlot(slot)));
        }
        assert_eq!((server.owner(0), server.owner(1), server.expected(0)), (Some(0), None, Ok(1)));
        server.arrived(0, 0, &request.prefix).unwrap();
        assert_eq!(server.arrived(0, 0, &request.prefix), Err(ServerError::State(0)));
        server.take().unwrap();
        assert_eq!(server.arrived(0, 0, &request.prefix), Err(ServerError::State(0)));
        server.done(0, Status::Ok, TIMES).unwrap();
        server.sent(0).unwrap();
        // The same request once more is taken, and refused: each flag that was seen is behind it then.
        server.arrived(0, 0, &request.prefix).unwrap();
        assert_eq!(server.take().unwrap().refused, Some(Status::BadSequence));
        assert_eq!(server.expected(0), Ok(3));
    }

    #[test]
    fn a_request_waits_while_the_answer_before_it_is_sent() {
        let (mut server, mut client) = both(1);
        let request = client.ask(1, 0, 0, 9).unwrap();
        server.arrived(0, 0, &request.prefix).unwrap();
        server.take().unwrap();
        let answer = server.done(0, Status::Ok, TIMES).unwrap().unwrap();
        client.answered(0, &answer).unwrap();
        let request = client.ask(2, 0, 0, 9).unwrap();
        server.arrived(0, 0, &request.prefix).unwrap();
        assert_eq!(server.take(), None);
        server.sent(0).unwrap();
        assert_eq!(server.take().unwrap().header.request_id, 2);
        assert_eq!(server.sent(0), Err(ServerError::State(0)));
    }

    #[test]
    fn clients_have_their_turn_however_many_requests_one_has() {
        let mut server = Server::new(geometry(), 6);
        let mut clients = [4, 2].map(|slots| {
            let (number, granted) = server.grant(slots).unwrap();
            (number, granted.len(), Client::new(geometry(), &granted))
        });
        for (number, count, client) in &mut clients {
            for id in 0..*count as u64 {
                let request = client.ask(id, 0, 0, 9).unwrap();
                server.arrived(*number, request.slot, &request.prefix).unwrap();
            }
        }
        let order: Vec<u32> = std::iter::from_fn(|| server.take().map(|work| work.client)).collect();
        assert_eq!(order, [0, 1, 0, 1, 0, 0]);
    }

    #[test]
    fn a_request_beyond_the_client_s_limit_is_refused_and_one_within_it_is_not() {
        let (mut server, mut client) = both(4);
        server.limit(0, 2).unwrap();
        // This client does not obey: the limit is not told to it.
        let requests = [1, 2, 3, 4].map(|id| client.ask(id, 0, 0, 9).unwrap());
        let arrive = |server: &mut Server, slot: usize| {
            server.arrived(0, slot as u32, &requests[slot].prefix).unwrap()
        };
        (0..3).for_each(|slot| arrive(&mut server, slot));
        let works = [0, 1, 2].map(|_| server.take().unwrap());
        assert_eq!(works.map(|work| work.refused), [None, None, Some(Status::NoCredit)]);
        for work in works {
            let answer = server.done(work.slot, Status::Ok, TIMES).unwrap().unwrap();
            assert_eq!(Header::read(&answer).unwrap().credits, 2);
        }
        // Its answers are posted: it may have them, although no completion was polled.
        arrive(&mut server, 3);
        assert_eq!(server.take().unwrap().refused, None);
        assert_eq!(server.limit(7, 2), Err(ServerError::Client(7)));
    }

    #[test]
    fn a_client_s_requests_are_served_in_the_order_that_was_asked_for() {
        for (order, [first, second]) in [
            (SlotOrder::Arrival, [[3, 1, 2, 0], [2, 0, 3, 1]]),
            (SlotOrder::Index, [[0, 1, 2, 3], [0, 1, 2, 3]]),
        ] {
            let (mut server, mut client) = both(4);
            server.set_order(order);
            let mut serve = |arrivals: [usize; 4], id: u64| -> Vec<u32> {
                let requests = [0, 1, 2, 3].map(|nth| client.ask(id + nth, 0, 0, 9).unwrap());
                for slot in arrivals {
                    let request = requests.iter().find(|request| request.slot == slot as u32).unwrap();
                    server.arrived(0, request.slot, &request.prefix).unwrap();
                }
                let mut served = Vec::new();
                while let Some(work) = server.take() {
                    let answer = server.done(work.slot, Status::Ok, TIMES).unwrap().unwrap();
                    client.answered(work.slot, &answer).unwrap();
                    server.sent(work.slot).unwrap();
                    served.push(work.slot);
                }
                served
            };
            assert_eq!(serve([3, 1, 2, 0], 1), first, "{order:?}");
            assert_eq!(serve([2, 0, 3, 1], 9), second, "{order:?}");
        }
        // The walk goes on behind the slot that was served last.
        let (mut server, mut client) = both(4);
        server.set_order(SlotOrder::Index);
        let requests = [1, 2, 3, 4].map(|id| client.ask(id, 0, 0, 9).unwrap());
        let arrive = |server: &mut Server, slot: usize| {
            server.arrived(0, slot as u32, &requests[slot].prefix).unwrap()
        };
        [2, 1].into_iter().for_each(|slot| arrive(&mut server, slot));
        assert_eq!(server.take().unwrap().slot, 1);
        [0, 3].into_iter().for_each(|slot| arrive(&mut server, slot));
        assert_eq!([0, 1, 2].map(|_| server.take().unwrap().slot), [2, 3, 0]);
    }

    /// S7: the release passes the first slot, counts one too many, and begins several slots at one address.
    #[test]
    fn release_s7_each_slot_is_granted_once_and_no_two_share_a_byte() {
        let (geometry, mut server) = (geometry(), Server::new(geometry(), 7));
        let mut granted: Vec<u32> = Vec::new();
        for wanted in [3, 1, 3] {
            granted.extend(server.grant(wanted).unwrap().1.iter().map(|(slot, _)| *slot));
        }
        assert_eq!(granted, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(server.grant(1), Err(ServerError::Full { wanted: 1, free: 0 }));
        assert_eq!(server.expected(7), Err(ServerError::NoSlot(7)));
        // A slot's last byte, which is its answer's, lies before the next slot.
        let end = geometry.answer_offset() + geometry.answer.bytes();
        assert!(geometry.request.bytes() <= geometry.answer_offset() && end <= geometry.server_stride());
    }

    #[test]
    fn slots_of_a_client_that_is_gone_are_granted_when_nothing_uses_them() {
        let (mut server, mut client) = both(3);
        for id in 0..3 {
            let request = client.ask(id, 0, 0, 9).unwrap();
            server.arrived(0, request.slot, &request.prefix).unwrap();
        }
        let [first, second] = [0, 1].map(|_| server.take().unwrap().slot);
        server.done(first, Status::Ok, TIMES).unwrap();
        server.withdraw(0).unwrap();
        assert_eq!((server.free(), server.take()), (1, None));
        assert_eq!(server.withdraw(0), Err(ServerError::Client(0)));
        assert_eq!(server.grant(2), Err(ServerError::Full { wanted: 2, free: 1 }));
        assert_eq!(server.done(second, Status::Ok, TIMES), Ok(None));
        server.sent(first).unwrap();
        // The next client's sequences go on, and its number is another one.
        assert_eq!(server.grant(3), Ok((1, vec![(0, 1), (1, 1), (2, 1)])));
        assert_eq!(server.grant(0), Err(ServerError::Full { wanted: 0, free: 0 }));
    }
}
