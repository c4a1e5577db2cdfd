//! Messages of the connection manager: MADs of class 7, one value each, private data borrowed.
//!
//! IBTA vol. 1 §12.6 (message formats) and, for connections named by IP addresses, Annex A11 (RDMA IP CM service).
//! Left out: LAP and APR (alternate paths) and the service's other messages that librdmacm never sends. Reserved fields are
//! written as zeroes and not looked at.

use super::bytes::{array, be16, be24, be32, be64, check, put, put24};
use super::mad::{BODY_BYTES, MAD_BYTES, MadHeader};
use super::{Gid, WireError};

mod req;

pub use req::{Path, Req};

/// Class of the connection manager.
pub const CLASS: u8 = 0x07;
pub const CLASS_VERSION: u8 = 2;
/// Method of all its messages.
pub const SEND: u8 = 0x03;

/// Attributes: which message it is.
pub mod attribute {
    pub const REQ: u16 = 0x10;
    pub const MRA: u16 = 0x11;
    pub const REJ: u16 = 0x12;
    pub const REP: u16 = 0x13;
    pub const RTU: u16 = 0x14;
    pub const DREQ: u16 = 0x15;
    pub const DREP: u16 = 0x16;
    pub const SIDR_REQ: u16 = 0x17;
    pub const SIDR_REP: u16 = 0x18;
}

/// Reasons of a REJ that our own code gives or looks at (IBTA vol. 1 §12.6.7.2).
pub mod reason {
    /// Time ran out.
    pub const TIMEOUT: u16 = 4;
    /// The service id has no listener.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// The connection is stale: from before a restart.
    pub const STALE_CONNECTION: u16 = 10;
    /// The path's GID or P_Key is not of the port that was asked.
    pub const INVALID_GID: u16 = 12;
    /// The program refused.
    pub const CONSUMER: u16 = 28;
}

/// The two communication ids of a message once both are known: the sender's, and the receiver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ids {
    /// The sender's.
    pub local: u32,
    /// The receiver's, 0 where it is not known.
    pub remote: u32,
}

/// Answer to a REQ: the other end's QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rep {
    pub ids: Ids,
    /// Q_Key, of datagram services.
    pub qkey: u32,
    /// QPN, 24 bits.
    pub qpn: u32,
    /// First PSN that the *asking* side sends with, 24 bits: each end names the one it will receive.
    pub starting_psn: u32,
    /// READs and atomics that it can hold.
    pub responder_resources: u8,
    /// READs and atomics that it will have outstanding.
    pub initiator_depth: u8,
    /// How long it takes to acknowledge, 5 bits: 4.096 us times 2 to this.
    pub target_ack_delay: u8,
    /// Whether the alternate path was taken over, 2 bits.
    pub failover_accepted: u8,
    /// Whether it counts credits.
    pub flow_control: bool,
    /// RNR retry count, 3 bits.
    pub rnr_retry: u8,
    /// Whether a shared receive queue takes its messages.
    pub srq: bool,
    /// GUID of its HCA.
    pub ca_guid: u64,
}

/// Refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rej {
    pub ids: Ids,
    /// What was refused, 2 bits: 0 REQ, 1 REP, 2 no message (a time-out).
    pub message: u8,
    /// [`reason`].
    pub reason: u16,
    /// Bytes of [`Rej::info`] that count, 7 bits.
    pub info_bytes: u8,
    /// Additional information, as the reason says.
    pub info: [u8; 72],
}

/// Answer to a SIDR_REQ: the QP of a datagram service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SidrRep {
    /// Request that it answers.
    pub request: u32,
    /// 0: valid; 1: no such service; 2: refused; 3: no QP.
    pub status: u8,
    /// Bytes of [`SidrRep::info`] that count.
    pub info_bytes: u8,
    /// QPN, 24 bits.
    pub qpn: u32,
    /// Service id.
    pub service: u64,
    /// Q_Key.
    pub qkey: u32,
    /// Additional information, as the status says.
    pub info: [u8; 72],
}

/// A message without its private data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Asks for a connection.
    Req(Req),
    /// Message received, the answer takes longer.
    Mra {
        ids: Ids,
        /// What was received, 2 bits: 0 REQ, 1 REP, 2 LAP.
        message: u8,
        /// How long the answer may take, 5 bits: 4.096 us times 2 to this.
        timeout: u8,
    },
    /// Refusal.
    Rej(Rej),
    /// Answer to a REQ.
    Rep(Rep),
    /// Ready to use: the connection stands.
    Rtu(Ids),
    /// Asks to end a connection.
    Dreq {
        ids: Ids,
        /// The receiver's QPN, 24 bits.
        qpn: u32,
    },
    /// Answer to a DREQ.
    Drep(Ids),
    /// Asks for the QP of a datagram service.
    SidrReq {
        request: u32,
        /// P_Key.
        pkey: u16,
        /// Service id.
        service: u64,
    },
    /// Answer to a SIDR_REQ.
    SidrRep(SidrRep),
}

