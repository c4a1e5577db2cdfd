//! `xtask/budget.toml`: what a whole run may take, and what it took by the kernel's own counts.
//!
//! Source: `proc_pid_stat(5)`. `cargo run` becomes xtask, so that the build of xtask counts.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use measure::BackgroundLoad;
use measure::background_load::{TICKS, own_seconds};
use serde::Deserialize;

use super::row::Row;

const FILE: &str = "xtask/budget.toml";
/// Packages whose suites have a budget of their own: of models, and of serving.
const PARTS: [(&str, &[&str]); 2] = [
    ("models", &["zoo", "inference", "profiler"]),
    ("serving", &["client", "inference-server", "pipeline", "echo", "serving", "slots"]),
];
/// Above the budget times this a run fails.
const TOLERANCE: f64 = 1.3;
/// Cores that other programs may use on average while a run is judged.
const QUIET_CORES: f64 = 0.2;

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    cpu_minutes: f64,
    /// Of these for the suites of models, and for those of serving.
    models_cpu_minutes: f64,
    serving_cpu_minutes: f64,
    wall_minutes: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct Taken {
    cpu_minutes: f64,
    /// Of these, as in `PARTS`.
    parts: [f64; 2],
    wall_minutes: f64,
    /// Cores that other programs used meanwhile, on average.
    other_cores: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetStatus {
    Kept,
    /// More was taken, within the tolerance or by the clock alone.
    Above,
    /// More than is tolerated, but other programs ran as well.
    NotJudged,
    Failed,
}

impl Budget {
    pub fn read(root: &Path) -> Result<Budget> {
        let text = fs::read_to_string(root.join(FILE)).with_context(|| format!("reading {FILE}"))?;
        toml::from_str(&text).context(FILE)
    }

    fn parts(&self) -> [f64; 2] {
        [self.models_cpu_minutes, self.serving_cpu_minutes]
    }

    /// How a run stands that took so much.
    pub fn judge(&self, taken: &Taken) -> BudgetStatus {
        let within = |times: f64| {
            taken.cpu_minutes <= times * self.cpu_minutes
                && taken.parts.iter().zip(self.parts()).all(|(part, of)| *part <= times * of)
        };
        match () {
            () if within(1.0) && taken.wall_minutes <= self.wall_minutes => BudgetStatus::Kept,
            () if within(TOLERANCE) => BudgetStatus::Above,
            () if taken.other_cores > QUIET_CORES => BudgetStatus::NotJudged,
            () => BudgetStatus::Failed,
        }
    }

    pub fn words(&self) -> String {
        format!("{:.0} CPU minutes and {:.0} minutes on two quiet cores", self.cpu_minutes, self.wall_minutes)
    }

    pub fn line(&self, taken: &Taken) -> String {
        let standing = match self.judge(taken) {
            BudgetStatus::Kept => "kept".to_owned(),
            BudgetStatus::Above => "above the budget".to_owned(),
            BudgetStatus::NotJudged => "not judged: load".to_owned(),
            BudgetStatus::Failed => format!("FAILED: above {TOLERANCE} times the budget"),
        };
        let parts = PARTS.iter().zip(taken.parts).zip(self.parts());
        let parts = parts.map(|(((name, _), part), of)| format!("{name} {part:.1} of {of:.0}"));
        let parts = parts.collect::<Vec<_>>().join(", ");
        format!("{}; {parts} CPU minutes; budget {}: {standing}", taken.words(), self.words())
    }
}

impl Taken {
    pub fn words(&self) -> String {
        let Taken { cpu_minutes, wall_minutes, other_cores, .. } = self;
        format!(
            "{cpu_minutes:.1} CPU minutes, {wall_minutes:.1} minutes; other programs used {other_cores:.1} cores"
        )
    }
}

/// Counts from its making on.
pub struct Meter {
    since: Instant,
    /// Seconds before its making: cargo built xtask.
    before: f64,
    others: Option<BackgroundLoad>,
}

impl Meter {
    /// Starts counting; what the same process did before counts too, as far as it is its own.
    pub fn start() -> Meter {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let before = age(&stat, &uptime).unwrap_or(0.0);
        Meter { since: Instant::now(), before, others: BackgroundLoad::watch() }
    }

    /// What was taken until now; `rows`: of the suites that ran.
    pub fn taken(&self, rows: &[Row]) -> Taken {
        let minutes = |packages: &[&str]| {
            let own = rows.iter().filter(|row| packages.contains(&&*row.package));
            own.map(|row| row.cpu_minutes).sum()
        };
        Taken {
            parts: PARTS.map(|(_, packages)| minutes(packages)),
            cpu_minutes: own_seconds().unwrap_or_default() / 60.0,
            wall_minutes: (self.since.elapsed().as_secs_f64() + self.before) / 60.0,
            other_cores: self.others.as_ref().and_then(BackgroundLoad::cores).unwrap_or_default(),
        }
    }
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
    use crate::test::floors::Floors;
    use crate::test::suites;

    #[test]
    fn a_run_is_judged_by_its_cpu_time_where_no_other_program_ran() {
        let budget: Budget = toml::from_str(
            "cpu_minutes = 20\nmodels_cpu_minutes = 4\nserving_cpu_minutes = 3\nwall_minutes = 10\n",
        )
        .unwrap();
        for (cpu_minutes, parts, wall_minutes, other_cores, standing) in [
            (20.0, [4.0, 3.0], 10.0, 0.0, BudgetStatus::Kept),
            (20.0, [4.0, 3.0], 10.0, 3.0, BudgetStatus::Kept),
            (20.1, [4.0, 3.0], 9.0, 0.0, BudgetStatus::Above),
            (15.0, [4.1, 3.0], 9.0, 0.0, BudgetStatus::Above),
            (15.0, [4.0, 3.0], 99.0, 0.0, BudgetStatus::Above),
            (15.0, [4.0, 3.1], 9.0, 0.0, BudgetStatus::Above),
            (15.0, [4.0, 4.0], 9.0, 0.1, BudgetStatus::Failed),
            (25.9, [5.1, 3.0], 9.0, 0.1, BudgetStatus::Above),
            (26.1, [4.0, 3.0], 9.0, 0.1, BudgetStatus::Failed),
            (15.0, [5.3, 3.0], 9.0, 0.1, BudgetStatus::Failed),
            (15.0, [5.3, 3.0], 9.0, 0.3, BudgetStatus::NotJudged),
            (26.1, [4.0, 3.0], 9.0, 0.3, BudgetStatus::NotJudged),
        ] {
            let taken = Taken { cpu_minutes, parts, wall_minutes, other_cores };
            assert_eq!(budget.judge(&taken), standing, "{taken:?}");
        }
        let loaded = Taken { cpu_minutes: 31.0, parts: [5.24, 3.1], wall_minutes: 9.0, other_cores: 0.8 };
        let line = budget.line(&loaded);
        assert!(line.contains("used 0.8 cores; models 5.2 of 4, serving 3.1 of 3 CPU minutes"), "{line}");
        assert!(line.ends_with(": not judged: load"), "{line}");
        assert!(Budget::read(&crate::workspace::root()).is_ok());
    }

    #[test]
    fn each_package_with_a_budget_of_its_own_has_suites() {
        let floors = Floors::compiled_in().unwrap();
        let packages = PARTS.map(|(_, packages)| packages).concat();
        let suites = suites::all(&packages, Path::new("softnic"), Path::new("logs"));
        let unknown: Vec<&str> =
            suites.iter().map(|suite| &*suite.name).filter(|name| floors.of(name).is_none()).collect();
        assert_eq!(unknown, [""; 0]);
    }

    #[test]
    fn a_run_counts_from_the_beginning_of_its_process() {
        let meter = Meter { before: 60.0, ..Meter::start() };
        let mut sum = 0_u64;
        while own_seconds().unwrap() < 0.2 {
            sum = (0..100_000).fold(sum, |sum, number| sum.wrapping_mul(31).wrapping_add(number));
        }
        let row = |package: &str| Row { package: package.into(), cpu_minutes: 1.5, ..Row::default() };
        let taken = meter.taken(&["zoo", "roce", "inference", "inference-server", "echo", "echo"].map(row));
        assert_eq!(taken.parts, [3.0, 4.5]);
        assert!(taken.cpu_minutes >= 0.2 / 60.0 && taken.wall_minutes >= 1.0, "{taken:?} {sum}");
        let stat = "7 (a) b) S 1 7 7 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 12345 99 1";
        assert_eq!(age(stat, "200.45 300.00\n").map(|seconds| (seconds * 100.0).round()), Some(7700.0));
    }
}
