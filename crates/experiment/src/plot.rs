//! Drawing: panels with curves and bands, a legend beside them, a caption below, as SVG.
//!
//! Knows curves, not experiments (`figures.rs`). In a plot, only a broken and a solid curve of one level
//! share a colour, and no two broken lines their dashes.

use std::ops::Range;

use anyhow::{Result, anyhow};
use plotters::chart::ChartContext;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::colours::{COLOURS, FAINT, GRID, INK};

/// Every text of a plot; the first one is embedded for the PNG, the second serves other viewers of the SVG.
pub const FONT: &str = "DejaVu Sans, sans-serif";

/// Lengths of dash and gap, in pixels, one pair a broken line.
const DASHES: [(u32, u32); 12] =
    [(9, 4), (5, 3), (14, 4), (3, 3), (9, 9), (2, 6), (14, 10), (1, 3), (6, 8), (20, 4), (3, 9), (20, 12)];

/// What a curve is made of, which tells how it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Measured here: solid, with markers and a band from the least to the most.
    Measured,
    /// The same of another variant of the same series: thin, with hollow markers.
    Variant,
    /// A measured distribution: solid, without markers.
    Plain,
    /// Published: broken, without markers.
    Published,
    /// A formula: the same, and thin.
    Broken,
}

impl Kind {
    fn is_broken(self) -> bool {
        matches!(self, Kind::Published | Kind::Broken)
    }

    /// Of its stroke, in pixels.
    fn width(self) -> u32 {
        if matches!(self, Kind::Variant | Kind::Broken) { 1 } else { 2 }
    }
}

#[derive(Clone, Debug)]
pub struct Curve {
    /// Heading under which it stands in the legend; curves of one heading follow one another.
    pub group: String,
    /// Its name in the legend.
    pub label: String,
    pub kind: Kind,
    /// x, y, least y, most y, in order of x.
    pub points: Vec<[f64; 4]>,
    /// The x of points of which something is missing: drawn large and hollow.
    pub not_whole: Vec<f64>,
    /// What a broken and a solid curve have in common that share a colour.
    pub level: Option<u64>,
}

impl Curve {
    /// Of whole points without a range.
    pub fn of(
        group: impl Into<String>,
        label: impl Into<String>,
        kind: Kind,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Curve {
        let points = points.into_iter().map(|(x, y)| [x, y, y, y]).collect();
        Curve { group: group.into(), label: label.into(), kind, points, not_whole: Vec::new(), level: None }
    }

    pub fn at_level(self, level: u64) -> Curve {
        Curve { level: Some(level), ..self }
    }
}

/// Colour, dashes and marker of one curve among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CurveStyle {
    colour: RGBColor,
    dash: (u32, u32),
    marker: usize,
}

/// A look for each curve: a colour with markers (measured) or dashes (broken). Error: too many curves.
fn looks(curves: &[Curve]) -> Result<Vec<CurveStyle>> {
    let mut colours = COLOURS.iter();
    let mut looks: Vec<CurveStyle> = Vec::new();
    for curve in curves {
        let before = || curves.iter().zip(&looks);
        let broken = curve.kind.is_broken();
        let of_level: Vec<_> =
            before().filter(|(other, _)| curve.level.is_some() && other.level == curve.level).collect();
        let shared = match of_level[..] {
            [(other, look)] if other.kind.is_broken() != broken => Some(look.colour),
            _ => None,
        };
        let colour = shared.or_else(|| colours.next().copied()).ok_or_else(|| {
            anyhow!("{} curves in one plot, and {} colours to tell them apart", curves.len(), COLOURS.len())
        })?;
        let count = before().filter(|(other, _)| other.kind.is_broken() == broken).count();
        looks.push(CurveStyle { colour, dash: DASHES[count % DASHES.len()], marker: count });
    }
    Ok(looks)
}

#[derive(Clone, Debug)]
pub struct Axis {
    /// Name and unit.
    pub name: String,
    /// First and last value.
    pub range: Range<f64>,
    /// Logarithmic or linear.
    pub log: bool,
    /// Values with a tick, and what stands there.
    pub ticks: Vec<(f64, String)>,
}

#[derive(Clone, Debug)]
pub struct Panel {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    /// Values of x from which on something is different, and what.
    pub marks: Vec<(f64, String)>,
}

/// Width of the legend.
const LEGEND: u32 = 262;
/// Height of a line of the legend or of the caption.
pub const LINE: i32 = 17;
/// Length of the piece of a curve's stroke in the legend.
const SAMPLE: i32 = 44;
/// Longest label that fits the legend.
pub const LABEL_CHARACTERS: usize = 32;

