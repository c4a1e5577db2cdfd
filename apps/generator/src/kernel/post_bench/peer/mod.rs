//! A peer's posting routine from headers the user gives: gpunetio's device code, as the pip package
//! nvidia-nvshmem-cu13 3.8.0 carries it in `nvidia/nvshmem/include/gpunetio`. We ship none of it.
//!
//! It is written for nvcc. NVRTC lacks the host's headers, replaced by a few lines here, and takes
//! attributes only in front of a structure's members ([`attributes`]). Code and layouts stay what they are.

#![forbid(unsafe_code)]

mod attributes;

use std::path::{Path, PathBuf};

use gpu::{Toolkit, Unit};

/// Folder and name of what its umbrella header includes.
const FILES: [(&str, &str); 8] = [
    ("", "doca_gpunetio_device.h"),
    ("common/", "doca_gpunetio_verbs_def.h"),
    ("common/", "doca_gpunetio_verbs_dev.h"),
    ("device/", "doca_gpunetio_dev_verbs_common.cuh"),
    ("device/", "doca_gpunetio_dev_verbs_counter.cuh"),
    ("device/", "doca_gpunetio_dev_verbs_cq.cuh"),
    ("device/", "doca_gpunetio_dev_verbs_onesided.cuh"),
    ("device/", "doca_gpunetio_dev_verbs_qp.cuh"),
];

/// What stands in for the host's headers: as much as the above use. Numbers are Linux'.
const HOST: [(&str, &str); 7] = [
    ("stdio.h", ""),
    ("math.h", ""),
    ("stdint.h", "#include <cuda/std/cstdint>\n"),
    ("limits.h", "#define INT_MAX 0x7fffffff\n"),
    ("errno.h", "#define EIO 5\n#define EBUSY 16\n#define EINVAL 22\n"),
    (
        "linux/types.h",
        "typedef unsigned short __be16;\ntypedef unsigned int __be32;\ntypedef unsigned long long __be64;\n",
    ),
    ("cuda.h", "#define CUDA_VERSION (__CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10)\n"),
];

/// Why a folder is not the peer's.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: {reason}; the folder wanted is nvidia/nvshmem/include/gpunetio of the pip package nvidia-nvshmem-cu13 3.8.0",
    path.display()
)]
pub struct PeerError {
    pub path: PathBuf,
    pub reason: String,
}

/// The peer's headers, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerHeaders {
    files: Vec<(&'static str, &'static str, String)>,
    version: String,
}

impl PeerHeaders {
    /// Reads them from `folder`. Error: the first file that is missing or cannot be read.
    pub fn read(folder: &Path) -> Result<PeerHeaders, PeerError> {
        let mut files = Vec::new();
        for (below, name) in FILES {
            let path = folder.join(below).join(name);
            match std::fs::read_to_string(&path) {
                Ok(text) => files.push((below, name, text)),
                Err(error) => return Err(PeerError { path, reason: error.to_string() }),
            }
        }
        let number = |part: &str| {
            let define = format!("#define DOCA_GPUNETIO_VERSION_{part} ");
            let line = files[1].2.lines().find_map(|line| line.strip_prefix(&define));
            line.map_or("?", str::trim).to_owned()
        };
        let version = ["MAJOR", "MINOR", "PATCH"].map(number).join(".");
        Ok(PeerHeaders { files, version })
    }

    /// As its headers say it: `4.0.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// `unit` with all that it includes. `toolkit` has the C++ library (`cuda/atomic`) that they ask for.
    pub(super) fn complete(&self, unit: Unit, toolkit: &Toolkit) -> Unit {
        let mut unit = unit;
        for (name, text) in HOST {
            unit = unit.header(name, text);
        }
        for (below, name, text) in &self.files {
            let text = attributes::in_front(text);
            // As each other file calls it: NVRTC knows headers in memory by these words alone.
            for name in [format!("{below}{name}"), format!("../{below}{name}"), (*name).to_owned()] {
                if !unit.headers.iter().any(|(known, _)| *known == name) {
                    unit = unit.header(name, text.clone());
                }
            }
        }
        toolkit.include.iter().fold(unit, |unit, folder| unit.flag(format!("-I{}", folder.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_missing_file_is_named_with_where_the_folder_comes_from() {
        let folder = std::env::temp_dir().join(format!("peer-headers-{}", std::process::id()));
        let fill = |files: &[(&str, &str)]| {
            for (below, name) in files {
                std::fs::create_dir_all(folder.join(below)).unwrap();
                std::fs::write(folder.join(below).join(name), "#define DOCA_GPUNETIO_VERSION_MAJOR 4\n")
                    .unwrap();
            }
        };
        for (present, missing) in
            [(0, "doca_gpunetio_device.h"), (4, "device/doca_gpunetio_dev_verbs_counter.cuh")]
        {
            fill(&FILES[..present]);
            let error = PeerHeaders::read(&folder).unwrap_err();
            assert_eq!(error.path, folder.join(missing));
            let text = error.to_string();
            assert!(text.contains("No such file") && text.contains("nvidia-nvshmem-cu13"), "{text}");
            assert_eq!(text.lines().count(), 1);
        }
        fill(&FILES);
        assert_eq!(PeerHeaders::read(&folder).unwrap().version(), "4.?.?");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn each_file_is_there_under_every_name_that_another_calls_it() {
        let files = FILES.map(|(below, name)| (below, name, String::new())).to_vec();
        let headers = PeerHeaders { files, version: String::new() };
        let toolkit = Toolkit {
            root: "/t".into(),
            nvrtc: "".into(),
            builtins: "".into(),
            jit_link: "".into(),
            device_runtime: "".into(),
            include: vec!["/t/include".into()],
        };
        let unit = headers.complete(Unit::new("a.cu", ""), &toolkit);
        let has = |name: &str| unit.headers.iter().filter(|(known, _)| known == name).count() == 1;
        for name in [
            "stdint.h",
            "common/doca_gpunetio_verbs_def.h",
            "../common/doca_gpunetio_verbs_dev.h",
            "doca_gpunetio_verbs_def.h",
            "doca_gpunetio_dev_verbs_qp.cuh",
            "doca_gpunetio_device.h",
        ] {
            assert!(has(name), "{name}");
        }
        assert_eq!(unit.flags.last().unwrap(), "-I/t/include");
    }
}
