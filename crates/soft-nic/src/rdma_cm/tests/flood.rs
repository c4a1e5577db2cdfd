//! A flood of connection manager datagrams at QP1 of a wire: bounded, all counted; a connection follows.

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use mlx5_device::carrier::{Carrier as _, Disposition};
use mlx5_device::random;
use roce::Now;
use roce::cm::{Cause, Cm, CmConfig, ConnectionId, Event, Route};
use roce::wire::cm::{CmMad, Dreq, Ids, Message, Path, Rej, Rep, Req, SidrReq, reason};
use roce::wire::gid_of;
use roce::wire::icrc::{self, ICRC_BYTES};
use roce::wire::mad::{MAD_BYTES, QP1, QP1_QKEY};
use roce::wire::packet::{Extended, Packet};
use roce::wire::{Bth, Deth, IpHeader, PacketOpcode, Psn, Udp};

use crate::link::mads::AddressedMad;
use crate::link::{Link, LinkConfig};
use crate::rdma_cm::mad_port::{FabricMads, MadPort};

/// Datagrams of the flood.
const FLOOD: u32 = 20_000;
/// A service with a listener, and one without.
const SERVICE: u64 = 0x0106_1c06;
const NOBODYS: u64 = 0x0106_1c07;
const MAX_CONNECTIONS: usize = 64;
const BACKLOG: usize = 8;
/// UD SEND only.
const SEND_ONLY: u8 = 0x64;

/// A host that sends arbitrary packets to QP1.
struct RawSender {
    socket: UdpSocket,
    from: IpAddr,
    at: IpAddr,
    random: u64,
    psn: u32,
    /// The last good request, to be sent again.
    last: Option<Box<[u8; MAD_BYTES]>>,
}

impl RawSender {
    fn below(&mut self, bound: u64) -> u64 {
        random::draw(&mut self.random) % bound
    }

    /// A packet for QP1, its ICRC right.
    fn send(&mut self, qkey: u32, payload: &[u8]) {
        self.psn = (self.psn + 1) & 0xff_ffff;
        let opcode = PacketOpcode::from_u8(SEND_ONLY).unwrap();
        let bth = Bth::new(opcode, QP1, Psn::new(self.psn));
        let extended = Extended::Deth(Deth { qkey, reserved: 0, src_qpn: QP1 });
        let mut bytes = Vec::new();
        Packet { bth, extended, payload }.append_to(&mut bytes).unwrap();
        let source_port = self.socket.local_addr().unwrap().port();
        let udp = Udp::new(source_port, (Udp::BYTES + bytes.len() + ICRC_BYTES) as u16);
        let ip = IpHeader::between(gid_of(self.from), gid_of(self.at), udp.bytes).unwrap();
        bytes.extend(icrc::stored(icrc::compute(&ip, &udp, &bytes).unwrap()));
        self.socket.send_to(&bytes, (self.at, 4791)).unwrap();
    }

    fn request(&self, local_id: u32, service: u64) -> Message {
        let (local_gid, remote_gid) = (gid_of(self.from), gid_of(self.at));
        let primary = Path { local_gid, remote_gid, hop_limit: 64, ack_timeout: 19, ..Path::default() };
        let req = Req {
            local_id,
            service,
            qpn: local_id & 0xff_ffff,
            remote_response_timeout: 20,
            local_response_timeout: 20,
            retry: 7,
            pkey: 0xffff,
            path_mtu: 3,
            max_cm_retries: 15,
            primary,
            ..Req::default()
        };
        Message::Req(req)
    }

