//! Connecting: commands to the connection manager, and its events to the program.
//!
//! Constants and fields as Linux's `cma.c` fills requests and `ucma.c` events; see `Req` for their meaning.

use std::net::Ipv6Addr;

use mlx5_device::Answer;
use mlx5_device::command::{CommandError, refusal, refuse_if};
use mlx5_device::model::DeviceConfig;
use roce::Now;
use roce::cm::{Cause, CmError, Event, Route, ack_timeout};
use roce::wire::Gid;
use roce::wire::bth::DEFAULT_PKEY;
use roce::wire::cm::{IpCm, Message, Path, Rep, Req, SidrRep, reason};

use super::address::Address;
use super::ids::{Id, Ids, Stage, gid_index, port_gid, qp_type, service_id, space};
use super::mad_port::EndedProcess;
use super::queue::{MAX_EVENTS, event};
use crate::abi::attributes::refuse;
use crate::abi::layout::{
    Reader, Writer, ucm_conn_param as conn, ucm_event_resp, ucm_ud_param as ud, uverbs_ah_attr as ah,
};
use crate::config::LinkLayer;
use crate::link::mads::AddressedMad;

/// `CMA_CM_MRA_SETTING` without its flag, `CMA_IBOE_PACKET_LIFETIME`.
const MRA_TIMEOUT: u8 = 24;
pub const PACKET_LIFE_TIME: u8 = 18;
/// `enum ib_rate`.
const RATE_100_GBPS: u8 = 16;
const RATE_200_GBPS: u8 = 17;
const RATE_400_GBPS: u8 = 21;
/// Hop limit of RoCE v2.
const HOP_LIMIT: u8 = 64;
/// `RDMA_UDP_QKEY`.
pub const UDP_QKEY: u32 = 0x0123_4567;

/// What the event of a request and that of the reply to one have beside private data.
macro_rules! conn_param {
    ($message:ident) => {
        Writer::new()
            .u32(conn::qp_num, $message.qpn)
            // What they hold, we may have outstanding, and the other way round.
            .u8(conn::responder_resources, $message.initiator_depth)
            .u8(conn::initiator_depth, $message.responder_resources)
            .u8(conn::flow_control, u8::from($message.flow_control))
            .u8(conn::rnr_retry_count, $message.rnr_retry)
            .u8(conn::srq, u8::from($message.srq))
    };
}

/// Parameters of a connection, as the program gives them.
pub struct ConnParam<'c> {
    fields: Reader<'c>,
    private: &'c [u8],
}

