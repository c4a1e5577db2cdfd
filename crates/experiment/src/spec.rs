//! `experiments/figN/spec.toml`: what a figure sweeps, with which options, and what it draws and judges.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::point::Key;
use super::point::needs_gpu;
use crate::paper::{Claim, Need};

/// One experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Number in the paper.
    pub figure: u32,
    /// What it shows.
    pub title: String,
    /// Program that measures; the generator is the only one.
    pub app: String,
    /// What must be there for the whole grid.
    pub needs: Vec<Need>,
    /// Plots to draw.
    pub plots: Vec<Plot>,
    /// Experiments whose claims the points can judge.
    pub judges: Vec<String>,
    /// Whether the posting code is also compared within one process.
    #[serde(default)]
    pub bench_post: bool,
    grid: Grid,
    quick: Less,
    full: Less,
    /// Options of the generator, name → value.
    pub generator: toml::Table,
    /// Bytes of messages that both ends together have in use, the same for every poster: bounds window and burst of large
    /// messages, see [`Spec::in_flight`]. Without it the generator chooses the window.
    #[serde(default)]
    pub working_set_bytes: Option<u64>,
    /// The same for messages of which that working set does not hold two whole bursts, below `helped_from_bytes`: they have short
    /// bursts in any case, and a working set that one core's own cache holds.
    #[serde(default)]
    pub large_working_set_bytes: Option<u64>,
    /// Payloads that the software NIC's helpers copy (`copy_threads` of nic.toml), as far as it has some.
    #[serde(default)]
    pub helped_from_bytes: Option<u64>,
    /// What a run on a shaped link is held to besides the papers' claims.
    #[serde(default)]
    pub shaped: Vec<Claim>,
    /// Options of some series alone, before all others; `poster` is the series' own name where it is not given. `list` stands in
    /// the place of the grid's.
    #[serde(default)]
    pub series: BTreeMap<String, toml::Table>,
    /// Configuration of the software NIC.
    pub nic: toml::Table,
}

/// A plot by the name of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plot {
    /// `throughput.svg` and `.png`.
    Throughput,
    /// `post-time.svg` and `.png`.
    PostTime,
}

/// The points to measure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// Who posts.
    pub series: Vec<String>,
    /// Message sizes.
    pub payload_bytes: Vec<u64>,
    /// Requests handed over in one call.
    pub list: Vec<u32>,
    /// The same of series that have their own.
    #[serde(default)]
    pub own_list: BTreeMap<String, Vec<u32>>,
    /// How often each.
    pub repeat: u32,
    /// How long each.
    pub seconds: f64,
}

/// Outstanding messages of a point, and how many of them a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// At most, a power of two.
    pub window: u32,
    /// Posted and timed together, and completed by one CQE.
    pub batch: u32,
}

/// Windows of messages that the generator keeps: two of source slots, one of target slots.
const WINDOWS_IN_USE: u64 = 3;
/// The generator's own window for small messages.
const MOST_IN_FLIGHT: u64 = 512;

/// What `--quick` and `--full` put in the grid's place.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Less {
    payload_bytes: Vec<u64>,
    repeat: u32,
    seconds: f64,
}

/// Which of the grids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
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
            Extent::Quick => "quick",
            Extent::Normal => "normal",
            Extent::Full => "full",
        }
    }

    /// The one that results call so.
    pub fn named(name: &str) -> Option<Extent> {
        [Extent::Quick, Extent::Normal, Extent::Full].into_iter().find(|extent| extent.name() == name)
    }
}