impl Message {
    pub const fn attribute(&self) -> u16 {
        match self {
            Self::Req(_) => attribute::REQ,
            Self::Mra { .. } => attribute::MRA,
            Self::Rej(_) => attribute::REJ,
            Self::Rep(_) => attribute::REP,
            Self::Rtu(_) => attribute::RTU,
            Self::Dreq { .. } => attribute::DREQ,
            Self::Drep(_) => attribute::DREP,
            Self::SidrReq { .. } => attribute::SIDR_REQ,
            Self::SidrRep(_) => attribute::SIDR_REP,
        }
    }

    /// Where in the body its private data begins; it goes on to the body's end.
    pub const fn private_at(&self) -> usize {
        match self {
            Self::Req(_) => req::PRIVATE_AT,
            Self::Mra { .. } => 10,
            Self::Rej(_) => 84,
            Self::Rep(_) => 36,
            Self::Rtu(_) | Self::Drep(_) => 8,
            Self::Dreq { .. } => 12,
            Self::SidrReq { .. } => 16,
            Self::SidrRep(_) => 96,
        }
    }

    fn parse(attribute: u16, body: &[u8; BODY_BYTES]) -> Result<Self, WireError> {
        let ids = Ids { local: be32(body, 0), remote: be32(body, 4) };
        Ok(match attribute {
            attribute::REQ => Self::Req(Req::parse(body)),
            attribute::MRA => Self::Mra { ids, message: body[8] >> 6, timeout: body[9] >> 3 },
            attribute::REJ => Self::Rej(Rej {
                ids,
                message: body[8] >> 6,
                info_bytes: body[9] >> 1,
                reason: be16(body, 10),
                info: array(body, 12),
            }),
            attribute::REP => Self::Rep(Rep {
                ids,
                qkey: be32(body, 8),
                qpn: be24(body, 12),
                starting_psn: be24(body, 20),
                responder_resources: body[24],
                initiator_depth: body[25],
                target_ack_delay: body[26] >> 3,
                failover_accepted: body[26] >> 1 & 3,
                flow_control: body[26] & 1 != 0,
                rnr_retry: body[27] >> 5,
                srq: body[27] & 0x10 != 0,
                ca_guid: be64(body, 28),
            }),
            attribute::RTU => Self::Rtu(ids),
            attribute::DREQ => Self::Dreq { ids, qpn: be24(body, 8) },
            attribute::DREP => Self::Drep(ids),
            attribute::SIDR_REQ => {
                Self::SidrReq { request: be32(body, 0), pkey: be16(body, 4), service: be64(body, 8) }
            }
            attribute::SIDR_REP => Self::SidrRep(SidrRep {
                request: be32(body, 0),
                status: body[4],
                info_bytes: body[5],
                qpn: be24(body, 8),
                service: be64(body, 12),
                qkey: be32(body, 20),
                info: array(body, 24),
            }),
            attribute => return Err(WireError::UnknownAttribute { attribute }),
        })
    }

    fn emit(&self, body: &mut [u8; BODY_BYTES]) {
        let put_ids = |body: &mut [u8], ids: &Ids| {
            put(body, 0, ids.local.to_be_bytes());
            put(body, 4, ids.remote.to_be_bytes());
        };
        match self {
            Self::Req(req) => req.emit(body),
            Self::Mra { ids, message, timeout } => {
                put_ids(body, ids);
                put(body, 8, [message << 6, timeout << 3]);
            }
            Self::Rej(rej) => {
                put_ids(body, &rej.ids);
                put(body, 8, [rej.message << 6, rej.info_bytes << 1]);
                put(body, 10, rej.reason.to_be_bytes());
                put(body, 12, rej.info);
            }
            Self::Rep(rep) => {
                put_ids(body, &rep.ids);
                put(body, 8, rep.qkey.to_be_bytes());
                put24(body, 12, rep.qpn);
                put24(body, 20, rep.starting_psn);
                put(body, 24, [rep.responder_resources, rep.initiator_depth]);
                body[26] =
                    rep.target_ack_delay << 3 | (rep.failover_accepted & 3) << 1 | u8::from(rep.flow_control);
                body[27] = rep.rnr_retry << 5 | u8::from(rep.srq) << 4;
                put(body, 28, rep.ca_guid.to_be_bytes());
            }
            Self::Rtu(ids) | Self::Drep(ids) => put_ids(body, ids),
            Self::Dreq { ids, qpn } => {
                put_ids(body, ids);
                put24(body, 8, *qpn);
            }
            Self::SidrReq { request, pkey, service } => {
                put(body, 0, request.to_be_bytes());
                put(body, 4, pkey.to_be_bytes());
                put(body, 8, service.to_be_bytes());
            }
            Self::SidrRep(rep) => {
                put(body, 0, rep.request.to_be_bytes());
                put(body, 4, [rep.status, rep.info_bytes]);
                put24(body, 8, rep.qpn);
                put(body, 12, rep.service.to_be_bytes());
                put(body, 20, rep.qkey.to_be_bytes());
                put(body, 24, rep.info);
            }
        }
    }
}

