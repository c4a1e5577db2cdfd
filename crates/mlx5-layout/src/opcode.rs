//! Operation, completion and error codes of WQEs and CQEs.
//!
//! Send opcodes, CQE opcodes and syndromes are the enums of `mlx5dv.h` (`MLX5_OPCODE_*`, `MLX5_CQE_*`,
//! `MLX5_CQE_SYNDROME_*`). `Wait` and `Dump` are in no rdma-core header: their numbers are those of
//! `doca_gpunetio_verbs_def.h` (NVIDIA-DOCA/gpunetio).

/// Declares an enum with its wire numbers, the way back, and the list of all.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$item])* $variant = $value,)* }

        impl $name {
            /// Every code, in the order of its number.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            pub const fn from_u8(value: u8) -> Option<Self> {
                match value { $($value => Some(Self::$variant),)* _ => None }
            }

            /// The number on the wire.
            pub const fn to_u8(self) -> u8 {
                self as u8
            }
        }
    };
}

codes! {
    /// Opcode of a send WQE (byte 3 of its control segment).
    SendOpcode {
        /// No operation; completes when asked.
        Nop = 0x00,
        /// SEND that invalidates the peer's rkey; the key travels in the immediate field.
        SendInvalidate = 0x01,
        RdmaWrite = 0x08,
        RdmaWriteImm = 0x09,
        Send = 0x0a,
        SendImm = 0x0b,
        /// Large send offload (raw packets).
        Tso = 0x0e,
        /// Wait on a CQ.
        Wait = 0x0f,
        RdmaRead = 0x10,
        /// Compare and swap of 8 bytes.
        AtomicCompareSwap = 0x11,
        /// Fetch and add of 8 bytes.
        AtomicFetchAdd = 0x12,
        AtomicMaskedCompareSwap = 0x14,
        AtomicMaskedFetchAdd = 0x15,
        /// Fast memory registration.
        FastRegister = 0x19,
        /// Invalidation of a local key.
        LocalInvalidate = 0x1b,
        ConfigCommand = 0x1f,
        /// Set of protection signature values.
        SetPsv = 0x20,
        /// Read local memory and discard it.
        Dump = 0x23,
        /// User-mode memory registration.
        Umr = 0x25,
        TagMatching = 0x28,
        FlowTableAccess = 0x2c,
        /// Memory-to-memory offload.
        Mmo = 0x2f,
    }
}

impl SendOpcode {
    /// Whether the WQE names remote memory, so that a remote-address segment follows.
    pub const fn has_remote_address(self) -> bool {
        matches!(self, Self::RdmaWrite | Self::RdmaWriteImm | Self::RdmaRead) || self.is_atomic()
    }

    /// Whether an atomic segment follows the remote address.
    pub const fn is_atomic(self) -> bool {
        matches!(
            self,
            Self::AtomicCompareSwap
                | Self::AtomicFetchAdd
                | Self::AtomicMaskedCompareSwap
                | Self::AtomicMaskedFetchAdd
        )
    }
}

codes! {
    /// Opcode of a CQE (bits 7:4 of its last byte).
    #[derive(Default)]
    CqeOpcode {
        /// A send WQE ended well.
        #[default]
        Requester = 0,
        /// An RDMA WRITE with immediate arrived.
        ResponderWriteImm = 1,
        /// A SEND arrived.
        ResponderSend = 2,
        /// A SEND with immediate arrived.
        ResponderSendImm = 3,
        /// A SEND with invalidate arrived.
        ResponderSendInvalidate = 4,
        /// The CQ was resized: go on in the new ring.
        ResizeCq = 5,
        /// No packet (striding receive queues).
        NoPacket = 6,
        SignatureError = 12,
        /// A send WQE failed, or was flushed.
        RequesterError = 13,
        /// A receive WQE failed, or was flushed.
        ResponderError = 14,
        /// Never written by the device yet.
        Invalid = 15,
    }
}

impl CqeOpcode {
    /// Whether byte 55 of the CQE is a [`CqeSyndrome`].
    pub const fn is_error(self) -> bool {
        matches!(self, Self::RequesterError | Self::ResponderError)
    }
}

codes! {
    /// Why a WQE failed (byte 55 of an error CQE).
    CqeSyndrome {
        /// The local buffers are too small, or the message too long.
        LocalLength = 0x01,
        /// The WQE itself is wrong.
        LocalQpOperation = 0x02,
        /// A local key, its bounds or its rights.
        LocalProtection = 0x04,
        /// Flushed: the QP is in error.
        WrFlush = 0x05,
        MwBind = 0x06,
        /// The peer's response made no sense.
        BadResponse = 0x10,
        /// The peer's message met a local protection error.
        LocalAccess = 0x11,
        /// The peer found the request invalid.
        RemoteInvalidRequest = 0x12,
        /// The peer refused the rkey, its bounds or its rights.
        RemoteAccess = 0x13,
        /// The peer could not complete the request.
        RemoteOperation = 0x14,
        /// No acknowledgement after all retries.
        TransportRetryExceeded = 0x15,
        /// The peer had no receive posted after all RNR retries.
        RnrRetryExceeded = 0x16,
        RemoteAborted = 0x22,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_leads_back_to_its_code_and_no_other_number_does() {
        for value in 0..=u8::MAX {
            assert_eq!(
                SendOpcode::from_u8(value).map(SendOpcode::to_u8),
                SendOpcode::ALL.iter().map(|o| o.to_u8()).find(|&o| o == value)
            );
            assert_eq!(
                CqeOpcode::from_u8(value).map(CqeOpcode::to_u8),
                CqeOpcode::ALL.iter().map(|o| o.to_u8()).find(|&o| o == value)
            );
            assert_eq!(
                CqeSyndrome::from_u8(value).map(CqeSyndrome::to_u8),
                CqeSyndrome::ALL.iter().map(|o| o.to_u8()).find(|&o| o == value)
            );
        }
        assert_eq!((SendOpcode::ALL.len(), CqeOpcode::ALL.len(), CqeSyndrome::ALL.len()), (22, 11, 13));
    }

    #[test]
    fn only_one_sided_operations_name_remote_memory() {
        let with_remote: Vec<_> =
            SendOpcode::ALL.iter().filter(|o| o.has_remote_address()).map(|o| o.to_u8()).collect();
        // WRITE, WRITE_IMM, READ, CS, FA and the two masked atomics.
        assert_eq!(with_remote, [0x08, 0x09, 0x10, 0x11, 0x12, 0x14, 0x15]);
    }
}