impl Spec {
    /// Reads `spec.toml` in an experiment's folder.
    pub fn read(folder: &Path) -> Result<Spec> {
        let path = folder.join("spec.toml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut spec: Spec = toml::from_str(&text).with_context(|| path.display().to_string())?;
        for (name, options) in &mut spec.series {
            if let Some(list) = options.remove("list") {
                let list = list.try_into().with_context(|| format!("{}: list of {name}", path.display()))?;
                spec.grid.own_list.insert(name.clone(), list);
            }
        }
        for name in spec.series.keys() {
            ensure!(spec.grid.series.contains(name), "{}: no series `{name}` in the grid", path.display());
        }
        ensure!(spec.app == "generator", "{}: no program `{}` is known to measure", path.display(), spec.app);
        Ok(spec)
    }

    /// Messages of a whole burst, whatever their size. Errors: none, since the spec's tests read it.
    pub fn burst(&self) -> u32 {
        self.generator.get("batch").and_then(toml::Value::as_integer).map_or(1, |batch| batch as u32)
    }

    /// Window and burst of messages of this size, where the spec bounds them: the largest power of two that the working set
    /// holds, two messages at least.
    pub fn in_flight(&self, payload_bytes: u64) -> Option<InFlight> {
        let fitting = |bytes: u64| -> u32 {
            1 << (bytes / WINDOWS_IN_USE / payload_bytes.max(1)).clamp(2, MOST_IN_FLIGHT).ilog2()
        };
        let copied_by_one = self.helped_from_bytes.is_none_or(|from| payload_bytes < from);
        let window = match (fitting(self.working_set_bytes?), self.large_working_set_bytes) {
            (window, Some(bytes)) if window < 2 * self.burst() && copied_by_one => fitting(bytes),
            (window, _) => window,
        };
        Some(InFlight { window, batch: self.burst().min(window / 2) })
    }

    /// Whether messages of this size are posted in whole bursts, so that their time of a post may stand beside others'.
    pub fn has_whole_bursts(&self, payload_bytes: u64) -> bool {
        self.in_flight(payload_bytes).is_none_or(|in_flight| in_flight.batch == self.burst())
    }

    /// Another grid, for tests of the whole.
    #[cfg(any(test, feature = "testing"))]
    pub fn set_grid(&mut self, grid: Grid) {
        self.grid = grid;
    }

    /// The grid of this extent.
    pub fn grid(&self, extent: Extent) -> Grid {
        let other = match extent {
            Extent::Quick => &self.quick,
            Extent::Full => &self.full,
            Extent::Normal => return self.grid.clone(),
        };
        Grid {
            payload_bytes: other.payload_bytes.clone(),
            repeat: other.repeat,
            seconds: other.seconds,
            ..self.grid.clone()
        }
    }
}

impl Grid {
    /// Leaves out the series that need a GPU; which they were.
    pub fn without_gpu(&mut self) -> Vec<String> {
        let (out, left) = self.series.drain(..).partition(|series| needs_gpu(series));
        self.series = left;
        out
    }

    /// Requests that a series hands over in one call.
    pub fn lists(&self, series: &str) -> &[u32] {
        self.own_list.get(series).unwrap_or(&self.list)
    }

    /// All points in the order in which they are measured: A B A B within a size, all sizes within a repetition, so that
    /// ratios and repetitions share the machine's mood.
    pub fn keys(&self) -> Vec<Key> {
        let lists: BTreeSet<u32> =
            self.series.iter().flat_map(|series| self.lists(series)).copied().collect();
        let mut keys = Vec::new();
        for repetition in 0..self.repeat {
            for payload in &self.payload_bytes {
                for list in &lists {
                    let series = self.series.iter().filter(|series| self.lists(series).contains(list));
                    keys.extend(series.map(|series| (series.clone(), *payload, *list, repetition)));
                }
            }
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::Paper;
    use crate::root;

    fn spec(figure: u32) -> Spec {
        Spec::read(&root().join(format!("experiments/fig{figure}"))).unwrap()
    }

    #[test]
    fn both_figures_sweep_the_whole_range_with_the_pump_off() {
        for figure in [4, 5] {
            let spec = spec(figure);
            assert_eq!(spec.nic.get("pump").and_then(toml::Value::as_bool), Some(false));
            assert_eq!(spec.nic.get("strict").and_then(toml::Value::as_bool), Some(true));
            for extent in [Extent::Quick, Extent::Normal, Extent::Full] {
                let sizes = spec.grid(extent).payload_bytes;
                assert_eq!(
                    (sizes.first(), sizes.last()),
                    (Some(&64), Some(&(1 << 20))),
                    "figure {figure} {extent:?}"
                );
                assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]), "figure {figure} {extent:?}");
            }
        }
    }

