//! A running generator: its lines, its end, and no survivor.

use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::sync::LazyLock;

pub use cli::testing::Ended;
use cli::testing::{Program, program};
use serde_json::Value;

/// The program.
pub static GENERATOR: LazyLock<String> =
    LazyLock::new(|| program("CARGO_BIN_EXE_generator", env!("CARGO_BIN_EXE_generator")));

/// A generator with JSON on its standard output.
pub struct Generator(Program);

/// `generator` with these arguments.
pub fn command(arguments: &[&str]) -> Command {
    cli::testing::command(&GENERATOR, arguments)
}

/// Whether this host has a device: `Err` is what the generator says.
pub fn device() -> Result<(), String> {
    let output = command(&["probe", "--json"]).output().map_err(|e| e.to_string())?;
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())?;
    if output.status.success() { Ok(()) } else { Err(report["error"].to_string()) }
}

impl Generator {
    pub fn start(arguments: &[&str]) -> Generator {
        Generator(Program::start(&GENERATOR, arguments))
    }

    /// A receiver, and the address that it chose.
    pub fn receiver(arguments: &[&str]) -> (Generator, String) {
        let (receiver, address) = Program::listening(&GENERATOR, arguments);
        (Generator(receiver), address)
    }
}

impl Deref for Generator {
    type Target = Program;
    fn deref(&self) -> &Program {
        &self.0
    }
}

impl DerefMut for Generator {
    fn deref_mut(&mut self) -> &mut Program {
        &mut self.0
    }
}
