//! Byte offsets of the uverbs and mlx5 command structs, restated.
//!
//! Sources: Linux UAPI headers `rdma/rdma_user_ioctl_cmds.h`, `rdma/ib_user_verbs.h`, `rdma/ib_user_ioctl_verbs.h`,
//! `rdma/mlx5-abi.h`, `rdma/rdma_user_cm.h` (Linux 6.1). All fields are native-endian except GUIDs and GIDs. Only fields that the NIC reads or
//! fills are named; the test compiles every line here against those headers.

/// One C struct: its size, and the offset of each field that is used.
macro_rules! layouts {
    ($($(#[$doc:meta])* $module:ident = $c:literal, $size:literal { $($field:ident = $c_field:literal at $offset:literal),* $(,)? })*) => {
        $(
            $(#[$doc])*
            // Some fields are here for the picture, and so that the test compares them.
            #[allow(dead_code)]
            pub mod $module {
                pub const SIZE: usize = $size;
                $(pub const $field: usize = $offset;)*
            }
        )*
        /// C name, size and `(C field, offset)` of every struct above, for the test.
        #[cfg(test)]
        pub const STRUCTS: &[(&str, usize, &[(&str, usize)])] = &[
            $(($c, $size, &[$(($c_field, $offset)),*])),*
        ];
    };
}

layouts! {
    /// Header of every verbs ioctl; attributes follow.
    ioctl_hdr = "struct ib_uverbs_ioctl_hdr", 24 {
        LENGTH = "length" at 0, OBJECT = "object_id" at 2, METHOD = "method_id" at 4, NUM_ATTRS = "num_attrs" at 6,
        RESERVED1 = "reserved1" at 8, DRIVER = "driver_id" at 16, RESERVED2 = "reserved2" at 20,
    }
    /// One attribute.
    attr = "struct ib_uverbs_attr", 16 {
        ID = "attr_id" at 0, LEN = "len" at 2, FLAGS = "flags" at 4, RESERVED = "attr_data.reserved" at 6, DATA = "data" at 8,
    }
    /// `mlx5_ib` part of GET_CONTEXT's request.
    alloc_ucontext_req = "struct mlx5_ib_alloc_ucontext_req_v2", 32 {
        TOTAL_NUM_BFREGS = "total_num_bfregs" at 0, FLAGS = "flags" at 8, COMP_MASK = "comp_mask" at 12,
        MAX_CQE_VERSION = "max_cqe_version" at 16, LIB_CAPS = "lib_caps" at 24,
    }
    /// `mlx5_ib` part of GET_CONTEXT's answer.
    alloc_ucontext_resp = "struct mlx5_ib_alloc_ucontext_resp", 72 {
        QP_TAB_SIZE = "qp_tab_size" at 0, BF_REG_SIZE = "bf_reg_size" at 4, TOT_BFREGS = "tot_bfregs" at 8,
        CACHE_LINE_SIZE = "cache_line_size" at 12, MAX_SQ_DESC_SZ = "max_sq_desc_sz" at 16,
        MAX_RQ_DESC_SZ = "max_rq_desc_sz" at 18, MAX_SEND_WQEBB = "max_send_wqebb" at 20, MAX_RECV_WR = "max_recv_wr" at 24,
        MAX_SRQ_RECV_WR = "max_srq_recv_wr" at 28, NUM_PORTS = "num_ports" at 32, COMP_MASK = "comp_mask" at 36,
        RESPONSE_LENGTH = "response_length" at 40, CQE_VERSION = "cqe_version" at 44, CMDS_SUPP_UHW = "cmds_supp_uhw" at 45,
        ETH_MIN_INLINE = "eth_min_inline" at 46, CLOCK_INFO_VERSIONS = "clock_info_versions" at 47,
        HCA_CORE_CLOCK_OFFSET = "hca_core_clock_offset" at 48, LOG_UAR_SIZE = "log_uar_size" at 56,
        NUM_UARS_PER_PAGE = "num_uars_per_page" at 60, NUM_DYN_BFREGS = "num_dyn_bfregs" at 64,
    }
    query_device_resp = "struct ib_uverbs_query_device_resp", 176 {
        FW_VER = "fw_ver" at 0, NODE_GUID = "node_guid" at 8, SYS_IMAGE_GUID = "sys_image_guid" at 16,
        MAX_MR_SIZE = "max_mr_size" at 24, PAGE_SIZE_CAP = "page_size_cap" at 32, VENDOR_ID = "vendor_id" at 40,
        VENDOR_PART_ID = "vendor_part_id" at 44, HW_VER = "hw_ver" at 48, MAX_QP = "max_qp" at 52, MAX_QP_WR = "max_qp_wr" at 56,
        DEVICE_CAP_FLAGS = "device_cap_flags" at 60, MAX_SGE = "max_sge" at 64, MAX_SGE_RD = "max_sge_rd" at 68,
        MAX_CQ = "max_cq" at 72, MAX_CQE = "max_cqe" at 76, MAX_MR = "max_mr" at 80, MAX_PD = "max_pd" at 84,
        MAX_QP_RD_ATOM = "max_qp_rd_atom" at 88, MAX_RES_RD_ATOM = "max_res_rd_atom" at 96,
        MAX_QP_INIT_RD_ATOM = "max_qp_init_rd_atom" at 100, ATOMIC_CAP = "atomic_cap" at 108, MAX_MW = "max_mw" at 120, MAX_AH = "max_ah" at 144,
        MAX_PKEYS = "max_pkeys" at 168, MAX_SRQ = "max_srq" at 156, MAX_SRQ_WR = "max_srq_wr" at 160, MAX_SRQ_SGE = "max_srq_sge" at 164,
        LOCAL_CA_ACK_DELAY = "local_ca_ack_delay" at 170, PHYS_PORT_CNT = "phys_port_cnt" at 171,
    }
    /// Answer to the extended QUERY_DEVICE; the plain answer is its first part.
    ex_query_device_resp = "struct ib_uverbs_ex_query_device_resp", 304 {
        RESPONSE_LENGTH = "response_length" at 180, TIMESTAMP_MASK = "timestamp_mask" at 208, HCA_CORE_CLOCK = "hca_core_clock" at 216,
        DEVICE_CAP_FLAGS_EX = "device_cap_flags_ex" at 224,
    }
    mlx5_query_device_resp = "struct mlx5_ib_query_device_resp", 104 {
        RESPONSE_LENGTH = "response_length" at 4, FLAGS = "flags" at 60,
    }
    query_port_resp = "struct ib_uverbs_query_port_resp_ex", 48 {
        PORT_CAP_FLAGS = "legacy_resp.port_cap_flags" at 0, MAX_MSG_SZ = "legacy_resp.max_msg_sz" at 4,
        GID_TBL_LEN = "legacy_resp.gid_tbl_len" at 16, PKEY_TBL_LEN = "legacy_resp.pkey_tbl_len" at 20, LID = "legacy_resp.lid" at 22,
        SM_LID = "legacy_resp.sm_lid" at 24, STATE = "legacy_resp.state" at 26, MAX_MTU = "legacy_resp.max_mtu" at 27,
        ACTIVE_MTU = "legacy_resp.active_mtu" at 28, MAX_VL_NUM = "legacy_resp.max_vl_num" at 30,
        SUBNET_TIMEOUT = "legacy_resp.subnet_timeout" at 32, ACTIVE_WIDTH = "legacy_resp.active_width" at 34,
        ACTIVE_SPEED = "legacy_resp.active_speed" at 35, PHYS_STATE = "legacy_resp.phys_state" at 36,
        LINK_LAYER = "legacy_resp.link_layer" at 37, FLAGS = "legacy_resp.flags" at 38,
    }
    gid_entry = "struct ib_uverbs_gid_entry", 32 {
        GID = "gid" at 0, GID_INDEX = "gid_index" at 16, PORT_NUM = "port_num" at 20, GID_TYPE = "gid_type" at 24,
        NETDEV_IFINDEX = "netdev_ifindex" at 28,
    }
    alloc_pd_resp = "struct ib_uverbs_alloc_pd_resp", 4 { PD_HANDLE = "pd_handle" at 0 }
    mlx5_alloc_pd_resp = "struct mlx5_ib_alloc_pd_resp", 4 { PDN = "pdn" at 0 }
    reg_mr = "struct ib_uverbs_reg_mr", 40 {
        START = "start" at 8, LENGTH = "length" at 16, HCA_VA = "hca_va" at 24, PD_HANDLE = "pd_handle" at 32, ACCESS_FLAGS = "access_flags" at 36,
    }
    reg_mr_resp = "struct ib_uverbs_reg_mr_resp", 12 { MR_HANDLE = "mr_handle" at 0, LKEY = "lkey" at 4, RKEY = "rkey" at 8 }
    rereg_mr = "struct ib_uverbs_rereg_mr", 48 {
        MR_HANDLE = "mr_handle" at 8, FLAGS = "flags" at 12, START = "start" at 16, LENGTH = "length" at 24, HCA_VA = "hca_va" at 32,
        PD_HANDLE = "pd_handle" at 40, ACCESS_FLAGS = "access_flags" at 44,
    }
    rereg_mr_resp = "struct ib_uverbs_rereg_mr_resp", 8 { LKEY = "lkey" at 0, RKEY = "rkey" at 4 }
    alloc_mw = "struct ib_uverbs_alloc_mw", 16 { PD_HANDLE = "pd_handle" at 8, MW_TYPE = "mw_type" at 12 }
    alloc_mw_resp = "struct ib_uverbs_alloc_mw_resp", 8 { MW_HANDLE = "mw_handle" at 0, RKEY = "rkey" at 4 }
    mlx5_alloc_mw = "struct mlx5_ib_alloc_mw", 8 {
        COMP_MASK = "comp_mask" at 0, NUM_KLMS = "num_klms" at 4, RESERVED1 = "reserved1" at 5, RESERVED2 = "reserved2" at 6,
    }
    resize_cq = "struct ib_uverbs_resize_cq", 16 { CQ_HANDLE = "cq_handle" at 8, CQE = "cqe" at 12 }
    resize_cq_resp = "struct ib_uverbs_resize_cq_resp", 8 { CQE = "cqe" at 0 }
    mlx5_resize_cq = "struct mlx5_ib_resize_cq", 16 {
        BUF_ADDR = "buf_addr" at 0, CQE_SIZE = "cqe_size" at 8, RESERVED0 = "reserved0" at 10, RESERVED1 = "reserved1" at 12,
    }
    create_comp_channel_resp = "struct ib_uverbs_create_comp_channel_resp", 4 { FD = "fd" at 0 }
    create_cq = "struct mlx5_ib_create_cq", 32 {
        BUF_ADDR = "buf_addr" at 0, DB_ADDR = "db_addr" at 8, CQE_SIZE = "cqe_size" at 16, CQE_COMP_EN = "cqe_comp_en" at 20,
        FLAGS = "flags" at 22, UAR_PAGE_INDEX = "uar_page_index" at 24,
    }
    create_cq_resp = "struct mlx5_ib_create_cq_resp", 8 { CQN = "cqn" at 0 }
    destroy_cq_resp = "struct ib_uverbs_destroy_cq_resp", 8 {
        COMP_EVENTS_REPORTED = "comp_events_reported" at 0, ASYNC_EVENTS_REPORTED = "async_events_reported" at 4,
    }
    qp_cap = "struct ib_uverbs_qp_cap", 20 {
        MAX_SEND_WR = "max_send_wr" at 0, MAX_RECV_WR = "max_recv_wr" at 4, MAX_SEND_SGE = "max_send_sge" at 8,
        MAX_RECV_SGE = "max_recv_sge" at 12, MAX_INLINE_DATA = "max_inline_data" at 16,
    }
    create_qp = "struct mlx5_ib_create_qp", 56 {
        BUF_ADDR = "buf_addr" at 0, DB_ADDR = "db_addr" at 8, SQ_WQE_COUNT = "sq_wqe_count" at 16, RQ_WQE_COUNT = "rq_wqe_count" at 20,
        RQ_WQE_SHIFT = "rq_wqe_shift" at 24, FLAGS = "flags" at 28, UIDX = "uidx" at 32, BFREG_INDEX = "bfreg_index" at 36,
        SQ_BUF_ADDR = "sq_buf_addr" at 40,
    }
    create_qp_resp = "struct mlx5_ib_create_qp_resp", 40 { BFREG_INDEX = "bfreg_index" at 0 }
    destroy_qp_resp = "struct ib_uverbs_destroy_qp_resp", 4 { EVENTS_REPORTED = "events_reported" at 0 }
    mlx5_create_srq = "struct mlx5_ib_create_srq", 32 {
        BUF_ADDR = "buf_addr" at 0, DB_ADDR = "db_addr" at 8, FLAGS = "flags" at 16, RESERVED0 = "reserved0" at 20, UIDX = "uidx" at 24,
        RESERVED1 = "reserved1" at 28,
    }
    mlx5_create_srq_resp = "struct mlx5_ib_create_srq_resp", 8 { SRQN = "srqn" at 0 }
    create_srq = "struct ib_uverbs_create_srq", 32 {
        USER_HANDLE = "user_handle" at 8, PD_HANDLE = "pd_handle" at 16, MAX_WR = "max_wr" at 20, MAX_SGE = "max_sge" at 24,
        SRQ_LIMIT = "srq_limit" at 28,
    }
    create_srq_resp = "struct ib_uverbs_create_srq_resp", 16 {
        SRQ_HANDLE = "srq_handle" at 0, MAX_WR = "max_wr" at 4, MAX_SGE = "max_sge" at 8, SRQN = "srqn" at 12,
    }
    modify_srq = "struct ib_uverbs_modify_srq", 16 {
        SRQ_HANDLE = "srq_handle" at 0, ATTR_MASK = "attr_mask" at 4, MAX_WR = "max_wr" at 8, SRQ_LIMIT = "srq_limit" at 12,
    }
    query_srq = "struct ib_uverbs_query_srq", 16 { SRQ_HANDLE = "srq_handle" at 8 }
    query_srq_resp = "struct ib_uverbs_query_srq_resp", 16 { MAX_WR = "max_wr" at 0, MAX_SGE = "max_sge" at 4, SRQ_LIMIT = "srq_limit" at 8 }
    destroy_srq = "struct ib_uverbs_destroy_srq", 16 { SRQ_HANDLE = "srq_handle" at 8 }
    destroy_srq_resp = "struct ib_uverbs_destroy_srq_resp", 4 { EVENTS_REPORTED = "events_reported" at 0 }
    /// Path of a QP, in modify and query.
    qp_dest = "struct ib_uverbs_qp_dest", 32 {
        DGID = "dgid" at 0, FLOW_LABEL = "flow_label" at 16, DLID = "dlid" at 20, SGID_INDEX = "sgid_index" at 24,
        HOP_LIMIT = "hop_limit" at 25, TRAFFIC_CLASS = "traffic_class" at 26, SL = "sl" at 27, IS_GLOBAL = "is_global" at 30,
        PORT_NUM = "port_num" at 31,
    }
    modify_qp = "struct ib_uverbs_modify_qp", 112 {
        DEST = "dest" at 0, QP_HANDLE = "qp_handle" at 64, ATTR_MASK = "attr_mask" at 68, QKEY = "qkey" at 72, RQ_PSN = "rq_psn" at 76,
        SQ_PSN = "sq_psn" at 80, DEST_QP_NUM = "dest_qp_num" at 84, QP_ACCESS_FLAGS = "qp_access_flags" at 88,
        PKEY_INDEX = "pkey_index" at 92, QP_STATE = "qp_state" at 96, CUR_QP_STATE = "cur_qp_state" at 97, PATH_MTU = "path_mtu" at 98,
        MAX_RD_ATOMIC = "max_rd_atomic" at 101, MAX_DEST_RD_ATOMIC = "max_dest_rd_atomic" at 102, MIN_RNR_TIMER = "min_rnr_timer" at 103,
        PORT_NUM = "port_num" at 104, TIMEOUT = "timeout" at 105, RETRY_CNT = "retry_cnt" at 106, RNR_RETRY = "rnr_retry" at 107,
    }
    ex_modify_qp_resp = "struct ib_uverbs_ex_modify_qp_resp", 8 { RESPONSE_LENGTH = "response_length" at 4 }
    mlx5_modify_qp_resp = "struct mlx5_ib_modify_qp_resp", 16 { RESPONSE_LENGTH = "response_length" at 0 }
    query_qp = "struct ib_uverbs_query_qp", 16 { QP_HANDLE = "qp_handle" at 8, ATTR_MASK = "attr_mask" at 12 }
    query_qp_resp = "struct ib_uverbs_query_qp_resp", 128 {
        DEST = "dest" at 0, MAX_SEND_WR = "max_send_wr" at 64, MAX_RECV_WR = "max_recv_wr" at 68, MAX_SEND_SGE = "max_send_sge" at 72,
        MAX_RECV_SGE = "max_recv_sge" at 76, MAX_INLINE_DATA = "max_inline_data" at 80, QKEY = "qkey" at 84, RQ_PSN = "rq_psn" at 88,
        SQ_PSN = "sq_psn" at 92, DEST_QP_NUM = "dest_qp_num" at 96, QP_ACCESS_FLAGS = "qp_access_flags" at 100,
        PKEY_INDEX = "pkey_index" at 104, QP_STATE = "qp_state" at 108, CUR_QP_STATE = "cur_qp_state" at 109, PATH_MTU = "path_mtu" at 110,
        SQ_DRAINING = "sq_draining" at 112, MAX_RD_ATOMIC = "max_rd_atomic" at 113, MAX_DEST_RD_ATOMIC = "max_dest_rd_atomic" at 114,
        MIN_RNR_TIMER = "min_rnr_timer" at 115, PORT_NUM = "port_num" at 116, TIMEOUT = "timeout" at 117, RETRY_CNT = "retry_cnt" at 118,
        RNR_RETRY = "rnr_retry" at 119, SQ_SIG_ALL = "sq_sig_all" at 122,
    }
    create_ah = "struct ib_uverbs_create_ah", 56 {
        USER_HANDLE = "user_handle" at 8, PD_HANDLE = "pd_handle" at 16, DGID = "attr.grh.dgid" at 24, FLOW_LABEL = "attr.grh.flow_label" at 40,
        SGID_INDEX = "attr.grh.sgid_index" at 44, HOP_LIMIT = "attr.grh.hop_limit" at 45, TRAFFIC_CLASS = "attr.grh.traffic_class" at 46,
        DLID = "attr.dlid" at 48, SL = "attr.sl" at 50, IS_GLOBAL = "attr.is_global" at 53, PORT_NUM = "attr.port_num" at 54,
    }
    create_ah_resp = "struct ib_uverbs_create_ah_resp", 4 { AH_HANDLE = "ah_handle" at 0 }
    mlx5_create_ah_resp = "struct mlx5_ib_create_ah_resp", 16 { RESPONSE_LENGTH = "response_length" at 0, DMAC = "dmac" at 4 }
    /// Header of every write to `/dev/infiniband/rdma_cm`; the command follows.
    ucm_hdr = "struct rdma_ucm_cmd_hdr", 8 { CMD = "cmd" at 0, IN = "in" at 4, OUT = "out" at 6 }
    ucm_create_id = "struct rdma_ucm_create_id", 24 { UID = "uid" at 0, RESPONSE = "response" at 8, PS = "ps" at 16, QP_TYPE = "qp_type" at 18 }
    /// DESTROY_ID, and LEAVE_MCAST.
    ucm_destroy_id = "struct rdma_ucm_destroy_id", 16 { RESPONSE = "response" at 0, ID = "id" at 8 }
    ucm_bind_ip = "struct rdma_ucm_bind_ip", 40 { ADDR = "addr" at 8, ID = "id" at 36 }
    ucm_bind = "struct rdma_ucm_bind", 136 { ID = "id" at 0, ADDR_SIZE = "addr_size" at 4, RESERVED = "reserved" at 6, ADDR = "addr" at 8 }
    ucm_resolve_ip = "struct rdma_ucm_resolve_ip", 64 { SRC = "src_addr" at 0, DST = "dst_addr" at 28, ID = "id" at 56 }
    ucm_resolve_addr = "struct rdma_ucm_resolve_addr", 272 {
        ID = "id" at 0, SRC_SIZE = "src_size" at 8, DST_SIZE = "dst_size" at 10, RESERVED = "reserved" at 12, SRC = "src_addr" at 16, DST = "dst_addr" at 144,
    }
    ucm_resolve_route = "struct rdma_ucm_resolve_route", 8 { ID = "id" at 0, TIMEOUT_MS = "timeout_ms" at 4 }
    /// QUERY_ROUTE and QUERY.
    ucm_query = "struct rdma_ucm_query", 16 { RESPONSE = "response" at 0, ID = "id" at 8, OPTION = "option" at 12 }
    /// A path, in an answer to QUERY_ROUTE.
    user_path_rec = "struct ib_user_path_rec", 64 {
        DGID = "dgid" at 0, SGID = "sgid" at 16, DLID = "dlid" at 32, SLID = "slid" at 34, FLOW_LABEL = "flow_label" at 40, REVERSIBLE = "reversible" at 44,
        MTU = "mtu" at 48, PKEY = "pkey" at 52, HOP_LIMIT = "hop_limit" at 54, TRAFFIC_CLASS = "traffic_class" at 55, NUMB_PATH = "numb_path" at 56,
        MTU_SELECTOR = "mtu_selector" at 58, RATE_SELECTOR = "rate_selector" at 59, RATE = "rate" at 60,
        LIFE_TIME_SELECTOR = "packet_life_time_selector" at 61, LIFE_TIME = "packet_life_time" at 62,
    }
    ucm_query_route_resp = "struct rdma_ucm_query_route_resp", 208 {
        NODE_GUID = "node_guid" at 0, IB_ROUTE = "ib_route" at 8, SRC = "src_addr" at 136, DST = "dst_addr" at 164, NUM_PATHS = "num_paths" at 192,
        PORT_NUM = "port_num" at 196, IBDEV_INDEX = "ibdev_index" at 200,
    }
    /// Answer to QUERY for addresses and GIDs.
    ucm_query_addr_resp = "struct rdma_ucm_query_addr_resp", 280 {
        NODE_GUID = "node_guid" at 0, PORT_NUM = "port_num" at 8, PKEY = "pkey" at 10, SRC_SIZE = "src_size" at 12, DST_SIZE = "dst_size" at 14,
        SRC = "src_addr" at 16, DST = "dst_addr" at 144, IBDEV_INDEX = "ibdev_index" at 272,
    }
    /// Answer to QUERY for paths; they follow.
    ucm_query_path_resp = "struct rdma_ucm_query_path_resp", 8 { NUM_PATHS = "num_paths" at 0 }
    /// One of these paths.
    path_rec_data = "struct ib_path_rec_data", 72 { FLAGS = "flags" at 0, PATH_REC = "path_rec" at 8 }
    /// What a connection is to be.
    ucm_conn_param = "struct rdma_ucm_conn_param", 272 {
        QP_NUM = "qp_num" at 0, QKEY = "qkey" at 4, PRIVATE_DATA = "private_data" at 8, PRIVATE_DATA_LEN = "private_data_len" at 264, SRQ = "srq" at 265,
        RESPONDER_RESOURCES = "responder_resources" at 266, INITIATOR_DEPTH = "initiator_depth" at 267, FLOW_CONTROL = "flow_control" at 268,
        RETRY_COUNT = "retry_count" at 269, RNR_RETRY_COUNT = "rnr_retry_count" at 270, VALID = "valid" at 271,
    }
    /// What a datagram service has.
    ucm_ud_param = "struct rdma_ucm_ud_param", 304 {
        QP_NUM = "qp_num" at 0, QKEY = "qkey" at 4, AH_ATTR = "ah_attr" at 8, PRIVATE_DATA = "private_data" at 40, PRIVATE_DATA_LEN = "private_data_len" at 296,
    }
    ucm_connect = "struct rdma_ucm_connect", 288 { CONN_PARAM = "conn_param" at 0, ID = "id" at 272 }
    ucm_listen = "struct rdma_ucm_listen", 8 { ID = "id" at 0, BACKLOG = "backlog" at 4 }
    ucm_accept = "struct rdma_ucm_accept", 296 { UID = "uid" at 0, CONN_PARAM = "conn_param" at 8, ID = "id" at 280 }
    ucm_reject = "struct rdma_ucm_reject", 264 { ID = "id" at 0, PRIVATE_DATA_LEN = "private_data_len" at 4, REASON = "reason" at 5, PRIVATE_DATA = "private_data" at 8 }
    ucm_init_qp_attr = "struct rdma_ucm_init_qp_attr", 16 { RESPONSE = "response" at 0, ID = "id" at 8, QP_STATE = "qp_state" at 12 }
    ucm_notify = "struct rdma_ucm_notify", 8 { ID = "id" at 0, EVENT = "event" at 4 }
    /// An event, the answer to GET_EVENT.
    ucm_event_resp = "struct rdma_ucm_event_resp", 336 {
        UID = "uid" at 0, ID = "id" at 8, EVENT = "event" at 12, STATUS = "status" at 16, PARAM = "param" at 20, RESERVED = "reserved" at 324,
    }
    ucm_set_option = "struct rdma_ucm_set_option", 24 { OPTVAL = "optval" at 0, ID = "id" at 8, LEVEL = "level" at 12, OPTNAME = "optname" at 16, OPTLEN = "optlen" at 20 }
    ucm_migrate_id = "struct rdma_ucm_migrate_id", 16 { RESPONSE = "response" at 0, ID = "id" at 8, FD = "fd" at 12 }
    ucm_join_ip_mcast = "struct rdma_ucm_join_ip_mcast", 48 { ID = "id" at 44 }
    ucm_join_mcast = "struct rdma_ucm_join_mcast", 152 { ID = "id" at 16 }
    /// Attributes of a QP, the answer to INIT_QP_ATTR.
    uverbs_qp_attr = "struct ib_uverbs_qp_attr", 144 {
        MASK = "qp_attr_mask" at 0, STATE = "qp_state" at 4, PATH_MTU = "path_mtu" at 12, QKEY = "qkey" at 20, RQ_PSN = "rq_psn" at 24, SQ_PSN = "sq_psn" at 28,
        DEST_QP_NUM = "dest_qp_num" at 32, ACCESS_FLAGS = "qp_access_flags" at 36, AH_ATTR = "ah_attr" at 40, PKEY_INDEX = "pkey_index" at 124,
        MAX_RD_ATOMIC = "max_rd_atomic" at 130, MAX_DEST_RD_ATOMIC = "max_dest_rd_atomic" at 131, MIN_RNR_TIMER = "min_rnr_timer" at 132,
        PORT_NUM = "port_num" at 133, TIMEOUT = "timeout" at 134, RETRY_CNT = "retry_cnt" at 135, RNR_RETRY = "rnr_retry" at 136,
    }
    /// An address vector as the kernel writes it.
    uverbs_ah_attr = "struct ib_uverbs_ah_attr", 32 {
        DGID = "grh.dgid" at 0, FLOW_LABEL = "grh.flow_label" at 16, SGID_INDEX = "grh.sgid_index" at 20, HOP_LIMIT = "grh.hop_limit" at 21,
        TRAFFIC_CLASS = "grh.traffic_class" at 22, DLID = "dlid" at 24, SL = "sl" at 26, IS_GLOBAL = "is_global" at 29, PORT_NUM = "port_num" at 30,
    }
    /// The clock page that turns completion timestamps into wall-clock time.
    clock_info = "struct mlx5_ib_clock_info", 56 {
        SIGN = "sign" at 0, NSEC = "nsec" at 8, CYCLES = "cycles" at 16, FRAC = "frac" at 24, MULT = "mult" at 32, SHIFT = "shift" at 36,
        MASK = "mask" at 40, OVERFLOW_PERIOD = "overflow_period" at 48,
    }
}

/// A struct being read: a copy, so that a check and its use see one value (INV-6).
#[derive(Debug, Clone, Copy)]
pub struct Reader<'b>(pub &'b [u8]);

impl Reader<'_> {
    /// Raw bytes. Missing trailing ones read as zero, as a kernel treats a shorter, older struct.
    pub fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        for (place, byte) in out.iter_mut().zip(self.0.iter().skip(at)) {
            *place = *byte;
        }
        out
    }
}

