//! Objects that change while in use: CQs that move to another ring, regions that are re-registered.

use mlx5_device::command::{CommandError, RegMr, ResizeCq};
use mlx5_device::commands::*;
use mlx5_device::errno;
use mlx5_device::rereg_change::{ACCESS, PD, TRANSLATION};
use mlx5_device::testing::{Block, CqId, CqShape, QpShape, WorkRequest};
use mlx5_layout::doorbell::ArmFor;
use mlx5_layout::{Cqe, CqeOpcode, CqeSyndrome, SendOpcode};

use crate::machine::{ALL, Driver, Setup, syndrome};

fn nop() -> WorkRequest {
    WorkRequest::new(SendOpcode::Nop)
}

fn resize(driver: &mut Driver, cq: CqId, request: &ResizeCq) -> Result<u32, CommandError> {
    driver.nic.resize_cq(driver.context, driver.cq(cq).handle, request)
}

/// A ring as libmlx5 initialises it.
fn ring(driver: &Driver, entries: u32, cqe_size: u32) -> Block {
    let ring = driver.block((entries * cqe_size) as usize);
    for entry in 1..=entries {
        ring.write((entry * cqe_size) as usize - 1, &[0xf0]);
    }
    ring
}

fn cqe_at(ring: &Block, entries: u32, cqe_size: u32, index: u32) -> Cqe<Vec<u8>> {
    let at = (index & (entries - 1)) * cqe_size;
    Cqe::in_slot(ring.bytes(at as usize, cqe_size as usize)).expect("a slot")
}

#[test]
fn a_resized_cq_says_so_in_the_old_ring_and_goes_on_in_the_new_one() {
    for (cqe_size, waiting, entries) in [(64, 0, 16), (64, 5, 64), (128, 7, 8), (64, 1, 2)] {
        let mut driver = Driver::new(Setup::new(&format!("resize-{cqe_size}-{waiting}-{entries}")));
        let cq = driver.create_cq(CqShape { entries: 32, cqe_size, ..CqShape::default() });
        let (a, _) = driver.pair(QpShape { send_cq: Some(cq), ..QpShape::default() });
        // Into the second lap, where the owner bit is the other one.
        for _ in 0..40 {
            driver.post(a, &nop()).settle();
            driver.poll_cq(cq).expect("a completion");
        }
        for _ in 0..waiting {
            driver.lay(a, &nop());
        }
        driver.ring_doorbell(a).settle();
        let new = ring(&driver, entries, cqe_size);
        let request = ResizeCq { cqe: entries - 1, cqe_size, buffer: new.address() };
        assert_eq!(resize(&mut driver, cq, &request), Ok(entries - 1));
        let old = driver.cq(cq).ring.clone();
        let end = 40 + waiting;
        let last = cqe_at(&old, 32, cqe_size, end);
        assert_eq!(last.opcode(), Some(CqeOpcode::ResizeCq));
        assert!(last.op_own().is_valid(end, 32), "of its lap");
        let before = old.bytes(0, old.len());
        // The library returns that CQE's index with those it carries over: as far as the new ring's room.
        let consumed = if entries > waiting + 2 { 40 + 1 } else { end + 1 };
        driver.cq(cq).record.write(0, &consumed.to_be_bytes());
        driver.post(a, &nop()).settle();
        let next = cqe_at(&new, entries, cqe_size, end + 1);
        assert_eq!((next.opcode(), next.wqe_counter()), (Some(CqeOpcode::Requester), end as u16));
        assert!(next.op_own().is_valid(end + 1, entries), "of the new ring's lap");
        assert_eq!(old.bytes(0, old.len()), before, "the old ring is the program's again");
        assert_eq!(driver.counters().cq_overruns, 0);
    }
}

