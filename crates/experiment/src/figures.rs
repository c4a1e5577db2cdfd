//! The plots of a spec: a number against x, measured curves beside published ones and formulas; a caption.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use measure::Label;

use crate::Experiment;
use crate::by_x::{by_x, log_fit};
use crate::modelled::Modelled;
use crate::paper::Paper;
use crate::picture::RunPoints;
use crate::plot::{Axis, Curve, Kind, LABEL_CHARACTERS, Panel, svg};
use crate::point::{Point, crowded, disturbed, needs_gpu, provenance_of, revision};
use crate::spec::{self, Formula, Plot};
use crate::wire_model;

/// Draws one plot of an experiment. `modelled`: lines of posts that were measured without a NIC.
pub fn plot(run: RunPoints<'_>, plot: &Plot, modelled: &[Modelled]) -> Result<String> {
    let (experiment, points) = (run.experiment, run.points.iter());
    let points: Vec<Point> = points.filter(|point| ran_with(point, &plot.settings)).cloned().collect();
    let mut curves = measured(experiment, &points, &plot.y);
    for name in &plot.beside {
        curves.extend(published(experiment.paper(name)?));
    }
    if plot.log_fit {
        curves.extend(log_fits(experiment, &points, &plot.y));
    }
    let wire_models = plot.formulas.contains(&Formula::WireModel);
    if wire_models && let Some(post_times) = experiment.papers.iter().find(|paper| paper.paper.figure == 5) {
        curves.extend(models(post_times));
    }
    let modelled = if plot.formulas.contains(&Formula::Modelled) { modelled } else { &[] };
    curves.extend(modelled.iter().map(drawn));
    let windows = windows(&points);
    let panel = |panel: &spec::Panel| {
        let x = match plot.log_fit {
            true => counts(&plot.x_name, &curves),
            false => x_axis(&plot.x_name, panel, &curves),
        };
        let (least, most) = within(&curves, &x);
        // Substitutes are slower by orders of magnitude than what is published.
        let log = panel.log || plot.log_fit && most > 20.0 * least;
        let y = if log { decades(&plot.y_name, least, most) } else { steps(&plot.y_name, most) };
        let marks = windows.iter().map(|(from, _, window)| (*from as f64, window.clone()));
        let marks = if panel.log { marks.collect() } else { Vec::new() };
        Panel { title: panel.title.clone(), x, y, marks }
    };
    let panels: Vec<Panel> = plot.panels.iter().map(panel).collect();
    let mut caption = caption(RunPoints { points: &points, ..run }, !plot.beside.is_empty());
    caption.extend(said_of(&windows));
    caption.extend(modelled.first().map(Modelled::caption));
    caption.extend(plot.notes.clone());
    let width = (270 + 440 * panels.len() as u32).max(920);
    let caption: Vec<String> = caption.iter().flat_map(|line| wrapped(line, width as usize / 6)).collect();
    let size = (width, 460 + 17 * caption.len() as u32);
    svg(size, &plot.title, &panels, &curves, &caption)
}

pub fn ran_with(point: &Point, settings: &BTreeMap<String, u64>) -> bool {
    settings.iter().all(|(name, value)| point.settings.get(name) == Some(value))
}

/// The fit of each measured series, over the x that it was measured at.
fn log_fits(experiment: &Experiment, points: &[Point], field: &str) -> Vec<Curve> {
    let fit = |series: &String| {
        let (fit, xs) = (log_fit(points, series, field)?, by_x(points, series, field, |_| true));
        let (first, last) = (*xs.keys().next()? as f64, *xs.keys().last()? as f64);
        let at = |step: u32| first + (last - first) * f64::from(step) / 40.0;
        let label = format!("{}, R² {:.4}", label(experiment, series), fit.r_squared);
        let points = (0..=40).map(at).map(|x| (x, fit.at(x)));
        Some(Curve::of("fit a·log2(x) + k", label, Kind::Broken, points))
    };
    experiment.spec.series.keys().filter_map(fit).collect()
}

