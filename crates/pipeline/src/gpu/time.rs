//! The offset between a machine's clock and the system's, measured by a kernel that answers the CPU in turns.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdma_shim::kernel::{Arguments, HostMemory, Kernel, Machine, Source};

use super::launch::{HEADERS, KERNELS};
use super::{ServedError, refuse};
use crate::trace::unix_ns;

const SOURCE: Source =
    Source { name: "time.cu", text: include_str!("../../kernels/time.cu"), headers: HEADERS, twin: &KERNELS };
/// The shortest turn of so many bounds the error.
const ROUNDS: u32 = 200;
/// More than all turns take, on a busy machine too.
const LIMIT: Duration = Duration::from_secs(10);
/// 32-bit word of the kernel's number, 64-bit word of its time.
const TOLD: usize = 64 / 4;
const TIME: usize = 128 / 8;

/// Both clocks, read at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockSample {
    pub machine_ns: u64,
    /// By the system's clock, since 1970.
    pub unix_ns: u64,
    /// By how much `unix_ns` may be wrong, either way.
    pub error_ns: u64,
}

/// Reads a machine's clock beside what runs there.
#[derive(Debug)]
pub struct MachineClock {
    kernel: Kernel,
    words: HostMemory,
    cancel: HostMemory,
}

impl MachineClock {
    /// Loads the kernel: before others run, since a driver may wait for these.
    pub fn new(machine: &Machine) -> Result<MachineClock, ServedError> {
        let kernel = Kernel::prepare(machine, &SOURCE, "tell_time")?;
        let clock =
            MachineClock { kernel, words: machine.host_memory(256)?, cancel: machine.host_memory(4)? };
        clock.meet()?;
        Ok(clock)
    }

    /// Reads both clocks. Error: the kernel has no room beside what runs.
    pub fn meet(&self) -> Result<ClockSample, ServedError> {
        let (words, longs) = (self.words.words(), self.words.long_words());
        [0, TOLD].iter().for_each(|word| words[*word].store(0, Ordering::Release));
        let arguments =
            Arguments::new().u64(self.words.kernel_address()).u64(ROUNDS.into()).u64(LIMIT.as_nanos() as u64);
        let held = self.words.clone();
        // SAFETY: the kernel takes these three, keeps to the words, which `held` keeps, and has a limit.
        let running = unsafe { self.kernel.launch([1, 1], &arguments, self.cancel.clone(), held) }?;
        let (since, mut best) = (Instant::now(), None::<ClockSample>);
        for round in 1..=ROUNDS {
            let asked = unix_ns();
            words[0].store(round, Ordering::Release);
            while words[TOLD].load(Ordering::Acquire) != round {
                if since.elapsed() > LIMIT {
                    // The kernel's limit has passed, or it was never begun: its drop waits for it.
                    return refuse(format!("the kernel that reads the clock has not answered for {LIMIT:?}"));
                }
                std::hint::spin_loop();
            }
            let told = unix_ns();
            let error_ns = told.saturating_sub(asked).div_ceil(2);
            if best.is_none_or(|best| error_ns < best.error_ns) {
                let machine_ns = longs[TIME].load(Ordering::Relaxed);
                best = Some(ClockSample { machine_ns, unix_ns: asked + error_ns, error_ns });
            }
        }
        running.end(LIMIT)?;
        best.map_or_else(|| refuse("no turn of the clock"), Ok)
    }
}

/// The system's time of a machine's, by two samples: clocks may run apart by some parts of a million.
pub fn between(first: &ClockSample, second: &ClockSample, machine_ns: u64) -> u64 {
    let signed = |to: u64, from: u64| to.wrapping_sub(from).cast_signed();
    let (machine, unix) =
        (signed(second.machine_ns, first.machine_ns), signed(second.unix_ns, first.unix_ns));
    let since = signed(machine_ns, first.machine_ns);
    let scaled = match machine {
        ..=0 => i128::from(since),
        machine => i128::from(since) * i128::from(unix) / i128::from(machine),
    };
    first.unix_ns.wrapping_add_signed(scaled as i64)
}

#[cfg(test)]
mod tests {
    use host_twin::Visibility;
    use measure::need;

    use super::*;

    #[test]
    fn a_clock_that_runs_apart_is_followed_between_two_meetings() {
        let meeting = |machine_ns, unix_ns| ClockSample { machine_ns, unix_ns, error_ns: 1 };
        // 1000 ns a second slow, and 5 ahead at first.
        let (first, second) = (meeting(1_000_005, 1_000_000), meeting(1_000_999_005, 1_001_000_000));
        for (machine, unix) in
            [(1_000_005, 1_000_000), (1_000_999_005, 1_001_000_000), (500_999_505, 501_000_000)]
        {
            assert!(between(&first, &second, machine).abs_diff(unix) <= 500, "{machine}");
        }
        // One meeting alone is an offset.
        assert_eq!(between(&first, &first, 905), 900);
    }

    #[test]
    fn both_clocks_of_the_twin_meet() {
        need!(KERNELS.find("tell_time").map_err(|error| error.to_string()), cc, "a C++ compiler");
        let clock = MachineClock::new(&Machine::twin(Visibility::InOrder)).unwrap();
        let (before, meeting, after) = (unix_ns(), clock.meet().unwrap(), unix_ns());
        assert!((before..=after).contains(&meeting.unix_ns), "{before} {meeting:?} {after}");
        let later = clock.meet().unwrap();
        assert!(later.machine_ns > meeting.machine_ns && later.unix_ns > meeting.unix_ns);
    }
}
