//! `experiments/figN/paper.toml`: published curves, and the paper's claims, each with its judging rule.

use std::path::Path;

use anyhow::{Context, Result};
use measure::label::Part;
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Name of its folder.
    #[serde(skip)]
    pub name: String,
    /// Where it was published and how it was read.
    pub paper: Source,
    pub series: Vec<Curve>,
    /// Published distributions.
    #[serde(default)]
    pub cdf: Vec<Distribution>,
    /// Published stacks of numbers.
    #[serde(default)]
    pub stack: Vec<Published>,
    /// What the paper says about them.
    pub claim: Vec<Claim>,
}

/// Where a published figure's numbers come from.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub doi: String,
    pub figure: u32,
    pub x: String,
    pub y: String,
    #[allow(dead_code, reason = "for the reader of the file")]
    columns: [String; 4],
    /// Where the numbers come from, or why there are none.
    pub source: String,
    /// How they were read.
    pub extraction: String,
    pub tolerance: String,
    pub left_out: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// The release's name of it.
    pub name: String,
    /// What the plot writes beside it.
    pub label: String,
    /// Our series that measures the same.
    pub ours: String,
    #[allow(dead_code, reason = "for the reader of the file")]
    pub meaning: String,
    /// Payload bytes, value, and its lower and upper end.
    pub points: Vec<[f64; 4]>,
}

/// One published stack.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// What the plot writes below it.
    pub label: String,
    /// Our stack that has the same.
    pub ours: String,
    /// Numbers of a point by name, in the same unit.
    pub values: std::collections::BTreeMap<String, f64>,
}

/// One published distribution.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// The x of the points that it belongs to.
    pub at: u64,
    /// Milliseconds, and the share of runs that took no longer.
    pub points: Vec<[f64; 2]>,
}

/// One sentence of the paper that the figure carries.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "toml::Table")]
pub struct Claim {
    pub id: String,
    /// In our words.
    pub text: String,
    /// Section and figure.
    pub source: String,
    /// What else a reader should know.
    pub note: Option<String>,
    /// Series that it is about; `gpu-*` means all that begin so. Some rules give their order a meaning.
    pub series: Vec<String>,
    /// What a point must stand on to count.
    pub needs: Vec<Need>,
    pub rule: Rule,
}

/// The keys that every claim has, whatever its rule.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Common {
    id: String,
    text: String,
    source: String,
    note: Option<String>,
    #[serde(default)]
    series: Vec<String>,
    #[serde(default)]
    needs: Vec<Need>,
}

impl TryFrom<toml::Table> for Claim {
    type Error = String;

    /// serde cannot both flatten a rule and refuse the keys that it does not know.
    fn try_from(table: toml::Table) -> Result<Claim, String> {
        let is_common = |key: &str| ["id", "text", "source", "note", "series", "needs"].contains(&key);
        let (common, rule): (toml::Table, toml::Table) =
            table.into_iter().partition(|(key, _)| is_common(key));
        let common: Common =
            common.try_into().map_err(|error: toml::de::Error| error.message().to_owned())?;
        let wrong = |why: &str| format!("claim `{}`: {why}", common.id);
        let rule: Rule = rule.try_into().map_err(|error: toml::de::Error| wrong(error.message()))?;
        if common.series.is_empty() && !matches!(rule, Rule::Background {} | Rule::Differs { .. }) {
            return Err(wrong("is about no series"));
        }
        let Common { id, text, source, note, series, needs } = common;
        Ok(Claim { id, text, source, note, series, needs, rule })
    }
}

