//! Messages of the connection manager: MADs of class 7, one value each, private data borrowed.
//!
//! IBTA vol. 1 §12.6 (message formats) and, for connections named by IP addresses, Annex A11 (RDMA IP CM
//! service). Left out: LAP and APR (alternate paths) and the service's messages that librdmacm never sends.
//! Reserved fields are written as zeroes and ignored when read.

use super::bytes::{Field, array, be16, check, fields, put};
use super::mad::{BODY_BYTES, MAD_BYTES, MadHeader};
use super::{Gid, WireError};

mod req;

pub use req::{Path, Req};

/// Class of the connection manager.
pub const CLASS: u8 = 0x07;
pub const CLASS_VERSION: u8 = 2;
/// Method of all its messages.
pub const SEND: u8 = 0x03;

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

fields! {
    /// The two communication ids of a message once both are known: the sender's, and the receiver's.
    #[derive(Default)]
    Ids(8) {
        /// The sender's.
        local: u32 = 0,
        /// The receiver's, 0 where it is not known.
        remote: u32 = 4,
    }
}

impl Ids {
    /// The same in an answer.
    pub const fn turned(self) -> Self {
        Self { local: self.remote, remote: self.local }
    }
}

fields! {
    /// Answer to a REQ: the other end's QP.
    #[derive(Default)]
    Rep(36) {
        ids: Ids = 0,
        /// Q_Key, of datagram services.
        qkey: u32 = 8,
        /// QPN, 24 bits.
        qpn: u32 = 12[0, 24],
        /// First PSN that the *asking* side sends with, 24 bits: each end names the one it will receive.
        starting_psn: u32 = 20[0, 24],
        /// READs and atomics that it can hold.
        responder_resources: u8 = 24,
        /// READs and atomics that it will have outstanding.
        initiator_depth: u8 = 25,
        /// How long it takes to acknowledge, 5 bits: 4.096 us times 2 to this.
        target_ack_delay: u8 = 26[3, 5],
        /// Whether the alternate path was taken over, 2 bits.
        failover_accepted: u8 = 26[1, 2],
        /// Whether it counts credits.
        flow_control: bool = 26[0, 1],
        /// RNR retry count, 3 bits.
        rnr_retry: u8 = 27[5, 3],
        /// Whether a shared receive queue takes its messages.
        srq: bool = 27[4, 1],
        /// GUID of its HCA.
        ca_guid: u64 = 28,
    }
}

fields! {
    /// Refusal.
    Rej(84) {
        ids: Ids = 0,
        /// What was refused, 2 bits: 0 REQ, 1 REP, 2 no message (a time-out).
        message: u8 = 8[6, 2],
        /// [`reason`].
        reason: u16 = 10,
        /// Bytes of [`Rej::info`] that count, 7 bits.
        info_bytes: u8 = 9[1, 7],
        /// Additional information, as the reason says.
        info: [u8; 72] = 12,
    }
}

fields! {
    /// Answer to a SIDR_REQ: the QP of a datagram service.
    SidrRep(96) {
        /// Request that it answers.
        request: u32 = 0,
        /// 0: valid; 1: no such service; 2: refused; 3: no QP.
        status: u8 = 4,
        /// Bytes of [`SidrRep::info`] that count.
        info_bytes: u8 = 5,
        /// QPN, 24 bits.
        qpn: u32 = 8[0, 24],
        /// Service id.
        service: u64 = 12,
        /// Q_Key.
        qkey: u32 = 20,
        /// Additional information, as the status says.
        info: [u8; 72] = 24,
    }
}

fields! {
    /// Message received, the answer takes longer.
    Mra(10) {
        ids: Ids = 0,
        /// What was received, 2 bits: 0 REQ, 1 REP, 2 LAP.
        message: u8 = 8[6, 2],
        /// How long the answer may take, 5 bits: 4.096 us times 2 to this.
        timeout: u8 = 9[3, 5],
    }
}

fields! {
    /// Asks to end a connection.
    Dreq(12) {
        ids: Ids = 0,
        /// The receiver's QPN, 24 bits.
        qpn: u32 = 8[0, 24],
    }
}

fields! {
    /// Asks for the QP of a datagram service.
    SidrReq(16) {
        request: u32 = 0,
        /// P_Key.
        pkey: u16 = 4,
        /// Service id.
        service: u64 = 8,
    }
}

/// Declares the messages: attribute and structure. Private data follows the structure in the body.
macro_rules! messages {
    ($($(#[$doc:meta])* $attribute:ident = $number:literal: $name:ident($type:ident),)*) => {
        /// Attributes: which message it is.
        pub mod attribute {
            $(pub const $attribute: u16 = $number;)*
        }

        /// A message without its private data.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Message {
            $($(#[$doc])* $name($type),)*
        }

        impl Message {
            pub const fn attribute(&self) -> u16 {
                match self { $(Self::$name(_) => $number,)* }
            }

            /// Where in the body its private data begins; it goes on to the body's end.
            pub const fn private_at(&self) -> usize {
                match self { $(Self::$name(_) => $type::BYTES,)* }
            }

            fn parse(attribute: u16, body: &[u8; BODY_BYTES]) -> Result<Self, WireError> {
                Ok(match attribute {
                    $($number => Self::$name($type::read(body, 0)),)*
                    attribute => return Err(WireError::UnknownAttribute { attribute }),
                })
            }

            fn emit(&self, body: &mut [u8; BODY_BYTES]) {
                match self { $(Self::$name(message) => message.write(body, 0),)* }
            }
        }
    };
}

messages! {
    REQ = 0x10: Req(Req),
    MRA = 0x11: Mra(Mra),
    REJ = 0x12: Rej(Rej),
    REP = 0x13: Rep(Rep),
    /// Ready to use: the connection stands.
    RTU = 0x14: Rtu(Ids),
    DREQ = 0x15: Dreq(Dreq),
    /// Answer to a DREQ.
    DREP = 0x16: Drep(Ids),
    SIDR_REQ = 0x17: SidrReq(SidrReq),
    SIDR_REP = 0x18: SidrRep(SidrRep),
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
    /// Reads a MAD. Errors: too short; another class, version or method; a message not described here.
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

/// Head of a REQ's or SIDR_REQ's private data for an IP service: client, server, 36 bytes (Annex A11).
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
