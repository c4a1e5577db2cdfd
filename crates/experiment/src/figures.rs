//! The plots themselves: throughput and posting time against payload size, ours beside the published curves.

use anyhow::Result;
use measure::Label;
use plotters::style::RGBColor;

use super::modelled::Modelled;
use super::paper::Paper;
use super::plot::{Axis, BLUE, Curve, GREEN, Marker, ORANGE, PURPLE, Panel, SKY, Stroke, VERMILION, svg};
use super::statistics::by_payload;
use super::wire_model;
use crate::point::Point;
use crate::point::{crowded, needs_gpu, provenance_of};

const MODEL: RGBColor = RGBColor(90, 90, 90);
/// Of the lines that are modelled after our own posts, in their order. Other curves have these colours too: their stroke, which stands
/// beside the label as well, is nobody else's.
const MODELLED: [RGBColor; 4] = [PURPLE, GREEN, BLUE, ORANGE];
/// Largest payload on the paper's own axes.
const PAPER_BYTES: f64 = 80_000.0;

/// Figure 4: the whole range on logarithmic axes, and the paper's own axes beside it. `modelled`: lines of posts that were
/// measured without a NIC; `unmeasured`: series of the figure without a point.
pub fn throughput(
    points: &[Point],
    fig4: &Paper,
    fig5: &Paper,
    modelled: &[Modelled],
    unmeasured: &[String],
) -> Result<String> {
    let mut curves = published(fig4);
    curves.extend(models(fig5));
    curves.extend(modelled.iter().zip(MODELLED).map(drawn));
    curves.extend(measured(points, "wire_gbps"));
    let most = |upto: f64| {
        let of_curve = |curve: &Curve| {
            curve.points.iter().filter(|[x, ..]| *x <= upto).map(|[.., most]| *most).fold(0.0, f64::max)
        };
        curves.iter().map(of_curve).fold(0.0, f64::max)
    };
    let y_name = "throughput with headers, Gbit/s";
    let panels = [
        Panel {
            width: 0.43,
            title: "64 B to 1 MiB",
            x: payload_axis(),
            y: decades(y_name, least(&curves).min(0.1), most(f64::INFINITY).max(110.0)),
            labels: false,
        },
        Panel {
            width: 0.57,
            title: "the paper's axes",
            x: Axis {
                name: "payload size, kB",
                range: 0.0..PAPER_BYTES,
                log: false,
                ticks: (0..=8).map(|tick| (f64::from(tick) * 10_000.0, (tick * 10).to_string())).collect(),
            },
            y: steps(y_name, most(PAPER_BYTES).max(105.0)),
            labels: true,
        },
    ];
    let mut caption = caption(points, unmeasured);
    caption.extend(modelled.first().map(said_of));
    svg((1120, 466), &panels, &curves, &caption)
}

/// Figure 5: time to post one request, one by one and in lists.
pub fn post_time(points: &[Point], fig5: &Paper, unmeasured: &[String]) -> Result<String> {
    let mut curves = published(fig5);
    curves.extend(measured(points, "post_ns"));
    let most = curves.iter().flat_map(|curve| &curve.points).map(|[.., most]| *most).fold(0.0, f64::max);
    let panel = Panel {
        width: 1.0,
        title: "",
        x: payload_axis(),
        y: decades("time to post one request, ns", least(&curves).min(10.0), most.max(4000.0)),
        labels: true,
    };
    svg((870, 466), &[panel], &curves, &caption(points, unmeasured))
}

/// The least of all that is drawn. Nothing at all, as of messages of which none arrived, has no place on such an axis.
fn least(curves: &[Curve]) -> f64 {
    let values = curves.iter().flat_map(|curve| &curve.points).map(|[_, _, least, _]| *least);
    values.filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min)
}

fn published(paper: &Paper) -> Vec<Curve> {
    let colour = |ours: &str| match ours {
        "cpu-ibverbs" => SKY,
        "cpu-shim" => ORANGE,
        "gpu-a100" => GREEN,
        _ => PURPLE,
    };
    let curve = |curve: &super::paper::Curve| Curve {
        marker: Marker::Circle,
        label: format!("paper: {}", curve.label),
        colour: colour(&curve.ours),
        stroke: Stroke::Published,
        points: curve.points.clone(),
        not_whole: Vec::new(),
    };
    paper.series.iter().map(curve).collect()
}

/// Payload sizes at which a formula is drawn: finer than a pixel, on both axes.
fn fine() -> impl Iterator<Item = f64> {
    (0..=700).map(|step| 64.0 * 2_f64.powf(f64::from(step) / 50.0))
}

