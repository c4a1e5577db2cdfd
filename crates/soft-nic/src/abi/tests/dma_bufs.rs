//! MR.REG_DMABUF_MR as libibverbs 44 sends it (`ibv_cmd_reg_dmabuf_mr`); a memfd stands in for the dma-buf.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use mlx5_device::memory::Memory;

use super::super::backing::Backing;
use super::{Bench, Call};
use crate::config::Config;
use crate::dma::Host;
use crate::os::system::memfd;

const SIZE: u64 = 4 * 4096;
/// Local and remote writes, remote reads, atomics.
const ALL: u32 = 0xf;

fn any(_: &OwnedFd) -> bool {
    true
}

fn bench() -> Bench {
    let mut bench = Bench::open(&Config::default());
    bench.server.is_dma_buf = any;
    bench
}

fn call(fd: i32, offset: u64, length: u64, iova: u64, access: u32) -> Call {
    Call::new(7, 4)
        .handle(0, 0)
        .handle(1, 4)
        .input(2, &offset.to_ne_bytes())
        .input(3, &length.to_ne_bytes())
        .input(4, &iova.to_ne_bytes())
        .input(5, &fd.to_ne_bytes())
        .input(6, &access.to_ne_bytes())
        .output(7, 4)
        .output(8, 4)
}

/// Address that the device was told, of the only command since the last look.
fn start(bench: &Bench) -> u64 {
    let asked = bench.asked();
    let [line] = &asked[..] else { panic!("{asked:?}") };
    let start = line.split("start: ").nth(1).and_then(|rest| rest.split(',').next()).expect(line);
    u64::from_str_radix(start, 16).expect(line)
}

