//! Which cores the two ends of a measurement run on: cores of their own, where there are two or more.

use std::fs;
use std::process::Command;

use crate::process::said;

/// Cores of each end: two where there are four, so that its NIC need not share one with its program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(pub [Vec<u32>; 2]);

impl Cores {
    /// Chosen from those that this process may use; `None` with one core, or without `taskset` to pin with.
    pub fn choose() -> Option<Cores> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        said(Command::new("taskset").arg("--version")).ok()?;
        share(&list(allowed), &|core| {
            let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
            let siblings = fs::read_to_string(path).unwrap_or_default();
            list(&siblings).first().copied().unwrap_or(core)
        })
    }

    /// Whether each end has a core for its NIC beside its program's.
    pub fn are_enough(&self) -> bool {
        self.0.iter().all(|cores| cores.len() > 1)
    }

    /// Of one end, as `taskset -c` takes them.
    pub fn of(&self, end: usize) -> String {
        let words: Vec<String> = self.0[end].iter().map(u32::to_string).collect();
        words.join(",")
    }

    /// One core of each end, as `generator baseline --cores` takes them.
    pub fn first_of_each(&self) -> String {
        format!("{},{}", self.0[0][0], self.0[1][0])
    }
}

/// Hardware threads of different cores go first: two threads of one core are not two cores.
fn share(allowed: &[u32], physical: &dyn Fn(u32) -> u32) -> Option<Cores> {
    let mut seen = Vec::new();
    let (own, sibling): (Vec<u32>, Vec<u32>) = allowed.iter().partition(|core| {
        let physical = physical(**core);
        let new = !seen.contains(&physical);
        seen.push(physical);
        new
    });
    match [own, sibling].concat()[..] {
        [one, two, three, four, ..] => Some(Cores([vec![one, two], vec![three, four]])),
        [one, two, ..] => Some(Cores([vec![one], vec![two]])),
        _ => None,
    }
}

/// `0-2,5` as the kernel writes it.
fn list(text: &str) -> Vec<u32> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_share_no_core_and_threads_of_one_core_come_last() {
        let alone = |core: u32| core;
        for (allowed, physical, ends) in [
            ("3", &alone as &dyn Fn(u32) -> u32, None),
            ("0-1", &alone, Some(["0", "1"])),
            ("1,4-5", &alone, Some(["1", "4"])),
            ("0-15", &alone, Some(["0,1", "2,3"])),
            // 0 and 1 are one core, 2 and 3 the next.
            ("0-7", &|core| core / 2, Some(["0,2", "4,6"])),
            ("0-3", &|core| core / 2, Some(["0,2", "1,3"])),
        ] {
            let cores = share(&list(allowed), physical);
            let words = cores.map(|cores| [cores.of(0), cores.of(1)]);
            assert_eq!(words, ends.map(|ends| ends.map(str::to_owned)), "{allowed}");
        }
    }
}
