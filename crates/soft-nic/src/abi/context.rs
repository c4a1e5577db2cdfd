//! The DEVICE object: context, ports, GIDs, capabilities; and the asynchronous event file.
//!
//! Follows Linux `uverbs_std_types_device.c` and, for the mlx5 part, `mlx5_ib_alloc_ucontext` in
//! `drivers/infiniband/hw/mlx5/main.c`.

use mlx5_device::command::{refusal, refuse_if};
use mlx5_device::model::{DeviceConfig, VENDOR_OUI};
use mlx5_device::{Answer, Commands};

use super::attributes::{UHW_IN, UHW_OUT, kernel};
use super::clock::CORE_CLOCK_KHZ;
use super::layout::{
    Writer, alloc_ucontext_req, alloc_ucontext_resp, ex_query_device_resp, gid_entry, mlx5_query_device_resp,
    put, query_device_resp, query_port_resp, words,
};
use super::server::{Call, Server};
use super::write::CORE_OUT;
use crate::config::LinkLayer;
use crate::sysfs::{PKEY_TABLE_LENGTH, gid_table_length, port_capabilities, port_state};

/// `IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS`: the optional access bits may be passed.
const CORE_SUPPORT: u64 = 1;
/// `MLX5_LIB_CAP_DYN_UAR`: the library asks for UAR pages one by one. All of rdma-core 39 to 64 do.
const LIB_CAP_DYN_UAR: u64 = 1 << 1;

/// `MLX5_IB_ALLOC_UCTX_DEVX`: objects made by firmware commands. libmlx5 asks at every open, and opens
/// without when refused. A program that asks (`MLX5DV_CONTEXT_FLAGS_DEVX`) gets no context, and falls back.
const FLAG_DEVX: u32 = 1;

/// GET_CONTEXT: the device's context for this open.
pub fn get_context<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let (server, command) = (call.server, call.command);
    refuse_if!(call.file.context.is_some(), EINVAL, "this open has a context already");
    let request = command.input(UHW_IN).ok_or_else(|| command.missing(UHW_IN))?;
    // First, since libmlx5 tries each refused request again in its older, shorter forms.
    let flags = request.u32(alloc_ucontext_req::flags);
    if flags != 0 {
        // What `mlx5_ib_devx_create` says of a card without contexts for users (`log_max_uctx` 0).
        let what = if flags == FLAG_DEVX { "DEVX" } else { "flags" };
        return Err(refusal!(EINVAL, "GET_CONTEXT with {what} ({flags:#x}): this device has none"));
    }
    let lib_caps = request.u64(alloc_ucontext_req::lib_caps);
    refuse_if!(
        lib_caps & LIB_CAP_DYN_UAR == 0,
        EOPNOTSUPP,
        "library capabilities {lib_caps:#x}: only dynamic UARs are supported (rdma-core 39 has them)"
    );
    let version = request.u8(alloc_ucontext_req::max_cqe_version);
    refuse_if!(version == 0, EOPNOTSUPP, "CQE version {version}: CQEs here carry user indexes (version 1)");
    let comp_mask = request.u32(alloc_ucontext_req::comp_mask);
    refuse_if!(comp_mask != 0, EOPNOTSUPP, "unknown comp_mask {comp_mask:#x} in GET_CONTEXT");
    let capabilities = call.device()?.model.capabilities();
    let context = call.nic()?.open_context(usize::from(call.file.device))?;
    use alloc_ucontext_resp as at;
    let response = Writer::<{ at::SIZE }>::new()
        .u32(at::qp_tab_size, 1 << 18)
        .u32(at::bf_reg_size, 512)
        // 0 static registers: the library allocates UAR pages as it needs them.
        .u32(at::tot_bfregs, 0)
        .u32(at::cache_line_size, 64)
        .u16(at::max_sq_desc_sz, 1024)
        .u16(at::max_rq_desc_sz, capabilities.max_recv_descriptor_bytes as u16)
        .u32(at::max_send_wqebb, capabilities.max_qp_wr)
        .u32(at::max_recv_wr, capabilities.max_qp_wr)
        .u32(at::max_srq_recv_wr, capabilities.max_srq_wr + 1)
        .u16(at::num_ports, server.ports_each.into())
        // Bit 0: `hca_core_clock_offset` is valid.
        .u32(at::comp_mask, 1)
        .u32(at::response_length, at::SIZE as u32)
        // Version 1: CQEs carry the user index, not the QPN.
        .u8(at::cqe_version, 1)
        // QUERY_DEVICE and CREATE_AH have an mlx5 part.
        .u8(at::cmds_supp_uhw, 3)
        // 1 = no inline header required of Ethernet sends.
        .u8(at::eth_min_inline, 1)
        .u8(at::clock_info_versions, 1)
        .u64(at::hca_core_clock_offset, 0)
        .u32(at::log_uar_size, 12)
        .u32(at::num_uars_per_page, 1)
        .u32(at::num_dyn_bfregs, 512)
        .finish();
    let write = || {
        command.write(0, &(server.machine.processors as u32).to_ne_bytes())?;
        command.write(1, &CORE_SUPPORT.to_ne_bytes())?;
        command.write(UHW_OUT, &response)
    };
    server.or_undo(write, |nic| {
        nic.close_context(context);
        Ok(())
    })?;
    call.file.context = Some(context);
    Ok(())
}