    /// One datagram, of any kind.
    fn flood(&mut self, slot: u8) {
        let (id, other) = (self.below(1 << 32) as u32, self.below(1 << 32) as u32);
        // Mostly ids that the process under attack could have given.
        let theirs = u32::from(slot) << 25 | (other & 0xff);
        let ids = Ids { local: id, remote: if self.below(4) == 0 { other } else { theirs } };
        let message = match self.below(12) {
            0 => {
                let mut noise = [0; MAD_BYTES];
                noise.iter_mut().for_each(|byte| *byte = random::draw(&mut self.random) as u8);
                return self.send(QP1_QKEY, &noise);
            }
            1 => return self.send(QP1_QKEY + 1 + other % 7, &[0; MAD_BYTES]),
            2 => return self.send(QP1_QKEY, &vec![0x5a; other as usize % 1024]),
            3 => match self.last.take() {
                Some(mad) => {
                    self.send(QP1_QKEY, &*mad);
                    self.last = Some(mad);
                    return;
                }
                None => self.request(id, SERVICE),
            },
            4 | 5 => self.request(id, SERVICE),
            6 => self.request(id, NOBODYS),
            7 => Message::Rtu(ids),
            8 => Message::Dreq(Dreq { ids, qpn: other & 0xff_ffff }),
            9 => Message::Rep(Rep { ids, ..Rep::default() }),
            10 => {
                let (reason, info) = ((other % 40) as u16, [0; 72]);
                Message::Rej(Rej { ids, message: (other & 3) as u8, reason, info_bytes: 0, info })
            }
            _ => Message::SidrReq(SidrReq { request: id, pkey: 0xffff, service: NOBODYS }),
        };
        let is_request = matches!(message, Message::Req(_));
        let mut mad = CmMad { transaction: id.into(), message, private: &[] }.encode().unwrap();
        if self.below(8) == 0 {
            mad[other as usize % MAD_BYTES] ^= 1 << (id % 8);
        } else if is_request {
            self.last = Some(Box::new(mad));
        }
        self.send(QP1_QKEY, &mad);
    }
}

/// The process that receives them.
struct Receiver {
    link: Link,
    mads: FabricMads,
    cm: Cm,
    at: IpAddr,
    now: Now,
    /// Datagrams that its connection manager got.
    got: u64,
}

impl Receiver {
    /// Rounds of the NIC, and one of its connection manager.
    fn turn(&mut self, rounds: u32) {
        for _ in 0..rounds {
            self.link.poll(64, |_| Disposition::Consumed);
        }
        for AddressedMad { from, mad, .. } in self.mads.receive() {
            self.got += 1;
            let route = Route { local: gid_of(self.at), remote: from };
            // What it drops it counts.
            let _ = self.cm.handle_mad(self.now, route, &*mad);
        }
        while let Some(sent) = self.cm.poll_transmit() {
            self.mads.send(sent);
        }
        self.link.ring_bells();
    }

    /// The program notes the requests.
    fn take_requests(&mut self, waiting: &mut Vec<ConnectionId>) {
        while let Some(event) = self.cm.poll_event() {
            if let Event { id, cause: Cause::Received(Message::Req(_), _), .. } = event {
                waiting.push(id);
            }
        }
    }

    /// The program refuses the waiting requests.
    fn turn_away(&mut self, waiting: &mut Vec<ConnectionId>) {
        for id in waiting.drain(..) {
            // One that has ended meanwhile is over already.
            let _ = self.cm.reject(self.now, id, reason::CONSUMER, &[], &[]);
        }
    }

    fn event(&mut self) -> Option<Event> {
        (0..1_000).find_map(|_| {
            self.turn(1);
            self.cm.poll_event()
        })
    }
}

