//! A running end, and what this machine has for it.

use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use cli::testing::{Ended, Program, command, program};

/// In which both ends do something on a quiet machine.
pub const MOMENT: Duration = Duration::from_millis(500);

/// Path of the program.
pub static ECHO: LazyLock<String> =
    LazyLock::new(|| program("CARGO_BIN_EXE_doorbell-echo", env!("CARGO_BIN_EXE_doorbell-echo")));

/// Whether an end with these options gets as far as these words; else what it says instead.
fn says(options: &[&str], words: &str) -> Result<(), String> {
    let output = command(&ECHO, options).output().map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains(words) { Ok(()) } else { Err(said) }
}

/// A service finds out last that no host has its address.
const NOBODYS: [&str; 3] = ["--listen", "203.0.113.7:0", "--machine"];
const LAST: &str = "an address of this host";

/// A device.
pub fn device() -> Result<(), String> {
    says(&[&NOBODYS[..], &["twin"]].concat(), LAST)
}

/// A device, and kernels of the host twin.
pub fn twin() -> Result<(), String> {
    static ONCE: OnceLock<Result<(), String>> = OnceLock::new();
    // A client without a service waits for one for a while, with all that it needs.
    let asks = || says(&["--connect", "127.0.0.1:1", "--machine", "twin"], "is a service listening there?");
    ONCE.get_or_init(asks).clone()
}

/// A device, and a GPU.
pub fn gpu() -> Result<(), String> {
    says(&[&NOBODYS[..], &["gpu"]].concat(), LAST)
}

/// A service with these options, and the address that it chose.
pub fn service(options: &[&str]) -> (Program, String) {
    Program::listening(&ECHO, options)
}

/// A client of that service.
pub fn asking(address: &str, options: &[&str]) -> Program {
    Program::start(&ECHO, &[&["--connect", address], options].concat())
}

/// Whether an end has given or got answers.
pub fn has_answers(ended: &Ended) -> bool {
    ended.lines.first().is_some_and(|line| line["answered"].as_u64() > Some(0))
}