#[test]
fn a_refused_resize_leaves_the_queue_as_it_was() {
    let mut driver = Driver::new(Setup::new("resize-refused"));
    let cq = driver.create_cq(CqShape { entries: 32, ..CqShape::default() });
    let (a, _) = driver.pair(QpShape { send_cq: Some(cq), ..QpShape::default() });
    for _ in 0..8 {
        driver.lay(a, &nop());
    }
    driver.ring_doorbell(a).settle();
    let new = ring(&driver, 64, 64);
    let good = ResizeCq { cqe: 63, cqe_size: 64, buffer: new.address() };
    for (name, request, errno) in [
        ("no entries", ResizeCq { cqe: 0, ..good }, errno::EINVAL),
        ("more than a CQ has", ResizeCq { cqe: 1 << 22, ..good }, errno::EINVAL),
        ("the most that a number holds", ResizeCq { cqe: u32::MAX, ..good }, errno::EINVAL),
        ("other CQEs", ResizeCq { cqe_size: 128, ..good }, errno::EINVAL),
        ("not aligned", ResizeCq { buffer: good.buffer + 8, ..good }, errno::EINVAL),
        ("no room for what waits", ResizeCq { cqe: 7, ..good }, errno::EINVAL),
        ("ring outside memory", ResizeCq { cqe: 127, ..good }, errno::EFAULT),
        ("ring nowhere", ResizeCq { buffer: 64, ..good }, errno::EFAULT),
    ] {
        assert_eq!(resize(&mut driver, cq, &request).unwrap_err().errno, errno, "{name}");
    }
    assert!(driver.nic.resize_cq(driver.context, 99, &good).is_err());
    assert_eq!(resize(&mut driver, cq, &ResizeCq { cqe: 20, ..good }), Ok(31), "nothing to do");
    driver.post(a, &nop()).settle();
    let counters: Vec<_> = std::iter::from_fn(|| driver.poll_cq(cq)).map(|cqe| cqe.wqe_counter()).collect();
    assert_eq!(counters, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn an_empty_queue_that_was_resized_tells_its_channel_of_nothing() {
    let mut driver = Driver::new(Setup::new("resize-event"));
    let cq = driver.create_cq(CqShape { channel: Some(4), ..CqShape::default() });
    let (a, _) = driver.pair(QpShape { send_cq: Some(cq), ..QpShape::default() });
    driver.post(a, &nop()).settle();
    driver.poll_cq(cq).expect("a completion, polled without an event");
    let new = ring(&driver, 16, 64);
    let request = ResizeCq { cqe: 15, cqe_size: 64, buffer: new.address() };
    resize(&mut driver, cq, &request).expect("room");
    driver.arm(cq, ArmFor::Any);
    driver.advance(5_000_000);
    assert_eq!(driver.sinks.take_completions(), []);
    driver.post(a, &nop()).settle();
    assert_eq!(driver.sinks.take_completions(), [(4, 0xc0_0000)]);
}

#[test]
fn a_region_registered_anew_is_what_it_is_now_under_the_key_it_had() {
    let mut driver = Driver::new(Setup::new("rereg"));
    let (from, region, other) =
        (driver.region(4096, ALL), driver.region(4096, ALL), driver.region(8192, ALL));
    let bytes = from.fill(0, 8, 9);
    let second = driver.nic.alloc_pd(driver.context).expect("a PD").handle;
    let to = RegMr { start: other.address, length: 8192, iova: other.address, pd: second, access: 1 };
    let (context, mr) = (driver.context, region.handle);
    let write = |driver: &mut Driver, at: u64| {
        let (a, b) = driver.pair(QpShape::default());
        let mut to = region.clone();
        to.address = at;
        driver.post(a, &WorkRequest::write(&from, 0, 8, &to, 0)).settle();
        let cqe = driver.poll_send(a).expect("a completion");
        let failed = cqe.opcode() == Some(CqeOpcode::RequesterError);
        driver.nic.destroy_qp(driver.context, driver.qp(b).handle).expect("the QP");
        if failed { syndrome(&cqe) } else { None }
    };
    let refused = Some(CqeSyndrome::RemoteAccess);
    assert_eq!(write(&mut driver, region.address), None);
    let keys = driver.nic.rereg_mr(context, mr, TRANSLATION, &to).expect("other memory");
    assert_eq!((keys.lkey, keys.rkey), (region.lkey, region.rkey));
    assert_eq!(write(&mut driver, region.address), refused, "where it was");
    assert_eq!(write(&mut driver, other.address + 8184), None, "the last bytes of where it is");
    assert_eq!(other.block.bytes(8184, 8), bytes);
    driver.nic.rereg_mr(context, mr, ACCESS, &to).expect("other rights");
    assert_eq!(write(&mut driver, other.address), refused);
    let back = RegMr { access: ALL, ..to };
    driver.nic.rereg_mr(context, mr, ACCESS | PD, &back).expect("another domain");
    assert_eq!(write(&mut driver, other.address), refused, "not the domain of the queue");
    let errno = |driver: &mut Driver, mr, flags, request: RegMr| {
        driver.nic.rereg_mr(context, mr, flags, &request).map_or_else(|error| error.errno, |_| 0)
    };
    assert_eq!(driver.nic.dealloc_pd(driver.context, second).unwrap_err().errno, errno::EBUSY);
    for (name, mr, flags, request, wanted) in [
        ("nothing", mr, 0, to, errno::EINVAL),
        ("unknown", mr, 1 << 3, to, errno::EOPNOTSUPP),
        ("no such region", 99, PD, to, errno::EINVAL),
        ("no such domain", mr, PD, RegMr { pd: 99, ..to }, errno::EINVAL),
        ("page offsets", mr, TRANSLATION, RegMr { iova: other.address + 8, ..to }, errno::EINVAL),
        ("nowhere", mr, TRANSLATION, RegMr { start: 4096, iova: 4096, ..to }, errno::EFAULT),
        ("rights", mr, ACCESS, RegMr { access: 1 << 1, ..to }, errno::EINVAL),
        ("rights that do not exist", mr, ACCESS, RegMr { access: 1 << 12, ..to }, errno::EINVAL),
        ("on demand", mr, ACCESS, RegMr { access: 1 << 6, ..to }, errno::EOPNOTSUPP),
    ] {
        assert_eq!(errno(&mut driver, mr, flags, request), wanted, "{name}");
    }
    let home = RegMr { pd: driver.pd, ..to };
    assert_eq!(errno(&mut driver, mr, PD, home), 0);
    assert_eq!(write(&mut driver, other.address), None, "what was refused changed nothing");
    driver.nic.dealloc_pd(driver.context, second).expect("nothing is left in it");
}
