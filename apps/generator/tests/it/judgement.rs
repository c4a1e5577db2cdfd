//! Torn or missing messages: a sender and a receiver that speak the protocol but do not do what they say.
//!
//! The liar is this test, with its own queue pairs. The other end is the generator: it must find the lie,
//! report it in its counts, and end with 1.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use measure::need;
use serde_json::{Value, json};
use verbs::code::Access;
use verbs::connect::{Hello, Listener, Path, PathOptions, QpOffer, RegionOffer, Session, Wait};
use verbs::{
    Cq, Mr, Pages, Payload, Pd, QpBuilder, QpType, QueuePair, Remote, SendFlags, SendOperation, SendRequest,
    WorkCompletion,
};

use crate::ends::{Ended, Generator, device};
use crate::kernels::twin;

const PAYLOAD: usize = 64;
const WINDOW: u64 = 4;
const MESSAGES: u64 = 10;
/// Where messages are put together; the receiver's credits go to the start of the region.
const SOURCE: usize = 1024;

fn wait() -> Wait<'static> {
    Wait::at_most(Duration::from_secs(10))
}

/// What README.md says of a body, in words of its own: 8 bytes at a time, of the source slot and their place.
fn body(source_slot: u64) -> Vec<u8> {
    let word = |at: u64| {
        let slot = (source_slot + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (slot ^ (at + 1).wrapping_mul(0xd1b5_4a32_d192_ed03)).to_le_bytes()
    };
    (0..PAYLOAD as u64 / 8 - 1).flat_map(word).collect()
}

/// A device, a region and one queue pair, as either end has them.
struct End {
    path: Path,
    region: Mr<Pages>,
    qp: QueuePair,
    cq: Cq,
    _pd: Pd,
}

impl End {
    fn new() -> End {
        let (context, path) = PathOptions::default().open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let access = Access(Access::LOCAL_WRITE.0 | Access::REMOTE_WRITE.0);
        let region = Mr::register(&pd, Pages::new(4096).unwrap(), access).unwrap();
        let cq = Cq::new(&context, 64).unwrap();
        let qp = QpBuilder::new(QpType::Rc).send_requests(64).receive_requests(16).build(&pd, &cq, &cq);
        let qp = qp.unwrap();
        path.to_init(&qp, access, 0).unwrap();
        End { path, region, qp, cq, _pd: pd }
    }

    /// Connects the queue pair; gives the peer's region.
    fn join(&self, session: &mut Session) -> RegionOffer {
        let offer = QpOffer::new(&self.qp);
        let ours = Hello::new(&self.path, QpType::Rc, vec![offer], vec![RegionOffer::new(&self.region)], ());
        let theirs = session.exchange(&ours, wait()).unwrap();
        self.path.connect(&self.qp, offer, &theirs, theirs.queue_pairs[0]).unwrap();
        session.barrier(wait()).unwrap();
        theirs.regions[0]
    }

    /// WRITEs these bytes to the end of a slot, and waits for the completion.
    fn write(&mut self, bytes: &[u8], peer: RegionOffer, slot: u64) {
        self.region.write(SOURCE, bytes);
        let sges = [self.region.sge(SOURCE..SOURCE + PAYLOAD).unwrap()];
        let remote = Remote { address: peer.address + slot * PAYLOAD as u64, rkey: peer.rkey };
        let mut request = SendRequest::new(0, SendOperation::Write(remote), Payload::Gather(&sges));
        request.flags = SendFlags::SIGNALED;
        self.qp.post_send(&request).unwrap();
        let mut found = [WorkCompletion::default()];
        soon("a completion", || self.cq.poll(&mut found).unwrap() == 1);
        assert!(found[0].is_success(), "{}", found[0].status());
    }
}

fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(10), "{what} did not come within 10 s");
        std::thread::yield_now();
    }
}