pub fn query_port<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    call.context()?;
    let (place, device) = call.port(call.command.number(0).unwrap_or(0))?;
    let ethernet = device.link_layer == LinkLayer::Roce;
    let down = call.nic()?.port_is_down(place);
    let [(state, _), (physical, _)] = port_state(device.link_layer, down);
    use query_port_resp as at;
    let response = Writer::<{ at::SIZE }>::new()
        .u32(at::port_cap_flags, port_capabilities(device.link_layer))
        .u32(at::max_msg_sz, device.model.capabilities().max_message_bytes)
        .u32(at::gid_tbl_len, gid_table_length(device.link_layer))
        .u16(at::pkey_tbl_len, PKEY_TABLE_LENGTH)
        .u16(at::lid, device.lid)
        .u16(at::sm_lid, u16::from(!ethernet))
        .u8(at::state, state)
        .u8(at::max_mtu, 5)
        .u8(at::active_mtu, device.mtu)
        .u8(at::max_vl_num, 2)
        .u8(at::subnet_timeout, 18)
        // 4x
        .u8(at::active_width, 2)
        .u8(at::active_speed, device.model.identity().active_speed)
        .u8(at::phys_state, physical)
        .u8(at::link_layer, if ethernet { 2 } else { 1 })
        // IB_UVERBS_QPF_GRH_REQUIRED
        .u8(at::flags, u8::from(ethernet))
        .finish();
    call.command.write(1, &response)
}

fn gid<D: Commands>(server: &Server<D>, device: &DeviceConfig, at: usize) -> Option<[u8; gid_entry::SIZE]> {
    let entry = device.gids.get(at)?;
    let interface = if device.link_layer == LinkLayer::Roce { server.machine.interface_index } else { 0 };
    let built = Writer::<{ gid_entry::SIZE }>::new()
        .bytes(gid_entry::gid, &entry.gid)
        .u32(gid_entry::gid_index, at as u32)
        .u32(gid_entry::port_num, device.port.into())
        .u32(gid_entry::gid_type, entry.kind as u32)
        .u32(gid_entry::netdev_ifindex, interface);
    Some(built.finish())
}

/// QUERY_GID_ENTRY: `ENODATA` for an empty entry, `EINVAL` past the table.
pub fn query_gid_entry<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    call.context()?;
    let command = call.command;
    let (_, device) = call.port(command.number(0).unwrap_or(0))?;
    let (index, flags) = (command.number32(1).unwrap_or(0), command.number32(2).unwrap_or(0));
    refuse_if!(flags != 0, EINVAL, "unknown flags {flags:#x} in QUERY_GID_ENTRY");
    let length = gid_table_length(device.link_layer);
    refuse_if!(index >= length, EINVAL, "GID index {index} is beyond the table of {length}");
    match gid(call.server, device, index as usize) {
        Some(entry) => command.write(3, &entry),
        None => Err(refusal!(ENODATA, "GID {index} is empty")),
    }
}

