//! When the mover is left alone: one that takes too long for what it does shares the GPU with another process, and has it in turns
//! only, so that the copy engine does better.
//!
//! Knows nothing of CUDA; the time is an argument.

use std::time::{Duration, Instant};

/// What a command may take, whatever its length.
const SLOW: Duration = Duration::from_micros(100);
/// And beside that for its bytes: 8 GB/s. One block without help moves 2 MiB into the GPU in 196 µs, which are 10.7 (H200); beside kernels that
/// fill the GPU and poll it takes 450, and counts as slow: the engine takes 60 there.
const BYTES_PER_NS: u64 = 8;
/// What a launch may take, which has the driver and a thread to wait for as well (H200: 45 to 200 µs where nobody shares).
const SLOW_START: Duration = Duration::from_micros(250);
/// For how long it is left alone: where it was slow once, as while the driver registers pages, and where it is again and again.
const REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_millis(160);

/// How one mover keeps up.
#[derive(Debug)]
pub struct Pace {
    /// It is waited for, however slow it is.
    patient: bool,
    /// Until when it is, or was, left alone, and for how long.
    rests: Option<Instant>,
    rest: Duration,
}

impl Pace {
    /// Of a mover that was not asked yet.
    pub fn new(patient: bool) -> Pace {
        Pace { patient, rests: None, rest: REST }
    }

    /// Whether it is left alone.
    pub fn rests_at(&self, now: Instant) -> bool {
        self.rests.is_some_and(|end| now < end)
    }

    /// It cannot be had for now.
    pub fn rest_longest(&mut self, now: Instant) {
        self.rests = Some(now + LONGEST_REST);
    }

    /// A launch, from when it was asked for until it had begun. True: that was slow, and it rests.
    pub fn note_launch(&mut self, since: Instant, now: Instant) -> bool {
        self.note(since, now, SLOW_START)
    }

    /// The same of a command about `len` bytes.
    pub fn note_command(&mut self, since: Instant, now: Instant, len: u64) -> bool {
        self.note(since, now, SLOW + Duration::from_nanos(len / BYTES_PER_NS))
    }

    /// A slow mover is left alone for a while, and for longer where that is so again soon after.
    fn note(&mut self, since: Instant, now: Instant, slow: Duration) -> bool {
        if now.saturating_duration_since(since) <= slow || self.patient {
            return false;
        }
        let soon = self.rests.is_some_and(|end| since < end + 2 * self.rest);
        self.rest = if soon { (2 * self.rest).min(LONGEST_REST) } else { REST };
        self.rests = Some(now + self.rest);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn a_command_is_slow_by_what_its_length_takes_without_help() {
        let begun = Instant::now();
        // As measured on an H200 (`docs/soft-nic.md`); kernels of two processes have it for some 2 ms each.
        for (what, len, took, slow) in [
            ("an atomic", 8, 11, false),
            ("an atomic in turns", 8, 2000, true),
            ("a short message that waited", 4096, 110, true),
            ("1 MiB into the GPU, eight blocks", 1 << 20, 32, false),
            ("1 MiB into the GPU, one block", 1 << 20, 102, false),
            ("2 MiB into the GPU, one block", 2 << 20, 200, false),
            ("2 MiB in turns", 2 << 20, 2000, true),
        ] {
            for patient in [false, true] {
                let (mut pace, end) = (Pace::new(patient), begun + took * US);
                assert_eq!(pace.note_command(begun, end, len), slow && !patient, "{what}");
                assert_eq!(pace.rests_at(end), slow && !patient, "{what}");
            }
        }
    }

    #[test]
    fn a_mover_that_is_slow_again_rests_longer_each_time_and_one_that_was_not_begins_anew() {
        let mut pace = Pace::new(false);
        let mut now = Instant::now();
        for rest in [1, 2, 4, 8, 16, 32, 64, 128, 160, 160] {
            let since = now;
            now += 300 * US;
            assert!(pace.note_launch(since, now), "{rest}");
            assert!(pace.rests_at(now + (rest * 1000 - 1) * US), "{rest}");
            now += rest * 1000 * US;
            assert!(!pace.rests_at(now), "{rest}");
        }
        let later = now + 330_000 * US;
        assert!(!pace.note_launch(later, later + 250 * US) && pace.note_launch(later, later + 251 * US));
        assert!(!pace.rests_at(later + 1251 * US));
        pace.rest_longest(later);
        assert!(pace.rests_at(later + 159_999 * US) && !pace.rests_at(later + 160_000 * US));
    }
}
