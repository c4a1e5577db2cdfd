//! Options that only some roles of a program use, as a table: one that the role does not use is refused.

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};

/// Options, and the condition under which a program uses them: a row of its table.
#[derive(Debug)]
pub struct OptionScope<C> {
    /// Long names, without dashes; also those of a subcommand, where one was given.
    pub options: &'static [&'static str],
    /// What makes them count, in the words of the command line.
    pub to: &'static str,
    /// Whether that was asked for.
    pub when: fn(&C) -> bool,
}

/// The message about the first given option that is unused. Behind a subcommand, options are its own.
pub fn stray<C: CommandFactory>(
    command: &C,
    matches: &ArgMatches,
    table: &[OptionScope<C>],
) -> Option<String> {
    let command_line = C::command();
    let behind =
        matches.subcommand().and_then(|(name, behind)| Some((command_line.find_subcommand(name)?, behind)));
    let (known, matches) = behind.unwrap_or((&command_line, matches));
    let given = |option: &str| {
        let arg = known.get_arguments().find(|arg| arg.get_long() == Some(option))?;
        let id = arg.get_id().as_str();
        let values = matches.get_raw(id).filter(|_| arg.get_action().takes_values());
        let values: Vec<_> = values.into_iter().flatten().map(|value| value.to_string_lossy()).collect();
        let between = arg.get_value_delimiter().unwrap_or(' ').to_string();
        let words = if values.is_empty() { String::new() } else { format!(" {}", values.join(&between)) };
        (matches.value_source(id) == Some(ValueSource::CommandLine)).then(|| format!("--{option}{words}"))
    };
    let idle = table.iter().filter(|row| !(row.when)(command));
    let mut strays = idle.flat_map(|row| row.options.iter().map(move |option| (option, row.to)));
    strays.find_map(|(option, to)| {
        given(option).map(|given| format!("{given} would do nothing here: it goes with {to}; leave it out"))
    })
}

#[cfg(test)]
mod tests {
    use clap::{FromArgMatches, Parser, Subcommand};

    use super::*;

    #[derive(Debug, Parser)]
    struct Options {
        #[arg(long)]
        listen: bool,
        #[arg(long, default_value_t = 1)]
        sessions_at_most: u32,
        #[arg(long)]
        quiet: bool,
        #[command(subcommand)]
        command: Option<Behind>,
    }

    #[derive(Debug, Subcommand)]
    enum Behind {
        Probe {
            #[arg(long)]
            quiet: bool,
            #[arg(long, value_delimiter = ',')]
            ports: Vec<u32>,
        },
    }

    fn said(row: &OptionScope<Options>, words: &[&str]) -> Option<String> {
        let words = [&["program"], words].concat();
        let matches = Options::command().try_get_matches_from(words).unwrap();
        stray(&Options::from_arg_matches(&matches).unwrap(), &matches, std::slice::from_ref(row))
    }

    #[test]
    fn an_option_that_nobody_looks_at_is_named_as_it_was_given() {
        let row = OptionScope {
            options: &["quiet", "sessions-at-most"],
            to: "--listen",
            when: |options: &Options| options.listen,
        };
        let said = |words: &[&str]| said(&row, words);
        for (words, begin) in [
            (&["--sessions-at-most", "1"][..], "--sessions-at-most 1 would"),
            (&["--quiet"], "--quiet would"),
        ] {
            let line = said(words).unwrap();
            assert!(line.starts_with(begin) && line.contains("--listen"), "{line}");
            // The same beside what it belongs to; a default is not given.
            assert_eq!(said(&[words, &["--listen"]].concat()), None);
        }
        assert_eq!(said(&[]), None);
    }

    #[test]
    fn an_option_behind_a_subcommand_is_the_subcommands() {
        let is_quiet = |options: &Options| matches!(options.command, Some(Behind::Probe { quiet: true, .. }));
        let row = OptionScope { options: &["ports"], to: "--quiet", when: is_quiet };
        let line = said(&row, &["probe", "--ports", "1,2"]).unwrap();
        assert!(line.starts_with("--ports 1,2 would do nothing here: it goes with --quiet"), "{line}");
        assert_eq!(said(&row, &["probe", "--quiet", "--ports", "1,2"]), None);
    }
}
