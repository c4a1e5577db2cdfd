//! ICRC: the CRC-32 of a packet with everything that routers change taken as ones; its last 4 bytes.
//!
//! Annex A17 (RoCEv2, «ICRC»): over 8 bytes of ones (where InfiniBand has its LRH), then the IP header with
//! type of service, time to live and header checksum (IPv6: traffic class, flow label, hop limit) as ones,
//! the UDP header with its checksum as ones, the BTH with the byte of FECN and BECN as ones, then extended
//! headers, payload and padding as they are. The polynomial is Ethernet's (`crc32fast`); the result is stored
//! least significant byte first. All 643 packets of the captures agree.
//!
//! The ICRC covers the IPv4 identification, which a UDP socket hides: [`check_any_identification`].

use super::bytes;
use super::{Bth, IpHeader, Ipv4, Ipv6, Udp, WireError};

pub const ICRC_BYTES: usize = 4;

/// Offset, in the BTH, of the byte that routers may change.
const CONGESTION: usize = 4;
const LRH_BYTES: usize = 8;
const HEAD_BYTES: usize = LRH_BYTES + Ipv6::BYTES + Udp::BYTES + Bth::BYTES;

/// The ICRC of a datagram whose UDP payload, without the ICRC, is `transport`. Both length fields must be
/// those of the packet. Error: too short for a BTH.
pub fn compute(ip: &IpHeader, udp: &Udp, transport: &[u8]) -> Result<u32, WireError> {
    bytes::check("a BTH", transport, Bth::BYTES)?;
    let (bth, rest) = transport.split_at(Bth::BYTES);
    // In one piece, since a CRC library is slow on short ones.
    let mut head = [0xff; HEAD_BYTES];
    let mut end = LRH_BYTES;
    let mut append = |bytes: &[u8]| {
        head[end..end + bytes.len()].copy_from_slice(bytes);
        end += bytes.len();
    };
    match ip {
        IpHeader::V4(header) => append(&header.masked()),
        IpHeader::V6(header) => append(&header.masked()),
    }
    append(&udp.masked());
    append(bth);
    head[end - Bth::BYTES + CONGESTION] = 0xff;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head[..end]);
    crc.update(rest);
    Ok(crc.finalize())
}

/// Splits a UDP payload into the transport's part and the ICRC behind it.
pub fn split(udp_payload: &[u8]) -> Result<(&[u8], u32), WireError> {
    let have = udp_payload.len();
    let Some((transport, icrc)) = udp_payload.split_last_chunk::<ICRC_BYTES>() else {
        return Err(WireError::Truncated { what: "an ICRC", need: ICRC_BYTES, have });
    };
    Ok((transport, u32::from_le_bytes(*icrc)))
}

/// The bytes in which a CRC is stored.
pub const fn stored(icrc: u32) -> [u8; ICRC_BYTES] {
    icrc.to_le_bytes()
}

/// Checks a datagram with all headers known: over IPv6, or from a raw socket.
pub fn check(ip: &IpHeader, udp: &Udp, udp_payload: &[u8]) -> Result<(), WireError> {
    let (transport, found) = split(udp_payload)?;
    let computed = compute(ip, udp, transport)?;
    if found == computed { Ok(()) } else { Err(WireError::Icrc { found, computed }) }
}

/// Checks a datagram from a UDP socket over IPv4, which hides the identification: accepts what some
/// identification explains, and returns it. `ip` is what the socket knows (addresses, length; DF as given).
///
/// A CRC is linear: what the 16 bits add to it depends only on them and on the number of bytes behind. So the
/// one identification that explains the difference is computed: two multiplications modulo the polynomial.
///
/// **Weakness.** 2^16 of the 2^32 values are accepted: a random change passes once in 65 536 times, in the
/// whole check once in 2^32. One flipped bit never passes (the nearest that would lies 26 766 bytes behind
/// the identification, beyond any path MTU), but of several some do. Over Ethernet, whose FCS finds the same
/// errors on each hop, this is a second check. A NIC that cannot accept it uses [`check`] (IPv6, raw socket).
pub fn check_any_identification(ip: &Ipv4, udp: &Udp, udp_payload: &[u8]) -> Result<u16, WireError> {
    let (transport, found) = split(udp_payload)?;
    let with_zero = compute(&IpHeader::V4(Ipv4 { identification: 0, ..*ip }), udp, transport)?;
    let behind = bytes_behind_identification(transport.len());
    identification_of(found ^ with_zero, behind).ok_or(WireError::IcrcUnexplained { found, with_zero })
}

fn bytes_behind_identification(transport_bytes: usize) -> usize {
    Ipv4::BYTES - 6 + Udp::BYTES + transport_bytes
}

/// The identification whose effect on the CRC is `difference`, with `behind` (below 2^16) bytes behind it.
fn identification_of(difference: u32, behind: usize) -> Option<u16> {
    let steps = behind + 2;
    let low = multiply(difference, UNDO_BYTES[steps & 0xff]);
    let word = multiply(low, UNDO_256_BYTES[steps >> 8 & 0xff]);
    u16::try_from(word).ok().map(u16::swap_bytes)
}

// Arithmetic modulo the CRC's polynomial. Bits are mirrored, as in all of this CRC: bit 31 is the coefficient
// of 1, bit 0 that of x^31.

const POLYNOMIAL: u32 = 0xedb8_8320;
const ONE: u32 = 1 << 31;
/// x^-8n, for n below 256.
const UNDO_BYTES: &[u32; 256] = &powers_of(undo_byte(ONE));
/// x^-(8 * 256n), for n below 256.
const UNDO_256_BYTES: &[u32; 256] = &{
    let one_less = UNDO_BYTES[255];
    powers_of(undo_byte(one_less))
};

/// `a` divided by x.
const fn undo_bit(a: u32) -> u32 {
    // Whether the polynomial was added to make `a`: it has the upper bit, which a shifted value lacks.
    if a & ONE != 0 { (a ^ POLYNOMIAL) << 1 | 1 } else { a << 1 }
}

const fn undo_byte(mut a: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        a = undo_bit(a);
        bit += 1;
    }
    a
}

const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        // Without branches, which random bits would mislead half of the time.
        product ^= b & (a << bit >> 31).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
        bit += 1;
    }
    product
}

const fn powers_of(base: u32) -> [u32; 256] {
    let mut powers = [ONE; 256];
    let mut n = 1;
    while n < 256 {
        powers[n] = multiply(powers[n - 1], base);
        n += 1;
    }
    powers
}

#[cfg(test)]
mod tests;
