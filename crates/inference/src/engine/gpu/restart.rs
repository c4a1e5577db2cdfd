//! Re-executes the program after an engine under trial lost the CUDA context of its process, or does not end.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{env, io};

use super::choose::say;
use crate::engine::EngineError;

/// The variable that counts the starts behind the first.
const STARTS: &str = "DOORBELL_STARTS_AGAIN";
/// Most restarts in a row: an engine that fails at each trial takes two of them.
const MOST: u32 = 20;

/// After [`EngineError::Tried`]: restarts the program in place of this process with its arguments; nothing
/// after the call runs. The trial's file names the engine, and two leave it out. Open files close: clients
/// reconnect. Other errors come back; so does this without such a file, after 20 starts, or if a start fails.
pub fn start_again(error: EngineError) -> EngineError {
    let EngineError::Tried { is_noted: true, .. } = &error else { return error };
    let starts = env::var(STARTS).ok().and_then(|count| count.parse().ok()).unwrap_or(0_u32);
    if starts >= MOST {
        return error;
    }
    say(&format!("{error}; this program starts again"));
    say(&format!("it does not: {}", replaced(starts + 1)));
    error
}

/// Replaces this process. Comes back with the reason if it cannot be.
fn replaced(starts: u32) -> io::Error {
    Command::new("/proc/self/exe").args(env::args_os().skip(1)).env(STARTS, starts.to_string()).exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHILD: &str = "DOORBELL_TEST_STARTS_AGAIN";
    const NAME: &str = "engine::gpu::restart::tests::a_program_whose_trial_lost_the_context_starts_again";

    fn tried(is_noted: bool) -> EngineError {
        let why = Box::new(gpu::Error::Refused("misaligned address".into()));
        EngineError::Tried { step: "conv1".into(), by: "cuDNN engine 41".into(), why, is_noted }
    }

    #[test]
    fn a_program_whose_trial_lost_the_context_starts_again() {
        if env::var_os(CHILD).is_some() {
            println!("start {}", env::var(STARTS).unwrap_or_default());
            let same = start_again(EngineError::Preprocess { reason: "another".into() });
            assert!(matches!(same, EngineError::Preprocess { .. }), "{same}");
            assert!(matches!(start_again(tried(false)), EngineError::Tried { .. }));
            // It comes back behind the last start alone.
            assert!(matches!(start_again(tried(true)), EngineError::Tried { .. }));
            return;
        }
        let program = env::current_exe().expect("this program has a file");
        let mut command = Command::new(program);
        command.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1").env(STARTS, "18");
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
        let [said, why] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        let starts: Vec<&str> = said.lines().filter(|line| line.starts_with("start ")).collect();
        assert_eq!(starts, ["start 18", "start 19", "start 20"], "{said}");
        let words = "misaligned address; this program starts again";
        assert_eq!(why.lines().filter(|line| line.ends_with(words)).count(), 2, "{why}");
    }
}
