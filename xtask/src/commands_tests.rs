//! Command lines in documents and `doctor --hardware`: our programs have these commands, options and values.
//!
//! For tests. A line is read as a shell would, as far as documents go: quotes, comments, redirections, `;`,
//! `&`, `|`, `$(…)`, variables (taken for `1`), assignments, words such as `sudo`. This program parses `cargo
//! xtask`. Another's release build gets `--help` behind its options: clap answers only if it knows them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;

use crate::workspace::target_dir;
use crate::{man, packages};

/// The programs whose options are asked.
#[derive(Debug)]
pub struct Programs(PathBuf);

impl Programs {
    /// The release build, beside the program that cargo names to tests. Error: which program is missing.
    pub fn find() -> Result<Programs, String> {
        let softnic = std::env::var_os("CARGO_BIN_EXE_softnic").map(PathBuf::from);
        let folder = softnic.as_deref().and_then(Path::parent).map(Path::to_owned);
        let folder = folder.unwrap_or_else(|| target_dir().join("release"));
        match packages::released().map(|name| folder.join(name)).find(|path| !path.is_file()) {
            Some(missing) => Err(missing.display().to_string()),
            None => Ok(Programs(folder)),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// What is wrong with the commands of a text, a sentence each.
    pub fn wrong(&self, text: &str) -> BTreeSet<String> {
        simple_commands(text).iter().filter_map(|words| self.judge(words).err()).collect()
    }

    fn judge(&self, words: &[String]) -> Result<(), String> {
        let words = without_prefix(words);
        let Some((first, arguments)) = words.split_first() else { return Ok(()) };
        let (first, arguments) = match arguments.split_first() {
            Some((second, rest)) if first == "cargo" && second == "xtask" => ("xtask", rest),
            _ => (first.rsplit('/').next().unwrap_or_default(), arguments),
        };
        if first == "xtask" {
            return ours(arguments);
        }
        // What it starts on the other host.
        if let ("ssh", [_, there]) = (first, arguments) {
            return self.wrong(there).into_iter().next().map_or(Ok(()), Err);
        }
        if !man::programs().any(|(name, _)| name == first) || !self.0.join(first).is_file() {
            return Ok(());
        }
        // It is answered before anything else, `--help` too.
        if arguments.first().is_some_and(|word| word == manual::OPTION) {
            return Ok(());
        }
        let end = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
        let said = Command::new(self.0.join(first)).args(&arguments[..end]).arg("--help").output();
        let said = said.map_err(|error| format!("{first}: {error}"))?;
        if !said.status.success() {
            let why = String::from_utf8_lossy(&said.stderr);
            return Err(format!("{}: {}", words.join(" "), why.lines().next().unwrap_or_default()));
        }
        self.judge(arguments.get(end + 1..).unwrap_or_default())
    }
}

/// Whether these commands take the arguments.
fn ours(arguments: &[String]) -> Result<(), String> {
    let words = ["cargo xtask"].into_iter().chain(arguments.iter().map(String::as_str));
    match crate::Arguments::try_parse_from(words) {
        Err(error) if error.use_stderr() => {
            let why = crate::one_line(&error, arguments.first().map(String::as_str));
            Err(format!("cargo xtask {}: {why}", arguments.join(" ")))
        }
        _ => Ok(()),
    }
}

/// Without words that start the command behind them.
fn without_prefix(mut words: &[String]) -> &[String] {
    loop {
        let known: Vec<&str> = words.iter().take(3).map(String::as_str).collect();
        let count = match known[..] {
            ["ip", "netns", "exec"] => 4,
            ["nice", "-n", _] => 3,
            ["timeout", ..] => 2,
            ["sudo" | "time" | "env" | "do" | "then" | "exec" | "!", ..] => 1,
            [first, ..] if first.split_once('=').is_some_and(|(name, _)| is_name(name)) => 1,
            _ => return words,
        };
        words = words.get(count..).unwrap_or_default();
    }
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The simple commands of a shell's text, as words, and those in the values of assignments.
fn simple_commands(text: &str) -> Vec<Vec<String>> {
    let mut reader = Reader { words: Vec::new(), word: None, skip: false, commands: Vec::new() };
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next() {
                Some('\n') | None => {}
                Some(c) => reader.push(c),
            },
            '\'' => rest.by_ref().take_while(|c| *c != '\'').for_each(|c| reader.push(c)),
            '"' => {
                let inside: String = rest.by_ref().take_while(|c| *c != '"').collect();
                inside.chars().for_each(|c| reader.push(c));
            }
            '$' if rest.peek().is_some_and(|next| *next != '(') => {
                // The variable's value: any number.
                let is_braced = rest.next_if_eq(&'{').is_some();
                while rest
                    .next_if(|c| c.is_ascii_alphanumeric() || "_!?".contains(*c) || is_braced && *c != '}')
                    .is_some()
                {}
                let _ = is_braced && rest.next_if_eq(&'}').is_some();
                reader.push('1');
            }
            '#' if reader.word.is_none() => while rest.next_if(|c| *c != '\n').is_some() {},
            '>' | '<' => {
                // A number in front of it is a file descriptor's.
                reader.word = reader.word.take().filter(|word| !word.chars().all(|c| c.is_ascii_digit()));
                reader.end_word();
                while rest.next_if(|c| ">&<".contains(*c)).is_some() {}
                reader.skip = true;
            }
            ';' | '&' | '|' | '\n' | '(' | ')' => reader.end_command(),
            c if c.is_whitespace() => reader.end_word(),
            c => reader.push(c),
        }
    }
    reader.end_command();
    let values = reader.commands.iter().flatten().filter_map(|word| {
        let (name, value) = word.split_once('=')?;
        (is_name(name) && value.contains(' ')).then(|| simple_commands(value))
    });
    let values: Vec<Vec<String>> = values.flatten().collect();
    reader.commands.into_iter().chain(values).collect()
}

struct Reader {
    words: Vec<String>,
    word: Option<String>,
    /// The next word is a file that is written or read.
    skip: bool,
    commands: Vec<Vec<String>>,
}

impl Reader {
    fn push(&mut self, c: char) {
        self.word.get_or_insert_default().push(c);
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take() {
            let is_file = std::mem::take(&mut self.skip);
            self.words.extend((!is_file).then_some(word));
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.skip = false;
        let words = std::mem::take(&mut self.words);
        self.commands.extend((!words.is_empty()).then_some(words));
    }
}

/// Blocks of a Markdown text that are for a shell, each with the number of its first line.
pub fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        if !line.trim_start().starts_with("```") {
            continue;
        }
        let is_shell = line.trim() == "```sh";
        let inside =
            lines.by_ref().map(|(_, line)| line).take_while(|line| !line.trim_start().starts_with("```"));
        let inside: Vec<&str> = inside.collect();
        blocks.extend(is_shell.then(|| (number + 1, inside.join("\n"))));
    }
    blocks
}

