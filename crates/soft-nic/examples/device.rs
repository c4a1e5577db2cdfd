//! What a WRITE costs in the device alone: two devices in one process, joined by a queue instead of a link.
//!
//! `cargo run --release -p soft-nic --example device` prints one line of JSON. A burst lasts from the
//! doorbell of its WQEs to its last CQE. Both devices run in turn and are timed apart. The program's work
//! (laying WQEs, reading CQEs) is not timed. The responder copies the payload from region to region. For
//! instructions by function: `valgrind --tool=callgrind --toggle-collect='device::round'`.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Instant;

use mlx5_device::Nic;
use mlx5_device::carrier::{
    Addressing, Carrier, Disposition, Icrc, Inbound, PathAddress, Payload, Position, Sent, Unsent,
};
use mlx5_device::command::ModifyQp;
use mlx5_device::config::NicConfig;
use mlx5_device::memory::{Fault, Order, Segment};
use roce::{Fragment, Now, Packet};
use soft_nic::dma::Host;
use soft_nic::testing::{CqShape, DriverOf, QpId, QpShape, Region, Sinks, WorkRequest};

/// Of the send queue of [`QpShape::default`].
const BLOCKS: usize = 64;
const REGION: usize = 1 << 20;
/// A round takes this long on the virtual clock: far shorter than a time-out.
const ROUND_NS: u64 = 3_000;
/// A burst without its completion after so many rounds has failed.
const MOST_ROUNDS: u64 = 100_000;
/// Bursts that are not timed.
const WARM: usize = 1_000;

/// Messages in flight to one device, each with its payload's memory. Reused slots: a message is copied once.
#[derive(Default)]
struct Lane {
    slots: Vec<(Packet, Segment)>,
    /// Those from the first to the second are on their way.
    taken: usize,
    sent: usize,
}

impl Lane {
    /// The slot of the next message.
    #[inline(always)]
    fn next(&mut self) -> &mut (Packet, Segment) {
        if self.sent == self.slots.len() {
            self.slots.push(Default::default());
        }
        self.sent += 1;
        &mut self.slots[self.sent - 1]
    }
}

/// The carrier of one device: a queue in either direction.
struct End {
    slot: u8,
    from_peer: Rc<RefCell<Lane>>,
    to_peer: Rc<RefCell<Lane>>,
    host: Host,
}

impl End {
    #[inline(always)]
    fn send(&mut self, payload: Payload<'_>, packet: &Packet) -> Result<Sent, Unsent> {
        let source = match payload {
            Payload::Nothing => Segment::default(),
            Payload::Segments([source]) => *source,
            _ => return Err(Unsent::Unreachable),
        };
        let mut lane = self.to_peer.borrow_mut();
        let slot = lane.next();
        slot.0 = *packet;
        slot.1 = source;
        Ok(Sent { position: Position { channel: 0, offset: 0 }, carried: source.len as u32 })
    }
}

/// Methods that have one answer: there is no wire, and nothing ever waits.
macro_rules! constant {
    ($(fn $name:ident(& $($mut:ident)? $(, $type:ty)*) -> $answer:ty = $value:expr;)*) => {
        $(fn $name(& $($mut)? self $(, _: $type)*) -> $answer {
            $value
        })*
    };
}

impl Carrier for End {
    type Inbound<'a> = Arrived<'a>;

    constant! {
        fn has_wire(&) -> bool = false;
        fn replies_wait(&, u8) -> bool = false;
        fn poll_event(&mut) -> Option<String> = None;
        fn has_reply_room(&mut, u8) -> bool = true;
        fn consumed(&mut, u8, Position) -> bool = true;
        fn has_wire_room(&mut, IpAddr) -> bool = false;
        fn send_packet(&mut, IpAddr, IpAddr, &Packet, Icrc, Payload<'_>) -> Result<usize, Unsent> = Err(Unsent::Unreachable);
        fn read_payload(&mut, Fragment, Payload<'_>) -> Result<Vec<u8>, Fault> = Ok(Vec::new());
        fn has_packets_waiting(&) -> bool = false;
        fn has_delayed(&) -> bool = false;
        fn fabric_in_words(&) -> String = "one process".to_owned();
    }

    fn slot(&self) -> u8 {
        self.slot
    }

    fn set_delay(&mut self, _delay_ns: u64) {}

    fn poll_rings(
        &mut self,
        _now: Now,
        budget: usize,
        mut handler: impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    ) -> usize {
        let Lane { slots, taken, sent } = &mut *self.from_peer.borrow_mut();
        let end = (*sent).min(*taken + budget);
        let count = end - *taken;
        for (packet, source) in &slots[*taken..end] {
            handler(packet, &mut Arrived { source: *source, host: &self.host });
        }
        *taken = end;
        if *taken == *sent {
            (*taken, *sent) = (0, 0);
        }
        count
    }

    fn poll_wire(
        &mut self,
        _now: Now,
        _handler: impl FnMut(&Packet, &mut Arrived<'_>) -> Disposition,
    ) -> usize {
        0
    }

    fn send_record(
        &mut self,
        packet: &Packet,
        _mtu: u32,
        _path: &PathAddress,
        payload: Payload<'_>,
    ) -> Result<Sent, Unsent> {
        self.send(payload, packet)
    }

    fn ring_bells(&mut self) {}

    fn peer_in_words(&self, slot: u8) -> String {
        format!("device {slot} is silent")
    }
}

/// A message that arrived; its payload is still where it was sent from.
struct Arrived<'a> {
    source: Segment,
    host: &'a Host,
}

impl Inbound for Arrived<'_> {
    fn addressing(&self) -> &Addressing {
        &Addressing { path: None, to_port: Some(1), addresses: None }
    }

    fn copy_into(&mut self, to: &[Segment], order: Order) -> Result<(), Fault> {
        self.host.copy(to, &[self.source], self.source.len, order)
    }

    fn copy_to_buffer(&mut self, _out: &mut [u8]) -> Result<(), Fault> {
        Err(Fault { addr: self.source.addr })
    }
}

/// A device and its program: one queue pair, laid into memory as libmlx5 does.
struct Side {
    driver: DriverOf<Nic<Host, End>>,
    region: Region,
    qp: QpId,
}

/// One round of a device, under a name that the profiler can find.
#[inline(never)]
fn round(nic: &mut Nic<Host, End>, now: Now) -> usize {
    nic.poll(now)
}

impl Side {
    fn new(slot: u8, from_peer: Rc<RefCell<Lane>>, to_peer: Rc<RefCell<Lane>>) -> Side {
        let host = Host::new().expect("the fault handler can be installed");
        let end = End { slot, from_peer, to_peer, host };
        let sinks = Sinks::default();
        let (events, log) = (Box::new(sinks.clone()), sinks.log());
        let nic = Nic::new(&NicConfig::default(), host, end, events, log, Now(0));
        let nic = nic.expect("a NIC of the default settings");
        let mut driver = DriverOf::of(nic, sinks, 1_000_000);
        let region = driver.region(REGION, 0xf);
        let cq = Some(driver.create_cq(CqShape::default()));
        let shape = QpShape { rq_entries: 0, rq_shift: 0, send_cq: cq, recv_cq: cq, ..QpShape::default() };
        let qp = driver.create_qp(shape);
        Side { driver, region, qp }
    }

