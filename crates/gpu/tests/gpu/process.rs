//! This test program, or a part, as a process with a deadline: for a lost context or another driver.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs this very program with `arguments` and what `set` adds, at most `limit`. Gives its output (kept in
/// `log` meanwhile), and whether it ended well.
pub fn us(arguments: &[&str], set: impl FnOnce(&mut Command), log: &Path, limit: Duration) -> (String, bool) {
    let file = File::create(log).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments).stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
    set(&mut command);
    let mut us = command.spawn().unwrap();
    let since = Instant::now();
    let ended = loop {
        match us.try_wait().unwrap() {
            Some(ended) => break ended,
            None if since.elapsed() > limit => {
                us.kill().unwrap();
                break us.wait().unwrap();
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let mut said = String::from_utf8_lossy(&fs::read(log).unwrap()).into_owned();
    if since.elapsed() > limit {
        said += "\nit was ended at its deadline\n";
    }
    (said, ended.success())
}
