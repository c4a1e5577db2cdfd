//! `experiments/NAME/spec.toml`: what an experiment sweeps, with which program, and what it draws and judges.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::paper::{Claim, Need};
use crate::point::{Key, needs_gpu};
use crate::verdict::ensure_named;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Name of its folder.
    #[serde(skip)]
    pub name: String,
    pub title: String,
    /// What measures a point: the command's function of this name.
    pub app: String,
    /// What must be there for the whole grid.
    #[serde(default)]
    pub needs: Vec<Need>,
    /// The factor along the x axis; without it a series is one number.
    pub x: Option<String>,
    /// The numbers of a point that the table shows, in its order.
    pub values: Vec<String>,
    /// The number whose range the table shows.
    pub range: String,
    #[serde(default, rename = "plot")]
    pub plots: Vec<Plot>,
    /// Distributions of run times, one curve for each x.
    #[serde(default, rename = "cdf")]
    pub cdfs: Vec<Cdf>,
    /// Numbers of each series as bars.
    #[serde(default)]
    pub bars: Vec<Bars>,
    /// Numbers of each series on top of one another.
    #[serde(default, rename = "stack")]
    pub stacks: Vec<Stack>,
    /// A number over the time of each run.
    #[serde(default, rename = "timeline")]
    pub timelines: Vec<Timeline>,
    /// Experiments whose claims the points can judge.
    #[serde(default)]
    pub judges: Vec<Judges>,
    /// Paths that its numbers depend on: tidy names entries of `measured.json` older than their last change.
    #[serde(default)]
    pub sources: Vec<String>,
    grid: Grid,
    quick: GridOverride,
    full: GridOverride,
    /// What the program of every point is told; its function reads it.
    #[serde(default)]
    pub options: toml::Table,
    /// Numbers that add up to another, by its name: a verdict on its quotient names those that differ most.
    #[serde(default)]
    pub parts: BTreeMap<String, Vec<String>>,
    /// Aims of our own, judged beside the papers' claims.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
    #[serde(default)]
    pub series: BTreeMap<String, Series>,
    /// Configuration of the software NIC.
    #[serde(default)]
    pub nic: toml::Table,
}

/// What one series has of its own.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Its name in plots, where it is not its own.
    pub label: Option<String>,
    /// Values of factors that it takes in the place of the grid's.
    #[serde(default)]
    pub factors: BTreeMap<String, Vec<u64>>,
    /// Options of its program before all others.
    #[serde(default)]
    pub options: toml::Table,
    /// What its number is counted in, where the spec's values do not say.
    pub unit: Option<String>,
    /// How often it is measured, where that is less than the grid says.
    pub repeat: Option<u32>,
    /// How long each time, where that is not what the grid says; `--quick` has one time for all.
    pub seconds: Option<f64>,
}

/// A plot of one number against x.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    /// Stem of its files.
    pub name: String,
    pub title: String,
    pub y: String,
    /// Name and unit of that axis.
    pub y_name: String,
    /// Name and unit of the x axis.
    pub x_name: String,
    /// Its coordinate systems, side by side.
    pub panels: Vec<Panel>,
    /// Experiments whose published curves stand beside.
    #[serde(default)]
    pub beside: Vec<String>,
    /// Lines of a formula.
    #[serde(default)]
    pub formulas: Vec<Formula>,
    /// Only points that ran with these settings.
    #[serde(default)]
    pub settings: BTreeMap<String, u64>,
    /// What a reader must know, a line each.
    #[serde(default)]
    pub notes: Vec<String>,
    /// x counts something: a linear axis without a unit, and beside each curve its fit a·log2(x) + k.
    #[serde(default)]
    pub log_fit: bool,
}

/// Distributions of the run times of some series, drawn from the quantiles that each point keeps.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cdf {
    /// Stem of its files.
    pub name: String,
    pub title: String,
    /// Series whose points are drawn, where they were measured.
    pub series: Vec<String>,
    /// An experiment whose published distributions stand beside.
    pub beside: Option<String>,
}