impl<'c> ConnParam<'c> {
    pub fn read(bytes: &'c [u8]) -> ConnParam<'c> {
        let fields = Reader(bytes);
        let len = usize::from(fields.u8(conn::private_data_len));
        // At most 255 of 256 bytes of room; a struct that ends before has none.
        let private = bytes.get(conn::private_data..conn::private_data + len).unwrap_or_default();
        ConnParam { fields, private }
    }

    pub fn is_valid(&self) -> bool {
        self.fields.u8(conn::valid) != 0
    }
}

fn of_cm(error: CmError) -> CommandError {
    let errno = if matches!(error, CmError::Full { .. }) { libc::ENOMEM } else { libc::EINVAL };
    refuse(errno, error.to_string())
}

/// Flow label of a connection between two ports, as `rdma_calc_flow_label` mixes them.
fn flow_label(id: &Id) -> u32 {
    let mut mixed = u64::from(id.source.port()) * u64::from(id.destination.port());
    mixed ^= mixed >> 20;
    mixed ^= mixed >> 40;
    mixed as u32 & 0xf_ffff
}

/// Packet lifetime of an id's path, code.
pub fn life_time(id: &Id) -> u8 {
    id.ack_timeout.map_or(PACKET_LIFE_TIME, |timeout| timeout.saturating_sub(1))
}

/// An id's path, resolved or of a request; InfiniBand's in one subnet, as a subnet administrator gives it.
pub fn path(devices: &[DeviceConfig], id: &Id, device: &DeviceConfig) -> Path {
    let delay = device.model.capabilities().local_ca_ack_delay;
    let end = |address: Address| port_gid(devices, address.gid().unwrap_or_default());
    let ((local_gid, local_lid), (remote_gid, remote_lid)) = (end(id.source), end(id.destination));
    let ack_timeout = ack_timeout(delay, life_time(id));
    let common = Path { local_lid, remote_lid, local_gid, remote_gid, ack_timeout, ..Path::default() };
    if device.link_layer == LinkLayer::Ib {
        let rate = match device.model.identity().active_speed {
            32 => RATE_100_GBPS,
            128 => RATE_400_GBPS,
            _ => RATE_200_GBPS,
        };
        return Path { rate, subnet_local: true, ..common };
    }
    Path {
        flow_label: flow_label(id),
        rate: RATE_100_GBPS,
        traffic_class: id.traffic_class,
        hop_limit: HOP_LIMIT,
        ..common
    }
}

/// The header of a request's private data.
fn ip_header(id: &Id) -> [u8; IpCm::BYTES] {
    IpCm {
        version: 0,
        ip_version: if id.destination.is_v4() { 4 } else { 6 },
        source_port: id.source.port(),
        source: id.source.gid().unwrap_or_default(),
        destination: id.destination.gid().unwrap_or_default(),
    }
    .emit()
}

impl Ids {
    pub fn connect(&mut self, now: Now, file: u32, number: u32, param: &ConnParam<'_>) -> Answer<()> {
        let (id, device) = self.id_with_device(file, number)?;
        refuse_if!(id.stage != Stage::RouteResolved, EINVAL, "CONNECT of an id that is {:?}", id.stage);
        let header = if id.space == space::IB { Vec::new() } else { ip_header(id).to_vec() };
        let private = [&header[..], param.private].concat();
        let service = service_id(id.space, id.destination);
        let path = path(&self.devices, id, device);
        let req = Req {
            service,
            ca_guid: device.guid,
            qpn: param.fields.u32(conn::qp_num) & 0xff_ffff,
            responder_resources: param.fields.u8(conn::responder_resources),
            initiator_depth: param.fields.u8(conn::initiator_depth),
            remote_response_timeout: self.timeouts.response_timeout,
            transport: u8::from(id.qp_type == qp_type::UC),
            flow_control: param.fields.u8(conn::flow_control) != 0,
            starting_psn: id.starting_psn,
            local_response_timeout: self.timeouts.response_timeout,
            retry: param.fields.u8(conn::retry_count).min(7),
            pkey: DEFAULT_PKEY,
            path_mtu: device.mtu,
            rnr_retry: param.fields.u8(conn::rnr_retry_count).min(7),
            max_cm_retries: self.timeouts.max_retries,
            srq: param.fields.u8(conn::srq) != 0,
            primary: path,
            ..Req::default()
        };
        let made = if id.qp_type == qp_type::UD {
            self.cm.send_sidr_req(now, &req, &private)
        } else {
            self.cm.connect(now, &req, &private)
        };
        let connection = made.map_err(of_cm)?;
        self.of_connection.insert(connection, number);
        let id = self.id_mut(file, number)?;
        id.connection = Some(connection);
        id.stage = Stage::Connected;
        Ok(())
    }

    /// ACCEPT: of a request with a param, of an answer without one.
    pub fn accept(&mut self, now: Now, file: u32, number: u32, param: &ConnParam<'_>) -> Answer<()> {
        let (id, device) = self.id_with_device(file, number)?;
        let (Some(connection), Stage::Connected) = (id.connection, id.stage) else {
            return Err(refusal!(EINVAL, "ACCEPT of an id that is {:?}", id.stage));
        };
        let qpn = param.fields.u32(conn::qp_num) & 0xff_ffff;
        let done = if !param.is_valid() {
            self.cm.ready(connection, &[])
        } else if id.qp_type == qp_type::UD {
            let qkey = match (param.fields.u32(conn::qkey), id.qkey) {
                (0, 0) => UDP_QKEY,
                (0, qkey) | (qkey, _) => qkey,
            };
            let rep = SidrRep { request: 0, status: 0, info_bytes: 0, qpn, service: 0, qkey, info: [0; 72] };
            self.cm.send_sidr_rep(connection, &rep, param.private)
        } else {
            let rep = Rep {
                qpn,
                starting_psn: id.starting_psn,
                responder_resources: param.fields.u8(conn::responder_resources),
                initiator_depth: param.fields.u8(conn::initiator_depth),
                target_ack_delay: device.model.capabilities().local_ca_ack_delay,
                flow_control: param.fields.u8(conn::flow_control) != 0,
                rnr_retry: param.fields.u8(conn::rnr_retry_count).min(7),
                srq: param.fields.u8(conn::srq) != 0,
                ca_guid: device.guid,
                ..Rep::default()
            };
            self.cm.accept(now, connection, &rep, param.private)
        };
        done.map_err(|error| {
            // As a kernel: what cannot be accepted is refused.
            let _ = self.cm.reject(now, connection, reason::CONSUMER, &[], &[]);
            of_cm(error)
        })
    }

