//! A GPU's context that an engine under trial took is gone until the process ends. So the program starts again, without that engine.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{env, io};

use super::choose::say;
use crate::engine::EngineError;

/// The variable that counts the starts behind the first.
const STARTS: &str = "DOORBELL_STARTS_AGAIN";
/// More engines than that do not fail one after the other.
const MOST: u32 = 20;

/// Where a trial took the context: starts the program again with its arguments, in the place of this process, so that nothing behind the
/// call runs. The trial's file leaves that engine out. Any other error comes back, and so does this one where the program was
/// started [`MOST`] times, or cannot be. Callers have nothing yet that others see.
pub fn start_again(error: EngineError) -> EngineError {
    let EngineError::Tried { .. } = &error else { return error };
    let starts = env::var(STARTS).ok().and_then(|count| count.parse().ok()).unwrap_or(0_u32);
    if starts >= MOST {
        return error;
    }
    say(&format!("{error}; this program starts again without it"));
    say(&format!("it does not: {}", replaced(starts + 1)));
    error
}

/// Replaces this process. Comes back with the reason if it cannot be.
fn replaced(starts: u32) -> io::Error {
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    Command::new(program).args(env::args_os().skip(1)).env(STARTS, starts.to_string()).exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHILD: &str = "DOORBELL_TEST_STARTS_AGAIN";
    const NAME: &str = "engine::gpu::restart::tests::a_program_whose_trial_took_the_context_starts_again";

    fn tried() -> EngineError {
        let why = Box::new(gpu::Error::Refused("misaligned address".into()));
        EngineError::Tried { step: "conv1".into(), by: "cuDNN engine 41".into(), why }
    }

    #[test]
    fn a_program_whose_trial_took_the_context_starts_again() {
        let own = |starts: &str| {
            let program = env::current_exe().expect("this program has a file");
            let mut command = Command::new(program);
            command.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1").env(STARTS, starts);
            let output = command.output().expect("it starts");
            assert!(output.status.success(), "{output:?}");
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (text(&output.stdout), text(&output.stderr))
        };
        if env::var_os(CHILD).is_some() {
            println!("start {}", env::var(STARTS).unwrap_or_default());
            let same = start_again(EngineError::Preprocess { reason: "another".into() });
            assert!(matches!(same, EngineError::Preprocess { .. }), "{same}");
            // It comes back behind the last start alone.
            assert!(matches!(start_again(tried()), EngineError::Tried { .. }));
            return;
        }
        let (said, why) = own("18");
        let starts: Vec<&str> = said.lines().filter(|line| line.starts_with("start ")).collect();
        assert_eq!(starts, ["start 18", "start 19", "start 20"], "{said}");
        let again = why
            .lines()
            .filter(|line| line.ends_with("misaligned address; this program starts again without it"));
        assert_eq!(again.count(), 2, "{why}");
    }
}
