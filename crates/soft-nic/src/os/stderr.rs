//! The NIC's log: lines on the program's stderr.

/// Writes a line about a command, where `SOFTNIC_LOG` asks for one per command.
pub fn log_command(line: impl FnOnce() -> String) {
    static ENABLED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    if *ENABLED.get_or_init(|| std::env::var_os("SOFTNIC_LOG").is_some_and(|value| value != "0")) {
        log(&line());
    }
}

/// Writes one line to stderr, whole.
pub fn log(line: &str) {
    use std::io::Write;
    let line = format!("softnic[{}]: {line}\n", std::process::id());
    // A program that closed its stderr must not fail for our log.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
