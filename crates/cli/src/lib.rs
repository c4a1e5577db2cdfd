//! Command lines of programs that use a NIC: one-line errors, exit codes, signals, JSON lines, and [`Nic`].
//!
//! Left out: what a program does. Knows nothing of which NIC lies below (INV-4).

#![forbid(unsafe_code)]
// They panic on a closed pipe: `say!` and `complain!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod gpu;
mod nic;
mod option_scope;
#[cfg(feature = "testing")]
pub mod testing;

/// A line on standard output. A reader that closes the pipe (`| head`) is no error, and no reason to panic.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {{
        $crate::print(&mut ::std::io::stdout(), ::std::format_args!($($text)*));
    }};
}

/// A line on standard error, in the same way.
#[macro_export]
macro_rules! complain {
    ($($text:tt)*) => {{
        $crate::print(&mut ::std::io::stderr(), ::std::format_args!($($text)*));
    }};
}

use std::error::Error;
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use gpu::{Gpu, Memory};
pub use nic::{Nic, check_address, connect_pair, nic_label};
pub use option_scope::{OptionScope, stray};

/// What `--version` says: the revision, where `cargo xtask bundle` compiled it in.
pub const VERSION: &str = match option_env!("DOORBELL_REVISION") {
    Some(revision) => revision,
    None => concat!(env!("CARGO_PKG_VERSION"), " (built in a checkout, whose git says the revision)"),
};
/// Exit code: not everything came about that was asked for.
pub const FAILED: u8 = 1;
/// Exit code: something in the request cannot be.
pub const BAD_INPUT: u8 = 2;
/// Exit code: a signal ended it (128 + SIGINT, as shells say it).
pub const INTERRUPTED: u8 = 130;

/// Writes one line at once, so that lines of two failing programs do not mix; a closed stream is no error.
#[doc(hidden)]
pub fn print(stream: &mut dyn Write, text: fmt::Arguments<'_>) {
    let _ = stream.write_all(format!("{text}\n").as_bytes());
    let _ = stream.flush();
}

/// Runs a program from its command line to its exit code: `--help` and the like succeed; an error of `run`,
/// or an option that `table` gives to others, is bad input. Answers `--write-manual` ([`manual`]).
pub fn main<C: Parser>(
    program: &str,
    table: &[OptionScope<C>],
    run: impl FnOnce(C) -> Result<u8>,
) -> ExitCode {
    if let Some(written) = manual::asked(C::command(), std::env::args_os()) {
        return written.map_or_else(|error| bad_input(program, &error.to_string()), |_| ExitCode::SUCCESS);
    }
    let matches = C::command().try_get_matches();
    let parsed = matches.and_then(|matches| Ok((C::from_arg_matches(&matches)?, matches)));
    let command = match parsed {
        Ok((command, matches)) => match stray(&command, &matches, table) {
            None => command,
            Some(line) => return bad_input(program, &line),
        },
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => return bad_input(program, &one_line(&error)),
    };
    run(command).map_or_else(|error| bad_input(program, &sentence(&error)), ExitCode::from)
}

/// Takes one of these names, or its alias, as a value. `--help` lists each with its description, and the
/// refusal of an unknown one lists all.
pub fn choice<T>(
    names: impl IntoIterator<Item = (&'static str, Option<&'static str>, String)>,
) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    let values =
        names.into_iter().map(|(name, alias, help)| PossibleValue::new(name).aliases(alias).help(help));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<T>())
}

/// As [`choice`], of a type that has these names in JSON.
pub fn named<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    names: &[(&'static str, &'static str)],
) -> impl TypedValueParser<Value = T> {
    let values = names.iter().map(|(name, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(values).try_map(|name| serde_json::from_value(serde_json::Value::String(name)))
}

/// What is wrong with the command line, with clap's tip; clap's own text has lines for the usage too.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let reason = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = reason.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let tips = text.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    let tip: String = tips.filter(|tip| tip.contains("similar")).map(|tip| format!("; {tip}")).collect();
    format!("{}{tip} (--help tells more)", words.join(" ").trim_start_matches("error: "))
}

/// An error with its causes, each once: many a message already says its cause.
pub fn sentence(error: &anyhow::Error) -> String {
    let causes = error.chain().map(ToString::to_string);
    causes.fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        said if said.contains(&cause) => text,
        said => format!("{said}: {cause}"),
    })
}

/// A flag that Ctrl-C and SIGTERM set. A program that takes it must look at it.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone()).context("waiting for signals")?;
    }
    Ok(stop)
}

