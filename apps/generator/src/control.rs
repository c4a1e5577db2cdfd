//! What the two ends say to each other, beside the connection protocol of `verbs::connect`.
//!
//! Order: sender's [`Proposal`], receiver's [`Answer`]; greetings and states as in `verbs::connect`. When the
//! sender is done: its [`SenderEnd`], the receiver's [`Received`]. Closed before that: the other end is gone.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use verbs::connect::RegionOffer;

use crate::plan::Plan;

/// Version of these lines; both ends must have the same.
pub const VERSION: u32 = 2;

/// How long set-up may take.
pub const SETUP: Duration = Duration::from_secs(10);
/// How long messages that were completed at the sender may still be under way.
pub const GRACE: Duration = Duration::from_millis(500);
/// How long completions are waited for in all after a signal: the whole end within a second.
pub const DRAIN_INTERRUPTED: Duration = Duration::from_millis(300);
/// Distance of credit words: a cache line each.
pub const CREDIT_STRIDE: u64 = 64;

/// Sender's first line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Proposal {
    /// [`VERSION`]; the field's name also tells that the line is one of ours.
    pub generator: u32,
    pub plan: Plan,
    /// Whether the same sender connects again; the receiver does not count this session unless it fails.
    pub warm_up: bool,
}

/// Receiver's first line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    /// [`VERSION`].
    pub generator: u32,
    pub refusal: Option<String>,
}

/// Sender's last line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderEnd {
    pub posted: Vec<u64>,
    pub completed: Vec<u64>,
}

impl SenderEnd {
    /// An error unless it counts so many queue pairs.
    pub fn check(&self, qps: usize) -> Result<()> {
        if self.posted.len() != qps || self.completed.len() != qps {
            bail!("the sender counts {} queue pairs, there are {qps}", self.posted.len());
        }
        Ok(())
    }
}

/// Receiver's last line: what it found by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    pub received: u64,
    pub received_bytes: u64,
    /// Messages whose content was looked at.
    pub checked: u64,
    /// Of these, whole.
    pub verified: u64,
    /// Of these, not what was sent.
    pub torn: u64,
    /// Messages that were completed at the sender and never seen here.
    pub lost: u64,
    pub error: Option<String>,
}

impl Received {
    /// Whether nothing went wrong, as far as this end knows.
    pub fn is_clean(&self) -> bool {
        self.error.is_none() && self.torn == 0 && self.lost == 0
    }

    pub fn text(&self) -> String {
        let Received { received, checked, verified, torn, lost, .. } = self;
        format!("received {received}  verified {verified} of {checked}  torn {torn}  lost {lost}")
    }

    /// Adds another queue pair's counts. Saturates: some of them rest on what the sender says.
    pub fn add(&mut self, other: &Received) {
        self.received = self.received.saturating_add(other.received);
        self.received_bytes = self.received_bytes.saturating_add(other.received_bytes);
        self.checked = self.checked.saturating_add(other.checked);
        self.verified = self.verified.saturating_add(other.verified);
        self.torn = self.torn.saturating_add(other.torn);
        self.lost = self.lost.saturating_add(other.lost);
        self.error = self.error.take().or_else(|| other.error.clone());
    }
}

/// Takes a first line apart: another program's, another version's, or `T`.
pub fn first_line<T: serde::de::DeserializeOwned>(
    line: serde_json::Value,
    peer: std::net::SocketAddr,
) -> Result<T> {
    match line.get("generator").and_then(serde_json::Value::as_u64) {
        None => bail!("{peer} is not a generator: its first line has no «generator»"),
        Some(version) if version != u64::from(VERSION) => {
            bail!(
                "{peer} is a generator of version {version}, this one is of version {VERSION}: use the same build"
            )
        }
        Some(_) => serde_json::from_value(line)
            .map_err(|e| anyhow::anyhow!("{peer} sent a line that cannot be read: {e}")),
    }
}

/// The sender's credit words, if they are enough.
pub fn credit_words(plan: &Plan, offered: Option<RegionOffer>) -> Result<RegionOffer> {
    let credits = offered.context("the sender offers no credit words")?;
    let needed = CREDIT_STRIDE * u64::from(plan.qps);
    if credits.bytes < needed || credits.address.checked_add(credits.bytes).is_none() {
        bail!("the sender's credit words are {credits:?}, {needed} bytes are needed");
    }
    Ok(credits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_and_other_versions_are_told_apart() {
        let peer = "127.0.0.1:1".parse().unwrap();
        for (line, words) in [
            ("{\"hello\":1}", "is not a generator"),
            ("\"GET\"", "is not a generator"),
            ("{\"generator\":1}", "of version 1"),
            ("{\"generator\":2}", "cannot be read"),
        ] {
            let line = serde_json::from_str(line).unwrap();
            let error = first_line::<Proposal>(line, peer).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let answer = Answer { generator: VERSION, refusal: None };
        assert!(first_line::<Answer>(serde_json::to_value(answer).unwrap(), peer).is_ok());
    }
}
