//! The connection manager in a kernel's place: `rxe-cm.pcap` is replayed against each of its two sides, and
//! our MADs must be the kernel's bytes.
//!
//! Choices that the standard leaves, set before the comparison: a side chooses its own communication ids,
//! and the transaction of an exchange that it begins. Nothing else may differ.

use roce::Now;
use roce::cm::{Cause, Cm, CmConfig, ConnectionId, Event, Route};
use roce::testing::frame::Frame;
use roce::wire::Gid;
use roce::wire::cm::{CmMad, Dreq, Ids, Message, Path, Req, SidrReq};
use roce::wire::mad::{MAD_BYTES, QP1};

use crate::pcap::packets;

const CLIENT: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 2]);
const SERVER: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1]);

/// One MAD of the capture.
struct CapturedMad {
    number: usize,
    by_client: bool,
    mad: [u8; MAD_BYTES],
}

impl CapturedMad {
    fn message(&self) -> Message {
        CmMad::decode(&self.mad).unwrap().message
    }

    /// The client's communication id in it, by which conversations are told apart.
    fn conversation(&self) -> u32 {
        match self.message() {
            Message::Req(req) => req.local_id,
            Message::SidrReq(SidrReq { request, .. }) => request,
            Message::SidrRep(rep) => rep.request,
            Message::Rej(rej) => rej.ids.remote,
            Message::Rep(rep) => rep.ids.remote,
            Message::Rtu(ids) | Message::Dreq(Dreq { ids, .. }) => ids.local,
            Message::Drep(ids) => ids.remote,
            other => panic!("{other:?}"),
        }
    }

    /// The same with other ids and another transaction.
    fn with(&self, ids: &[(u32, u32)], transaction: Option<u64>) -> [u8; MAD_BYTES] {
        let mut mad = self.mad;
        for at in [24, 28] {
            let word = u32::from_be_bytes(mad[at..at + 4].try_into().unwrap());
            // The second word of a SIDR message is no id, and of a REQ it is zero.
            if let Some((_, ours)) = ids.iter().find(|(theirs, _)| *theirs == word && word != 0) {
                mad[at..at + 4].copy_from_slice(&ours.to_be_bytes());
            }
        }
        if let Some(transaction) = transaction {
            mad[8..16].copy_from_slice(&transaction.to_be_bytes());
        }
        mad
    }
}

fn conversations() -> Vec<Vec<CapturedMad>> {
    let mut found: Vec<Vec<CapturedMad>> = Vec::new();
    for (index, bytes) in packets("rxe-cm").iter().enumerate() {
        let frame = Frame::decode(bytes).unwrap();
        if frame.packet.bth.dst_qpn != QP1 {
            continue;
        }
        let by_client = frame.ip.source() == CLIENT;
        let mad = frame.packet.payload.try_into().unwrap();
        let seen = CapturedMad { number: index + 1, by_client, mad };
        let same = seen.conversation();
        match found.iter_mut().find(|earlier| earlier[0].conversation() == same) {
            Some(earlier) => earlier.push(seen),
            None => found.push(vec![seen]),
        }
    }
    found
}

/// Our side, what it has said, and what it calls by which name.
struct LocalManager {
    cm: Cm,
    route: Route,
    id: Option<ConnectionId>,
    events: Vec<Event>,
}

impl LocalManager {
    fn new(client: bool) -> LocalManager {
        let route = if client {
            Route { local: CLIENT, remote: SERVER }
        } else {
            Route { local: SERVER, remote: CLIENT }
        };
        let cm = Cm::new(CmConfig { slot: 3, seed: 0x5_0000_1234, max_connections: 10 });
        LocalManager { cm, route, id: None, events: Vec::new() }
    }

    fn receive(&mut self, number: usize, mad: &[u8]) {
        self.cm
            .handle_mad(Now(0), self.route, mad)
            .unwrap_or_else(|drop| panic!("packet {number}: {drop:?}"));
        while let Some(event) = self.cm.poll_event() {
            if let Event { id, cause: Cause::Received(Message::Req(_), _), .. }
            | Event { id, cause: Cause::Received(Message::SidrReq(_), _), .. } = event
            {
                self.id = Some(id);
            }
            self.events.push(event);
        }
    }

    fn said(&mut self) -> [u8; MAD_BYTES] {
        let sent = self.cm.poll_transmit().expect("something to say");
        assert_eq!((sent.from, sent.to), (self.route.local, self.route.remote));
        assert_eq!(self.cm.poll_transmit(), None, "one thing");
        *sent.mad
    }