/// Draws all `curves` in each of `panels`, the legend right of them, `caption` lines below.
pub fn svg(
    size: (u32, u32),
    title: &str,
    panels: &[Panel],
    curves: &[Curve],
    caption: &[String],
) -> Result<String> {
    let looks = looks(curves)?;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        let caption_height = LINE * caption.len() as i32 + 14;
        let (above, below) = root.split_vertically(size.1 as i32 - caption_height);
        for (index, line) in caption.iter().enumerate() {
            let style = (FONT, 11.5).into_font().color(&FAINT);
            below.draw_text(line, &style, (14, 8 + LINE * index as i32)).map_err(drawing)?;
        }
        let (head, plot) = above.split_vertically(26);
        let style = (FONT, 14.0).into_font().color(&INK);
        head.draw_text(title, &style, (14, 8)).map_err(drawing)?;
        let (plot, column) = plot.split_horizontally((size.0 - LEGEND) as i32);
        let width = (size.0 - LEGEND) as i32 / panels.len().max(1) as i32;
        let mut rest = plot;
        for panel in panels {
            let (own, right) = rest.split_horizontally(width);
            draw(&own, panel, curves, &looks)?;
            rest = right;
        }
        legend(&column, curves, &looks)?;
        root.present().map_err(drawing)?;
    }
    Ok(text)
}

pub fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
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

fn draw(area: &Area<'_>, panel: &Panel, curves: &[Curve], looks: &[CurveStyle]) -> Result<()> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(4)
        .margin_left(8)
        .margin_right(16)
        .caption(&panel.title, (FONT, 12.5).into_font().color(&INK))
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
        .x_desc(&panel.x.name)
        .y_desc(&panel.y.name)
        .axis_desc_style((FONT, 12.5).into_font().color(&INK))
        .label_style((FONT, 12.0).into_font().color(&INK))
        .x_label_formatter(&|value| written(&panel.x, value))
        .y_label_formatter(&|value| written(&panel.y, value))
        .x_labels(panel.x.ticks.len())
        .y_labels(panel.y.ticks.len())
        .draw()
        .map_err(drawing)?;
    for (tick, _) in &panel.y.ticks {
        let line = vec![(panel.x.range.start, *tick), (panel.x.range.end, *tick)];
        chart.draw_series([PathElement::new(line, GRID)]).map_err(drawing)?;
    }
    marks(&mut chart, panel)?;
    // Published and modelled first: what was measured lies on top.
    let inside = || curves.iter().map(|curve| clipped(curve, panel)).zip(looks);
    for measured in [false, true] {
        for (curve, look) in inside().filter(|(curve, _)| curve.kind.is_broken() != measured) {
            stroke(&mut chart, &curve, *look)?;
        }
    }
    Ok(())
}