/// A struct being built; starts as zeros.
#[derive(Debug, Clone)]
pub struct Writer<const N: usize>([u8; N]);

impl<const N: usize> Writer<N> {
    /// All zeros.
    pub fn new() -> Self {
        Self([0; N])
    }

    /// Puts one field; `bytes` are already in the right order.
    #[must_use]
    pub fn bytes(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub fn finish(self) -> [u8; N] {
        self.0
    }
}

/// Native-endian numbers of a struct.
macro_rules! numbers {
    ($($number:ident),*) => {
        impl Reader<'_> {
            $(pub fn $number(&self, at: usize) -> $number {
                $number::from_ne_bytes(self.array(at))
            })*
        }

        impl<const N: usize> Writer<N> {
            $(#[must_use]
            pub fn $number(self, at: usize, value: $number) -> Self {
                self.bytes(at, &value.to_ne_bytes())
            })*
        }
    };
}
numbers!(u8, u16, u32, u64);

/// A struct with these 32-bit fields; all others are zeros.
macro_rules! words {
    ($layout:ident, $($field:ident = $value:expr),+ $(,)?) => {
        $crate::abi::layout::Writer::<{ $layout::SIZE }>::new()$(.u32($layout::$field, $value))+.finish()
    };
}
pub(crate) use words;

