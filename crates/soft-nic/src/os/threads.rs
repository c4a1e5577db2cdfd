//! Which threads of the process wait for a core: what tells a late doorbell from a missing one.
//!
//! A thread that was taken off its core between two stores did nothing wrong. Such a thread is runnable (`R` in
//! `/proc/self/task/N/stat`, proc(5)) and its CPU clock stands still. The clock is the thread's own (`clock_gettime` with
//! the clock that `pthread_getcpuclockid` makes), exact also while the thread runs, and there without schedstats.

use std::fs::{File, read_dir};
use std::io::Read;

use mlx5_device::threads::ThreadTime;
use nix::time::ClockId;

use super::system::clock_ns;

/// Threads that one look covers; a program with more is judged by these.
const MAX_THREADS: usize = 1024;

/// How the threads of this process stand now, but for those of this name; what cannot be read is left out. A look costs some
/// microseconds a thread.
pub fn own_threads(without: &str) -> Vec<ThreadTime> {
    let thread = |tid: u32| {
        let mut text = [0; 512];
        let len = File::open(format!("/proc/self/task/{tid}/stat")).ok()?.read(&mut text).ok()?;
        let (name, state) = parse(std::str::from_utf8(text.get(..len)?).ok()?)?;
        (name != without).then_some(())?;
        Some(ThreadTime { tid, runnable: state == 'R', cpu_ns: cpu_ns(tid)? })
    };
    let tasks = read_dir("/proc/self/task").into_iter().flatten().flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    tids.take(MAX_THREADS).filter_map(thread).collect()
}

/// Name and state in a line of `stat`; the name stands in brackets, and may hold any character, brackets too.
fn parse(line: &str) -> Option<(&str, char)> {
    let (_, rest) = line.split_once('(')?;
    let (name, rest) = rest.rsplit_once(") ")?;
    Some((name, rest.chars().next()?))
}

/// CPU time of a thread of this process, ns; none when it has ended.
fn cpu_ns(tid: u32) -> Option<u64> {
    // `make_thread_cpuclock` of the kernel: the inverted number, and 4 | 2 for «one thread, by the scheduler».
    clock_ns(ClockId::from_raw((!(tid as i32) << 3) | 6))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use mlx5_device::threads::any_starved;

    use super::*;
    use crate::dma::testing::Stop;
    use crate::os::testing::DEADLINE;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_hide_the_state() {
        for (line, wanted) in [
            ("17 (poster) R 1 2 3", Some(("poster", 'R'))),
            ("17 (a) S (b) c) S 1 2", Some(("a) S (b) c", 'S'))),
            ("17 () D 1", Some(("", 'D'))),
            ("17 (poster) ", None),
            ("17 poster R", None),
            ("", None),
        ] {
            assert_eq!(parse(line), wanted, "{line}");
        }
    }

    fn pin_and_yield_to_others(cpu: usize, policy: i32) {
        // SAFETY: plain old data.
        let mut cpus: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: `cpu` is one that this thread may run on, below the set's size.
        unsafe { libc::CPU_SET(cpu, &mut cpus) };
        // SAFETY: the set lives through the call.
        assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&cpus), &cpus) }, 0);
        // SAFETY: plain old data; priority 0 is the one of both policies.
        let priority: libc::sched_param = unsafe { std::mem::zeroed() };
        // SAFETY: the parameter lives through the call.
        assert_eq!(unsafe { libc::sched_setscheduler(0, policy, &priority) }, 0);
    }

    /// A poster that gives way to everybody shares a core with two threads that spin: it is often off its core for longer
    /// than a window, which is what the looks have to show; a thread that sleeps is never taken for one.
    #[test]
    fn a_thread_without_a_core_is_seen_and_one_that_sleeps_is_not() {
        // SAFETY: cannot fail, touches no memory.
        let cpu = unsafe { libc::sched_getcpu() } as usize;
        let (stop, poster, sleeper) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
        let spin = |policy, tid: &AtomicU32| {
            pin_and_yield_to_others(cpu, policy);
            // SAFETY: cannot fail, touches no memory.
            tid.store(unsafe { libc::gettid() } as u32, Ordering::Release);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let (mut starved, mut sleeping, mut seen) = (false, false, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| spin(libc::SCHED_IDLE, &poster));
            let (wake, woken) = std::sync::mpsc::channel::<()>();
            let sleeper_tid = &sleeper;
            scope.spawn(move || {
                // SAFETY: cannot fail, touches no memory.
                sleeper_tid.store(unsafe { libc::gettid() } as u32, Ordering::Release);
                let _ = woken.recv();
            });
            for _ in 0..2 {
                scope.spawn(|| spin(libc::SCHED_OTHER, &AtomicU32::new(0)));
            }
            let end = Instant::now() + DEADLINE;
            while Instant::now() < end && !(starved && seen > 20) {
                let before = own_threads("softnic-nic");
                std::thread::sleep(Duration::from_millis(5));
                let now = own_threads("softnic-nic");
                let only = |tid: &AtomicU32| -> Vec<ThreadTime> {
                    now.iter().copied().filter(|t| t.tid == tid.load(Ordering::Acquire)).collect()
                };
                starved |= any_starved(&before, &only(&poster));
                sleeping |= any_starved(&before, &only(&sleeper));
                seen += 1;
            }
            stop.store(true, Ordering::Relaxed);
            drop(wake);
        });
        assert!(starved, "no look of {seen} found the poster without a core");
        assert!(!sleeping, "a thread that sleeps was taken for one that waits for a core");
    }

    #[test]
    fn the_threads_of_one_name_are_left_out_and_the_others_are_all_there() {
        let (stop, began) = (AtomicBool::new(false), AtomicU32::new(0));
        let wait = || {
            began.fetch_add(1, Ordering::Release);
            while !stop.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            // Names that no other test's threads have: they run beside this one.
            for name in ["left-out", "poster (1) R", "poster"] {
                std::thread::Builder::new().name(name.into()).spawn_scoped(scope, wait).expect("a thread");
            }
            while began.load(Ordering::Acquire) < 3 {
                std::thread::yield_now();
            }
            let all = own_threads("nobody");
            assert!(all.len() >= 4, "{all:?}");
            let name = |tid: u32| std::fs::read_to_string(format!("/proc/self/task/{tid}/comm"));
            let named = |threads: &[ThreadTime], wanted: &str| {
                threads.iter().filter(|t| name(t.tid).is_ok_and(|n| n.trim_end() == wanted)).count()
            };
            let others = own_threads("left-out");
            assert_eq!((named(&all, "left-out"), named(&others, "left-out")), (1, 0));
            assert_eq!((named(&others, "poster (1) R"), named(&others, "poster")), (1, 1));
        });
    }
}
