//! What a program is told of an id: addresses, GIDs, the path (`QUERY`), a QP's attributes (`INIT_QP_ATTR`).
//!
//! Linux's `ucma.c` (`ucma_query_*`, `ucma_copy_iboe_route`); for a QP, `cm_init_qp_*_attr` of `cm.c`.

use mlx5_device::Answer;
use mlx5_device::command::{refusal, refuse_if};
use mlx5_device::model::DeviceConfig;
use roce::cm::{ConnectionId, State};
use roce::qp_state::AttrMask;
use roce::wire::bth::DEFAULT_PKEY;

use super::address::Address;
use super::call::{Call, CallContext};
use super::connect::{UDP_QKEY, address_vector, life_time, path};
use super::ids::{Id, Ids, Stage, qp_type, service_id, space};
use crate::abi::layout::{
    Writer, path_rec_data, ucm_init_qp_attr, ucm_query, ucm_query_addr_resp, ucm_query_path_resp,
    uverbs_qp_attr, words,
};

/// `IB_PATH_GMP`, `_PRIMARY`, `_BIDIRECTIONAL`.
const PATH_FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;
/// Selector «exactly».
const EXACTLY: u8 = 2;

pub fn query(call: &Call, ids: &Ids, context: &CallContext<'_>) -> Answer<()> {
    let (number, response) = (call.fields().u32(ucm_query::id), call.fields().u64(ucm_query::response));
    let id = ids.id(context.file, number)?;
    match call.fields().u32(ucm_query::option) {
        option @ (0 | 2) => {
            call.need_room(ucm_query_addr_resp::ibdev_index)?;
            call.respond(context.memory, response, &addresses(ids, id, option == 2))
        }
        1 => {
            call.need_room(ucm_query_path_resp::SIZE)?;
            call.respond(context.memory, response, &paths(ids, id, call.room))
        }
        other => Err(refusal!(ENOSYS, "QUERY for {other}")),
    }
}

/// Addresses as they are, or as GIDs.
fn addresses(ids: &Ids, id: &Id, as_gids: bool) -> [u8; ucm_query_addr_resp::SIZE] {
    use ucm_query_addr_resp as at;
    let [source, destination] = [id.source, id.destination].map(|address| match as_gids {
        true => Address::ib(ids.gid_at(address).unwrap_or_default(), service_id(id.space, address)),
        false => address,
    });
    let answer = Writer::new()
        .u16(at::src_size, source.size() as u16)
        .u16(at::dst_size, destination.size() as u16)
        .bytes(at::src, &source.write())
        .bytes(at::dst, &destination.write());
    let Some(device) = ids.device(id) else { return answer.finish() };
    answer
        .bytes(at::node_guid, &device.guid.to_be_bytes())
        .u8(at::port_num, device.port)
        .bytes(at::pkey, &DEFAULT_PKEY.to_be_bytes())
        .u32(at::ibdev_index, device.index.into())
        .finish()
}

/// The one path, a subnet administrator's 64-byte record (IBTA vol. 1 §15.2.5.16), if there is one and room.
fn paths(ids: &Ids, id: &Id, room: usize) -> Vec<u8> {
    let has_route = matches!(id.stage, Stage::RouteResolved | Stage::Connected | Stage::Disconnected);
    let device = ids.device(id).filter(|_| has_route);
    let count = u32::from(device.is_some());
    let mut answer = words!(ucm_query_path_resp, num_paths = count).to_vec();
    if let Some(device) = device
        && room >= ucm_query_path_resp::SIZE + path_rec_data::SIZE
    {
        let path = path(&ids.devices, id, device);
        // A kernel shows no LIDs of RoCE.
        let [dlid, slid] =
            [path.remote_lid, path.local_lid].map(|lid| if path.subnet_local { lid } else { 0 });
        let selected = EXACTLY << 6;
        let record = Writer::<64>::new()
            .bytes(8, &path.remote_gid.0)
            .bytes(24, &path.local_gid.0)
            .bytes(40, &dlid.to_be_bytes())
            .bytes(42, &slid.to_be_bytes())
            .bytes(44, &(path.flow_label << 8 | u32::from(path.hop_limit)).to_be_bytes())
            .u8(48, path.traffic_class)
            // Reversible, one path.
            .u8(49, 0x81)
            .bytes(50, &DEFAULT_PKEY.to_be_bytes())
            .u8(54, selected | device.mtu)
            .u8(55, selected | path.rate)
            .u8(56, selected | life_time(id))
            .finish();
        let data = Writer::<{ path_rec_data::SIZE }>::new().u32(path_rec_data::flags, PATH_FLAGS);
        answer.extend(data.bytes(path_rec_data::path_rec, &record).finish());
    }
    answer
}

