//! Where the parts of a CUDA toolkit lie: compiler, its builtins, linker, device runtime, headers.
//!
//! Searched in this order: a given folder (an option, or `DOORBELL_CUDA`), and then nowhere else;
//! `CUDA_HOME`; `CUDA_PATH`; `/usr/local/cuda`. Each may be a toolkit (`lib64`, `targets/x86_64-linux/lib`,
//! `lib`) or a folder of NVIDIA's wheels by `pip install --target` (`nvidia/cu13/lib`, before CUDA 13 one
//! folder a package). Left out: distributions' own packages in `/usr/lib`, other processors than x86-64.

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

/// The variable that names the one folder to look in.
pub const GIVEN: &str = "DOORBELL_CUDA";
/// Variables that other programs use too.
const USUAL: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];
/// Where NVIDIA's installers put it.
const INSTALLED: &str = "/usr/local/cuda";

/// The parts of one toolkit, as absolute paths of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolkit {
    /// The folder that all parts lie in.
    pub root: PathBuf,
    /// `libnvrtc.so.N`, the compiler.
    pub nvrtc: PathBuf,
    /// `libnvrtc-builtins.so.N.N`, without which each compile fails.
    pub builtins: PathBuf,
    /// `libnvJitLink.so.N`, the linker.
    pub jit_link: PathBuf,
    /// `libcudadevrt.a`, what device code that launches graphs is linked with.
    pub device_runtime: PathBuf,
    /// Folders of headers, for units that include some of NVIDIA's; may be none.
    pub include: Vec<PathBuf>,
}

/// No folder holds a whole toolkit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no CUDA toolkit: looked in {}; set CUDA_HOME to one (12 or newer), or {GIVEN} to target/cuda, which `cargo xtask setup` fills",
    looked.join(", ")
)]
pub struct ToolkitMissing {
    /// Each folder, and what it lacks.
    pub looked: Vec<String>,
}

#[derive(Clone, Copy)]
enum Part {
    Nvrtc,
    Builtins,
    JitLink,
    DeviceRuntime,
}

const PARTS: [Part; 4] = [Part::Nvrtc, Part::Builtins, Part::JitLink, Part::DeviceRuntime];

impl Part {
    /// The file's name, without the version that follows a library's.
    fn name(self) -> &'static str {
        match self {
            Part::Nvrtc => "libnvrtc.so",
            Part::Builtins => "libnvrtc-builtins.so",
            Part::JitLink => "libnvJitLink.so",
            Part::DeviceRuntime => "libcudadevrt.a",
        }
    }
}

impl Toolkit {
    /// Looks as the module's words say. `given`: a folder from an option, before the environment's.
    pub fn find(given: Option<&Path>) -> Result<Toolkit, ToolkitMissing> {
        Self::find_in(&roots(given, &|name| std::env::var_os(name)))
    }

    /// The first of `roots` that holds every part.
    pub fn find_in(roots: &[PathBuf]) -> Result<Toolkit, ToolkitMissing> {
        let mut looked = Vec::new();
        for root in roots {
            match Self::at(root) {
                Ok(toolkit) => return Ok(toolkit),
                Err(lacks) => looked.push(format!("{} ({lacks})", root.display())),
            }
        }
        Err(ToolkitMissing { looked })
    }

    /// The toolkit in `root`, or what that lacks.
    fn at(root: &Path) -> Result<Toolkit, String> {
        // Paths are handed to the dynamic loader, to which a relative one means something else.
        let root = root.canonicalize().map_err(|error| error.to_string())?;
        let folders = library_folders(&root);
        let found = PARTS.map(|part| folders.iter().find_map(|folder| newest(folder, part)));
        let [Some(nvrtc), Some(builtins), Some(jit_link), Some(device_runtime)] = found.clone() else {
            let lacks: Vec<&str> = PARTS
                .iter()
                .zip(&found)
                .filter(|(_, at)| at.is_none())
                .map(|(part, _)| part.name())
                .collect();
            return Err(format!("lacks {}", lacks.join(", ")));
        };
        if major(&nvrtc) != major(&builtins) {
            return Err(format!("{} and {} are of different versions", nvrtc.display(), builtins.display()));
        }
        Ok(Toolkit { include: include_folders(&root), root, nvrtc, builtins, jit_link, device_runtime })
    }

