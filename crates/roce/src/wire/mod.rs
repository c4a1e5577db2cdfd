//! RoCEv2 packets as bytes: headers as they lie on a wire, read and written without state.
//!
//! Follows IBTA vol. 1 chapter 5 (packet formats) and §9.2-9.3 (BTH, extended headers) as public sources give
//! them, Annex A17 (RoCEv2 over UDP), RFC 791, 768 and 8200. Golden bytes are from captures of Linux 6.1's
//! `rdma_rxe` (`crates/roce/tests/data`), or named otherwise. Multi-byte fields are big-endian but the ICRC.
//!
//! The connection manager's datagrams are payload of UD packets: [`cm`].
//!
//! Left out: Ethernet and VLAN tags, IPv4 options and IPv6 extension headers (RoCEv2 sends none), the opcodes
//! of RD, XRC and congestion notification, flush and atomic write of IBTA 1.5.
//! Imports nothing from its siblings (INV-1); the engine above it decides what a well-formed packet means.

pub mod aeth;
pub mod atomic;
pub mod bth;
mod bytes;
pub mod cm;
pub mod deth;
mod error;
pub mod icrc;
pub mod immediate;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod mad;
pub mod opcode;
pub mod packet;
pub mod psn;
pub mod reth;
pub mod udp;

pub use aeth::{Aeth, Syndrome};
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::Bth;
pub use deth::Deth;
pub use error::WireError;
pub use immediate::{Ieth, ImmDt};
pub use ip::IpHeader;
pub use ipv4::Ipv4;
pub use ipv6::{Gid, Ipv6, gid_of, ip_of};
pub use opcode::{Operation, PacketKind, PacketOpcode, Position, Service};
pub use packet::{Extended, HeaderSet, MAX_PAYLOAD_BYTES, Packet};
pub use psn::Psn;
pub use reth::Reth;
pub use udp::Udp;
