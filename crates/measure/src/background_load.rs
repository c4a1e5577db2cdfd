//! Core time that programs of others take while something is measured.
//!
//! Source: `proc_stat(5)`, `proc_pid_stat(5)`.

use std::fs;
use std::time::Instant;

/// Ticks of `/proc` a second: USER_HZ is 100 on every Linux that runs Rust.
pub const TICKS: f64 = 100.0;

/// CPU time used since a moment, less that of this process and of the children that it waited for.
#[derive(Debug)]
pub struct BackgroundLoad {
    since: Instant,
    busy: f64,
    own: f64,
}

impl BackgroundLoad {
    /// From now on; `None` where /proc says nothing.
    pub fn watch() -> Option<BackgroundLoad> {
        let busy = busy(&fs::read_to_string("/proc/stat").ok()?)?;
        Some(BackgroundLoad { since: Instant::now(), busy, own: own_seconds()? })
    }

    /// Cores that they kept busy on average since then.
    pub fn cores(&self) -> Option<f64> {
        self.cores_beside(0.0)
    }

    /// Cores that they kept busy, if a child that still runs used so many seconds meanwhile ([`seconds_of`]).
    pub fn cores_beside(&self, child_seconds: f64) -> Option<f64> {
        let now = BackgroundLoad::watch()?;
        let own = now.own - self.own + child_seconds;
        Some(average(now.busy - self.busy, own, self.since.elapsed().as_secs_f64()))
    }
}

/// Never less than none, since ticks are coarse.
fn average(busy: f64, own: f64, seconds: f64) -> f64 {
    ((busy - own) / seconds.max(1.0 / TICKS)).max(0.0)
}

/// Seconds since boot that all cores were busy, or that another guest of the host took from us. `stat`:
/// `/proc/stat`, first line's user, nice, system, irq, softirq and steal. User includes our guests' time.
pub fn busy(stat: &str) -> Option<f64> {
    let ticks = stat.lines().next()?.split_whitespace().skip(1).filter_map(|ticks| ticks.parse().ok());
    let ticks: Vec<f64> = ticks.collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, ref rest @ ..] = ticks[..] else { return None };
    Some((user + nice + system + irq + softirq + rest.first().unwrap_or(&0.0)) / TICKS)
}

/// Seconds of this process, and of its children that ended and were waited for.
pub fn own_seconds() -> Option<f64> {
    seconds_in("/proc/self/stat")
}

/// Seconds of the children of this process that ended and were waited for.
pub fn seconds_of_children() -> Option<f64> {
    Some(ticks_in("/proc/self/stat")?[2..].iter().sum::<f64>() / TICKS)
}

/// CPU seconds of another process and of its children that it waited for. `None`: no such process.
pub fn seconds_of(process: u32) -> Option<f64> {
    seconds_in(&format!("/proc/{process}/stat"))
}

fn seconds_in(path: &str) -> Option<f64> {
    Some(ticks_in(path)?.iter().sum::<f64>() / TICKS)
}

/// Ticks of a process in user mode and in the kernel, then those of its children that it waited for.
fn ticks_in(path: &str) -> Option<[f64; 4]> {
    let stat = fs::read_to_string(path).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(4).filter_map(|ticks| ticks.parse().ok());
    ticks.collect::<Vec<f64>>().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_work_and_idling_are_not_others_and_steal_is() {
        // Idle and waiting for input or output are no use of a core.
        assert!((busy("cpu  100 10 20 5000 700 3 4 5 6 0\ncpu0 1 1\n").unwrap() - 1.42).abs() < 1e-9);
        assert!((busy("cpu  100 10 20 5000 700 3 4\n").unwrap() - 1.37).abs() < 1e-9);
        assert_eq!((busy(""), busy("cpu 1 2")), (None, None));
        for (used, own, seconds, others) in [(3.0, 2.0, 2.0, 0.5), (2.0, 2.0, 2.0, 0.0), (1.0, 2.0, 2.0, 0.0)]
        {
            assert_eq!(average(used, own, seconds), others);
        }
    }

    #[test]
    fn work_of_a_child_is_our_own() {
        let before = own_seconds().unwrap();
        let mut child = std::process::Command::new("sh");
        let child = child.args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]).status();
        assert!(child.unwrap().success());
        assert!(own_seconds().unwrap() > before);
        let of_children = seconds_of_children().unwrap();
        assert!(of_children > 0.0 && of_children <= own_seconds().unwrap(), "{of_children} s");
        assert!(BackgroundLoad::watch().unwrap().cores().is_some());
    }

    #[test]
    fn work_of_a_child_that_still_runs_is_told() {
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let (others, since) = (BackgroundLoad::watch().unwrap(), Instant::now());
        while seconds_of(child.id()).unwrap() < 0.2 && since.elapsed().as_secs() < 20 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let used = seconds_of(child.id());
        child.kill().unwrap();
        let (with, without) = (others.cores_beside(used.unwrap_or(0.0)), others.cores());
        child.wait().unwrap();
        let [used, with, without] = [used, with, without].map(Option::unwrap);
        assert!(used >= 0.2 && with < without, "{used} s: {with} and {without} cores");
        assert_eq!(seconds_of(u32::MAX), None);
    }
}
