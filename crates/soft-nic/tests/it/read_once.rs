//! INV-6: what an application can write, the device reads once, and then works on the copy.
//!
//! The memories here change on every read, as a GPU or another thread rewriting its queues would: code that
//! looks twice sees two different things, and the test sees a wrong message or a wrong count.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mlx5_device::memory::{Fault, Memory};
use mlx5_layout::{CqeOpcode, SendOpcode};
use soft_nic::dma::Host;
use soft_nic::testing::{Driver, QpShape, Setup, WorkRequest};

use crate::operations::{ALL, on_the_wire};

/// Ranges that are scribbled over once they were read, and how often each 16-byte unit was read since.
#[derive(Default)]
struct Watched {
    ranges: Vec<(u64, u64)>,
    reads: HashMap<u64, u32>,
    most: u32,
}

/// What a memory does after a read and to a loaded word; everything else is the process's own memory.
trait Reads: Send {
    /// `len` bytes at `addr` of `host` were just read.
    fn after_read(&self, _host: &Host, _addr: u64, _len: u64) -> Result<(), Fault> {
        Ok(())
    }

    /// The word at `addr` holds `value`: what the device gets.
    fn loaded(&self, _addr: u64, value: u32) -> u32 {
        value
    }
}

/// The process's memory with other reads.
struct ChangingMemory<R> {
    host: Host,
    reads: R,
}

impl<R: Reads> Memory for ChangingMemory<R> {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.host.read(addr, out)?;
        self.reads.after_read(&self.host, addr, out.len() as u64)
    }
    fn load32(&self, addr: u64) -> Result<u32, Fault> {
        Ok(self.reads.loaded(addr, self.host.load32(addr)?))
    }
    fn store32(&self, addr: u64, value: u32) -> Result<(), Fault> {
        self.host.store32(addr, value)
    }
    fn write(&self, addr: u64, bytes: &[u8], relaxed: bool) -> Result<(), Fault> {
        self.host.write(addr, bytes, relaxed)
    }
    fn compare_swap32(&self, addr: u64, compare: u32, swap: u32) -> Result<u32, Fault> {
        self.host.compare_swap32(addr, compare, swap)
    }
    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.host.compare_swap64(addr, compare, swap)
    }
    fn fetch_add64(&self, addr: u64, add: u64) -> Result<u64, Fault> {
        self.host.fetch_add64(addr, add)
    }
    fn probe(&self, addr: u64, len: u64, write: bool) -> Result<(), Fault> {
        self.host.probe(addr, len, write)
    }
}

/// Watched ranges change on every read.
struct ChangingRanges(Arc<Mutex<Watched>>);

impl Reads for ChangingRanges {
    fn after_read(&self, host: &Host, addr: u64, len: u64) -> Result<(), Fault> {
        let mut watched = self.0.lock().expect("one thread");
        if !watched.ranges.iter().any(|(start, bytes)| addr >= *start && addr < start + bytes) {
            return Ok(());
        }
        for unit in (addr..addr + len).step_by(16) {
            let reads = watched.reads.entry(unit).or_default();
            *reads += 1;
            let now = *reads;
            watched.most = watched.most.max(now);
        }
        // All ones: a length, an opcode and keys that no check lets through.
        host.write(addr, &vec![0xff; len as usize], true)
    }
}

