//! INVOKE_WRITE: the older commands, each wrapped in an ioctl.
//!
//! Numbers and sizes as in `rdma/ib_user_verbs.h`; errnos as in Linux `uverbs_std_types_device.c`
//! (`UVERBS_METHOD_INVOKE_WRITE`): too short an input or output is `ENOSPC`, an unknown command `EOPNOTSUPP`.
//! The `write` call is not needed: libibverbs asks first (command 1 without input), and `ENOSPC` means yes.
//!
//! Left out: commands that libibverbs sends as a method first, and wraps only where the method is unknown.

use mlx5_device::command::{CommandError, refuse_if};
use mlx5_device::{Answer, Commands};

use super::attributes::{ANY_OUT, Command, UHW, UHW_IN, UHW_OUT, bytes, kernel, may, must, refuse, specs};
use super::layout::{
    Reader, alloc_mw, alloc_mw_resp, alloc_pd_resp, create_ah, create_ah_resp, create_comp_channel_resp,
    ex_query_device_resp, modify_qp, modify_srq, query_device_resp, query_qp, query_qp_resp, query_srq,
    query_srq_resp, reg_mr, reg_mr_resp, rereg_mr, rereg_mr_resp, resize_cq, resize_cq_resp,
};
use super::server::{Call, Handler};
use super::{ah, context, cq, mr, qp, srq};

specs! {
    /// Attributes of INVOKE_WRITE.
    INVOKE {
        may CORE_IN = 0, UHW;
        may CORE_OUT = 1, ANY_OUT;
        must WRITE_CMD = 2, bytes(8);
    }
    may(UHW_IN, UHW), may(UHW_OUT, ANY_OUT)
}

pub const INVOKE_NAME: &str = "DEVICE.INVOKE_WRITE";
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

/// A command: name, least input, least output, and what answers.
#[rustfmt::skip]
fn find<D: Commands>(number: u32) -> Answer<(&'static str, usize, usize, Handler<D>)> {
    Ok(match number {
        0x1 => ("QUERY_DEVICE", 8, query_device_resp::SIZE, context::query_device),
        0x8000_0001 => ("EX_QUERY_DEVICE", 8, ex_query_device_resp::response_length + 4, context::ex_query_device),
        0x3 => ("ALLOC_PD", 8, alloc_pd_resp::SIZE, mr::alloc_pd),
        0x5 => ("CREATE_AH", create_ah::SIZE, create_ah_resp::SIZE, ah::create),
        0x9 => ("REG_MR", reg_mr::SIZE, reg_mr_resp::SIZE, mr::reg),
        0xb => ("REREG_MR", rereg_mr::SIZE, rereg_mr_resp::SIZE, mr::rereg),
        0xe => ("ALLOC_MW", alloc_mw::SIZE, alloc_mw_resp::SIZE, mr::alloc_window),
        0x11 => ("CREATE_COMP_CHANNEL", 8, create_comp_channel_resp::SIZE, create_comp_channel),
        0x13 => ("RESIZE_CQ", resize_cq::SIZE, resize_cq_resp::SIZE, cq::resize),
        0x19 => ("QUERY_QP", query_qp::SIZE, query_qp_resp::SIZE, qp::query),
        0x1a => ("MODIFY_QP", modify_qp::SIZE, 0, qp::modify),
        0x21 => ("MODIFY_SRQ", modify_srq::SIZE, 0, srq::modify),
        0x22 => ("QUERY_SRQ", query_srq::SIZE, query_srq_resp::SIZE, srq::query),
        0x8000_001a => ("EX_MODIFY_QP", modify_qp::SIZE, 0, qp::ex_modify),
        _ => return Err(unknown(number)),
    })
}

/// Name of a command, also of a wrapped one.
pub fn name_of<D: Commands>(command: &Command<'_>) -> &'static str {
    let method = command.method.name;
    let wrapped = command.number32(WRITE_CMD).filter(|_| method == INVOKE_NAME);
    wrapped.and_then(|number| find::<D>(number).ok()).map_or(method, |(name, ..)| name)
}

/// A command that there is not, by its name where a kernel has it.
fn unknown(number: u32) -> CommandError {
    let absent = ABSENT.iter().find(|(absent, _)| *absent == number);
    let name = absent.map_or_else(|| format!("write command {number:#x}"), |(_, name)| (*name).to_owned());
    refuse(libc::EOPNOTSUPP, name)
}

pub fn invoke<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let number = call.command.number32(WRITE_CMD).unwrap_or(0);
    let (name, least_in, least_out, handler) = find(number)?;
    call.core_in = call.command.input(CORE_IN).unwrap_or(Reader(&[]));
    let (given, room) = (call.core_in.0.len(), call.command.room(CORE_OUT));
    let short = given < least_in || room < least_out;
    refuse_if!(short, ENOSPC, "{name}: {given} bytes in, {room} out; {least_in} and {least_out} needed");
    handler(call)
}

fn create_comp_channel<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let made = call.server.events.create_channel(call.context()?);
    call.command.write(CORE_OUT, &made.map_err(|error| kernel(&error))?.to_ne_bytes())
}
