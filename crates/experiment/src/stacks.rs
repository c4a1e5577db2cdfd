//! Plots of numbers that add up: one bar for each series, from zero on, published ones beside.

use std::collections::BTreeMap;

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Experiment;
use crate::by_x::by_x;
use crate::colours::{COLOURS, FAINT, GRID, INK};
use crate::figures::{label, steps};
use crate::paper::Published;
use crate::plot::{FONT, LINE, drawing};
use crate::point::Point;
use crate::spec::Stack;

/// A bar: what stands below it, and its numbers by name.
struct Bar {
    name: String,
    values: BTreeMap<String, f64>,
}

/// The published stacks beside ours.
pub fn published<'a>(
    experiment: &'a Experiment,
    plot: &'a Stack,
) -> Result<impl Iterator<Item = &'a Published>> {
    let stacks = experiment.beside(plot.beside.as_ref())?.flat_map(|paper| &paper.stack);
    Ok(stacks.filter(|stack| stack.ours == plot.name))
}

/// Our series that have points, then the published stacks.
fn bars(experiment: &Experiment, plot: &Stack, points: &[Point]) -> Result<Vec<Bar>> {
    let ours = plot.series.iter().filter_map(|series| {
        let median = |(field, _): &(String, String)| {
            let medians = by_x(points, series, field, |_| true);
            Some((field.clone(), medians.values().next()?[0]))
        };
        let values: BTreeMap<String, f64> = plot.values.iter().filter_map(median).collect();
        (!values.is_empty()).then(|| Bar { name: format!("{}\n(ours)", label(experiment, series)), values })
    });
    let mut all: Vec<Bar> = ours.collect();
    if points.is_empty() || !all.is_empty() {
        all.extend(published(experiment, plot)?.map(|stack| Bar {
            name: format!("paper: {}\n(hardware)", stack.label),
            values: stack.values.clone(),
        }));
    }
    Ok(all)
}

/// Draws the stack of each series; `None`: there are no points for one.
pub fn draw(
    experiment: &Experiment,
    plot: &Stack,
    points: &[Point],
    lines: &[String],
) -> Result<Option<String>> {
    let bars = bars(experiment, plot, points)?;
    if bars.is_empty() {
        return Ok(None);
    }
    let of = |bar: &Bar, field: &str| bar.values.get(field).copied().unwrap_or(0.0).max(0.0);
    let sum = |bar: &Bar| plot.values.iter().map(|(field, _)| of(bar, field)).sum::<f64>();
    // What is judged ends where the hatched parts begin.
    let judged = |bar: &Bar| {
        let own = plot.values.iter().filter(|(field, _)| !plot.hatched.contains(field));
        own.map(|(field, _)| of(bar, field)).sum::<f64>()
    };
    let axis = steps(&plot.y_name, bars.iter().map(sum).fold(1e-9, f64::max) * 1.06);
    let (left, right, top, bottom) = (66, 222, 52, 400);
    let caption_height = LINE * lines.len() as i32 + 14;
    let size = (920, (bottom + 62 + caption_height) as u32);
    let end = size.0 as i32 - right;
    let y = |value: f64| bottom - (value / axis.range.end * f64::from(bottom - top)).round() as i32;
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
        let part = |place: usize, field: &String, [low, high]: [i32; 2], [from, to]: [i32; 2]| {
            let colour = COLOURS[place % COLOURS.len()];
            let corners = [(from, low), (to, high)];
            if !plot.hatched.contains(field) {
                return root.draw(&Rectangle::new(corners, colour.filled())).map_err(drawing);
            }
            root.draw(&Rectangle::new(corners, colour.stroke_width(1))).map_err(drawing)?;
            // Strokes of 45 degrees, cut at the rectangle's sides.
            for begin in ((from - (high - low).abs())..to).step_by(7) {
                let (height, width) = ((high - low).abs(), to - from);
                let (enter, leave) = ((from - begin).max(0), (width + from - begin).min(height));
                if enter < leave {
                    stroke(
                        (begin + enter, low.max(high) - enter),
                        (begin + leave, low.max(high) - leave),
                        colour,
                    )?;
                }
            }
            Ok(())
        };
        write(&plot.title, 14.0, &INK, HPos::Left, (14, 14))?;
        write(&plot.y_name, 11.0, &INK, HPos::Left, (14, 36))?;
        for (tick, said) in &axis.ticks {
            stroke((left, y(*tick)), (end, y(*tick)), GRID)?;
            write(said, 12.0, &INK, HPos::Right, (left - 6, y(*tick)))?;
        }
        let width = (end - left) / bars.len() as i32;
        for (at, bar) in bars.iter().enumerate() {
            let (from, to) =
                (left + width * at as i32 + width / 5, left + width * (at as i32 + 1) - width / 5);
            let mut below = 0.0;
            for (place, (field, _)) in plot.values.iter().enumerate() {
                let above = below + of(bar, field);
                if y(above) < y(below) {
                    part(place, field, [y(below), y(above)], [from, to])?;
                }
                below = above;
            }
            let middle = (from + to) / 2;
            write(&format!("{:.1}", judged(bar)), 10.5, &INK, HPos::Center, (middle, y(below) - 8))?;
            for (line, said) in bar.name.split('\n').enumerate() {
                write(said, 11.0, &INK, HPos::Center, (middle, bottom + 14 + LINE * line as i32))?;
            }
        }
        stroke((left, bottom), (end, bottom), INK)?;
        // The legend in the order of the bars, from the top down.
        for (place, (field, name)) in plot.values.iter().enumerate() {
            let (at, from) = (bottom - 10 - LINE * place as i32, end + 14);
            part(place, field, [at + 5, at - 5], [from, from + 12])?;
            write(name, 11.0, &INK, HPos::Left, (from + 18, at))?;
        }
        for (place, line) in lines.iter().enumerate() {
            write(line, 11.5, &FAINT, HPos::Left, (14, bottom + 66 + LINE * place as i32))?;
        }
        root.present().map_err(drawing)?;
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::example;

    /// M10: the release's axis begins at 1 ms.
    #[test]
    fn release_m10_a_stack_begins_at_zero_and_names_the_sum_of_what_is_judged() {
        let experiment = Experiment::read(&crate::root().join("experiments"), "fig6").unwrap();
        let plot = experiment.spec.stacks.iter().find(|plot| plot.name == "super-resolution-x1").unwrap();
        let mut point = example(&plot.series[0], 0);
        point.values = [("one_run_us", 1000.0), ("one_send_us", 200.0), ("one_nic_us", 700.0)]
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        let points = [point];
        let bars = bars(&experiment, plot, &points).unwrap();
        assert_eq!(bars.len(), 3, "ours, and the paper's two");
        assert_eq!(bars[1].values["one_run_us"], 1394.57);
        let svg = draw(&experiment, plot, &points, &[]).unwrap().unwrap();
        assert!(svg.contains("1200.0"), "the NIC's part is not judged");
        // Of an axis from zero on.
        assert!(svg.contains(">\n0\n<"), "{svg}");
        assert_eq!(super::bars(&experiment, plot, &[]).unwrap().len(), 2, "the paper's alone");
        assert_eq!(draw(&experiment, plot, &[example("gpu-other", 0)], &[]).unwrap(), None);
    }
}