#[test]
fn read_once_wqes_that_change_behind_the_read_are_executed_as_they_were() {
    let watched = Arc::new(Mutex::new(Watched::default()));
    let setup = Setup::new("read-once");
    let memory = ChangingMemory { host: setup.memory, reads: ChangingRanges(watched.clone()) };
    let mut driver = Driver::new(setup.with_memory(memory));
    let (a, b) = driver.pair(QpShape { sq_blocks: 16, rq_entries: 8, ..QpShape::default() });
    for qp in [a, b] {
        let ring = &driver.qp(qp).ring;
        let range = (ring.address(), ring.len() as u64);
        watched.lock().expect("one thread").ranges.push(range);
    }
    let (from, to) = (driver.region(1 << 16, ALL), driver.region(1 << 16, ALL));
    for round in 0..200u32 {
        watched.lock().expect("one thread").reads.clear();
        let bytes = from.fill(0, 1 << 16, round as u8);
        let len = [1, 100, 5000, 40_000][round as usize % 4];
        let inline: Vec<u8> = (0..200).map(|i| (i + round) as u8).collect();
        let (request, at, wanted) = match round % 5 {
            0 => (WorkRequest::send(&from, 0, len), 0, &bytes[..len as usize]),
            1 => (WorkRequest::send(&from, 0, 3).pointer(&from, 3, len), 0, &bytes[..len as usize + 3]),
            2 => (WorkRequest::write(&from, 0, len, &to, 0).immediate([1; 4]), 0, &bytes[..len as usize]),
            3 => (WorkRequest::new(SendOpcode::Send).inline(&inline), 0, &inline[..]),
            _ => (WorkRequest::new(SendOpcode::RdmaWriteImm).remote(&to, 0).inline(&inline), 0, &inline[..]),
        };
        driver.post_receive(b, &[to.pointer(0, 1000), to.pointer(1000, 64_000)]);
        driver.post(a, &request).settle();
        let done = driver.poll_send(a).unwrap_or_else(|| panic!("round {round}: no completion"));
        assert_eq!(
            (done.opcode(), done.send_opcode()),
            (Some(CqeOpcode::Requester), request.opcode.to_u8()),
            "{round}"
        );
        assert!(
            driver.poll_receive(b).is_some_and(|cqe| cqe.byte_count() as usize == wanted.len()),
            "round {round}"
        );
        assert!(to.block.bytes(at, wanted.len()) == wanted, "round {round}: other bytes");
        assert_eq!(watched.lock().expect("one thread").most, 1, "round {round}: a WQE was read twice");
    }
}

#[test]
fn read_once_also_when_a_message_is_sent_again() {
    let watched = Arc::new(Mutex::new(Watched::default()));
    let setup = Setup::new("read-once-again");
    let memory = ChangingMemory { host: setup.memory, reads: ChangingRanges(watched.clone()) };
    let mut driver = Driver::new(setup.with_memory(memory));
    let (a, b) = driver.pair(QpShape::default());
    let ring = &driver.qp(a).ring;
    let range = (ring.address(), ring.len() as u64);
    watched.lock().expect("one thread").ranges.push(range);
    let to = driver.region(4096, ALL);
    // No receive yet: RNR, and the message comes again from what was read.
    driver.post(a, &WorkRequest::new(SendOpcode::SendImm).inline(&[7; 300]).immediate([4, 3, 2, 1]));
    driver.advance(5_000_000);
    assert!(driver.counters().retransmissions > 0);
    driver.post_receive(b, &[to.pointer(0, 4096)]).advance(5_000_000);
    let cqe = driver.poll_receive(b).expect("a receive completion");
    assert_eq!((cqe.immediate(), cqe.byte_count()), ([4, 3, 2, 1], 300));
    assert_eq!(to.block.bytes(0, 300), [7; 300]);
    assert_eq!(watched.lock().expect("one thread").most, 1);
}