/// What the legend calls a series.
pub(crate) fn label<'a>(experiment: &'a Experiment, series: &'a str) -> &'a str {
    experiment.spec.series.get(series).and_then(|own| own.label.as_deref()).unwrap_or(series)
}

/// A linear axis of whole numbers, with a tick at each power of two.
fn counts(name: &str, curves: &[Curve]) -> Axis {
    let most = curves.iter().flat_map(|curve| &curve.points).map(|[x, ..]| *x).fold(1.0, f64::max);
    let ticks = (0..12).map(|power| f64::from(1 << power)).filter(|tick| *tick <= most);
    let ticks = ticks.map(|tick| (tick, tick.to_string())).collect();
    Axis { name: name.to_owned(), range: 0.0..most * 1.05, log: false, ticks }
}

fn published(paper: &Paper) -> Vec<Curve> {
    paper.series.iter().map(beside).collect()
}

/// A published curve as it is drawn beside ours.
pub(crate) fn beside(curve: &crate::paper::Curve) -> Curve {
    let points = curve.points.clone();
    Curve { points, ..Curve::of("paper (hardware)", &curve.label, Kind::Published, []) }
}

/// The heading of what was measured here: it says what of it was no hardware.
pub(crate) fn ours(points: &[Point]) -> String {
    let from = provenance_of(points);
    match from.map_or((Label::None, Label::None), |from| (from.nic, from.gpu)) {
        (Label::None, Label::None) => "ours (no NIC)".to_owned(),
        (Label::None, gpu) => format!("ours ({gpu} GPU)"),
        (nic, _) => format!("ours ({nic} NIC)"),
    }
}

/// A formula, finer than a pixel on both axes.
fn formula(group: &str, label: &str, of: impl Fn(f64) -> f64) -> Curve {
    let xs = (0..=700).map(|step| 64.0 * 2_f64.powf(f64::from(step) / 50.0));
    Curve::of(group, label, Kind::Broken, xs.map(|x| (x, of(x))))
}

/// The line of posts that were measured on a GPU.
fn drawn(modelled: &Modelled) -> Curve {
    let of = |payload| modelled.throughput_gbps(payload);
    formula("modelled from posts without a NIC", modelled.name, of)
}

/// The wire model of each published GPU, from the median of its published post times.
fn models(fig5: &Paper) -> Vec<Curve> {
    let gpus = fig5.series.iter().filter(|curve| curve.name.starts_with("gpu-"));
    let model = |curve: &crate::paper::Curve| {
        let of = wire_model::of_published(curve)?;
        Some(formula("wire model of the paper's posts", &curve.label, of))
    };
    gpus.filter_map(model).collect()
}

/// Ours: median with least and most, one curve for each combination of the other factors.
fn measured(experiment: &Experiment, points: &[Point], field: &str) -> Vec<Curve> {
    let keys: BTreeSet<(&str, &BTreeMap<String, u64>)> =
        points.iter().map(|point| (point.series.as_str(), &point.at)).collect();
    let group = ours(points);
    let curve = |(series, at): (&str, &BTreeMap<String, u64>)| {
        let own: Vec<Point> =
            points.iter().filter(|point| point.series == series && point.at == *at).cloned().collect();
        let base = own.iter().all(Point::is_base);
        let name = label(experiment, series);
        let others = at.iter().filter(|(_, value)| **value != 1);
        let others: String = others.map(|(name, value)| format!(", {name} {value}")).collect();
        let broken = own.iter().filter(|point| !point.is_whole());
        let spreads = by_x(&own, series, field, |_| true).into_iter();
        let label: String = format!("{name}{others}").chars().take(LABEL_CHARACTERS).collect();
        let kind = if base { Kind::Measured } else { Kind::Variant };
        Curve {
            points: spreads.map(|(x, [median, least, most])| [x as f64, median, least, most]).collect(),
            not_whole: broken.map(|point| point.x as f64).collect(),
            ..Curve::of(&group, label, kind, [])
        }
    };
    keys.into_iter().map(curve).collect()
}

