//! Runs a playbook of `ansible/` on the hosts of an inventory: a testbed's nodes, or those of a file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::bed::Testbed;
use crate::process::{ChildGuard, Ended, run_logged, wait_for};
use crate::workspace;

/// Longest that a playbook may take: a host may install packages, and get programs over a slow link.
const LIMIT: Duration = Duration::from_secs(600);
/// Longest that `restore.yml` may take, which installs nothing.
const RESTORE_LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub struct Inventory {
    pub file: PathBuf,
    /// Variables of the form `NAME=VALUE` that it takes.
    variables: Vec<String>,
    /// Folder of ansible's own files, where that is not the user's.
    home: Option<PathBuf>,
}

impl Inventory {
    /// The nodes of a testbed; ansible's own files stay in the testbed's folder.
    pub fn of_testbed(testbed: &Testbed) -> Inventory {
        Inventory {
            file: workspace::root().join("ansible/inventories/netns.yml"),
            variables: vec![format!("testbed_dir={}", testbed.dir().display())],
            home: Some(testbed.dir().join("ansible")),
        }
    }

    pub fn of_file(file: &Path) -> Result<Inventory> {
        let file = std::path::absolute(file).with_context(|| format!("--where {}", file.display()))?;
        Ok(Inventory { file, variables: Vec::new(), home: None })
    }
}

/// `ansible-playbook` with `variables` of the form `NAME=VALUE`, or a JSON object.
fn command(inventory: &Inventory, playbook: &str, variables: &[String]) -> Command {
    let ansible = workspace::root().join("ansible");
    let mut command = Command::new("ansible-playbook");
    command.current_dir(&ansible).arg("-i").arg(&inventory.file).arg(playbook);
    let variables = inventory.variables.iter().chain(variables);
    command.args(variables.flat_map(|variable| ["-e", variable]));
    command.env("ANSIBLE_CONFIG", ansible.join("ansible.cfg"));
    command.envs(inventory.home.iter().map(|home| ("ANSIBLE_HOME", home)));
    // It starts in no other locale.
    command.envs([("LC_ALL", "C.UTF-8"), ("ANSIBLE_NOCOLOR", "1")]);
    command
}

/// Runs `playbook` with `variables`, `NAME=VALUE` or JSON object. Error: what failed on which host, and log.
pub fn run(inventory: &Inventory, playbook: &str, variables: &[String], log: &Path) -> Result<()> {
    let ended = run_logged(&mut command(inventory, playbook, variables), log, LIMIT)?;
    ensure!(ended == Ended::Well, "{playbook}: {}", why(&ended.to_string(), log));
    Ok(())
}

/// Writes back what `tune.yml` found. The signal handler calls it too, so it must not use `run_logged`, which
/// blocks after a signal. Error: which hosts may still be tuned, and the command that restores them.
pub fn restore(inventory: &Inventory, log: &Path) -> Result<(), String> {
    let why = match run_bounded(&mut command(inventory, "restore.yml", &[]), log, RESTORE_LIMIT) {
        Ok(Some(status)) if status.success() => return Ok(()),
        Ok(Some(status)) => why(&status.to_string(), log),
        Ok(None) => why(&Ended::TimedOut.to_string(), log),
        Err(error) => error.to_string(),
    };
    let file = inventory.file.display();
    Err(format!("the hosts may still be tuned ({why}): in ansible/, ansible-playbook -i {file} restore.yml"))
}

/// Runs `command` with its output in `log`. `None`: it was killed after `limit`.
fn run_bounded(command: &mut Command, log: &Path, limit: Duration) -> Result<Option<ExitStatus>> {
    let file = File::create(log)?;
    let mut child = ChildGuard(command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?);
    wait_for(limit, || Ok(child.0.try_wait()?))
}

/// Hosts and reasons in a playbook's log, or else how it `ended`.
fn why(ended: &str, log: &Path) -> String {
    let said = fs::read_to_string(log).unwrap_or_default();
    let failures: Vec<String> = said.lines().filter_map(failure).collect();
    let why = if failures.is_empty() { ended.to_owned() } else { failures.join("; ") };
    format!("{why} (whole log: {})", log.display())
}

/// Host and reason in a line such as `fatal: [node2]: FAILED! => {"msg": "…"}`.
fn failure(line: &str) -> Option<String> {
    let rest = ["fatal: [", "failed: ["].iter().find_map(|begin| line.strip_prefix(begin))?;
    let (host, rest) = rest.split_once(']')?;
    let object = rest.split_once("=> ").and_then(|(_, object)| serde_json::from_str::<Value>(object).ok());
    let field = |name: &str| Some(object.as_ref()?[name].as_str()?.to_owned());
    let why = field("stderr").filter(|text| !text.is_empty()).or_else(|| field("msg"));
    Some(format!("{host}: {}", why.unwrap_or_else(|| rest.trim_start_matches(':').trim().to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_task_names_its_host_and_reason() {
        for (line, said) in [
            (r#"fatal: [node2]: FAILED! => {"msg": "no room"}"#, Some("node2: no room")),
            (r#"fatal: [node1]: UNREACHABLE! => {"msg": "timed out"}"#, Some("node1: timed out")),
            (r#"failed: [a.b] (item=x) => {"msg": "rc", "stderr": "why"}"#, Some("a.b: why")),
            (r#"failed: [a] (item=[1]) => {"msg": "rc", "stderr": ""}"#, Some("a: rc")),
            ("fatal: [node1]: odd", Some("node1: odd")),
            ("ok: [node1]", None),
        ] {
            assert_eq!(failure(line).as_deref(), said, "{line}");
        }
    }

    #[test]
    fn a_restore_over_its_limit_is_killed_and_leaves_its_log() {
        let log = std::env::temp_dir().join(format!("xtask-restore-{}.log", std::process::id()));
        let run = |script: &str, limit_s| {
            let ended =
                run_bounded(Command::new("sh").args(["-c", script]), &log, Duration::from_secs(limit_s));
            (ended.unwrap().map(|status| status.code()), fs::read_to_string(&log).unwrap())
        };
        let (ended, said) = run("echo $$; exec sleep 600", 1);
        assert_eq!(ended, None);
        assert!(!crate::descendants::is_alive(said.trim().parse().unwrap()), "{said}");
        assert_eq!(run("echo out; echo err >&2; exit 3", 60), (Some(Some(3)), "out\nerr\n".into()));
        let because = "node1: no room".to_owned() + &format!(" (whole log: {})", log.display());
        run(r#"echo 'fatal: [node1]: FAILED! => {"msg": "no room"}'"#, 60);
        assert_eq!(why("ended", &log), because);
        fs::remove_file(&log).unwrap();
    }
}
