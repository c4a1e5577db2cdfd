//! The source of a result: git revision, and whether the tree had changes, asked when it is recorded.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// A git revision. Unknown (no git, no repository) reads as an empty commit with `dirty` set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// Full hash, or empty.
    pub commit: String,
    /// Whether tracked files differ or unknown files lie in the tree; [`RECORDED`] files do not count.
    pub dirty: bool,
}

/// What recording itself changes, as git's pathspec: results, no source. The second figure may be recorded
/// before the first is committed.
const RECORDED: &str = ":(top,exclude,glob)experiments/*/measured.json";

impl Revision {
    /// The revision checked out in `folder`.
    pub fn of(folder: &Path) -> Revision {
        let commit = git(folder, &["rev-parse", "HEAD"]);
        let changes = git(folder, &["status", "--porcelain", "--", ":(top)", RECORDED]);
        match (commit, changes) {
            (Some(commit), Some(changes)) => Revision { commit, dirty: !changes.is_empty() },
            (commit, _) => Revision { commit: commit.unwrap_or_default(), dirty: true },
        }
    }

    /// Why git names no revision of `folder`, in one line, with git's remedy; none if it names one.
    pub fn why_unknown(folder: &Path) -> Option<String> {
        refusal(Command::new("git").arg("-C").arg(folder).args(["rev-parse", "HEAD"]))
    }
}

fn refusal(git: &mut Command) -> Option<String> {
    let output = match git.output() {
        Ok(output) if output.status.success() => return None,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => return Some(format!("git cannot be started: {error}")),
    };
    let reason = output.lines().next().unwrap_or("git says nothing");
    // In a clone of another user git names the command that trusts it.
    let remedy = output.lines().map(str::trim).find(|line| line.starts_with("git config"));
    let remedy = remedy.map_or_else(String::new, |remedy| format!("; {remedy}"));
    Some(format!("{}{remedy}", reason.trim_start_matches("fatal: ")))
}

fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with one commit; gone with its owner.
    struct Repository(std::path::PathBuf);

    impl Repository {
        fn new(name: &str) -> Repository {
            let folder = std::env::temp_dir().join(format!("measure-git-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(folder.join("experiments/fig4")).unwrap();
            std::fs::write(folder.join("experiments/fig4/spec.toml"), "first").unwrap();
            let name = ["-c", "user.name=t", "-c", "user.email=t@t"];
            for arguments in
                [&["init", "-q"][..], &["add", "."], &[&name[..], &["commit", "-q", "-m", "first"]].concat()]
            {
                assert!(git(&folder, arguments).is_some(), "git {arguments:?}");
            }
            Repository(folder)
        }

        /// Whether the tree has changes once these files have been written.
        fn dirty_with(&self, files: &[&str]) -> bool {
            for file in files {
                let path = self.0.join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "new").unwrap();
            }
            Revision::of(&self.0).dirty
        }
    }

    impl Drop for Repository {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_clean_tree_has_a_commit_and_no_dirt() {
        let repository = Repository::new("clean");
        let revision = Revision::of(&repository.0);
        assert_eq!((revision.commit.len(), revision.dirty), (40, false));
    }

    #[test]
    fn a_new_file_is_dirt_and_so_is_a_changed_one() {
        for file in ["new", "experiments/fig4/spec.toml", "measured.json", "experiments/fig4/a/measured.json"]
        {
            assert!(Repository::new(&file.replace('/', "-")).dirty_with(&[file]), "{file}");
        }
    }

    #[test]
    fn what_was_recorded_is_no_dirt() {
        let repository = Repository::new("recorded");
        assert!(
            !repository.dirty_with(&["experiments/fig4/measured.json", "experiments/fig5/measured.json"])
        );
        // Nor does it hide any; asked from a folder below, too.
        assert!(!Revision::of(&repository.0.join("experiments/fig4")).dirty);
        assert!(repository.dirty_with(&["experiments/fig5/paper.toml"]));
        assert!(Revision::of(&repository.0.join("experiments/fig4")).dirty);
    }

    #[test]
    fn an_unknown_revision_has_a_reason() {
        let repository = Repository::new("reason");
        assert_eq!(Revision::why_unknown(&repository.0), None);
        // As in a clone that belongs to another user.
        let mut git = Command::new("git");
        git.arg("-C")
            .arg(&repository.0)
            .args(["rev-parse", "HEAD"])
            .env("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1");
        let why = refusal(&mut git).unwrap();
        assert!(why.contains("dubious ownership") && why.contains("; git config --global"), "{why}");
        assert_eq!(why.lines().count(), 1, "{why}");
    }

    #[test]
    fn no_repository_is_never_clean() {
        let why = Revision::why_unknown(Path::new("/proc")).unwrap();
        assert!(why.contains("not a git repository"), "{why}");
        assert!(Revision::of(Path::new("/proc")).dirty);
    }
}
