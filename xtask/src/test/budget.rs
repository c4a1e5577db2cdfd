//! `xtask/budget.toml`: what a whole run may take, and what it took by the kernel's own counts.
//!
//! Source: `getrusage(2)`, `proc_stat(5)`, `proc_pid_stat(5)`. `cargo run` becomes xtask, so that the build of xtask counts.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::Deserialize;

/// Its place in the tree.
const FILE: &str = "xtask/budget.toml";
/// Above the budget times this a run fails.
const TOLERANCE: f64 = 1.5;
/// Cores that other programs may use on average while a run is judged.
const QUIET_CORES: f64 = 0.2;
/// Ticks of `/proc` a second on every machine that Linux runs Rust on.
pub const TICKS: f64 = 100.0;

/// What a run may take.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    cpu_minutes: f64,
    wall_minutes: f64,
}

/// What a run took.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    cpu_minutes: f64,
    wall_minutes: f64,
    /// Cores that other programs used meanwhile, on average.
    other_cores: f64,
}

/// How a run stands to its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Both are kept.
    Kept,
    /// More was taken, within the tolerance or by the clock alone.
    Above,
    /// More than is tolerated, but other programs ran as well.
    NotJudged,
    /// More than is tolerated.
    Failed,
}

impl Budget {
    /// Reads the file.
    pub fn read(root: &Path) -> Result<Budget> {
        let text = fs::read_to_string(root.join(FILE)).with_context(|| format!("reading {FILE}"))?;
        toml::from_str(&text).context(FILE)
    }

    /// How a run stands that took so much.
    pub fn judge(&self, taken: &Taken) -> Standing {
        match () {
            () if taken.cpu_minutes <= self.cpu_minutes && taken.wall_minutes <= self.wall_minutes => {
                Standing::Kept
            }
            () if taken.cpu_minutes <= TOLERANCE * self.cpu_minutes => Standing::Above,
            () if taken.other_cores > QUIET_CORES => Standing::NotJudged,
            () => Standing::Failed,
        }
    }

    /// The budget in words.
    pub fn words(&self) -> String {
        format!("{:.0} CPU minutes and {:.0} minutes on two quiet cores", self.cpu_minutes, self.wall_minutes)
    }

    /// One line about a run.
    pub fn line(&self, taken: &Taken) -> String {
        let standing = match self.judge(taken) {
            Standing::Kept => "kept".to_owned(),
            Standing::Above => "above the budget".to_owned(),
            Standing::NotJudged => "not judged: load".to_owned(),
            Standing::Failed => format!("FAILED: above {TOLERANCE} times the budget"),
        };
        format!("{}; budget {}: {standing}", taken.words(), self.words())
    }
}

impl Taken {
    /// What was taken, in words.
    pub fn words(&self) -> String {
        let Taken { cpu_minutes, wall_minutes, other_cores } = self;
        format!(
            "{cpu_minutes:.1} CPU minutes, {wall_minutes:.1} minutes; other programs used {other_cores:.1} cores"
        )
    }
}

/// Counts from its making on.
#[derive(Debug)]
pub struct Meter {
    since: Instant,
    /// Seconds before its making: cargo built xtask.
    before: f64,
    own: f64,
    busy: f64,
}

impl Meter {
    /// Starts counting; what the same process did before counts too, as far as it is its own.
    pub fn start() -> Meter {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let before = age(&stat, &uptime).unwrap_or(0.0);
        Meter { since: Instant::now(), before, own: own_seconds(), busy: busy_seconds() }
    }

    /// What was taken up to now.
    pub fn taken(&self) -> Taken {
        let (seconds, own) = (self.since.elapsed().as_secs_f64().max(0.001), own_seconds());
        let others = busy_seconds() - self.busy - (own - self.own);
        Taken {
            cpu_minutes: own / 60.0,
            wall_minutes: (seconds + self.before) / 60.0,
            other_cores: (others / seconds).max(0.0),
        }
    }
}

/// CPU time of this process and of all below it that ended.
fn own_seconds() -> f64 {
    let of = |usage: UsageWho| {
        let usage = getrusage(usage).ok()?;
        let microseconds = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        Some(microseconds as f64 / 1e6)
    };
    [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN].into_iter().filter_map(of).sum()
}

fn busy_seconds() -> f64 {
    busy(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// Time of all processors that were busy, or wanted by us and had by another guest of the host.
fn busy(stat: &str) -> f64 {
    let fields = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: Vec<f64> = fields.split_whitespace().filter_map(|ticks| ticks.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests' time stands in user.
    [0, 1, 2, 5, 6, 7].iter().filter_map(|at| ticks.get(*at)).sum::<f64>() / TICKS
}

/// Seconds since a process began.
fn age(stat: &str, uptime: &str) -> Option<f64> {
    let began: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let now: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    Some(now - began / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_judged_by_its_cpu_time_where_no_other_program_ran() {
        let budget: Budget = toml::from_str("cpu_minutes = 20\nwall_minutes = 10\n").unwrap();
        for (cpu_minutes, wall_minutes, other_cores, standing) in [
            (20.0, 10.0, 0.0, Standing::Kept),
            (20.0, 10.0, 3.0, Standing::Kept),
            (20.1, 9.0, 0.0, Standing::Above),
            (15.0, 99.0, 0.0, Standing::Above),
            (29.9, 9.0, 0.1, Standing::Above),
            (30.1, 9.0, 0.1, Standing::Failed),
            (30.1, 9.0, 0.3, Standing::NotJudged),
        ] {
            let taken = Taken { cpu_minutes, wall_minutes, other_cores };
            assert_eq!(budget.judge(&taken), standing, "{taken:?}");
        }
        let loaded = Taken { cpu_minutes: 31.0, wall_minutes: 9.0, other_cores: 0.8 };
        let line = budget.line(&loaded);
        assert!(line.contains("used 0.8 cores") && line.ends_with(": not judged: load"), "{line}");
        assert!(Budget::read(&crate::workspace::root()).is_ok());
    }

    #[test]
    fn own_work_is_told_from_that_of_others() {
        let meter = Meter::start();
        let before = own_seconds();
        let mut sum = 0_u64;
        while own_seconds() - before < 0.2 {
            sum = (0..100_000).fold(sum, |sum, number| sum.wrapping_mul(31).wrapping_add(number));
        }
        let taken = meter.taken();
        assert!(
            taken.cpu_minutes >= 0.2 / 60.0 && taken.wall_minutes >= 0.2 / 60.0 / 64.0,
            "{taken:?} {sum}"
        );
        // Idle and waiting for input or output are nobody's use.
        assert_eq!(busy("cpu  100 10 20 5000 700 3 4 5 6 0\ncpu0 1 1\n"), 1.42);
        let stat = "7 (a) b) S 1 7 7 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 12345 99 1";
        assert_eq!(age(stat, "200.45 300.00\n").map(|seconds| (seconds * 100.0).round()), Some(7700.0));
    }
}
