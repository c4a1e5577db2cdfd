//! Regions in dma-bufs, from the mapping to a peer's bytes; a memfd stands for the buffer.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use mlx5_device::command::RegMr;
use mlx5_device::commands::*;
use mlx5_layout::CqeSyndrome;
use roce::ServiceType;
use soft_nic::dma::DmaBuf;
use soft_nic::os::system::memfd;
use soft_nic::testing::{Driver, Region, WorkRequest, block};

use crate::operations::ALL;
use crate::withdrawn::{TwoNics, syndromes};

const SIZE: usize = 1 << 20;
/// Where the region begins in its buffer: inside of a page.
const OFFSET: u64 = 3 * 4096 + 0x40;
/// Address by which work requests name that byte: none that a program has.
const IOVA: u64 = 0x7700_0000_0000_0040;
const LEN: u32 = 300_000;

/// A buffer, and a region in it whose descriptor was closed at once.
fn region<M: mlx5_device::memory::Memory>(driver: &mut Driver<M>) -> (File, DmaBuf, Region) {
    let fd = memfd("dma-buf", SIZE).expect("a memfd");
    let behind = File::from(fd.try_clone().expect("a descriptor"));
    let mapped = DmaBuf::map(fd.as_raw_fd(), OFFSET, LEN.into(), true, |_| true).expect("a mapping");
    drop(fd);
    let request =
        RegMr { start: mapped.address(), length: LEN.into(), iova: IOVA, pd: driver.pd, access: ALL };
    let keys = driver.nic.reg_mr(driver.context, &request).expect("a region");
    // The block is not the region's memory: that is looked at through the file.
    let region =
        Region { block: block(64), address: IOVA, lkey: keys.lkey, rkey: keys.rkey, handle: keys.handle };
    (behind, mapped, region)
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..LEN).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8 ^ seed)).collect()
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; LEN as usize];
    file.read_exact_at(&mut bytes, OFFSET).expect("the buffer");
    bytes
}

#[test]
fn a_peer_writes_to_and_reads_from_a_dma_buf_by_its_iova() {
    let mut nics = TwoNics::new("dma-buf", ServiceType::Rc, |_| ());
    let (a, b) = nics.pair;
    let (file, _mapped, buffer) = region(&mut nics.far);
    let near = nics.near.region(LEN as usize, ALL);
    let bytes = pattern(1);
    near.block.write(0, &bytes);
    nics.near.post(a, &WorkRequest::write(&near, 0, LEN, &buffer, 0));
    nics.settle();
    assert_eq!(syndromes(&mut nics.near, a), [None]);
    assert!(contents(&file) == bytes, "written by the peer");
    // The exporter's own changes are seen by the next READ.
    let bytes = pattern(2);
    file.write_all_at(&bytes, OFFSET).expect("the buffer");
    nics.near.post(a, &WorkRequest::read(&near, 0, LEN, &buffer, 0));
    nics.settle();
    assert_eq!(syndromes(&mut nics.near, a), [None]);
    assert!(near.block.bytes(0, LEN as usize) == bytes, "read by the peer");
    // And as a source of its owner's WRITE.
    near.block.write(0, &vec![0; LEN as usize]);
    nics.far.post(b, &WorkRequest::write(&buffer, 0, LEN, &near, 0));
    nics.settle();
    assert_eq!(syndromes(&mut nics.far, b), [None]);
    assert!(near.block.bytes(0, LEN as usize) == bytes, "written by the owner");
    // An atomic, at an aligned word.
    file.write_all_at(&7_u64.to_ne_bytes(), OFFSET + 8).expect("the buffer");
    nics.near.post(a, &WorkRequest::fetch_add(&near, 0, (&buffer, 8), 5));
    nics.settle();
    assert_eq!(syndromes(&mut nics.near, a), [None]);
    assert_eq!(contents(&file)[8..16], 12_u64.to_ne_bytes());
}

#[test]
fn what_lies_outside_of_the_region_is_not_reached_even_where_the_buffer_goes_on() {
    for (name, at, len) in [("behind", u64::from(LEN) - 4, 8), ("before", 0_u64.wrapping_sub(8), 8)] {
        let mut nics = TwoNics::new(&format!("dma-buf-{name}"), ServiceType::Rc, |_| ());
        let (a, _) = nics.pair;
        let (file, _mapped, buffer) = region(&mut nics.far);
        let near = nics.near.region(64, ALL);
        near.fill(0, 64, 9);
        let outside = Region { address: IOVA.wrapping_add(at), ..buffer };
        nics.near.post(a, &WorkRequest::write(&near, 0, len, &outside, 0));
        nics.settle();
        assert_eq!(syndromes(&mut nics.near, a), [Some(CqeSyndrome::RemoteAccess)], "{name}");
        let mut whole = vec![0; SIZE];
        file.read_exact_at(&mut whole, 0).expect("the buffer");
        assert!(whole.iter().all(|byte| *byte == 0), "{name}");
    }
}

#[test]
fn a_deregistered_dma_buf_is_reached_no_more() {
    let mut nics = TwoNics::new("dma-buf-dereg", ServiceType::Rc, |_| ());
    let (a, _) = nics.pair;
    let (file, mapped, buffer) = region(&mut nics.far);
    let near = nics.near.region(64, ALL);
    near.fill(0, 64, 9);
    nics.far.nic.dereg_mr(nics.far.context, buffer.handle).expect("the region");
    drop(mapped);
    nics.near.post(a, &WorkRequest::write(&near, 0, 64, &buffer, 0));
    nics.settle();
    assert_eq!(syndromes(&mut nics.near, a), [Some(CqeSyndrome::RemoteAccess)]);
    assert!(contents(&file).iter().all(|byte| *byte == 0));
}