/// The generator's exit code and last line after a session with a [`liar`], and what it told the liar.
fn receiver_of(
    options: &[&str],
    verify: &str,
    lie: impl Fn(u64, Vec<u8>) -> Option<Vec<u8>>,
) -> (Option<i32>, Value, Value) {
    let (mut receiver, address) = Generator::receiver(options);
    let told = liar(&address, verify, false, lie);
    let ended = receiver.end();
    (ended.code, ended.line().clone(), told)
}

/// A lying sender: changes each message by `lie` (`None`: not sent), then claims that all ten completed.
/// Returns what the receiver told it.
fn liar(address: &str, verify: &str, warm_up: bool, lie: impl Fn(u64, Vec<u8>) -> Option<Vec<u8>>) -> Value {
    let mut session = Session::connect(address, wait()).unwrap();
    let plan = json!({
        "op": "write", "service": "rc", "payload_bytes": PAYLOAD, "qps": 1, "batch": 2, "doorbell_batch": 1,
        "window": WINDOW, "inline": false, "verify": verify,
    });
    session.send(&json!({ "generator": 2, "plan": plan, "warm_up": warm_up })).unwrap();
    let answer: Value = session.receive("an answer", wait()).unwrap();
    assert!(answer["refusal"].is_null(), "{answer}");
    let mut end = End::new();
    let peer = end.join(&mut session);
    for message in 0..MESSAGES {
        let whole = [body(message % (2 * WINDOW)), (message + 1).to_le_bytes().to_vec()].concat();
        if let Some(bytes) = lie(message, whole) {
            end.write(&bytes, peer, message % WINDOW);
        }
        if verify == "all" {
            let credits = end.region.word64(0);
            soon("credit", || credits.load(Ordering::Acquire) > message);
        }
    }
    session.send(&json!({ "posted": [MESSAGES], "completed": [MESSAGES] })).unwrap();
    session.receive("the receiver's counts", wait()).unwrap()
}

/// received, checked, verified, torn, lost.
fn counts(line: &Value) -> [u64; 5] {
    ["received", "checked", "verified", "torn", "lost"].map(|field| line[field].as_u64().unwrap())
}

/// What a liar makes of message number …
type Lie = fn(u64, Vec<u8>) -> Option<Vec<u8>>;

#[test]
fn release_m1_a_sender_that_corrupts_or_omits_messages_is_found_out() {
    need!(device(), nic, "an RDMA device");
    // After ten messages the four slots hold 8, 9, 6 and 7.
    let rows: &[(&str, Lie, i32, [u64; 5])] = &[
        ("all as it should be", |_, bytes| Some(bytes), 0, [10, 4, 4, 0, 0]),
        (
            "one bit of message 6 turned",
            |message, mut bytes| {
                bytes[17] ^= u8::from(message == 6);
                Some(bytes)
            },
            1,
            [10, 4, 3, 1, 0],
        ),
        (
            "message 7 with the body of 3",
            |message, bytes| {
                Some(if message == 7 { [body(3), bytes[56..].to_vec()].concat() } else { bytes })
            },
            1,
            [10, 4, 3, 1, 0],
        ),
        ("message 6 left out", |message, bytes| (message != 6).then_some(bytes), 1, [9, 4, 4, 0, 1]),
        ("the last two left out", |message, bytes| (message < 8).then_some(bytes), 1, [8, 4, 4, 0, 2]),
        ("nothing sent at all", |_, _| None, 1, [0, 0, 0, 0, 10]),
    ];
    for (name, lie, code, expected) in rows {
        let (ended, line, told) = receiver_of(&[], "end", lie);
        assert_eq!((ended, counts(&line), counts(&told)), (Some(*code), *expected, *expected), "{name}");
    }
}

