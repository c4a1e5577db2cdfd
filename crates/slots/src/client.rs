//! The client's side: which slot the next request goes into, and what an answer belongs to.

use std::collections::{HashMap, VecDeque};

use crate::geometry::Geometry;
use crate::layout::{Header, MAGIC, PREFIX_BYTES, Status, VERSION, next};

/// Why a request cannot be written now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error("every slot that may be used has a request; wait for an answer")]
    NoCredit,
    #[error("request {0} is outstanding")]
    DuplicateId(u64),
}

/// A request to be written: its prefix, into this slot of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The server's number of the slot, which its immediate data and the header have.
    pub slot: u32,
    /// Which of the client's own slots gets the answer.
    pub place: usize,
    pub sequence: u32,
    pub prefix: [u8; PREFIX_BYTES],
}

/// An answer to a request that was outstanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub place: usize,
    pub status: Status,
    pub header: Header,
}

/// What arrived and is no answer to an outstanding request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    #[error("slot {0} is none of this client's")]
    NoSlot(u32),
    /// Its slot can be used again from now on.
    #[error("the answer to request {id} came after its deadline")]
    Late { id: u64 },
    #[error("slot {slot} has no request that waits for an answer")]
    Unasked { slot: u32 },
    #[error(
        "slot {slot}: the answer is damaged or is of another request (request {id}, sequence {sequence})"
    )]
    Wrong { slot: u32, id: u64, sequence: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Asked {
        id: u64,
        cookie: u64,
        deadline_ns: u64,
    },
    /// Its deadline has passed. The server may still write the answer, so nothing else can use the slot.
    Expired {
        id: u64,
        cookie: u64,
    },
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    number: u32,
    sequence: u32,
    state: State,
}

/// Slots that a server granted to one client.
#[derive(Debug)]
pub struct Client {
    geometry: Geometry,
    slots: Vec<Slot>,
    place_of: HashMap<u32, usize>,
    free: VecDeque<usize>,
    /// Requests without an answer, and how many of them are late.
    outstanding: HashMap<u64, usize>,
    late: usize,
    credits: usize,
}

impl Client {
    /// Of the slots with these numbers and the sequences of their last requests, as the server granted them.
    pub fn new(geometry: Geometry, granted: &[(u32, u32)]) -> Client {
        let slot = |&(number, sequence): &(u32, u32)| Slot { number, sequence, state: State::Free };
        Client {
            geometry,
            slots: granted.iter().map(slot).collect(),
            place_of: granted.iter().enumerate().map(|(place, (number, _))| (*number, place)).collect(),
            free: (0..granted.len()).collect(),
            outstanding: HashMap::new(),
            late: 0,
            credits: granted.len(),
        }
    }

    /// Has at most so many requests outstanding, 1 at least, until an answer says how many.
    pub fn limit(&mut self, credits: u16) {
        self.credits = usize::from(credits).min(self.slots.len()).max(1);
    }