    fn connect(&mut self, peer: u32) {
        let attributes = ModifyQp { path_mtu: 5, ..self.driver.attributes(peer) };
        self.driver.bring_up(self.qp, &attributes);
    }

    /// Takes the completions that are there, and counts them.
    fn take_completions(&mut self) -> usize {
        std::iter::from_fn(|| self.driver.poll_send(self.qp)).count()
    }
}

/// Times of one burst, ns.
#[derive(Default, Clone, Copy)]
struct Burst {
    requester_ns: u64,
    responder_ns: u64,
}

/// Sends `bursts` of `count` WRITEs of `bytes` each. Returns the times of each burst after the warm-up.
fn measure(sides: &mut [Side; 2], bytes: usize, count: usize, bursts: usize) -> Vec<Burst> {
    let [requester, responder] = sides;
    let write = WorkRequest::write(&requester.region, 0, bytes as u32, &responder.region, 0);
    let mut times = Vec::with_capacity(bursts);
    let mut now = requester.driver.now;
    for _ in 0..WARM + bursts {
        for _ in 0..count {
            requester.driver.lay(requester.qp, &write);
        }
        requester.driver.ring_doorbell(requester.qp);
        let (mut burst, mut completed, since) = (Burst::default(), 0, now);
        while completed < count {
            assert!(now - since < MOST_ROUNDS * ROUND_NS, "a burst has no completion");
            now += ROUND_NS;
            let begun = Instant::now();
            round(&mut requester.driver.nic, Now(now));
            let between = Instant::now();
            round(&mut responder.driver.nic, Now(now));
            burst.requester_ns += (between - begun).as_nanos() as u64;
            burst.responder_ns += between.elapsed().as_nanos() as u64;
            completed += requester.take_completions();
        }
        times.push(burst);
    }
    times.split_off(WARM)
}

/// Median over the bursts, ns a WRITE.
fn median(bursts: &[Burst], count: usize, of: impl Fn(&Burst) -> u64) -> f64 {
    let mut times: Vec<u64> = bursts.iter().map(of).collect();
    times.sort_unstable();
    times[times.len() / 2] as f64 / count as f64
}

fn main() {
    let words: Result<Vec<usize>, _> = std::env::args().skip(1).map(|word| word.parse()).collect();
    let (bytes, count, bursts) = match words.as_deref() {
        Ok([]) => (8, BLOCKS, 20_000),
        Ok(&[bytes @ 1..=REGION, count @ 1..=BLOCKS, bursts @ 1..=1_000_000_000]) => (bytes, count, bursts),
        _ => {
            eprintln!("device: bytes of a WRITE, WQEs a doorbell (at most {BLOCKS}), and bursts");
            std::process::exit(2);
        }
    };
    let lanes: [Rc<RefCell<Lane>>; 2] = Default::default();
    let side = |slot: usize| Side::new(slot as u8, lanes[slot].clone(), lanes[1 - slot].clone());
    let mut sides = [side(0), side(1)];
    let qpns = sides.each_ref().map(|side| side.driver.qp(side.qp).qpn);
    sides[0].connect(qpns[1]);
    sides[1].connect(qpns[0]);
    let content = sides[0].region.fill(0, bytes, 7);
    let times = measure(&mut sides, bytes, count, bursts);
    assert_eq!(sides[1].region.block.bytes(0, bytes), content, "the bytes arrived");
    let requester = median(&times, count, |burst| burst.requester_ns);
    let responder = median(&times, count, |burst| burst.responder_ns);
    let both = median(&times, count, |burst| burst.requester_ns + burst.responder_ns);
    println!(
        "{{\"kind\":\"device\",\"bytes\":{bytes},\"wqes_a_doorbell\":{count},\"bursts\":{bursts},\
         \"requester_ns\":{requester:.1},\"responder_ns\":{responder:.1},\"write_ns\":{both:.1}}}"
    );
}
