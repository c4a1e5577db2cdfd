//! REQ: asks for a connection; the longest message of the connection manager, with two paths in it.
//!
//! IBTA vol. 1 §12.6.5. Left out: the EE contexts of reliable datagrams, written as 0.

use crate::wire::Gid;
use crate::wire::bytes::fields;

fields! {
    /// A path as a REQ describes it, 44 bytes. RoCE has no LIDs: both are 0xffff.
    #[derive(Default)]
    Path(44) {
        /// LID of the asking side.
        local_lid: u16 = 0,
        /// LID of the side that is asked.
        remote_lid: u16 = 2,
        /// GID of the asking side.
        local_gid: Gid = 4,
        /// GID of the side that is asked.
        remote_gid: Gid = 20,
        /// Flow label, 20 bits; the UDP source port of the connection's packets, both ways, follows from it.
        flow_label: u32 = 36[12, 20],
        /// Packet rate, 6 bits.
        rate: u8 = 39[0, 6],
        traffic_class: u8 = 40,
        hop_limit: u8 = 41,
        /// Service level, 4 bits.
        service_level: u8 = 42[4, 4],
        /// Whether both ends are in one subnet.
        subnet_local: bool = 42[3, 1],
        /// ACK time-out, 5 bits: 4.096 us times 2 to this.
        ack_timeout: u8 = 43[3, 5],
    }
}

fields! {
    /// A connection request.
    #[derive(Default)]
    Req(140) {
        /// The sender's communication id.
        local_id: u32 = 0,
        /// Service id: what is to be connected to.
        service: u64 = 8,
        /// GUID of the sender's HCA.
        ca_guid: u64 = 16,
        /// Q_Key, of datagram services.
        qkey: u32 = 28,
        /// The sender's QPN, 24 bits.
        qpn: u32 = 32[0, 24],
        /// READs and atomics that the sender can hold.
        responder_resources: u8 = 35,
        /// READs and atomics that the sender will have outstanding.
        initiator_depth: u8 = 39,
        /// How long the receiver may take to answer, 5 bits: 4.096 us times 2 to this.
        remote_response_timeout: u8 = 43[3, 5],
        /// Service, 2 bits: 0 RC, 1 UC, 2 RD, 3 see `extended_transport`.
        transport: u8 = 43[1, 2],
        /// Whether the sender counts credits.
        flow_control: bool = 43[0, 1],
        /// First PSN that the *receiver* sends with, 24 bits.
        starting_psn: u32 = 44[0, 24],
        /// How long the sender may take to answer, 5 bits.
        local_response_timeout: u8 = 47[3, 5],
        /// Retry count, 3 bits.
        retry: u8 = 47[0, 3],
        /// P_Key.
        pkey: u16 = 48,
        /// Path MTU, 4 bits: 1 is 256 bytes, 5 is 4096.
        path_mtu: u8 = 50[4, 4],
        /// Whether there is an RD context, 1 bit.
        rdc_exists: bool = 50[3, 1],
        /// RNR retry count, 3 bits.
        rnr_retry: u8 = 50[0, 3],
        /// How often this message is sent again, 4 bits.
        max_cm_retries: u8 = 51[4, 4],
        /// Whether a shared receive queue takes the sender's messages.
        srq: bool = 51[3, 1],
        /// More services, 3 bits: 1 XRC.
        extended_transport: u8 = 51[0, 3],
        /// The path to use.
        primary: Path = 52,
        /// Another, all zeroes for none.
        alternate: Path = 96,
    }
}
