//! Clients and a server over a memory into which the bytes of a message fall in any order. Each request is
//! answered once, none is lost, and no message is read before it is whole.

use std::collections::{HashMap, HashSet, VecDeque};

use proptest::collection::vec;
use proptest::prelude::*;
use slots::layout::{FLAG_BYTES, PREFIX_BYTES, flag};
use slots::{Client, Geometry, Header, Server, Status, Tensor, TensorKind};

const SLOTS: u32 = 6;
/// Bytes that fall at once.
const PIECE: usize = 48;

/// How the receiver learns that a message is whole.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Arrival {
    Flag,
    Tail,
    Completion,
    Send,
}

/// What the network keeps to.
#[derive(Debug, Clone, Copy)]
struct Rules {
    way: Arrival,
    /// A message's bytes fall in the order of their addresses.
    in_order: bool,
    /// A message falls before the one behind it.
    one_by_one: bool,
}

/// A WRITE: its bytes are read from `from` when they fall, as a NIC reads them.
#[derive(Debug)]
struct Write {
    from: usize,
    to: usize,
    pieces: Vec<(usize, usize)>,
    /// The completion at the receiver, and at the sender.
    arrives: Option<u32>,
    completes: Option<u32>,
    /// A SEND that has not taken a receive yet, which says where its bytes fall.
    takes: bool,
}

impl Write {
    fn new(from: usize, to: usize, bytes: usize) -> Write {
        let piece = |at| (at, PIECE.min(bytes - at));
        let pieces = (0..bytes).step_by(PIECE).map(piece).collect();
        Write { from, to, pieces, arrives: None, completes: None, takes: false }
    }

    fn send(from: usize, bytes: usize) -> Write {
        Write { takes: true, ..Write::new(from, 0, bytes) }
    }
}

/// One direction of a connection: WRITEs fall one behind the other.
#[derive(Debug, Default)]
struct Wire {
    writes: VecDeque<Write>,
    arrived: VecDeque<u32>,
    completed: VecDeque<u32>,
    /// Receives at its end, for SENDs: number and memory of each.
    receives: VecDeque<(u32, usize)>,
}

impl Wire {
    /// Lets a piece fall: one that `choice` picks.
    fn fall(&mut self, choice: usize, rules: Rules, from: &[u8], to: &mut [u8]) -> bool {
        if self.writes.is_empty() {
            return false;
        }
        let first = if rules.one_by_one { 0 } else { choice % self.writes.len() };
        let write = &mut self.writes[first];
        if std::mem::take(&mut write.takes) {
            let (number, to) = self.receives.pop_front().expect("a SEND finds a receive");
            (write.arrives, write.to) = (Some(number), to);
        }
        let at = if rules.in_order { 0 } else { choice % write.pieces.len() };
        let (piece, bytes) = write.pieces.remove(at);
        let read = &from[write.from + piece..][..bytes];
        to[write.to + piece..][..bytes].copy_from_slice(read);
        if write.pieces.is_empty() {
            self.arrived.extend(write.arrives);
            self.completed.extend(write.completes);
            self.writes.remove(first);
        }
        true
    }
}

/// A client with its memory: requests to be sent, answers, flags of answers.
#[derive(Debug)]
struct Side {
    number: u32,
    machine: Client,
    slots: Vec<u32>,
    memory: Vec<u8>,
    to_server: Wire,
    to_client: Wire,
    asked: u64,
    answered: HashMap<u64, u32>,
    expired: HashSet<u64>,
}

struct Fixture {
    rules: Rules,
    geometry: Geometry,
    server: Server,
    memory: Vec<u8>,
    sides: Vec<Side>,
    running: VecDeque<slots::Work>,
    now_ns: u64,
}

/// Word `at` of a tensor of a request, or of an answer.
fn word(id: u64, is_answer: bool, at: usize) -> [u8; 4] {
    let id = if is_answer { !id } else { id };
    (id as u32).wrapping_mul(0x9e37_79b9).wrapping_add(at as u32 * 3 + 1).to_le_bytes()
}

