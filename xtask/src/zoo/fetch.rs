//! A published file over HTTP, into a store: goes on where an earlier try ended, and keeps nothing with a
//! wrong hash.
//!
//! Ranges are those of RFC 9110, section 14. A server that ignores them sends the file from its beginning,
//! and so does one that has none for the rest. Every wait has a deadline: for a name, a connection, the
//! request, and each read. A try that brings less than a block counts as fruitless. Left out: several
//! connections, and mirrors.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use ureq::Agent;
use ureq::config::ConfigBuilder;
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::typestate::AgentScope;
use zoo::{Partial, StoreError, Weights};

use crate::refused::refused;

/// Tries in a row that may bring nothing.
const FRUITLESS: u32 = 3;
const BLOCK: usize = 1 << 16;

/// A client of publishers' servers.
pub struct Client {
    agent: Agent,
    /// Before another try.
    pause: Duration,
}

impl Client {
    /// Follows redirections, but over https only.
    pub fn new() -> Client {
        let agent = config(Duration::from_secs(60)).https_only(true).build().into();
        Client { agent, pause: Duration::from_secs(2) }
    }
}

/// `wait`: for a connection, and for each piece of an answer.
fn config(wait: Duration) -> ConfigBuilder<AgentScope> {
    Agent::config_builder()
        .http_status_as_error(false)
        .timeout_resolve(Some(wait))
        .timeout_connect(Some(wait))
        .timeout_send_request(Some(wait))
        .timeout_recv_response(Some(wait))
        .timeout_per_read(Some(wait))
}

/// Why a try ended before the file was whole.
enum Ended {
    /// Another try may bring the rest.
    Again(anyhow::Error),
    /// Nothing will change.
    Never(anyhow::Error),
}

impl From<StoreError> for Ended {
    fn from(error: StoreError) -> Ended {
        Ended::Never(mendable(error))
    }
}

/// Fills `partial` from the publisher's server and returns the whole file's path. `show` is told how many
/// bytes there are.
pub fn download(
    client: &Client,
    weights: &Weights,
    mut partial: Partial,
    show: &mut dyn FnMut(u64),
) -> Result<PathBuf> {
    if partial.bytes() > weights.bytes {
        partial.restart().map_err(mendable)?;
    }
    let resumed = partial.bytes() > 0;
    // The furthest that any try came: a server without ranges that cuts at the same byte each time brings
    // nothing.
    let (mut furthest, mut fruitless) = (partial.bytes(), 0);
    while partial.bytes() < weights.bytes {
        let error = match attempt(&client.agent, weights, &mut partial, show) {
            Ok(()) => continue,
            Err(Ended::Never(error)) => return Err(error),
            Err(Ended::Again(error)) => error,
        };
        fruitless = if partial.bytes() >= furthest + BLOCK as u64 { 0 } else { fruitless + 1 };
        furthest = furthest.max(partial.bytes());
        if fruitless == FRUITLESS {
            let (bytes, all) = (partial.bytes(), weights.bytes);
            return Err(error.context(format!(
                "{}: {bytes} of {all} bytes came, and {FRUITLESS} tries in a row brought none; run it again to go on",
                weights.url
            )));
        }
        std::thread::sleep(client.pause);
    }
    partial.finish(weights.sha256).map_err(|error| match (&error, resumed) {
        (StoreError::Refused { .. }, true) => {
            refused(format!("{error}; it was begun earlier: run it again to take it from its beginning"))
        }
        _ => mendable(error),
    })
}

/// One request, and its answer up to its end.
fn attempt(
    agent: &Agent,
    weights: &Weights,
    partial: &mut Partial,
    show: &mut dyn FnMut(u64),
) -> Result<(), Ended> {
    let mut request = agent.get(&weights.url);
    if partial.bytes() > 0 {
        request = request.header("Range", format!("bytes={}-", partial.bytes()));
    }
    let answer = request.call().map_err(|error| match error {
        ureq::Error::BadUri(_) | ureq::Error::RequireHttpsOnly(_) | ureq::Error::TooManyRedirects => {
            Ended::Never(refused(format!("{}: {error}", weights.url)))
        }
        error => Ended::Again(error.into()),
    })?;
    let never = |what: String| Ended::Never(refused(format!("{}: {what}", weights.url)));
    match answer.status() {
        StatusCode::OK => partial.restart()?,
        StatusCode::PARTIAL_CONTENT => {
            let (first, all) =
                content_range(answer.headers()).ok_or_else(|| never("no Content-Range".into()))?;
            if first != partial.bytes() {
                return Err(never(format!("bytes from {first} came, not from {}", partial.bytes())));
            }
            if all.is_some_and(|all| all != weights.bytes) {
                return Err(never(format!("the file there has another size than {} bytes", weights.bytes)));
            }
        }
        StatusCode::RANGE_NOT_SATISFIABLE if partial.bytes() > 0 => {
            partial.restart()?;
            return Err(Ended::Again(anyhow::anyhow!("the server has no such range")));
        }
        status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            return Err(Ended::Again(anyhow::anyhow!("the server answers {status}")));
        }
        status => return Err(never(format!("the server answers {status}"))),
    }
    receive(answer, weights, partial, show)
}

/// Takes a body. Error: it ends early, or is longer than the file.
fn receive(
    answer: Response<ureq::Body>,
    weights: &Weights,
    partial: &mut Partial,
    show: &mut dyn FnMut(u64),
) -> Result<(), Ended> {
    let mut body = answer.into_body().into_reader();
    let mut block = vec![0; BLOCK];
    loop {
        let count = body.read(&mut block).context("receiving").map_err(Ended::Again)?;
        if count == 0 {
            break;
        }
        if partial.bytes() + count as u64 > weights.bytes {
            let more = format!("{}: more than {} bytes came", weights.url, weights.bytes);
            partial.restart()?;
            return Err(Ended::Never(refused(more)));
        }
        partial.append(&block[..count])?;
        show(partial.bytes());
    }
    match partial.bytes() == weights.bytes {
        true => Ok(()),
        false => Err(Ended::Again(anyhow::anyhow!("the connection was cut"))),
    }
}

/// First byte and whole size of `Content-Range: bytes FIRST-LAST/SIZE`; the size may be unknown.
fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let text = headers.get("Content-Range")?.to_str().ok()?.strip_prefix("bytes ")?;
    let (range, all) = text.split_once('/')?;
    let first = range.split_once('-')?.0.parse().ok()?;
    match all {
        "*" => Some((first, None)),
        all => Some((first, Some(all.parse().ok()?))),
    }
}

/// Manifests and files of the store are the user's to mend.
pub fn mendable(error: impl std::fmt::Display) -> anyhow::Error {
    refused(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Client {
        /// For the tests' server: without TLS, and without the proxy that the environment may name.
        pub fn of_tests(wait: Duration) -> Client {
            Client { agent: config(wait).proxy(None).build().into(), pause: Duration::ZERO }
        }
    }
}