/// A message with its transaction and private data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmMad<'a> {
    /// Transaction: an exchange has one, from its first message to its last.
    pub transaction: u64,
    pub message: Message,
    /// The programs' own bytes; as read it is the whole room for them, zeroes at its end included.
    pub private: &'a [u8],
}

impl<'a> CmMad<'a> {
    /// Reads a MAD. Errors: shorter than one; another class, version or method; a message that is not described here.
    pub fn decode(mad: &'a [u8]) -> Result<Self, WireError> {
        let header = MadHeader::parse(mad)?;
        let MadHeader { base_version, class, class_version, method, .. } = header;
        if (base_version, class, class_version, method) != (1, CLASS, CLASS_VERSION, SEND) {
            return Err(WireError::NotCm { base_version, class, class_version, method });
        }
        // `MadHeader::parse` has seen that there are so many.
        let body: &[u8; BODY_BYTES] = mad[MadHeader::BYTES..MAD_BYTES].try_into().expect("the rest of a MAD");
        let message = Message::parse(header.attribute, body)?;
        Ok(Self { transaction: header.transaction, message, private: &body[message.private_at()..] })
    }

    /// The 256 bytes. Error: more private data than there is room for.
    pub fn encode(&self) -> Result<[u8; MAD_BYTES], WireError> {
        let header = MadHeader {
            base_version: 1,
            class: CLASS,
            class_version: CLASS_VERSION,
            method: SEND,
            transaction: self.transaction,
            attribute: self.message.attribute(),
            ..MadHeader::default()
        };
        let mut body = [0; BODY_BYTES];
        self.message.emit(&mut body);
        let room = &mut body[self.message.private_at()..];
        let (have, limit) = (self.private.len(), room.len());
        let Some(room) = room.get_mut(..have) else {
            return Err(WireError::PrivateData { have, limit });
        };
        room.copy_from_slice(self.private);
        let mut mad = [0; MAD_BYTES];
        put(&mut mad, 0, header.emit());
        put(&mut mad, MadHeader::BYTES, body);
        Ok(mad)
    }
}

/// Service id of a port of IP: the fixed prefix, the protocol, the port (Annex A11).
pub const fn ip_service(protocol: u8, port: u16) -> u64 {
    1 << 24 | (protocol as u64) << 16 | port as u64
}

/// Protocol and port of a service id of IP, `None` for another's.
pub const fn ip_service_port(service: u64) -> Option<(u8, u16)> {
    if service >> 24 == 1 { Some(((service >> 16) as u8, service as u16)) } else { None }
}

/// Head of the private data of a REQ or SIDR_REQ for a service of IP: client and server, 36 bytes (Annex A11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpCm {
    /// Version of this header, major in the upper 4 bits: 0.
    pub version: u8,
    /// 4 or 6, 4 bits.
    pub ip_version: u8,
    /// Port that the asking program is bound to.
    pub source_port: u16,
    /// Address of the asking side; IPv4 is mapped in [`Gid`]'s way here and lies behind zeroes on the wire.
    pub source: Gid,
    /// Address of the side that is asked.
    pub destination: Gid,
}

impl IpCm {
    pub const BYTES: usize = 36;

    /// Reads 36 bytes. Errors: too few of them, an IP version but 4 and 6.
    pub fn parse(private: &[u8]) -> Result<Self, WireError> {
        check("an IP CM header", private, Self::BYTES)?;
        let ip_version = private[1] >> 4;
        let address = |at| match ip_version {
            4 => Gid::from_ipv4(array(private, at + 12)),
            _ => Gid(array(private, at)),
        };
        if !matches!(ip_version, 4 | 6) {
            return Err(WireError::IpVersion { version: ip_version });
        }
        Ok(Self {
            version: private[0],
            ip_version,
            source_port: be16(private, 2),
            source: address(4),
            destination: address(20),
        })
    }

    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0] = self.version;
        out[1] = self.ip_version << 4;
        put(&mut out, 2, self.source_port.to_be_bytes());
        for (at, gid) in [(4, &self.source), (20, &self.destination)] {
            match gid.ipv4().filter(|_| self.ip_version == 4) {
                Some(address) => put(&mut out, at + 12, address),
                None => put(&mut out, at, gid.0),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests;