/// The rules. What each calls holding is its description.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Rule {
    /// Each series reaches this share of what its link can carry.
    Saturates { at_least: f64 },
    /// Each series reaches this share of what a link of its shaped rate can carry. Counted: payload sizes in
    /// a range at which its posts alone, by their time in that run, allow more than the link carries.
    Fills {
        at_least: f64,
        /// First and last payload size that counts.
        payload_bytes: [u64; 2],
        /// How many times what the link carries posting alone has to allow.
        posting: f64,
    },
    /// Each series grows in a straight line with the payload, below this share of its plateau.
    Linear {
        /// Coefficient of determination that the fit must reach.
        r_squared: f64,
        /// Share of the plateau.
        below: f64,
    },
    /// The first series divided by the second lies within these, at each payload size.
    Ratio {
        /// Which number of a point.
        field: String,
        /// Lower and upper end.
        within: [f64; 2],
    },
    /// Each point of each series has this value.
    Equals { field: String, value: f64 },
    /// Each series lies above the next: by `slope` below the plateau, or a field at each common payload size.
    Order {
        /// `slope`, or a number of a point.
        field: String,
        /// Share of the plateau, for `slope`.
        #[serde(default = "whole")]
        below: f64,
    },
    /// For each series, its largest median over all payload sizes divided by the smallest.
    Flat { field: String, at_most: f64 },
    /// In each series the value falls with the payload: rank correlation below −0.5, at least by this share.
    Falls {
        field: String,
        /// Share by which the largest payloads lie below the smallest.
        at_least: f64,
    },
    /// Each series, or its quotient with `by` within the same repetition, keeps every given bound: the median
    /// over the repetitions. Without a bound it is reported.
    Bound {
        field: String,
        /// Series that it is divided by; its `*` stands for what the star of the claim's series does.
        by: Option<String>,
        at_least: Option<f64>,
        at_most: Option<f64>,
        below: Option<f64>,
        /// A number that is not 0 where a series, or what it is divided by, cannot be judged; and why.
        unless: Option<(String, String)>,
        /// Judge only where two repetitions or more lie all within the bounds, or all beyond one of them.
        #[serde(default)]
        resolved: bool,
        /// The numbers that `field` is made of, by the spec: the evidence names those that differ most.
        #[serde(skip)]
        parts: Vec<String>,
    },
    /// Each series with a bound of its own keeps it: `at_most` and `at_least` are numbers of its points.
    Stated { field: String },
    /// Each series follows a·log2(x) + k.
    Logarithmic {
        field: String,
        /// Coefficient of determination that the fit must reach.
        r_squared: f64,
    },
    /// Each series grows with x, from one x to the next, and by this factor from the first to the last.
    Grows { field: String, at_least: f64 },
    /// A fact that the figure rests on and no run here can judge; the claim's note says why.
    Background {},
    /// What is built here otherwise on purpose: it is not reproduced, whatever is measured.
    Differs { why: String },
}

impl Rule {
    /// The number of a point that it looks at, where the file names one.
    pub fn field(&self) -> Option<&str> {
        match self {
            Rule::Ratio { field, .. }
            | Rule::Equals { field, .. }
            | Rule::Bound { field, .. }
            | Rule::Stated { field }
            | Rule::Order { field, .. }
            | Rule::Flat { field, .. }
            | Rule::Logarithmic { field, .. }
            | Rule::Grows { field, .. }
            | Rule::Falls { field, .. } => Some(field),
            Rule::Saturates { .. }
            | Rule::Fills { .. }
            | Rule::Linear { .. }
            | Rule::Differs { .. }
            | Rule::Background {} => None,
        }
    }

    /// All numbers of a point that it looks at.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        let unless = match self {
            Rule::Bound { unless, .. } => unless.as_ref().map(|(name, _)| name.as_str()),
            _ => None,
        };
        self.field().into_iter().chain(unless)
    }

    /// Gives a quotient the parts of its field, by the fields' names.
    pub(crate) fn made_of(&mut self, all: &std::collections::BTreeMap<String, Vec<String>>) {
        if let Rule::Bound { field, by: Some(_), parts, .. } = self {
            *parts = all.get(field).cloned().unwrap_or_default();
        }
    }

    /// Whether it looks at two series at once: their numbers must be of one revision.
    pub fn compares_series(&self) -> bool {
        matches!(self, Rule::Ratio { .. } | Rule::Order { .. } | Rule::Bound { by: Some(_), .. })
    }
}

fn whole() -> f64 {
    1.0
}

/// `nic:hardware`, `nic:any`: what a part must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Need {
    pub part: Part,
    /// Whether only hardware counts.
    pub hardware: bool,
}

impl TryFrom<String> for Need {
    type Error = String;

