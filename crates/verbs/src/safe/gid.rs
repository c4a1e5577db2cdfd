//! GIDs: 128-bit addresses of ports.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A 128-bit port address: an IPv6 address by form, an IPv4 one when it maps it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IPv4 address that it maps (`::ffff:a.b.c.d`), if it does.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }
}

impl std::fmt::Display for Gid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl std::fmt::Debug for Gid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl From<Gid> for String {
    fn from(gid: Gid) -> Self {
        gid.to_string()
    }
}

impl TryFrom<String> for Gid {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        let address: Ipv6Addr = text.parse().map_err(|_| format!("{text:?} is no GID"))?;
        Ok(Self(address.octets()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_read_back_and_know_their_ipv4() {
        let gid = Gid::try_from("::ffff:10.0.0.2".to_string()).unwrap();
        assert_eq!(gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]);
        assert_eq!(gid.ipv4(), Some(Ipv4Addr::new(10, 0, 0, 2)));
        assert_eq!(gid.to_string(), "::ffff:10.0.0.2");
        assert_eq!(Gid::try_from("fe80::1".to_string()).unwrap().ipv4(), None);
        assert_eq!(Gid::try_from("ten".to_string()).unwrap_err(), "\"ten\" is no GID");
    }
}