    pub fn reject(&mut self, now: Now, file: u32, number: u32, why: u16, private: &[u8]) -> Answer<()> {
        let (id, _) = self.id_with_device(file, number)?;
        let connection = id.connection.ok_or_else(|| refusal!(EINVAL, "id {number} has no connection"))?;
        if id.qp_type == qp_type::UD {
            let rep =
                SidrRep { request: 0, status: 2, info_bytes: 0, qpn: 0, service: 0, qkey: 0, info: [0; 72] };
            return self.cm.send_sidr_rep(connection, &rep, private).map_err(of_cm);
        }
        self.cm.reject(now, connection, why, &[], private).map_err(of_cm)
    }

    /// DISCONNECT: asks, or answers. In any other state it is done already.
    pub fn disconnect(&mut self, now: Now, file: u32, number: u32) -> Answer<()> {
        let (id, _) = self.id_with_device(file, number)?;
        let connection = id.connection.ok_or_else(|| refusal!(EINVAL, "id {number} has no connection"))?;
        let _ = self.cm.disconnect(now, connection, &[]);
        Ok(())
    }

    /// NOTIFY that data came before the other end's last word.
    pub fn establish(&mut self, file: u32, number: u32) -> Answer<()> {
        let connection = self.id(file, number)?.connection;
        let connection = connection.ok_or_else(|| refusal!(EINVAL, "id {number} has no connection"))?;
        self.cm.establish(connection).map_err(of_cm)
    }

    /// Goes on: takes what arrived, does what is due, sends what there is to say. When it is due again.
    pub fn turn(&mut self, now: Now) -> Option<Now> {
        for AddressedMad { from, to, mad } in self.port.receive() {
            // Why it was dropped is counted.
            let _ = self.cm.handle_mad(now, Route { local: to, remote: from }, &*mad);
        }
        // After what they sent: a process that refused and ended gave its own reason and private data.
        for EndedProcess { slot, asked } in self.port.departed() {
            let devices = &self.devices;
            self.cm.close_process(now, slot, &asked, |gid| {
                devices.iter().any(|device| gid_index(device, gid).is_some())
            });
        }
        self.cm.handle_timeout(now);
        while let Some(event) = self.cm.poll_event() {
            self.take_event(event);
        }
        while let Some(sent) = self.cm.poll_transmit() {
            self.port.send(sent);
        }
        let soon = self.port.is_waiting().then(|| now.after(1_000_000));
        self.cm.poll_timeout().into_iter().chain(soon).min()
    }

