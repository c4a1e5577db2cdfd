//! A process's line of NIC counters in the `--stats` file (names: `mlx5-device/src/counters.rs`).

use std::collections::BTreeMap;

use serde_json::Value;

/// Names that begin so are 0 wherever nothing went wrong; each ends a word or names one counter.
const TROUBLE: [&str; 12] = [
    "ctl_changes",
    "injected_",
    "lost_port_down",
    "error_",
    "naks_sent",
    "rnr_naks_",
    "retransmissions",
    "duplicates",
    "dropped_",
    "doorbell_",
    "doorbells_stray",
    "cq_overruns",
];

/// One process's line.
#[derive(Debug, Clone)]
pub struct Counters {
    pid: u32,
    libmlx5: String,
    values: BTreeMap<String, u64>,
    changes: Vec<String>,
}

/// Messages by kind, without the kinds that did not occur.
pub type Messages = BTreeMap<String, u64>;

/// Reads one line; errors say what is missing.
pub fn parse(line: &str) -> Result<Counters, String> {
    let line: Value = serde_json::from_str(line).map_err(|error| format!("not JSON: {error}"))?;
    let pid = line["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).ok_or("no `pid`")?;
    let libmlx5 = line["libmlx5"].as_str().ok_or("no `libmlx5`")?.to_owned();
    let values = line["counters"].as_object().ok_or("no `counters`")?;
    let values = values.iter().filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect();
    let changes = line["changes"].as_array().ok_or("no `changes`")?;
    let changes = changes.iter().filter_map(|change| Some(change.as_str()?.to_owned())).collect();
    Ok(Counters { pid, libmlx5, values, changes })
}

/// `count` messages of one kind; none at all when `count` is 0.
pub fn messages(kind: &str, count: u64) -> Messages {
    Messages::from([(kind.to_owned(), count)]).into_iter().filter(|&(_, count)| count > 0).collect()
}

impl Counters {
    /// Process whose NIC this was.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The file of libmlx5 that this process had mapped.
    pub fn libmlx5(&self) -> &str {
        &self.libmlx5
    }

    /// What `softnic ctl` changed.
    pub fn changes(&self) -> &[String] {
        &self.changes
    }

    /// One counter by name. A name that the NIC does not have is a fault of the test.
    pub fn value(&self, name: &str) -> u64 {
        *self.values.get(name).unwrap_or_else(|| panic!("no counter `{name}` among {:?}", self.values.keys()))
    }

    /// One number, if this NIC counts it: those of a GPU are left out where none was met.
    pub fn find(&self, name: &str) -> Option<u64> {
        self.values.get(name).copied()
    }

    /// Every name, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Requests that the NIC read from send queues, by kind.
    pub fn posted(&self) -> Messages {
        self.kinds("posted_")
    }

    /// Requests that ended well, by kind.
    pub fn completed(&self) -> Messages {
        self.kinds("completed_")
    }

    /// Messages executed as the responder, of any kind.
    pub fn executed(&self) -> u64 {
        self.value("messages_received")
    }

    /// Payload executed as the responder: READ responses included.
    pub fn executed_bytes(&self) -> u64 {
        self.value("bytes_received")
    }

    /// Whatever tells of an error, a repetition, a refusal, a wrong doorbell or a detour.
    pub fn trouble(&self) -> BTreeMap<&str, u64> {
        let named = self.values.iter().map(|(name, &value)| (name.as_str(), value));
        named
            .filter(|&(name, value)| value > 0 && TROUBLE.iter().any(|trouble| name.starts_with(trouble)))
            .collect()
    }

    fn kinds(&self, prefix: &str) -> Messages {
        let values = self.values.iter();
        let kinds = values.filter_map(|(name, &count)| Some((name.strip_prefix(prefix)?.to_owned(), count)));
        kinds.filter(|&(_, count)| count > 0).collect()
    }
}
