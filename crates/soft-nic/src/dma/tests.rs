//! Tests of guarded access: every way to fault comes back as a value, and everything else stays as it was.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mlx5_device::memory::{Fault, Memory, Order, Registers, Segment, Segments};

use super::Host;
use super::guard::last_word;
use super::testing::{is_leased, lease};
use crate::os::testing::true_in_fork_child;
use crate::os::{DevicePages, UarPage, fork_generation, system};

const PAGE: u64 = system::PAGE as u64;

/// Three pages of which the middle one is usable, as `access` says; the outer two fault.
struct GuardedPage {
    base: u64,
}

impl GuardedPage {
    fn new(access: i32) -> GuardedPage {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), 3 * PAGE as usize, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let page = GuardedPage { base: base as u64 };
        page.protect(access);
        page
    }

    fn protect(&self, access: i32) {
        // SAFETY: our own mapping.
        assert_eq!(unsafe { libc::mprotect(self.start() as *mut _, PAGE as usize, access) }, 0);
    }

    fn start(&self) -> u64 {
        self.base + PAGE
    }

    fn end(&self) -> u64 {
        self.base + 2 * PAGE
    }
}

impl Drop for GuardedPage {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.base as *mut _, 3 * PAGE as usize) };
    }
}

const READ: i32 = libc::PROT_READ;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

#[test]
fn every_access_to_unmapped_memory_is_a_fault_with_its_address() {
    let host = Host::new().unwrap();
    let page = GuardedPage::new(BOTH);
    let gap = page.end();
    let buffer = [0u8; 64];
    for (name, result, addr) in [
        ("load", host.load32(gap).map(|_| ()), gap),
        ("store", host.store32(gap + 4, 1), gap + 4),
        ("read", host.read(gap - 16, &mut [0; 64]), gap),
        ("read of one byte", host.read(gap, &mut [0; 1]), gap),
        ("write", host.write(gap - 32, &buffer, false), gap),
        ("relaxed write", host.write(gap - 32, &buffer, true), gap),
        ("write of a word", host.write(gap, &buffer[..8], false), gap),
        ("compare and swap, 32 bits", host.compare_swap32(gap, 0, 1).map(|_| ()), gap),
        ("compare and swap, 64 bits", host.compare_swap64(gap, 0, 1).map(|_| ()), gap),
        ("fetch and add", host.fetch_add64(gap, 1).map(|_| ()), gap),
        ("null", host.load32(0).map(|_| ()), 0),
        ("beyond the address space", host.load32(0x8000_0000_0000_0000).map(|_| ()), 0x8000_0000_0000_0000),
        ("misaligned load", host.load32(page.start() + 2).map(|_| ()), page.start() + 2),
        ("misaligned atomic", host.fetch_add64(page.start() + 4, 1).map(|_| ()), page.start() + 4),
    ] {
        assert_eq!(result, Err(Fault { addr }), "{name}");
    }
    page.protect(READ);
    for (name, result) in [
        ("store", host.store32(page.start(), 1)),
        ("write", host.write(page.start(), &buffer, false)),
        ("atomic", host.fetch_add64(page.start(), 1).map(|_| ())),
    ] {
        assert_eq!(result, Err(Fault { addr: page.start() }), "{name} to a read-only page");
    }
    assert_eq!(host.load32(page.start()), Ok(0), "what may be read still is");
}

