//! `--counters-hook COMMAND`: counters that only the user can read, a switch's for example.
//!
//! Run before and after each point, it prints lines `name,value`. `docs/samples.md`: format and example.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process::output;
use crate::refused::refused;

/// Longest run of the command; a switch's command line takes seconds.
const LIMIT: Duration = Duration::from_secs(10);
/// Most counters that are kept of it.
const MOST: usize = 256;

/// The user's command, for `sh -c`.
#[derive(Debug)]
pub struct Hook {
    command: String,
    limit: Duration,
}

impl Hook {
    /// Runs it once. Error: refused with what is wrong of it, before anything is measured.
    pub fn tried(command: &str) -> Result<Hook> {
        Hook::tried_within(command, LIMIT)
    }

    fn tried_within(command: &str, limit: Duration) -> Result<Hook> {
        let hook = Hook { command: command.to_owned(), limit };
        match hook.read() {
            Ok(_) => Ok(hook),
            Err(error) => Err(refused(format!(
                "--counters-hook: {error:#}; run `{command}` by hand, and let it print lines `name,value` within {} s",
                limit.as_secs_f64()
            ))),
        }
    }

    /// Counters by name. Error: the command failed, took too long, or printed something else.
    pub fn read(&self) -> Result<BTreeMap<String, f64>> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &self.command]);
        let said = output(&mut shell, self.limit).map_err(|error| {
            // `sh` is our part of it.
            anyhow::anyhow!("{}", format!("{error:#}").replacen("sh ", "the command ", 1))
        })?;
        counters(&said)
    }
}

/// Counters of lines `name,value`; empty lines and those that begin with `#` are left out.
fn counters(said: &str) -> Result<BTreeMap<String, f64>> {
    let mut found = BTreeMap::new();
    for line in said.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, value) = counter(line).with_context(|| {
            let shown: String = line.chars().take(60).collect();
            format!("the line `{shown}` is no `name,value`")
        })?;
        if found.insert(name.to_owned(), value).is_some() {
            bail!("it says `{name}` twice");
        }
        ensure!(found.len() <= MOST, "it says more than {MOST} counters");
    }
    ensure!(!found.is_empty(), "it printed no counter");
    Ok(found)
}

fn counter(line: &str) -> Option<(&str, f64)> {
    let (name, value) = line.split_once(',').map(|(name, value)| (name.trim(), value.trim()))?;
    let is_name = (1..=64).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.:/-".contains(c));
    let value: f64 = value.parse().ok()?;
    (is_name && value.is_finite() && value >= 0.0).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::refused::Refused;

    #[test]
    fn lines_of_names_and_numbers_are_counters_and_nothing_else_is() {
        let found = counters("# leaf1\nport1.rx_bytes,10\n\n port1.tx_bytes , 2.5e3 \n").unwrap();
        assert_eq!(found, [("port1.rx_bytes".into(), 10.0), ("port1.tx_bytes".into(), 2500.0)].into());
        for (said, words) in [
            ("", "printed no counter"),
            ("# only this\n", "printed no counter"),
            ("rx 10", "the line `rx 10` is no `name,value`"),
            ("name,value", "the line `name,value` is no"),
            ("rx,-1", "the line `rx,-1`"),
            ("rx,inf", "the line `rx,inf`"),
            ("r x,1", "the line `r x,1`"),
            (",1", "the line `,1`"),
            ("rx,1\nrx,2", "says `rx` twice"),
        ] {
            let error = counters(said).unwrap_err().to_string();
            assert!(error.contains(words), "{said}: {error}");
        }
        let many: String = (0..=MOST).map(|n| format!("c{n},1\n")).collect();
        assert!(counters(&many).unwrap_err().to_string().contains("more than 256"));
    }

    #[test]
    fn a_hook_that_fails_hangs_or_prints_nonsense_is_refused_with_what_to_do() {
        let since = Instant::now();
        for (command, limit, words) in [
            ("exit 3", LIMIT, "the command ended with status 3"),
            ("sleep 60", Duration::from_millis(500), "the command took longer than it may"),
            ("echo Login incorrect", LIMIT, "the line `Login incorrect` is no `name,value`"),
            ("no-such-command-here", LIMIT, "the command ended with status 127"),
        ] {
            let error = Hook::tried_within(command, limit).unwrap_err();
            let said = error.to_string();
            assert!(error.is::<Refused>() && said.contains(words) && said.lines().count() == 1, "{said}");
            assert!(said.contains(&format!("run `{command}` by hand")), "{said}");
        }
        assert!(since.elapsed() < Duration::from_secs(30), "the deadline was not kept");
        let hook = Hook::tried("echo rx,1").unwrap();
        assert_eq!(hook.read().unwrap()["rx"], 1.0);
    }
}
