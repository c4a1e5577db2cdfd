//! Options that only some ends of a program look at, as a table: given where nobody does, one is refused and not ignored.

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};

/// A row: options, and when they are looked at.
#[derive(Debug)]
pub struct Belongs<C> {
    /// Long names, without dashes.
    pub options: &'static [&'static str],
    /// What makes them count, in the words of the command line.
    pub to: &'static str,
    /// Whether that was asked for.
    pub when: fn(&C) -> bool,
}

/// What is said of the first option that was given and that nobody looks at.
pub fn stray<C: CommandFactory>(command: &C, matches: &ArgMatches, table: &[Belongs<C>]) -> Option<String> {
    let known = C::command();
    let given = |option: &str| {
        let arg = known.get_arguments().find(|arg| arg.get_long() == Some(option))?;
        let id = arg.get_id().as_str();
        let values = matches.get_raw(id).filter(|_| arg.get_action().takes_values());
        let values = values.into_iter().flatten().map(|value| format!(" {}", value.to_string_lossy()));
        (matches.value_source(id) == Some(ValueSource::CommandLine))
            .then(|| format!("--{option}{}", values.collect::<String>()))
    };
    let idle = table.iter().filter(|row| !(row.when)(command));
    let mut strays = idle.flat_map(|row| row.options.iter().map(move |option| (option, row.to)));
    strays.find_map(|(option, to)| {
        given(option).map(|given| format!("{given} would do nothing here: it goes with {to}; leave it out"))
    })
}

#[cfg(test)]
mod tests {
    use clap::{FromArgMatches, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Options {
        #[arg(long)]
        listen: bool,
        #[arg(long, default_value_t = 1)]
        sessions_at_most: u32,
        #[arg(long)]
        quiet: bool,
    }

    #[test]
    fn an_option_that_nobody_looks_at_is_named_as_it_was_given() {
        let row = Belongs {
            options: &["quiet", "sessions-at-most"],
            to: "--listen",
            when: |options: &Options| options.listen,
        };
        let said = |words: &[&str]| {
            let words = [&["program"], words].concat();
            let matches = Options::command().try_get_matches_from(words).unwrap();
            stray(&Options::from_arg_matches(&matches).unwrap(), &matches, std::slice::from_ref(&row))
        };
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
}