#[cfg(test)]
mod tests {
    use measure::need;

    use super::*;
    use crate::workspace::{Tree, root};

    fn words(text: &str) -> Vec<String> {
        simple_commands(text).iter().map(|words| words.join("·")).collect()
    }

    #[test]
    fn a_line_is_read_as_a_shell_would() {
        for (text, commands) in [
            ("a b  # c; d\ne", &["a·b", "e"][..]),
            ("a & b; c | d && e", &["a", "b", "c", "d", "e"]),
            ("a \\\n  b", &["a·b"]),
            ("a 'b c' \"d # e\"", &["a·b c·d # e"]),
            ("a >/dev/null 2>&1 b 2> c d", &["a·b·d"]),
            ("a $b ${c} d$!", &["a·1·1·d1"]),
            ("x=$(a b) c", &["x=$", "a·b", "c"]),
            ("run=\"a --b --\"; $run c", &["run=a --b --", "1·c", "a·--b·--"]),
        ] {
            assert_eq!(words(text), commands, "{text}");
        }
    }

    #[test]
    fn words_in_front_of_a_program_are_left_out() {
        for (text, left) in [
            ("sudo A=b time c d", "c d"),
            ("ip netns exec one softnic ctl list", "softnic ctl list"),
            ("nice -n 5 timeout 3 a", "a"),
            ("cargo build -p softnic", "cargo build -p softnic"),
            ("A=b", ""),
        ] {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            assert_eq!(without_prefix(&words).join(" "), left, "{text}");
        }
    }

