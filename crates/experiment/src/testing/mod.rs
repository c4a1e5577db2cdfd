//! A point and an experiment for tests, of this crate and of the commands; they change what they are about.

use std::path::{Path, PathBuf};

use measure::{Label, Provenance};

use crate::Experiment;
use crate::point::{Key, Point};

/// The workspace, for tests of what is committed.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A whole point of figure 4.
pub fn example(series: &str, x: u64) -> Point {
    let gpu = if series.starts_with("gpu-") { Label::Hardware } else { Label::None };
    let values = [("payload_gbps", 1.0), ("wire_gbps", 1.0), ("msgs_per_s", 1.0), ("post_ns", 100.0)];
    let others = [("post_mean_ns", 110.0), ("posting_threads", 1.0), ("link_gbps", 100.0)];
    let named = |(name, value): (&str, f64)| (name.to_owned(), value);
    let key = Key { series: series.into(), x, at: [("list".to_owned(), 1)].into(), repetition: 0 };
    let provenance = Provenance {
        nic: Label::Hardware,
        gpu,
        link: Label::Hardware,
        device: "mlx5_0".into(),
        gpu_device: String::new(),
        nic_options: Default::default(),
        machine: "a machine, 2 cores".into(),
        cores: 2,
        load: None,
        versions: Default::default(),
        revision: measure::Revision { commit: "abc".into(), dirty: false },
        hosts: Vec::new(),
    };
    Point {
        seconds: 1.0,
        settings: [("window".to_owned(), 64), ("batch".to_owned(), 32)].into(),
        values: values.into_iter().chain(others).map(named).collect(),
        ..Point::new("fig4", key, Label::Hardware, provenance)
    }
}

impl Point {
    /// The same with another number.
    pub fn with(mut self, name: &str, value: f64) -> Point {
        *self.value(name) = value;
        self
    }

    /// The same with lists of so many.
    pub fn lists(mut self, list: u64) -> Point {
        self.at.insert("list".into(), list);
        self
    }

    /// One of its numbers.
    pub fn value(&mut self, name: &str) -> &mut f64 {
        self.values.entry(name.to_owned()).or_default()
    }
}

impl Experiment {
    /// The one of this name in the workspace with a grid of eight points, for tests of the whole.
    pub fn small(name: &str) -> Experiment {
        let mut experiment = Experiment::read(&root().join("experiments"), name).expect("it is committed");
        let grid = toml::toml! {
            payload_bytes = [64, 4096]
            repeat = 2
            seconds = 0.01
            series = ["cpu-ibverbs", "cpu-shim"]
            list = [1]
        };
        experiment.spec.set_grid(grid.try_into().expect("it is a grid"));
        experiment
    }
}
