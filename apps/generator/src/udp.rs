//! A ping-pong of 8 bytes between two UDP sockets, both polled: what the kernel's network alone costs.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

/// How long the answering side waits for a first message, and how long after the last one it goes on.
const PATIENCE: Duration = Duration::from_secs(20);
const QUIET: Duration = Duration::from_secs(1);
/// A message that is not answered by then is lost, and sent again.
const LOST: Duration = Duration::from_millis(50);
/// Timeout of the first answer, in any measurement: the other process may be without a core.
const FIRST: Duration = Duration::from_secs(5);

/// Answers every message, until there are no more.
pub fn answer(at: SocketAddr, json: Option<&Path>) -> Result<()> {
    let socket = UdpSocket::bind(at).with_context(|| format!("listening on {at}"))?;
    socket.set_nonblocking(true).context("polling a socket")?;
    cli::emit_listening(json, socket.local_addr().unwrap_or(at))?;
    let mut last = Instant::now() + PATIENCE;
    let mut bytes = [0; 64];
    while last.checked_duration_since(Instant::now()).is_some() || last.elapsed() < QUIET {
        match socket.recv_from(&mut bytes) {
            Ok((count, from)) => {
                socket.send_to(&bytes[..count], from).with_context(|| format!("answering {from}"))?;
                last = Instant::now();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error).context("receiving"),
        }
    }
    Ok(())
}

/// Half round trips in ns, for about so long, or until the first one.
pub fn ping(to: SocketAddr, time: Duration) -> Result<Vec<u64>> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0)).context("opening a socket")?;
    socket.connect(to).with_context(|| format!("connecting to {to}"))?;
    socket.set_nonblocking(true).context("polling a socket")?;
    let begun = Instant::now();
    let mut samples = Vec::new();
    let mut number = 0u64;
    while begun.elapsed() < time || samples.is_empty() && begun.elapsed() < FIRST {
        number += 1;
        let sent = Instant::now();
        socket.send(&number.to_ne_bytes()).with_context(|| format!("sending to {to}"))?;
        while sent.elapsed() < LOST {
            let mut bytes = [0; 8];
            match socket.recv(&mut bytes) {
                Ok(8) if u64::from_ne_bytes(bytes) == number => {
                    samples.push(sent.elapsed().as_nanos() as u64 / 2);
                    break;
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error).context("receiving; is somebody listening there?"),
            }
        }
    }
    ensure!(!samples.is_empty(), "nothing came back");
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_comes_back_and_nobody_there_is_said() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = ping(free, Duration::from_millis(20)).unwrap_err();
        assert!(
            format!("{error:#}").contains("is somebody listening")
                || error.to_string().contains("nothing came")
        );
        let server = std::thread::spawn(move || answer(free, None));
        // The server's thread may not have begun.
        let begun = Instant::now();
        let samples = loop {
            match ping(free, Duration::from_millis(50)) {
                Ok(samples) => break samples,
                Err(error) if begun.elapsed() > PATIENCE => panic!("{error:#}"),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        assert!(samples.iter().all(|ns| *ns > 0));
        server.join().unwrap().unwrap();
    }
}
