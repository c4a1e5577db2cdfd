//! The NIC's log: lines on the program's stderr.

/// Whether `SOFTNIC_LOG` asks for a line per command.
pub fn log_enabled() -> bool {
    static ENABLED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ENABLED.get_or_init(|| std::env::var_os("SOFTNIC_LOG").is_some_and(|value| value != "0"))
}

/// Writes one line to stderr, whole.
pub fn log(line: &str) {
    use std::io::Write;
    let line = format!("softnic[{}]: {line}\n", std::process::id());
    // A program that closed its stderr must not fail for our log.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
