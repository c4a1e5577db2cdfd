//! All pictures of an experiment: plots against x, distributions, timelines, stacks and bars.

use anyhow::Result;

use crate::modelled::Modelled;
use crate::picture::{Picture, RunPoints};
use crate::point::Point;
use crate::{Experiment, figures, runs};

/// Draws what there are points for, in the order of the spec; without any point the published curves and
/// stacks alone. `modelled`: lines of posts measured without a NIC; `unmeasured`: series without a point.
pub fn pictures(
    experiment: &Experiment,
    points: &[Point],
    modelled: &[Modelled],
    unmeasured: &[String],
) -> Result<Vec<Picture>> {
    let run = RunPoints { experiment, points, unmeasured };
    let plots = experiment.spec.plots.iter();
    let plots = plots.filter(|plot| !points.is_empty() || !plot.beside.is_empty());
    let drawn = plots.map(|plot| {
        let svg = figures::plot(run, plot, modelled)?;
        Ok(Picture { name: plot.name.clone(), title: plot.title.clone(), svg })
    });
    let mut all: Vec<Picture> = drawn.collect::<Result<_>>()?;
    all.extend(runs::plots(run)?);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::Measured;
    use crate::point::example;
    use crate::root;

    fn drawn(name: &str, points: &[Point]) -> Vec<Picture> {
        let experiment = Experiment::read(&root().join("experiments"), name).unwrap();
        pictures(&experiment, points, &[], &[]).unwrap()
    }

    #[test]
    fn every_recorded_figure_has_series_of_ours_and_all_but_figure_1_published_ones_beside() {
        for name in ["fig1", "fig2", "fig4", "fig5", "fig6", "fig7"] {
            let experiment = Experiment::read(&root().join("experiments"), name).unwrap();
            let path = experiment.folder.join("measured.json");
            for entry in Measured::read(&path).unwrap().entries {
                let svgs = drawn(name, &entry.points(name));
                let says = |words: &str| svgs.iter().any(|picture| picture.svg.contains(words));
                // The last series of figure 7 is a number, no curve.
                for row in entry.rows.iter().filter(|_| name != "fig7") {
                    let label =
                        experiment.spec.series[&row.series].label.as_ref().unwrap().replace('\'', "&apos;");
                    assert!(says(&format!("\n{label}")), "{name}: {label} of {}", entry.subject());
                }
                let ours = ["ours (", "(ours)", "ours: "].into_iter().any(says);
                assert!(ours, "{name}: {}", entry.subject());
                assert_eq!(says("paper (hardware)") || says("paper: "), name != "fig1", "{name}");
                // A plot without published numbers names no source of them.
                for picture in &svgs {
                    let has = |words: &str| picture.svg.contains(words);
                    let is_beside = has("paper (hardware)") || has("paper: ");
                    assert_eq!(has("\npaper — doi "), is_beside, "{name}, {}", picture.name);
                }
            }
        }
    }

    #[test]
    fn a_recorded_run_is_drawn_from_what_it_keeps() {
        let mut point = example("gpu-event-squeezenet-1.1", 0);
        point.values = [
            ("init_s", 3.0),
            ("init_cores", 0.5),
            ("serving_s", 60.0),
            ("serving_cores", 0.0),
            ("end_s", 1.0),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let named = |point: &Point, name: &str| {
            drawn("fig7", std::slice::from_ref(point)).into_iter().any(|picture| picture.name == name)
        };
        assert!(!named(&point, "event-squeezenet-1_1"), "a phase is missing");
        let point = point.with("end_cores", 0.2);
        assert!(named(&point, "event-squeezenet-1_1") && !named(&point, "spin-squeezenet-1_1"));
        let point = example("gpu-squeezenet-1.1", 4).with("least_ms", 1.0).with("p50_ms", 2.0);
        let svgs = drawn("fig2", &[point]);
        let cdf = svgs.iter().find(|picture| picture.name == "cdf-squeezenet").unwrap();
        assert!(
            cdf.svg.contains("ours: SqueezeNet 1.1") && cdf.svg.contains("4 at once: least, median, p99")
        );
    }

    #[test]
    fn without_a_point_the_published_curves_stand_alone() {
        for (name, count) in [("fig1", 0), ("fig2", 2), ("fig4", 2), ("fig6", 2), ("fig7", 4)] {
            let all = drawn(name, &[]);
            assert_eq!(all.len(), count, "{name}");
            for Picture { name, svg, .. } in all {
                let is_published = svg.contains("paper (hardware)") || svg.contains("paper: ");
                assert!(
                    is_published && svg.contains("no points of ours") && !svg.contains("ours ("),
                    "{name}"
                );
            }
        }
    }
}
