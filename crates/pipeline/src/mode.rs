//! The modes of a pipeline: which processor waits for requests, which posts answers, what launches the model.

/// Where a step of a turn runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processor {
    Cpu,
    Gpu,
}

/// How a pipeline is served. The paper's release has four of them, by other names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The CPU waits, launches, and posts by libibverbs.
    CpuCpuIbverbs,
    /// The CPU waits, launches, and posts by the shim's routine.
    CpuCpuShim,
    /// The CPU waits and launches a graph that posts.
    CpuGpu,
    /// A graph waits, and the CPU posts.
    GpuCpu,
    /// A graph waits, posts, and launches itself again.
    GpuGraph,
    /// A graph waits and posts as the body of a WHILE node.
    GpuWhile,
    /// One block stays, waits for the next request and posts; two graphs that launch themselves compute.
    GpuAhead,
    /// One kernel stays on the GPU and does all of it.
    GpuPersistent,
}

impl Mode {
    pub const ALL: [Mode; 8] = [
        Mode::CpuCpuIbverbs,
        Mode::CpuCpuShim,
        Mode::CpuGpu,
        Mode::GpuCpu,
        Mode::GpuGraph,
        Mode::GpuWhile,
        Mode::GpuAhead,
        Mode::GpuPersistent,
    ];

    /// The mode's name in options and results.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::CpuCpuIbverbs => "cpu-cpu-ibverbs",
            Mode::CpuCpuShim => "cpu-cpu-shim",
            Mode::CpuGpu => "cpu-gpu",
            Mode::GpuCpu => "gpu-cpu",
            Mode::GpuGraph => "gpu-graph",
            Mode::GpuWhile => "gpu-while",
            Mode::GpuAhead => "gpu-ahead",
            Mode::GpuPersistent => "gpu-persistent",
        }
    }

    /// The name of the release's mode. `None`: the release has none such. Its `gpu-cpu` ends with an error.
    pub const fn release_name(self) -> Option<&'static str> {
        match self {
            Mode::CpuCpuIbverbs | Mode::CpuCpuShim => Some("cpu-cpu"),
            Mode::CpuGpu => Some("cpu-gpu"),
            Mode::GpuCpu => Some("gpu-cpu"),
            Mode::GpuGraph => Some("gpu-gpu"),
            Mode::GpuWhile | Mode::GpuAhead | Mode::GpuPersistent => None,
        }
    }

    /// The release's name where it is another one and names this mode alone: an option takes it too.
    pub fn alias(self) -> Option<&'static str> {
        let is_own =
            |name: &&str| Mode::ALL.iter().filter(|mode| mode.release_name() == Some(name)).count() == 1;
        self.release_name().filter(|name| *name != self.name()).filter(is_own)
    }

    /// What a mode does, and the release's name for it: for `--help`.
    pub fn about(self) -> String {
        let does = match self {
            Mode::CpuCpuIbverbs => "a thread waits, and posts by libibverbs",
            Mode::CpuCpuShim => "a thread waits, and posts by the shim",
            Mode::CpuGpu => "a thread waits and launches a graph, which posts",
            Mode::GpuCpu => "a graph waits and launches itself again, and a thread posts",
            Mode::GpuGraph => "a graph waits, posts, and launches itself again",
            Mode::GpuWhile => "a graph waits and posts as the body of a WHILE node",
            Mode::GpuAhead => {
                "one block stays on the GPU, waits for the next request and posts, while two graphs compute in turn"
            }
            Mode::GpuPersistent => "one kernel stays on the GPU, waits and posts",
        };
        match self.release_name() {
            Some(name) => format!("{does} (the paper's release: {name})"),
            None => format!("{does} (the paper's release has none such)"),
        }
    }

    /// The processor that waits for requests.
    pub const fn waits(self) -> Processor {
        match self {
            Mode::CpuCpuIbverbs | Mode::CpuCpuShim | Mode::CpuGpu => Processor::Cpu,
            Mode::GpuCpu | Mode::GpuGraph | Mode::GpuWhile | Mode::GpuAhead | Mode::GpuPersistent => {
                Processor::Gpu
            }
        }
    }

    /// The processor that posts answers.
    pub const fn posts(self) -> Processor {
        match self {
            Mode::CpuCpuIbverbs | Mode::CpuCpuShim | Mode::GpuCpu => Processor::Cpu,
            Mode::CpuGpu | Mode::GpuGraph | Mode::GpuWhile | Mode::GpuAhead | Mode::GpuPersistent => {
                Processor::Gpu
            }
        }
    }

    /// Whether a GPU, or the host twin in its place, is needed.
    pub const fn needs_gpu(self) -> bool {
        matches!((self.waits(), self.posts()), (Processor::Gpu, _) | (_, Processor::Gpu))
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no mode is called {0:?}; there are: {names}", names = Mode::ALL.map(Mode::name).join(", "))]
pub struct UnknownMode(String);

impl std::str::FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Mode, UnknownMode> {
        let mode = Mode::ALL.into_iter().find(|mode| mode.name() == text || mode.alias() == Some(text));
        mode.ok_or_else(|| UnknownMode(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_found_by_its_name_and_by_the_release_s_where_that_names_it_alone() {
        assert!(Mode::ALL.iter().all(|mode| mode.name().parse() == Ok(*mode)));
        assert_eq!("gpu-gpu".parse(), Ok(Mode::GpuGraph));
        // The release has one mode for two of ours.
        let error = "cpu-cpu".parse::<Mode>().unwrap_err().to_string();
        assert!(error.contains("\"cpu-cpu\"") && error.contains("gpu-graph, gpu-while"), "{error}");
    }

    #[test]
    fn the_names_of_the_release_say_who_waits_and_who_posts() {
        let word = |processor| if processor == Processor::Cpu { "cpu" } else { "gpu" };
        for mode in Mode::ALL {
            let said = format!("{}-{}", word(mode.waits()), word(mode.posts()));
            assert!(mode.release_name().is_none_or(|name| name == said), "{mode}");
            let about = mode.about();
            assert!(about.contains(mode.release_name().unwrap_or("none such")), "{mode}: {about}");
        }
        assert_eq!(Mode::ALL.iter().filter(|mode| mode.needs_gpu()).count(), 6);
    }
}
