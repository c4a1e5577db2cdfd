//! One experiment: its spec, and the papers that its points are held against.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::figures::ran_with;
use crate::measured::Entry;
use crate::paper::{Claim, Rule};
use crate::refused::{nearest, refused};
use crate::spec::Extent;
use crate::verdict::{Judged, ensure_named, judge, shaped_to};
use crate::{Paper, Point, Spec};

/// A folder of `experiments`.
#[derive(Debug)]
pub struct Experiment {
    pub spec: Spec,
    pub folder: PathBuf,
    /// Papers whose claims it judges, or whose curves stand in its plots.
    pub papers: Vec<Paper>,
}

impl Experiment {
    /// Reads the one of this name. Error: refused with the names that there are.
    pub fn read(experiments: &Path, name: &str) -> Result<Experiment> {
        let folder = experiments.join(name);
        if !folder.join("spec.toml").is_file() {
            let there = names(experiments);
            let nearest = nearest(name, &there);
            return Err(refused(format!("no experiment `{name}`{nearest}; there are: {}", there.join(", "))));
        }
        let spec = Spec::read(&folder)?;
        let beside = spec.plots.iter().flat_map(|plot| &plot.beside);
        let wanted: BTreeSet<&String> =
            spec.judges.iter().map(|judges| &judges.paper).chain(beside).collect();
        let mut papers: Vec<Paper> =
            wanted.into_iter().map(|name| Paper::read(&experiments.join(name))).collect::<Result<_>>()?;
        let grid = spec.grid(Extent::Normal).series;
        for claim in papers.iter_mut().flat_map(|paper| &mut paper.claim) {
            claim.rule.made_of(&spec.parts);
        }
        for paper in &papers {
            let is_judged = spec.judges.iter().any(|judges| judges.paper == paper.name);
            for claim in &paper.claim {
                if let Some(field) = claim.rule.fields().find(|field| !spec.knows(field)) {
                    let values = spec.values.join(", ");
                    anyhow::bail!("claim `{}`: {name} has no number `{field}`; it has {values}", claim.id);
                }
                if is_judged {
                    let path = experiments.join(&paper.name).join("paper.toml");
                    ensure_named(claim, &grid, &paper.series)
                        .with_context(|| format!("{}, judged by the points of {name}", path.display()))?;
                }
            }
        }
        Ok(Experiment { spec, folder, papers })
    }

    pub fn paper(&self, name: &str) -> Result<&Paper> {
        self.papers.iter().find(|paper| paper.name == name).with_context(|| format!("no paper `{name}`"))
    }

    /// The paper that stands beside a plot, if one does.
    pub fn beside(&self, name: Option<&String>) -> Result<impl Iterator<Item = &Paper>> {
        Ok(name.map(|name| self.paper(name)).transpose()?.into_iter())
    }

    /// Every claim of the papers that it judges, then its own aims.
    pub fn judge(&self, points: &[Point]) -> Vec<Judged> {
        let mut judged = Vec::new();
        for judges in &self.spec.judges {
            let points: Vec<Point> =
                points.iter().filter(|point| ran_with(point, &judges.settings)).cloned().collect();
            let claims = self.papers.iter().filter(|paper| paper.name == judges.paper);
            judged.extend(claims.flat_map(|paper| &paper.claim).map(|claim| judge(claim, &points)));
        }
        let aims = self.aims(shaped_to(points).is_some());
        judged.extend(aims.map(|claim| Judged { aim: true, ..judge(claim, points) }));
        judged
    }

    /// The verdicts of a recorded run, and whether it gave each itself. It saw each repetition: its verdict
    /// stands as long as claim and rule do. Others are judged by the kept rows.
    pub fn judge_recorded(&self, entry: &Entry) -> impl Iterator<Item = (Judged, bool)> {
        let anew = self.judge(&entry.points(&self.spec.name)).into_iter();
        anew.map(|anew| match entry.verdicts.iter().find(|one| one.is_by_rule_of(&anew)) {
            Some(of_run) => (of_run.clone(), true),
            None => (anew, false),
        })
    }

    /// Its own claims. An aim about a shaped link is not asked of another one.
    pub fn aims(&self, is_shaped: bool) -> impl Iterator<Item = &Claim> {
        self.spec.claims.iter().filter(move |claim| is_shaped || !matches!(claim.rule, Rule::Fills { .. }))
    }

