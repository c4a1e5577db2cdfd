//! A bundle on the machine it was carried to: a folder of our programs, with this one, and `bundle.json`.
//!
//! There is no tree, cargo, git or network there. What the commands read of the tree lies at the same paths
//! below the bundle, so that only `crate::workspace` has to know which of the two it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::refused::refused;

/// The file that makes a folder a bundle.
pub const MANIFEST: &str = "bundle.json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Profile of the programs, `release` or `dev`; what a `dev` one measures is not recorded.
    pub profile: String,
    /// Test programs with tests that need a GPU.
    pub tests: Vec<TestProgram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestProgram {
    pub package: String,
    /// Kind and name of the target, as in `test-gpu`.
    pub target: String,
    /// Where it lies, from the bundle's folder; an absolute path where it was built.
    pub path: PathBuf,
}

impl Manifest {
    pub fn read(folder: &Path) -> Result<Manifest> {
        let path = folder.join(MANIFEST);
        let not = |why: String| {
            refused(format!("{}: {why}; make the bundle again: cargo xtask bundle DIR", path.display()))
        };
        let text = fs::read(&path).map_err(|error| not(error.to_string()))?;
        serde_json::from_slice(&text).map_err(|error| not(error.to_string()))
    }
}

/// The bundle that this very program lies in, if it does.
pub fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(|| beside(&std::env::current_exe().ok()?)).as_deref()
}

fn beside(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    folder.join(MANIFEST).is_file().then(|| folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refused::Refused;

    #[test]
    fn a_folder_is_a_bundle_by_its_manifest() {
        let folder = std::env::temp_dir().join(format!("xtask-carried-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(beside(&folder.join("xtask")), None);
        for (text, words) in [("nonsense", "expected"), ("{\"profile\":\"dev\"}", "tests")] {
            fs::write(folder.join(MANIFEST), text).unwrap();
            let error = Manifest::read(&folder).unwrap_err();
            assert!(error.is::<Refused>() && error.to_string().contains(words), "{error}");
        }
        let manifest = Manifest {
            profile: "release".into(),
            tests: vec![TestProgram {
                package: "gpu".into(),
                target: "test-gpu".into(),
                path: "tests/gpu-test-gpu".into(),
            }],
        };
        fs::write(folder.join(MANIFEST), serde_json::to_string(&manifest).unwrap()).unwrap();
        assert_eq!(beside(&folder.join("xtask")).as_deref(), Some(&*folder));
        assert_eq!(Manifest::read(&folder).unwrap(), manifest);
        fs::remove_dir_all(&folder).unwrap();
        assert!(Manifest::read(&folder).unwrap_err().is::<Refused>());
    }
}
