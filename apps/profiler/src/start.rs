//! The way from a process's start to its first answer, in parts.
//!
//! The process's age comes from `/proc` (proc(5): `starttime`, `uptime`), in steps of 10 ms; all other parts
//! are `CLOCK_MONOTONIC`.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// Clock ticks of `/proc/self/stat` a second, as every kernel for x86-64 and Arm has it (`USER_HZ`).
const TICKS: f64 = 100.0;

/// Parts of that way; their sum is the whole.
pub struct Start {
    parts: Vec<(&'static str, Duration)>,
    last: Instant,
}

impl Start {
    /// The first part, `process`, ends here: what the kernel and the dynamic linker did, and starting again
    /// with a variable for CUDA.
    pub fn of_this_process() -> Start {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let age = age(&read("/proc/self/stat"), &read("/proc/uptime")).unwrap_or_default();
        Start { parts: vec![("process", age)], last: Instant::now() }
    }

    /// A part ends here; one of the same name goes on.
    pub fn part(&mut self, name: &'static str) {
        let took = self.last.elapsed();
        self.add(name, took);
        self.last = Instant::now();
    }

    /// As [`Self::part`], when parts of it are known.
    pub fn part_with(&mut self, name: &'static str, known: &[(&'static str, Duration)]) {
        let mut rest = self.last.elapsed();
        for &(known, took) in known {
            self.add(known, took);
            rest = rest.saturating_sub(took);
        }
        self.add(name, rest);
        self.last = Instant::now();
    }

    /// What was done since the last part does not belong to the way.
    pub fn skip(&mut self) {
        self.last = Instant::now();
    }

    fn add(&mut self, name: &'static str, took: Duration) {
        match self.parts.iter_mut().find(|(other, _)| *other == name) {
            Some((_, whole)) => *whole += took,
            None => self.parts.push((name, took)),
        }
    }

    /// Milliseconds of each part, and of `total`.
    pub fn ms(&self) -> BTreeMap<&'static str, f64> {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let total = self.parts.iter().map(|(_, took)| *took).sum();
        self.parts.iter().map(|&(name, took)| (name, ms(took))).chain([("total", ms(total))]).collect()
    }

    /// As a line for people, in the order of the parts.
    pub fn line(&self) -> String {
        let part = |(name, took): &(&str, Duration)| format!("{name} {:.0}", took.as_secs_f64() * 1e3);
        let parts: Vec<String> = self.parts.iter().map(part).collect();
        format!("{:.0} = {}", self.ms()["total"], parts.join(" + "))
    }
}

/// How long ago a process started: the 22nd field of its `stat`, beside the machine's `uptime`.
fn age(stat: &str, uptime: &str) -> Option<Duration> {
    // The second field is the program's name in parentheses, which may hold spaces.
    let behind_name = &stat[stat.rfind(')')? + 1..];
    let started: f64 = behind_name.split_whitespace().nth(19)?.parse().ok()?;
    let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(uptime - started / TICKS).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_as_old_as_its_stat_says() {
        let stat = "7 (a) b) R 1 7 7 0 -1 4194304 95 0 0 0 0 0 0 0 20 0 1 0 12345 10 20";
        assert_eq!(age(stat, "124.45 99.00\n"), Some(Duration::from_millis(1000)));
        assert_eq!(age("", "124.45"), None);
        assert_eq!(age(stat, "1.0"), None, "it did not start in the future");
    }

    #[test]
    fn parts_make_up_the_whole_and_a_part_may_go_on() {
        let mut start = Start { parts: vec![("process", Duration::from_millis(5))], last: Instant::now() };
        start.part("a");
        start.part("b");
        start.part("a");
        start.part_with("rest", &[("known", Duration::from_millis(7))]);
        let ms = start.ms();
        assert_eq!(ms.keys().copied().collect::<Vec<_>>(), ["a", "b", "known", "process", "rest", "total"]);
        let sum: f64 = ms.iter().filter(|(name, _)| **name != "total").map(|(_, ms)| ms).sum();
        assert!((sum - ms["total"]).abs() < 1e-6 && ms["total"] >= 12.0, "{ms:?}");
    }
}
