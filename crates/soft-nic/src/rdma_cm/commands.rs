//! The commands of a program but GET_EVENT, each about one of its ids.
//!
//! Numbers and fields: `rdma/rdma_user_cm.h`, ABI 4; errnos as in Linux's `drivers/infiniband/core/ucma.c`.

use mlx5_device::Answer;
use mlx5_device::command::{refusal, refuse_if};

use super::address::Address;
use super::call::{Call, CallContext};
use super::connect::ConnParam;
use super::ids::{Ids, Stage, qp_type, space};
use super::query;
use super::queue::{Queued, event};
use crate::abi::attributes::fault;
use crate::abi::layout::{
    ucm_accept, ucm_bind, ucm_connect, ucm_create_id, ucm_destroy_id, ucm_join_mcast, ucm_listen,
    ucm_migrate_id, ucm_notify, ucm_reject, ucm_resolve_addr, ucm_resolve_route, ucm_set_option,
};

/// Longest value of an option that is looked at.
const MAX_OPTION: usize = 8;
/// `KMALLOC_MAX_SIZE`: a kernel takes no longer value.
const MAX_OPTION_LEN: u32 = 4 << 20;
/// `IB_EVENT_COMM_EST`.
const EVENT_ESTABLISHED: u32 = 4;

pub fn run(call: &Call, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
    let (fields, file, now) = (call.fields(), context.file, context.now);
    match call.command {
        0 => create_id(call, ids, context),
        1 => destroy_id(call, ids, context),
        4 => resolve_route(call, ids, context),
        6 => {
            let id = fields.u32(ucm_connect::id);
            let param = ConnParam::read(fields.0);
            refuse_if!(!param.is_valid(), EINVAL, "CONNECT of id {id} without parameters");
            ids.connect(now, file, id, &param)
        }
        7 => ids.listen(file, fields.u32(ucm_listen::id), fields.u32(ucm_listen::backlog)),
        8 => accept(call, ids, context),
        9 => reject(call, ids, context),
        10 => ids.disconnect(now, file, fields.u32(0)),
        11 => query::init_qp_attr(call, ids, context),
        14 => set_option(call, ids, context),
        15 => {
            let id = fields.u32(ucm_notify::id);
            ids.id_with_device(file, id)?;
            let established = fields.u32(ucm_notify::event) == EVENT_ESTABLISHED;
            if established { ids.establish(file, id) } else { Ok(()) }
        }
        17 => Err(refusal!(ENOENT, "id {} has joined no group", fields.u32(ucm_destroy_id::id))),
        18 => migrate_id(call, ids, context),
        19 => query::query(call, ids, context),
        20 => bind(call, ids, context),
        21 => resolve_addr(call, ids, context),
        22 => {
            ids.id_with_device(file, fields.u32(ucm_join_mcast::id))?;
            Err(refusal!(ENOSYS, "id {}: no multicast on these devices", fields.u32(ucm_join_mcast::id)))
        }
        other => Err(refusal!(ENOSYS, "command {other}")),
    }
}

fn accept(call: &Call, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
    use ucm_accept as at;
    let fields = call.fields();
    let number = fields.u32(at::id);
    let param = ConnParam::read(fields.0.get(at::conn_param..).unwrap_or_default());
    ids.accept(context.now, context.file, number, &param)?;
    if param.is_valid() {
        ids.id_mut(context.file, number)?.uid = fields.u64(at::uid);
    }
    Ok(())
}

fn bind(call: &Call, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
    use ucm_bind as at;
    let fields = call.fields();
    let (address, reserved) = (call.sized(at::addr, fields.u16(at::addr_size))?, fields.u16(at::reserved));
    refuse_if!(reserved != 0, EINVAL, "BIND: reserved word {reserved:#x} is not 0");
    ids.bind(context.file, fields.u32(at::id), address)
}

fn resolve_addr(call: &Call, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
    use ucm_resolve_addr as at;
    let fields = call.fields();
    let source = match fields.u16(at::src_size) {
        0 => Address::None,
        size => call.sized(at::src, size)?,
    };
    let (destination, reserved) = (call.sized(at::dst, fields.u16(at::dst_size))?, fields.u32(at::reserved));
    refuse_if!(reserved != 0, EINVAL, "RESOLVE_ADDR: reserved word {reserved:#x} is not 0");
    ids.resolve_addr(context.file, fields.u32(at::id), source, destination)
}

fn create_id(call: &Call, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
    use ucm_create_id as at;
    call.need_room(4)?;
    let fields = call.fields();
    let port_space = fields.u16(at::ps);
    let kind = match port_space {
        space::TCP => qp_type::RC,
        space::UDP | space::IPOIB => qp_type::UD,
        space::IB => fields.u8(at::qp_type),
        other => return Err(refusal!(EINVAL, "port space {other:#x}")),
    };
    let number = ids.create(context.file, fields.u64(at::uid), port_space, kind);
    let answered = call.respond(context.memory, fields.u64(at::response), &number.to_ne_bytes());
    answered.inspect_err(|_| _ = ids.destroy(context.now, number))
}