#[test]
fn a_receiver_counts_a_warm_up_that_fails_and_one_whose_sender_does_not_come_back() {
    need!(device(), nic, "an RDMA device");
    let (mut receiver, address) = Generator::receiver(&["--sessions", "2"]);
    liar(&address, "end", true, |message, bytes| (message != 6).then_some(bytes));
    let told = liar(&address, "end", true, |_, bytes| Some(bytes));
    assert_eq!(counts(&told), [10, 4, 4, 0, 0]);
    let ended = receiver.end();
    let lines: Vec<_> = ended.lines.iter().map(|line| (counts(line), &line["error"])).collect();
    let late = "the sender did not come back within 10 s after its warm-up".into();
    assert_eq!(lines, [([9, 4, 4, 0, 1], &Value::Null), ([0; 5], &late)], "{ended:?}");
    assert_eq!(ended.code, Some(1));
}

#[test]
fn a_message_is_compared_when_it_arrives_even_if_a_whole_one_follows() {
    need!(device(), nic, "an RDMA device");
    compares_on_arrival(&[]);
}

#[test]
fn a_kernel_compares_a_message_when_it_arrives_too() {
    need!(device(), nic, "an RDMA device");
    need!(twin(), cc, "a C++ compiler");
    compares_on_arrival(&["--receiver", "host-twin"]);
}

fn compares_on_arrival(options: &[&str]) {
    let lies: [Lie; 2] = [
        |message, mut bytes| {
            bytes[0] ^= u8::from(message == 1);
            Some(bytes)
        },
        |message, bytes| Some(if message == 7 { [body(3), bytes[56..].to_vec()].concat() } else { bytes }),
    ];
    for lie in lies {
        let (ended, line, _) = receiver_of(options, "all", lie);
        assert_eq!((ended, counts(&line)), (Some(1), [10, 10, 9, 1, 0]), "{options:?}");
    }
}

#[test]
fn a_sender_says_what_its_receiver_found_and_fails() {
    need!(device(), nic, "an RDMA device");
    let whole = json!({
        "received": 10, "received_bytes": 640, "checked": 4, "verified": 4, "torn": 0, "lost": 0, "error": null,
    });
    for (name, field, value, code) in [
        ("whole", "torn", json!(0), 0),
        ("torn", "torn", json!(1), 1),
        ("lost", "lost", json!(1), 1),
        ("one less than were completed", "received", json!(9), 1),
        ("one not verified", "verified", json!(3), 1),
        ("nothing checked", "checked", json!(0), 1),
        ("an error", "error", json!("the receiver's own trouble"), 1),
    ] {
        let mut told = whole.clone();
        told[field] = value.clone();
        let (ended, done) = sender_to(&["--count", "10"], &told);
        assert_eq!(done, json!({ "posted": [10], "completed": [10] }));
        let run = ended.line();
        assert_eq!(
            (ended.code, &run["kind"], &run[field]),
            (Some(code), &"run".into(), &value),
            "{name}: {ended:?}"
        );
        let is_ok = code == 0 || field == "error";
        assert_eq!(run["content_ok"], is_ok, "{name}: {run}");
    }
    // A warm-up that fails is no run, and none follows.
    let mut told = whole;
    told["torn"] = json!(1);
    let (ended, _) = sender_to(&["--count", "10", "--warm-up", "0.01"], &told);
    let kinds: Vec<_> = ended.lines.iter().map(|line| &line["kind"]).collect();
    assert_eq!((ended.code, kinds), (Some(1), vec![&Value::from("warm-up")]), "{ended:?}");
    assert!(
        ended.stderr.contains("the warm-up failed and nothing was measured: see its counts"),
        "{ended:?}"
    );
}

/// How a sender ends after its receiver has told it these counts, and what it told the receiver.
fn sender_to(options: &[&str], told: &Value) -> (Ended, Value) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap().to_string();
    let fixed = ["--connect", &address, "--payload", "64", "--window", "4", "--batch", "2"];
    let mut sender = Generator::start(&[&fixed, options].concat());
    let mut session = listener.accept(wait()).unwrap();
    let _: Value = session.receive("a plan", wait()).unwrap();
    session.send(&json!({ "generator": 2, "refusal": null })).unwrap();
    let end = End::new();
    end.join(&mut session);
    let done: Value = session.receive("the sender's counts", wait()).unwrap();
    session.send(told).unwrap();
    (sender.end(), done)
}
