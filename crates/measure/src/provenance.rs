//! Where a number comes from: the parts and their labels, versions, machine, options, revision.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::label::{Label, Part};
use crate::revision::Revision;

/// Everything that a result line carries beside its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// What the RDMA device was.
    pub nic: Label,
    /// What the GPU was.
    pub gpu: Label,
    /// What joined the two ends.
    pub link: Label,
    /// Device name, as in `mlx5_0`; empty when there is none.
    pub device: String,
    /// Name and architecture of the GPU, as in `NVIDIA H200, sm_90`; empty if none took part. Versions of its
    /// driver (`nvidia-driver`, `cuda`) and compiler (`nvrtc`, `nvjitlink`) are in `versions`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gpu_device: String,
    /// Options of the NIC that differ from its defaults or matter to the number, e.g. `pump = false`.
    pub nic_options: BTreeMap<String, serde_json::Value>,
    /// Processor model and cores that this process may use, e.g. `AMD EPYC 7763, 2 cores`.
    pub machine: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Threads that ran or waited for a core before the measurement, averaged over a minute
    /// (`/proc/loadavg`); `None` if unknown. A share of a core or more lowers numbers of an emulated NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// Versions by name: `kernel`, `rustc`, `profile`, and each library asked for.
    pub versions: BTreeMap<String, String>,
    /// The source.
    pub revision: Revision,
    /// The sender's host and the receiver's, if two; `machine`, `cores`, `load`, `versions` are the sender's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<Host>,
}

/// What a host says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Host name.
    pub name: String,
    /// Processor model and cores, as `machine` of [`Provenance`].
    pub machine: String,
    /// Cores that a process may use.
    pub cores: usize,
    /// As `load` of [`Provenance`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// `kernel`, and of an end of a transfer libraries and firmware.
    pub versions: BTreeMap<String, String>,
}

impl Host {
    /// The one that this process runs on.
    pub fn here() -> Host {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Host {
            name: read_line("/proc/sys/kernel/hostname"),
            machine: format!("{}, {cores} cores", processor()),
            cores,
            load: read_line("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()),
            versions: BTreeMap::from([("kernel".to_owned(), read_line("/proc/sys/kernel/osrelease"))]),
        }
    }
}

impl Provenance {
    /// Asks this machine and the git tree at `source`; `libraries` are file name stems such as `libmlx5.so`.
    /// NIC, GPU and link start as `none`: the program that knows them sets them.
    pub fn collect(source: &Path, libraries: &[&str]) -> Provenance {
        Provenance::of(Revision::of(source), libraries)
    }

    /// The same where the source is known already, or is not here.
    pub fn of(revision: Revision, libraries: &[&str]) -> Provenance {
        let Host { machine, cores, load, mut versions, .. } = Host::here();
        versions.insert("rustc".to_owned(), env!("MEASURE_RUSTC").to_owned());
        versions.insert("profile".to_owned(), env!("MEASURE_PROFILE").to_owned());
        for library in libraries {
            let version = library_version(library).unwrap_or_else(|| "missing".into());
            versions.insert(library.trim_end_matches(".so").to_owned(), version);
        }
        Provenance {
            nic: Label::None,
            gpu: Label::None,
            link: Label::None,
            device: String::new(),
            gpu_device: String::new(),
            nic_options: BTreeMap::new(),
            machine,
            cores,
            load,
            versions,
            revision,
            hosts: Vec::new(),
        }
    }

    /// The machine, or both hosts with theirs.
    pub fn machines(&self) -> String {
        let named = |host: &Host| format!("{}: {}", host.name, host.machine);
        match self.hosts.is_empty() {
            true => self.machine.clone(),
            false => self.hosts.iter().map(named).collect::<Vec<_>>().join("; "),
        }
    }

