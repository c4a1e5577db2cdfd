//! Which port, GID and parameters a connection uses.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::ConnectError;
use crate::code::{Access, GidType, LinkLayer, Mtu, PortState};
use crate::{Context, Gid, GidEntry, InitAttributes, Qp};

/// How our GID is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum GidChoice {
    /// On Ethernet the first RoCE v2 entry with an IPv4 address; on InfiniBand none, the LID does.
    #[default]
    Auto,
    /// This entry of the table.
    Index(u32),
    /// The entry of this address, RoCE v2 if there are several.
    Ip(IpAddr),
}

/// What the user may say about a connection. The default suits one host and a small network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathOptions {
    /// Name of the device; without it the one with the chosen IP address, else the first.
    pub device: Option<String>,
    /// Port, counted from 1.
    pub port: u8,
    pub gid: GidChoice,
    /// Path MTU; without it the port's active one.
    pub mtu: Option<Mtu>,
    /// Service level, 0 to 15, on Ethernet 0 to 7.
    pub service_level: u8,
    /// Traffic class of GRH or IP header.
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// Acknowledgement timeout code, 0 to 31: 4.096 µs × 2^code, 0 for ever.
    pub timeout: u8,
    /// Retries after a timeout, 0 to 7.
    pub retry_count: u8,
    /// Retries after an RNR NAK, 0 to 7, 7 for ever.
    pub rnr_retry: u8,
    /// Code of the shortest RNR delay, 0 to 31; 12 is 0.64 ms.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding; the device's limit caps it.
    pub max_rd_atomic: u8,
}

impl Default for PathOptions {
    fn default() -> Self {
        Self {
            device: None,
            port: 1,
            gid: GidChoice::Auto,
            mtu: None,
            service_level: 0,
            traffic_class: 0,
            hop_limit: 64,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
        }
    }
}

impl PathOptions {
    fn check(&self) -> Result<(), ConnectError> {
        for (name, value, most, range) in [
            ("service level", self.service_level, 15, "0 to 15"),
            ("timeout", self.timeout, 31, "0 to 31"),
            ("retry count", self.retry_count, 7, "0 to 7"),
            ("RNR retry count", self.rnr_retry, 7, "0 to 7"),
            ("RNR timer", self.min_rnr_timer, 31, "0 to 31"),
        ] {
            if value > most {
                return Err(ConnectError::Range { name, value: value.into(), range });
            }
        }
        if self.port == 0 {
            return Err(ConnectError::Range { name: "port", value: 0, range: "ports count from 1" });
        }
        Ok(())
    }

    /// Opens the device, and finds port, GID and MTU.
    pub fn open(&self) -> Result<(Context, Path), ConnectError> {
        self.check()?;
        if let (None, GidChoice::Ip(ip)) = (&self.device, self.gid) {
            return self.open_by_ip(ip);
        }
        let context = crate::open(self.device.as_deref())?;
        let path = self.resolve(&context)?;
        Ok((context, path))
    }

    /// The first device whose port has this address.
    fn open_by_ip(&self, ip: IpAddr) -> Result<(Context, Path), ConnectError> {
        let devices = crate::devices()?;
        let mut looked_at = Vec::new();
        for device in devices.iter() {
            let context = device.open()?;
            if let Ok(path) = self.resolve(&context) {
                return Ok((context, path));
            }
            looked_at.push(context.name().to_string());
        }
        let looked_at = if looked_at.is_empty() { "there is none".into() } else { looked_at.join(", ") };
        Err(ConnectError::Path(format!(
            "no RDMA device has the address {ip} on port {} ({looked_at})",
            self.port
        )))
    }

    /// Finds port, GID and MTU of an open device.
    pub fn resolve(&self, context: &Context) -> Result<Path, ConnectError> {
        self.check()?;
        let name = context.name();
        let attributes = context.query_port(self.port)?;
        if attributes.state != PortState::Active {
            let (port, state) = (self.port, attributes.state);
            return Err(ConnectError::Path(format!("{name} port {port} is {state}, not active")));
        }
        if attributes.link_layer == LinkLayer::Ethernet && self.service_level > 7 {
            let value = self.service_level.into();
            return Err(ConnectError::Range { name: "service level", value, range: "0 to 7 on Ethernet" });
        }
        let mtu = self.mtu.unwrap_or(attributes.active_mtu);
        if mtu > attributes.active_mtu {
            let (wanted, active) = (mtu.bytes(), attributes.active_mtu.bytes());
            return Err(ConnectError::Path(format!(
                "MTU {wanted} is above the {active} of {name} port {}",
                self.port
            )));
        }
        let by_lid = attributes.link_layer == LinkLayer::InfiniBand && !attributes.grh_required;
        let gid = match self.gid {
            GidChoice::Auto if by_lid => None,
            choice => Some(choose(&context.gids(self.port)?, choice, &format!("{name} port {}", self.port))?),
        };
        let limit = u8::try_from(context.query_device()?.max_rd_atomic).unwrap_or(u8::MAX);
        Ok(Path {
            port: self.port,
            link_layer: attributes.link_layer,
            lid: attributes.lid,
            gid,
            mtu,
            max_rd_atomic: self.max_rd_atomic.min(limit),
            options: self.clone(),
        })
    }
}