fn fill(bytes: &mut [u8], id: u64, is_answer: bool) {
    for (at, bytes) in bytes.chunks_exact_mut(4).enumerate() {
        bytes.copy_from_slice(&word(id, is_answer, at));
    }
}

fn is_whole(bytes: &[u8], id: u64, is_answer: bool) -> bool {
    bytes.chunks_exact(4).enumerate().all(|(at, bytes)| bytes == word(id, is_answer, at))
}

fn word64(memory: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*memory[at..].first_chunk().expect("in the memory"))
}

fn prefix(memory: &[u8], at: usize) -> &[u8; PREFIX_BYTES] {
    memory[at..].first_chunk().expect("in the memory")
}

impl Fixture {
    fn new(rules: Rules) -> Fixture {
        let tensor = |count| Tensor { kind: TensorKind::F32, count };
        let geometry = Geometry::new(7, &[tensor(40), tensor(3)], &[tensor(30)]).expect("a geometry");
        let server = Server::new(geometry.clone(), SLOTS);
        let memory = vec![0; SLOTS as usize * (geometry.server_stride() + FLAG_BYTES)];
        let (sides, running) = (Vec::new(), VecDeque::new());
        let mut world = Fixture { rules, geometry, server, memory, sides, running, now_ns: 0 };
        world.join(4);
        world.join(2);
        world
    }

    fn join(&mut self, wanted: u16) {
        let Ok((number, granted)) = self.server.grant(wanted) else { return };
        for (slot, _) in &granted {
            let (at, flag_at) = self.slot(*slot);
            for flag in [flag_at, at + self.geometry.request.tail] {
                self.memory[flag..][..FLAG_BYTES].fill(0);
            }
        }
        let stride = self.request_stride() + self.geometry.client_stride() + FLAG_BYTES;
        // Some have one request fewer than slots: a client that obeys is never refused.
        let credits = wanted - u16::from(number % 2 == 1);
        self.server.limit(number, credits).expect("it was granted");
        let mut machine = Client::new(self.geometry.clone(), &granted);
        machine.limit(credits);
        let mut side = Side {
            number,
            machine,
            slots: granted.iter().map(|(slot, _)| *slot).collect(),
            memory: vec![0; granted.len() * stride],
            to_server: Wire::default(),
            to_client: Wire::default(),
            asked: 0,
            answered: HashMap::new(),
            expired: HashSet::new(),
        };
        side.to_server.receives = side.slots.iter().map(|slot| (*slot, self.slot(*slot).0)).collect();
        self.sides.push(side);
        let last = self.sides.len() - 1;
        let receives = (0..granted.len()).map(|place| (place as u32, self.place(last, place).0)).collect();
        self.sides[last].to_client.receives = receives;
    }

    fn request_stride(&self) -> usize {
        self.geometry.answer_offset()
    }

    /// Where the answer and its flag lie in a client's memory.
    fn place(&self, side: usize, place: usize) -> (usize, usize) {
        let count = self.sides[side].slots.len();
        let answers = count * self.request_stride();
        let flags = answers + count * self.geometry.client_stride();
        (answers + place * self.geometry.client_stride(), flags + place * FLAG_BYTES)
    }

    /// Where a slot and its flag lie in the server's memory.
    fn slot(&self, slot: u32) -> (usize, usize) {
        let stride = self.geometry.server_stride();
        (slot as usize * stride, SLOTS as usize * stride + slot as usize * FLAG_BYTES)
    }

    fn ask(&mut self, side: usize, is_hasty: bool) {
        let id = self.sides[side].asked;
        let deadline_ns = if is_hasty { self.now_ns + 40 } else { u64::MAX };
        let asked = self.sides[side].machine.ask(id, id * 3, self.now_ns, deadline_ns);
        let Ok(request) = asked else { return };
        let (from, (to, flag_to)) = (request.place * self.request_stride(), self.slot(request.slot));
        let (message, way) = (&self.geometry.request, self.rules.way);
        let one = &mut self.sides[side];
        one.asked += 1;
        one.memory[from..][..PREFIX_BYTES].copy_from_slice(&request.prefix);
        fill(&mut one.memory[from + PREFIX_BYTES..from + message.tail], id, false);
        let number = flag(request.sequence).to_le_bytes();
        one.memory[from + message.tail..][..FLAG_BYTES].copy_from_slice(&number);
        let mut write = match way {
            Arrival::Send => Write::send(from, message.bytes()),
            Arrival::Tail => Write::new(from, to, message.bytes()),
            Arrival::Flag | Arrival::Completion => Write::new(from, to, message.tail),
        };
        write.arrives = (way == Arrival::Completion).then_some(request.slot);
        one.to_server.writes.push_back(write);
        if way == Arrival::Flag {
            one.to_server.writes.push_back(Write::new(from + message.tail, flag_to, FLAG_BYTES));
        }
    }

