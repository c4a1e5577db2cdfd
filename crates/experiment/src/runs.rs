//! Plots of repeated runs: distributions of their times, and what they move as bars.
//!
//! A distribution is made of the quantiles in a point's `detail` (`quantiles_ns`, from least to largest).

use std::collections::BTreeSet;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::by_x::by_x;
use crate::colours::{COLOURS, FAINT, GRID, INK};
use crate::figures::{self, caption, decades, label, ours, steps, wrapped};
use crate::picture::{Picture, RunPoints};
use crate::plot::{Axis, Curve, FONT, Kind, LINE, Panel, drawing, svg};
use crate::point::Point;
use crate::spec::{Bars, Cdf, Timeline};
use crate::{Experiment, Paper, stacks};

/// Quantiles of a distribution that a recorded run keeps, in ms, and the percentage of runs up to each.
const QUANTILES: [(&str, f64); 3] = [("least_ms", 0.0), ("p50_ms", 50.0), ("p99_ms", 99.0)];
/// The phases of a timeline that a recorded run keeps: seconds, and the number meanwhile.
const PHASES: [(&str, &str); 3] =
    [("init_s", "init_cores"), ("serving_s", "serving_cores"), ("end_s", "end_cores")];

/// All distributions and bars that there are points for; without any point the published ones alone.
pub fn plots(run: RunPoints<'_>) -> Result<Vec<Picture>> {
    let RunPoints { experiment, points, .. } = run;
    let mut drawn = Vec::new();
    let mut picture = |name: &String, title: &String, svg: String| {
        drawn.push(Picture { name: name.clone(), title: title.clone(), svg });
    };
    let alone = |curves: &mut Vec<Curve>, beside: Vec<Curve>| {
        if points.is_empty() || !curves.is_empty() {
            curves.extend(beside);
        }
        !curves.is_empty()
    };
    for plot in &experiment.spec.cdfs {
        let mut curves = distributions(experiment, plot, points);
        let beside = experiment.beside(plot.beside.as_ref())?;
        if alone(&mut curves, beside.flat_map(published).collect()) {
            picture(&plot.name, &plot.title, cdf(run, plot, &curves)?);
        }
    }
    for plot in &experiment.spec.timelines {
        let mut curves = timelines(experiment, plot, points);
        let beside = experiment.beside(plot.beside.as_ref())?.flat_map(|paper| &paper.series);
        let beside = beside.filter(|curve| plot.series.contains(&curve.ours));
        if alone(&mut curves, beside.map(figures::beside).collect()) {
            picture(&plot.name, &plot.title, timeline(run, plot, &curves)?);
        }
    }
    for plot in &experiment.spec.stacks {
        let is_beside = stacks::published(experiment, plot)?.next().is_some();
        let lines = text(run, &plot.notes, is_beside);
        if let Some(drawing) = stacks::draw(experiment, plot, points, &lines)? {
            picture(&plot.name, &plot.title, drawing);
        }
    }
    for plot in &experiment.spec.bars {
        let groups = groups(experiment, plot, points);
        if !groups.is_empty() {
            let lines = text(run, &plot.notes, false);
            picture(&plot.name, &plot.title, bars(plot, &groups, &ours(points), &lines)?);
        }
    }
    Ok(drawn)
}

/// What the numbers stand on, and notes, cut for the width of a plot.
fn text(run: RunPoints<'_>, notes: &[String], is_beside: bool) -> Vec<String> {
    let mut lines = caption(run, is_beside);
    lines.extend(notes.iter().cloned());
    lines.iter().flat_map(|line| wrapped(line, 920 / 6)).collect()
}

fn has_published(curves: &[Curve]) -> bool {
    curves.iter().any(|curve| matches!(curve.kind, Kind::Published))
}