/// One curve for each run of some series: pairs of seconds and a number in each point's `detail`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// Stem of its files.
    pub name: String,
    pub title: String,
    /// Name and unit of the y axis.
    pub y_name: String,
    /// The list of pairs in `detail`.
    pub field: String,
    /// Series whose points are drawn, where they were measured.
    pub series: Vec<String>,
    /// An experiment whose published curves of the same series stand beside.
    pub beside: Option<String>,
    /// What a reader must know, a line each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Bars for each series: numbers at the smallest x, and at the x where they are largest.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bars {
    /// Stem of its files.
    pub name: String,
    pub title: String,
    /// Name and unit of the y axis.
    pub y_name: String,
    /// Numbers of a point, and what the legend calls them.
    pub values: Vec<(String, String)>,
    /// Levels to compare with: value and name.
    pub lines: Vec<(f64, String)>,
    /// What a reader must know, a line each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One bar for each series, made of numbers that add up, from 0 on.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stack {
    /// Stem of its files.
    pub name: String,
    pub title: String,
    /// Name and unit of the y axis.
    pub y_name: String,
    /// Numbers of a point from the bottom up, and what the legend calls them.
    pub values: Vec<(String, String)>,
    /// Those of them that are no part of what is judged: drawn hatched.
    #[serde(default)]
    pub hatched: Vec<String>,
    /// Series whose points are drawn, where they were measured.
    pub series: Vec<String>,
    /// An experiment whose published stacks stand beside.
    pub beside: Option<String>,
    /// What a reader must know, a line each.
    #[serde(default)]
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Panel {
    pub title: String,
    /// Both axes logarithmic.
    #[serde(default)]
    pub log: bool,
    /// Where x ends; with the data without.
    pub to: Option<f64>,
}

/// Lines of a formula beside what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Formula {
    /// The wire model of the published post times.
    WireModel,
    /// What a link would carry of posts that were measured without a NIC.
    Modelled,
}

/// An experiment whose claims are judged by this one's points.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judges {
    pub paper: String,
    /// Only by points that ran with these settings.
    #[serde(default)]
    pub settings: BTreeMap<String, u64>,
}

/// The points to measure.
#[derive(Clone, Debug, Deserialize)]
pub struct Grid {
    /// Posters, programs or numbers; none where the program that is measured says which there are.
    #[serde(default)]
    pub series: Vec<String>,
    /// How often each.
    pub repeat: u32,
    /// How long each.
    pub seconds: f64,
    /// Every other key is a factor with its values.
    #[serde(flatten)]
    pub factors: BTreeMap<String, Vec<u64>>,
    #[serde(skip)]
    x: Option<String>,
    #[serde(skip)]
    own: BTreeMap<String, Series>,
}

/// What `--quick` and `--full` put in the grid's place.
#[derive(Clone, Debug, Deserialize)]
struct GridOverride {
    repeat: u32,
    seconds: f64,
    #[serde(flatten)]
    factors: BTreeMap<String, Vec<u64>>,
}

/// Which of the grids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Extent {
    /// The first and the last x of `quick`, once.
    Smoke,
    /// Within a minute.
    Quick,
    /// As the spec says.
    Normal,
    /// Every published size.
    Full,
}

impl Extent {
    /// As results call it.
    pub fn name(self) -> &'static str {
        match self {
            Extent::Smoke => "smoke",
            Extent::Quick => "quick",
            Extent::Normal => "normal",
            Extent::Full => "full",
        }
    }
}