fn destroy_id(call: &Call, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
    use ucm_destroy_id as at;
    call.need_room(4)?;
    let fields = call.fields();
    let number = fields.u32(at::id);
    ids.id(context.file, number)?;
    let reported = ids.destroy(context.now, number);
    call.respond(context.memory, fields.u64(at::response), &reported.to_ne_bytes())
}

fn resolve_route(call: &Call, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
    use ucm_resolve_route as at;
    let fields = call.fields();
    let number = fields.u32(at::id);
    let (id, _) = ids.id_with_device(context.file, number)?;
    refuse_if!(fields.u32(at::timeout_ms) == 0, EINVAL, "RESOLVE_ROUTE of id {number} needs a timeout");
    refuse_if!(id.stage != Stage::AddrResolved, EINVAL, "RESOLVE_ROUTE of an id that is {:?}", id.stage);
    ids.id_mut(context.file, number)?.stage = Stage::RouteResolved;
    ids.tell(number, event::ROUTE_RESOLVED, 0);
    Ok(())
}

fn reject(call: &Call, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
    use roce::wire::cm::reason::CONSUMER;
    use ucm_reject as at;
    /// `IB_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED`.
    const VENDOR_OPTION: u16 = 35;
    let fields = call.fields();
    let why = match u16::from(fields.u8(at::reason)) {
        0 | CONSUMER => CONSUMER,
        VENDOR_OPTION => VENDOR_OPTION,
        other => return Err(refusal!(EINVAL, "REJECT for reason {other}")),
    };
    let len = usize::from(fields.u8(at::private_data_len));
    let private = fields.0.get(at::private_data..at::private_data + len).unwrap_or_default();
    ids.reject(context.now, context.file, fields.u32(at::id), why, private)
}

fn set_option(call: &Call, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
    use ucm_set_option as at;
    let fields = call.fields();
    let (number, len) = (fields.u32(at::id), fields.u32(at::optlen));
    let id = ids.id_mut(context.file, number)?;
    refuse_if!(len > MAX_OPTION_LEN, EINVAL, "an option of {len} bytes");
    let mut value = [0; MAX_OPTION];
    let known = (len as usize).min(MAX_OPTION);
    context.memory.read(fields.u64(at::optval), &mut value[..known]).map_err(fault)?;
    let number32 = i32::from_ne_bytes([value[0], value[1], value[2], value[3]]);
    let (level, name) = (fields.u32(at::level), fields.u32(at::optname));
    let size = *[1, 4, 4, 1].get(name as usize).filter(|_| level == 0).unwrap_or(&len);
    refuse_if!(len != size, EINVAL, "SET_OPTION: option {name} of {len} bytes, {size} needed");
    match (level, name) {
        (0, 0) => id.traffic_class = value[0],
        (0, 1) if number32 != 0 || id.stage == Stage::Idle => id.reuse = number32 != 0,
        // Wildcards are of all families here: there is nothing to keep apart.
        (0, 2) if matches!(id.stage, Stage::Idle | Stage::Bound) => {}
        (0, 3) if id.qp_type == qp_type::RC => id.ack_timeout = Some(value[0] & 31),
        (0, 3) => return Err(refusal!(EINVAL, "SET_OPTION: ACK timeout of QP type {}", id.qp_type)),
        (0, 1..=2) => return Err(refusal!(EINVAL, "SET_OPTION {name} of an id that is {:?}", id.stage)),
        (1, 1) => {
            return Err(refusal!(EINVAL, "SET_OPTION: id {number} takes no path record; its route has it"));
        }
        _ => return Err(refusal!(ENOSYS, "option {name} of level {level}")),
    }
    Ok(())
}

fn migrate_id(call: &Call, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
    use ucm_migrate_id as at;
    call.need_room(4)?;
    let fields = call.fields();
    let (number, fd) = (fields.u32(at::id), fields.u32(at::fd) as i32);
    let from = (context.file_of)(fd)
        .filter(|from| ids.files.contains_key(from))
        .ok_or_else(|| refusal!(EINVAL, "MIGRATE_ID: descriptor {fd} is no connection manager"))?;
    let id = ids.id_mut(from, number)?;
    id.file = context.file;
    let reported = id.events_reported;
    let unread: Vec<Queued> = match ids.files.get_mut(&from) {
        Some(queue) if from != context.file => queue.withdraw(number),
        _ => Vec::new(),
    };
    if let Some(queue) = ids.files.get_mut(&context.file) {
        for queued in unread {
            queue.push(queued);
        }
    }
    call.respond(context.memory, fields.u64(at::response), &reported.to_ne_bytes())
}