/// QUERY_GID_TABLE: the entries in use, in elements of the size that the library asks for.
pub fn query_gid_table<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    call.context()?;
    let (server, command, opened) = (call.server, call.command, call.file.device);
    let ports = server.ports.iter().filter(|port| port.index == opened);
    let gids = ports.flat_map(|port| (0..port.gids.len()).filter_map(|at| gid(server, port, at)));
    let gids: Vec<_> = gids.collect();
    let (size, count) = (command.number(0).unwrap_or(0), gids.len());
    let known = command.number32(1).unwrap_or(0) == 0 && (1..=4096).contains(&size);
    refuse_if!(!known, EINVAL, "QUERY_GID_TABLE with entries of {size} bytes");
    let (size, room) = (size as usize, command.room(2));
    refuse_if!(count * size > room, EINVAL, "{room} bytes of room for {count} GIDs");
    let mut table = Vec::new();
    for (place, entry) in gids.iter().enumerate() {
        table.extend_from_slice(&entry[..size.min(entry.len())]);
        table.resize((place + 1) * size, 0);
    }
    command.write(2, &table)?;
    command.write(3, &(count as u64).to_ne_bytes())
}

/// ASYNC_EVENT.ALLOC: a file that asynchronous events are read from.
pub fn alloc_async_event<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let made = call.server.events.create_asynchronous(call.context()?);
    call.command.give(0, made.map_err(|error| kernel(&error))? as u64)
}

/// The 176 bytes that plain and extended QUERY_DEVICE share.
fn device_attributes(device: &DeviceConfig, ports: u8) -> Writer<{ ex_query_device_resp::SIZE }> {
    let capabilities = device.model.capabilities();
    use query_device_resp as at;
    let attributes = Writer::new()
        .u64(at::fw_ver, device.model.firmware_number())
        .bytes(at::node_guid, &device.guid.to_be_bytes())
        .bytes(at::sys_image_guid, &device.guid.to_be_bytes())
        .u32(at::vendor_id, VENDOR_OUI)
        .u32(at::vendor_part_id, u32::from(device.model.identity().pci_device))
        // IB_ATOMIC_HCA: atomic with respect to other requests of this NIC.
        .u32(at::atomic_cap, 1)
        .u8(at::phys_port_cnt, ports);
    put!(
        attributes, at, capabilities;
        u64: max_mr_size, page_size_cap;
        u32: max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
            max_res_rd_atom, max_qp_init_rd_atom, max_mw, max_ah, max_srq, max_srq_wr, max_srq_sge;
        u16: max_pkeys;
        u8: local_ca_ack_delay
    )
}

pub fn query_device<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let attributes = device_attributes(call.device()?, call.server.ports_each).finish();
    call.command.write(CORE_OUT, &attributes[..query_device_resp::SIZE])
}

pub fn ex_query_device<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    call.context()?;
    let (device, command) = (call.device()?, call.command);
    let (comp_mask, reserved) = (call.core_in.u32(0), call.core_in.u32(4));
    refuse_if!(comp_mask != 0, EINVAL, "unknown comp_mask {comp_mask:#x} in QUERY_DEVICE");
    refuse_if!(reserved != 0, EINVAL, "reserved word {reserved:#x} of QUERY_DEVICE is not 0");
    use ex_query_device_resp as at;
    let flags = u64::from(device.model.capabilities().device_cap_flags);
    let room = command.room(CORE_OUT).min(at::SIZE);
    let attributes = device_attributes(device, call.server.ports_each)
        .u32(at::response_length, room as u32)
        .u64(at::timestamp_mask, u64::MAX)
        .u64(at::hca_core_clock, CORE_CLOCK_KHZ)
        .u64(at::device_cap_flags_ex, flags)
        .finish();
    command.write(CORE_OUT, &attributes)?;
    let room = command.room(UHW_OUT).min(mlx5_query_device_resp::SIZE);
    command.write(UHW_OUT, &words!(mlx5_query_device_resp, response_length = room as u32))
}
