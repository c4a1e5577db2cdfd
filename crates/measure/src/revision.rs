//! The source a result came from: git revision and whether the tree had changes, asked at the moment of recording.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// A git revision. Unknown (no git, no repository) reads as an empty commit with `dirty` set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// Full hash, or empty.
    pub commit: String,
    /// Whether tracked files differ from it, or unknown files lie in the tree.
    pub dirty: bool,
}

impl Revision {
    /// The revision checked out in `folder`.
    pub fn of(folder: &Path) -> Revision {
        let commit = git(folder, &["rev-parse", "HEAD"]);
        let changes = git(folder, &["status", "--porcelain"]);
        match (commit, changes) {
            (Some(commit), Some(changes)) => Revision { commit, dirty: !changes.is_empty() },
            (commit, _) => Revision { commit: commit.unwrap_or_default(), dirty: true },
        }
    }
}

fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("measure-git-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        for arguments in [
            &["init", "-q"][..],
            &["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "--allow-empty", "-m", "first"],
        ] {
            assert!(git(&folder, arguments).is_some(), "git {arguments:?}");
        }
        folder
    }

    #[test]
    fn a_clean_tree_has_a_commit_and_no_dirt() {
        let revision = Revision::of(&repository("clean"));
        assert_eq!((revision.commit.len(), revision.dirty), (40, false));
    }

    #[test]
    fn a_new_file_is_dirt() {
        let folder = repository("dirty");
        std::fs::write(folder.join("new"), "x").unwrap();
        assert!(Revision::of(&folder).dirty);
    }

    #[test]
    fn no_repository_is_never_clean() {
        assert!(Revision::of(Path::new("/proc")).dirty);
    }
}
