//! What an asking end says at the end: one JSON object, and the same for people.

use cli::name;
use measure::{Histogram, Label, Summary, Timer, timer};
use pipeline::Mode;
use serde::Serialize;
use verbs::connect::Path;

use crate::options::Options;
use crate::outcome::Outcome;

/// The line. Fields are described in README.md.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    pub kind: &'static str,
    pub mode: Option<&'static str>,
    pub window: Option<u32>,
    pub machine: String,
    pub memory: String,
    pub label: Label,
    pub nic: Label,
    pub gpu: Label,
    pub link: Label,
    pub device: String,
    pub mtu: u32,
    pub link_layer: String,
    pub payload_bytes: u32,
    pub count: u32,
    pub answered: u64,
    pub wrong_words: u32,
    pub first_wrong: Option<u32>,
    pub warm_up: usize,
    pub timer: Timer,
    pub round_trip: Option<Summary>,
    pub interrupted: bool,
    pub error: Option<String>,
}

/// The first round trips find cold caches and sleeping NICs: a tenth, at most this many, are left out.
const WARM_UP: usize = 100;

impl Run {
    pub fn new(
        options: &Options,
        payload_bytes: u32,
        device: &str,
        path: &Path,
        outcome: &Outcome,
        interrupted: bool,
    ) -> Run {
        let warm_up = (outcome.times.len() / 10).min(WARM_UP);
        let mut times = Histogram::new();
        outcome.times[warm_up..].iter().for_each(|&ns| times.record(ns.into()));
        let (nic, gpu) = (cli::nic_label(), options.gpu_label());
        // One that asks through libibverbs claims nothing of a GPU.
        let parts = [nic, nic, gpu].into_iter().filter(|&part| part != Label::None);
        Run {
            kind: "run",
            mode: options.mode.map(Mode::name),
            window: options.mode.map(|_| options.window()),
            machine: name(options.machine),
            memory: name(options.memory),
            label: Label::weakest(parts),
            nic,
            gpu,
            link: nic,
            device: device.into(),
            mtu: path.mtu.bytes(),
            link_layer: path.link_layer.to_string(),
            payload_bytes,
            count: options.count,
            answered: outcome.times.len() as u64,
            wrong_words: outcome.wrong_words,
            first_wrong: outcome.first_wrong,
            warm_up,
            timer: timer::ROUND_TRIP,
            round_trip: times.summary(),
            interrupted,
            error: outcome.error.clone(),
        }
    }

    /// Whether all was asked and answered as it should be.
    pub fn is_success(&self) -> bool {
        self.answered == u64::from(self.count) && self.wrong_words == 0 && self.error.is_none()
    }

    pub fn text(&self) -> String {
        let mut text =
            format!("{} of {} questions of {} bytes answered", self.answered, self.count, self.payload_bytes);
        match self.first_wrong {
            None => text.push_str(", each answer as it should be"),
            Some(first) => {
                text.push_str(&format!(
                    ", {} words of answers wrong, first that of {first}",
                    self.wrong_words
                ));
            }
        }
        if let Some(times) = self.round_trip {
            let us = |ns: u64| ns as f64 / 1e3;
            text.push_str(&format!(
                "\nround trip: p50 {:.1} us, p99 {:.1} us of {} (nic {}, gpu {}, link {})",
                us(times.p50_ns),
                us(times.p99_ns),
                times.count,
                self.nic,
                self.gpu,
                self.link
            ));
        }
        if self.interrupted {
            text.push_str("\nstopped by a signal: these are the counts so far");
        }
        text
    }
}