    /// The server looks for an arrival in a slot.
    fn look(&mut self, side: usize, choice: usize) -> Result<(), String> {
        let slot = match self.rules.way {
            Arrival::Completion | Arrival::Send => self.sides[side].to_server.arrived.pop_front(),
            _ => Some(choice as u32 % SLOTS),
        };
        let Some(slot) = slot else { return Ok(()) };
        let (at, flag_at) = self.slot(slot);
        let expected = flag(self.server.expected(slot).map_err(|error| error.to_string())?);
        let is_there = match self.rules.way {
            Arrival::Completion | Arrival::Send => true,
            Arrival::Flag => word64(&self.memory, flag_at) == expected,
            Arrival::Tail => word64(&self.memory, at + self.geometry.request.tail) == expected,
        };
        if !is_there {
            return Ok(());
        }
        let client = match self.rules.way {
            Arrival::Completion | Arrival::Send => self.sides[side].number,
            // A client that is gone has left its flag.
            _ => match self.server.owner(slot) {
                Some(client) => client,
                None => return Ok(()),
            },
        };
        match self.server.arrived(client, slot, prefix(&self.memory, at)) {
            Err(error) => Err(error.to_string()),
            Ok(()) => {
                let id = Header::read(prefix(&self.memory, at)).expect("a header").request_id;
                let payload = &self.memory[at + PREFIX_BYTES..at + self.geometry.request.tail];
                if is_whole(payload, id, false) { Ok(()) } else { Err(format!("request {id} is torn")) }
            }
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        if let Some(work) = self.server.take() {
            if let Some(status) = work.refused {
                return Err(format!("request {} was refused: {status:?}", work.header.request_id));
            }
            self.running.push_back(work);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        let Some(work) = self.running.pop_front() else { return Ok(()) };
        let at = self.slot(work.slot).0 + self.geometry.answer_offset();
        let done = self.server.done(work.slot, Status::Ok, [1, 2]).map_err(|error| error.to_string())?;
        let Some(begin) = done else { return Ok(()) };
        let message = &self.geometry.answer;
        let number = flag(work.header.sequence).to_le_bytes();
        self.memory[at..][..PREFIX_BYTES].copy_from_slice(&begin);
        fill(&mut self.memory[at + PREFIX_BYTES..at + message.tail], work.header.request_id, true);
        self.memory[at + message.tail..][..FLAG_BYTES].copy_from_slice(&number);
        let side = self.sides.iter().position(|side| side.number == work.client).ok_or("no client")?;
        let place = self.sides[side].slots.iter().position(|slot| *slot == work.slot).ok_or("no place")?;
        let ((to, flag_to), way) = (self.place(side, place), self.rules.way);
        let mut write = match way {
            Arrival::Send => Write::send(at, message.bytes()),
            Arrival::Flag => Write::new(at, to, message.tail),
            Arrival::Tail | Arrival::Completion => Write::new(at, to, message.bytes()),
        };
        // Both in one step here: no client sends between the two.
        let receive = (work.slot, self.slot(work.slot).0);
        self.sides[side].to_server.receives.push_back(receive);
        write.arrives = (way == Arrival::Completion).then_some(work.slot);
        let mut writes = vec![write];
        if way == Arrival::Flag {
            writes.push(Write::new(at + message.tail, flag_to, FLAG_BYTES));
        }
        writes.last_mut().expect("one at least").completes = Some(work.slot);
        self.sides[side].to_client.writes.extend(writes);
        Ok(())
    }

    fn polls(&mut self, side: usize) -> Result<(), String> {
        match self.sides[side].to_client.completed.pop_front() {
            Some(slot) => self.server.sent(slot).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    /// A client looks for an answer in one of its slots.
    fn collect(&mut self, side: usize, choice: usize) -> Result<(), String> {
        let one = &mut self.sides[side];
        let found = match self.rules.way {
            Arrival::Completion | Arrival::Send => one.to_client.arrived.pop_front(),
            _ => Some(one.slots[choice % one.slots.len()]),
        };
        let Some(found) = found else { return Ok(()) };
        // Of a SEND it is the place of its receive, and the header names the slot.
        let sent_to = (self.rules.way == Arrival::Send).then(|| self.place(side, found as usize).0);
        let slot = match sent_to {
            Some(at) => Header::read(prefix(&self.sides[side].memory, at)).expect("a header").slot,
            None => found,
        };
        let expected = self.sides[side].machine.expected(slot);
        let (place, sequence) = expected.map_err(|error| error.to_string())?;
        let (own, flag_at) = self.place(side, place);
        let at = sent_to.unwrap_or(own);
        let (tail, one) = (at + self.geometry.answer.tail, &mut self.sides[side]);
        one.to_client.receives.extend(sent_to.map(|at| (found, at)));
        let is_there = match self.rules.way {
            Arrival::Completion | Arrival::Send => true,
            Arrival::Flag => word64(&one.memory, flag_at) == flag(sequence),
            Arrival::Tail => word64(&one.memory, tail) == flag(sequence),
        };
        if !is_there {
            return Ok(());
        }
        match one.machine.answered(slot, prefix(&one.memory, at)) {
            Ok(answer) => {
                let id = answer.header.request_id;
                *one.answered.entry(id).or_default() += 1;
                let payload = &one.memory[at + PREFIX_BYTES..tail];
                let is_right = is_whole(payload, id, true) && answer.header.cookie == id * 3;
                if is_right { Ok(()) } else { Err(format!("the answer to {id} is torn")) }
            }
            // The flag stays until the next answer.
            Err(slots::client::AnswerError::Unasked { .. })
                if matches!(self.rules.way, Arrival::Flag | Arrival::Tail) =>
            {
                Ok(())
            }
            Err(slots::client::AnswerError::Late { id }) if one.expired.contains(&id) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// A client dies: what it sent falls no more, and the server takes its slots back.
    fn leave(&mut self, side: usize) -> Result<(), String> {
        let mut gone = self.sides.swap_remove(side);
        self.server.withdraw(gone.number).map_err(|error| error.to_string())?;
        // WRITEs to a peer that is gone complete with an error.
        gone.to_client.completed.extend(gone.to_client.writes.iter().filter_map(|write| write.completes));
        for slot in gone.to_client.completed {
            self.server.sent(slot).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn step(&mut self, action: u32) -> Result<(), String> {
        self.now_ns += 1;
        let (kind, choice) = (action % 64, (action >> 6) as usize);
        let side = choice % self.sides.len().max(1);
        let choice = choice / 7;
        if self.sides.is_empty() {
            self.join(1 + (choice % 6) as u16);
            return Ok(());
        }
        match kind {
            0..8 => self.ask(side, choice % 4 == 0),
            8..24 => {
                let one = &mut self.sides[side];
                one.to_server.fall(choice, self.rules, &one.memory, &mut self.memory);
            }
            24..40 => {
                let one = &mut self.sides[side];
                one.to_client.fall(choice, self.rules, &self.memory, &mut one.memory);
            }
            40..46 => self.look(side, choice)?,
            46..50 => self.begin()?,
            50..54 => self.end()?,
            54..57 => self.polls(side)?,
            57..61 => self.collect(side, choice)?,
            61 => {
                let one = &mut self.sides[side];
                one.expired.extend(one.machine.expired(self.now_ns));
            }
            62 if choice % 8 == 0 => self.leave(side)?,
            _ => self.join(1 + (choice % 3) as u16),
        }
        Ok(())
    }

    /// Lets everything come to rest; then each request of a client that is there was answered once, or was
    /// told to be too late.
    fn rest(&mut self) -> Result<(), String> {
        for round in 0..200 {
            for side in 0..self.sides.len() {
                while self.sides[side].fall_all(&mut self.memory) {}
                for choice in 0..SLOTS as usize {
                    self.look(side, choice)?;
                    self.collect(side, choice)?;
                }
                self.polls(side)?;
            }
            self.begin()?;
            self.end()?;
            if round > 20 && self.sides.iter().all(|side| side.machine.outstanding() == 0) {
                break;
            }
        }
        for side in &self.sides {
            let is_right = |id: &u64| {
                let times = u32::from(!side.expired.contains(id));
                side.answered.get(id).copied().unwrap_or(0) == times
            };
            let right = (0..side.asked).filter(is_right).count() as u64;
            if right != side.asked {
                return Err(format!("{right} of {} requests were answered once", side.asked));
            }
        }
        Ok(())
    }
}

impl Side {
    fn fall_all(&mut self, server: &mut [u8]) -> bool {
        let rules = Rules { in_order: true, ..KEPT };
        self.to_server.fall(0, rules, &self.memory, server)
            | self.to_client.fall(0, rules, server, &mut self.memory)
    }
}

fn run(rules: Rules, actions: &[u32]) -> Result<u64, String> {
    let mut world = Fixture::new(rules);
    actions.iter().try_for_each(|action| world.step(*action))?;
    world.rest()?;
    Ok(world.sides.iter().map(|side| side.asked).sum())
}

const KEPT: Rules = Rules { way: Arrival::Flag, in_order: false, one_by_one: true };

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn each_request_is_answered_once_and_whole_by_flags(actions in vec(any::<u32>(), 0..3000)) {
        prop_assert_eq!(run(KEPT, &actions).err(), None);
    }

    #[test]
    fn each_request_is_answered_once_and_whole_by_completions(actions in vec(any::<u32>(), 0..3000)) {
        prop_assert_eq!(run(Rules { way: Arrival::Completion, ..KEPT }, &actions).err(), None);
    }

    #[test]
    fn each_request_is_answered_once_and_whole_by_sends(actions in vec(any::<u32>(), 0..3000)) {
        prop_assert_eq!(run(Rules { way: Arrival::Send, ..KEPT }, &actions).err(), None);
    }

    #[test]
    fn each_request_is_answered_once_and_whole_by_tail_flags_in_order(actions in vec(any::<u32>(), 0..3000)) {
        let rules = Rules { way: Arrival::Tail, in_order: true, ..KEPT };
        prop_assert_eq!(run(rules, &actions).err(), None);
    }
}

/// What each of many runs says: how many requests, or what went wrong.
fn runs(rules: Rules) -> Vec<Result<u64, String>> {
    let run_of = |seed: u64| {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let actions = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u32
        });
        run(rules, &actions.take(3000).collect::<Vec<u32>>())
    };
    (1..60).map(run_of).collect()
}

#[test]
fn a_tail_flag_is_no_sign_of_a_whole_message_when_bytes_fall_in_any_order() {
    let torn = |run: &Result<u64, String>| run.as_ref().is_err_and(|error| error.ends_with("is torn"));
    let runs = runs(Rules { way: Arrival::Tail, ..KEPT });
    assert!(runs.iter().filter(|run| torn(run)).count() > 30, "{runs:?}");
}

#[test]
fn release_s1_a_flag_is_no_sign_of_a_whole_message_when_it_may_fall_before_it() {
    let runs = runs(Rules { one_by_one: false, ..KEPT });
    let torn = |run: &Result<u64, String>| run.as_ref().is_err_and(|error| !error.contains("answered once"));
    assert!(runs.iter().filter(|run| torn(run)).count() > 30, "{runs:?}");
}

#[test]
fn runs_have_requests_in_them() {
    for way in [Arrival::Flag, Arrival::Completion, Arrival::Send] {
        let runs = runs(Rules { way, ..KEPT }).into_iter();
        let requests: Vec<u64> = runs.map(|run| run.expect("it goes well")).collect();
        assert!(requests.iter().sum::<u64>() > 900, "{way:?}: {requests:?}");
    }
}