#[test]
fn a_file_that_shrank_under_its_mapping_is_a_fault() {
    let host = Host::new().unwrap();
    // SAFETY: a C string literal.
    let fd = unsafe { libc::memfd_create(c"shrinks".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: our own descriptor.
    assert_eq!(unsafe { libc::ftruncate(fd, PAGE as i64) }, 0);
    // SAFETY: a fresh mapping of our own file.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE as usize, BOTH, libc::MAP_SHARED, fd, 0) } as u64;
    assert_eq!(host.store32(at, 7), Ok(()));
    // SAFETY: our own descriptor.
    assert_eq!(unsafe { libc::ftruncate(fd, 0) }, 0);
    // SIGBUS, where the others get SIGSEGV.
    assert_eq!(host.load32(at), Err(Fault { addr: at }));
    assert_eq!(host.probe(at, 8, true), Err(Fault { addr: at }));
    // SAFETY: our own mapping.
    unsafe { libc::munmap(at as *mut _, PAGE as usize) };
    // SAFETY: our own descriptor.
    unsafe { libc::close(fd) };
}

#[test]
fn copies_of_every_alignment_and_length_touch_their_bytes_and_no_others() {
    let host = Host::new().unwrap();
    let source: Vec<u8> = (0..300u32).map(|i| (i * 31 % 251) as u8 + 1).collect();
    let page = GuardedPage::new(BOTH);
    for from in [0, 1, 3, 7, 8] {
        for to in 0..24 {
            for len in (0..90).chain([127, 128, 129, 200]) {
                for relaxed in [false, true] {
                    let mut target = [0u8; 300];
                    let bytes = &source[from..from + len];
                    host.write(target.as_mut_ptr() as u64 + to as u64, bytes, relaxed).unwrap();
                    assert_eq!(
                        &target[to..to + len],
                        bytes,
                        "from {from} to {to} length {len} relaxed {relaxed}"
                    );
                    let others = target[..to].iter().chain(&target[to + len..]);
                    assert!(
                        others.copied().all(|b| b == 0),
                        "from {from} to {to} length {len} relaxed {relaxed}"
                    );
                }
                let mut out = vec![0; len];
                // Up to the last byte before a page that faults, so one byte too many would be seen.
                host.write(page.end() - len as u64, &source[..len], false).unwrap();
                host.read(page.end() - len as u64, &mut out).unwrap();
                assert_eq!(out, source[..len], "length {len} at the end of a page");
            }
        }
    }
}

#[test]
fn an_increasing_copy_of_any_length_stores_aligned_pieces() {
    let host = Host::new().unwrap();
    let page = GuardedPage::new(BOTH);
    let text: Vec<u8> = (0..PAGE).map(|i| (i % 251) as u8 + 1).collect();
    host.write(page.start(), &text, false).unwrap();
    // The source ends amid 16 bytes: a copy of whole pieces stops before, a string copy at the last byte.
    for (missing, len) in [(13, 512), (501, 1024), (1001, 4000)] {
        let from = page.end() - (len - missing);
        for (order, ordered) in [(Order::Increasing, true), (Order::Relaxed, false)] {
            let target = vec![0u128; 256];
            let to = target.as_ptr() as u64;
            let copied = host.copy(&[Segment { addr: to, len }], &[Segment { addr: from, len }], len, order);
            assert_eq!(copied, Err(Fault { addr: page.end() }), "{order:?} {len}");
            let stored = target.iter().flat_map(|piece| piece.to_ne_bytes()).take_while(|byte| *byte != 0);
            let stored = stored.count() as u64;
            assert_eq!(stored == len - missing, !ordered, "{order:?}: {stored} of {len}");
            assert!(!ordered || stored.is_multiple_of(8), "{stored} of {len}");
        }
    }
}

#[test]
fn what_a_peer_names_and_is_no_memfd_is_not_opened_and_a_leased_memfd_is_not_waited_for() {
    let path = |file: &dyn AsRawFd| format!("/proc/self/fd/{}", file.as_raw_fd());
    let memfd = system::memfd("softnic-test", PAGE as usize).unwrap();
    let holder = system::open_memfd(&path(&memfd)).unwrap();
    lease(&holder).expect("shared memory knows leases");
    let since = Instant::now();
    let refused = system::open_memfd(&path(&memfd)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::WouldBlock);
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    let name = std::env::temp_dir().join(format!("softnic-test-lease-{}", std::process::id()));
    let open = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&name);
    let file = open.unwrap();
    std::fs::remove_file(&name).unwrap();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let is_leased_now = lease(&file).is_ok();
    measure::need!(is_leased_now, "leases in the folder of temporary files");
    for other in [&file as &dyn AsRawFd, &ours] {
        let refused = system::open_memfd(&path(other)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    }
    assert!(is_leased(&file), "nobody asked its holder to give it up");
}

#[test]
fn the_last_word_is_the_widest_aligned_one_that_fits() {
    for (addr, len, word) in [
        (0, 8, 8),
        (0, 64, 8),
        (4, 4, 4),
        (4, 12, 8),
        (2, 2, 2),
        (0, 3, 1),
        (0, 6, 2),
        (8, 4, 4),
        (1, 1, 1),
        (6, 10, 8),
    ] {
        assert_eq!(last_word(addr, len), word, "{len} bytes at {addr}");
    }
}

#[test]
fn scattered_copies_cross_segments_of_both_sides() {
    let host = Host::new().unwrap();
    let source: Vec<u8> = (0..=255).collect();
    let target = vec![0u8; 256];
    let cut = |bytes: &[u8], sizes: &[usize]| {
        let mut at = bytes.as_ptr() as u64;
        let mut list = Vec::new();
        for size in sizes {
            list.push(Segment { addr: at, len: *size as u64 });
            at += *size as u64;
        }
        list
    };
    for order in [Order::Increasing, Order::Relaxed] {
        host.copy(&cut(&target, &[1, 0, 100, 155]), &cut(&source, &[64, 64, 0, 128]), 256, order).unwrap();
        assert_eq!(target, source);
    }
    let short = host.copy(&cut(&target, &[10]), &cut(&source, &[20]), 20, Order::Increasing);
    assert!(short.is_err(), "a target shorter than the message is refused");
}

#[test]
fn a_walk_over_segments_skips_and_cuts() {
    let segments = [(100, 10), (200, 0), (300, 5)].map(|(addr, len)| Segment { addr, len });
    let mut walk = Segments::new(&segments);
    assert_eq!(walk.peek(4), Some(Segment { addr: 100, len: 4 }));
    walk.advance(10);
    assert_eq!(walk.peek(100), Some(Segment { addr: 300, len: 5 }));
    walk.advance(4);
    assert_eq!(walk.peek(100), Some(Segment { addr: 304, len: 1 }));
    walk.advance(100);
    assert_eq!(walk.peek(100), None);
}

#[test]
fn atomics_return_what_was_there() {
    let host = Host::new().unwrap();
    let word = AtomicU64::new(u64::MAX);
    let at = word.as_ptr() as u64;
    assert_eq!(host.fetch_add64(at, 3), Ok(u64::MAX));
    assert_eq!(host.compare_swap64(at, 2, 9), Ok(2));
    assert_eq!(host.compare_swap64(at, 2, 10), Ok(9));
    assert_eq!(host.compare_swap32(at, 9, 11), Ok(9));
    assert_eq!(word.load(Ordering::Relaxed), 11);
}

#[test]
fn a_probe_tells_what_a_device_could_pin_and_changes_no_byte() {
    let host = Host::new().unwrap();
    let page = GuardedPage::new(BOTH);
    let text: Vec<u8> = (0..PAGE).map(|i| i as u8).collect();
    host.write(page.start(), &text, false).unwrap();
    let whole = (page.start(), PAGE);
    for (name, (addr, len), write, good) in [
        ("whole page", whole, true, true),
        ("one byte", (page.start() + 5, 1), true, true),
        ("nothing", (page.start(), 0), true, true),
        ("into the gap", (page.start(), PAGE + 1), false, false),
        ("before it", (page.start() - 1, 2), false, false),
        ("round the end of the addresses", (u64::MAX - 5, 10), false, false),
    ] {
        assert_eq!(host.probe(addr, len, write).is_ok(), good, "{name}");
    }
    page.protect(READ);
    assert!(host.probe(whole.0, whole.1, false).is_ok(), "a read-only page can be read");
    assert!(host.probe(whole.0, whole.1, true).is_err(), "and not written");
    let mut now = vec![0; PAGE as usize];
    host.read(page.start(), &mut now).unwrap();
    assert_eq!(now, text);
}

#[test]
fn a_probe_beside_a_writing_thread_loses_no_store() {
    let host = Host::new().unwrap();
    let word = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..200_000).for_each(|i| word.store(i, Ordering::Relaxed)));
        for _ in 0..2_000 {
            host.probe(word.as_ptr() as u64, 8, true).unwrap();
        }
    });
    assert_eq!(word.load(Ordering::Relaxed), 199_999);
}