/// The address vector in a struct that has its fields.
macro_rules! read_address {
    ($layout:ident, $from:expr) => {
        mlx5_device::command::AddressVector {
            dlid: $from.u16($layout::DLID),
            dgid: ($from.u8($layout::IS_GLOBAL) != 0).then(|| $from.array($layout::DGID)),
            sgid_index: $from.u8($layout::SGID_INDEX),
            sl: $from.u8($layout::SL),
            flow_label: $from.u32($layout::FLOW_LABEL),
            hop_limit: $from.u8($layout::HOP_LIMIT),
            traffic_class: $from.u8($layout::TRAFFIC_CLASS),
            port: $from.u8($layout::PORT_NUM),
        }
    };
}
pub(crate) use read_address;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// Answers that newer kernels lengthened, and their sizes there; a driver takes as much as its own headers have.
    const LENGTHENED: &[(&str, usize)] = &[("struct mlx5_ib_query_device_resp", 112)];

    /// The headers of the system are the golden source: a C compiler checks every size and offset of this file.
    #[test]
    fn every_offset_equals_the_one_in_the_kernel_headers() {
        let headers = [
            "rdma_user_ioctl_cmds.h",
            "ib_user_verbs.h",
            "ib_user_ioctl_verbs.h",
            "mlx5-abi.h",
            "rdma_user_cm.h",
        ];
        for header in headers {
            measure::need!(
                std::fs::metadata(format!("/usr/include/rdma/{header}")),
                "kernel RDMA headers (linux-libc-dev)"
            );
        }
        let mut source = "#include <stddef.h>\n#define ETH_ALEN 6\n".to_owned();
        for header in headers {
            writeln!(source, "#include <rdma/{header}>").unwrap();
        }
        for (name, size, fields) in STRUCTS {
            let newer =
                LENGTHENED.iter().find(|(lengthened, _)| lengthened == name).map_or(*size, |newer| newer.1);
            writeln!(
                source,
                "_Static_assert(sizeof({name}) == {size} || sizeof({name}) == {newer}, \"size of {name}\");"
            )
            .unwrap();
            for (field, offset) in *fields {
                writeln!(
                    source,
                    "_Static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");"
                )
                .unwrap();
            }
        }
        let path = std::env::temp_dir().join(format!("softnic-layout-{}.c", std::process::id()));
        std::fs::write(&path, source).unwrap();
        let compiler =
            std::process::Command::new("cc").args(["-std=gnu11", "-fsyntax-only"]).arg(&path).output();
        std::fs::remove_file(&path).unwrap();
        let output = measure::need!(compiler, "a C compiler named cc");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn a_shorter_struct_reads_as_if_zeros_followed() {
        let bytes = [1, 2, 3, 4, 5, 6];
        let reader = Reader(&bytes);
        assert_eq!(reader.u32(0), u32::from_ne_bytes([1, 2, 3, 4]));
        assert_eq!(reader.u32(4), u32::from_ne_bytes([5, 6, 0, 0]));
        assert_eq!(reader.u64(100), 0);
    }

    #[test]
    fn a_built_struct_reads_back() {
        let built = Writer::<{ reg_mr_resp::SIZE }>::new().u32(reg_mr_resp::LKEY, 0x1234).finish();
        assert_eq!(Reader(&built).u32(reg_mr_resp::LKEY), 0x1234);
        assert_eq!(Reader(&built).u32(reg_mr_resp::RKEY), 0);
    }
}