fn address_of(bench: &Bench) -> u64 {
    match &bench.file.backing[&5] {
        Backing::DmaBuf(buffer) => buffer.address(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dma_buf_is_mapped_and_registered_under_its_iova_until_it_is_deregistered() {
    let host = Host::new().unwrap();
    let deregistrations = [
        ("MR.DESTROY", Call::new(7, 1).handle(0, 5)),
        ("REREG_MR of its translation", {
            let mut request = [0; 48];
            (request[8], request[12]) = (5, 1);
            Call::write(0xb).input(0, &request).output(1, 8)
        }),
    ];
    for (name, mut deregistration) in deregistrations {
        let mut bench = bench();
        let file = File::from(memfd("dma-buf", SIZE as usize).unwrap());
        file.write_all_at(b"far away", 4096 + 24).unwrap();
        let mut call = call(file.as_raw_fd(), 4096 + 24, 4096, 0x7_0000_0000_0018, ALL);
        call.run(&mut bench).unwrap();
        assert_eq!(
            (call.attribute(0).1, call.result(7), call.result(8)),
            (5, &[0, 5, 0, 0][..], &[1, 5, 0, 0][..])
        );
        let asked = bench.asked().concat();
        assert!(asked.contains("length: 1000, iova: 7000000000018, pd: 4, access: f"), "{asked}");
        let address = address_of(&bench);
        assert!(asked.contains(&format!("start: {address:x},")), "{asked}");
        let mut found = [0; 8];
        host.read(address, &mut found).unwrap();
        assert_eq!(&found, b"far away");
        deregistration.run(&mut bench).unwrap();
        assert!(bench.file.backing.is_empty(), "{name}");
    }
}

#[test]
fn a_region_that_only_changes_its_rights_keeps_its_buffer() {
    let mut bench = bench();
    let fd = memfd("dma-buf", SIZE as usize).unwrap();
    call(fd.as_raw_fd(), 0, 4096, 0, ALL).run(&mut bench).unwrap();
    let mut request = [0; 48];
    (request[8], request[12]) = (5, 4);
    Call::write(0xb).input(0, &request).output(1, 8).run(&mut bench).unwrap();
    assert_eq!(bench.file.backing.len(), 1);
}

#[test]
fn what_a_kernel_refuses_is_refused_with_its_errno_and_nothing_stays_mapped() {
    let mut bench = bench();
    let fd = memfd("dma-buf", SIZE as usize).unwrap();
    let raw = fd.as_raw_fd();
    for (name, mut call, errno) in [
        ("a descriptor that is not open", call(0x3fff_fff0, 0, 4096, 0, ALL), libc::EBADF),
        ("no descriptor", call(-1, 0, 4096, 0, ALL), libc::EBADF),
        ("one byte too many", call(raw, 0, SIZE + 1, 0, ALL), libc::EINVAL),
        ("an offset behind the end", call(raw, SIZE, 4096, 0, ALL), libc::EINVAL),
        ("a length that wraps", call(raw, 4096, u64::MAX - 10, 0, ALL), libc::EINVAL),
        ("nothing", call(raw, 0, 0, 0, ALL), libc::EINVAL),
        ("an iova at another place in its page", call(raw, 0, 4096, 8, ALL), libc::EINVAL),
        ("remote writes without local ones", call(raw, 0, 4096, 0, 2), libc::EINVAL),
        ("windows", call(raw, 0, 4096, 0, 1 << 4), libc::EINVAL),
        ("zero-based", call(raw, 0, 4096, 0, 1 << 5), libc::EINVAL),
        ("on-demand paging", call(raw, 0, 4096, 0, 1 << 6), libc::EINVAL),
        ("an access flag of nobody", call(raw, 0, 4096, 0, 1 << 31), libc::EINVAL),
        ("an optional flag that is not relaxed ordering", call(raw, 0, 4096, 0, 1 << 21), libc::EINVAL),
        ("no domain", Call::new(7, 4).handle(0, 0), libc::EINVAL),
    ] {
        assert_eq!(call.run(&mut bench), Err(errno), "{name}");
        assert_eq!(bench.asked(), [] as [&str; 0], "{name}");
    }
    bench.server.is_dma_buf = crate::dma::dma_buf::is_dma_buf;
    assert_eq!(call(raw, 0, 4096, 0, ALL).run(&mut bench), Err(libc::EINVAL), "a memfd as what it is");
    bench.server.is_dma_buf = any;
    bench.device().refusal = Some(libc::ENOMEM);
    assert_eq!(call(raw, 0, 4096, 0, ALL).run(&mut bench), Err(libc::ENOMEM), "the device has no room");
    bench.device().refusal = None;
    let mut unwritable = call(raw, 0, 4096, 0, ALL).without(8).raw(8, 4, 1, 0, 0x10);
    bench.asked();
    assert_eq!(unwritable.run(&mut bench), Err(libc::EFAULT), "the answer cannot be written");
    let asked = bench.asked();
    assert_eq!(asked.last().map(String::as_str), Some("dereg_mr 5"), "{asked:?}");
    assert!(bench.file.backing.is_empty());
}

#[test]
fn a_buffer_that_cannot_be_mapped_is_refused_every_time_and_counted() {
    let mut bench = bench();
    // Opened for reading alone, it cannot be mapped for the NIC to write to.
    let fd = memfd("dma-buf", SIZE as usize).unwrap();
    let readable = File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    for _ in 0..2 {
        let refused = call(readable.as_raw_fd(), 0, 4096, 0, ALL).run(&mut bench);
        assert_eq!(refused, Err(libc::EOPNOTSUPP));
    }
    assert_eq!(bench.asked(), [] as [&str; 0]);
    let refused = bench.server.events.1.refusals();
    let [(name, 2)] = &refused[..] else { panic!("{refused:?}") };
    assert!(name.starts_with("MR.REG_DMABUF_MR: its exporter lets no program map it"), "{name}");
    call(readable.as_raw_fd(), 0, 4096, 0x5000, 4).run(&mut bench).unwrap();
    assert_ne!(start(&bench), 0);
}
