//! Bytes that a message takes on a RoCEv2 wire, counted as a switch port counts them.
//!
//! Frame: Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4 (IBTA vol. 1 §5 and Annex A17; IEEE 802.3 §3). A
//! WRITE's first packet carries a RETH of 16; the last of an operation with immediate, its 4 bytes. Preamble
//! and gap (20 bytes a frame) are left out, as in port counters; ACKs go the other way.

use crate::plan::Op;

const FRAME_BYTES: u64 = 14 + 20 + 8 + 12 + 4 + 4;
const RETH_BYTES: u64 = 16;
const IMMEDIATE_BYTES: u64 = 4;

/// Wire bytes of one message of `payload_bytes`, cut into packets of at most `mtu_bytes`.
pub fn bytes_per_message(op: Op, payload_bytes: u64, mtu_bytes: u64) -> u64 {
    let packets = payload_bytes.div_ceil(mtu_bytes).max(1);
    let extra = match op {
        Op::Write => RETH_BYTES,
        Op::WriteImm => RETH_BYTES + IMMEDIATE_BYTES,
        Op::Send => 0,
    };
    payload_bytes + packets * FRAME_BYTES + extra
}

pub fn gbps(bytes: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes * 8.0 / seconds / 1e9 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published model, for WRITE with immediate at an MTU of 4096 (paper, derived from Figure 4):
    /// payload + 82 for one packet, payload + 78 + 66 + 62 (n − 2) for n.
    #[test]
    fn write_with_immediate_meets_the_published_model() {
        for (payload, wire) in [
            (1000, 1082),
            (4096, 4096 + 82),
            (4097, 4097 + 78 + 66),
            (12288, 12288 + 78 + 66 + 62),
            (80_000, 80_000 + 78 + 66 + 62 * 18),
        ] {
            assert_eq!(bytes_per_message(Op::WriteImm, payload, 4096), wire, "{payload}");
        }
    }

    #[test]
    fn a_message_without_payload_still_takes_a_frame() {
        assert_eq!(bytes_per_message(Op::Send, 0, 1024), 62);
        assert_eq!(bytes_per_message(Op::Write, 0, 1024), 78);
    }

    #[test]
    fn nothing_in_no_time_is_no_rate() {
        assert_eq!(gbps(0.0, 0.0), 0.0);
        assert!((gbps(125e6, 1.0) - 1.0).abs() < 1e-12);
    }
}