    /// Whether no claim compares one series with another.
    pub fn judges_series_one_by_one(&self) -> bool {
        let is_judged = |paper: &&Paper| self.spec.judges.iter().any(|judges| judges.paper == paper.name);
        let published = self.papers.iter().filter(is_judged).flat_map(|paper| &paper.claim);
        !published.chain(&self.spec.claims).any(|claim| claim.rule.compares_series())
    }
}

/// Every experiment with a spec.
pub fn names(experiments: &Path) -> Vec<String> {
    let folders = std::fs::read_dir(experiments).into_iter().flatten().flatten();
    let specs = folders.filter(|folder| folder.path().join("spec.toml").is_file());
    let mut names: Vec<String> =
        specs.map(|folder| folder.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use measure::Part;

    use super::*;
    use crate::point::{example, needs_gpu};
    use crate::root;

    #[test]
    fn every_committed_experiment_is_read_with_its_papers() {
        let folder = root().join("experiments");
        let names = names(&folder);
        assert!(names.len() >= 2, "{names:?}");
        for name in &names {
            let spec = Experiment::read(&folder, name).unwrap().spec;
            // A series of a GPU is measured where there is one: the figure says so.
            let needs = spec.needs.iter().any(|need| need.part == Part::Gpu);
            assert!(
                !name.starts_with("fig")
                    || needs == spec.grid(Extent::Normal).series.iter().any(|series| needs_gpu(series)),
                "{name}"
            );
        }
        let error = Experiment::read(&folder, "fig99").unwrap_err();
        assert!(
            error.is::<crate::refused::Refused>() && error.to_string().contains("fig4, fig5"),
            "{error:#}"
        );
    }

    #[test]
    fn a_paper_whose_claim_is_about_no_series_of_the_grid_is_refused_with_claim_and_series() {
        let committed = root().join("experiments/fig6");
        let experiments = std::env::temp_dir().join(format!("experiment-no-series-{}", std::process::id()));
        let folder = experiments.join("fig6");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(committed.join("spec.toml"), folder.join("spec.toml")).unwrap();
        let paper = std::fs::read_to_string(committed.join("paper.toml")).unwrap();
        let by = "by = \"gpu-faithful-super-resolution-*\"";
        for (from, to, words) in [
            // As it was once: the star stands for `x1` alone.
            (
                by,
                "by = \"gpu-faithful-*\"",
                "claim `superres-halved`: by = \"gpu-faithful-*\" means `gpu-faithful-x1` for `gpu-graph-super-",
            ),
            (by, "by = \"gpu-faithful-super-resolution-?1\"", "means `gpu-faithful-super-resolution-?1` for"),
            (
                "series = [\"gpu-graph-*\"]",
                "series = [\"gpu-graphs-*\"]",
                "claim `resp-time-halved`: `gpu-graphs-*` of its `series`",
            ),
        ] {
            assert!(paper.contains(from), "{from}");
            std::fs::write(folder.join("paper.toml"), paper.replace(from, to)).unwrap();
            let error = format!("{:#}", Experiment::read(&experiments, "fig6").unwrap_err());
            for words in [
                "fig6/paper.toml, judged by the points of fig6: ",
                words,
                "there are `gpu-faithful-squeezenet-1.1`, `",
            ] {
                assert!(error.contains(words), "{words}: {error}");
            }
        }
        std::fs::remove_dir_all(&experiments).unwrap();
    }

    #[test]
    fn claims_about_posts_look_at_whole_bursts_and_a_shaped_link_is_asked_where_there_is_one() {
        let experiment = Experiment::read(&root().join("experiments"), "fig4").unwrap();
        let with = |x, batch, post_ns| {
            let mut point = example("cpu-ibverbs", x).with("post_ns", post_ns);
            point.settings.insert("batch".into(), batch);
            point
        };
        let mut points =
            vec![with(64, 32, 100.0), with(4096, 32, 101.0), with(40_000, 4, 300.0), with(1 << 20, 1, 900.0)];
        let said = |points: &[Point]| -> Vec<(String, String)> {
            experiment.judge(points).into_iter().map(|one| (one.id.clone(), one.said())).collect()
        };
        let unshaped = said(&points);
        let constant = ("post-constant-api".to_owned(), "reproduced".to_owned());
        assert!(unshaped.contains(&constant), "{unshaped:?}");
        assert!(unshaped.iter().all(|(id, _)| !id.starts_with("fills")));
        for point in &mut points {
            point.provenance.nic_options.insert("rate_gbps".into(), 100.into());
        }
        let aims = said(&points).into_iter().filter(|(id, _)| id.starts_with("fills"));
        assert!(aims.clone().count() == 2 && aims.clone().all(|(_, said)| said == "aim not met"));
    }
}
