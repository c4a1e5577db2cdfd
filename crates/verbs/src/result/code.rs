//! Numbers of `verbs.h` as enums: completion status and opcode, events, link layers, MTUs, access rights.

use crate::sys;

/// Declares an enum whose numbers come from `verbs.h`, with the way back and a sentence for each.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident($raw:ty) { $($variant:ident = $value:path, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $(#[doc = $text] $variant,)*
            /// A number that rdma-core 44 does not name.
            Other($raw),
        }

        impl $name {
            /// From the number in `verbs.h`.
            pub fn from_raw(raw: $raw) -> Self {
                $(if raw == $value { return Self::$variant; })*
                Self::Other(raw)
            }

            /// The number in `verbs.h`.
            pub fn to_raw(self) -> $raw {
                match self {
                    $(Self::$variant => $value,)*
                    Self::Other(raw) => raw,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$variant => f.write_str($text),)*
                    Self::Other(raw) => write!(f, "{} {raw}", stringify!($name)),
                }
            }
        }
    };
}

codes! {
    /// How a work request ended (`enum ibv_wc_status`).
    WcStatus(sys::ibv_wc_status) {
        Success = sys::IBV_WC_SUCCESS, "success";
        LocalLength = sys::IBV_WC_LOC_LEN_ERR, "local length error";
        LocalQpOperation = sys::IBV_WC_LOC_QP_OP_ERR, "local QP operation error";
        LocalEecOperation = sys::IBV_WC_LOC_EEC_OP_ERR, "local EEC operation error";
        LocalProtection = sys::IBV_WC_LOC_PROT_ERR, "local protection error";
        WrFlush = sys::IBV_WC_WR_FLUSH_ERR, "work request flushed";
        MwBind = sys::IBV_WC_MW_BIND_ERR, "memory window bind error";
        BadResponse = sys::IBV_WC_BAD_RESP_ERR, "bad response";
        LocalAccess = sys::IBV_WC_LOC_ACCESS_ERR, "local access error";
        RemoteInvalidRequest = sys::IBV_WC_REM_INV_REQ_ERR, "remote invalid request";
        RemoteAccess = sys::IBV_WC_REM_ACCESS_ERR, "remote access error";
        RemoteOperation = sys::IBV_WC_REM_OP_ERR, "remote operation error";
        RetryExceeded = sys::IBV_WC_RETRY_EXC_ERR, "transport retry counter exceeded";
        RnrRetryExceeded = sys::IBV_WC_RNR_RETRY_EXC_ERR, "RNR retry counter exceeded";
        LocalRddViolation = sys::IBV_WC_LOC_RDD_VIOL_ERR, "local RDD violation";
        RemoteInvalidRdRequest = sys::IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid RD request";
        RemoteAborted = sys::IBV_WC_REM_ABORT_ERR, "remote aborted";
        Fatal = sys::IBV_WC_FATAL_ERR, "fatal error";
        ResponseTimeout = sys::IBV_WC_RESP_TIMEOUT_ERR, "response timeout";
        General = sys::IBV_WC_GENERAL_ERR, "general error";
    }
}

codes! {
    /// What ended (`enum ibv_wc_opcode`); not valid when the status is an error.
    WcOpcode(sys::ibv_wc_opcode) {
        Send = sys::IBV_WC_SEND, "send";
        Write = sys::IBV_WC_RDMA_WRITE, "RDMA write";
        Read = sys::IBV_WC_RDMA_READ, "RDMA read";
        CompareSwap = sys::IBV_WC_COMP_SWAP, "compare and swap";
        FetchAdd = sys::IBV_WC_FETCH_ADD, "fetch and add";
        BindMw = sys::IBV_WC_BIND_MW, "memory window bind";
        LocalInvalidate = sys::IBV_WC_LOCAL_INV, "local invalidate";
        Tso = sys::IBV_WC_TSO, "TSO";
        Receive = sys::IBV_WC_RECV, "receive";
        ReceiveWriteImm = sys::IBV_WC_RECV_RDMA_WITH_IMM, "receive of an RDMA write with immediate";
    }
}

