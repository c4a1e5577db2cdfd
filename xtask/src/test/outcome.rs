//! What test programs print, counted: passed, failed, ignored, and the SKIP lines of `measure::need`.

/// Counts of one suite.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Tests that ran to a good end. Those that skipped are not among them.
    pub passed: usize,
    /// Tests that failed, and programs that ended badly without saying which.
    pub failed: usize,
    /// Names of the failed tests, as far as the log has them.
    pub failures: Vec<String>,
    /// SKIP lines, in the order of the log.
    pub skips: Vec<String>,
    /// Tests marked `#[ignore]`; there must be none.
    pub ignored: usize,
    /// What tests printed for the reader: their lines that begin with `TABLE `, without it.
    pub table: Vec<String>,
}

impl Outcome {
    pub fn of_log(log: &str) -> Outcome {
        let mut outcome = Outcome::default();
        for line in log.lines() {
            if let Some(result) = line.strip_prefix("test result: ") {
                outcome.passed += count(result, "passed");
                outcome.failed += count(result, "failed");
                outcome.ignored += count(result, "ignored");
            }
            let failure = line.strip_suffix(" ... FAILED").and_then(|line| line.split_once("test "));
            outcome.failures.extend(failure.map(|(_, name)| name.to_owned()));
            outcome.table.extend(line.strip_prefix("TABLE ").map(str::to_owned));
            // Not always at a line's start: a test's name and result may stand there, or another test's.
            let alone =
                |at: &usize| *at == 0 || ["... ", "... ok"].iter().any(|end| line[..*at].ends_with(end));
            if let Some(at) = line.find("SKIP ").filter(alone) {
                outcome.skips.push(line[at..].trim_end().to_owned());
            }
        }
        outcome.passed = outcome.passed.saturating_sub(outcome.skips.len());
        outcome
    }
}

/// The number before `word` in `ok. 25 passed; 0 failed; …`.
fn count(result: &str, word: &str) -> usize {
    let parts = result.split([';', '.']).map(str::trim);
    parts.filter_map(|part| part.strip_suffix(word)?.trim().parse::<usize>().ok()).next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_programs_add_up_and_skips_are_not_passes() {
        let log = "\nrunning 3 tests\ntest a ... ok\nSKIP gpu::relaunch: one CUDA device (libcuda.so.1 not found)\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.05s\n\
            test b ... SKIP b: no\n\
            test c ... okSKIP d: no\n\
            test it::late ... FAILED\n\
            test result: FAILED. 4 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.05s\n";
        let outcome = Outcome::of_log(log);
        assert_eq!((outcome.passed, outcome.failed, outcome.ignored), (4, 1, 2));
        assert_eq!(outcome.failures, ["it::late"]);
        assert_eq!(
            outcome.skips,
            ["SKIP gpu::relaunch: one CUDA device (libcuda.so.1 not found)", "SKIP b: no", "SKIP d: no"]
        );
    }

    #[test]
    fn lines_of_a_table_are_kept_in_their_order() {
        let log =
            "---- hostile stdout ----\nTABLE     100  opcode\nseed 7\nTABLE       3  refused\nNO TABLE \n";
        assert_eq!(Outcome::of_log(log).table, ["    100  opcode", "      3  refused"]);
    }

    #[test]
    fn a_log_without_results_counts_nothing() {
        assert_eq!(Outcome::of_log("error: could not compile `x`\nnot a SKIP line"), Outcome::default());
    }
}