impl Spec {
    /// Reads `spec.toml` in an experiment's folder.
    pub fn read(folder: &Path) -> Result<Spec> {
        let path = folder.join("spec.toml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        Spec::parse(&name, &text).with_context(|| path.display().to_string())
    }

    /// The spec of the experiment `name`. Errors: a key, series or factor that means nothing.
    pub fn parse(name: &str, text: &str) -> Result<Spec> {
        let mut spec: Spec = toml::from_str(text)?;
        spec.name = name.to_owned();
        let factors: BTreeSet<&String> = spec.grid.factors.keys().collect();
        for (name, own) in &spec.series {
            ensure!(spec.grid.series.contains(name), "no series `{name}` in the grid");
            for factor in own.factors.keys() {
                ensure!(factors.contains(factor), "no factor `{factor}` in the grid");
            }
        }
        for factor in spec.x.iter().chain(spec.quick.factors.keys()).chain(spec.full.factors.keys()) {
            ensure!(factors.contains(factor), "no factor `{factor}` in the grid");
        }
        let own = spec.series.values().map(|series| &series.factors);
        for (factor, values) in
            [&spec.grid.factors, &spec.quick.factors, &spec.full.factors].into_iter().chain(own).flatten()
        {
            ensure!(!values.is_empty(), "factor `{factor}` has no values");
        }
        ensure!(spec.values.contains(&spec.range), "`range` is none of `values`");
        let drawn = spec.bars.iter().flat_map(|bars| &bars.values);
        let drawn = drawn.chain(spec.stacks.iter().flat_map(|stack| &stack.values)).map(|(value, _)| value);
        let parts = spec.parts.iter().flat_map(|(name, parts)| [name].into_iter().chain(parts));
        let named = spec.plots.iter().map(|plot| &plot.y).chain(drawn).chain(parts).map(String::as_str);
        for field in named.chain(spec.claims.iter().flat_map(|claim| claim.rule.fields())) {
            ensure!(spec.knows(field), "no number `{field}`; a point has {}", spec.values.join(", "));
        }
        for claim in &mut spec.claims {
            claim.rule.made_of(&spec.parts);
            ensure_named(claim, &spec.grid.series, &[])?;
        }
        Ok(spec)
    }

    /// Whether a point has a number of this name.
    pub fn knows(&self, field: &str) -> bool {
        self.values.iter().any(|value| value == field) || field == "slope" && self.x.is_some()
    }

    /// Stems of the files of all that is drawn.
    pub fn pictures(&self) -> impl Iterator<Item = &str> {
        let names = self.plots.iter().map(|plot| &plot.name);
        let names = names.chain(self.cdfs.iter().map(|cdf| &cdf.name));
        let names = names.chain(self.timelines.iter().map(|timeline| &timeline.name));
        let names = names.chain(self.stacks.iter().map(|stack| &stack.name));
        names.chain(self.bars.iter().map(|bars| &bars.name)).map(String::as_str)
    }

    pub fn grid(&self, extent: Extent) -> Grid {
        let mut grid = Grid { x: self.x.clone(), own: self.series.clone(), ..self.grid.clone() };
        let other = match extent {
            Extent::Smoke | Extent::Quick => {
                grid.own.values_mut().for_each(|own| own.seconds = None);
                &self.quick
            }
            Extent::Full => &self.full,
            Extent::Normal => return grid,
        };
        grid.factors.extend(other.factors.clone());
        (grid.repeat, grid.seconds) = (other.repeat, other.seconds);
        if extent == Extent::Smoke {
            grid.repeat = 1;
            if let Some(xs) = self.x.as_ref().and_then(|x| grid.factors.get_mut(x)) {
                let last = xs.len().saturating_sub(1);
                xs.drain(1.min(last)..last);
            }
        }
        grid
    }

    /// Leaves out series of the grid.
    pub fn keep(&mut self, keep: impl Fn(&str) -> bool) {
        self.grid.series.retain(|series| keep(series));
    }

    /// Another grid, for tests of the whole.
    pub fn set_grid(&mut self, grid: Grid) {
        self.grid = grid;
    }
}

impl Grid {
    /// How long a point of a series is measured.
    pub fn seconds_of(&self, series: &str) -> f64 {
        self.own.get(series).and_then(|own| own.seconds).unwrap_or(self.seconds)
    }

    /// Leaves out the series that need a GPU; which they were.
    pub fn without_gpu(&mut self) -> Vec<String> {
        self.series.extract_if(.., |series| needs_gpu(series)).collect()
    }

    pub fn xs(&self) -> Vec<u64> {
        self.x.as_ref().and_then(|x| self.factors.get(x)).cloned().unwrap_or_else(|| vec![0])
    }

    /// Whether a series is measured at this x, which is one of the grid's.
    fn takes(&self, series: &str, x: u64) -> bool {
        let own = self.own.get(series).zip(self.x.as_ref()).and_then(|(own, name)| own.factors.get(name));
        own.is_none_or(|own| own.contains(&x))
    }