codes! {
    /// Asynchronous events (`enum ibv_event_type`).
    EventType(sys::ibv_event_type) {
        CqError = sys::IBV_EVENT_CQ_ERR, "CQ error";
        QpFatal = sys::IBV_EVENT_QP_FATAL, "QP fatal error";
        QpRequestError = sys::IBV_EVENT_QP_REQ_ERR, "QP request error";
        QpAccessError = sys::IBV_EVENT_QP_ACCESS_ERR, "QP access error";
        CommunicationEstablished = sys::IBV_EVENT_COMM_EST, "communication established";
        SqDrained = sys::IBV_EVENT_SQ_DRAINED, "send queue drained";
        PathMigrated = sys::IBV_EVENT_PATH_MIG, "path migrated";
        PathMigrationError = sys::IBV_EVENT_PATH_MIG_ERR, "path migration failed";
        DeviceFatal = sys::IBV_EVENT_DEVICE_FATAL, "device fatal error";
        PortActive = sys::IBV_EVENT_PORT_ACTIVE, "port active";
        PortError = sys::IBV_EVENT_PORT_ERR, "port error";
        LidChange = sys::IBV_EVENT_LID_CHANGE, "LID change";
        PkeyChange = sys::IBV_EVENT_PKEY_CHANGE, "P_Key change";
        SmChange = sys::IBV_EVENT_SM_CHANGE, "subnet manager change";
        SrqError = sys::IBV_EVENT_SRQ_ERR, "SRQ error";
        SrqLimitReached = sys::IBV_EVENT_SRQ_LIMIT_REACHED, "SRQ limit reached";
        QpLastWqeReached = sys::IBV_EVENT_QP_LAST_WQE_REACHED, "last WQE of an SRQ's QP reached";
        ClientReregister = sys::IBV_EVENT_CLIENT_REREGISTER, "client reregistration";
        GidChange = sys::IBV_EVENT_GID_CHANGE, "GID change";
    }
}

codes! {
    /// States of a queue pair (`enum ibv_qp_state`).
    QpState(sys::ibv_qp_state) {
        Reset = sys::IBV_QPS_RESET, "RESET";
        Init = sys::IBV_QPS_INIT, "INIT";
        Rtr = sys::IBV_QPS_RTR, "RTR";
        Rts = sys::IBV_QPS_RTS, "RTS";
        Sqd = sys::IBV_QPS_SQD, "SQD";
        Sqe = sys::IBV_QPS_SQE, "SQE";
        Error = sys::IBV_QPS_ERR, "ERR";
    }
}

codes! {
    /// States of a port (`enum ibv_port_state`).
    PortState(sys::ibv_port_state) {
        Nop = sys::IBV_PORT_NOP, "no state change";
        Down = sys::IBV_PORT_DOWN, "down";
        Init = sys::IBV_PORT_INIT, "initialising";
        Armed = sys::IBV_PORT_ARMED, "armed";
        Active = sys::IBV_PORT_ACTIVE, "active";
        ActiveDefer = sys::IBV_PORT_ACTIVE_DEFER, "active, deferred";
    }
}

/// Link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkLayer {
    /// InfiniBand: peers are found by LID.
    #[serde(rename = "ib")]
    InfiniBand,
    /// Ethernet (RoCE): peers are found by GID.
    #[serde(rename = "roce")]
    Ethernet,
}

impl LinkLayer {
    /// From `link_layer` of a port; unspecified means InfiniBand, as in `verbs.h`.
    pub fn from_raw(raw: u8) -> Self {
        if raw == sys::inline::LINK_LAYER_ETHERNET { Self::Ethernet } else { Self::InfiniBand }
    }
}

impl std::fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet (RoCE)",
        })
    }
}

/// Kind of a GID table entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GidType {
    /// InfiniBand.
    Ib,
    /// RoCE version 1.
    RoceV1,
    /// RoCE version 2, over UDP.
    RoceV2,
    Other(u32),
}

