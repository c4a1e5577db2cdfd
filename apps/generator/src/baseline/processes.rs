//! What two pinned processes do without a NIC: flags, words, copies. How each is measured: `processes.c`.
//!
//! Call these from a process with one thread: the second process is a fork.

use std::io;
use std::time::Duration;

mod c {
    unsafe extern "C" {
        pub fn db_c_flag_ping_pong(core: u32, other: u32, ns: i64, samples: *mut u64, room: i64) -> i64;
        pub fn db_c_word_ring(core: u32, other: u32, ns: i64, elapsed: *mut i64) -> i64;
        pub fn db_c_process_vm_writev(core: u32, other: u32, ns: i64, bytes: u64, elapsed: *mut i64) -> i64;
        pub fn db_c_first_two_cores(cores: *mut u32) -> i64;
    }
}

/// How often something happened, in how much time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Times.
    pub count: u64,
    /// Seconds.
    pub seconds: f64,
}

impl Rate {
    fn of(count: i64, elapsed_ns: i64) -> io::Result<Rate> {
        Ok(Rate { count: positive(count)?, seconds: elapsed_ns as f64 / 1e9 })
    }

    /// Times a second.
    pub fn per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.count as f64 / self.seconds } else { 0.0 }
    }
}

fn positive(code: i64) -> io::Result<u64> {
    u64::try_from(code).map_err(|_| io::Error::from_raw_os_error((-code) as i32))
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Half round trips between two flags, in tenths of a nanosecond; each the mean of 16 round trips.
pub fn flag_ping_pong(cores: [u32; 2], time: Duration) -> io::Result<Vec<u64>> {
    let mut samples = vec![0; 1 << 20];
    let (ns, room) = (nanoseconds(time), samples.len() as i64);
    // SAFETY: the routine writes at most `room` samples.
    let count = unsafe { c::db_c_flag_ping_pong(cores[0], cores[1], ns, samples.as_mut_ptr(), room) };
    samples.truncate(positive(count)? as usize);
    Ok(samples)
}

/// Words through a ring of words.
pub fn word_ring(cores: [u32; 2], time: Duration) -> io::Result<Rate> {
    let mut elapsed = 0;
    // SAFETY: `elapsed` is writable.
    let count = unsafe { c::db_c_word_ring(cores[0], cores[1], nanoseconds(time), &raw mut elapsed) };
    Rate::of(count, elapsed)
}

/// Copies of `bytes` from one process to the other. Error: the kernel refuses such copies.
pub fn process_vm_writev(cores: [u32; 2], time: Duration, bytes: u64) -> io::Result<Rate> {
    let mut elapsed = 0;
    // SAFETY: `elapsed` is writable; both buffers are the routine's own.
    let count =
        unsafe { c::db_c_process_vm_writev(cores[0], cores[1], nanoseconds(time), bytes, &raw mut elapsed) };
    Rate::of(count, elapsed)
}

/// The first two cores that this process may use; one twice if there is one.
pub fn first_two_cores() -> io::Result<[u32; 2]> {
    let mut cores = [0; 2];
    // SAFETY: two words are writable.
    positive(unsafe { c::db_c_first_two_cores(cores.as_mut_ptr()) })?;
    Ok(cores)
}
