//! INVOKE_WRITE: the older commands, each wrapped in an ioctl.
//!
//! Numbers and sizes as in `rdma/ib_user_verbs.h`; the errnos as in Linux `uverbs_std_types_device.c`
//! (`UVERBS_METHOD_INVOKE_WRITE`): too short an input or output is `ENOSPC`, an unknown command `EOPNOTSUPP`. The `write`
//! system call itself is never needed: libibverbs asks first (command 1 without input) and takes `ENOSPC` for yes.

use mlx5_device::command::refuse_if;
use mlx5_device::{Answer, Commands};

use super::attributes::{CORE_IN, CORE_OUT, Command, WRITE_CMD, Write, refuse};
use super::layout::{
    Reader, alloc_mw, alloc_mw_resp, alloc_pd_resp, create_ah, create_ah_resp, create_comp_channel_resp,
    create_srq, create_srq_resp, destroy_srq, destroy_srq_resp, ex_query_device_resp, modify_qp, modify_srq,
    query_device_resp, query_qp, query_qp_resp, query_srq, query_srq_resp, reg_mr, reg_mr_resp, rereg_mr,
    rereg_mr_resp, resize_cq, resize_cq_resp,
};
use super::server::{OpenFile, Server};
use super::{ah, context, cq, mr, qp, srq};

/// Bit of the extended commands.
const EXTENDED: u32 = 1 << 31;

/// Commands that a kernel knows and this device has not, by name.
const ABSENT: &[(u32, &str)] = &[
    (0x1e, "ATTACH_MCAST"),
    (0x1f, "DETACH_MCAST"),
    (0x25, "OPEN_XRCD"),
    (0x26, "CLOSE_XRCD"),
    (0x27, "CREATE_XSRQ"),
    (0x28, "OPEN_QP"),
    (EXTENDED | 0x32, "EX_CREATE_FLOW"),
    (EXTENDED | 0x33, "EX_DESTROY_FLOW"),
    (EXTENDED | 0x34, "EX_CREATE_WQ"),
    (EXTENDED | 0x35, "EX_MODIFY_WQ"),
    (EXTENDED | 0x36, "EX_DESTROY_WQ"),
    (EXTENDED | 0x37, "EX_CREATE_RWQ_IND_TBL"),
    (EXTENDED | 0x38, "EX_DESTROY_RWQ_IND_TBL"),
    (EXTENDED | 0x39, "EX_MODIFY_CQ"),
];

/// Name, least input, least output.
fn sizes(number: u32) -> Option<(&'static str, usize, usize)> {
    Some(match number {
        0x1 => ("QUERY_DEVICE", 8, query_device_resp::SIZE),
        0x8000_0001 => ("EX_QUERY_DEVICE", 8, ex_query_device_resp::RESPONSE_LENGTH + 4),
        0x3 => ("ALLOC_PD", 8, alloc_pd_resp::SIZE),
        0x4 => ("DEALLOC_PD", 4, 0),
        0x5 => ("CREATE_AH", create_ah::SIZE, create_ah_resp::SIZE),
        0x8 => ("DESTROY_AH", 4, 0),
        0x9 => ("REG_MR", reg_mr::SIZE, reg_mr_resp::SIZE),
        0xb => ("REREG_MR", rereg_mr::SIZE, rereg_mr_resp::SIZE),
        0xd => ("DEREG_MR", 4, 0),
        0xe => ("ALLOC_MW", alloc_mw::SIZE, alloc_mw_resp::SIZE),
        0x10 => ("DEALLOC_MW", 4, 0),
        0x11 => ("CREATE_COMP_CHANNEL", 8, create_comp_channel_resp::SIZE),
        0x13 => ("RESIZE_CQ", resize_cq::SIZE, resize_cq_resp::SIZE),
        0x19 => ("QUERY_QP", query_qp::SIZE, query_qp_resp::SIZE),
        0x1a => ("MODIFY_QP", modify_qp::SIZE, 0),
        0x20 => ("CREATE_SRQ", create_srq::SIZE, create_srq_resp::SIZE),
        0x21 => ("MODIFY_SRQ", modify_srq::SIZE, 0),
        0x22 => ("QUERY_SRQ", query_srq::SIZE, query_srq_resp::SIZE),
        0x23 => ("DESTROY_SRQ", destroy_srq::SIZE, destroy_srq_resp::SIZE),
        0x8000_001a => ("EX_MODIFY_QP", modify_qp::SIZE, 0),
        _ => return None,
    })
}

/// Name of a command, also of a wrapped one.
pub fn name_of(command: &Command<'_>) -> &'static str {
    let wrapped = (command.method.object, command.method.method) == (0, 0);
    let wrapped = command.number32(WRITE_CMD).and_then(sizes).filter(|_| wrapped);
    wrapped.map_or(command.method.name, |(name, ..)| name)
}

/// Runs the wrapped command.
pub fn invoke<D: Commands>(server: &Server<D>, file: &mut OpenFile, command: &Command<'_>) -> Answer<()> {
    let number = command.number32(WRITE_CMD).unwrap_or(0);
    let Some((name, least_in, least_out)) = sizes(number) else {
        let absent = ABSENT.iter().find(|(absent, _)| *absent == number);
        let name =
            absent.map_or_else(|| format!("write command {number:#x}"), |(_, name)| (*name).to_owned());
        return Err(refuse(libc::EOPNOTSUPP, name));
    };
    let core_in = command.input(CORE_IN).unwrap_or(Reader(&[]));
    let (given, room) = (core_in.0.len(), command.room(CORE_OUT));
    let short = given < least_in || room < least_out;
    refuse_if!(short, ENOSPC, "{name}: {given} bytes in, {room} out; {least_in} and {least_out} needed");
    let write = Write { command, core_in };
    match number {
        0x1 => context::query_device(server, file, &write),
        0x8000_0001 => context::ex_query_device(server, file, &write),
        0x3 => mr::alloc_pd(server, file, &write),
        0x4 => server.nic()?.dealloc_pd(file.context()?, core_in.u32(0)),
        0x5 => ah::create(server, file, &write),
        0x8 => server.nic()?.destroy_ah(file.context()?, core_in.u32(0)),
        0x9 => mr::reg(server, file, &write),
        0xb => mr::rereg(server, file, &write),
        0xd => mr::dereg(server, file, core_in.u32(0)),
        0xe => mr::alloc_window(server, file, &write),
        0x10 => server.nic()?.dealloc_mw(file.context()?, core_in.u32(0)),
        0x11 => create_comp_channel(server, file, &write),
        0x13 => cq::resize(server, file, &write),
        0x19 => qp::query(server, file, &write),
        0x1a => qp::modify(server, file, &write, false),
        0x20 => srq::create_plain(server, file, &write),
        0x21 => srq::modify(server, file, &write),
        0x22 => srq::query(server, file, &write),
        0x23 => srq::destroy_plain(server, file, &write),
        _ => qp::modify(server, file, &write, true),
    }
}

fn create_comp_channel<D: Commands>(
    server: &Server<D>,
    file: &mut OpenFile,
    write: &Write<'_>,
) -> Answer<()> {
    let made = server.events.create_channel(file.context()?);
    let fd = made.map_err(|error| refuse(error.raw_os_error().unwrap_or(libc::ENOMEM), error.to_string()))?;
    write.command.write(CORE_OUT, &fd.to_ne_bytes())
}