/// First and last x of points with the same window, in order; nothing where series differ in theirs.
fn windows(points: &[Point]) -> Vec<(u64, u64, String)> {
    let mut by_x: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for point in points {
        by_x.entry(point.x).or_default().extend(point.settings.get("window"));
    }
    let mut groups: Vec<(u64, u64, String)> = Vec::new();
    for (x, windows) in by_x {
        let mut windows = windows.iter().map(u64::to_string);
        let (Some(window), None) = (windows.next(), windows.next()) else { return Vec::new() };
        match groups.last_mut() {
            Some((_, last, text)) if *text == window => *last = x,
            _ => groups.push((x, x, window)),
        }
    }
    groups
}

/// The windows in words.
fn said_of(windows: &[(u64, u64, String)]) -> Option<String> {
    let group = |(first, last, window): &(u64, u64, String)| match first == last {
        true => format!("{window} at {first} B"),
        false => format!("{window} from {first} to {last} B"),
    };
    let groups: Vec<String> = windows.iter().map(group).collect();
    (!groups.is_empty())
        .then(|| format!("messages in flight at most (numbers at the top): {}", groups.join(", ")))
}

/// What the numbers stand on, below every plot. `is_beside`: published ones are drawn too.
pub(crate) fn caption(run: RunPoints<'_>, is_beside: bool) -> Vec<String> {
    let RunPoints { experiment, points, unmeasured } = run;
    let published = is_beside.then(|| {
        "paper — doi 10.1145/3642968.3654820; curves from the plots of its authors' re-run, August 2024"
            .to_owned()
    });
    let Some(from) = provenance_of(points) else {
        return ["no points of ours".to_owned()].into_iter().chain(published).collect();
    };
    let gpu =
        if from.gpu == Label::None { "none".into() } else { format!("{} ({})", from.gpu, from.gpu_device) };
    let version = |name: &str| from.versions.get(name).map_or("unknown", String::as_str);
    let repetitions = points.iter().map(|point| point.repetition + 1).max().unwrap_or(1);
    let broken = points.iter().filter(|point| !point.is_whole()).count();
    let option = |name: &str| from.nic_options.get(name);
    let rate = option("rate_gbps").and_then(serde_json::Value::as_f64).filter(|rate| *rate > 0.0);
    let rate = rate.map_or("not shaped".to_owned(), |rate| format!("shaped to {rate} Gbit/s"));
    let word = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let helpers = option("copy_threads").map_or("none".to_owned(), word);
    let [libibverbs, libmlx5, kernel, profile] = ["libibverbs", "libmlx5", "kernel", "profile"].map(version);
    let built = format!("kernel {kernel}, {profile} build, {}", revision(&from));
    let mut lines = match experiment.spec.nic.is_empty() {
        false => vec![
            format!(
                "ours — nic: {} ({}), gpu: {gpu}, link: {}, {rate}; threads that help to copy: {helpers}; median and range of \
                 {repetitions} repetitions",
                from.nic, from.device, from.link
            ),
            format!("{}; libibverbs {libibverbs}, libmlx5 {libmlx5}, {built}", from.machines()),
        ],
        true => vec![
            format!("ours — gpu: {gpu}; median and range over repetitions, of which there are {repetitions}"),
            format!("{}; {built}", from.machine),
        ],
    };
    lines.extend(published);
    if !unmeasured.is_empty() {
        let gpu = if unmeasured.iter().any(|series| needs_gpu(series)) { " (gpu-* need a GPU)" } else { "" };
        lines.push(format!("not measured: {}{gpu}", unmeasured.join(", ")));
    }
    lines.extend(disturbed(points).or_else(|| crowded(points)));
    if broken > 0 {
        lines.push(format!("{broken} points not whole (large hollow markers), see the table"));
    }
    lines
}

