//! Loopback IPv4 addresses, each for one test at a time: a software NIC takes a whole one, as a card does.
//!
//! A UDP socket on an otherwise unused port marks an address as taken, for the whole network namespace.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

/// The port of the marks.
const MARK: u16 = 47_910;

/// An address that is this test's until it is dropped.
#[derive(Debug)]
pub struct Loopback {
    address: Ipv4Addr,
    _mark: UdpSocket,
}

impl Loopback {
    /// One of 127.16.0.0/12 that no other test has.
    pub fn unused() -> Self {
        let first = std::process::id() << 4;
        let mut candidates =
            (0..1 << 20).map(|i| Ipv4Addr::from(0x7f10_0000 | first.wrapping_add(i) & 0xf_ffff));
        candidates.find_map(Self::take).expect("one of a million addresses")
    }

    /// A certain address, waited for until other tests are done with it. Error: they are not within `limit`.
    pub fn certain(address: Ipv4Addr, limit: Duration) -> Result<Self, String> {
        let begun = Instant::now();
        loop {
            match Self::take(address) {
                Some(taken) => return Ok(taken),
                None if begun.elapsed() > limit => return Err(format!("{address} is taken for {limit:?}")),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn take(address: Ipv4Addr) -> Option<Self> {
        Some(Self { address, _mark: UdpSocket::bind((address, MARK)).ok()? })
    }

    /// The address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_tests_until_it_is_dropped() {
        let [one, other] = [Loopback::unused(), Loopback::unused()];
        assert_ne!(one.address(), other.address());
        assert!(one.address().is_loopback());
        let address = one.address();
        let late = Loopback::certain(address, Duration::from_millis(50)).unwrap_err();
        assert!(late.contains(&address.to_string()), "{late}");
        std::thread::scope(|scope| {
            let waits =
                scope.spawn(|| Loopback::certain(address, Duration::from_secs(60)).unwrap().address());
            drop(one);
            assert_eq!(waits.join().unwrap(), address);
        });
    }
}
