//! What `cargo xtask compat` runs: `xtask/compat/programs.toml`, a program an entry, and what each needs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::kernel::{self, End};
use crate::process::{Ended, output, run_logged};
use crate::shell::quoted;
use crate::workspace::{root, target_dir};
use crate::{carried, setup, wheels};

const LIST: &str = include_str!("../../compat/programs.toml");
/// Longest that a program's preparation may take: a crate and its dependencies are built.
const PREPARING: Duration = Duration::from_secs(600);

/// Longest that a program may take to say its version: Python loads PyTorch.
const ASKING: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    program: Vec<Program>,
}

/// One program, or a package of several.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    pub name: String,
    /// Debian's packages; the first has the version, where nothing else says it.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Which of [`wheels::COMPAT`], whose first line then has the version.
    pub wheel: Option<String>,
    /// The version, where the preparation fixes it.
    version: Option<String>,
    /// A command that prints the version, where the machine brings the program.
    version_command: Option<String>,
    /// A shell script, run once in the program's folder and without the NIC.
    prepare: Option<String>,
    #[serde(rename = "row")]
    pub rows: Vec<Row>,
}

/// One run: a command, or a server and its client, and what output proves that it worked.
///
/// In commands `{port}` is a free TCP port, `{dir}` the program's folder, `{wheel}` its wheels, `{here}` the
/// list's folder and `{root}` the source's. Paths come quoted for the shell: no quotes belong around them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Row {
    pub name: String,
    /// Which of softnic's tests runs it too, more thoroughly than here.
    pub tests: Option<String>,
    /// Options of `softnic run`.
    pub nic: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// One process that runs alone.
    pub command: Option<String>,
    pub server: Option<String>,
    /// By default the server's command with its address behind it.
    pub client: Option<String>,
    /// Server's log once clients may come; `rdma_cm` words are the NIC's. Default: it listens on `{port}`.
    pub ready: Option<String>,
    /// Whether the server never ends by itself.
    pub stop: bool,
    /// What the client, or the process alone, must say.
    pub says: Vec<String>,
    pub server_says: Vec<String>,
    /// Text that no output of the run may hold.
    pub never: Vec<String>,
    /// What the program says when it loses a race against itself: such a run says nothing, and is made again.
    pub races: Vec<String>,
    pub count: Option<Count>,
    /// The least that all NICs together must have received, or else sent, by their own counters.
    pub bytes: u64,
    pub messages: u64,
    /// Longest that each process may take.
    pub deadline_s: Option<u64>,
    /// What is known of a failure, of skipped tests, or of a bad end after everything above held.
    pub note: Option<String>,
    /// Which end a Linux kernel's soft-RoCE is; it runs with --kernel alone. In such commands `{device}` and
    /// `{gid}` are the RDMA device and GID index of the end that runs it, `{server}` the server's address.
    pub kernel: Option<End>,
    /// How many GPUs it needs; it runs with --gpu alone if any.
    pub gpus: usize,
    /// Why it runs nowhere.
    pub not_run: Option<String>,
    /// Whether xtask's tests run it.
    pub ci: bool,
}

/// Numbers beside a text are added up: `add` less `subtract` tests passed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Count {
    pub add: String,
    #[serde(default)]
    pub subtract: Vec<String>,
    pub at_least: u64,
}