/// One curve for each x and repetition of the plot's series that has its quantiles. Recorded rows without
/// them: one for each x, of the times that they keep.
fn distributions(experiment: &Experiment, plot: &Cdf, points: &[Point]) -> Vec<Curve> {
    let own = points.iter().filter(|point| plot.series.contains(&point.series));
    // A recorded row that kept no distribution has no detail.
    let (mut whole, without): (Vec<&Point>, Vec<&Point>) = own.partition(|point| !point.detail.is_null());
    whole.sort_by_key(|point| (point.series.clone(), point.x, point.repetition));
    let curve = |point: &&Point| {
        let quantiles: Vec<f64> =
            point.detail["quantiles_ns"].as_array()?.iter().filter_map(serde_json::Value::as_f64).collect();
        let last = quantiles.len().checked_sub(1).filter(|last| *last > 0)? as f64;
        let at = |(place, ns): (usize, f64)| (ns / 1e6, 100.0 * place as f64 / last);
        let runs = point.detail["runs"].as_u64().unwrap_or_default();
        let beside = if point.x == 1 { "alone" } else { "at once" };
        let label = format!("{} {beside}, {runs} runs", point.x);
        let points = quantiles.into_iter().enumerate().map(at);
        Some(Curve::of(group(experiment, &point.series), label, Kind::Plain, points).at_level(point.x))
    };
    let without: Vec<Point> = without.into_iter().cloned().collect();
    whole.iter().filter_map(curve).chain(recorded_distributions(experiment, plot, &without)).collect()
}

/// The heading of our curves of one series.
fn group(experiment: &Experiment, series: &str) -> String {
    format!("ours: {}", label(experiment, series))
}

fn recorded_distributions(experiment: &Experiment, plot: &Cdf, points: &[Point]) -> Vec<Curve> {
    let of = |series: &String| -> Vec<Curve> {
        let quantiles = QUANTILES.map(|(field, share)| (by_x(points, series, field, |_| true), share));
        let xs: Vec<u64> = quantiles[0].0.keys().copied().collect();
        let curve = |x: &u64| {
            let points = quantiles.iter().filter_map(|(by_x, share)| Some((by_x.get(x)?[0], *share)));
            let label = format!("{x} at once: least, median, p99");
            Curve::of(group(experiment, series), label, Kind::Measured, points).at_level(*x)
        };
        xs.iter().map(curve).collect()
    };
    plot.series.iter().flat_map(of).collect()
}

fn published(paper: &Paper) -> impl Iterator<Item = Curve> + '_ {
    paper.cdf.iter().map(|one| {
        let points = one.points.iter().map(|[ms, share]| (*ms, share * 100.0));
        let label = format!("{} at once", one.at);
        Curve::of("paper (hardware)", label, Kind::Published, points).at_level(one.at)
    })
}

fn cdf(run: RunPoints<'_>, plot: &Cdf, curves: &[Curve]) -> Result<String> {
    let xs = || curves.iter().flat_map(|curve| &curve.points).map(|[ms, ..]| *ms);
    let (least, most) = (xs().fold(f64::INFINITY, f64::min).max(1e-6), xs().fold(1e-6, f64::max));
    // Runs of one level may take ten times as long as those of another.
    let x =
        if most / least > 10.0 { decades("run time, ms", least, most) } else { steps("run time, ms", most) };
    let ticks = (0..=5).map(|tick| f64::from(tick) * 20.0).map(|tick| (tick, format!("{tick}"))).collect();
    let y = Axis { name: "runs that took no longer, %".into(), range: 0.0..100.0, log: false, ticks };
    let panel = Panel { title: String::new(), x, y, marks: Vec::new() };
    let without = curves.iter().filter(|curve| matches!(curve.kind, Kind::Measured));
    let note = match without.count() {
        0 => None,
        count => Some(format!(
            "{count} of our curves: recorded without a distribution, three times joined by straight lines"
        )),
    };
    let lines = text(run, note.as_slice(), has_published(curves));
    // The legend has a line for each curve, below the title and two headings.
    let height = 460.max(LINE as u32 * (curves.len() as u32 + 5));
    svg((920, height + 17 * lines.len() as u32), &plot.title, &[panel], curves, &lines)
}