    /// Turns an event of the connection manager into the program's.
    fn take_event(&mut self, Event { id: connection, route, cause }: Event) {
        let (kind, status) = match &cause {
            Cause::Received(message, private) => match message {
                Message::Req(req) => {
                    return self.take_request(connection, route, (req.service, req.pkey), private, Some(req));
                }
                Message::SidrReq(req) => {
                    return self.take_request(connection, route, (req.service, req.pkey), private, None);
                }
                Message::Rep(_) => (event::CONNECT_RESPONSE, 0),
                Message::Rtu(_) => (event::ESTABLISHED, 0),
                Message::Rej(rej) => (event::REJECTED, i32::from(rej.reason)),
                Message::Dreq(_) | Message::Drep(_) => (event::DISCONNECTED, 0),
                Message::SidrRep(rep) if rep.status == 0 => (event::ESTABLISHED, 0),
                Message::SidrRep(rep) => (event::UNREACHABLE, i32::from(rep.status)),
                Message::Mra(_) => return,
            },
            Cause::Unreachable => (event::UNREACHABLE, -libc::ETIMEDOUT),
            Cause::Unanswered => (event::DISCONNECTED, -libc::ETIMEDOUT),
            Cause::TimeWaitOver => (event::TIMEWAIT_EXIT, 0),
        };
        let Some(number) = self.of_connection.get(&connection).copied() else { return };
        let Some(id) = self.ids.get_mut(&number) else { return };
        if let Some(why) = why_not(&cause) {
            let (from, to) = (id.source, id.destination);
            self.reasons.note_connection(format!("{from} to {to}: {why}"));
        }
        if kind == event::DISCONNECTED {
            if id.stage != Stage::Connected {
                return;
            }
            id.stage = Stage::Disconnected;
        }
        let device = id.device.and_then(|device| self.devices.get(device));
        let param = match &cause {
            Cause::Received(Message::Rep(rep), private) => {
                with_private(conn_param!(rep), CONN_PRIVATE, private)
            }
            Cause::Received(Message::Rej(_), private) => with_private(Writer::new(), CONN_PRIVATE, private),
            Cause::Received(Message::SidrRep(rep), private) => {
                id.qkey = rep.qkey;
                let vector = device.map(|device| address_vector(device, &path(&self.devices, id, device)));
                let param = Writer::new().u32(ud::qp_num, rep.qpn).u32(ud::qkey, rep.qkey);
                let param = param.bytes(ud::ah_attr, &vector.unwrap_or([0; ah::SIZE]));
                with_private(param, UD_PRIVATE, private)
            }
            _ => Writer::new(),
        };
        let writer = event(number, kind, status).bytes(ucm_event_resp::param, &param.finish());
        self.queue(number, None, writer);
    }

