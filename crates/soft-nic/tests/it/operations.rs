//! Each operation of each service, from the WQE to the CQEs and the bytes.

use mlx5_layout::CqeOpcode;
use soft_nic::testing::{Driver, QpShape, Setup, WorkRequest};

const ALL: u32 = 0xf;

#[test]
fn a_send_lands_in_the_posted_receive() {
    let mut driver = Driver::new(Setup::new("send"));
    let (a, b) = driver.pair(QpShape::default());
    let (from, to) = (driver.region(4096, ALL), driver.region(4096, ALL));
    let sent = from.fill(0, 300, 7);
    driver.post_receive(b, &[to.pointer(100, 1000)]);
    driver.post(a, &WorkRequest::send(&from, 0, 300)).settle();
    let received = driver.poll_receive(b).expect("a receive completion");
    assert_eq!(received.opcode(), Some(CqeOpcode::ResponderSend));
    assert_eq!(received.byte_count(), 300);
    assert_eq!(to.block.bytes(100, 300), sent);
    let done = driver.poll_send(a).expect("a send completion");
    assert_eq!(done.opcode(), Some(CqeOpcode::Requester));
}