    /// Combinations of the other factors that a series takes.
    pub fn others(&self, series: &str) -> Vec<BTreeMap<String, u64>> {
        let mut all = vec![BTreeMap::new()];
        for (name, values) in self.factors.iter().filter(|(name, _)| Some(*name) != self.x.as_ref()) {
            let values = self.own.get(series).and_then(|own| own.factors.get(name)).unwrap_or(values);
            let with = |at: &BTreeMap<String, u64>, value: u64| {
                let mut at = at.clone();
                at.insert(name.clone(), value);
                at
            };
            all = all.iter().flat_map(|at| values.iter().map(move |value| with(at, *value))).collect();
        }
        all
    }

    /// All points in the order of measurement: A B A B within one x, all x within a repetition. So ratios and
    /// repetitions share the machine's state.
    pub fn keys(&self) -> Vec<Key> {
        let others: Vec<(&String, Vec<BTreeMap<String, u64>>)> =
            self.series.iter().map(|series| (series, self.others(series))).collect();
        let turns: BTreeSet<&BTreeMap<String, u64>> = others.iter().flat_map(|(_, others)| others).collect();
        let mut keys = Vec::new();
        for repetition in 0..self.repeat {
            for x in self.xs() {
                for at in &turns {
                    let most = |series: &str| self.own.get(series).and_then(|own| own.repeat);
                    let often = |series: &str| most(series).is_none_or(|most| repetition < most);
                    let taking = others.iter().filter(|(series, others)| {
                        others.contains(at) && often(series) && self.takes(series, x)
                    });
                    keys.extend(taking.map(|(series, _)| Key {
                        series: (*series).clone(),
                        x,
                        at: (*at).clone(),
                        repetition,
                    }));
                }
            }
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Paper;
    use crate::root;

    fn spec(name: &str) -> Spec {
        Spec::read(&root().join("experiments").join(name)).unwrap()
    }

    #[test]
    fn both_figures_sweep_the_whole_range_with_the_pump_off() {
        for figure in ["fig4", "fig5"] {
            let spec = spec(figure);
            assert_eq!(spec.nic.get("pump").and_then(toml::Value::as_bool), Some(false));
            assert_eq!(spec.nic.get("strict").and_then(toml::Value::as_bool), Some(true));
            let smoke = spec.grid(Extent::Smoke);
            assert_eq!((smoke.xs(), smoke.repeat), (vec![64, 1 << 20], 1), "{figure}");
            for extent in [Extent::Quick, Extent::Normal, Extent::Full] {
                let sizes = spec.grid(extent).xs();
                assert_eq!(
                    (sizes.first(), sizes.last()),
                    (Some(&64), Some(&(1 << 20))),
                    "{figure} {extent:?}"
                );
                assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]), "{figure} {extent:?}");
            }
        }
    }

    #[test]
    fn a_series_with_lists_of_its_own_has_points_of_these_alone() {
        for figure in ["fig4", "fig5"] {
            let keys = spec(figure).grid(Extent::Quick).keys();
            let lists = |series: &str| -> BTreeSet<u64> {
                keys.iter().filter(|key| key.series == series).map(|key| key.at["list"]).collect()
            };
            assert_eq!(lists("gpu-warp"), [32].into(), "{figure}");
            assert_eq!(lists("gpu-original"), [1].into(), "{figure}");
            let both = if figure == "fig5" { [1, 16].into() } else { [1].into() };
            assert_eq!((&lists("gpu-thread"), &lists("cpu-shim")), (&both, &both), "{figure}");
        }
    }

    #[test]
    fn the_full_extent_holds_every_published_size() {
        for figure in ["fig4", "fig5"] {
            let sizes = spec(figure).grid(Extent::Full).xs();
            let paper = Paper::read(&root().join("experiments").join(figure)).unwrap();
            for [payload, ..] in paper.series.iter().flat_map(|curve| &curve.points) {
                assert!(sizes.contains(&(*payload as u64)), "{figure} lacks {payload}");
            }
        }
    }

    #[test]
    fn without_a_gpu_the_series_that_need_one_are_left_out_by_name() {
        let mut grid = spec("fig4").grid(Extent::Quick);
        grid.series = ["cpu-shim", "gpu-thread", "host-twin", "gpu-warp"].map(str::to_owned).to_vec();
        assert_eq!(grid.without_gpu(), ["gpu-thread", "gpu-warp"]);
        assert_eq!(grid.series, ["cpu-shim", "host-twin"]);
    }