/// One curve for each repetition of the plot's series.
fn timelines(experiment: &Experiment, plot: &Timeline, points: &[Point]) -> Vec<Curve> {
    if points.iter().all(|point| point.detail.is_null()) {
        return plot.series.iter().filter_map(|series| phases(experiment, series, points)).collect();
    }
    let mut own: Vec<&Point> = points.iter().filter(|point| plot.series.contains(&point.series)).collect();
    own.sort_by_key(|point| (point.series.clone(), point.repetition));
    let curve = |point: &&Point| {
        let pairs = point.detail[plot.field.as_str()].as_array()?;
        let pair = |pair: &serde_json::Value| Some((pair[0].as_f64()?, pair[1].as_f64()?));
        let (group, label) = (group(experiment, &point.series), format!("run {}", point.repetition + 1));
        let curve = Curve::of(group, label, Kind::Plain, pairs.iter().filter_map(pair));
        (!curve.points.is_empty()).then_some(curve)
    };
    own.iter().filter_map(curve).collect()
}

/// The medians of a recorded run's phases, one after the other.
fn phases(experiment: &Experiment, series: &str, points: &[Point]) -> Option<Curve> {
    let median = |field: &str| Some(by_x(points, series, field, |_| true).values().next()?[0]);
    let (mut drawn, mut from) = (Vec::new(), 0.0);
    for (seconds, number) in PHASES {
        let (to, y) = (from + median(seconds)?, median(number)?);
        drawn.extend([(from, y), (to, y)]);
        from = to;
    }
    Some(Curve::of(group(experiment, series), "medians of begin, serving, end", Kind::Plain, drawn))
}

/// Draws runs over their time, from 0 on both axes.
fn timeline(run: RunPoints<'_>, plot: &Timeline, curves: &[Curve]) -> Result<String> {
    let most =
        |axis: usize| curves.iter().flat_map(|curve| &curve.points).map(|at| at[axis]).fold(1e-6, f64::max);
    let (x, y) = (steps("time since the process began, s", most(0)), steps(&plot.y_name, most(1)));
    let panel = Panel { title: String::new(), x, y, marks: Vec::new() };
    let lines = text(run, &plot.notes, has_published(curves));
    svg((920, 460 + 17 * lines.len() as u32), &plot.title, &[panel], curves, &lines)
}

/// One series: its name, and a bar for each number at each of two x.
struct Group {
    name: String,
    /// What the legend calls it, and its height.
    bars: Vec<(String, f64)>,
}

/// The bars of each series that has points: at the smallest x, and at that of the largest first number.
fn groups(experiment: &Experiment, plot: &Bars, points: &[Point]) -> Vec<Group> {
    let group = |series: String| {
        let medians = |field: &str| by_x(points, &series, field, |_| true);
        let first = medians(&plot.values.first()?.0);
        let best = *first.iter().max_by(|one, other| one.1[0].total_cmp(&other.1[0]))?.0;
        let alone = *first.keys().next()?;
        let bar = |(field, name): &(String, String)| {
            let all = medians(field);
            let at = |x: u64, when: &str| Some((format!("{name}, {when}"), all.get(&x)?[0]));
            [at(alone, "one instance"), at(best, "best concurrency")]
        };
        let bars = plot.values.iter().flat_map(bar).flatten().collect();
        Some(Group { name: format!("{}\nbest: {best}", label(experiment, &series)), bars })
    };
    let names: BTreeSet<String> = points.iter().map(|point| point.series.clone()).collect();
    names.into_iter().filter_map(group).collect()
}

