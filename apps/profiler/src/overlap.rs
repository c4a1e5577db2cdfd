//! How far instances run at the same time, by the GPU's stamps of their runs.
//!
//! A run that has begun and has not ended counts as running, whether its kernels have the GPU at that moment
//! or not.

use gpu::Stamp;
use serde::Serialize;

/// What stamps of several instances show of the time in which all of them run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Overlap {
    /// Runs in flight, averaged over that time.
    pub at_once_mean: f64,
    /// Share of the runs in it that overlap a run of another instance.
    pub overlapping_share: f64,
    /// Runs that lie in it.
    pub runs: u64,
    /// Its length.
    pub window_ns: u64,
}

/// Why there is no overlap of so many instances; `stamped`: by graphs whose runs are stamped.
pub fn why_none(instances: u16, stamped: bool) -> &'static str {
    match (instances, stamped) {
        (1, _) => "one instance runs alone",
        (_, false) => "no stamps say when a run begins and ends; on a GPU --launch self and while have them",
        (_, true) => "at no time had all instances begun and not yet ended their runs",
    }
}

/// Of each instance its runs, in their order. `None`: fewer than two instances; or no time in which all have
/// run, which shows that they do not overlap.
pub fn overlap(instances: &[Vec<Stamp>]) -> Option<Overlap> {
    if instances.len() < 2 {
        return None;
    }
    let begin = instances.iter().map(|runs| runs.first().map(|run| run.start_ns)).max()??;
    let ends = instances.iter().filter_map(|runs| runs.last().map(|run| run.end_ns));
    let (end, mut busy_ns) = (ends.min()?, 0_u128);
    let (mut runs, mut overlapping) = (0_u64, 0_u64);
    if instances.iter().any(Vec::is_empty) || begin >= end {
        return None;
    }
    for (number, instance) in instances.iter().enumerate() {
        for run in instance {
            let clipped = run.end_ns.min(end).saturating_sub(run.start_ns.max(begin));
            busy_ns += u128::from(clipped);
            if run.start_ns < begin || run.end_ns > end {
                continue;
            }
            runs += 1;
            let others = instances.iter().enumerate().filter(|(other, _)| *other != number);
            overlapping += u64::from(others.into_iter().any(|(_, other)| meets(run, other)));
        }
    }
    let window_ns = end - begin;
    Some(Overlap {
        at_once_mean: busy_ns as f64 / window_ns as f64,
        overlapping_share: overlapping as f64 / runs.max(1) as f64,
        runs,
        window_ns,
    })
}

/// Whether a run overlaps one of these, which follow one another.
fn meets(run: &Stamp, others: &[Stamp]) -> bool {
    let first = others.partition_point(|other| other.end_ns <= run.start_ns);
    others.get(first).is_some_and(|other| other.start_ns < run.end_ns)
}

/// The step of the clock: what all stamps are multiples of, beside the first one.
pub fn clock_step_ns(instances: &[Vec<Stamp>]) -> u64 {
    let mut all = instances.iter().flatten().flat_map(|stamp| [stamp.start_ns, stamp.end_ns]);
    let Some(first) = all.next() else { return 0 };
    all.fold(0, |step, stamp| greatest_divisor(step, stamp.abs_diff(first)))
}

fn greatest_divisor(one: u64, two: u64) -> u64 {
    if two == 0 { one } else { greatest_divisor(two, one % two) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(of: &[[u64; 2]]) -> Vec<Stamp> {
        of.iter().map(|&[start_ns, end_ns]| Stamp { start_ns, end_ns }).collect()
    }

    #[test]
    fn overlap_is_that_of_the_time_in_which_all_instances_run() {
        let side = runs(&[[0, 10], [10, 20], [20, 30]]);
        // Nothing runs from 10 to 12; the first run begins before the other instance's.
        let apart = runs(&[[5, 10], [12, 20], [20, 25]]);
        let gaps = runs(&[[0, 4], [10, 14], [20, 24], [26, 30]]);
        let between = runs(&[[5, 9], [15, 19], [25, 26]]);
        // Each begins when one of the other ends.
        let (one, two) = (runs(&[[0, 5], [10, 15]]), runs(&[[5, 10], [15, 20]]));
        for (what, instances, at_once, share, count) in [
            ("the same runs", vec![side.clone(), side.clone()], 2.0, 1.0, 6),
            ("three", vec![side.clone(), side.clone(), side.clone()], 3.0, 1.0, 9),
            ("shifted", vec![side.clone(), apart], (20.0 + 18.0) / 20.0, 1.0, 4),
            ("back to back", vec![one, two], 1.0, 0.0, 2),
            ("in turns", vec![gaps, between], (9.0 + 8.0) / 21.0, 0.0, 5),
        ] {
            let found = overlap(&instances).unwrap();
            assert!((found.at_once_mean - at_once).abs() < 1e-9, "{what}: {found:?}");
            assert_eq!((found.overlapping_share, found.runs), (share, count), "{what}: {found:?}");
        }
    }

    #[test]
    fn instances_that_never_run_together_have_no_overlap() {
        let early = runs(&[[0, 10]]);
        for instances in
            [vec![], vec![early.clone()], vec![early.clone(), vec![]], vec![early, runs(&[[10, 20]])]]
        {
            assert_eq!(overlap(&instances), None, "{instances:?}");
        }
    }

    #[test]
    fn the_clocks_step_divides_all_stamps() {
        assert_eq!(clock_step_ns(&[runs(&[[1007, 1039], [1071, 1167]]), runs(&[[1039, 1103]])]), 32);
        assert_eq!(clock_step_ns(&[vec![]]), 0);
    }
}
