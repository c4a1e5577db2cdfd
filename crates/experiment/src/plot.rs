//! Drawing: panels with curves, bands and labels beside their lines, as SVG.
//!
//! Knows curves, not figures (`figures.rs`). Colours are Okabe and Ito's, which colour-blind readers tell apart.

use std::ops::Range;

use anyhow::{Result, anyhow};
use plotters::chart::ChartContext;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Every text of a plot; the first one is embedded for the PNG, the second serves other viewers of the SVG.
const FONT: &str = "DejaVu Sans, sans-serif";
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
const FAINT: RGBColor = RGBColor(110, 110, 110);

/// Blue, vermilion, green, purple, sky, orange, black.
pub const BLUE: RGBColor = RGBColor(0, 114, 178);
/// See `BLUE`.
pub const VERMILION: RGBColor = RGBColor(213, 94, 0);
/// See `BLUE`.
pub const GREEN: RGBColor = RGBColor(0, 158, 115);
/// See `BLUE`.
pub const PURPLE: RGBColor = RGBColor(170, 90, 140);
/// See `BLUE`.
pub const SKY: RGBColor = RGBColor(86, 180, 233);
/// See `BLUE`.
pub const ORANGE: RGBColor = RGBColor(230, 159, 0);

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// Ours: solid, with markers and a band from the least to the most.
    Measured,
    /// Ours, a second variant of the same poster: solid and thin, with hollow markers and a band.
    MeasuredThin,
    /// Published: thin and dashed.
    Published,
    /// A formula of what was published: thin and dotted.
    Model,
    /// A formula of what we measured: small discs, apart from one another.
    Modelled,
}

/// Shape at the points of a measured curve, for readers without colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// A disc, or a ring on a thin curve.
    Circle,
    /// A triangle.
    Triangle,
}

/// One curve: x, y, least y, most y.
#[derive(Clone, Debug)]
pub struct Curve {
    /// What stands at its points, when it is measured.
    pub marker: Marker,
    /// What stands beside it.
    pub label: String,
    /// Its colour.
    pub colour: RGBColor,
    /// How it is drawn.
    pub stroke: Stroke,
    /// In order of x.
    pub points: Vec<[f64; 4]>,
    /// The x of points of which something is missing: drawn large and hollow.
    pub not_whole: Vec<f64>,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Name and unit.
    pub name: &'static str,
    /// First and last value.
    pub range: Range<f64>,
    /// Logarithmic or linear.
    pub log: bool,
    /// Values with a tick, and what stands there.
    pub ticks: Vec<(f64, String)>,
}

/// One coordinate system.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Its share of the width.
    pub width: f64,
    /// What stands above it.
    pub title: &'static str,
    /// Along.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// Which curves get a label beside the right end.
    pub labels: bool,
}

/// Draws all `curves` in each of `panels`, `caption` lines below.
pub fn svg(size: (u32, u32), panels: &[Panel], curves: &[Curve], caption: &[String]) -> Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        let caption_height = 17 * caption.len() as i32 + 14;
        let (plot, below) = root.split_vertically(size.1 as i32 - caption_height);
        for (index, line) in caption.iter().enumerate() {
            let style = (FONT, 10.5).into_font().color(&FAINT);
            below.draw_text(line, &style, (14, 8 + 17 * index as i32)).map_err(drawing)?;
        }
        let mut rest = plot;
        let total: f64 = panels.iter().map(|panel| panel.width).sum();
        for panel in panels {
            let (own, right) = rest.split_horizontally((f64::from(size.0) * panel.width / total) as i32);
            draw(&own, panel, curves)?;
            rest = right;
        }
        root.present().map_err(drawing)?;
    }
    Ok(text)
}

fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing: {error}")
}

/// A linear or logarithmic axis, chosen at run time, with ticks where we want them.
struct Scale {
    from: f64,
    to: f64,
    log: bool,
    ticks: Vec<f64>,
}