    #[test]
    fn a_command_that_these_do_not_have_is_named() {
        let programs = Programs("/nonexistent".into());
        for (text, why) in [
            ("cargo xtask figure 4 --quick", None),
            ("cd x && cargo xtask figure 4 --quik", Some("--quik")),
            ("DIR/xtask test --gpu", None),
            ("ssh host 'cd x; DIR/xtask tset'", Some("tset")),
            ("cargo xtask tset", Some("tset")),
            ("cargo xtask figure 4 --quick --full", Some("cannot be used with")),
        ] {
            let wrong = programs.wrong(text);
            match why {
                None => assert!(wrong.is_empty(), "{wrong:?}"),
                Some(why) => {
                    assert!(wrong.len() == 1 && wrong.iter().all(|it| it.contains(why)), "{wrong:?}")
                }
            }
        }
    }

    #[test]
    fn an_option_that_another_program_does_not_have_is_named() {
        let programs = need!(Programs::find(), softnic, "release builds of the programs");
        for (text, why) in [
            ("softnic run --model cx7 -- generator probe --json", None),
            ("softnic run --modell cx7 -- true", Some("--modell")),
            ("softnic run -- generator --connect h:1 --order erly & sleep 1", Some("erly")),
            ("softnic ctl set 1 --loss 0.01; softnic ctl sett 1", Some("sett")),
            ("wire=\"softnic run --pth wire --\"", Some("--pth")),
        ] {
            let wrong = programs.wrong(text);
            match why {
                None => assert!(wrong.is_empty(), "{wrong:?}"),
                Some(why) => {
                    assert!(wrong.len() == 1 && wrong.iter().all(|it| it.contains(why)), "{text}: {wrong:?}")
                }
            }
        }
    }

    #[test]
    fn the_figure_of_the_tutorial_can_be_measured() {
        let page = std::fs::read_to_string(root().join("docs/tutorials/own-kernel.md")).unwrap();
        let (_, shown) = page.split_once("`experiments/operations/spec.toml` in").unwrap();
        let (_, shown) = shown.split_once("```toml\n").unwrap();
        let spec = experiment::Spec::parse("operations", shown.split_once("```").unwrap().0).unwrap();
        assert_eq!((spec.app.as_str(), spec.claims.len()), ("generator", 1));
        assert_eq!(spec.pictures().collect::<Vec<_>>(), ["operations"]);
    }

    #[test]
    fn only_blocks_for_a_shell_are_read() {
        let text = "a\n```text\ncargo xtask no\n```\n\n```sh\nb\nc\n```\n";
        assert_eq!(blocks(text), [(7, "b\nc".to_owned())]);
    }

    #[test]
    fn every_command_that_a_document_shows_exists() {
        let programs = need!(Programs::find(), softnic, "release builds of the programs");
        let tree = Tree::read(&root()).unwrap();
        let is_read = |path: &str| path.ends_with(".md") && !path.starts_with("vendor/");
        let mut wrong = Vec::new();
        for (path, text) in tree.files().filter(|(path, _)| is_read(path)) {
            for (line, block) in blocks(text) {
                wrong.extend(programs.wrong(&block).into_iter().map(|why| format!("{path}:{line}: {why}")));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