impl GidType {
    /// From `gid_type` of `struct ibv_gid_entry`.
    pub fn from_raw(raw: u32) -> Self {
        match raw {
            sys::IBV_GID_TYPE_IB => Self::Ib,
            sys::IBV_GID_TYPE_ROCE_V1 => Self::RoceV1,
            sys::IBV_GID_TYPE_ROCE_V2 => Self::RoceV2,
            other => Self::Other(other),
        }
    }
}

/// Path MTU. The codes are those of `enum ibv_mtu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum Mtu {
    /// 256 bytes, code 1.
    Mtu256,
    /// 512 bytes, code 2.
    Mtu512,
    /// 1024 bytes, code 3.
    Mtu1024,
    /// 2048 bytes, code 4.
    Mtu2048,
    /// 4096 bytes, code 5.
    Mtu4096,
}

impl Mtu {
    const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// From the code in `verbs.h`.
    pub fn from_raw(raw: sys::ibv_mtu) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.to_raw() == raw)
    }

    /// The code in `verbs.h`.
    pub fn to_raw(self) -> sys::ibv_mtu {
        match self {
            Self::Mtu256 => sys::IBV_MTU_256,
            Self::Mtu512 => sys::IBV_MTU_512,
            Self::Mtu1024 => sys::IBV_MTU_1024,
            Self::Mtu2048 => sys::IBV_MTU_2048,
            Self::Mtu4096 => sys::IBV_MTU_4096,
        }
    }

    /// Payload bytes of a packet.
    pub fn bytes(self) -> u32 {
        128 << self.to_raw()
    }
}

impl TryFrom<u32> for Mtu {
    type Error = String;

    /// From the number of bytes.
    fn try_from(bytes: u32) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes);
        found.ok_or_else(|| format!("{bytes} is no MTU: 256, 512, 1024, 2048 and 4096 are"))
    }
}

impl From<Mtu> for u32 {
    fn from(mtu: Mtu) -> u32 {
        mtu.bytes()
    }
}

/// Rights to a memory region, or of a queue pair's peer (`IBV_ACCESS_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(pub u32);

impl Access {
    /// Nothing but local reads.
    pub const NONE: Self = Self(0);
    /// The device may write for local requests.
    pub const LOCAL_WRITE: Self = Self(sys::IBV_ACCESS_LOCAL_WRITE);
    /// Peers may write; needs local write.
    pub const REMOTE_WRITE: Self = Self(sys::IBV_ACCESS_REMOTE_WRITE);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(sys::IBV_ACCESS_REMOTE_READ);
    /// Peers may do atomics; needs local write.
    pub const REMOTE_ATOMIC: Self = Self(sys::IBV_ACCESS_REMOTE_ATOMIC);
    /// Memory windows may be bound to the region.
    pub const MW_BIND: Self = Self(sys::IBV_ACCESS_MW_BIND);
    /// A window's addresses count from 0.
    pub const ZERO_BASED: Self = Self(sys::IBV_ACCESS_ZERO_BASED);
    /// PCIe writes may pass each other. Never for regions with flags that are polled.
    pub const RELAXED_ORDERING: Self = Self(sys::IBV_ACCESS_RELAXED_ORDERING);
    /// Local write and all remote rights.
    pub const ALL: Self = Self(0xf);
}

impl std::ops::BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for raw in 0..=24 {
            assert_eq!(WcStatus::from_raw(raw).to_raw(), raw);
            assert_eq!(EventType::from_raw(raw).to_raw(), raw);
            assert_eq!(QpState::from_raw(raw).to_raw(), raw);
        }
        assert_eq!(WcOpcode::from_raw(128), WcOpcode::Receive);
        assert_eq!(WcStatus::from_raw(10).to_string(), "remote access error");
    }

    #[test]
    fn mtus_are_bytes_and_codes() {
        for (bytes, code) in [(256, 1), (512, 2), (1024, 3), (2048, 4), (4096, 5)] {
            let mtu = Mtu::try_from(bytes).unwrap();
            assert_eq!((mtu.to_raw(), mtu.bytes(), Mtu::from_raw(code)), (code, bytes, Some(mtu)));
        }
        assert_eq!(Mtu::try_from(1500).unwrap_err(), "1500 is no MTU: 256, 512, 1024, 2048 and 4096 are");
    }
}