/// The line of posts that were measured on a GPU.
fn drawn((modelled, colour): (&Modelled, RGBColor)) -> Curve {
    let points = fine().map(|payload| {
        let gbps = modelled.throughput_gbps(payload);
        [payload, gbps, gbps, gbps]
    });
    Curve {
        marker: Marker::Circle,
        label: modelled.name.to_owned(),
        colour,
        stroke: Stroke::Modelled,
        points: points.collect(),
        not_whole: Vec::new(),
    }
}

/// What such lines stand on.
fn said_of(modelled: &Modelled) -> String {
    format!(
        "modelled — post times measured on {} without a NIC; link of {} Gbit/s, NIC and receiver: a formula without a limit of the \
         NIC's own",
        modelled.gpu_device, modelled.line_gbps
    )
}

/// The wire model of each published GPU, from the median of its published post times.
fn models(fig5: &Paper) -> Vec<Curve> {
    let gpus = fig5.series.iter().filter(|curve| curve.name.starts_with("gpu-"));
    let model = |curve: &super::paper::Curve| {
        let drawn = wire_model::of_published(curve)?;
        let points = fine().map(|payload| {
            let gbps = drawn(payload);
            [payload, gbps, gbps, gbps]
        });
        let label = format!("wire model, {}", curve.label);
        Some(Curve {
            marker: Marker::Circle,
            label,
            colour: MODEL,
            stroke: Stroke::Model,
            points: points.collect(),
            not_whole: Vec::new(),
        })
    };
    gpus.filter_map(model).collect()
}

/// Ours: median with least and most, requests one by one and in lists.
fn measured(points: &[Point], field: &str) -> Vec<Curve> {
    let mut keys: Vec<(&str, u32)> = points.iter().map(|point| (point.series.as_str(), point.list)).collect();
    keys.sort_unstable();
    keys.dedup();
    let colour = |series: &str| match series {
        "cpu-ibverbs" => BLUE,
        "cpu-shim" => VERMILION,
        "gpu-warp" => GREEN,
        "gpu-original" => ORANGE,
        gpu if gpu.ends_with("a100") => GREEN,
        _ => PURPLE,
    };
    let curve = |(series, list): (&str, u32)| {
        let name = match series {
            "cpu-ibverbs" => "ibv_post_send",
            "cpu-shim" => "CPU shim",
            other => other,
        };
        let label =
            if list == 1 { format!("ours: {name}") } else { format!("ours: {name}, lists of {list}") };
        let stroke = if list == 1 { Stroke::Measured } else { Stroke::MeasuredThin };
        let own = points.iter().filter(|point| point.series == series && point.list == list);
        let not_whole = own.filter(|point| !point.is_whole()).map(|point| point.payload_bytes as f64);
        let not_whole = not_whole.collect();
        let by_payload = by_payload(points, series, list, field).into_iter();
        let points = by_payload.map(|(payload, [median, least, most])| [payload as f64, median, least, most]);
        let marker =
            if ["cpu-shim", "gpu-original"].contains(&series) { Marker::Triangle } else { Marker::Circle };
        Curve { marker, label, colour: colour(series), stroke, points: points.collect(), not_whole }
    };
    keys.into_iter().map(curve).collect()
}

/// What the numbers stand on, below every plot.
fn caption(points: &[Point], unmeasured: &[String]) -> Vec<String> {
    let Some(from) = provenance_of(points) else { return vec!["no points of ours".into()] };
    let gpu =
        if from.gpu == Label::None { "none".into() } else { format!("{} ({})", from.gpu, from.gpu_device) };
    let version = |name: &str| from.versions.get(name).map_or("unknown", String::as_str);
    let repetitions = points.iter().map(|point| point.repetition + 1).max().unwrap_or(1);
    let commit = from.revision.commit.get(..10).unwrap_or("unknown");
    let changes = if from.revision.dirty { " with changes" } else { "" };
    let broken = points.iter().filter(|point| !point.is_whole()).count();
    let mut lines = vec![
        format!(
            "ours — nic: {} ({}), gpu: {gpu}, link: {}; median and range of {repetitions} repetitions; {}",
            from.nic, from.device, from.link, from.machine
        ),
        format!(
            "libibverbs {}, libmlx5 {}, kernel {}, {} build, revision {commit}{changes}",
            version("libibverbs"),
            version("libmlx5"),
            version("kernel"),
            version("profile"),
        ),
        "paper — doi 10.1145/3642968.3654820; curves from the plots of its authors' re-run, August 2024"
            .into(),
    ];
    if !unmeasured.is_empty() {
        let gpu = if unmeasured.iter().any(|series| needs_gpu(series)) { " (gpu-* need a GPU)" } else { "" };
        lines.push(format!("not measured: {}{gpu}", unmeasured.join(", ")));
    }
    lines.extend(crowded(points));
    if broken > 0 {
        lines.push(format!("{broken} points not whole (large hollow markers), see the table"));
    }
    lines
}