    /// A connection request: a new id, which the program learns of through the listener's.
    fn take_request(
        &mut self,
        connection: roce::cm::ConnectionId,
        route: Route,
        (service, pkey): (u64, u16),
        private: &[u8],
        req: Option<&Req>,
    ) {
        let from = Ipv6Addr::from(route.remote.0);
        // The connection manager forgets the request when no program takes it; a refusal says so.
        let refuse = |ids: &mut Self, why: String| {
            let port = service as u16;
            ids.reasons.note_connection(format!("a request of {from} for port {port} is refused: {why}"));
            ids.cm.release_connection(Now(0), connection);
        };
        let other_partition = (pkey ^ DEFAULT_PKEY) & 0x7fff != 0;
        let asked = req.map_or(route.local, |req| req.primary.remote_gid);
        if req.is_some() && (other_partition || asked != route.local) {
            // The answer of `cm_init_av_by_path` to both; IBTA has no reason for a P_Key. It names the port.
            let _ = self.cm.reject(Now(0), connection, reason::INVALID_GID, &route.local.0, &[]);
        }
        let [asked_gid, gid] = [asked, route.local].map(|gid| Ipv6Addr::from(gid.0));
        if other_partition {
            return refuse(self, format!("its P_Key is {pkey:#x}; take the default partition, 0xffff"));
        }
        if asked != route.local {
            return refuse(self, format!("GID {asked_gid} is not of port {gid}; resolve the address anew"));
        }
        let Ok(header) = IpCm::parse(private) else {
            let bytes = private.len();
            return refuse(self, format!("{bytes} private bytes without IP addresses; connect by rdma_cm"));
        };
        let to = Address::of_gid(header.destination, service as u16);
        let Some(device) = self
            .device_of(header.destination)
            .filter(|at| gid_index(&self.devices[*at], route.local).is_some())
        else {
            return refuse(self, format!("IP {to} is not of port {gid}; resolve the address anew"));
        };
        let listener = self.listener(service, header.destination);
        let listener = listener.and_then(|number| Some((number, self.ids.get(&number)?)));
        let Some((listening, &Id { file, space, qp_type, .. })) = listener else {
            return refuse(self, format!("nobody listens at {to}; rdma_listen first"));
        };
        let datagram = req.is_none();
        if datagram != (qp_type == qp_type::UD) {
            let kind = if datagram { "datagrams" } else { "a connection" };
            return refuse(self, format!("it is for {kind}, the listener is not; compare rdma_port_space"));
        }
        if !self.files.get(&file).is_some_and(|queue| queue.has_room()) {
            return refuse(self, format!("{MAX_EVENTS} events wait; call rdma_get_cm_event"));
        }
        let number = self.create(file, 0, space, qp_type);
        if let Some(id) = self.ids.get_mut(&number) {
            id.stage = Stage::Connected;
            id.source = to;
            id.destination = Address::of_gid(header.source, header.source_port);
            id.device = Some(device);
            id.connection = Some(connection);
        }
        self.of_connection.insert(connection, number);
        let of_program = &private[IpCm::BYTES..];
        let param = match req {
            Some(req) => {
                with_private(conn_param!(req).u8(conn::retry_count, req.retry), CONN_PRIVATE, of_program)
            }
            None => with_private(Writer::new(), UD_PRIVATE, of_program),
        };
        let writer = event(number, event::CONNECT_REQUEST, 0).bytes(ucm_event_resp::param, &param.finish());
        if !self.queue(listening, Some(number), writer) {
            self.destroy(Now(0), number);
            return;
        }
        if !datagram {
            // Programs take their time: a repeated request is answered by an MRA.
            let _ = self.cm.postpone(connection, MRA_TIMEOUT);
        }
    }
}

/// Why a connection does not come about, if it does not.
fn why_not(cause: &Cause) -> Option<String> {
    let why = match cause {
        Cause::Received(Message::Rej(rej), private) => match rej.reason {
            reason::INVALID_SERVICE_ID => {
                "rejected: no listener at this port; rdma_listen first, and compare ports"
            }
            reason::CONSUMER => {
                let bytes = private.len();
                return Some(format!(
                    "rejected by its program, with {bytes} bytes of private data; ask it why"
                ));
            }
            reason::TIMEOUT => "rejected: the other end waited too long; accept or answer sooner",
            reason::STALE_CONNECTION => "rejected: it knows an older connection of this QP; make a new one",
            reason::INVALID_GID => "rejected: GID or P_Key is not of its port; resolve the address anew",
            other => return Some(format!("rejected with reason {other} (IBTA vol. 1 §12.6.7.2)")),
        },
        Cause::Unreachable => {
            "no answer to any request (cm_timeout, cm_retries); is its NIC running, and UDP port 4791 open?"
        }
        Cause::Received(Message::SidrRep(rep), _) if rep.status != 0 => {
            let of = "1: nobody listens there, 2: its program refused";
            return Some(format!("refused with SIDR status {}; {of}", rep.status));
        }
        _ => return None,
    };
    Some(why.to_owned())
}

/// Where private data and their length are, in either kind of parameters.
const CONN_PRIVATE: [usize; 2] = [conn::private_data, conn::private_data_len];
const UD_PRIVATE: [usize; 2] = [ud::private_data, ud::private_data_len];

type Param = Writer<{ ud::SIZE }>;

fn with_private(param: Param, [at, len_at]: [usize; 2], private: &[u8]) -> Param {
    // The longest of any message, 224 bytes, has room in 256.
    param.bytes(at, private).u8(len_at, private.len() as u8)
}

/// A path as a `struct ib_uverbs_ah_attr`: within a subnet without a GRH.
pub fn address_vector(device: &DeviceConfig, path: &Path) -> [u8; ah::SIZE] {
    let local = Writer::<{ ah::SIZE }>::new().u8(ah::sl, path.service_level).u8(ah::port_num, device.port);
    if device.link_layer == LinkLayer::Ib {
        return local.u16(ah::dlid, path.remote_lid).finish();
    }
    let index = gid_index(device, path.local_gid).unwrap_or(0);
    let Gid(dgid) = path.remote_gid;
    local
        .bytes(ah::dgid, &dgid)
        .u32(ah::flow_label, path.flow_label)
        .u8(ah::sgid_index, index as u8)
        .u8(ah::hop_limit, path.hop_limit)
        .u8(ah::traffic_class, path.traffic_class)
        .u8(ah::is_global, 1)
        .finish()
}
