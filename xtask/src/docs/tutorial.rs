//! A tutorial followed as it stands: its commands, one after the other in a fresh folder, each with its time.
//!
//! A block of `sh` is run; the text of a block behind a line `<!-- file: PATH -->` is saved there; a block
//! behind `<!-- not followed: WHY -->` is left out, and a page with `<!-- page not followed: WHY -->` is
//! refused. One shell runs the whole page, so that variables and folders stay. It ends with the first
//! failure.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use measure::Provenance;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::process::{ChildGuard, Ended};
use crate::refused::refused;
use crate::shell::quoted;
use crate::workspace::{self, Tree, root};

/// What `--record` writes: the pages by name.
pub const TIMES: &str = "docs/tutorials/times.json";
/// Time limit of one page.
const LIMIT: Duration = Duration::from_secs(3600);

/// Times of one page.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Followed {
    pub provenance: Provenance,
    pub sections: Vec<Section>,
}

/// The commands below a title, in seconds each and together.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    pub title: String,
    pub seconds: f64,
    pub commands: Vec<Ran>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ran {
    pub line: String,
    pub seconds: f64,
}

pub type Times = BTreeMap<String, Followed>;

/// What a page asks its reader to do.
#[derive(Debug, PartialEq)]
enum Step<'a> {
    Section(&'a str),
    Line(String),
    File(&'a str, String),
}

fn path_of(page: &str) -> String {
    format!("docs/tutorials/{page}.md")
}

/// Why a page cannot be followed, if it says so.
fn not_followed(text: &str) -> Option<&str> {
    let marks = |line: &'_ str| line.starts_with("<!-- page not followed: ");
    let line = text.lines().find(|line| marks(line))?;
    line.split_once(": ")?.1.strip_suffix(" -->")
}

/// The steps of a page. Error: a mark without a block, a block behind a mark that is none, or without an end.
fn steps(text: &str) -> Result<Vec<Step<'_>>> {
    let (mut steps, mut lines, mut mark) = (Vec::new(), text.lines(), None);
    while let Some(line) = lines.next() {
        let comment = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
        let fence = line.strip_prefix("```");
        if let (Some((kind @ ("file" | "not followed"), of)), None) = (mark, fence) {
            bail!("no block stands right behind «{kind}: {of}»");
        }
        if let Some(language) = fence {
            let (mut block, mut is_closed) = (String::new(), false);
            for line in lines.by_ref() {
                is_closed = line == "```";
                if is_closed {
                    break;
                }
                block += &format!("{line}\n");
            }
            ensure!(is_closed, "a block of «{language}» does not end");
            match (mark, language) {
                (Some(("file", path)), _) => steps.push(Step::File(path, block)),
                (Some(("not followed", _)), _) => {}
                (Some((mark, _)), _) => bail!("«{mark}» is no mark of a block"),
                // A line that goes on in the next one is one command.
                (None, "sh") => {
                    let commands = block.replace("\\\n", " ");
                    steps.extend(commands.lines().map(|line| Step::Line(line.to_owned())));
                }
                _ => {}
            }
        } else if let Some(title) = line.strip_prefix("## ") {
            steps.push(Step::Section(title));
        }
        mark = comment.and_then(|comment| comment.split_once(": "));
    }
    Ok(steps)
}

/// The shell's program: it says a number, a status and two times for each command, on descriptor 3.
fn script(steps: &[Step<'_>], checkout: &Path) -> String {
    // Root may have no sudo, as the pages say.
    let mut text = String::from(
        "if [ $(id -u) = 0 ]; then sudo() { \"$@\"; }; fi\ntrap 'kill $(jobs -p) 2> /dev/null' EXIT\n",
    );
    for (number, step) in steps.iter().enumerate() {
        let _ = match step {
            Step::Section(title) => writeln!(text, "echo; echo {}", quoted(&format!("== {title}"))),
            Step::File(path, contents) => {
                let (path, contents) = (quoted(path), quoted(contents));
                writeln!(text, "mkdir -p \"$(dirname {path})\"; printf %s {contents} > {path}")
            }
            Step::Line(line) => {
                let shown = quoted(&format!("$ {line}"));
                let line = line.replace(
                    "git clone URL",
                    &format!("git clone {}", quoted(&checkout.display().to_string())),
                );
                writeln!(
                    text,
                    "echo {shown}; since=$EPOCHREALTIME\n{line}\nfollowed=$?\n\
                     echo {number} $followed $since $EPOCHREALTIME >&3; [ $followed = 0 ] || exit 0"
                )
            }
        };
    }
    text
}

/// The page's sections, by what the shell said. Error: the first command that failed, or was not reached.
fn sections(steps: &[Step<'_>], said: &str) -> Result<Vec<Section>> {
    let mut ran = BTreeMap::new();
    for line in said.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [number, status, since, until] = words[..] else { bail!("«{line}» is no command's end") };
        let seconds = until.parse::<f64>()? - since.parse::<f64>()?;
        ran.insert(number.parse::<usize>()?, (status, (seconds * 1e3).round() / 1e3));
    }
    let mut sections: Vec<Section> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Section(title) => {
                sections.push(Section { title: (*title).to_owned(), ..Section::default() })
            }
            Step::File(..) => {}
            Step::Line(line) => {
                let (status, seconds) = ran.get(&number).with_context(|| format!("not reached: {line}"))?;
                ensure!(*status == "0", "it ended with status {status}: {line}");
                let section =
                    sections.last_mut().with_context(|| format!("above the first section: {line}"))?;
                section.seconds += seconds;
                section.commands.push(Ran { line: line.clone(), seconds: *seconds });
            }
        }
    }
    sections.retain(|section| !section.commands.is_empty());
    Ok(sections)
}