    const SPEC: &str = "title = \"t\"\napp = \"a\"\nx = \"size\"\nvalues = [\"rate\"]\nrange = \"rate\"\n\
        grid = { series = [\"a\", \"b\"], size = [64, 128], list = [1], repeat = 2, seconds = 1.0 }\n\
        quick = { repeat = 1, seconds = 0.1, size = [64] }\nfull = { repeat = 3, seconds = 2.0 }\n";

    #[test]
    fn series_take_turns_within_an_x() {
        let spec = Spec::parse("s", SPEC).unwrap();
        let order = |extent| -> String {
            let keys = spec.grid(extent).keys();
            keys.iter().map(|key| format!("{}{}.{} ", key.series, key.x, key.repetition)).collect()
        };
        assert_eq!(order(Extent::Normal), "a64.0 b64.0 a128.0 b128.0 a64.1 b64.1 a128.1 b128.1 ");
        assert_eq!(order(Extent::Quick), "a64.0 b64.0 ");
        assert_eq!(order(Extent::Smoke), "a64.0 b64.0 ", "there is only one size");
        assert_eq!(spec.grid(Extent::Full).keys().len(), 12, "sizes as in the grid");
        let once = Spec::parse("s", &format!("{SPEC}[series.b]\nrepeat = 1\n")).unwrap();
        assert_eq!(once.grid(Extent::Full).keys().len(), 8, "one of them is measured once");
    }

    #[test]
    fn a_spec_that_names_what_is_not_there_is_refused() {
        let claim = "[[claim]]\nid = \"i\"\ntext = \"t\"\nsource = \"s\"\nseries = [\"a\"]\nrule = \"flat\"\nat_most = 1.1\nfield = ";
        let bound = |series: &str, by: &str| {
            let of = format!("[[claim]]\nid = \"i\"\ntext = \"t\"\nsource = \"s\"\nseries = {series}\n");
            format!("{SPEC}{of}rule = \"bound\"\nfield = \"rate\"\nby = \"{by}\"\n")
        };
        for (text, words) in [
            (SPEC.replace("x = \"size\"", "x = \"width\""), "no factor `width`"),
            (SPEC.replace("0.1, size", "0.1, width"), "no factor `width`"),
            (SPEC.replace("range = \"rate\"", "range = \"time\""), "`range` is none of"),
            (SPEC.replace("[64, 128]", "[]"), "factor `size` has no values"),
            (SPEC.replace("size = [64] }", "size = [] }"), "factor `size` has no values"),
            (format!("{SPEC}[series.a.factors]\nlist = []\n"), "factor `list` has no values"),
            (format!("{SPEC}[series.c]\n"), "no series `c`"),
            (format!("{SPEC}[series.a.factors]\nwidth = [1]\n"), "no factor `width`"),
            (format!("{SPEC}{claim}\"time\"\n"), "no number `time`; a point has rate"),
            (format!("{SPEC}more = 1\n"), "more"),
            (
                bound("[\"a\", \"c*\"]", "b"),
                "claim `i`: `c*` of its `series` names no series of the grid; there are `a`, `b`",
            ),
            (
                bound("[\"a\"]", "c"),
                "claim `i`: by = \"c\" means `c` for `a`, which is no series of the grid",
            ),
            (bound("[\"a\"]", "b*"), "by = \"b*\" means `b*` for `a`"),
            (bound("[\"*\"]", "b*"), "by = \"b*\" means `ba` for `a`"),
        ] {
            let error = format!("{:#}", Spec::parse("s", &text).unwrap_err());
            assert!(error.contains(words), "{words}: {error}");
        }
        let no_series = SPEC.replace("series = [\"a\", \"b\"], ", "");
        for text in [
            format!("{SPEC}{claim}\"rate\"\n"),
            bound("[\"a\"]", "b"),
            bound("[\"a*\"]", "b*"),
            format!("{no_series}{claim}\"rate\"\n"),
        ] {
            Spec::parse("s", &text).unwrap();
        }
    }
}