/// Has a sleeping thread call `call` at Ctrl-C and SIGTERM, so that the program's thread may sleep as well.
pub fn on_stop(call: impl FnMut() + Send + 'static) -> Result<()> {
    on_signals(&[signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM], "stop", call)
}

/// As [`on_stop`], at SIGUSR1, which asks for the program's status.
pub fn on_question(call: impl FnMut() + Send + 'static) -> Result<()> {
    on_signals(&[signal_hook::consts::SIGUSR1], "question", call)
}

fn on_signals(signals: &[i32], thread: &str, mut call: impl FnMut() + Send + 'static) -> Result<()> {
    let what = "waiting for signals";
    let (mut hears, tells) = UnixStream::pair().context(what)?;
    for signal in signals {
        let tells = tells.try_clone().context(what)?;
        signal_hook::low_level::pipe::register(*signal, tells).context(what)?;
    }
    let listen = move || {
        while hears.read_exact(&mut [0]).is_ok() {
            call();
        }
    };
    std::thread::Builder::new().name(thread.into()).spawn(listen).context(what)?;
    Ok(())
}

/// The error as one line.
fn bad_input(program: &str, error: &str) -> ExitCode {
    let line: Vec<_> = error.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    complain!("{program}: {}", line.join(" "));
    ExitCode::from(BAD_INPUT)
}

/// Writes one JSON line to standard output (`-`) or at the end of a file.
pub fn emit(json: Option<&Path>, line: &impl Serialize) -> Result<()> {
    let Some(path) = json else { return Ok(()) };
    let mut text = serde_json::to_string(line).context("writing JSON")?;
    text.push('\n');
    if path.as_os_str() == "-" {
        let mut out = std::io::stdout().lock();
        return out
            .write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .context("writing to standard output");
    }
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let file = file.and_then(|mut file| file.write_all(text.as_bytes()));
    file.with_context(|| format!("writing to {}", path.display()))
}

/// Says at which address a program listens: its first line of JSON.
pub fn emit_listening(json: Option<&Path>, address: impl ToString) -> Result<()> {
    #[derive(Serialize)]
    struct Listening {
        kind: &'static str,
        address: String,
    }
    emit(json, &Listening { kind: "listening", address: address.to_string() })
}

/// A value as on the command line.
pub fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Whether people read standard output.
pub fn speaks_to_people(json: Option<&Path>) -> bool {
    json.is_none_or(|path| path.as_os_str() != "-")
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[derive(Debug, Parser)]
    struct Options {
        #[arg(long)]
        connect: Option<String>,
    }

    /// Counts what is written at once.
    #[derive(Default)]
    struct WriteCounter(Vec<String>);

    impl Write for WriteCounter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_one_write() {
        let mut writes = WriteCounter::default();
        print(&mut writes, format_args!("{}: link layers {}", "generator", "differ"));
        assert_eq!(writes.0, ["generator: link layers differ\n"]);
    }

    #[test]
    fn what_is_wrong_with_a_command_line_is_one_line_with_the_word_that_was_meant() {
        let error = Options::try_parse_from(["program", "--conect", "h:1"]).unwrap_err();
        let line = one_line(&error);
        assert!(line.starts_with("unexpected argument '--conect'"), "{line}");
        assert!(line.contains("'--connect'") && line.ends_with("(--help tells more)"), "{line}");
        assert_eq!(line.lines().count(), 1);
        assert_eq!(Options::try_parse_from(["program"]).unwrap().connect, None);
    }

    #[test]
    fn a_cause_that_its_error_says_already_is_not_said_again() {
        let error = anyhow!("no such device").context("opening mlx5_7: no such device").context("set-up");
        assert_eq!(sentence(&error), "set-up: opening mlx5_7: no such device");
    }

    #[test]
    fn lines_of_json_are_added_to_a_file_and_a_folder_is_none() {
        let file = std::env::temp_dir().join(format!("cli-emit-{}", std::process::id()));
        let _ = std::fs::remove_file(&file);
        for number in [1, 2] {
            emit(Some(&file), &number).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "1\n2\n");
        std::fs::remove_file(&file).unwrap();
        let error = emit(Some(&std::env::temp_dir()), &3).unwrap_err();
        assert!(error.to_string().starts_with("writing to "), "{error}");
        emit(None, &4).unwrap();
        assert!(speaks_to_people(None) && !speaks_to_people(Some(Path::new("-"))));
    }
}