/// The times of all pages that were recorded.
fn recorded(tree: &Tree) -> Result<Times> {
    tree.get(TIMES).map_or_else(|| Ok(Times::new()), serde_json::from_str).context(TIMES)
}

/// The table of a page's times: each section, and all.
pub fn rows(tree: &Tree, page: &str) -> Result<Vec<Vec<String>>> {
    let times: Times = recorded(tree)?;
    let of = times.get(page).with_context(|| format!("{TIMES} has no {page}"))?;
    let revision = workspace::in_words(&of.provenance.revision);
    // Other programs take time of the builds.
    let load = of.provenance.load.map_or_else(|| "unknown".to_owned(), |load| format!("{load:.1}"));
    let title = format!("{}, load {load} before, revision {revision}", of.provenance.machine);
    let all = of.sections.iter().map(|section| section.seconds).sum();
    let sections = of.sections.iter().map(|section| [section.title.clone(), in_words(section.seconds)]);
    let rows = [["section".to_owned(), title]]
        .into_iter()
        .chain(sections)
        .chain([["all".to_owned(), in_words(all)]]);
    Ok(rows.map(Vec::from).collect())
}

/// A time as a table has it: `0.4 s`, `12 s`, `1 min 30 s`.
fn in_words(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        _ => format!("{} min {} s", whole / 60, whole % 60),
    }
}