    #[test]
    fn the_timed_burst_is_the_same_for_every_size_and_holds_whole_lists() {
        for figure in [4, 5] {
            let spec = spec(figure);
            let batch = spec.generator["batch"].as_integer().unwrap() as u32;
            assert_eq!(batch, 32, "figure {figure}: README.md says so");
            let grid = spec.grid(Extent::Full);
            let lists = grid.series.iter().flat_map(|series| grid.lists(series));
            assert!(lists.into_iter().all(|list| batch.is_multiple_of(*list)), "figure {figure}");
        }
        // Figure 5 is about that time.
        assert!(spec(5).working_set_bytes.is_none() && spec(5).has_whole_bursts(1 << 20));
    }

    #[test]
    fn large_messages_of_figure_4_stay_in_caches_and_small_ones_are_as_the_generator_has_them() {
        let spec = spec(4);
        for (payload, window, batch, whole) in [
            (64, 512, 32, true),
            (2048, 512, 32, true),
            (4096, 256, 32, true),
            (21_000, 64, 32, true),
            (22_040, 8, 4, false),
            (60_000, 4, 2, false),
            (65_536, 16, 8, false),
            (131_072, 8, 4, false),
            (262_144, 4, 2, false),
            (1 << 20, 2, 1, false),
        ] {
            assert_eq!(spec.in_flight(payload), Some(InFlight { window, batch }), "{payload} B");
            assert_eq!(spec.has_whole_bursts(payload), whole, "{payload} B");
            // Two windows and a message behind them at 1 MiB, else what README.md says.
            let used = u64::from(window) * WINDOWS_IN_USE * payload;
            let in_one_cache = (22_000..65_536).contains(&payload);
            let most = if in_one_cache { spec.large_working_set_bytes } else { spec.working_set_bytes };
            assert!(used <= most.unwrap() || window == 2, "{payload} B: {used}");
        }
        // One core's own cache on the machine that the README's numbers are of.
        assert!(spec.large_working_set_bytes.unwrap() < 2 << 20);
    }

    #[test]
    fn a_series_with_lists_of_its_own_has_points_of_these_alone() {
        for figure in [4, 5] {
            let keys = spec(figure).grid(Extent::Quick).keys();
            let lists = |series: &str| -> BTreeSet<u32> {
                keys.iter().filter(|key| key.0 == series).map(|key| key.2).collect()
            };
            assert_eq!(lists("gpu-warp"), [32].into(), "figure {figure}");
            assert_eq!(lists("gpu-original"), [1].into(), "figure {figure}");
            let both = if figure == 5 { [1, 16].into() } else { [1].into() };
            assert_eq!((&lists("gpu-thread"), &lists("cpu-shim")), (&both, &both), "figure {figure}");
        }
    }

    #[test]
    fn the_full_extent_holds_every_published_size() {
        for figure in [4, 5] {
            let sizes = spec(figure).grid(Extent::Full).payload_bytes;
            let paper = Paper::read(&root().join(format!("experiments/fig{figure}"))).unwrap();
            for [payload, ..] in paper.series.iter().flat_map(|curve| &curve.points) {
                assert!(sizes.contains(&(*payload as u64)), "figure {figure} lacks {payload}");
            }
        }
    }

    #[test]
    fn without_a_gpu_the_series_that_need_one_are_left_out_by_name() {
        let mut grid = spec(4).grid(Extent::Quick);
        grid.series = ["cpu-shim", "gpu-thread", "host-twin", "gpu-warp"].map(str::to_owned).to_vec();
        assert_eq!(grid.without_gpu(), ["gpu-thread", "gpu-warp"]);
        assert_eq!(grid.series, ["cpu-shim", "host-twin"]);
    }

    #[test]
    fn series_take_turns_within_a_size() {
        let grid = Grid {
            series: vec!["a".into(), "b".into()],
            payload_bytes: vec![64, 128],
            list: vec![1],
            own_list: BTreeMap::new(),
            repeat: 2,
            seconds: 1.0,
        };
        let keys: Vec<String> = grid
            .keys()
            .iter()
            .map(|(series, payload, _, repetition)| format!("{series}{payload}.{repetition}"))
            .collect();
        assert_eq!(keys.join(" "), "a64.0 b64.0 a128.0 b128.0 a64.1 b64.1 a128.1 b128.1");
    }
}