/// Picks an entry of a GID table. The error lists what there is.
fn choose(table: &[GidEntry], choice: GidChoice, port_name: &str) -> Result<GidEntry, ConnectError> {
    let (found, wanted) = match choice {
        GidChoice::Auto => {
            let found =
                table.iter().find(|entry| entry.roce_v2_ipv4().is_some() || entry.kind == GidType::Ib);
            (found, "a RoCE v2 entry with an IPv4 address".to_string())
        }
        GidChoice::Index(index) => {
            (table.iter().find(|entry| entry.index == index), format!("entry {index}"))
        }
        GidChoice::Ip(ip) => {
            let wanted = Gid(match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            });
            let mut same: Vec<_> = table.iter().filter(|entry| entry.gid == wanted).collect();
            same.sort_by_key(|entry| entry.kind != GidType::RoceV2);
            (same.first().copied(), format!("the address {ip}"))
        }
    };
    found.copied().ok_or_else(|| {
        let entries: Vec<String> =
            table.iter().map(|entry| format!("{}: {} ({:?})", entry.index, entry.gid, entry.kind)).collect();
        let entries = if entries.is_empty() { "the table is empty".into() } else { entries.join(", ") };
        ConnectError::Path(format!("the GID table of {port_name} lacks {wanted}; {entries}"))
    })
}

/// A port with all that a connection needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Port, counted from 1.
    pub port: u8,
    pub link_layer: LinkLayer,
    /// Its LID, 0 on Ethernet.
    pub lid: u16,
    /// Our GID, if packets carry one.
    pub gid: Option<GidEntry>,
    pub mtu: Mtu,
    /// READs and atomics at a time, in each direction.
    pub max_rd_atomic: u8,
    pub(super) options: PathOptions,
}

impl Path {
    /// Kind and address family of our GID: both sides must have the same.
    pub(super) fn gid_kind(&self) -> String {
        let Some(entry) = self.gid else { return "none".into() };
        let kind = match entry.kind {
            GidType::Ib => return "ib".into(),
            GidType::RoceV1 => "roce-v1".to_string(),
            GidType::RoceV2 => "roce-v2".to_string(),
            GidType::Other(number) => format!("type-{number}"),
        };
        let family = if Ipv6Addr::from(entry.gid.0).to_ipv4_mapped().is_some() { "ipv4" } else { "ipv6" };
        format!("{kind}-{family}")
    }

    /// Brings a queue pair to INIT, where receives may be posted.
    pub fn to_init(&self, qp: &Qp, access: Access, qkey: u32) -> Result<(), ConnectError> {
        Ok(qp.to_init(&InitAttributes { port: self.port, pkey_index: 0, access, qkey })?)
    }

    /// A path that needs no device, for tests of the exchange.
    #[cfg(test)]
    pub(super) fn of_nothing(link_layer: LinkLayer, mtu: Mtu, gid: Option<GidEntry>) -> Self {
        Self { port: 1, link_layer, lid: 1, gid, mtu, max_rd_atomic: 4, options: PathOptions::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, gid: &str, kind: GidType) -> GidEntry {
        GidEntry { index, gid: Gid::try_from(gid.to_string()).unwrap(), kind }
    }

    #[test]
    fn the_gid_is_chosen_by_rule_index_or_address() {
        let table = [
            entry(0, "fe80::1", GidType::RoceV1),
            entry(1, "fe80::1", GidType::RoceV2),
            entry(2, "::ffff:10.0.0.2", GidType::RoceV1),
            entry(3, "::ffff:10.0.0.2", GidType::RoceV2),
            entry(4, "::ffff:10.0.0.3", GidType::RoceV2),
        ];
        let ip = |text: &str| GidChoice::Ip(text.parse().unwrap());
        for (choice, index) in [
            (GidChoice::Auto, 3),
            (GidChoice::Index(1), 1),
            (ip("10.0.0.2"), 3),
            (ip("10.0.0.3"), 4),
            (ip("fe80::1"), 1),
        ] {
            assert_eq!(choose(&table, choice, "mlx5_0 port 1").unwrap().index, index, "{choice:?}");
        }
        let error = choose(&table[..2], GidChoice::Auto, "mlx5_0 port 1").unwrap_err().to_string();
        assert_eq!(
            error,
            "the GID table of mlx5_0 port 1 lacks a RoCE v2 entry with an IPv4 address; 0: fe80::1 (RoceV1), 1: fe80::1 (RoceV2)"
        );
        let error = choose(&[], ip("10.0.0.9"), "mlx5_0 port 1").unwrap_err().to_string();
        assert_eq!(error, "the GID table of mlx5_0 port 1 lacks the address 10.0.0.9; the table is empty");
    }

    #[test]
    fn options_out_of_range_are_named() {
        let default = PathOptions::default;
        for (options, text) in [
            (PathOptions { timeout: 32, ..default() }, "timeout 32 is out of range: 0 to 31"),
            (PathOptions { retry_count: 8, ..default() }, "retry count 8 is out of range: 0 to 7"),
            (PathOptions { rnr_retry: 8, ..default() }, "RNR retry count 8 is out of range: 0 to 7"),
            (PathOptions { service_level: 16, ..default() }, "service level 16 is out of range: 0 to 15"),
            (PathOptions { min_rnr_timer: 32, ..default() }, "RNR timer 32 is out of range: 0 to 31"),
            (PathOptions { port: 0, ..default() }, "port 0 is out of range: ports count from 1"),
        ] {
            assert_eq!(options.check().unwrap_err().to_string(), text);
        }
        assert!(default().check().is_ok());
    }
}