#[test]
fn a_flood_at_qp1_is_bounded_and_counted_and_a_connection_is_made_afterwards() {
    let [_, p1, p2, p3] = std::process::id().to_be_bytes();
    let place = |which: u8| IpAddr::from([127, 32 + (p1 & 15) + 16 * which, p2, p3]);
    let (at, from) = (place(0), place(1));
    let fabric = format!("flood-{}", std::process::id());
    let link = Link::join(LinkConfig { fabric, addresses: vec![at], ..LinkConfig::default() }).unwrap();
    let slot = link.slot();
    let (mut mads, _bell) = FabricMads::open(link.mad_router(), vec![gid_of(at)]).unwrap();
    mads.announce(SERVICE, None).unwrap();
    let mut cm = Cm::new(CmConfig { slot, seed: 9, max_connections: MAX_CONNECTIONS });
    cm.listen(SERVICE, None, BACKLOG).unwrap();
    let mut receiver = Receiver { link, mads, cm, at, now: Now(1_000), got: 0 };
    // Answers to the flood go to its source address. This socket has the port there.
    let socket = UdpSocket::bind((from, 4791)).unwrap();
    let mut sender = RawSender { socket, from, at, random: 11, psn: 0, last: None };
    // Requests that its program has not answered.
    let mut waiting = Vec::new();
    for number in 0..FLOOD {
        sender.flood(slot);
        // Fewer than a socket holds, and more.
        if number % 64 < 16 && number % 4 == 3 || number % 64 == 63 {
            receiver.turn(if number % 64 == 63 { 8 } else { 1 });
            assert!(
                receiver.cm.connections() <= MAX_CONNECTIONS,
                "{} connections",
                receiver.cm.connections()
            );
        }
        receiver.take_requests(&mut waiting);
        if number % 512 == 511 {
            receiver.turn_away(&mut waiting);
        }
    }
    // The NIC asks a socket that gave nothing of late now and then only.
    let deadline = Instant::now() + Duration::from_secs(20);
    let received = |receiver: &Receiver| {
        let wire = receiver.link.wire_counters().unwrap();
        wire.packets_received + wire.malformed + wire.icrc_errors + wire.reserved
    };
    while received(&receiver) < u64::from(FLOOD) && Instant::now() < deadline {
        receiver.turn(1);
    }
    for _ in 0..20 {
        receiver.turn(1);
    }
    let wire = receiver.link.wire_counters().unwrap();
    let (mads, cm) = (receiver.link.mad_router().counters(), receiver.cm.counters());
    println!("TABLE flood at QP1: {FLOOD} datagrams; {mads:?}");
    println!("TABLE   its connection manager: {cm:?}");
    // Each in one counter: before QP1, …
    assert_eq!(received(&receiver), u64::from(FLOOD), "{wire:?}");
    // … at QP1, …
    let at_qp1 = mads.handed_on + mads.refused + mads.unclaimed + mads.malformed;
    let answers_lost = wire.packets_received.checked_sub(at_qp1);
    assert_eq!(answers_lost, Some(mads.full), "{mads:?} {wire:?}");
    // … and of what its connection manager got.
    assert_eq!(receiver.got, mads.handed_on);
    let judged = cm.taken + cm.malformed + cm.no_connection + cm.out_of_state + cm.full;
    assert_eq!(judged, receiver.got, "{cm:?}");
    let reached = [mads.handed_on, mads.refused, mads.unclaimed, mads.malformed, mads.full];
    assert!(reached.iter().all(|count| *count >= 50), "{mads:?}");
    assert!([cm.no_connection, cm.out_of_state, cm.full].iter().all(|count| *count >= 10), "{cm:?}");

    // The flood's requests are refused, what is left of them times out, and an honest client is served.
    receiver.take_requests(&mut waiting);
    receiver.turn_away(&mut waiting);
    while let Some(due) = receiver.cm.poll_timeout() {
        receiver.now = receiver.now.max(due);
        receiver.cm.handle_timeout(receiver.now);
        receiver.turn(1);
    }
    assert_eq!(receiver.cm.connections(), 0);
    while receiver.cm.poll_event().is_some() {}
    connect(&mut sender, &mut receiver);
}

/// An honest client, through the sender's socket.
fn connect(sender: &mut RawSender, receiver: &mut Receiver) {
    let mut client = Cm::new(CmConfig { slot: 99, seed: 3, max_connections: 1 });
    let Message::Req(req) = sender.request(0, SERVICE) else { unreachable!() };
    let asking = client.connect(Now(5), &req, b"hello").unwrap();
    sender.send(QP1_QKEY, &*client.poll_transmit().unwrap().mad);
    let Some(Event { id, cause: Cause::Received(Message::Req(_), _), .. }) = receiver.event() else {
        panic!("no request")
    };
    let rep = Rep { qpn: 7, target_ack_delay: 15, ..Rep::default() };
    receiver.cm.accept(receiver.now, id, &rep, b"welcome").unwrap();
    let reply = receiver.cm.poll_transmit().unwrap();
    let back = Route { local: reply.to, remote: reply.from };
    client.handle_mad(Now(6), back, &*reply.mad).unwrap();
    assert!(matches!(client.poll_event(), Some(Event { cause: Cause::Received(Message::Rep(_), _), .. })));
    client.ready(asking, b"").unwrap();
    sender.send(QP1_QKEY, &*client.poll_transmit().unwrap().mad);
    assert!(matches!(receiver.event(), Some(Event { cause: Cause::Received(Message::Rtu(_), _), .. })));
}
