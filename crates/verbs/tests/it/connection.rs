//! Two threads that know only a TCP address connect their queue pairs and send.

use std::thread;
use std::time::Duration;

use measure::need;
use verbs::code::{Access, QpState};
use verbs::connect::{GidChoice, Hello, Listener, PathOptions, QpOffer, RegionOffer, Session, Wait};
use verbs::{Cq, Mr, Pages, Payload, QpBuilder, QpType, Remote, SendOperation, SendRequest};

use crate::pair;

const SOON: Duration = Duration::from_secs(20);

/// One side: sends its number to the peer's memory, and waits for the peer's.
fn side(mut session: Session, number: u64) -> u64 {
    let wait = || Wait::at_most(SOON);
    let (context, path) = PathOptions::default().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut cq = Cq::new(&context, 16).unwrap();
    let mut qp = QpBuilder::new(QpType::Rc).build(&pd, &cq, &cq).unwrap();
    let memory = Mr::register(&pd, Pages::new(4096).unwrap(), Access::ALL).unwrap();
    memory.word64(0).store(number, std::sync::atomic::Ordering::Relaxed);
    path.to_init(&qp, Access::ALL, 0).unwrap();
    let ours = QpOffer::new(&qp);
    let hello = Hello::new(&path, QpType::Rc, vec![ours], vec![RegionOffer::new(&memory)], number);
    let theirs = session.exchange(&hello, wait()).unwrap();
    path.connect(&qp, ours, &theirs, theirs.queue_pairs[0]).unwrap();
    session.barrier(wait()).unwrap();
    assert_eq!(qp.query().unwrap().state, QpState::Rts);
    let remote = Remote { address: theirs.regions[0].address + 8, rkey: theirs.regions[0].rkey };
    let source = [memory.sge(0..8).unwrap()];
    qp.post_send(&SendRequest::new(1, SendOperation::Write(remote), Payload::Gather(&source))).unwrap();
    assert!(pair::wait_for(&mut cq).is_success());
    session.barrier(wait()).unwrap();
    assert_eq!(memory.word64(8).load(std::sync::atomic::Ordering::Acquire), theirs.parameters);
    theirs.parameters
}

#[test]
fn two_sides_connect_over_tcp_and_write_to_each_other() {
    need!(pair::device(), nic, "an mlx5 device");
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap().to_string();
    let client =
        thread::spawn(move || side(Session::connect(&address, Wait::at_most(SOON)).unwrap(), 0x1234_5678));
    assert_eq!(side(listener.accept(Wait::at_most(SOON)).unwrap(), 0x9abc_def0), 0x1234_5678);
    assert_eq!(client.join().unwrap(), 0x9abc_def0);
}

#[test]
fn an_address_that_no_port_has_is_named() {
    need!(pair::device(), nic, "an mlx5 device");
    let options = PathOptions { gid: GidChoice::Ip("192.0.2.77".parse().unwrap()), ..PathOptions::default() };
    let error = options.open().unwrap_err().to_string();
    assert!(error.starts_with("no RDMA device has the address 192.0.2.77 on port 1 (mlx5_0"), "{error}");
}