    /// What tells this toolkit's compiler and linker from others, for a cache key. NVRTC tells no patch
    /// level, and loading it to ask takes longer than reading an image: so its file's name, length and date.
    pub(crate) fn fingerprint(&self) -> String {
        let of = |path: &PathBuf| {
            let (file, name) =
                (fs::metadata(path).ok(), path.file_name().unwrap_or_default().to_string_lossy());
            let date = file.as_ref().and_then(|file| file.modified().ok());
            format!("{name} {} {date:?};", file.map_or(0, |file| file.len()))
        };
        [&self.nvrtc, &self.builtins, &self.jit_link, &self.device_runtime].map(of).concat()
    }
}

/// Folders to look in, most wanted first.
fn roots(given: Option<&Path>, environment: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // A named folder is the only one: another toolkit, found elsewhere, would hide the mistake.
    if let Some(folder) = given.map(Path::to_owned).or_else(|| set(GIVEN)) {
        return vec![folder];
    }
    let mut roots: Vec<PathBuf> = USUAL.iter().filter_map(|name| set(name)).collect();
    roots.push(INSTALLED.into());
    roots.dedup();
    roots
}

fn library_folders(root: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        ["lib64", "targets/x86_64-linux/lib", "lib"].iter().map(|folder| root.join(folder)).collect();
    folders.extend(wheels(root).into_iter().map(|wheel| wheel.join("lib")));
    folders.retain(|folder| folder.is_dir());
    folders
}

fn include_folders(root: &Path) -> Vec<PathBuf> {
    let mut folders = vec![root.join("include"), root.join("targets/x86_64-linux/include")];
    folders.extend(wheels(root).into_iter().map(|wheel| wheel.join("include")));
    // Newer toolkits keep the C++ library (`cuda/std`) a folder deeper.
    let deeper: Vec<PathBuf> = folders.iter().map(|folder| folder.join("cccl")).collect();
    folders.extend(deeper);
    folders.retain(|folder| folder.is_dir());
    folders
}

/// Folders of wheels below `root`, the newest CUDA first (`cu13` before `cu12` before `cuda_nvrtc`).
fn wheels(root: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(root.join("nvidia")).map(|entries| entries.flatten().collect()).unwrap_or(vec![]);
    let mut folders: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    let key = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let version = name.strip_prefix("cu").and_then(|digits| digits.parse::<u32>().ok());
        (std::cmp::Reverse(version), name)
    };
    folders.sort_by_key(key);
    folders
}

/// The file of `part` in `folder` with the highest version. Wheels hold no library without a version;
/// `*.alt.*` is another build of the same one.
fn newest(folder: &Path, part: Part) -> Option<PathBuf> {
    let name = part.name();
    if name.ends_with(".a") {
        return Some(folder.join(name)).filter(|path| path.is_file());
    }
    let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let versioned = files.filter(|path| path.is_file()).filter_map(|path| {
        let version = version(path.file_name()?, name)?;
        Some((version, path))
    });
    versioned.max().map(|(_, path)| path)
}

/// `[13, 0, 88]` of `libnvrtc.so.13.0.88`.
fn version(file: &OsStr, name: &str) -> Option<Vec<u32>> {
    let digits = file.to_str()?.strip_prefix(name)?.strip_prefix('.')?;
    digits.split('.').map(|number| number.parse().ok()).collect()
}