/// Upright lines where something changes, with what it is from there on at the top.
fn marks(chart: &mut Chart<'_, '_>, panel: &Panel) -> Result<()> {
    let (bottom, top) = (panel.y.range.start, panel.y.range.end);
    // Where the last text of each of two rows ends: one that has room in neither is left to the caption.
    let mut ends = [i32::MIN; 2];
    for (x, text) in panel.marks.iter().filter(|(x, _)| panel.x.range.contains(x)) {
        let line = vec![(*x, bottom), (*x, top)];
        chart.draw_series(DashedLineSeries::new(line, 1, 3, FAINT.stroke_width(1))).map_err(drawing)?;
        let style = (FONT, 8.5).into_font().color(&FAINT).pos(Pos::new(HPos::Left, VPos::Top));
        let from = chart.backend_coord(&(*x, top)).0;
        let Some(row) = ends.iter().position(|end| *end < from) else { continue };
        ends[row] = from + 6 + 6 * text.chars().count() as i32;
        let at = EmptyElement::at((*x, top)) + Text::new(text.clone(), (2, 1 + 10 * row as i32), style);
        chart.draw_series([at]).map_err(drawing)?;
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

/// Corners of a marker around its point, in pixels; none of a disc.
fn corners(shape: usize) -> Vec<(i32, i32)> {
    const R: i32 = 4;
    match shape % 4 {
        0 => vec![],
        1 => vec![(0, -R - 1), (-R, R - 1), (R, R - 1), (0, -R - 1)],
        2 => vec![(1 - R, 1 - R), (R - 1, 1 - R), (R - 1, R - 1), (1 - R, R - 1), (1 - R, 1 - R)],
        _ => vec![(0, -R - 1), (R + 1, 0), (0, R + 1), (-R - 1, 0), (0, -R - 1)],
    }
}

/// Markers at points of a chart or of an area: one of four shapes, filled or not. `draw` takes the elements.
macro_rules! markers {
    ($look:expr, $filled:expr, $at:expr, $draw:expr) => {{
        let (shape, colour) = (corners($look.marker), $look.colour);
        match (shape.is_empty(), $filled) {
            (true, true) => {
                $draw($at.map(|at| EmptyElement::at(at) + Circle::new((0, 0), 3, colour.filled())))
            }
            (true, false) => {
                $draw($at.map(|at| EmptyElement::at(at) + Circle::new((0, 0), 3, colour.stroke_width(1))))
            }
            (false, true) => {
                $draw($at.map(|at| EmptyElement::at(at) + Polygon::new(shape.clone(), colour.filled())))
            }
            (false, false) => $draw(
                $at.map(|at| EmptyElement::at(at) + PathElement::new(shape.clone(), colour.stroke_width(1))),
            ),
        }
        .map_err(drawing)?
    }};
}

fn stroke(chart: &mut Chart<'_, '_>, curve: &Curve, look: CurveStyle) -> Result<()> {
    let line: Vec<(f64, f64)> = curve.points.iter().map(|[x, y, ..]| (*x, *y)).collect();
    let colour = look.colour;
    let width = curve.kind.width();
    if curve.kind.is_broken() {
        let (dash, gap) = look.dash;
        let dashes = DashedLineSeries::new(line, dash, gap, colour.stroke_width(width));
        chart.draw_series(dashes).map_err(drawing)?;
        return Ok(());
    }
    if curve.kind == Kind::Plain {
        chart.draw_series(LineSeries::new(line, colour.stroke_width(width))).map_err(drawing)?;
        return Ok(());
    }
    let upper = curve.points.iter().map(|[x, _, _, most]| (*x, *most));
    let lower = curve.points.iter().rev().map(|[x, _, least, _]| (*x, *least));
    let band: Vec<(f64, f64)> = upper.chain(lower).collect();
    if !band.is_empty() {
        chart.draw_series([Polygon::new(band, colour.mix(0.18).filled())]).map_err(drawing)?;
    }
    let bold = curve.kind == Kind::Measured;
    chart.draw_series(LineSeries::new(line.clone(), colour.stroke_width(width))).map_err(drawing)?;
    markers!(look, bold, line.into_iter(), |all| chart.draw_series(all).map(drop));
    for [x, y, ..] in curve.points.iter().filter(|[x, ..]| curve.not_whole.contains(x)) {
        let rings =
            [Circle::new((*x, *y), 6, WHITE.filled()), Circle::new((*x, *y), 6, colour.stroke_width(2))];
        chart.draw_series(rings).map_err(drawing)?;
    }
    Ok(())
}

/// Headings, and below each its curves with a piece of their strokes.
fn legend(area: &Area<'_>, curves: &[Curve], looks: &[CurveStyle]) -> Result<()> {
    let mut y = 12;
    let mut heading = "";
    let style = (FONT, 12.0).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    for (curve, look) in curves.iter().zip(looks) {
        if curve.group != heading {
            heading = &curve.group;
            area.draw_text(heading, &style, (0, y)).map_err(drawing)?;
            y += LINE;
        }
        sample(area, curve, *look, y)?;
        area.draw_text(&curve.label, &style, (SAMPLE + 8, y)).map_err(drawing)?;
        y += LINE;
    }
    Ok(())
}

fn sample(area: &Area<'_>, curve: &Curve, look: CurveStyle, y: i32) -> Result<()> {
    let (dash, gap) =
        if curve.kind.is_broken() { (look.dash.0 as i32, look.dash.1 as i32) } else { (SAMPLE, 0) };
    let width = curve.kind.width();
    for from in (0..SAMPLE).step_by((dash + gap) as usize) {
        let piece = vec![(from, y), ((from + dash).min(SAMPLE), y)];
        area.draw(&PathElement::new(piece, look.colour.stroke_width(width))).map_err(drawing)?;
    }
    if matches!(curve.kind, Kind::Measured | Kind::Variant) {
        let at = std::iter::once((SAMPLE / 2, y));
        let bold = curve.kind == Kind::Measured;
        markers!(look, bold, at, |mut all| Iterator::try_for_each(&mut all, |element| area.draw(&element)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(label: usize, kind: Kind) -> Curve {
        let points = vec![[0.5, 5.0, 5.0, 5.0], [2.0, 5.0, 0.0, 20.0]];
        let label = format!("curve {label}");
        Curve { group: "g".into(), label, kind, points, not_whole: Vec::new(), level: None }
    }

    fn panel() -> Panel {
        let axis = Axis { name: "a".into(), range: 1.0..10.0, log: false, ticks: vec![] };
        Panel { title: String::new(), x: axis.clone(), y: axis, marks: vec![(3.0, "512".into())] }
    }

    #[test]
    fn no_two_curves_look_alike() {
        let kinds = [Kind::Measured, Kind::Variant, Kind::Broken, Kind::Broken];
        let curves: Vec<Curve> = (0..COLOURS.len()).map(|at| curve(at, kinds[at % 4])).collect();
        let looks = looks(&curves).unwrap();
        for (at, look) in looks.iter().enumerate() {
            assert!(looks[..at].iter().all(|other| other.colour != look.colour), "{look:?}");
            let broken = |at: &usize| curves[*at].kind == Kind::Broken;
            let mut earlier = (0..at).filter(|_| broken(&at)).filter(broken);
            assert!(earlier.all(|other| looks[other].dash != look.dash), "{look:?}");
        }
        let too_many: Vec<Curve> = (0..17).map(|at| curve(at, Kind::Measured)).collect();
        assert!(super::looks(&too_many).unwrap_err().to_string().contains("17 curves"));
    }

    /// Figure 2 with all levels has sixteen measured curves and as many published ones.
    #[test]
    fn a_broken_and_a_solid_curve_of_one_level_share_a_colour_and_no_others_do() {
        let ours = (1..=16).map(|level| curve(0, Kind::Plain).at_level(level));
        let published = (1..=16).map(|level| curve(0, Kind::Published).at_level(level));
        let curves: Vec<Curve> = ours.chain(published).collect();
        let colours: Vec<RGBColor> = looks(&curves).unwrap().iter().map(|look| look.colour).collect();
        assert_eq!(colours[..16], COLOURS);
        assert_eq!(colours[16..], COLOURS);
        let twice = [Kind::Plain, Kind::Plain, Kind::Published].map(|kind| curve(0, kind).at_level(4));
        let [first, second, third] = looks(&twice).unwrap()[..] else { panic!("three looks") };
        assert!(
            first.colour != second.colour && third.colour != first.colour && third.colour != second.colour
        );
    }

    #[test]
    fn nothing_but_curves_and_marks_is_drawn_inside_the_axes_in_a_curves_colour() {
        let draw = |curves: &[Curve]| svg((800, 300), "title", &[panel()], curves, &[]).unwrap();
        // The left ends of all lines in the first curve's colour.
        let lefts = |text: &str| -> Vec<i32> {
            let lines = text.split('<').filter(|element| element.starts_with("polyline"));
            lines.filter(|element| element.contains("#0072B2")).map(leftmost).collect()
        };
        let legend = 800 - LEGEND as i32;
        // Two points of one curve, one left of the axis: a piece of the legend, and no line to the legend.
        let text = draw(&[curve(0, Kind::Broken)]);
        let found = lefts(&text);
        assert!(!found.is_empty() && found.iter().all(|left| *left >= legend), "{found:?}");
        assert!(text.contains("title") && text.contains("512"));
        // With both inside there is a line.
        let points = vec![[2.0, 5.0, 5.0, 5.0], [8.0, 5.0, 5.0, 5.0]];
        let found = lefts(&draw(&[Curve { points, ..curve(0, Kind::Broken) }]));
        assert!(found.iter().any(|left| *left < legend), "{found:?}");
    }

    /// Of a polyline, the least x.
    fn leftmost(element: &str) -> i32 {
        let points = element.split('"').find(|part| part.contains(',')).unwrap();
        points
            .split_whitespace()
            .map(|point| point.split(',').next().unwrap().parse().unwrap())
            .min()
            .unwrap()
    }

    #[test]
    fn a_logarithmic_axis_maps_its_ends_and_its_middle() {
        let axis = |log| Axis { name: String::new(), range: 1.0..10_000.0, log, ticks: vec![] };
        let scale = Scale::of(&axis(true));
        assert_eq!([1.0, 100.0, 10_000.0].map(|value| scale.map(&value, (0, 100))), [0, 50, 100]);
        assert_eq!(Scale::of(&axis(false)).map(&10_000.0, (100, 0)), 0);
    }

    #[test]
    fn a_curve_stays_in_its_panel() {
        assert_eq!(clipped(&curve(0, Kind::Measured), &panel()).points, [[2.0, 5.0, 1.0, 10.0]]);
    }
}