/// INIT_QP_ATTR: what a QP is to be set to for its next state.
pub fn init_qp_attr(call: &Call, ids: &Ids, context: &CallContext<'_>) -> Answer<()> {
    use uverbs_qp_attr as at;
    call.need_room(at::SIZE)?;
    let fields = call.fields();
    let (number, response) = (fields.u32(ucm_init_qp_attr::id), fields.u64(ucm_init_qp_attr::response));
    let state = fields.u32(ucm_init_qp_attr::qp_state);
    refuse_if!(state > 6, EINVAL, "QP state {state} is not in 0..=6");
    let (id, device) = ids.id_with_device(context.file, number)?;
    let answer = match id.connection {
        Some(connection) if id.qp_type != qp_type::UD => connected(ids, (id, device), connection, state)?,
        _ => unconnected(id, device.port),
    };
    call.respond(context.memory, response, &answer.u32(at::state, state).finish())
}

type Attributes = Writer<{ uverbs_qp_attr::SIZE }>;

fn mask(set: &[AttrMask]) -> u32 {
    set.iter().fold(AttrMask::STATE.0, |mask, attribute| mask | attribute.0)
}

/// Before there is a connection, and for datagrams: what INIT takes.
fn unconnected(id: &Id, port: u8) -> Attributes {
    use AttrMask as A;
    use uverbs_qp_attr as at;
    let attributes = Writer::new().u8(at::port_num, port);
    if id.qp_type != qp_type::UD {
        return attributes.u32(at::mask, mask(&[A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS]));
    }
    let qkey = match (id.qkey, id.space) {
        (0, space::UDP | space::IPOIB) => UDP_QKEY,
        (qkey, _) => qkey,
    };
    attributes.u32(at::mask, mask(&[A::PKEY_INDEX, A::PORT, A::QKEY])).u32(at::qkey, qkey)
}

/// As far as the connection is.
fn connected(
    ids: &Ids,
    (id, device): (&Id, &DeviceConfig),
    connection: ConnectionId,
    state: u32,
) -> Answer<Attributes> {
    use AttrMask as A;
    use uverbs_qp_attr as at;
    let known = ids.cm.state(connection).zip(ids.cm.attributes(connection));
    let (stands, known) = known.ok_or_else(|| refusal!(EINVAL, "INIT_QP_ATTR: {connection:?} has ended"))?;
    let asking = stands.takes_rep();
    let goes_on = stands == State::Established || stands.may_reject() && !asking;
    let reliable = known.transport == 0;
    match state {
        // INIT
        1 if asking || goes_on => {
            /// REMOTE_WRITE, and with responder resources REMOTE_READ and REMOTE_ATOMIC.
            const ACCESS: [u32; 2] = [1 << 1, 1 << 1 | 1 << 2 | 1 << 3];
            Ok(Writer::new()
                .u32(at::mask, mask(&[A::ACCESS_FLAGS, A::PKEY_INDEX, A::PORT]))
                .u32(at::access_flags, ACCESS[usize::from(known.responder_resources > 0)])
                .u8(at::port_num, device.port))
        }
        // RTR
        2 if goes_on => {
            let common = mask(&[A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN]);
            let more = if reliable { mask(&[A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]) } else { 0 };
            Ok(Writer::new()
                .u32(at::mask, common | more)
                .bytes(at::ah_attr, &address_vector(device, &known.primary))
                .u32(at::path_mtu, u32::from(known.path_mtu.min(device.mtu)))
                .u32(at::dest_qp_num, known.qpn)
                // Our own, also before the other end was told.
                .u32(at::rq_psn, id.starting_psn)
                .u8(at::max_dest_rd_atomic, known.responder_resources)
                .u8(at::min_rnr_timer, 0))
        }
        // RTS
        3 if goes_on => {
            let more = mask(&[A::TIMEOUT, A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC]);
            Ok(Writer::new()
                .u32(at::mask, mask(&[A::SQ_PSN]) | if reliable { more } else { 0 })
                .u32(at::sq_psn, known.starting_psn)
                .u8(at::timeout, known.primary.ack_timeout)
                .u8(at::retry_cnt, known.retry)
                .u8(at::rnr_retry, known.rnr_retry)
                .u8(at::max_rd_atomic, known.initiator_depth))
        }
        _ => Err(refusal!(EINVAL, "INIT_QP_ATTR for state {state} of a connection in {stands:?}")),
    }
}
