//! Pages that the kernel does not lend, like those of most dma-bufs: the clock pages of every process
//! (`[vvar]`, vdso(7)), whose mapping has the same flags (`VM_PFNMAP`).

use mlx5_device::carrier::{Carrier as _, Inbound as _};
use mlx5_device::carrier::{Disposition, PathAddress, Payload};
use mlx5_device::memory::{Memory, Order, Segment};

use super::messages::{meet, segment};
use super::processes::{MTU, config, fabric_name, go_on, request};
use crate::dma::Host;
use crate::link::Link;

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

/// What a peer gets of the page.
fn send(a: &mut Link, b: &mut Link, page: u64) -> Vec<u8> {
    let target = vec![0xee; TIMES * PAGE as usize];
    let len = target.len() as u32;
    let mut sending = request(a, mlx5_device::first_qpn(b.slot()), roce::Opcode::Write, 7, 0x1000, len);
    let from = [Segment { addr: page, len: PAGE }; TIMES];
    let mut arrived = 0;
    while sending.payload.length > 0 {
        let sent = a.send_record(&sending, MTU, &PathAddress::default(), Payload::Segments(&from)).unwrap();
        go_on(&mut sending, sent.carried);
        a.ring_bells();
        while b.poll(1, |inbound| {
            let place = &target[arrived..][..inbound.packet.payload.length as usize];
            arrived += place.len();
            inbound.copy_into(&[segment(place)], Order::Increasing).unwrap();
            Disposition::Consumed
        }) == 0
        {}
        b.ring_bells();
    }
    target
}

#[test]
fn pages_that_the_kernel_lends_to_nobody_are_copied_by_their_owner() {
    let page = measure::need!(clock_page(), "a clock page of the kernel's");
    let host = Host::new().unwrap();
    let fabric = fabric_name();
    let mut a = Link::join(config(&fabric)).unwrap();
    let mut b = Link::join(config(&fabric)).unwrap();
    meet(&mut a, &mut b);
    let read = || {
        let mut bytes = vec![0; PAGE as usize];
        host.read(page, &mut bytes).map(|()| bytes).unwrap()
    };
    // The clock goes on: a page that was the same before and after was the same in between.
    let seen = (0..1000).any(|_| {
        let before = read();
        let arrived = send(&mut a, &mut b, page);
        let still = before == read();
        assert!(!still || arrived == before.repeat(TIMES));
        still
    });
    assert!(seen, "the page changes all the time");
}
