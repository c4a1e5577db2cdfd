//! Peers of all kinds on 127.0.0.1; no NIC is needed.

use std::thread;

use super::*;
use crate::code::{GidType, LinkLayer, Mtu};
use crate::connect::{Path, QpOffer, RegionOffer};
use crate::{Gid, GidEntry, QpType};

/// What must come comes within it, however busy the machine is.
const DEADLINE: Duration = Duration::from_secs(60);

fn gid(text: &str, kind: GidType) -> Option<GidEntry> {
    Some(GidEntry { index: 3, gid: Gid::try_from(text.to_string()).unwrap(), kind })
}

fn roce(mtu: Mtu) -> Path {
    Path::of_nothing(LinkLayer::Ethernet, mtu, gid("::ffff:10.0.0.2", GidType::RoceV2))
}

fn hello(path: &Path, service: QpType, queue_pairs: usize) -> Hello<u32> {
    let offers = (0..queue_pairs as u32).map(|number| QpOffer { number, psn: 0xff_ffff }).collect();
    let region = RegionOffer { address: u64::MAX - 1, bytes: 1, rkey: u32::MAX };
    Hello::new(path, service, offers, vec![region], 77)
}

fn ours() -> Hello<u32> {
    hello(&roce(Mtu::Mtu4096), QpType::Rc, 2)
}

/// What we get from a peer that behaves like `peer`.
fn meet<T>(peer: impl FnOnce(TcpStream) -> T + Send + 'static) -> Result<Hello<u32>, ConnectError>
where
    T: Send + 'static,
{
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap();
    let peer = thread::spawn(move || peer(TcpStream::connect(address).unwrap()));
    let mut session = listener.accept(Wait::at_most(DEADLINE)).unwrap();
    let result = session.exchange(&ours(), Wait::at_most(Duration::from_millis(300)));
    drop(session);
    peer.join().unwrap();
    result
}

/// The sentence we get from a peer that sends this line, without the part that names its address.
fn refusal(line: String) -> String {
    let error = meet(move |mut stream| {
        stream.write_all(line.as_bytes()).unwrap();
        stream
    });
    let text = error.unwrap_err().to_string();
    let address =
        text.split(' ').find(|word| word.starts_with("127.0.0.1:")).unwrap_or("-").trim_end_matches(';');
    text.replace(address, "PEER")
}

#[test]
fn two_of_ours_learn_everything_about_each_other() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap().to_string();
    let client = thread::spawn(move || {
        let mut session = Session::connect(&address, Wait::at_most(DEADLINE)).unwrap();
        let theirs = session.exchange(&ours(), Wait::at_most(DEADLINE)).unwrap();
        session.send(&"counts").unwrap();
        session.barrier(Wait::at_most(DEADLINE)).unwrap();
        session.barrier(Wait::at_most(DEADLINE)).unwrap();
        theirs
    });
    let mut session = listener.accept(Wait::at_most(DEADLINE)).unwrap();
    let theirs = session.exchange(&ours(), Wait::at_most(DEADLINE)).unwrap();
    let word: String = session.receive("a word", Wait::at_most(DEADLINE)).unwrap();
    session.barrier(Wait::at_most(DEADLINE)).unwrap();
    assert!(session.is_alive());
    session.barrier(Wait::at_most(DEADLINE)).unwrap();
    assert_eq!((theirs, word.as_str()), (ours(), "counts"));
    assert_eq!(client.join().unwrap(), ours());
    let closed = session.receive::<u32>("a report", Wait::at_most(DEADLINE)).unwrap_err().to_string();
    assert!(closed.ends_with("closed the connection while it was waited for a report"), "{closed}");
    assert!(!session.is_alive());
}

#[test]
fn strangers_are_told_apart_from_other_versions() {
    let line = |hello: &Hello<u32>| serde_json::to_string(hello).unwrap() + "\n";
    for (name, sent, sentence) in [
        (
            "a web browser",
            "GET / HTTP/1.1\r\n".to_string(),
            "PEER is not one of ours: expected one JSON line of protocol \"doorbell-connect\", got \"GET / HTTP/1.1\\r\"",
        ),
        (
            "other JSON",
            "{\"hello\": 1}\n".to_string(),
            "PEER is not one of ours: expected one JSON line of protocol \"doorbell-connect\", got \"{\\\"hello\\\": 1}\"",
        ),
        (
            "a newer build",
            line(&ours()).replace("\"version\":1", "\"version\":2"),
            "PEER speaks version 2 of the connection protocol, this program version 1: use the same build",
        ),
        (
            "our version without a field",
            line(&ours()).replace("\"lid\":1,", ""),
            "PEER sent a greeting that cannot be read: missing field `lid`",
        ),
        (
            "a queue pair number of 32 bits",
            line(&ours()).replace("\"number\":1", "\"number\":4294967295"),
            "PEER sent a greeting that cannot be read: queue pair 0xffffffff or PSN 0xffffff has more than 24 bits",
        ),
        (
            "an MTU that is none",
            line(&ours()).replace("\"mtu\":4096", "\"mtu\":1500"),
            "PEER sent a greeting that cannot be read: 1500 is no MTU: 256, 512, 1024, 2048 and 4096 are",
        ),
    ] {
        assert_eq!(refusal(sent), sentence, "{name}");
    }
}