impl Scale {
    fn of(axis: &Axis) -> Scale {
        let ticks = axis.ticks.iter().map(|(value, _)| *value).collect();
        Scale { from: axis.range.start, to: axis.range.end, log: axis.log, ticks }
    }

    fn share(&self, value: f64) -> f64 {
        let scaled = |value: f64| if self.log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        (scaled(value) - scaled(self.from)) / (scaled(self.to) - scaled(self.from))
    }
}

impl Ranged for Scale {
    type ValueType = f64;
    type FormatOption = DefaultFormatting;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (self.share(*value) * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, Scale>>;

/// Longest label that fits its column.
#[cfg(test)]
pub const LABEL_CHARACTERS: usize = 32;
/// Width of the column of labels: 32 characters of this size, the leaders, and a piece of each stroke.
const LABELS: u32 = 204;
/// Pixels from one disc of a modelled line to the next.
const APART: u32 = 12;
/// Length of the piece of a curve's stroke beside its label.
const SAMPLE: i32 = 28;

fn draw(area: &Area<'_>, panel: &Panel, curves: &[Curve]) -> Result<()> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(if panel.title.is_empty() { 14 } else { 10 })
        .margin_left(8)
        .margin_right(if panel.labels { LABELS } else { 16 })
        .caption(panel.title, (FONT, 12.5).into_font().color(&INK))
        .x_label_area_size(42)
        .y_label_area_size(58)
        .build_cartesian_2d(Scale::of(&panel.x), Scale::of(&panel.y))
        .map_err(drawing)?;
    let written = |axis: &Axis, value: &f64| {
        let found = axis.ticks.iter().find(|(tick, _)| tick == value);
        found.map_or_else(String::new, |(_, text)| text.clone())
    };
    chart
        .configure_mesh()
        .disable_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .x_desc(panel.x.name)
        .y_desc(panel.y.name)
        .axis_desc_style((FONT, 12.5).into_font().color(&INK))
        .label_style((FONT, 11.0).into_font().color(&INK))
        .x_label_formatter(&|value| written(&panel.x, value))
        .y_label_formatter(&|value| written(&panel.y, value))
        .x_labels(panel.x.ticks.len())
        .y_labels(panel.y.ticks.len())
        .draw()
        .map_err(drawing)?;
    grid(&mut chart, panel)?;

    // Published and modelled first: ours lie on top.
    let inside: Vec<Curve> =
        curves.iter().map(|curve| clipped(curve, panel)).filter(|curve| !curve.points.is_empty()).collect();
    let (ours, theirs): (Vec<&Curve>, Vec<&Curve>) =
        inside.iter().partition(|curve| matches!(curve.stroke, Stroke::Measured | Stroke::MeasuredThin));
    for curve in theirs.iter().chain(&ours) {
        stroke(&mut chart, curve)?;
    }
    if panel.labels {
        let ends: Vec<(i32, i32)> = inside.iter().map(|curve| end(&chart, curve)).collect();
        label(area, &inside, &ends)?;
    }
    Ok(())
}

fn grid(chart: &mut Chart<'_, '_>, panel: &Panel) -> Result<()> {
    for (tick, _) in &panel.y.ticks {
        let line = vec![(panel.x.range.start, *tick), (panel.x.range.end, *tick)];
        chart.draw_series([PathElement::new(line, GRID)]).map_err(drawing)?;
    }
    Ok(())
}

/// The part of a curve that lies within the panel; values beyond an end of y are drawn at that end.
fn clipped(curve: &Curve, panel: &Panel) -> Curve {
    let (x, y) = (&panel.x.range, &panel.y.range);
    let points = curve.points.iter().filter(|[at, ..]| (x.start..=x.end).contains(at));
    let points = points.map(|[at, rest @ ..]| {
        let [middle, least, most] = rest.map(|value| value.clamp(y.start, y.end));
        [*at, middle, least, most]
    });
    Curve { points: points.collect(), ..curve.clone() }
}

fn stroke(chart: &mut Chart<'_, '_>, curve: &Curve) -> Result<()> {
    let line: Vec<(f64, f64)> = curve.points.iter().map(|[x, y, ..]| (*x, *y)).collect();
    let colour = curve.colour;
    match curve.stroke {
        Stroke::Measured | Stroke::MeasuredThin => {
            let upper = curve.points.iter().map(|[x, _, _, most]| (*x, *most));
            let lower = curve.points.iter().rev().map(|[x, _, least, _]| (*x, *least));
            let band: Vec<(f64, f64)> = upper.chain(lower).collect();
            chart.draw_series([Polygon::new(band, colour.mix(0.18).filled())]).map_err(drawing)?;
            let bold = curve.stroke == Stroke::Measured;
            let width = if bold { 2 } else { 1 };
            chart.draw_series(LineSeries::new(line.clone(), colour.stroke_width(width))).map_err(drawing)?;
            match (curve.marker, bold) {
                (Marker::Triangle, true) => {
                    chart.draw_series(line.into_iter().map(|at| TriangleMarker::new(at, 5, colour.filled())))
                }
                (_, true) => {
                    chart.draw_series(line.into_iter().map(|at| Circle::new(at, 3, colour.filled())))
                }
                (_, false) => {
                    chart.draw_series(line.into_iter().map(|at| Circle::new(at, 3, colour.stroke_width(1))))
                }
            }
            .map_err(drawing)?;
            for [x, y, ..] in curve.points.iter().filter(|[x, ..]| curve.not_whole.contains(x)) {
                let rings = [
                    Circle::new((*x, *y), 6, WHITE.filled()),
                    Circle::new((*x, *y), 6, colour.stroke_width(2)),
                ];
                chart.draw_series(rings).map_err(drawing)?;
            }
        }
        Stroke::Published => {
            chart.draw_series(DashedLineSeries::new(line, 7, 4, colour.stroke_width(1))).map_err(drawing)?;
        }
        Stroke::Modelled => {
            let disc = move |at| Circle::new(at, 2, colour.filled());
            chart.draw_series(DottedLineSeries::new(line, 0, APART, disc)).map_err(drawing)?;
        }
        Stroke::Model => {
            chart.draw_series(DashedLineSeries::new(line, 1, 3, colour.stroke_width(1))).map_err(drawing)?;
        }
    }
    Ok(())
}

/// Where the last point of a curve is, in pixels of the whole drawing.
fn end(chart: &Chart<'_, '_>, curve: &Curve) -> (i32, i32) {
    let [x, y, ..] = curve.points.last().copied().unwrap_or_default();
    chart.backend_coord(&(x, y))
}

/// Least distance of two labels.
const LINE: i32 = 16;

/// Labels in a column right of the panel, in the order of the curves' ends, joined to them by leaders.
fn label(area: &Area<'_>, curves: &[Curve], ends: &[(i32, i32)]) -> Result<()> {
    let (base_x, base_y) = area.get_base_pixel();
    let (width, height) = area.dim_in_pixel();
    let column = width as i32 - LABELS as i32 + 40;
    let wanted: Vec<i32> = ends.iter().map(|(_, y)| y - base_y).collect();
    let places = spread(&wanted, 12, height as i32 - 50);
    for ((curve, end), y) in curves.iter().zip(ends).zip(places) {
        let from = (end.0 - base_x + 5, end.1 - base_y);
        let start = (column - 4 - SAMPLE, y);
        area.draw(&PathElement::new(vec![from, start], curve.colour.mix(0.35))).map_err(drawing)?;
        sample(area, curve, start)?;
        let style = (FONT, 11.5).into_font().color(&curve.colour).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw_text(&curve.label, &style, (column, y)).map_err(drawing)?;
    }
    Ok(())
}

/// A piece of a curve's stroke, beside its label: colours alone do not tell all curves apart.
fn sample(area: &Area<'_>, curve: &Curve, (x, y): (i32, i32)) -> Result<()> {
    let dashes = |length: i32, gap: i32, width: u32| -> Result<()> {
        for from in (0..SAMPLE).step_by((length + gap) as usize) {
            let dash = vec![(x + from, y), (x + (from + length).min(SAMPLE), y)];
            area.draw(&PathElement::new(dash, curve.colour.stroke_width(width))).map_err(drawing)?;
        }
        Ok(())
    };
    let middle = (x + SAMPLE / 2, y);
    match (curve.stroke, curve.marker) {
        (Stroke::Measured, Marker::Circle) => {
            dashes(SAMPLE, 0, 2)?;
            area.draw(&Circle::new(middle, 3, curve.colour.filled())).map_err(drawing)
        }
        (Stroke::Measured, Marker::Triangle) => {
            dashes(SAMPLE, 0, 2)?;
            area.draw(&TriangleMarker::new(middle, 5, curve.colour.filled())).map_err(drawing)
        }
        (Stroke::MeasuredThin, _) => {
            dashes(SAMPLE, 0, 1)?;
            area.draw(&Circle::new(middle, 3, curve.colour.stroke_width(1))).map_err(drawing)
        }
        (Stroke::Published, _) => dashes(7, 4, 1),
        (Stroke::Model, _) => dashes(1, 3, 1),
        (Stroke::Modelled, _) => {
            for from in (2..SAMPLE).step_by(APART as usize) {
                area.draw(&Circle::new((x + from, y), 2, curve.colour.filled())).map_err(drawing)?;
            }
            Ok(())
        }
    }
}

/// Moves `wanted` heights apart until none is nearer than a line to the next, keeping their order.
fn spread(wanted: &[i32], top: i32, bottom: i32) -> Vec<i32> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|index| wanted[*index]);
    let mut places = vec![0; wanted.len()];
    let mut least = top;
    for index in &order {
        places[*index] = wanted[*index].max(least);
        least = places[*index] + LINE;
    }
    // What was pushed past the bottom pushes back up.
    let mut most = bottom;
    for index in order.iter().rev() {
        places[*index] = places[*index].min(most);
        most = places[*index] - LINE;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_a_line_apart_and_in_order() {
        for wanted in [vec![50, 50, 50], vec![10, 300, 12, 299], vec![290, 295, 298], vec![]] {
            let places = spread(&wanted, 12, 300);
            let mut sorted = places.clone();
            sorted.sort_unstable();
            assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= LINE), "{wanted:?} → {places:?}");
            assert!(places.iter().all(|place| *place <= 300), "{places:?}");
        }
    }

    #[test]
    fn a_logarithmic_axis_maps_its_ends_and_its_middle() {
        let axis = |log| Axis { name: "", range: 1.0..10_000.0, log, ticks: vec![] };
        let scale = Scale::of(&axis(true));
        assert_eq!([1.0, 100.0, 10_000.0].map(|value| scale.map(&value, (0, 100))), [0, 50, 100]);
        assert_eq!(Scale::of(&axis(false)).map(&10_000.0, (100, 0)), 0);
    }

    #[test]
    fn a_curve_stays_in_its_panel() {
        let axis = Axis { name: "", range: 1.0..10.0, log: false, ticks: vec![] };
        let panel = Panel { width: 1.0, title: "", x: axis.clone(), y: axis, labels: false };
        let points = vec![[0.5, 5.0, 5.0, 5.0], [2.0, 5.0, 0.0, 20.0]];
        let curve = Curve {
            marker: Marker::Circle,
            label: String::new(),
            colour: BLUE,
            stroke: Stroke::Measured,
            points,
            not_whole: Vec::new(),
        };
        assert_eq!(clipped(&curve, &panel).points, [[2.0, 5.0, 1.0, 10.0]]);
    }
}
