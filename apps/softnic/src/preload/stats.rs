//! The line of counters that a process leaves in the stats file: one JSON object, written at once.

use std::io::Write;

use serde_json::{Map, Value, json};
use soft_nic::os::log;
use soft_nic::runtime::Report;

use super::virtual_tree::virtual_tree;

/// Appends this process's line, when a stats file is configured.
pub fn append(report: &Report, pump_ns: u64) {
    let Some(file) = &virtual_tree().config.stats else { return };
    let line = line(report, pump_ns);
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    // One write, so that lines of several processes do not mix.
    let written = opened.and_then(|mut open| open.write_all(line.as_bytes()));
    if let Err(error) = written {
        log(&format!("stats file {file}: {error}; counters lost: {}", line.trim_end()));
    }
}

fn line(report: &Report, pump_ns: u64) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut counters: Map<String, Value> =
        report.counters.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    counters.insert("nic_thread_ns".to_owned(), json!(report.thread_ns));
    counters.insert("pump_ns".to_owned(), json!(pump_ns));
    let refused: Map<String, Value> =
        report.refused.iter().map(|(name, count)| (name.clone(), json!(count))).collect();
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let whole = json!({
        "pid": std::process::id(),
        "comm": comm.trim_end(),
        "libmlx5": mapped(&maps, "libmlx5"),
        "libibverbs": mapped(&maps, "libibverbs"),
        "model": virtual_tree().config.model.word(),
        "link_layer": virtual_tree().config.link_layer.word(),
        "pump": virtual_tree().config.pump,
        "strict": virtual_tree().config.strict,
        "changes": report.changes,
        "refused": refused,
        "counters": counters,
    });
    format!("{whole}\n")
}

/// The file of a library, from `/proc/self/maps`; empty when it is not mapped.
fn mapped<'m>(maps: &'m str, library: &str) -> &'m str {
    let files = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let named = |file: &&str| file.rsplit('/').next().is_some_and(|name| name.starts_with(library));
    let mut files = files.filter(named);
    files.next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_by_the_beginning_of_their_name() {
        let maps = "7f0 r--p 0 08:01 1 /usr/lib/x/libmlx5.so.1.24.44.0\n7f1 r--p 0 08:01 2 /lib/libibverbs.so.1\n7f2 rw-p 0 0 0\n";
        assert_eq!(mapped(maps, "libmlx5"), "/usr/lib/x/libmlx5.so.1.24.44.0");
        assert_eq!(mapped(maps, "libibverbs"), "/lib/libibverbs.so.1");
        assert_eq!(mapped(maps, "libcuda"), "");
    }
}