impl Row {
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline_s.unwrap_or(60))
    }

    /// The suite of `cargo xtask test` that runs it.
    pub fn suite(&self) -> &'static str {
        match (self.ci, &self.tests) {
            (true, _) => "`xtask`",
            (false, Some(_)) => "`softnic`",
            (false, None) => "—",
        }
    }

    /// What is started, the server first. Empty where nothing is.
    pub fn commands(&self) -> Vec<String> {
        match (&self.command, &self.server, &self.client) {
            (Some(alone), ..) => vec![alone.clone()],
            (None, Some(server), Some(client)) => vec![server.clone(), client.clone()],
            (None, Some(both), None) => {
                let address = if self.kernel.is_some() { "{server}" } else { "127.0.0.1" };
                vec![both.clone(), format!("{both} {address}")]
            }
            (None, None, _) => Vec::new(),
        }
    }

    pub fn options(&self) -> Vec<String> {
        let wire = if self.kernel.is_some() { kernel::on_the_wire() } else { Vec::new() };
        wire.into_iter().chain(self.nic.iter().cloned()).collect()
    }

    /// What was run, as a user would: the client's command, the one command, or that of the end that is no
    /// kernel. Empty if nothing is.
    pub fn ran(&self) -> String {
        let mut commands = self.commands();
        let command = match self.kernel {
            None => commands.pop(),
            Some(kernel @ End::Server) => commands.last().map(|it| kernel::filled(it, End::Client, kernel)),
            Some(kernel @ End::Client) => commands.first().map(|it| kernel::filled(it, End::Server, kernel)),
        };
        let Some(command) = command else { return String::new() };
        let environment = self.env.iter().map(|(name, value)| format!("{name}={value}"));
        let launcher = ["softnic run".to_owned()].into_iter().chain(self.options());
        environment.chain(launcher).chain(["--".to_owned(), command]).collect::<Vec<_>>().join(" ")
    }

    /// What it lacks of GPUs where there are so many, or `None` for without --gpu.
    pub fn lacks(&self, gpus: Option<usize>) -> Option<String> {
        let count = if self.gpus == 1 { "a GPU".into() } else { format!("{} GPUs", self.gpus) };
        match gpus {
            _ if self.gpus == 0 => None,
            None => Some(format!("needs {count}")),
            Some(gpus) if gpus < self.gpus => Some(format!("needs {count}, and there are {gpus}")),
            Some(_) => None,
        }
    }

    pub fn has_proof(&self) -> bool {
        !self.says.is_empty() || self.count.is_some() || self.bytes > 0 || self.messages > 0
    }
}

pub fn list() -> Result<Vec<Program>> {
    parse(LIST)
}

/// Reads such a list. Error: a row has no command, or nothing that proves it.
pub fn parse(text: &str) -> Result<Vec<Program>> {
    let List { program: programs } = toml::from_str(text).context("xtask/compat/programs.toml")?;
    for Program { name, rows, .. } in &programs {
        let is_wrong = |row: &&Row| row.not_run.is_none() && (row.commands().is_empty() || !row.has_proof());
        let wrong = rows.iter().find(is_wrong).map(|row| &row.name);
        ensure!(wrong.is_none(), "{name} {}: no command, or no proof", wrong.map_or("", String::as_str));
    }
    Ok(programs)
}

impl Program {
    /// Where it is prepared.
    pub fn folder(&self) -> PathBuf {
        let all = carried::folder().map_or_else(|| target_dir().join("compat"), |_| std::env::temp_dir());
        all.join(self.name.replace([' ', ',', '\''], "-"))
    }

    pub fn wheels(&self) -> Option<&'static wheels::Wheels> {
        let name = self.wheel.as_deref()?;
        wheels::COMPAT.iter().copied().find(|wheels| wheels.what == name)
    }

    pub fn missing(&self) -> Vec<&str> {
        self.packages.iter().map(String::as_str).filter(|name| setup::version(name).is_none()).collect()
    }

    pub fn lacks(&self) -> Option<String> {
        let wheels = self.wheels().filter(|wheels| !wheels.are_there());
        let wheels = wheels.map(|wheels| format!("the wheel of {}", wheels.what));
        let packages = self.missing().into_iter().map(|name| format!("package {name}"));
        let all: Vec<String> = packages.chain(wheels).collect();
        (!all.is_empty()).then(|| format!("{} is missing", all.join(", ")))
    }

    pub fn version(&self) -> String {
        let of_wheel = || self.wheels().and_then(wheels::Wheels::version);
        let of_package = || self.packages.first().and_then(|name| setup::version(name));
        let said = || said_by(&self.filled(self.version_command.as_deref()?, 0), ASKING);
        let known = self.version.clone().or_else(of_wheel).or_else(said).or_else(of_package);
        known.unwrap_or_else(|| "unknown".into())
    }

    /// A command for a shell with its places filled in.
    pub fn filled(&self, command: &str, port: u16) -> String {
        filled(command, &self.places(), port, quoted)
    }

    /// The value of a variable with its places filled in.
    pub fn filled_value(&self, value: &str, port: u16) -> String {
        filled(value, &self.places(), port, str::to_owned)
    }

    fn places(&self) -> [(&'static str, PathBuf); 4] {
        [
            ("{dir}", self.folder()),
            ("{wheel}", self.wheels().map(wheels::Wheels::used).unwrap_or_default()),
            ("{here}", root().join("xtask/compat")),
            ("{root}", root()),
        ]
    }

    /// Makes its folder and runs its preparation. Error: what of that failed.
    pub fn prepare(&self) -> Result<()> {
        let folder = self.folder();
        std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let Some(script) = &self.prepare else { return Ok(()) };
        let log = folder.join("prepare.log");
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &self.filled(script, 0)]).current_dir(&folder);
        // Others' crates are built as by a user: not in our target folder, nor with our settings.
        shell.env_remove("CARGO_TARGET_DIR").env_remove("CARGO_MANIFEST_DIR");
        let ended = run_logged(&mut shell, &log, PREPARING)?;
        ensure!(ended == Ended::Well, "its preparation {ended}; see {}", log.display());
        Ok(())
    }
}