/// A line in pieces of at most so many characters, cut between words.
pub(crate) fn wrapped(line: &str, most: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for word in line.split(' ') {
        let last = pieces.last_mut().map_or(0, |piece| piece.chars().count());
        if last > 0 && last + 1 + word.chars().count() > most {
            pieces.push(format!("    {word}"));
        } else if let Some(piece) = pieces.last_mut() {
            *piece += if last > 0 { " " } else { "" };
            *piece += word;
        }
    }
    pieces
}

/// Least and most of y of what lies within x; of nothing, one to ten.
fn within(curves: &[Curve], x: &Axis) -> (f64, f64) {
    let inside = curves.iter().flat_map(|curve| &curve.points).filter(|[at, ..]| x.range.contains(at));
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    // Nothing at all, as of messages of which none arrived, has no place on a logarithmic axis.
    for [_, _, low, high] in inside.filter(|[_, _, low, _]| *low > 0.0) {
        (least, most) = (least.min(*low), most.max(*high));
    }
    if most > 0.0 { (least, most) } else { (1.0, 10.0) }
}

/// The x axis: to where the panel ends, or as far as the measured and published points go.
fn x_axis(name: &str, panel: &spec::Panel, curves: &[Curve]) -> Axis {
    let is_formula = |curve: &&Curve| curve.points.len() > 600;
    let xs =
        || curves.iter().filter(|curve| !is_formula(curve)).flat_map(|curve| &curve.points).map(|[x, ..]| *x);
    let most = panel.to.unwrap_or_else(|| xs().fold(0.0, f64::max)).max(64.0);
    if !panel.log {
        let axis = steps(&format!("{name}, kB"), most / 1000.0);
        let ticks = axis.ticks.into_iter().map(|(value, text)| (value * 1000.0, text)).collect();
        return Axis { range: 0.0..most, ticks, ..axis };
    }
    let least = xs().fold(f64::INFINITY, f64::min).min(most);
    let ticks = (0..=40).map(|power| 1_u64 << power).filter(|bytes| bytes.ilog2() % 2 == 0);
    let range = least * 0.8..most * 1.3;
    let ticks = ticks.map(|bytes| (bytes as f64, binary(bytes))).filter(|(at, _)| range.contains(at));
    Axis { name: format!("{name}, B"), ticks: ticks.collect(), range, log: true }
}

fn binary(bytes: u64) -> String {
    match bytes {
        mib if mib >= 1 << 20 => format!("{} Mi", mib >> 20),
        kib if kib >= 1 << 10 => format!("{} Ki", kib >> 10),
        _ => bytes.to_string(),
    }
}

/// A logarithmic axis that fits the data. Ticks: 1, 2 and 5 of each power of ten; the powers alone if many.
pub(crate) fn decades(name: &str, least: f64, most: f64) -> Axis {
    let range = least * 0.8..most * 1.6;
    let powers = (range.start.log10().floor() as i32)..=(range.end.log10().ceil() as i32);
    let steps: &[f64] = if range.end / range.start > 1e3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let values = powers.flat_map(|power| steps.iter().map(move |step| (power, step * 10_f64.powi(power))));
    let text = |(power, value): (i32, f64)| (value, format!("{value:.*}", (-power).max(0) as usize));
    let ticks = values.filter(|(_, value)| range.contains(value)).map(text).collect();
    Axis { name: name.to_owned(), range, log: true, ticks }
}

