//! Pages that the kernel lends to no other process, as most dma-bufs' are: their owner copies. The pages are those that every
//! process has for its clock (`[vvar]`, vdso(7)), whose mapping has the same flags (`VM_PFNMAP`).

use super::messages::{meet, segment};
use super::processes::{config, fabric_name, request};
use crate::dma::dma_buf::not_to_be_lent;
use crate::dma::{Host, Memory, Order, Segment};
use crate::link::{CopyError, Disposition, Link, PathAddress, Payload};

const PAGE: u64 = 4096;
/// The page so often that the message is too long for a record.
const TIMES: usize = 8;

/// The first page of the clock's.
fn clock_page() -> Result<u64, String> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
    let line = maps.lines().find(|line| line.ends_with("[vvar]")).ok_or("no [vvar] in /proc/self/maps")?;
    let start = line.split('-').next().unwrap_or_default();
    u64::from_str_radix(start, 16).map_err(|error| error.to_string())
}

/// What a peer gets of the page, or why not.
fn send(a: &mut Link, b: &mut Link, page: u64) -> Result<Vec<u8>, CopyError> {
    let target = vec![0xee; TIMES * PAGE as usize];
    let len = target.len() as u32;
    let mut sending = request(a, Link::first_qpn(b.slot()), roce::Opcode::Write, 7, 0x1000, len);
    let from = [Segment { addr: page, len: PAGE }; TIMES];
    let mut failed = None;
    while sending.fragment.length > 0 {
        let sent = a.send_request(&sending, &PathAddress::default(), Payload::Segments(&from)).unwrap();
        sending.fragment.offset += sent.carried;
        sending.fragment.length -= sent.carried;
        a.ring_bells();
        while b.poll(1, |inbound| {
            let crate::link::Message::Request(got) = *inbound.message else { panic!("a request") };
            let place = &target[got.fragment.offset as usize..][..got.fragment.length as usize];
            failed = inbound.copy_into(&[segment(place)], Order::Increasing).err().or(failed);
            Disposition::Consumed
        }) == 0
        {}
        b.ring_bells();
    }
    failed.map_or(Ok(target), Err)
}

#[test]
fn pages_that_cannot_be_lent_are_copied_by_their_owner() {
    let page = measure::need!(clock_page(), "a clock page of the kernel's");
    let host = Host::new().unwrap();
    let fabric = fabric_name();
    let mut a = Link::join(config(&fabric, false)).unwrap();
    let mut b = Link::join(config(&fabric, false)).unwrap();
    meet(&mut a, &mut b);
    let read = || {
        let mut bytes = vec![0; PAGE as usize];
        host.read(page, &mut bytes).map(|()| bytes).unwrap()
    };
    // Lent like others, they are refused by the kernel.
    assert_eq!(send(&mut a, &mut b, page), Err(CopyError::Sender));
    assert_eq!(a.counters().staged_bytes, 0);
    let known = not_to_be_lent(page, PAGE);
    assert!(host.probe(page, PAGE, false).is_ok() && host.probe(page, PAGE, true).is_err());
    // The clock goes on: a page that was the same before and after was the same in between.
    let seen = (0..1000).any(|_| {
        let before = read();
        let arrived = send(&mut a, &mut b, page).unwrap();
        let still = before == read();
        assert!(!still || arrived == before.repeat(TIMES));
        still
    });
    assert!(seen, "the page changes all the time");
    assert!(a.counters().staged_bytes > 0);
    drop(known);
    assert!(host.probe(page, PAGE, false).is_err(), "as the kernel sees it");
}