    /// The label of a claim that needs `parts`: the weakest of theirs.
    pub fn label(&self, parts: &[Part]) -> Label {
        Label::weakest(parts.iter().map(|part| match part {
            Part::Nic => self.nic,
            Part::Gpu => self.gpu,
            Part::Link => self.link,
        }))
    }
}

/// Version of a shared library by the name of the file behind its soname: `libmlx5.so.1.24.44.0` gives
/// `1.24.44.0`. A copy that this process has loaded goes first, then the system's library folders.
pub fn library_version(stem: &str) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let loaded = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find_map(|path| version_in(path, stem));
    loaded.or_else(|| {
        ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"].iter().find_map(
            |folder| {
                let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
                // The longest name is the file itself, shorter ones are links to it.
                names.filter_map(|name| version_in(&name.to_string_lossy(), stem)).max_by_key(String::len)
            },
        )
    })
}

fn version_in(path: &str, stem: &str) -> Option<String> {
    let name = path.rsplit('/').next()?;
    name.strip_prefix(stem)?.strip_prefix('.').map(str::to_owned)
}

fn processor() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(':')).map(|(_, model)| model.trim().to_owned());
    model.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn read_line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Provenance {
        Provenance::collect(Path::new(env!("CARGO_MANIFEST_DIR")), &["libc.so", "libnothere.so"])
    }

    #[test]
    fn this_machine_has_a_kernel_a_compiler_and_cores() {
        let provenance = here();
        for name in ["kernel", "rustc", "profile"] {
            assert!(!provenance.versions[name].is_empty(), "{name}");
        }
        assert!(provenance.load.is_some_and(|load| load >= 0.0));
        assert!(provenance.cores > 0 && provenance.machine.contains("cores"));
    }

    #[test]
    fn a_missing_library_says_missing() {
        let provenance = here();
        assert_eq!(provenance.versions["libnothere"], "missing");
        assert_eq!(provenance.versions["libc"], "6");
    }

    #[test]
    fn a_claim_that_needs_no_gpu_is_not_weakened_by_its_absence() {
        let provenance = Provenance { nic: Label::Emulated, link: Label::Hardware, ..here() };
        assert_eq!(provenance.label(&[Part::Nic, Part::Link]), Label::Emulated);
        assert_eq!(provenance.label(&[Part::Nic, Part::Gpu]), Label::None);
    }

    #[test]
    fn a_line_from_before_gpus_had_names_is_read() {
        let json = serde_json::to_string(&here()).unwrap();
        assert!(!json.contains("gpu_device") && !json.contains("hosts"), "{json}");
        assert_eq!(serde_json::from_str::<Provenance>(&json).unwrap().gpu_device, "");
    }

    #[test]
    fn the_machine_of_one_host_and_the_machines_of_two_are_named() {
        let host =
            |name: &str| Host { name: name.into(), machine: format!("{name}'s, 2 cores"), ..Host::default() };
        let one = Provenance { machine: "ours, 2 cores".into(), ..here() };
        let two = Provenance { hosts: vec![host("a"), host("b")], ..one.clone() };
        assert_eq!([one.machines(), two.machines()], ["ours, 2 cores", "a: a's, 2 cores; b: b's, 2 cores"]);
    }

    #[test]
    fn a_version_is_what_follows_the_name() {
        for (path, stem, version) in [
            ("/usr/lib/x86_64-linux-gnu/libmlx5.so.1.24.44.0", "libmlx5.so", Some("1.24.44.0")),
            ("libibverbs.so.1", "libibverbs.so", Some("1")),
            ("libibverbs.so", "libibverbs.so", None),
            ("/tmp/libmlx5.so.1/other", "libmlx5.so", None),
        ] {
            assert_eq!(version_in(path, stem).as_deref(), version, "{path}");
        }
    }

    #[test]
    fn a_line_survives_json() {
        let provenance = here();
        let json = serde_json::to_string(&provenance).unwrap();
        assert_eq!(serde_json::from_str::<Provenance>(&json).unwrap(), provenance);
    }
}