/// A linear axis from zero, with five to ten round ticks.
pub(crate) fn steps(name: &str, most: f64) -> Axis {
    let magnitude = 10_f64.powf((most / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * magnitude).into_iter().find(|step| most / step <= 8.0);
    let step = step.unwrap_or(magnitude * 10.0);
    let count = (most / step).ceil() as u32;
    let ticks = (0..=count)
        .map(|tick| (f64::from(tick) * step * 1e9).round() / 1e9)
        .map(|value| (value, format!("{value}")));
    Axis { name: name.to_owned(), range: 0.0..f64::from(count) * step, log: false, ticks: ticks.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::example;
    use crate::{Drawing, modelled, root};

    fn experiment(name: &str) -> Experiment {
        Experiment::read(&root().join("experiments"), name).unwrap()
    }

    fn drawn_as(name: &str, points: &[Point], missing: &[String]) -> Vec<String> {
        let experiment = experiment(name);
        let plots = experiment.spec.plots.iter();
        let run = RunPoints { experiment: &experiment, points, unmeasured: missing };
        plots.map(|one| plot(run, one, &modelled::example()).unwrap()).collect()
    }

    /// The first series is a CPU's, mostly.
    #[test]
    fn a_gpu_that_took_part_is_named_below_the_plot() {
        // Every point says which GPU the machine has, and those that it took part in that it did.
        let both = ["cpu-shim", "gpu-thread"].map(|series| {
            let mut point = example(series, 64);
            point.provenance.gpu_device = "NVIDIA H200".into();
            point
        });
        let experiment = experiment("fig4");
        let line = |points: &[Point]| {
            caption(RunPoints { experiment: &experiment, points, unmeasured: &[] }, true).remove(0)
        };
        assert!(line(&both[..1]).contains("gpu: none, link"), "{}", line(&both[..1]));
        let said = line(&both);
        assert!(said.contains("gpu: hardware (NVIDIA H200), link"), "{said}");
    }

    #[test]
    fn rate_helpers_windows_and_a_tree_with_changes_are_named_below_the_plot() {
        let svg = |dirty: bool, rate: Option<f64>| {
            let points = [(64, 512), (128, 512), (4096, 256)].map(|(x, window)| {
                let mut point = example("cpu-shim", x);
                point.settings.insert("window".into(), window);
                point.provenance.revision.dirty = dirty;
                point.provenance.nic_options.extend(rate.map(|rate| ("rate_gbps".to_owned(), rate.into())));
                point.provenance.nic_options.insert("copy_threads".into(), "auto".into());
                point
            });
            drawn_as("fig4", &points, &[]).remove(0)
        };
        let (plain, shaped) = (svg(false, None), svg(true, Some(100.0)));
        for words in ["not shaped", "threads that help to copy: auto", "512 from 64 to 128 B, 256 at 4096 B"]
        {
            assert!(plain.contains(words), "{words}");
        }
        // The windows stand at the top of the logarithmic panel too.
        for window in [">\n512\n<", ">\n256\n<"] {
            assert!(plain.contains(window), "{window}");
        }
        assert!(shaped.contains("shaped to 100 Gbit/s") && !shaped.contains("not shaped"));
        assert!(shaped.contains("revision unknown with changes") && !plain.contains("with changes"));
    }

    #[test]
    fn a_machine_that_was_busy_is_named_below_the_plot() {
        let with = |load: Option<f64>, others: Option<f64>| {
            let mut point = example("cpu-shim", 64);
            (point.provenance.load, point.provenance.cores, point.others) = (load, 16, others);
            point
        };
        for load in [None, Some(0.3), Some(8.0)] {
            assert_eq!(crowded(&[with(load, None)]), None, "{load:?}");
        }
        let svg = |points: &[Point]| drawn_as("fig5", points, &[]).remove(0);
        // The second go of a run that was cut counts too.
        let busy_before = svg(&[with(Some(0.3), None), with(Some(9.26), None)]);
        assert!(busy_before.contains("load 9.3 on 16 cores in the minute before the run"));
        assert!(!svg(&[with(Some(0.3), None)]).contains("in the minute before"));
        assert!(svg(&[with(None, Some(3.0))]).contains("other programs kept 3.0 of 16 cores busy"));
        // A build just before: nothing ran beside the points.
        assert_eq!(crowded(&[with(Some(9.26), Some(0.1))]), None);
    }

    /// Something like a run on the software NIC.
    fn points() -> Vec<Point> {
        let mut points = Vec::new();
        for power in 6..=20 {
            for (series, post_ns, list) in
                [("cpu-ibverbs", 45.0, 1), ("cpu-shim", 20.0, 1), ("cpu-shim", 9.0, 16)]
            {
                for repetition in 0..3 {
                    let payload = 1_u64 << power;
                    let jitter = 1.0 + 0.06 * f64::from(repetition - 1) * f64::from(power % 3);
                    let gbps = (payload as f64 * 8.0 / (300.0 + payload as f64 / 16.0)) * jitter;
                    let mut point = example(series, payload).lists(list).with("wire_gbps", gbps);
                    point.provenance.nic = Label::Emulated;
                    *point.value("post_ns") = post_ns * jitter;
                    points.push(Point { repetition: repetition as u32, ..point });
                }
            }
        }
        points
    }

    #[test]
    fn each_plot_names_every_curve_and_rasterises() {
        let missing = ["gpu-thread".to_owned(), "gpu-warp".to_owned()];
        let [throughput, post_time] = &drawn_as("fig4", &points(), &missing)[..] else { panic!("two plots") };
        for (name, svg, labels) in [
            (
                "throughput",
                throughput,
                &[
                    "Throughput against payload size, by poster",
                    "GPU warp",
                    "on NVIDIA H200, sm_90 without a NIC",
                    "wire model of",
                    "in the `early` order",
                    "use `strict`",
                ][..],
            ),
            (
                "post-time",
                post_time,
                &[
                    "Time to post one request against payload size",
                    "CPU shim, list 16",
                    "L40",
                    "whole bursts",
                ],
            ),
        ] {
            for label in labels.iter().chain(&[
                "not measured: gpu-thread, gpu-warp (gpu-* need a GPU)",
                "ours (emulated NIC)",
                "paper (hardware)",
                "CPU, own code",
                "median and range of 3",
            ]) {
                assert!(svg.contains(label), "{name}: no `{label}`");
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
            let png = Drawing::read(svg).unwrap().png(2.0).unwrap();
            assert!(png.len() > 20_000, "{name}: {} bytes", png.len());
            // To be looked at.
            std::fs::write(std::env::temp_dir().join(format!("experiment-{name}.png")), png).unwrap();
        }
    }

    /// The points of each committed entry.
    fn committed(name: &str) -> Vec<Vec<Point>> {
        let path = root().join("experiments").join(name).join("measured.json");
        let measured = crate::measured::Measured::read(&path).unwrap();
        measured.entries.iter().map(|entry| entry.points(name)).collect()
    }

    #[test]
    fn what_is_committed_can_be_drawn() {
        for name in ["fig4", "fig5"] {
            for (at, points) in committed(name).iter().enumerate() {
                for (plot, svg) in drawn_as(name, points, &[]).iter().enumerate() {
                    // Rows of old revisions do not say their bursts, and stand in no plot of posts.
                    let says = points.iter().any(|point| !point.settings.is_empty());
                    assert!(!says || svg.contains("ours (emulated NIC)"), "{name}");
                    // To be looked at.
                    let path = std::env::temp_dir().join(format!("experiment-{name}-{at}-{plot}.png"));
                    std::fs::write(path, Drawing::read(svg).unwrap().png(2.0).unwrap()).unwrap();
                }
            }
        }
    }

    #[test]
    fn every_label_fits_the_legend() {
        let experiment = experiment("fig5");
        let series = experiment.spec.grid(spec::Extent::Full).series;
        let points: Vec<Point> =
            series.iter().flat_map(|series| [1, 16].map(|list| example(series, 64).lists(list))).collect();
        let fig5 = experiment.paper("fig5").unwrap();
        let curves = [published(fig5), models(fig5), measured(&experiment, &points, "post_ns")].concat();
        for curve in curves.into_iter().chain(modelled::example().iter().map(drawn)) {
            assert!(curve.label.chars().count() < LABEL_CHARACTERS, "{}", curve.label);
        }
    }

    #[test]
    fn a_plot_without_our_points_still_shows_the_paper() {
        for svg in drawn_as("fig4", &[], &[]) {
            assert!(svg.contains("no points of ours") && svg.contains("A100"));
        }
    }

    #[test]
    fn points_that_are_not_whole_are_hollow_and_counted() {
        let hollow = |svg: &str| svg.matches("r=\"6\"").count();
        let whole = drawn_as("fig4", &points(), &[]);
        assert!(whole.iter().all(|svg| !svg.contains("not whole") && hollow(svg) == 0));
        let mut broken = points();
        broken[0].missing = Some("torn".into());
        broken[40].missing = Some("lost".into());
        // A white disc and a ring each, in both panels: both sizes are on the paper's axes too.
        let svgs = drawn_as("fig4", &broken, &[]);
        assert!(svgs[0].contains("2 points not whole (large hollow markers), see the table"));
        assert_eq!((hollow(&svgs[0]), hollow(&svgs[1])), (8, 4));
    }

    /// M17: the release's plot leaves out points of the CPU below 90 Gbit/s above 21 kB.
    #[test]
    fn release_m17_every_point_is_drawn_however_low() {
        let rates = [(1000, 4.0), (22_000, 60.0), (40_000, 30.0), (65_536, 89.0)];
        let points = rates.map(|(bytes, rate)| example("cpu-ibverbs", bytes).with("wire_gbps", rate));
        let curves = measured(&experiment("fig4"), &points, "wire_gbps");
        let drawn: Vec<_> =
            curves.iter().flat_map(|curve| &curve.points).map(|[x, y, ..]| (*x as u64, *y)).collect();
        assert_eq!(drawn, rates);
    }

    #[test]
    fn an_axis_fits_what_is_drawn() {
        let axis = decades("y", 20.0, 1500.0);
        assert!(axis.range.start > 10.0 && axis.range.end < 3000.0, "{:?}", axis.range);
        assert_eq!(
            axis.ticks.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>()[..3],
            ["20", "50", "100"]
        );
        assert_eq!(decades("y", 0.003, 100.0).ticks[0].1, "0.01");
        // A point of which nothing arrived does not stretch it to nothing.
        let of = |values: &[f64]| {
            let points: Vec<Point> =
                values.iter().map(|value| example("cpu-shim", 64).with("wire_gbps", *value)).collect();
            measured(&experiment("fig4"), &points[..], "wire_gbps")
        };
        let x = x_axis("size", &spec::Panel { title: String::new(), log: true, to: None }, &of(&[1.0]));
        assert!(x.range.start > 40.0 && x.range.end < 100.0, "{:?}", x.range);
        assert_eq!(within(&of(&[3.0]), &x), (3.0, 3.0));
        assert_eq!(within(&of(&[0.0]), &x), (1.0, 10.0));
    }

    #[test]
    fn a_caption_is_cut_between_words() {
        assert_eq!(wrapped("one two three", 8), ["one two", "    three"]);
        assert_eq!(wrapped("one", 2), ["one"]);
    }

    #[test]
    fn linear_ticks_are_round_and_few() {
        for (most, last) in [(105.0, 120.0), (99.0, 100.0), (230.0, 250.0), (7.0, 7.0)] {
            let axis = steps("x", most);
            assert_eq!(axis.range.end, last, "{most}");
            assert!((4..=12).contains(&axis.ticks.len()), "{most}: {:?}", axis.ticks);
        }
    }
}
