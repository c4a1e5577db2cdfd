//! Opcodes of the BTH: service, operation, position in its message, and which headers follow, in one table.
//!
//! IBTA vol. 1 §9.2.1, table «OpCode field»: the upper three bits name the service, the lower five the
//! packet. The numbers are also in Linux's `include/rdma/ib_pack.h`. Left out: see [the module](super).

use super::{HeaderSet, WireError};

/// Service of a QP and of its packets: the upper three bits of their opcodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 3,
}

impl Service {
    /// The services described here.
    pub const ALL: [Service; 3] = [Service::Rc, Service::Uc, Service::Ud];
}

/// What the message that a packet belongs to does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    Send,
    Write,
    ReadRequest,
    ReadResponse,
    /// ACK, NAK or RNR NAK.
    Acknowledge,
    /// Response of an atomic.
    AtomicAcknowledge,
    CompareSwap,
    FetchAdd,
}

/// Which packet of its message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether a message begins here.
    pub const fn starts(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Whether a message ends here.
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

/// Declares the kinds of packet with their five bits and what the table says of each.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal: $operation:ident, $position:ident, $headers:ident;)*) => {
        /// A packet regardless of its service: the lower five bits of its opcode.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum PacketKind { $($(#[$doc])* $name = $code,)* }

        impl PacketKind {
            /// Every kind, in the order of its number.
            pub const ALL: &[PacketKind] = &[$(PacketKind::$name,)*];

            /// The kind with these five bits, if there is one.
            #[inline]
            pub const fn from_bits(bits: u8) -> Option<Self> {
                match bits { $($code => Some(Self::$name),)* _ => None }
            }

            /// What its message does.
            #[inline]
            pub const fn operation(self) -> Operation {
                match self { $(Self::$name => Operation::$operation,)* }
            }

            /// Where in its message it stands.
            #[inline]
            pub const fn position(self) -> Position {
                match self { $(Self::$name => Position::$position,)* }
            }

            /// Packet of a connected service with these headers; `None` if none exists (invalidating WRITE).
            pub const fn of(does: Operation, stands: Position, headers: HeaderSet) -> Option<Self> {
                match (does, stands, headers) {
                    $((Operation::$operation, Position::$position, HeaderSet::$headers) => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Extended headers on a connected service; UD puts a DETH before them.
            const fn connected_headers(self) -> HeaderSet {
                match self { $(Self::$name => HeaderSet::$headers,)* }
            }
        }
    };
}

kinds! {
    SendFirst = 0x00: Send, First, Nothing;
    SendMiddle = 0x01: Send, Middle, Nothing;
    SendLast = 0x02: Send, Last, Nothing;
    SendLastImm = 0x03: Send, Last, Imm;
    SendOnly = 0x04: Send, Only, Nothing;
    SendOnlyImm = 0x05: Send, Only, Imm;
    WriteFirst = 0x06: Write, First, Reth;
    WriteMiddle = 0x07: Write, Middle, Nothing;
    WriteLast = 0x08: Write, Last, Nothing;
    WriteLastImm = 0x09: Write, Last, Imm;
    WriteOnly = 0x0a: Write, Only, Reth;
    WriteOnlyImm = 0x0b: Write, Only, RethImm;
    ReadRequest = 0x0c: ReadRequest, Only, Reth;
    ReadResponseFirst = 0x0d: ReadResponse, First, Aeth;
    /// RDMA READ response Middle: the only response packet without an AETH.
    ReadResponseMiddle = 0x0e: ReadResponse, Middle, Nothing;
    ReadResponseLast = 0x0f: ReadResponse, Last, Aeth;
    ReadResponseOnly = 0x10: ReadResponse, Only, Aeth;
    Acknowledge = 0x11: Acknowledge, Only, Aeth;
    AtomicAcknowledge = 0x12: AtomicAcknowledge, Only, AethAtomicAck;
    CompareSwap = 0x13: CompareSwap, Only, Atomic;
    FetchAdd = 0x14: FetchAdd, Only, Atomic;
    SendLastInvalidate = 0x16: Send, Last, Ieth;
    SendOnlyInvalidate = 0x17: Send, Only, Ieth;
}

impl PacketKind {
    /// Whether the service has this packet.
    #[inline]
    pub const fn allowed_on(self, service: Service) -> bool {
        match service {
            Service::Rc => true,
            Service::Uc => self as u8 <= PacketKind::WriteOnlyImm as u8,
            Service::Ud => matches!(self, PacketKind::SendOnly | PacketKind::SendOnlyImm),
        }
    }

    /// Whether payload may follow the headers. READ requests, atomics and acknowledgements have none.
    #[inline]
    pub const fn carries_payload(self) -> bool {
        matches!(self.operation(), Operation::Send | Operation::Write | Operation::ReadResponse)
    }
}

/// An opcode that exists: a kind of packet on a service that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PacketOpcode {
    service: Service,
    kind: PacketKind,
}

impl PacketOpcode {
    /// The opcode of `kind` on `service`, if the service has it.
    #[inline]
    pub const fn new(service: Service, kind: PacketKind) -> Option<Self> {
        if kind.allowed_on(service) { Some(Self { service, kind }) } else { None }
    }

    /// Reads the opcode byte. Error: no opcode of RC, UC or UD.
    #[inline]
    pub const fn from_u8(opcode: u8) -> Result<Self, WireError> {
        let service = match opcode >> 5 {
            0 => Some(Service::Rc),
            1 => Some(Service::Uc),
            3 => Some(Service::Ud),
            _ => None,
        };
        match (service, PacketKind::from_bits(opcode & 0x1f)) {
            (Some(service), Some(kind)) if kind.allowed_on(service) => Ok(Self { service, kind }),
            _ => Err(WireError::UnknownOpcode { opcode }),
        }
    }

    /// The byte of the BTH.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        (self.service as u8) << 5 | self.kind as u8
    }

    #[inline]
    pub const fn service(self) -> Service {
        self.service
    }

    #[inline]
    pub const fn kind(self) -> PacketKind {
        self.kind
    }

    /// Which extended headers follow.
    #[inline]
    pub const fn headers(self) -> HeaderSet {
        match (self.service, self.kind) {
            (Service::Ud, PacketKind::SendOnlyImm) => HeaderSet::DethImm,
            (Service::Ud, _) => HeaderSet::Deth,
            (_, kind) => kind.connected_headers(),
        }
    }
}

#[cfg(test)]
mod tests;