    fn try_from(text: String) -> Result<Need, String> {
        let wrong = || format!("`{text}` is not PART:hardware or PART:any, PART being nic, gpu or link");
        let (part, level) = text.split_once(':').ok_or_else(wrong)?;
        let parts = [Part::Nic, Part::Gpu, Part::Link];
        let part = parts.into_iter().find(|one| one.to_string() == part).ok_or_else(wrong)?;
        match level {
            "hardware" => Ok(Need { part, hardware: true }),
            "any" => Ok(Need { part, hardware: false }),
            _ => Err(wrong()),
        }
    }
}

impl Paper {
    /// Whether it has numbers that are drawn.
    pub fn has_curves(&self) -> bool {
        !self.series.is_empty() || !self.cdf.is_empty() || !self.stack.is_empty()
    }

    /// Those of every folder that has one, in the order of their figures.
    pub fn all(experiments: &Path) -> Result<Vec<Paper>> {
        let folders = std::fs::read_dir(experiments).with_context(|| experiments.display().to_string())?;
        let folders = folders.flatten().map(|folder| folder.path());
        let with = folders.filter(|folder| folder.join("paper.toml").is_file());
        let mut papers: Vec<Paper> = with.map(|folder| Paper::read(&folder)).collect::<Result<_>>()?;
        papers.sort_by_key(|paper| paper.paper.figure);
        Ok(papers)
    }

    /// Reads `paper.toml` in an experiment's folder.
    pub fn read(folder: &Path) -> Result<Paper> {
        let path = folder.join("paper.toml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut paper: Paper = toml::from_str(&text).with_context(|| path.display().to_string())?;
        paper.name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(paper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root;

    #[test]
    fn both_figures_hold_four_curves_each() {
        for figure in [4, 5] {
            let paper = Paper::read(&root().join(format!("experiments/fig{figure}"))).unwrap();
            assert_eq!(paper.paper.figure, figure);
            let names: Vec<&str> = paper.series.iter().map(|curve| curve.name.as_str()).collect();
            assert_eq!(names, ["standard-cpu", "crafted-cpu", "gpu-a100", "gpu-l40"]);
            for curve in &paper.series {
                assert!(curve.points.iter().all(|[_, y, lo, hi]| lo <= y && y <= hi), "{}", curve.name);
                assert!(curve.points.windows(2).all(|pair| pair[0][0] < pair[1][0]), "{}", curve.name);
            }
        }
    }

    #[test]
    fn a_claim_with_an_unknown_key_is_refused() {
        let claim = |more: &str| {
            let text = format!("id = \"a\"\ntext = \"b\"\nsource = \"c\"\n{more}");
            toml::from_str::<Claim>(&text).map(|claim| claim.id).map_err(|error| error.to_string())
        };
        let flat = "rule = \"flat\"\nfield = \"post_ns\"\nat_most = 1.1\nseries = [\"x\"]\n";
        assert_eq!(claim(flat), Ok("a".into()));
        assert_eq!(claim("rule = \"background\""), Ok("a".into()));
        for (more, word) in [
            (format!("{flat}at_least = 2"), "at_least"),
            (format!("{flat}need = [\"nic:any\"]"), "need"),
            (flat.replace("[\"x\"]", "[]"), "no series"),
            (flat.replace("flat", "flatter"), "flatter"),
            ("rule = \"background\"\nat_most = 1".into(), "at_most"),
        ] {
            let error = claim(&more).unwrap_err();
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn every_claim_of_the_paper_stands_in_one_file_with_its_rule_or_the_reason_why_it_has_none() {
        let papers = Paper::all(&root().join("experiments")).unwrap();
        assert_eq!(papers.iter().map(|paper| paper.paper.figure).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
        let claims = || papers.iter().flat_map(|paper| &paper.claim);
        let ids: std::collections::BTreeSet<&str> = claims().map(|claim| claim.id.as_str()).collect();
        assert_eq!((claims().count(), ids.len()), (36, 36), "{ids:?}");
        for claim in claims().filter(|claim| matches!(claim.rule, Rule::Background {})) {
            assert!(claim.note.is_some(), "{}: background without a reason", claim.id);
        }
    }

    #[test]
    fn a_need_that_means_nothing_is_refused() {
        for text in ["nic", "nic:soft", "cpu:hardware"] {
            assert!(Need::try_from(text.to_owned()).is_err(), "{text}");
        }
        assert_eq!(Need::try_from("gpu:hardware".to_owned()), Ok(Need { part: Part::Gpu, hardware: true }));
    }
}
