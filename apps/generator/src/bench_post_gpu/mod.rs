//! Time of a post on a GPU, in turn in one process: the shim, `doca_gpu_dev_verbs_put` with its headers, the
//! original style. No NIC takes part, or threads play one: see `generator::kernel::post_bench`.
//!
//! A row is measured in rounds: theirs, ours early, ours strict, theirs again … The first round is not
//! counted; ratios are of medians. Times are the GPU's own.

mod report;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cli::{FAILED, INTERRUPTED};
use generator::kernel::post_bench::{Floor, GpuBench, GpuBenchError, PeerHeaders, Place, Sample};
use gpu::cache::Cache;
use gpu::{Gpu, ImageBuilder, Toolkit};
use rdma_shim::Order;

use crate::options::BenchPostGpu;
use crate::report::tell;
use report::{FloorLine, Machine, Measured, Sides, Spread};
use table::{POSTS, Row, floors, rows};

/// What posts are made of, with its rows' names.
type Floors = Vec<(Floor, String)>;

/// Steps of the GPU's timer that a run has to take at least.
const STEPS: u64 = 100;

pub fn run(options: &BenchPostGpu, stop: &AtomicBool) -> Result<u8> {
    let rounds = options.rounds.unwrap_or(if options.quick { 3 } else { 7 });
    ensure!((1..=1000).contains(&rounds), "--rounds {rounds} is out of range: 1 to 1000");
    let (rows, floors) = chosen(options)?;
    if options.list {
        rows.iter().for_each(|row| say!("{}", row.name()));
        floors.iter().for_each(|(_, name)| say!("{name}"));
        return Ok(0);
    }
    let peer = options.peer_headers.as_deref().map(PeerHeaders::read).transpose()?;
    let gpu = Gpu::first().map_err(|error| {
        anyhow!(
            "{error}; this has no twin: without a GPU, `generator bench-post` times the posts of a processor"
        )
    })?;
    let toolkit = Toolkit::find(None)?;
    let builder = ImageBuilder::new(toolkit, Cache::usual());
    let mut bench = GpuBench::new(gpu, &builder, peer.as_ref()).context("preparing the GPU")?;
    let step_ns = bench.timer_step_ns()?;

    let json = options.json.as_deref();
    let machine = Machine::of(gpu, &builder, peer.as_ref(), &bench, rounds, step_ns)?;
    tell(json, &machine, Machine::text)?;
    let mut failed = false;
    for row in &rows {
        if stop.load(Ordering::Relaxed) {
            return Ok(INTERRUPTED);
        }
        let measured = measure(&mut bench, row, rounds, step_ns, stop);
        // A row of fewer rounds than were asked for is none.
        let Some(measured) = measured.transpose() else { return Ok(INTERRUPTED) };
        // A lost context fails whatever comes next.
        let lost = matches!(&measured, Err(GpuBenchError::Gpu(error)) if error.is_context_lost());
        let line = Measured::new(row, bench.no_peer(), measured.map_err(|error| error.to_string()));
        failed |= line.error.is_some();
        tell(json, &line, Measured::text)?;
        if lost {
            bail!(
                "the GPU's context is lost, and with it the rows that were left: {}",
                line.error.unwrap_or_default()
            );
        }
    }
    for (floor, name) in floors {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let measured = measure_floor(&mut bench, floor, rounds, step_ns);
        let line = FloorLine::new(name, measured.map_err(|error| error.to_string()));
        failed |= line.error.is_some();
        tell(json, &line, FloorLine::text)?;
    }
    Ok(match (stop.load(Ordering::Relaxed), failed) {
        (true, _) => INTERRUPTED,
        (_, true) => FAILED,
        (_, false) => 0,
    })
}

/// The rows that `--quick` and `--only` leave, and what posts are made of.
fn chosen(options: &BenchPostGpu) -> Result<(Vec<Row>, Floors)> {
    let (mut rows, mut floors) = (rows(options.quick), floors(options.quick).collect::<Floors>());
    if let Some(only) = &options.only {
        rows.retain(|row| row.name().contains(only.as_str()));
        floors.retain(|(_, name)| name.contains(only.as_str()));
        if rows.is_empty() && floors.is_empty() {
            bail!("--only {only}: no row's name contains that; --list shows the names");
        }
    }
    Ok((rows, floors))
}

fn measure_floor(
    bench: &mut GpuBench,
    floor: Floor,
    rounds: u32,
    step_ns: u64,
) -> Result<Option<Spread>, GpuBenchError> {
    // A signal is looked at between floors.
    let never = AtomicBool::new(false);
    let samples = in_turn([Some(floor)], rounds, &never, |floor| {
        long_enough(bench.floor(*floor, Place::Host, POSTS)?, step_ns)
    })?;
    Ok(samples.and_then(|[samples]| Spread::of(&samples)))
}

/// The three sides of a row; nothing when `stop` was set before all rounds were done.
fn measure(
    bench: &mut GpuBench,
    row: &Row,
    rounds: u32,
    step_ns: u64,
    stop: &AtomicBool,
) -> Result<Option<Sides>, GpuBenchError> {
    let absent = row.is_beside_peer() && bench.no_peer().is_some();
    let cases =
        [(!absent).then(|| row.theirs()), Some(row.ours(Order::Early)), Some(row.ours(Order::Strict))];
    let samples = in_turn(cases, rounds, stop, |case| long_enough(bench.run(case)?, step_ns))?;
    Ok(samples.map(|[theirs, early, strict]| Sides {
        theirs: Spread::of(&theirs),
        early: Spread::of(&early),
        strict: Spread::of(&strict),
    }))
}

/// Runs the cases in rounds; the first is not counted. None if `stop` was set before all were done.
fn in_turn<C, S, const N: usize>(
    cases: [Option<C>; N],
    rounds: u32,
    stop: &AtomicBool,
    mut run: impl FnMut(&C) -> Result<S, GpuBenchError>,
) -> Result<Option<[Vec<S>; N]>, GpuBenchError> {
    let mut samples = std::array::from_fn(|_| Vec::new());
    for round in 0..=rounds {
        for (case, samples) in cases.iter().zip(&mut samples) {
            let Some(case) = case else { continue };
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let sample = run(case)?;
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    Ok(Some(samples))
}

/// An error unless a run took so many steps of the GPU's timer that its time can be relied on.
fn long_enough(sample: Sample, step_ns: u64) -> Result<Sample, GpuBenchError> {
    let Sample { posts, span_ns, .. } = sample;
    if span_ns >= STEPS * step_ns {
        return Ok(sample);
    }
    Err(GpuBenchError::Impossible(format!(
        "{posts} posts took {span_ns} ns, and the GPU's timer goes in steps of {step_ns} ns: no time to rely on"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_take_turns_and_a_row_that_was_interrupted_is_none() {
        // Runs before the signal comes; what is left of two rounds of two sides and an absent one.
        for (comes_after, expected) in [
            (9, Some([vec![2, 4], vec![], vec![3, 5]])),
            (6, Some([vec![2, 4], vec![], vec![3, 5]])),
            (5, None),
            (3, None),
            (0, None),
        ] {
            let (stop, mut runs) = (AtomicBool::new(comes_after == 0), 0);
            let samples = in_turn([Some('a'), None, Some('b')], 2, &stop, |side| {
                assert_eq!(*side, if runs % 2 == 0 { 'a' } else { 'b' });
                runs += 1;
                stop.store(runs >= comes_after, Ordering::Relaxed);
                Ok(runs - 1)
            });
            assert_eq!(samples.unwrap(), expected, "after {comes_after} runs");
        }
    }
}