fn major(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    name.split_once(".so.")?.1.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of empty files, removed afterwards.
    struct Folder(PathBuf);

    impl Folder {
        fn with(name: &str, files: &[&str]) -> Folder {
            let folder = std::env::temp_dir().join(format!("gpu-toolkit-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            for file in files {
                let path = folder.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            fs::create_dir_all(&folder).unwrap();
            Folder(folder.canonicalize().unwrap())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const WHOLE: [&str; 4] =
        ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvJitLink.so.13", "libcudadevrt.a"];

    fn whole(below: &str) -> Vec<String> {
        WHOLE.iter().map(|file| format!("{below}/{file}")).collect()
    }

    #[test]
    fn each_layout_is_found() {
        for (name, below) in [
            ("lib64", "lib64"),
            ("targets", "targets/x86_64-linux/lib"),
            ("lib", "lib"),
            ("wheels", "nvidia/cu13/lib"),
        ] {
            let files = whole(below);
            let folder = Folder::with(name, &files.iter().map(String::as_str).collect::<Vec<_>>());
            let toolkit = Toolkit::find_in(std::slice::from_ref(&folder.0)).unwrap();
            assert_eq!(toolkit.nvrtc, folder.0.join(below).join("libnvrtc.so.13"));
            assert_eq!(toolkit.device_runtime, folder.0.join(below).join("libcudadevrt.a"));
        }
    }

    #[test]
    fn wheels_of_a_folder_each_are_one_toolkit_and_the_newest_version_counts() {
        let folder = Folder::with(
            "split",
            &[
                "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                "nvidia/cuda_nvrtc/lib/libnvrtc.so.12.9.86",
                "nvidia/cuda_nvrtc/lib/libnvrtc.alt.so.12.9.86",
                "nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.9",
                "nvidia/nvjitlink/lib/libnvJitLink.so.12",
                "nvidia/cuda_runtime/lib/libcudadevrt.a",
                "nvidia/cuda_runtime/include/cuda_fp16.h",
            ],
        );
        let toolkit = Toolkit::find_in(std::slice::from_ref(&folder.0)).unwrap();
        assert_eq!(toolkit.nvrtc, folder.0.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12.9.86"));
        assert_eq!(toolkit.include, [folder.0.join("nvidia/cuda_runtime/include")]);
    }

    #[test]
    fn what_is_missing_is_named_with_every_folder_that_was_looked_at() {
        let part = Folder::with("part", &["lib64/libnvrtc.so.13", "lib64/libcudadevrt.a"]);
        let mixed = Folder::with(
            "mixed",
            &[
                "lib/libnvrtc.so.13",
                "lib/libnvrtc-builtins.so.12.9",
                "lib/libnvJitLink.so.13",
                "lib/libcudadevrt.a",
            ],
        );
        let roots = [part.0.clone(), "/no/such/cuda".into(), mixed.0.clone()];
        let text = Toolkit::find_in(&roots).unwrap_err().to_string();
        for words in [
            format!("{} (lacks libnvrtc-builtins.so, libnvJitLink.so)", part.0.display()),
            "/no/such/cuda (No such file".into(),
            "are of different versions".into(),
            "set CUDA_HOME".into(),
            "DOORBELL_CUDA".into(),
        ] {
            assert!(text.contains(&words), "{words:?} is missing in {text:?}");
        }
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn a_folder_that_was_given_is_the_only_one() {
        let environment = |set: &'static [(&str, &str)]| {
            move |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        for (given, set, expected) in [
            (Some("/opt/x"), &[("DOORBELL_CUDA", "/d"), ("CUDA_HOME", "/h")][..], &["/opt/x"][..]),
            (None, &[("DOORBELL_CUDA", "/d"), ("CUDA_HOME", "/h")], &["/d"]),
            (None, &[("CUDA_HOME", "/h"), ("CUDA_PATH", "/p")], &["/h", "/p", "/usr/local/cuda"]),
            (None, &[("CUDA_HOME", ""), ("DOORBELL_CUDA", "")], &["/usr/local/cuda"]),
        ] {
            let found = roots(given.map(Path::new), &environment(set));
            assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>());
        }
    }
}
