//! Runs a playbook of `ansible/` on the hosts of an inventory: a testbed's nodes, or those of a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Testbed;
use crate::process::{Ended, run_logged};
use crate::workspace;

/// Longest that a playbook may take: a host may install packages, and get programs over a slow link.
const LIMIT: Duration = Duration::from_secs(600);

/// Which hosts.
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

    /// The hosts of a file.
    pub fn of_file(file: &Path) -> Result<Inventory> {
        let file = std::path::absolute(file).with_context(|| format!("--where {}", file.display()))?;
        Ok(Inventory { file, variables: Vec::new(), home: None })
    }
}

/// `ansible-playbook` with `variables` of the form `NAME=VALUE`.
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

/// Runs `playbook` with `variables` of the form `NAME=VALUE`. Error: what went wrong on which host, and the log's path.
pub fn run(inventory: &Inventory, playbook: &str, variables: &[String], log: &Path) -> Result<()> {
    let ended = run_logged(&mut command(inventory, playbook, variables), log, LIMIT)?;
    if ended == Ended::Well {
        return Ok(());
    }
    let said = fs::read_to_string(log).unwrap_or_default();
    let failures: Vec<String> = said.lines().filter_map(failure).collect();
    let why = if failures.is_empty() { ended.to_string() } else { failures.join("; ") };
    bail!("{playbook}: {why} (whole log: {})", log.display())
}

/// Writes back what `tune.yml` found. It also runs once a signal came, so it starts its program by itself. Error: which hosts may still
/// be tuned, and the command that restores them.
pub fn restore(inventory: &Inventory) -> Result<(), String> {
    let said = command(inventory, "restore.yml", &[]).stdin(Stdio::null()).output();
    let why = match said {
        Ok(said) if said.status.success() => return Ok(()),
        Ok(said) => {
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            let failures: Vec<String> = text.lines().filter_map(failure).collect();
            if failures.is_empty() { said.status.to_string() } else { failures.join("; ") }
        }
        Err(error) => error.to_string(),
    };
    let file = inventory.file.display();
    Err(format!("the hosts may still be tuned ({why}): in ansible/, ansible-playbook -i {file} restore.yml"))
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
}