/// A text with its places filled in, paths as `written` has them.
fn filled(text: &str, places: &[(&str, PathBuf)], port: u16, written: fn(&str) -> String) -> String {
    let text = text.replace("{port}", &port.to_string());
    places.iter().fold(text, |text, (place, path)| text.replace(place, &written(&path.display().to_string())))
}

/// What a shell's command prints; `None` where it fails, or takes longer than `limit`.
fn said_by(command: &str, limit: Duration) -> Option<String> {
    let said = output(Command::new("sh").args(["-c", command]), limit).ok()?;
    Some(said.trim().to_owned()).filter(|said| !said.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Row {
        /// The file of that test.
        pub fn test_file(&self) -> Option<String> {
            self.tests.as_ref().map(|name| format!("apps/softnic/tests/it/{name}.rs"))
        }
    }

    #[test]
    fn a_path_with_a_space_and_a_quote_is_one_word_of_every_command() {
        let path = PathBuf::from("/it's here/a $b");
        let places = ["{dir}", "{wheel}", "{here}", "{root}"].map(|place| (place, path.clone()));
        let mut count = 0;
        for program in list().unwrap() {
            let rows = || program.rows.iter();
            let own = program.prepare.iter().chain(&program.version_command).cloned();
            for command in own.chain(rows().flat_map(Row::commands)) {
                let wanted: Vec<&str> =
                    places.iter().map(|(place, _)| *place).filter(|place| command.contains(place)).collect();
                // A shell reads each place as one argument, with what follows it there.
                for place in wanted {
                    let behind = command.split(place).nth(1).unwrap().split([' ', '\n', ';']).next().unwrap();
                    let line = format!("printf '<%s>' {place}{behind}");
                    let said = said_by(&filled(&line, &places, 1, quoted), ASKING).unwrap();
                    assert_eq!(said, format!("<{}{behind}>", path.display()), "{command}");
                    let words = shlex::split(&filled(&command, &places, 1, quoted)).unwrap();
                    assert!(words.contains(&format!("{}{behind}", path.display())), "{command}: {words:?}");
                    count += 1;
                }
            }
            for value in rows().flat_map(|row| row.env.values()).filter(|value| value.contains('{')) {
                let behind = value.split('}').nth(1).unwrap();
                let wanted = format!("{}{behind}", path.display());
                assert_eq!(filled(value, &places, 1, str::to_owned), wanted);
                count += 1;
            }
        }
        assert!(count >= 18, "{count} places");
        let odd = parse(
            "[[program]]\nname = \"its $5\"\n[[program.row]]\nname = \"r\"\ncommand = \"c\"\nbytes = 1",
        )
        .unwrap();
        let folder = odd[0].folder().display().to_string();
        assert_eq!(odd[0].filled("ls {dir}/x {port}", 7), format!("ls '{folder}'/x 7"));
        assert_eq!(odd[0].filled_value("{dir}", 7), folder);
    }

    #[test]
    fn a_version_is_not_known_where_its_command_fails_hangs_or_says_nothing() {
        assert_eq!(said_by("echo ' 2.1 '", ASKING).as_deref(), Some("2.1"));
        for (command, limit) in
            [("echo 2.1; exit 1", ASKING), ("echo", ASKING), ("sleep 60", Duration::from_millis(300))]
        {
            assert_eq!(said_by(command, limit), None, "{command}");
        }
    }
}