#[test]
fn two_equal_doorbells_are_two_and_an_idle_register_is_none() {
    let pages = std::sync::Arc::new(DevicePages::new().unwrap());
    let page = UarPage::new(&pages).unwrap();
    // The application's own mapping of the page.
    let fd = std::os::fd::AsRawFd::as_raw_fd(&pages.fd());
    let at = page.offset() as libc::off_t;
    // SAFETY: a fresh mapping of the page.
    let app = unsafe { libc::mmap(std::ptr::null_mut(), PAGE as usize, BOTH, libc::MAP_SHARED, fd, at) };
    assert_ne!(app, libc::MAP_FAILED);
    // SAFETY: within the page.
    let register = unsafe { app.byte_add(0x800) };
    // SAFETY: aligned, mapped until the end of this test; both sides use atomics.
    let register = unsafe { AtomicU64::from_ptr(register.cast()) };
    for _ in 0..2 {
        register.store(u64::from_be_bytes([1, 2, 3, 4, 5, 6, 7, 8]).to_be(), Ordering::Release);
        assert_eq!(page.take(0x800), Some([1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(page.take(0x800), None);
    }
    for offset in [0x801, 0x1000, usize::MAX] {
        assert_eq!(page.take(offset), None, "offset {offset:#x}");
    }
    // What is mapped still when the page has gone reaches no other.
    drop(page);
    let next = UarPage::new(&pages).unwrap();
    register.store(7, Ordering::Release);
    assert_eq!(next.take(0x800), None);
    // SAFETY: our own mapping. The NIC's stays.
    unsafe { libc::munmap(app, PAGE as usize) };
    assert_eq!(next.take(0x800), None);
}

#[test]
fn a_fork_child_knows_that_it_is_one() {
    let before = fork_generation();
    assert!(true_in_fork_child(|| fork_generation() != before));
    assert_eq!(fork_generation(), before);
}

/// What the child processes below do; each ends by a signal, or by the exit status of a handler.
const FAULT_CASE: &str = "SOFTNIC_TEST_FAULT_CASE";
static SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn program_handler(signal: i32) {
    // A program's own handler, which cannot repair the access, so it leaves.
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(100 + signal) };
}

extern "C" fn program_handler_with_info(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`.
    let info = unsafe { &*info };
    // SAFETY: for a fault the address is set.
    let at = unsafe { info.si_addr() } as u64;
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(if at == 16 { 150 + signal } else { 1 }) };
}

extern "C" fn counting_handler(_: i32) {
    SEEN.fetch_add(1, Ordering::Relaxed);
}

fn handle(signal: i32, handler: usize, flags: i32) {
    // SAFETY: plain old data.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: a complete action.
    assert_eq!(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }, 0);
}

fn crash() {
    // SAFETY: not sound at all, on purpose: a program's own wild load, which must not be recovered.
    unsafe { std::ptr::read_volatile(std::ptr::without_provenance::<u64>(16)) };
}

#[test]
fn entry_of_faulting_children() {
    let Ok(case) = std::env::var(FAULT_CASE) else { return };
    let segv = libc::SIGSEGV;
    match case.as_str() {
        "default" => handle(segv, libc::SIG_DFL, 0),
        "ignored" => handle(segv, libc::SIG_IGN, 0),
        "handler" => handle(segv, program_handler as *const () as usize, 0),
        "handler with info" => {
            handle(segv, program_handler_with_info as *const () as usize, libc::SA_SIGINFO)
        }
        "sent, default" => handle(segv, libc::SIG_DFL, 0),
        "sent, ignored" => handle(segv, libc::SIG_IGN, 0),
        "sent, handler" | "sent amid a copy" => handle(segv, counting_handler as *const () as usize, 0),
        other => panic!("no case {other}"),
    }
    let host = Host::new().unwrap();
    assert!(host.load32(8).is_err(), "guarded accesses are recovered, whatever was installed before");
    if case == "sent amid a copy" {
        let (from, to) = (vec![1u8; 32 << 20], vec![0u8; 32 << 20]);
        // SAFETY: no arguments, cannot fail.
        let (me, thread) = (std::process::id(), unsafe { libc::gettid() });
        // SAFETY: the child makes plain system calls and ends.
        let sender = unsafe { libc::fork() };
        if sender == 0 {
            std::thread::sleep(Duration::from_millis(20));
            // SAFETY: a plain system call.
            unsafe { libc::syscall(libc::SYS_tgkill, me, thread, segv) };
            // SAFETY: ends the child, which owns nothing that must be dropped.
            unsafe { libc::_exit(0) };
        }
        // Nearly all of the time goes by within a guarded copy.
        // SAFETY: asks for a child of ours.
        while unsafe { libc::waitpid(sender, std::ptr::null_mut(), libc::WNOHANG) } == 0 {
            host.write(to.as_ptr() as u64, &from, true).expect("no access failed");
        }
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(50 + SEEN.load(Ordering::Relaxed) as i32) };
    }
    if case.starts_with("sent") {
        // SAFETY: a signal to our own thread.
        unsafe { libc::raise(segv) };
        assert!(host.load32(8).is_err(), "and afterwards too");
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(50 + SEEN.load(Ordering::Relaxed) as i32) };
    }
    crash();
}

#[test]
fn faults_and_signals_that_are_not_ours_reach_who_had_them_before() {
    let killed = (Some(libc::SIGSEGV), None);
    for (case, end) in [
        ("default", killed),
        ("ignored", killed),
        ("handler", (None, Some(100 + libc::SIGSEGV))),
        ("handler with info", (None, Some(150 + libc::SIGSEGV))),
        ("sent, default", killed),
        ("sent, ignored", (None, Some(50))),
        ("sent, handler", (None, Some(51))),
        ("sent amid a copy", (None, Some(51))),
    ] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "dma::tests::entry_of_faulting_children", "--nocapture"]);
        command.env(FAULT_CASE, case).stdout(Stdio::null()).stderr(Stdio::null());
        let without_core_file = || {
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: `limit` lives through the call.
            unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) };
            Ok(())
        };
        // SAFETY: `setrlimit` is async-signal-safe, and all that runs there.
        unsafe { command.pre_exec(without_core_file) };
        let status = command.status().unwrap();
        assert_eq!((status.signal(), status.code()), end, "{case}");
    }
}