fn payload_axis() -> Axis {
    let ticks = (3..=10).map(|power| 1_u64 << (2 * power)).map(|bytes| (bytes as f64, binary(bytes)));
    Axis { name: "payload size, B", range: 50.0..1_400_000.0, log: true, ticks: ticks.collect() }
}

fn binary(bytes: u64) -> String {
    match bytes {
        mib if mib >= 1 << 20 => format!("{} Mi", mib >> 20),
        kib if kib >= 1 << 10 => format!("{} Ki", kib >> 10),
        _ => bytes.to_string(),
    }
}

/// A logarithmic axis with a tick at each power of ten.
fn decades(name: &'static str, least: f64, most: f64) -> Axis {
    let (first, last) = (least.max(1e-9).log10().floor() as i32, most.log10().ceil() as i32);
    let text = |power: i32| {
        if power >= 0 {
            format!("{}", 10_f64.powi(power))
        } else {
            format!("{:.*}", -power as usize, 10_f64.powi(power))
        }
    };
    let ticks = (first..=last).map(|power| (10_f64.powi(power), text(power)));
    // The axis ends a little above the data, not at the next power of ten.
    Axis {
        name,
        range: 10_f64.powi(first)..(most * 1.6).min(10_f64.powi(last) * 1.6),
        log: true,
        ticks: ticks.filter(|(tick, _)| *tick <= most * 1.6).collect(),
    }
}

