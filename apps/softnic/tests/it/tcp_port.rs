//! TCP ports of the programs' own set-up exchange: one for each pair, and when a server has begun to listen.
//!
//! A probing connection would be taken for the client, so the kernel's socket tables are read instead (Linux
//! `Documentation/networking/proc_net_tcp.rst`).

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Ports tried: below the range that the kernel hands out by itself (`ip_local_port_range`).
const RANGE: std::ops::Range<u16> = 18_000..31_000;
/// `TCP_LISTEN` of the kernel's `tcp_states.h`, as the table prints it.
const LISTEN: &str = "0A";

/// A port that nobody listens on and that no other test of this process gets.
pub fn unused() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test binaries that run at the same time start at different places.
    let start = (std::process::id() * 97 % u32::from(RANGE.end - RANGE.start)) as u16;
    for _ in RANGE {
        let offset = (start + NEXT.fetch_add(1, Ordering::Relaxed)) % (RANGE.end - RANGE.start);
        let port = RANGE.start + offset;
        // Both families: perftest and the pingpongs listen on the wildcard of either.
        if TcpListener::bind(("0.0.0.0", port)).is_ok() && TcpListener::bind(("::", port)).is_ok() {
            return port;
        }
    }
    panic!("no unused TCP port in {RANGE:?}");
}

/// Whether some process of the network namespace that process `pid` is in listens on `port`.
pub fn is_listening(pid: u32, port: u16) -> bool {
    ["tcp", "tcp6"]
        .map(|table| format!("/proc/{pid}/net/{table}"))
        .iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .any(|table| lists_listener(&table, port))
}

fn lists_listener(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next(), fields.nth(1));
        let local_port = local.and_then(|local| local.rsplit(':').next());
        state == Some(LISTEN) && local_port.and_then(|port| u16::from_str_radix(port, 16).ok()) == Some(port)
    })
}

#[test]
fn a_listener_is_seen_without_connecting_to_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    assert!(is_listening(std::process::id(), port));
    drop(listener);
    assert!(!is_listening(std::process::id(), port));
}
