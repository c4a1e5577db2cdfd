//! Byte offsets of the uverbs and mlx5 command structs, restated.
//!
//! Sources: Linux 6.1 UAPI headers `rdma/rdma_user_ioctl_cmds.h`, `rdma/ib_user_verbs.h`,
//! `rdma/ib_user_ioctl_verbs.h`, `rdma/mlx5-abi.h`, `rdma/rdma_user_cm.h`. Fields are native-endian except
//! GUIDs and GIDs. Only fields that the NIC uses are named; the test compiles every line against the headers.

/// One C struct: its size, and the offset of each field used, by the C name; `name("path")` where that is a
/// path, or where the device's commands name it differently.
macro_rules! layouts {
    ($($(#[$doc:meta])* $module:ident = $c:literal, $size:literal {
        $($field:ident $(($path:literal))? at $offset:literal),* $(,)?
    })*) => {
        $(
            $(#[$doc])*
            #[allow(non_upper_case_globals, reason = "names of the kernel's headers")]
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
            $(($c, $size, &[$((layouts!(@path $field $($path)?), $offset)),*])),*
        ];
    };
    (@path $field:ident) => { stringify!($field) };
    (@path $field:ident $path:literal) => { $path };
}

layouts! {
    /// Header of every verbs ioctl; attributes follow.
    ioctl_hdr = "struct ib_uverbs_ioctl_hdr", 24 {
        length at 0, object("object_id") at 2, method("method_id") at 4, num_attrs at 6, reserved1 at 8,
        driver("driver_id") at 16, reserved2 at 20,
    }
    /// One attribute.
    attr = "struct ib_uverbs_attr", 16 {
        id("attr_id") at 0, len at 2, flags at 4, reserved("attr_data.reserved") at 6, data at 8,
    }
    /// `mlx5_ib` part of GET_CONTEXT's request.
    alloc_ucontext_req = "struct mlx5_ib_alloc_ucontext_req_v2", 32 {
        total_num_bfregs at 0, flags at 8, comp_mask at 12, max_cqe_version at 16, lib_caps at 24,
    }
    /// `mlx5_ib` part of GET_CONTEXT's answer.
    alloc_ucontext_resp = "struct mlx5_ib_alloc_ucontext_resp", 72 {
        qp_tab_size at 0, bf_reg_size at 4, tot_bfregs at 8, cache_line_size at 12, max_sq_desc_sz at 16, max_rq_desc_sz at 18,
        max_send_wqebb at 20, max_recv_wr at 24, max_srq_recv_wr at 28, num_ports at 32, comp_mask at 36, response_length at 40,
        cqe_version at 44, cmds_supp_uhw at 45, eth_min_inline at 46, clock_info_versions at 47, hca_core_clock_offset at 48,
        log_uar_size at 56, num_uars_per_page at 60, num_dyn_bfregs at 64,
    }
    query_device_resp = "struct ib_uverbs_query_device_resp", 176 {
        fw_ver at 0, node_guid at 8, sys_image_guid at 16, max_mr_size at 24, page_size_cap at 32, vendor_id at 40,
        vendor_part_id at 44, hw_ver at 48, max_qp at 52, max_qp_wr at 56, device_cap_flags at 60, max_sge at 64,
        max_sge_rd at 68, max_cq at 72, max_cqe at 76, max_mr at 80, max_pd at 84, max_qp_rd_atom at 88, max_res_rd_atom at 96,
        max_qp_init_rd_atom at 100, atomic_cap at 108, max_mw at 120, max_ah at 144, max_pkeys at 168, max_srq at 156,
        max_srq_wr at 160, max_srq_sge at 164, local_ca_ack_delay at 170, phys_port_cnt at 171,
    }
    /// Answer to the extended QUERY_DEVICE; the plain answer is its first part.
    ex_query_device_resp = "struct ib_uverbs_ex_query_device_resp", 304 {
        response_length at 180, timestamp_mask at 208, hca_core_clock at 216, device_cap_flags_ex at 224,
    }
    mlx5_query_device_resp = "struct mlx5_ib_query_device_resp", 104 { response_length at 4, flags at 60 }
    query_port_resp = "struct ib_uverbs_query_port_resp_ex", 48 {
        port_cap_flags("legacy_resp.port_cap_flags") at 0, max_msg_sz("legacy_resp.max_msg_sz") at 4,
        gid_tbl_len("legacy_resp.gid_tbl_len") at 16, pkey_tbl_len("legacy_resp.pkey_tbl_len") at 20,
        lid("legacy_resp.lid") at 22, sm_lid("legacy_resp.sm_lid") at 24, state("legacy_resp.state") at 26,
        max_mtu("legacy_resp.max_mtu") at 27, active_mtu("legacy_resp.active_mtu") at 28,
        max_vl_num("legacy_resp.max_vl_num") at 30, subnet_timeout("legacy_resp.subnet_timeout") at 32,
        active_width("legacy_resp.active_width") at 34, active_speed("legacy_resp.active_speed") at 35,
        phys_state("legacy_resp.phys_state") at 36, link_layer("legacy_resp.link_layer") at 37, flags("legacy_resp.flags") at 38,
    }
    gid_entry = "struct ib_uverbs_gid_entry", 32 {
        gid at 0, gid_index at 16, port_num at 20, gid_type at 24, netdev_ifindex at 28,
    }
    alloc_pd_resp = "struct ib_uverbs_alloc_pd_resp", 4 { pd_handle at 0 }
    mlx5_alloc_pd_resp = "struct mlx5_ib_alloc_pd_resp", 4 { pdn at 0 }
    reg_mr = "struct ib_uverbs_reg_mr", 40 {
        start at 8, length at 16, iova("hca_va") at 24, pd("pd_handle") at 32, access("access_flags") at 36,
    }
    reg_mr_resp = "struct ib_uverbs_reg_mr_resp", 12 { mr_handle at 0, lkey at 4, rkey at 8 }
    rereg_mr = "struct ib_uverbs_rereg_mr", 48 {
        mr("mr_handle") at 8, flags at 12, start at 16, length at 24, iova("hca_va") at 32, pd("pd_handle") at 40,
        access("access_flags") at 44,
    }
    rereg_mr_resp = "struct ib_uverbs_rereg_mr_resp", 8 { lkey at 0, rkey at 4 }
    alloc_mw = "struct ib_uverbs_alloc_mw", 16 { pd_handle at 8, mw_type at 12 }
    alloc_mw_resp = "struct ib_uverbs_alloc_mw_resp", 8 { mw_handle at 0, rkey at 4 }
    mlx5_alloc_mw = "struct mlx5_ib_alloc_mw", 8 { comp_mask at 0, num_klms at 4, reserved1 at 5, reserved2 at 6 }
    resize_cq = "struct ib_uverbs_resize_cq", 16 { cq_handle at 8, cqe at 12 }
    resize_cq_resp = "struct ib_uverbs_resize_cq_resp", 8 { cqe at 0 }
    mlx5_resize_cq = "struct mlx5_ib_resize_cq", 16 { buf_addr at 0, cqe_size at 8, reserved0 at 10, reserved1 at 12 }
    create_comp_channel_resp = "struct ib_uverbs_create_comp_channel_resp", 4 { fd at 0 }
    create_cq = "struct mlx5_ib_create_cq", 32 {
        buf_addr at 0, db_addr at 8, cqe_size at 16, cqe_comp_en at 20, flags at 22, uar_page_index at 24,
    }
    create_cq_resp = "struct mlx5_ib_create_cq_resp", 8 { cqn at 0 }
    destroy_cq_resp = "struct ib_uverbs_destroy_cq_resp", 8 { comp_events_reported at 0, async_events_reported at 4 }
    qp_cap = "struct ib_uverbs_qp_cap", 20 {
        max_send_wr at 0, max_recv_wr at 4, max_send_sge at 8, max_recv_sge at 12, max_inline_data at 16,
    }
    create_qp = "struct mlx5_ib_create_qp", 56 {
        buf_addr at 0, db_addr at 8, sq_wqe_count at 16, rq_wqe_count at 20, rq_wqe_shift at 24, flags at 28, uidx at 32,
        bfreg_index at 36, sq_buf_addr at 40,
    }
    create_qp_resp = "struct mlx5_ib_create_qp_resp", 40 { bfreg_index at 0 }
    destroy_qp_resp = "struct ib_uverbs_destroy_qp_resp", 4 { events_reported at 0 }
    mlx5_create_srq = "struct mlx5_ib_create_srq", 32 {
        buf_addr at 0, db_addr at 8, flags at 16, reserved0 at 20, uidx at 24, reserved1 at 28,
    }
    mlx5_create_srq_resp = "struct mlx5_ib_create_srq_resp", 8 { srqn at 0 }
    modify_srq = "struct ib_uverbs_modify_srq", 16 { srq_handle at 0, attr_mask at 4, max_wr at 8, srq_limit at 12 }
    query_srq = "struct ib_uverbs_query_srq", 16 { srq_handle at 8 }
    query_srq_resp = "struct ib_uverbs_query_srq_resp", 16 { max_wr at 0, max_sge at 4, srq_limit at 8 }
    destroy_srq_resp = "struct ib_uverbs_destroy_srq_resp", 4 { events_reported at 0 }
    /// Path of a QP, in modify and query.
    qp_dest = "struct ib_uverbs_qp_dest", 32 {
        dgid at 0, flow_label at 16, dlid at 20, sgid_index at 24, hop_limit at 25, traffic_class at 26, sl at 27,
        is_global at 30, port_num at 31,
    }
    modify_qp = "struct ib_uverbs_modify_qp", 112 {
        dest at 0, qp_handle at 64, mask("attr_mask") at 68, qkey at 72, rq_psn at 76, sq_psn at 80, dest_qpn("dest_qp_num") at 84,
        access("qp_access_flags") at 88, pkey_index at 92, state("qp_state") at 96, current_state("cur_qp_state") at 97,
        path_mtu at 98, max_rd_atomic at 101, max_dest_rd_atomic at 102, min_rnr_timer at 103, port("port_num") at 104,
        timeout at 105, retry_count("retry_cnt") at 106, rnr_retry at 107,
    }
    ex_modify_qp_resp = "struct ib_uverbs_ex_modify_qp_resp", 8 { response_length at 4 }
    mlx5_modify_qp_resp = "struct mlx5_ib_modify_qp_resp", 16 { response_length at 0 }
    query_qp = "struct ib_uverbs_query_qp", 16 { qp_handle at 8, attr_mask at 12 }
    query_qp_resp = "struct ib_uverbs_query_qp_resp", 128 {
        dest at 0, max_send_wr at 64, max_recv_wr at 68, max_send_sge at 72, max_recv_sge at 76, max_inline_data at 80,
        qkey at 84, rq_psn at 88, sq_psn at 92, dest_qpn("dest_qp_num") at 96, access("qp_access_flags") at 100, pkey_index at 104,
        state("qp_state") at 108, current_state("cur_qp_state") at 109, path_mtu at 110, sq_draining at 112, max_rd_atomic at 113,
        max_dest_rd_atomic at 114, min_rnr_timer at 115, port("port_num") at 116, timeout at 117, retry_count("retry_cnt") at 118,
        rnr_retry at 119, sq_sig_all at 122,
    }
    create_ah = "struct ib_uverbs_create_ah", 56 {
        user_handle at 8, pd_handle at 16, dgid("attr.grh.dgid") at 24, flow_label("attr.grh.flow_label") at 40,
        sgid_index("attr.grh.sgid_index") at 44, hop_limit("attr.grh.hop_limit") at 45,
        traffic_class("attr.grh.traffic_class") at 46, dlid("attr.dlid") at 48, sl("attr.sl") at 50,
        is_global("attr.is_global") at 53, port_num("attr.port_num") at 54,
    }
    create_ah_resp = "struct ib_uverbs_create_ah_resp", 4 { ah_handle at 0 }
    mlx5_create_ah_resp = "struct mlx5_ib_create_ah_resp", 16 { response_length at 0, dmac at 4 }
    /// Header of every write to `/dev/infiniband/rdma_cm`; the command follows.
    ucm_hdr = "struct rdma_ucm_cmd_hdr", 8 { cmd at 0, len_in("in") at 4, out at 6 }
    ucm_create_id = "struct rdma_ucm_create_id", 24 { uid at 0, response at 8, ps at 16, qp_type at 18 }
    /// DESTROY_ID, and LEAVE_MCAST.
    ucm_destroy_id = "struct rdma_ucm_destroy_id", 16 { response at 0, id at 8 }
    ucm_bind = "struct rdma_ucm_bind", 136 { id at 0, addr_size at 4, reserved at 6, addr at 8 }
    ucm_resolve_addr = "struct rdma_ucm_resolve_addr", 272 {
        id at 0, src_size at 8, dst_size at 10, reserved at 12, src("src_addr") at 16, dst("dst_addr") at 144,
    }
    ucm_resolve_route = "struct rdma_ucm_resolve_route", 8 { id at 0, timeout_ms at 4 }
    ucm_query = "struct rdma_ucm_query", 16 { response at 0, id at 8, option at 12 }
    /// Answer to QUERY for addresses and GIDs.
    ucm_query_addr_resp = "struct rdma_ucm_query_addr_resp", 280 {
        node_guid at 0, port_num at 8, pkey at 10, src_size at 12, dst_size at 14, src("src_addr") at 16, dst("dst_addr") at 144,
        ibdev_index at 272,
    }
    /// Answer to QUERY for paths; they follow.
    ucm_query_path_resp = "struct rdma_ucm_query_path_resp", 8 { num_paths at 0 }
    /// One of these paths.
    path_rec_data = "struct ib_path_rec_data", 72 { flags at 0, path_rec at 8 }
    /// What a connection is to be.
    ucm_conn_param = "struct rdma_ucm_conn_param", 272 {
        qp_num at 0, qkey at 4, private_data at 8, private_data_len at 264, srq at 265, responder_resources at 266,
        initiator_depth at 267, flow_control at 268, retry_count at 269, rnr_retry_count at 270, valid at 271,
    }
    /// What a datagram service has.
    ucm_ud_param = "struct rdma_ucm_ud_param", 304 {
        qp_num at 0, qkey at 4, ah_attr at 8, private_data at 40, private_data_len at 296,
    }
    ucm_connect = "struct rdma_ucm_connect", 288 { conn_param at 0, id at 272 }
    ucm_listen = "struct rdma_ucm_listen", 8 { id at 0, backlog at 4 }
    ucm_accept = "struct rdma_ucm_accept", 296 { uid at 0, conn_param at 8, id at 280 }
    ucm_reject = "struct rdma_ucm_reject", 264 { id at 0, private_data_len at 4, reason at 5, private_data at 8 }
    ucm_init_qp_attr = "struct rdma_ucm_init_qp_attr", 16 { response at 0, id at 8, qp_state at 12 }
    ucm_notify = "struct rdma_ucm_notify", 8 { id at 0, event at 4 }
    /// An event, the answer to GET_EVENT.
    ucm_event_resp = "struct rdma_ucm_event_resp", 336 {
        uid at 0, id at 8, event at 12, status at 16, param at 20, reserved at 324,
    }
    ucm_set_option = "struct rdma_ucm_set_option", 24 { optval at 0, id at 8, level at 12, optname at 16, optlen at 20 }
    ucm_migrate_id = "struct rdma_ucm_migrate_id", 16 { response at 0, id at 8, fd at 12 }
    ucm_join_mcast = "struct rdma_ucm_join_mcast", 152 { id at 16 }
    /// Attributes of a QP, the answer to INIT_QP_ATTR.
    uverbs_qp_attr = "struct ib_uverbs_qp_attr", 144 {
        mask("qp_attr_mask") at 0, state("qp_state") at 4, path_mtu at 12, qkey at 20, rq_psn at 24, sq_psn at 28,
        dest_qp_num at 32, access_flags("qp_access_flags") at 36, ah_attr at 40, pkey_index at 124, max_rd_atomic at 130,
        max_dest_rd_atomic at 131, min_rnr_timer at 132, port_num at 133, timeout at 134, retry_cnt at 135, rnr_retry at 136,
    }
    /// An address vector as the kernel writes it.
    uverbs_ah_attr = "struct ib_uverbs_ah_attr", 32 {
        dgid("grh.dgid") at 0, flow_label("grh.flow_label") at 16, sgid_index("grh.sgid_index") at 20,
        hop_limit("grh.hop_limit") at 21, traffic_class("grh.traffic_class") at 22, dlid at 24, sl at 26, is_global at 29,
        port_num at 30,
    }
    /// The clock page that turns completion timestamps into wall-clock time.
    clock_info = "struct mlx5_ib_clock_info", 56 {
        sign at 0, nsec at 8, cycles at 16, frac at 24, mult at 32, shift at 36, mask at 40, overflow_period at 48,
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

/// A struct being built, with those fields of a value that it has by the same name.
macro_rules! put {
    ($writer:expr, $layout:ident, $value:expr; $($number:ident: $($field:ident),+);+) => {
        $writer$($(.$number($layout::$field, $value.$field))+)+
    };
}
pub(crate) use put;

/// A value of the fields that a struct has by the same name, and of others.
macro_rules! take {
    ($type:ident, $layout:ident, $from:expr; $($number:ident: $($field:ident),+);+ => { $($other:ident: $value:expr),* $(,)? }) => {
        $type { $($($field: $from.$number($layout::$field),)+)+ $($other: $value),* }
    };
}
pub(crate) use take;

/// The address vector in a struct that has its fields.
macro_rules! read_address {
    ($layout:ident, $from:expr) => {
        $crate::abi::layout::take!(
            AddressVector, $layout, $from;
            u16: dlid; u32: flow_label; u8: sgid_index, sl, hop_limit, traffic_class => {
                dgid: ($from.u8($layout::is_global) != 0).then(|| $from.array($layout::dgid)),
                port: $from.u8($layout::port_num),
            }
        )
    };
}
pub(crate) use read_address;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// Answers that newer kernels lengthened, and sizes there; a driver takes as much as its headers have.
    const LENGTHENED: &[(&str, usize)] = &[("struct mlx5_ib_query_device_resp", 112)];

    /// The system's headers are the golden source: a C compiler checks every size and offset of this file.
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
        let built = Writer::<{ reg_mr_resp::SIZE }>::new().u32(reg_mr_resp::lkey, 0x1234).finish();
        assert_eq!(Reader(&built).u32(reg_mr_resp::lkey), 0x1234);
        assert_eq!(Reader(&built).u32(reg_mr_resp::rkey), 0);
    }
}