    /// Does what the kernel's program did before it said this.
    fn act(&mut self, seen: &CapturedMad) {
        let mad = CmMad::decode(&seen.mad).unwrap();
        let (now, private) = (Now(0), mad.private);
        match mad.message {
            Message::Req(req) => self.id = Some(self.cm.connect(now, &req, private).unwrap()),
            Message::Rep(rep) => self.cm.accept(now, self.id.unwrap(), &rep, private).unwrap(),
            Message::Rtu(Ids { .. }) => self.cm.ready(self.id.unwrap(), private).unwrap(),
            Message::Dreq(_) | Message::Drep(_) => {
                self.cm.disconnect(now, self.id.unwrap(), private).unwrap();
            }
            Message::SidrReq(SidrReq { pkey, service, .. }) => {
                let Route { local: local_gid, remote: remote_gid } = self.route;
                let primary = Path { local_gid, remote_gid, ..Path::default() };
                let question = Req { service, pkey, primary, ..Req::default() };
                self.id = Some(self.cm.send_sidr_req(now, &question, private).unwrap());
            }
            Message::SidrRep(rep) => self.cm.send_sidr_rep(self.id.unwrap(), &rep, private).unwrap(),
            // Nobody listens: the connection manager says it by itself.
            Message::Rej(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Replays one conversation against our `client` or server; returns what our program was told.
fn replay(conversation: &[CapturedMad], client: bool) -> Vec<Event> {
    let mut ours = LocalManager::new(client);
    let refused = conversation.iter().any(|seen| matches!(seen.message(), Message::Rej(_)));
    let service = match conversation[0].message() {
        Message::Req(req) => req.service,
        Message::SidrReq(SidrReq { service, .. }) => service,
        other => panic!("{other:?}"),
    };
    if !client && !refused {
        ours.cm.listen(service, Some(SERVER), 8).unwrap();
    }
    // What the kernel calls itself where we stand.
    let mut theirs = 0;
    let mut transaction = None;
    for seen in conversation {
        let number = seen.number;
        if seen.by_client == client {
            if let Message::Rep(rep) = seen.message() {
                theirs = rep.ids.local;
            } else if client {
                theirs = seen.conversation();
            }
            ours.act(seen);
            let said = ours.said();
            if client {
                // An exchange that we begin: all of it has our transaction.
                transaction = Some(u64::from_be_bytes(said[8..16].try_into().unwrap()));
            }
            let own = ours.id.map_or(0, |id| id.0);
            let expected = seen.with(&[(theirs, own)], transaction);
            assert_eq!(said[..], expected[..], "packet {number} as ours");
        } else {
            let own = ours.id.map_or(0, |id| id.0);
            ours.receive(number, &seen.with(&[(theirs, own)], transaction));
        }
    }
    ours.events
}

#[test]
fn both_sides_of_every_conversation_say_what_the_kernel_said() {
    let conversations = conversations();
    let frames: usize = conversations.iter().map(Vec::len).sum();
    // rping, perftest's two, udaddy, and the request that nobody listened to.
    assert_eq!((conversations.len(), frames), (5, 19));
    let told = |client: bool| -> Vec<Vec<&'static str>> {
        let name = |event: &Event| match event {
            Event { cause: Cause::Received(Message::Req(_), _), .. } => "requested",
            Event { cause: Cause::Received(Message::Rep(_), _), .. } => "replied",
            Event { cause: Cause::Received(Message::Rtu(_), _), .. } => "established",
            Event { cause: Cause::Received(Message::Rej(_), _), .. } => "rejected",
            Event { cause: Cause::Received(Message::Dreq(_), _), .. } => "asked to end",
            Event { cause: Cause::Received(Message::Drep(_), _), .. } => "ended",
            Event { cause: Cause::Received(Message::SidrReq(_), _), .. } => "asked",
            Event { cause: Cause::Received(Message::SidrRep(_), _), .. } => "answered",
            other => panic!("{other:?}"),
        };
        conversations.iter().map(|one| replay(one, client).iter().map(name).collect()).collect()
    };
    let connected = vec!["replied", "ended"];
    assert_eq!(
        told(true),
        [connected.clone(), connected.clone(), connected, vec!["answered"], vec!["rejected"]]
    );
    let served = vec!["requested", "established", "asked to end"];
    assert_eq!(told(false), [served.clone(), served.clone(), served, vec!["asked"], vec![]]);
}