/// A header in the WQE and memory beside it, as UCX sends them: the WQE is not read again, however often the
/// message is sent and whichever way it takes.
#[test]
fn read_once_also_of_inline_bytes_beside_memory_in_a_message_that_is_sent_again() {
    for (name, setup) in [("once-mixed", Setup::new("once-mixed")), ("once-wire", on_the_wire("once-wire"))] {
        let watched = Arc::new(Mutex::new(Watched::default()));
        let memory = ChangingMemory { host: setup.memory, reads: ChangingRanges(watched.clone()) };
        let mut driver = Driver::new(setup.with_memory(memory));
        // A WQE takes three blocks: one in four lies across the end of the ring.
        let (a, b) = driver.pair(QpShape { sq_blocks: 8, ..QpShape::default() });
        let (from, to) = (driver.region(1 << 16, ALL), driver.region(1 << 16, ALL));
        let ring = &driver.qp(a).ring;
        let range = (ring.address(), ring.len() as u64);
        watched.lock().expect("one thread").ranges.push(range);
        for (round, len) in [8u32, 300, 4000, 40_000].into_iter().cycle().take(8).enumerate() {
            let what = format!("{name}, round {round}, {len} bytes");
            watched.lock().expect("one thread").reads.clear();
            let bytes = from.fill(0, len as usize, round as u8);
            let header: Vec<u8> = (0..90).map(|i| i ^ round as u8).collect();
            let send = WorkRequest::new(SendOpcode::Send);
            let (send, wanted) = match round % 2 {
                0 => (send.inline(&header).pointer(&from, 0, len), [&header[..], &bytes].concat()),
                _ => (send.pointer(&from, 0, len).inline(&header), [&bytes[..], &header].concat()),
            };
            // No receive yet: RNR.
            let before = driver.counters().retransmissions;
            driver.post(a, &send).advance(5_000_000);
            assert!(driver.counters().retransmissions > before, "{what}: it was to be sent again");
            driver.post_receive(b, &[to.pointer(0, 1 << 16)]).advance(5_000_000);
            let length = driver.poll_receive(b).map(|cqe| cqe.byte_count() as usize);
            assert_eq!(length, Some(wanted.len()), "{what}");
            assert!(to.block.bytes(0, wanted.len()) == wanted, "{what}: other bytes");
            assert!(driver.poll_send(a).is_some(), "{what}");
            assert_eq!(watched.lock().expect("one thread").most, 1, "{what}: the WQE was read twice");
        }
    }
}

/// The words of records say something else on every second look.
struct ChangingRecords {
    records: Arc<Mutex<Vec<u64>>>,
    looks: Mutex<u32>,
}

impl Reads for ChangingRecords {
    fn loaded(&self, addr: u64, value: u32) -> u32 {
        if !self.records.lock().expect("one thread").contains(&addr) {
            return value;
        }
        let mut looks = self.looks.lock().expect("one thread");
        *looks = looks.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let counter = u32::from_be(value);
        // The truth, older truths, and records beyond the ring.
        match *looks >> 29 {
            0 => counter.wrapping_add(0x4000),
            1 => counter.wrapping_sub(1),
            2 => 0xffff_ffff,
            _ => counter,
        }
        .to_be()
    }
}

#[test]
fn read_once_records_never_lead_past_what_was_posted() {
    let records = Arc::new(Mutex::new(Vec::new()));
    let setup = Setup::new("changing").with(|c| c.strict = false);
    let reads = ChangingRecords { records: records.clone(), looks: Mutex::new(1) };
    let memory = ChangingMemory { host: setup.memory, reads };
    let mut driver = Driver::new(setup.with_memory(memory));
    let (a, b) = driver.pair(QpShape { sq_blocks: 16, rq_entries: 8, ..QpShape::default() });
    for qp in [a, b] {
        let address = driver.qp(qp).record.address();
        records.lock().expect("one thread").extend([address, address + 4]);
    }
    let region = driver.region(4096, ALL);
    for round in 0..2000u32 {
        driver.post_receive(b, &[region.pointer(0, 64)]);
        let request = WorkRequest::send(&region, 64, 8).immediate(round.to_be_bytes());
        driver.lay(a, &request).write_record(a);
        // In shares of a millisecond: a receive that was not seen is RNR, and comes again.
        let mut waits = 0;
        while driver.peek_cq(driver.qp(b).recv_cq).is_none() {
            driver.advance(100_000);
            waits += 1;
            assert!(waits < 1000, "round {round} never arrives");
        }
        let cqe = driver.poll_receive(b).expect("just seen");
        assert_eq!((cqe.immediate(), cqe.opcode()), (round.to_be_bytes(), Some(CqeOpcode::ResponderSendImm)));
        driver.advance(100_000);
        assert!(driver.poll_receive(b).is_none(), "round {round} came twice");
        while let Some(done) = driver.poll_send(a) {
            assert_eq!(done.opcode(), Some(CqeOpcode::Requester), "round {round}");
        }
    }
}