/// Draws the groups side by side on a logarithmic axis, with the plot's levels across.
fn bars(plot: &Bars, groups: &[Group], ours: &str, lines: &[String]) -> Result<String> {
    let names: Vec<&String> = groups[0].bars.iter().map(|(name, _)| name).collect();
    let heights = || {
        groups.iter().flat_map(|group| &group.bars).map(|(_, height)| *height).filter(|height| *height > 0.0)
    };
    let levels = || plot.lines.iter().map(|(level, _)| *level);
    let least = heights().chain(levels()).fold(f64::INFINITY, f64::min);
    let most = heights().chain(levels()).fold(f64::MIN_POSITIVE, f64::max);
    let axis = decades(&plot.y_name, least / 3.0, most);
    let (left, right, top, bottom) = (66, 178, 52, 384);
    let caption_height = LINE * lines.len() as i32 + 14;
    let size = (920, (bottom + 56 + caption_height) as u32);
    let y = |value: f64| {
        let share =
            (value.max(axis.range.start) / axis.range.start).ln() / (axis.range.end / axis.range.start).ln();
        bottom - (share * f64::from(bottom - top)).round() as i32
    };
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        let write = |text: &str, size: f64, colour: &RGBColor, across: HPos, at: (i32, i32)| {
            let style = (FONT, size).into_font().color(colour).pos(Pos::new(across, VPos::Center));
            root.draw_text(text, &style, at).map_err(drawing)
        };
        let stroke = |from: (i32, i32), to: (i32, i32), colour: RGBColor| {
            root.draw(&PathElement::new(vec![from, to], colour)).map_err(drawing)
        };
        let end = size.0 as i32 - right;
        write(&plot.title, 14.0, &INK, HPos::Left, (14, 14))?;
        write(&plot.y_name, 11.0, &INK, HPos::Left, (14, 36))?;
        for (tick, said) in &axis.ticks {
            stroke((left, y(*tick)), (end, y(*tick)), GRID)?;
            write(said, 12.0, &INK, HPos::Right, (left - 6, y(*tick)))?;
        }
        let width = (end - left) / groups.len() as i32;
        for (at, group) in groups.iter().enumerate() {
            let from = left + width * at as i32 + width / 10;
            let own = (width * 8 / 10 / names.len() as i32).max(2);
            for (place, (_, height)) in group.bars.iter().enumerate() {
                let corner = from + own * place as i32;
                let shape = [(corner, y(*height)), (corner + own - 1, bottom)];
                let colour = colour(place)?;
                root.draw(&Rectangle::new(shape, colour.filled())).map_err(drawing)?;
            }
            for (line, said) in group.name.split('\n').enumerate() {
                let at = (from + width * 4 / 10, bottom + 14 + LINE * line as i32);
                write(said, 11.0, &INK, HPos::Center, at)?;
            }
        }
        stroke((left, bottom), (end, bottom), INK)?;
        // Two levels may be close: a name that would touch the one below it is written higher.
        let mut below = bottom + LINE;
        for (level, name) in &plot.lines {
            let (height, place) = (y(*level), y(*level).min(below - 12));
            below = place;
            stroke((left, height), (end, height), FAINT)?;
            stroke((end, height), (end + 8, place), FAINT)?;
            write(name, 11.0, &FAINT, HPos::Left, (end + 11, place))?;
        }
        for (place, name) in names.iter().enumerate() {
            let at = bottom - 60 + LINE * place as i32 - LINE * names.len() as i32;
            let (colour, from) = (colour(place)?, end + 11);
            root.draw(&Rectangle::new([(from, at - 5), (from + 10, at + 5)], colour.filled()))
                .map_err(drawing)?;
            write(name, 11.0, &INK, HPos::Left, (from + 15, at))?;
        }
        write(ours, 11.0, &INK, HPos::Left, (end + 11, bottom - 60 - LINE * (names.len() as i32 + 1)))?;
        for (place, line) in lines.iter().enumerate() {
            write(line, 11.5, &FAINT, HPos::Left, (14, bottom + 62 + LINE * place as i32))?;
        }
        root.present().map_err(drawing)?;
    }
    Ok(text)
}

