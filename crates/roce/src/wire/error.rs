//! Why bytes are not the packet that they were taken for.

use super::HeaderSet;

/// Why bytes are not the expected packet, or a packet cannot be written. One variant a cause, so that each
/// drop has its own counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("{what} needs {need} bytes, got {have}")]
    Truncated {
        /// Header that was to be read or written.
        what: &'static str,
        need: usize,
        have: usize,
    },
    #[error("IP version {version} where there is 4 or 6")]
    IpVersion { version: u8 },
    #[error("BTH opcode {opcode:#04x} is none of RC, UC or UD")]
    UnknownOpcode { opcode: u8 },
    #[error("BTH version {version} where 0 is the only one")]
    TransportVersion { version: u8 },
    #[error("a packet of {bytes} bytes from its BTH on, which is no multiple of 4")]
    Misaligned { bytes: usize },
    #[error("{pad} bytes of padding where {have} bytes lie behind the headers")]
    Pad { pad: u8, have: usize },
    /// Payload on a packet that has none: a READ request, an atomic, an acknowledgement.
    #[error("{bytes} bytes of payload behind opcode {opcode:#04x}, which carries none")]
    UnexpectedPayload { opcode: u8, bytes: usize },
    #[error("{bytes} bytes of payload, one packet has at most 4096")]
    Oversized { bytes: usize },
    /// To be written: extended headers that the opcode does not have.
    #[error("opcode {opcode:#04x} has the headers {wants:?}, not {has:?}")]
    HeadersDisagree { opcode: u8, wants: HeaderSet, has: HeaderSet },
    /// The invariant CRC is wrong: the packet was changed on its way, or its sender computes it wrongly.
    #[error("ICRC {found:#010x}, the packet's is {computed:#010x}")]
    Icrc { found: u32, computed: u32 },
    #[error("ICRC {found:#010x} is explained by no identification ({with_zero:#010x} would be that of 0)")]
    IcrcUnexplained {
        found: u32,
        /// What it should be if the identification were 0.
        with_zero: u32,
    },
    /// A MAD that is not the connection manager's, or of a version that nobody has.
    #[error(
        "a MAD of base version {base_version}, class {class:#04x} version {class_version}, method {method:#04x}; the \
         connection manager's are 1, 0x07 version 2, 0x03"
    )]
    NotCm { base_version: u8, class: u8, class_version: u8, method: u8 },
    /// A message of the connection manager that is not described here.
    #[error("connection manager attribute {attribute:#06x} is not described here")]
    UnknownAttribute { attribute: u16 },
    /// To be written: more private data than the message has room for.
    #[error("{have} bytes of private data, the message has room for {limit}")]
    PrivateData { have: usize, limit: usize },
}
