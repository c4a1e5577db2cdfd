//! Peers that are not there: what the link says of them.

use mlx5_device::command::ModifyQp;
use soft_nic::dma::Host;
use soft_nic::testing::{Driver, QpShape, Setup, WorkRequest};

use crate::operations::{ALL, on_the_wire};

/// Lines of the NIC about messages that reach nobody.
fn unreached(driver: &Driver<Host>) -> Vec<String> {
    let about = |line: &String| line.contains("reaches") || line.contains("does not answer");
    driver.sinks.take_lines().into_iter().filter(about).collect()
}

#[test]
fn a_queue_that_nobody_answers_says_where_its_peer_was_looked_for() {
    type Change = fn(&mut ModifyQp);
    let (nobody, elsewhere): (Change, Change) = (|a| a.dest_qpn += 7, |a| a.dest_qpn |= 0x7f << 17);
    let far: Change =
        |a| a.address.dgid = Some(std::net::Ipv4Addr::new(127, 63, 1, 2).to_ipv6_mapped().octets());
    let place = "network namespace";
    for (i, (name, wire, change, words)) in [
        ("QPN of nobody", false, nobody, ["such QP numbers are its own", place]),
        ("process of nobody", false, elsewhere, ["no process there has such QP numbers", place]),
        ("LID of nobody", false, |a| a.address.dlid = 99, ["LID 99", "no NIC there has that address"]),
        ("address of nobody", true, far, ["127.63.1.2", "UDP port 4791"]),
    ]
    .into_iter()
    .enumerate()
    {
        let setup = if wire { on_the_wire("silent") } else { Setup::new(&format!("silent-{i}")) };
        let fabric = setup.fabric.clone();
        let mut driver = Driver::new(setup);
        for _ in 0..2 {
            let (a, b) = (driver.create_qp(QpShape::default()), driver.create_qp(QpShape::default()));
            let mut attributes = ModifyQp { retry_count: 1, ..driver.attributes(driver.qp(b).qpn) };
            change(&mut attributes);
            driver.bring_up(a, &attributes);
            let from = driver.region(64, ALL);
            driver.post(a, &WorkRequest::send(&from, 0, 8)).settle();
            // An address that no NIC of the fabric can have is said at once; the rest takes its time.
            let early = unreached(&driver);
            let is_known = early.iter().all(|line| line.contains("no NIC of this fabric has that address"));
            assert!(is_known && early.len() == usize::from(name == "LID of nobody"), "{name}: {early:?}");
            driver.advance(200_000_000);
            assert!(driver.poll_send(a).is_some(), "{name}");
            let lines = unreached(&driver);
            assert_eq!(lines.len(), 1, "{name}: {lines:?}");
            for line in lines {
                assert!(words.iter().all(|word| line.contains(word)), "{name}: {line}");
                assert!(line.contains(&format!("on fabric {fabric:?} of user ")), "{name}: {line}");
            }
        }
    }
}