fn colour(place: usize) -> Result<RGBColor> {
    COLOURS
        .get(place)
        .copied()
        .ok_or_else(|| anyhow!("{place} bars in one group, and {} colours", COLOURS.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::Entry;
    use crate::point::example;
    use crate::spec::Extent;
    use crate::table;

    /// M16: the release's plot shows the first run alone, and its curves have different numbers of samples.
    #[test]
    fn release_m16_each_run_is_a_curve_that_says_its_count() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let experiment = Experiment::read(&root.join("experiments"), "fig2").unwrap();
        let plot = &experiment.spec.cdfs[0];
        let runs = [(0, 500_000), (1, 1234)];
        let points = runs.map(|(repetition, runs)| {
            let mut point = example(&plot.series[0], 4);
            point.repetition = repetition;
            point.detail = serde_json::json!({ "runs": runs, "quantiles_ns": [1e6, 2e6, 3e6] });
            point
        });
        let labels: Vec<String> =
            distributions(&experiment, plot, &points).into_iter().map(|curve| curve.label).collect();
        assert_eq!(labels, ["4 at once, 500000 runs", "4 at once, 1234 runs"]);
    }

    fn entry(experiment: &Experiment, points: &[Point]) -> Entry {
        let provenance = points[0].provenance.clone();
        let (machine, extent) = (provenance.machine.clone(), Extent::Normal);
        let rows = table::recorded(&experiment.spec, points);
        let (label, (verdicts, ratios, samples)) = (points[0].label, Default::default());
        Entry { machine, label, extent, provenance, rows, verdicts, ratios, samples }
    }

    #[test]
    fn a_recorded_run_is_drawn_by_the_distributions_that_it_keeps_and_says_where_it_has_none() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let experiment = Experiment::read(&root.join("experiments"), "fig2").unwrap();
        let plot = &experiment.spec.cdfs[0];
        let times: Vec<u64> = (0..1001).map(|place| 231_424 + place * place).collect();
        let with = |x: u64, detail: serde_json::Value| {
            let point = example(&plot.series[0], x).with("runs", 15482.0).with("least_ms", 0.23);
            Point { detail, ..point.with("p50_ms", 0.3).with("p99_ms", 1.2) }
        };
        let detail = serde_json::json!({ "runs": 15482, "quantiles_ns": times });
        // Three repetitions are one curve.
        let null = |repetition| Point { repetition, ..with(2, serde_json::Value::Null) };
        let measured = [with(1, detail), null(0), null(1), null(2)];
        let text = serde_json::to_string_pretty(&entry(&experiment, &measured)).unwrap();
        let read: Entry = serde_json::from_str(&text).unwrap();
        let recorded = read.points("fig2");
        let curves = |points: &[Point]| -> Vec<(String, Vec<[f64; 4]>)> {
            let drawn = distributions(&experiment, plot, points);
            drawn.into_iter().map(|curve| (curve.label, curve.points)).collect()
        };
        assert_eq!(curves(&recorded), curves(&measured));
        let [(whole, points), (_, three)] = &curves(&recorded)[..] else { panic!("two curves") };
        assert_eq!((&**whole, points.len(), three.len()), ("1 alone, 15482 runs", 1001, 3));
        let note = "1 of our curves: recorded without a distribution";
        let drawn = |points: &[Point]| {
            let run = RunPoints { experiment: &experiment, points, unmeasured: &[] };
            plots(run).unwrap().remove(0).svg
        };
        assert!(drawn(&recorded).contains(note) && !drawn(&recorded[..1]).contains("without a distribution"));
        // Figure 1 draws no distribution, and its rows keep none.
        let other = Experiment::read(&root.join("experiments"), "fig1").unwrap();
        assert!(table::recorded(&other.spec, &measured).iter().all(|row| row.quantiles.is_none()));
        // Two repetitions have a distribution each.
        let twice = [measured[0].clone(), Point { repetition: 1, ..measured[0].clone() }];
        assert_eq!(table::recorded(&experiment.spec, &twice)[0].quantiles, None);
    }
}