/// A linear axis from zero, with five to ten round ticks.
fn steps(name: &'static str, most: f64) -> Axis {
    let magnitude = 10_f64.powf((most / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * magnitude).into_iter().find(|step| most / step <= 8.0);
    let step = step.unwrap_or(magnitude * 10.0);
    let count = (most / step).ceil() as u32;
    let ticks = (0..=count).map(|tick| f64::from(tick) * step).map(|value| (value, format!("{value}")));
    Axis { name, range: 0.0..f64::from(count) * step, log: false, ticks: ticks.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modelled;
    use crate::plot::LABEL_CHARACTERS;
    use crate::png::png;
    use crate::point::example;
    use crate::root;

    /// The first series is a CPU's, mostly.
    #[test]
    fn a_gpu_that_took_part_is_named_below_the_plot() {
        // Every point says which GPU the machine has, and those that it took part in that it did.
        let both = ["cpu-shim", "gpu-thread"].map(|series| {
            let mut point = example(series, 64);
            point.provenance.gpu_device = "NVIDIA H200".into();
            point
        });
        let line = |points: &[Point]| caption(points, &[]).remove(0);
        assert!(line(&both[..1]).contains("gpu: none, link"), "{}", line(&both[..1]));
        let said = line(&both);
        assert!(said.contains("gpu: hardware (NVIDIA H200), link"), "{said}");
    }

    #[test]
    fn a_machine_that_was_busy_before_is_named_below_the_plot() {
        let with = |load: Option<f64>| {
            let mut point = example("cpu-shim", 64);
            (point.provenance.load, point.provenance.cores) = (load, 16);
            point
        };
        for load in [None, Some(0.3), Some(8.0)] {
            assert_eq!(crowded(&[with(load)]), None, "{load:?}");
        }
        // The second go of a run that was cut counts too.
        let svg = post_time(&[with(Some(0.3)), with(Some(9.26))], &paper(5), &[]).unwrap();
        assert!(svg.contains("load 9.3 on 16 cores in the minute before the run: other programs"), "{svg}");
        assert!(!post_time(&[with(Some(0.3))], &paper(5), &[]).unwrap().contains("in the minute before"));
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
                    points.push(Point {
                        wire_gbps: gbps,
                        post_ns: post_ns * jitter,
                        list,
                        repetition: repetition as u32,
                        ..example(series, payload)
                    });
                }
            }
        }
        points
    }

    fn paper(figure: u32) -> Paper {
        Paper::read(&root().join(format!("experiments/fig{figure}"))).unwrap()
    }

    #[test]
    fn each_plot_names_every_curve_and_rasterises() {
        let folder = std::env::temp_dir();
        let missing = ["gpu-thread".to_owned(), "gpu-warp".to_owned()];
        for (name, svg, labels) in [
            (
                "throughput",
                throughput(&points(), &paper(4), &paper(5), &modelled::example(), &missing).unwrap(),
                &[
                    "modelled: GPU warp",
                    "on NVIDIA H200, sm_90 without a NIC",
                    "wire model, A100",
                    "ours: CPU shim",
                ][..],
            ),
            (
                "post-time",
                post_time(&points(), &paper(5), &missing).unwrap(),
                &["ours: CPU shim, lists of 16", "paper: L40"],
            ),
        ] {
            for label in labels.iter().chain(&[
                "not measured: gpu-thread, gpu-warp (gpu-* need a GPU)",
                "nic: hardware",
                "paper: CPU, own code",
                "median and range of 3",
            ]) {
                assert!(svg.contains(label), "{name}: no `{label}`");
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
            let png = png(&svg, 2.0).unwrap();
            assert!(png.len() > 20_000, "{name}: {} bytes", png.len());
            // To be looked at.
            std::fs::write(folder.join(format!("xtask-{name}.png")), png).unwrap();
        }
    }

    /// Purple, green, blue and orange are colours of other curves as well.
    #[test]
    fn modelled_lines_have_a_stroke_of_their_own_and_it_stands_beside_their_labels() {
        let discs = |modelled: &[Modelled]| -> Vec<f64> {
            let svg = throughput(&[], &paper(4), &paper(5), modelled, &[]).unwrap();
            let circles = svg.split("<circle ").skip(1).filter(|circle| circle.contains("r=\"2\""));
            circles.map(|circle| circle.split('"').nth(1).unwrap().parse().unwrap()).collect()
        };
        assert!(discs(&[]).is_empty(), "nothing else is drawn so");
        let modelled = modelled::example();
        let (beside, on_lines): (Vec<f64>, Vec<f64>) = discs(&modelled).iter().partition(|x| **x > 916.0);
        assert_eq!(beside.len(), 3 * modelled.len());
        assert!(on_lines.len() > 20 * modelled.len(), "{}", on_lines.len());
    }

    #[test]
    fn every_label_fits_its_column() {
        let points: Vec<Point> = ["cpu-ibverbs", "cpu-shim", "gpu-a100", "gpu-original", "gpu-warp"]
            .iter()
            .flat_map(|series| [1, 16].map(|list| Point { list, ..example(series, 64) }))
            .collect();
        let curves = [published(&paper(5)), models(&paper(5)), measured(&points, "post_ns")].concat();
        let modelled = modelled::example();
        for curve in curves.into_iter().chain(modelled.iter().zip(MODELLED).map(drawn)) {
            assert!(curve.label.len() <= LABEL_CHARACTERS, "{}", curve.label);
        }
    }

    #[test]
    fn a_plot_without_our_points_still_shows_the_paper() {
        assert!(throughput(&[], &paper(4), &paper(5), &[], &[]).unwrap().contains("paper: A100"));
        assert!(post_time(&[], &paper(5), &[]).unwrap().contains("no points of ours"));
    }

    #[test]
    fn points_that_are_not_whole_are_hollow_and_counted() {
        let hollow = |svg: &str| svg.matches("r=\"6\"").count();
        let whole = throughput(&points(), &paper(4), &paper(5), &[], &[]).unwrap();
        assert!(!whole.contains("not whole") && hollow(&whole) == 0);
        let mut broken = points();
        broken[0].content_ok = false;
        broken[40].completed -= 1;
        // A white disc and a ring each, in both panels: both sizes are on the paper's axes too.
        let svg = throughput(&broken, &paper(4), &paper(5), &[], &[]).unwrap();
        assert!(svg.contains("2 points not whole (large hollow markers), see the table"));
        assert_eq!(hollow(&svg), 8);
        let svg = post_time(&broken, &paper(5), &[]).unwrap();
        assert!(svg.contains("2 points not whole") && hollow(&svg) == 4);
    }

    #[test]
    fn the_axis_reaches_down_to_the_least_of_ours() {
        let mut points = points();
        points[0].wire_gbps = 0.003;
        points[3].wire_gbps = 0.0;
        let curves = measured(&points, "wire_gbps");
        assert_eq!(least(&curves), 0.003);
        let axis = decades("x", least(&curves).min(0.1), 100.0);
        assert_eq!((axis.range.start, axis.ticks[0].1.as_str()), (0.001, "0.001"));
        assert!(throughput(&points, &paper(4), &paper(5), &[], &[]).unwrap().contains("0.001"));
        assert_eq!(decades("x", 0.1_f64.min(least(&[])), 100.0).ticks[0].1, "0.1");
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
