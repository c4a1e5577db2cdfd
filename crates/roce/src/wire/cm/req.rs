//! REQ: asks for a connection; the longest message of the connection manager, with two paths in it.
//!
//! IBTA vol. 1 §12.6.5. Left out: the EE contexts of reliable datagrams, written as 0.

use crate::wire::Gid;
use crate::wire::bytes::{array, be16, be24, be32, be64, put, put24};
use crate::wire::mad::BODY_BYTES;

/// Where the private data begins: 92 bytes of it.
pub(super) const PRIVATE_AT: usize = 140;

const PRIMARY_AT: usize = 52;
const ALTERNATE_AT: usize = 96;

/// A path as a REQ describes it, 44 bytes. RoCE has no LIDs: both are 0xffff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Path {
    /// LID of the asking side.
    pub local_lid: u16,
    /// LID of the side that is asked.
    pub remote_lid: u16,
    /// GID of the asking side.
    pub local_gid: Gid,
    /// GID of the side that is asked.
    pub remote_gid: Gid,
    /// Flow label, 20 bits; the UDP source port of the connection's packets, both ways, follows from it.
    pub flow_label: u32,
    /// Packet rate, 6 bits.
    pub rate: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Whether both ends are in one subnet.
    pub subnet_local: bool,
    /// ACK time-out, 5 bits: 4.096 us times 2 to this.
    pub ack_timeout: u8,
}

impl Path {
    const BYTES: usize = 44;

    fn parse(bytes: &[u8]) -> Self {
        let flow = be32(bytes, 36);
        Self {
            local_lid: be16(bytes, 0),
            remote_lid: be16(bytes, 2),
            local_gid: Gid(array(bytes, 4)),
            remote_gid: Gid(array(bytes, 20)),
            flow_label: flow >> 12,
            rate: flow as u8 & 0x3f,
            traffic_class: bytes[40],
            hop_limit: bytes[41],
            service_level: bytes[42] >> 4,
            subnet_local: bytes[42] & 8 != 0,
            ack_timeout: bytes[43] >> 3,
        }
    }

    fn emit(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let flow = self.flow_label << 12 | u32::from(self.rate & 0x3f);
        put(&mut out, 0, self.local_lid.to_be_bytes());
        put(&mut out, 2, self.remote_lid.to_be_bytes());
        put(&mut out, 4, self.local_gid.0);
        put(&mut out, 20, self.remote_gid.0);
        put(&mut out, 36, flow.to_be_bytes());
        put(&mut out, 40, [self.traffic_class, self.hop_limit]);
        put(
            &mut out,
            42,
            [self.service_level << 4 | u8::from(self.subnet_local) << 3, self.ack_timeout << 3],
        );
        out
    }
}

/// A connection request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Req {
    /// The sender's communication id.
    pub local_id: u32,
    /// Service id: what is to be connected to.
    pub service: u64,
    /// GUID of the sender's HCA.
    pub ca_guid: u64,
    /// Q_Key, of datagram services.
    pub qkey: u32,
    /// The sender's QPN, 24 bits.
    pub qpn: u32,
    /// READs and atomics that the sender can hold.
    pub responder_resources: u8,
    /// READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// How long the receiver may take to answer, 5 bits: 4.096 us times 2 to this.
    pub remote_response_timeout: u8,
    /// Service, 2 bits: 0 RC, 1 UC, 2 RD, 3 see `extended_transport`.
    pub transport: u8,
    /// Whether the sender counts credits.
    pub flow_control: bool,
    /// First PSN that the *receiver* sends with, 24 bits.
    pub starting_psn: u32,
    /// How long the sender may take to answer, 5 bits.
    pub local_response_timeout: u8,
    /// Retry count, 3 bits.
    pub retry: u8,
    /// P_Key.
    pub pkey: u16,
    /// Path MTU, 4 bits: 1 is 256 bytes, 5 is 4096.
    pub path_mtu: u8,
    /// Whether there is an RD context, 1 bit.
    pub rdc_exists: bool,
    /// RNR retry count, 3 bits.
    pub rnr_retry: u8,
    /// How often this message is sent again, 4 bits.
    pub max_cm_retries: u8,
    /// Whether a shared receive queue takes the sender's messages.
    pub srq: bool,
    /// More services, 3 bits: 1 XRC.
    pub extended_transport: u8,
    /// The path to use.
    pub primary: Path,
    /// Another, all zeroes for none.
    pub alternate: Path,
}

impl Req {
    pub(super) fn parse(body: &[u8; BODY_BYTES]) -> Self {
        Self {
            local_id: be32(body, 0),
            service: be64(body, 8),
            ca_guid: be64(body, 16),
            qkey: be32(body, 28),
            qpn: be24(body, 32),
            responder_resources: body[35],
            initiator_depth: body[39],
            remote_response_timeout: body[43] >> 3,
            transport: body[43] >> 1 & 3,
            flow_control: body[43] & 1 != 0,
            starting_psn: be24(body, 44),
            local_response_timeout: body[47] >> 3,
            retry: body[47] & 7,
            pkey: be16(body, 48),
            path_mtu: body[50] >> 4,
            rdc_exists: body[50] & 8 != 0,
            rnr_retry: body[50] & 7,
            max_cm_retries: body[51] >> 4,
            srq: body[51] & 8 != 0,
            extended_transport: body[51] & 7,
            primary: Path::parse(&body[PRIMARY_AT..]),
            alternate: Path::parse(&body[ALTERNATE_AT..]),
        }
    }

    pub(super) fn emit(&self, body: &mut [u8; BODY_BYTES]) {
        put(body, 0, self.local_id.to_be_bytes());
        put(body, 8, self.service.to_be_bytes());
        put(body, 16, self.ca_guid.to_be_bytes());
        put(body, 28, self.qkey.to_be_bytes());
        put24(body, 32, self.qpn);
        body[35] = self.responder_resources;
        body[39] = self.initiator_depth;
        body[43] =
            self.remote_response_timeout << 3 | (self.transport & 3) << 1 | u8::from(self.flow_control);
        put24(body, 44, self.starting_psn);
        body[47] = self.local_response_timeout << 3 | self.retry & 7;
        put(body, 48, self.pkey.to_be_bytes());
        body[50] = self.path_mtu << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry & 7;
        body[51] = self.max_cm_retries << 4 | u8::from(self.srq) << 3 | self.extended_transport & 7;
        put(body, PRIMARY_AT, self.primary.emit());
        put(body, ALTERNATE_AT, self.alternate.emit());
    }
}
