//! What idle queues cost: bytes of NIC memory for each, and ns that the background walk takes to pass one.
//!
//! `cargo run --release -p soft-nic --example idle_queues -- 10000` prints one line of JSON. The program
//! makes rings and records before it counts anything. As in libmlx5, a record has a cache line, 64 to a page.

use std::time::Instant;

use mlx5_device::UarKind;
use mlx5_device::command::{CreateQp, ModifyQp, QpCap};
use mlx5_device::commands::*;
use roce::{Now, ServiceType};
use soft_nic::dma::Host;
use soft_nic::testing::{CqShape, Driver, RegisterPage, Setup, block, transitions};

/// `MLX5_QP_FLAG_UAR_PAGE_INDEX` (`mlx5-abi.h`).
const USES_PAGE_INDEX: u32 = 1 << 10;

/// As many as a device has.
const MAX_QUEUES: usize = 16_000;

/// Of each of the two rings.
const RING_BYTES: usize = 4096;

/// The background walk has been round once.
const ROUND_NS: u64 = 500_000;

/// Walks that are timed.
const WALKS: u32 = 400;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages: u64 = statm.split_whitespace().nth(1).expect("the second field").parse().expect("a number");
    // Both are the kernel's, which counts in pages of 4 KiB on x86-64.
    pages * 4096
}

/// Makes a queue that is connected to itself, in RTS.
fn make(driver: &mut Driver<Host>, request: &CreateQp) {
    let created = driver.nic.create_qp(driver.context, request).expect("a QP");
    let attributes = driver.attributes(created.qpn);
    for (state, mask) in transitions(ServiceType::Rc) {
        let change = ModifyQp { state, mask, ..attributes };
        driver.nic.modify_qp(driver.context, created.handle, &change).expect("the QP moves");
    }
}

/// ns for the walk to go round once, and for all else that is in such a round: the median of [`WALKS`].
fn walk(driver: &mut Driver<Host>) -> f64 {
    let mut times: Vec<u64> = (0..WALKS)
        .map(|_| {
            driver.now += ROUND_NS;
            let (begun, now) = (Instant::now(), Now(driver.now));
            driver.nic.poll(now);
            begun.elapsed().as_nanos() as u64
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2] as f64
}

fn main() {
    let asked = std::env::args().nth(1).map_or(Ok(10_000), |text| text.parse());
    let Ok(queues @ 1..=MAX_QUEUES) = asked else {
        eprintln!("idle_queues: how many queues? 1 to {MAX_QUEUES}");
        std::process::exit(2);
    };
    let mut driver = Driver::new(Setup::new("idle-queues"));
    let cq = driver.create_cq(CqShape::default());
    let cq = driver.cq(cq).handle;
    let page = Box::new(RegisterPage::default());
    let page = driver.nic.alloc_uar(driver.context, UarKind::BlueFlame, page).expect("a UAR page").number;
    // Nothing is ever posted: one ring does for all.
    let ring = block(2 * RING_BYTES);
    let records = block(64 * queues);
    records.write(0, &vec![0; 64 * queues]);
    let shared = CreateQp {
        service: ServiceType::Rc,
        pd: driver.pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap: QpCap::default(),
        user_handle: 0,
        signal_all: false,
        buffer: ring.address(),
        record: records.address(),
        sq_wqe_count: (RING_BYTES / 64) as u32,
        rq_wqe_count: (RING_BYTES / 64) as u32,
        rq_wqe_shift: 6,
        mlx5_flags: USES_PAGE_INDEX,
        user_index: 0,
        uar_page: Some(page),
    };
    let without = walk(&mut driver);
    let before = resident_bytes();
    for queue in 0..queues as u64 {
        make(&mut driver, &CreateQp { record: shared.record + 64 * queue, ..shared });
    }
    let bytes = resident_bytes().saturating_sub(before) as f64 / queues as f64;
    // They were hot when they were made.
    driver.advance(10_000_000);
    let scan_ns = (walk(&mut driver) - without).max(0.0) / queues as f64;
    println!(
        "{{\"kind\":\"idle-queues\",\"queues\":{queues},\"bytes_each\":{bytes:.1},\"scan_ns_each\":{scan_ns:.3}}}"
    );
}
