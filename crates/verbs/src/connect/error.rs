//! Why two processes do not come together.

use std::io;
use std::net::SocketAddr;

use super::{PROTOCOL, VERSION};
use crate::code::{LinkLayer, Mtu};

/// Why two processes did not come together.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Verbs(#[from] crate::Error),
    #[error("{name} {value} is out of range: {range}")]
    Range { name: &'static str, value: u32, range: &'static str },
    /// Device, port or GID that is not there or cannot be used.
    #[error("{0}")]
    Path(String),
    #[error("{what}: {source}")]
    Socket { what: String, source: io::Error },
    #[error("{what}: nothing within {seconds:.1} s")]
    Deadline { what: String, seconds: f64 },
    #[error("{what}: stopped")]
    Stopped { what: String },
    #[error("{peer} closed the connection while it was waited for {what}")]
    Closed { peer: SocketAddr, what: &'static str },
    #[error("{peer} is not one of ours: expected one JSON line of protocol {PROTOCOL:?}, got {start:?}")]
    Stranger { peer: SocketAddr, start: String },
    #[error(
        "{peer} speaks version {theirs} of the connection protocol, this program version {VERSION}: use the same build"
    )]
    Version { peer: SocketAddr, theirs: u64 },
    #[error("{peer} sent {what} that cannot be read: {reason}")]
    Malformed { peer: SocketAddr, what: &'static str, reason: String },
    #[error("link layers differ: {ours} here, {theirs} at {peer}")]
    LinkLayer { peer: SocketAddr, ours: LinkLayer, theirs: LinkLayer },
    #[error("MTUs differ: {} bytes here, {} at {peer}; give both sides the smaller one", ours.bytes(), theirs.bytes())]
    Mtu { peer: SocketAddr, ours: Mtu, theirs: Mtu },
    /// Different kinds of GIDs, or one that is needed and missing.
    #[error("GIDs do not go together: {ours} here, {theirs} at {peer}; choose entries of the same kind")]
    Gid { peer: SocketAddr, ours: String, theirs: String },
    #[error("the sides want different things: {ours} here, {theirs} at {peer}")]
    Request { peer: SocketAddr, ours: String, theirs: String },
}