    /// Requests that wait for an answer, those not counted whose deadline has passed.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len() - self.late
    }

    /// Whether every slot that may be used has a request whose deadline has passed.
    pub fn is_exhausted(&self) -> bool {
        self.late >= self.credits
    }

    /// Takes a slot for a request. `cookie` comes back with the answer.
    pub fn ask(&mut self, id: u64, cookie: u64, now_ns: u64, deadline_ns: u64) -> Result<Request, AskError> {
        if self.outstanding.contains_key(&id) {
            return Err(AskError::DuplicateId(id));
        }
        if self.slots.len() - self.free.len() >= self.credits {
            return Err(AskError::NoCredit);
        }
        let place = self.free.pop_front().ok_or(AskError::NoCredit)?;
        let slot = &mut self.slots[place];
        slot.sequence = next(slot.sequence);
        slot.state = State::Asked { id, cookie, deadline_ns };
        self.outstanding.insert(id, place);
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            request_id: id,
            model_id: self.geometry.model_id,
            sequence: slot.sequence,
            cookie,
            sent_ns: now_ns,
            slot: slot.number,
            ..Header::default()
        };
        let prefix = self.geometry.request.prefix(&header);
        Ok(Request { slot: slot.number, place, sequence: slot.sequence, prefix })
    }

    /// The place of a slot among the client's own, and the sequence that its answer will have.
    pub fn expected(&self, slot: u32) -> Result<(usize, u32), AnswerError> {
        let place = *self.place_of.get(&slot).ok_or(AnswerError::NoSlot(slot))?;
        Ok((place, self.slots[place].sequence))
    }

    /// Takes the answer that is whole in a slot. `prefix`: what the answer begins with, read once.
    pub fn answered(&mut self, slot: u32, prefix: &[u8; PREFIX_BYTES]) -> Result<Answer, AnswerError> {
        let (place, sequence) = self.expected(slot)?;
        let (id, cookie, is_late) = match self.slots[place].state {
            State::Free => return Err(AnswerError::Unasked { slot }),
            State::Asked { id, cookie, .. } => (id, cookie, false),
            State::Expired { id, cookie } => (id, cookie, true),
        };
        let header = Header::read(prefix).unwrap_or_default();
        let wrong = AnswerError::Wrong { slot, id: header.request_id, sequence: header.sequence };
        let status = Status::of(header.status).ok_or(wrong)?;
        let said = (header.magic, header.version, header.request_id, header.cookie, header.sequence);
        let is_whole = prefix[Header::BYTES..] == self.geometry.answer.table() && header.slot == slot;
        if said != (MAGIC, VERSION, id, cookie, sequence) || !is_whole {
            return Err(wrong);
        }
        self.slots[place].state = State::Free;
        self.free.push_back(place);
        self.limit(header.credits);
        self.outstanding.remove(&id);
        if is_late {
            self.late -= 1;
            return Err(AnswerError::Late { id });
        }
        Ok(Answer { place, status, header })
    }

    /// Requests whose deadline has passed. Each is told once; neither its slot nor its number is reused
    /// before its answer.
    pub fn expired(&mut self, now_ns: u64) -> Vec<u64> {
        let mut ids = Vec::new();
        for slot in &mut self.slots {
            if let State::Asked { id, cookie, deadline_ns } = slot.state
                && deadline_ns <= now_ns
            {
                slot.state = State::Expired { id, cookie };
                self.late += 1;
                ids.push(id);
            }
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Tensor;
    use crate::layout::TensorKind;

    fn client() -> Client {
        let tensor = Tensor { kind: TensorKind::F32, count: 1 };
        Client::new(Geometry::new(5, &[tensor], &[tensor]).unwrap(), &[(40, 0), (41, 7)])
    }

    fn answer(client: &Client, request: &Request, change: impl FnOnce(&mut Header)) -> [u8; PREFIX_BYTES] {
        let asked = Header::read(&request.prefix).unwrap();
        let mut header = Header { status: Status::Ok.number(), credits: 2, ..asked };
        change(&mut header);
        client.geometry.answer.prefix(&header)
    }

    #[test]
    fn a_request_takes_a_slot_until_its_answer() {
        let mut client = client();
        let first = client.ask(1, 11, 100, 1000).unwrap();
        let second = client.ask(2, 22, 100, 1000).unwrap();
        assert_eq!([(first.slot, first.sequence), (second.slot, second.sequence)], [(40, 1), (41, 8)]);
        assert_eq!(client.ask(3, 0, 100, 1000), Err(AskError::NoCredit));
        assert_eq!(client.ask(2, 0, 100, 1000), Err(AskError::DuplicateId(2)));
        let prefix = answer(&client, &second, |_| {});
        let got = client.answered(41, &prefix).unwrap();
        assert_eq!((got.place, got.status, got.header.cookie), (1, Status::Ok, 22));
        assert_eq!(client.answered(41, &prefix), Err(AnswerError::Unasked { slot: 41 }));
        assert_eq!(client.answered(42, &prefix), Err(AnswerError::NoSlot(42)));
        assert_eq!((client.outstanding(), client.ask(2, 0, 0, 0).unwrap().sequence), (1, 9));
    }

    #[test]
    fn an_answer_that_differs_in_anything_leaves_the_request_outstanding() {
        let mut client = client();
        let request = client.ask(1, 11, 100, 1000).unwrap();
        let changes: [fn(&mut Header); 8] = [
            |header| header.magic += 1,
            |header| header.version += 1,
            |header| header.status = 0,
            |header| header.status = 77,
            |header| header.request_id += 1,
            |header| header.sequence += 1,
            |header| header.cookie += 1,
            |header| header.slot += 1,
        ];
        for change in changes {
            let prefix = answer(&client, &request, change);
            assert!(matches!(client.answered(40, &prefix), Err(AnswerError::Wrong { slot: 40, .. })));
        }
        let mut prefix = answer(&client, &request, |_| {});
        prefix[PREFIX_BYTES - 1] = 1;
        assert!(client.answered(40, &prefix).is_err());
        prefix[PREFIX_BYTES - 1] = 0;
        assert_eq!(client.answered(40, &prefix).unwrap().status, Status::Ok);
    }

    #[test]
    fn release_s9_a_slot_waits_for_the_answer_that_is_late() {
        let mut client = client();
        let requests = [1, 2].map(|id| client.ask(id, 0, 0, 100 * id).unwrap());
        assert_eq!([client.expired(99), client.expired(100), client.expired(100)], [vec![], vec![1], vec![]]);
        assert_eq!((client.outstanding(), client.ask(3, 0, 0, 0)), (1, Err(AskError::NoCredit)));
        assert_eq!(client.ask(1, 0, 0, 0), Err(AskError::DuplicateId(1)));
        let prefix = answer(&client, &requests[0], |_| {});
        assert_eq!(client.answered(40, &prefix), Err(AnswerError::Late { id: 1 }));
        assert_eq!(client.ask(3, 0, 0, 0).unwrap().slot, 40);
    }

    #[test]
    fn fewer_credits_hold_requests_back_and_one_is_always_left() {
        let mut client = client();
        let request = client.ask(1, 0, 0, 9).unwrap();
        let prefix = answer(&client, &request, |header| header.credits = 0);
        client.answered(40, &prefix).unwrap();
        client.ask(2, 0, 0, 9).unwrap();
        assert_eq!(client.ask(3, 0, 0, 9), Err(AskError::NoCredit));
        client.expired(9);
        assert!(client.is_exhausted());
        client.limit(9);
        assert!(!client.is_exhausted());
        client.ask(3, 0, 0, 9).unwrap();
    }
}