#[test]
fn what_differs_is_named() {
    let infiniband = Path::of_nothing(LinkLayer::InfiniBand, Mtu::Mtu4096, None);
    let v1 = Path::of_nothing(LinkLayer::Ethernet, Mtu::Mtu4096, gid("::ffff:10.0.0.3", GidType::RoceV1));
    let ipv6 = Path::of_nothing(LinkLayer::Ethernet, Mtu::Mtu4096, gid("fe80::3", GidType::RoceV2));
    for (theirs, sentence) in [
        (hello(&infiniband, QpType::Rc, 2), "link layers differ: Ethernet (RoCE) here, InfiniBand at PEER"),
        (
            hello(&roce(Mtu::Mtu1024), QpType::Rc, 2),
            "MTUs differ: 4096 bytes here, 1024 at PEER; give both sides the smaller one",
        ),
        (
            hello(&v1, QpType::Rc, 2),
            "GIDs do not go together: roce-v2-ipv4 here, roce-v1-ipv4 at PEER; choose entries of the same kind",
        ),
        (
            hello(&ipv6, QpType::Rc, 2),
            "GIDs do not go together: roce-v2-ipv4 here, roce-v2-ipv6 at PEER; choose entries of the same kind",
        ),
        (
            hello(&roce(Mtu::Mtu4096), QpType::Uc, 2),
            "the sides want different things: 2 RC queue pair(s) here, 2 UC queue pair(s) at PEER",
        ),
        (
            hello(&roce(Mtu::Mtu4096), QpType::Rc, 3),
            "the sides want different things: 2 RC queue pair(s) here, 3 RC queue pair(s) at PEER",
        ),
    ] {
        assert_eq!(refusal(serde_json::to_string(&theirs).unwrap() + "\n"), sentence);
    }
}

#[test]
fn silence_ends_at_the_deadline_and_a_closed_peer_at_once() {
    let started = Instant::now();
    let silent = meet(|stream| {
        thread::sleep(Duration::from_millis(400));
        stream
    });
    let text = silent.unwrap_err().to_string();
    assert!(
        text.starts_with("waiting for a greeting from 127.0.0.1:") && text.ends_with("nothing within 0.3 s"),
        "{text}"
    );
    assert!(started.elapsed() < DEADLINE);
    let text = meet(drop::<TcpStream>).unwrap_err().to_string();
    assert!(text.contains("closed the connection") || text.contains("writing to"), "{text}");
}

#[test]
fn a_line_without_end_is_cut_off() {
    let error = meet(|mut stream| {
        // Fails when we hang up. The stream is kept: closing it with unread bytes would reset the connection.
        let _ = stream.write_all(&vec![b'x'; 2 * MAX_LINE_BYTES]);
        stream
    });
    assert!(matches!(error, Err(ConnectError::Stranger { .. })), "{error:?}");
}

/// A peer that nobody reads, while it is only asked whether it is there.
#[test]
fn a_peer_that_sends_without_end_is_not_kept_in_memory() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap().to_string();
    let flood = thread::spawn(move || {
        let mut session = Session::connect(&address, Wait::at_most(DEADLINE)).unwrap();
        let line = "x".repeat(4000);
        // Fails when we hang up.
        while session.send(&line).is_ok() {}
    });
    let mut session = listener.accept(Wait::at_most(DEADLINE)).unwrap();
    let started = Instant::now();
    while session.is_alive() {
        assert!(started.elapsed() < DEADLINE, "{} bytes are kept", session.buffer.len());
    }
    assert!(session.buffer.len() <= MAX_LINE_BYTES + 4096, "{} bytes are kept", session.buffer.len());
    drop(session);
    flood.join().unwrap();
}

#[test]
fn nobody_there_is_a_refused_connection_by_name() {
    let address = Listener::bind("127.0.0.1:0").unwrap().address().unwrap().to_string();
    let error =
        Session::connect(&address, Wait::at_most(Duration::from_millis(120))).unwrap_err().to_string();
    assert_eq!(error, format!("connecting to {address}: Connection refused (os error 111)"));
}

#[test]
fn a_port_in_use_is_named() {
    let first = Listener::bind("127.0.0.1:0").unwrap();
    let address = first.address().unwrap().to_string();
    let error = Listener::bind(&address).unwrap_err().to_string();
    assert_eq!(error, format!("listening on {address}: Address already in use (os error 98)"));
    let late = first.accept(Wait::at_most(Duration::from_millis(60))).unwrap_err().to_string();
    assert_eq!(late, format!("waiting for a peer on {address}: nothing within 0.1 s"));
}

#[test]
fn a_stop_flag_ends_a_wait() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let stop = AtomicBool::new(true);
    let error = listener.accept(Wait::at_most(Duration::from_secs(60)).unless(&stop)).unwrap_err();
    assert!(matches!(error, ConnectError::Stopped { .. }), "{error}");
}

#[test]
fn a_peer_whose_host_is_gone_is_lost_within_a_minute() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap().to_string();
    let peer = thread::spawn(move || Session::connect(&address, Wait::at_most(DEADLINE)).unwrap());
    let accepted = listener.accept(Wait::at_most(DEADLINE)).unwrap();
    for session in [accepted, peer.join().unwrap()] {
        let get = |level: c_int, option: c_int| {
            let (mut value, mut bytes): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
            let fd = session.stream.as_raw_fd();
            // SAFETY: the option's value is an int, for which there is room.
            let got = unsafe { libc::getsockopt(fd, level, option, (&raw mut value).cast(), &raw mut bytes) };
            assert_eq!(got, 0);
            value
        };
        let tcp = |option| get(libc::IPPROTO_TCP, option);
        assert_eq!(get(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        let silent = tcp(libc::TCP_KEEPIDLE) + tcp(libc::TCP_KEEPINTVL) * tcp(libc::TCP_KEEPCNT);
        let unacknowledged = tcp(libc::TCP_USER_TIMEOUT) / 1000;
        assert!((1..60).contains(&silent) && (1..60).contains(&unacknowledged), "{silent} {unacknowledged}");
    }
}