/// Follows a page in a folder for temporary files, since a crate below this checkout would be taken for one
/// of its workspace. `record`: into [`TIMES`]. What failed stays there.
pub fn follow(page: &str, record: bool) -> Result<()> {
    let tree = Tree::read(&root())?;
    let pages =
        tree.files().filter_map(|(path, _)| path.strip_prefix("docs/tutorials/")?.strip_suffix(".md"));
    let known = pages.collect::<Vec<_>>().join(", ");
    let text = tree
        .get(&path_of(page))
        .ok_or_else(|| refused(format!("there is no tutorial {page}; there are: {known}")))?;
    if let Some(why) = not_followed(text) {
        return Err(refused(format!("the tutorial {page} cannot be followed: {why}")));
    }
    let provenance = workspace::provenance()?;
    if record && provenance.revision.dirty {
        return Err(refused(
            "--record: the tree has changes; commit them first, since a clone is what is followed",
        ));
    }
    let folder = std::env::temp_dir().join(format!("{page}-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let steps = steps(text)?;
    let program = folder.join("follow.sh");
    files::write(&program, &script(&steps, &root()))?;
    let told = folder.join("ended");
    let mut bash = Command::new("bash");
    bash.args(["-c", "exec bash \"$0\" 3> \"$1\""]).arg(&program).arg(&told);
    // As a reader's: what cargo says to this run, and its target folder, are not the clone's.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_TARGET_DIR", "RUSTUP_TOOLCHAIN"] {
        bash.env_remove(name);
    }
    bash.env("LC_ALL", "C.UTF-8").current_dir(&folder).stdin(Stdio::null());
    let ended = ChildGuard::start(&mut bash)?.wait(LIMIT)?;
    let at = format!("{}, followed in {}", path_of(page), folder.display());
    ensure!(ended != Ended::TimedOut, "{at}: the shell {ended}");
    let said = fs::read_to_string(&told).with_context(|| format!("reading {}", told.display()))?;
    let sections = sections(&steps, &said).context(at)?;
    ensure!(ended == Ended::Well, "the shell {ended}");
    files::remove(&folder)?;
    for section in &sections {
        say!("{:>8.1} s  {}", section.seconds, section.title);
    }
    if record {
        let mut times: Times = recorded(&tree)?;
        times.insert(page.to_owned(), Followed { provenance, sections });
        files::write(&root().join(TIMES), &(serde_json::to_string_pretty(&times)? + "\n"))?;
        say!("{TIMES}: recorded; `cargo xtask docs --tables` writes the page's table");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# t\n\n```sh\nsoftnic --version\n```\n\n## 1. A\n\n```sh\ngit clone URL there && cd there\ntrue \\\n  again\n```\n\n\
        ```text\nshown\n```\n\n## 2. None\n\n## 3. B\n\n<!-- file: a/b.txt -->\n```c\nit's\n```\n\n<!-- not followed: no card -->\n\
        ```sh\nfalse\n```\n\n```sh\ncat a/b.txt # shows it\n```\n";

    fn line(text: &str) -> Step<'_> {
        Step::Line(text.to_owned())
    }

    #[test]
    fn a_page_asks_for_its_commands_and_files_in_their_order() {
        let wanted = [
            line("softnic --version"),
            Step::Section("1. A"),
            line("git clone URL there && cd there"),
            line("true    again"),
            Step::Section("2. None"),
            Step::Section("3. B"),
            Step::File("a/b.txt", "it's\n".to_owned()),
            line("cat a/b.txt # shows it"),
        ];
        assert_eq!(steps(PAGE).unwrap(), wanted);
        for (page, words) in [
            ("<!-- fil: a -->\n```c\n```\n", "«fil» is no mark of a block"),
            ("<!-- file: a -->\n\n```c\n```\n", "no block stands right behind «file: a»"),
            ("text\n```sh\ntrue\n", "a block of «sh» does not end"),
        ] {
            assert_eq!(steps(page).unwrap_err().to_string(), words);
        }
    }

    #[test]
    fn a_shell_runs_them_and_says_what_each_took() {
        let steps = steps("## 1. A\n```sh\nmkdir a; cd a; it() { cat b; }\n```\n<!-- file: b -->\n```\n50 % of 'it'\n```\n```sh\nit; sleep 0.05\nfalse\ntouch c\n```\n").unwrap();
        let folder = std::env::temp_dir().join(format!("xtask-tutorial-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut bash = Command::new("bash");
        bash.args(["-c", "exec bash -c \"$0\" 3> ended"])
            .arg(script(&steps, Path::new("/x")))
            .current_dir(&folder);
        let said = bash.output().unwrap();
        let ended = fs::read_to_string(folder.join("ended")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(String::from_utf8_lossy(&said.stdout).contains("\n50 % of 'it'\n"), "{said:?}");
        assert_eq!(sections(&steps, &ended).unwrap_err().to_string(), "it ended with status 1: false");
        let reached: Vec<&str> = ended.lines().take(2).collect();
        let error = sections(&steps, &reached.join("\n")).unwrap_err().to_string();
        assert_eq!(error, "not reached: false");
        let ended = ended.replace(" 1 ", " 0 ");
        assert_eq!(sections(&steps, &ended).unwrap_err().to_string(), "not reached: touch c");
        let ended = ended + "5 0 1.0 2.0\n";
        let [section] = &sections(&steps, &ended).unwrap()[..] else { panic!("{ended}") };
        assert_eq!((section.title.as_str(), section.commands.len()), ("1. A", 4));
        assert!(
            section.commands[1].seconds >= 0.05 && section.seconds >= section.commands[1].seconds,
            "{section:?}"
        );
    }

    #[test]
    fn a_table_has_each_section_and_all() {
        let section =
            |title: &str, seconds| Section { title: title.to_owned(), seconds, commands: Vec::new() };
        let revision = measure::Revision { commit: "0123456789".repeat(4), dirty: false };
        let provenance =
            Provenance { machine: "m".into(), load: Some(0.26), ..Provenance::of(revision, &[]) };
        let followed = Followed { provenance, sections: vec![section("1. A", 0.44), section("2. B", 100.6)] };
        let times = serde_json::to_string(&Times::from([("p".to_owned(), followed)])).unwrap();
        let made = rows(&Tree::of(&[(TIMES, &times)]), "p").unwrap();
        let wanted = [
            ["section", "m, load 0.3 before, revision 012345678901"],
            ["1. A", "0.4 s"],
            ["2. B", "1 min 41 s"],
            ["all", "1 min 41 s"],
        ];
        assert_eq!(made, wanted);
        let error = rows(&Tree::of(&[]), "p").unwrap_err().to_string();
        assert_eq!(error, "docs/tutorials/times.json has no p");
    }

    /// Each page is one that can be followed, or says why not.
    #[test]
    fn the_tutorials_can_be_followed() {
        let tree = Tree::read(&root()).unwrap();
        for (path, text) in
            tree.files().filter(|(path, _)| path.starts_with("docs/tutorials/") && path.ends_with(".md"))
        {
            let steps = steps(text).unwrap_or_else(|error| panic!("{path}: {error}"));
            let count = steps.iter().filter(|step| matches!(step, Step::Line(_))).count();
            assert!(count >= 10 || not_followed(text).is_some(), "{path}: {count} commands");
            let unclosed =
                Command::new("bash").arg("-nc").arg(script(&steps, Path::new("/x"))).status().unwrap();
            assert!(unclosed.success(), "{path}");
        }
    }
}
