//! One `write` to `/dev/infiniband/rdma_cm`, decoded: header and command copied once, lengths checked, run, answered.
//!
//! Commands as in `rdma/rdma_user_cm.h`, ABI 4; which errno for which mistake as Linux's `drivers/infiniband/core/ucma.c` has it.

use mlx5_device::Answer;
use mlx5_device::command::{refusal, refuse_if};
use mlx5_device::memory::Memory;
use roce::Now;

use super::address::Address;
use super::connect::ConnParam;
use super::ids::{Ids, Stage, qp_type, space};
use super::query;
use super::queue::Queued;
use crate::abi::attributes::fault;
use crate::abi::layout::{
    Reader, ucm_accept, ucm_bind, ucm_bind_ip, ucm_connect, ucm_create_id, ucm_destroy_id, ucm_event_resp,
    ucm_hdr, ucm_init_qp_attr, ucm_join_ip_mcast, ucm_join_mcast, ucm_listen, ucm_migrate_id, ucm_notify,
    ucm_query, ucm_reject, ucm_resolve_addr, ucm_resolve_ip, ucm_resolve_route, ucm_set_option,
};

/// The longest command, ACCEPT, with room to spare: what a newer library adds behind is not looked at.
const MAX_COMMAND: usize = 512;
/// Longest value of an option that is looked at.
const MAX_OPTION: usize = 8;
/// `KMALLOC_MAX_SIZE`: a kernel takes no longer value.
const MAX_OPTION_LEN: u32 = 4 << 20;
/// `IB_EVENT_COMM_EST`.
const EVENT_ESTABLISHED: u32 = 4;

/// Name, by command number; `None`: a kernel has none either.
const NAMES: [Option<&str>; 23] = [
    Some("CREATE_ID"),
    Some("DESTROY_ID"),
    Some("BIND_IP"),
    Some("RESOLVE_IP"),
    Some("RESOLVE_ROUTE"),
    Some("QUERY_ROUTE"),
    Some("CONNECT"),
    Some("LISTEN"),
    Some("ACCEPT"),
    Some("REJECT"),
    Some("DISCONNECT"),
    Some("INIT_QP_ATTR"),
    Some("GET_EVENT"),
    None,
    Some("SET_OPTION"),
    Some("NOTIFY"),
    Some("JOIN_IP_MCAST"),
    Some("LEAVE_MCAST"),
    Some("MIGRATE_ID"),
    Some("QUERY"),
    Some("BIND"),
    Some("RESOLVE_ADDR"),
    Some("JOIN_MCAST"),
];
const GET_EVENT: u32 = 12;

/// A command of a program.
#[derive(Debug)]
pub struct Call {
    command: u32,
    name: &'static str,
    /// Room for the answer.
    room: usize,
    bytes: Vec<u8>,
    /// What `write` returns.
    len: usize,
}

/// What a command needs beside its own bytes.
pub struct CallContext<'a> {
    pub memory: &'a dyn Memory,
    pub now: Now,
    /// The open file that was written to.
    pub file: u32,
    /// Which open file a descriptor is.
    pub file_of: &'a dyn Fn(i32) -> Option<u32>,
}

impl Call {
    /// Copies what the program writes.
    ///
    /// Errors: `EFAULT`; `EINVAL` for lengths that do not fit and unknown commands; `ENOSYS` for one that no kernel has.
    pub fn read(memory: &dyn Memory, address: u64, len: usize) -> Answer<Call> {
        refuse_if!(len < ucm_hdr::SIZE, EINVAL, "{len} bytes, a command has a header of 8");
        let mut bytes = vec![0; len.min(ucm_hdr::SIZE + MAX_COMMAND)];
        memory.read(address, &mut bytes).map_err(fault)?;
        let header = Reader(&bytes);
        let command = header.u32(ucm_hdr::CMD);
        let (given, room) = (usize::from(header.u16(ucm_hdr::IN)), usize::from(header.u16(ucm_hdr::OUT)));
        let Some(name) = NAMES.get(command as usize) else {
            return Err(refusal!(EINVAL, "command {command}"));
        };
        refuse_if!(given + ucm_hdr::SIZE > len, EINVAL, "a command of {given} bytes in {len}");
        let name = name.ok_or_else(|| refusal!(ENOSYS, "command {command}"))?;
        bytes.drain(..ucm_hdr::SIZE);
        bytes.truncate(given);
        Ok(Call { command, name, room, bytes, len })
    }

    /// Whether it waits for an event: read the event's byte first.
    pub fn is_get_event(&self) -> bool {
        self.command == GET_EVENT
    }

    /// What the system call returns.
    pub fn written(&self) -> usize {
        self.len
    }

    /// Its name, for the log.
    pub fn name(&self) -> &'static str {
        self.name
    }

    fn fields(&self) -> Reader<'_> {
        Reader(&self.bytes)
    }

    /// Checks that the answer has room for `least` bytes.
    pub(super) fn need_room(&self, least: usize) -> Answer<()> {
        if self.room < least {
            let (name, room) = (self.name, self.room);
            return Err(refusal!(ENOSPC, "{name}: room for {room} bytes, {least} are needed"));
        }
        Ok(())
    }

    /// Room for the answer.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Writes as much of the answer as there is room for.
    pub(super) fn respond(&self, memory: &dyn Memory, response: u64, answer: &[u8]) -> Answer<()> {
        let answer = &answer[..answer.len().min(self.room)];
        memory.write(response, answer, true).map_err(fault)
    }

    /// Runs the command.
    pub fn run(&self, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
        let (fields, file, now) = (self.fields(), context.file, context.now);
        match self.command {
            0 => self.create_id(ids, context),
            1 => self.destroy_id(ids, context),
            2 => {
                let id = fields.u32(ucm_bind_ip::ID);
                let address = self.sockaddr_in6(ucm_bind_ip::ADDR)?;
                ids.id(file, id)?;
                ids.bind(id, address)
            }
            3 => {
                let id = fields.u32(ucm_resolve_ip::ID);
                let source = match fields.u16(ucm_resolve_ip::SRC) {
                    0 => Address::None,
                    _ => self.sockaddr_in6(ucm_resolve_ip::SRC)?,
                };
                let destination = self.sockaddr_in6(ucm_resolve_ip::DST)?;
                ids.id(file, id)?;
                ids.resolve_addr(id, source, destination)
            }
            4 => self.resolve_route(ids, context),
            5 => query::route(self, ids, context),
            6 => {
                let id = fields.u32(ucm_connect::ID);
                let param = ConnParam::read(&self.bytes);
                refuse_if!(!param.is_valid(), EINVAL, "CONNECT without parameters");
                ids.id_with_device(file, id)?;
                ids.connect(now, id, &param)
            }
            7 => {
                let id = fields.u32(ucm_listen::ID);
                ids.id(file, id)?;
                ids.listen(id, fields.u32(ucm_listen::BACKLOG))
            }
            8 => {
                let id = fields.u32(ucm_accept::ID);
                ids.id_with_device(file, id)?;
                let param = ConnParam::read(self.bytes.get(ucm_accept::CONN_PARAM..).unwrap_or_default());
                ids.accept(now, id, &param)?;
                if param.is_valid() {
                    ids.id(file, id)?.uid = fields.u64(ucm_accept::UID);
                }
                Ok(())
            }
            9 => self.reject(ids, context),
            10 => {
                let id = fields.u32(0);
                ids.id_with_device(file, id)?;
                ids.disconnect(now, id)
            }
            11 => query::init_qp_attr(self, ids, context),
            14 => self.set_option(ids, context),
            15 => {
                let id = fields.u32(ucm_notify::ID);
                ids.id_with_device(file, id)?;
                match fields.u32(ucm_notify::EVENT) {
                    EVENT_ESTABLISHED => ids.establish(id),
                    _ => Ok(()),
                }
            }
            16 | 22 => {
                let at = if self.command == 16 { ucm_join_ip_mcast::ID } else { ucm_join_mcast::ID };
                ids.id_with_device(file, fields.u32(at))?;
                Err(refusal!(ENOSYS, "no multicast on these devices"))
            }
            17 => Err(refusal!(ENOENT, "no group was joined")),
            18 => self.migrate_id(ids, context),
            19 => query::query(self, ids, context),
            20 => {
                let id = fields.u32(ucm_bind::ID);
                let address = self.sized(ucm_bind::ADDR, fields.u16(ucm_bind::ADDR_SIZE))?;
                let reserved = fields.u16(ucm_bind::RESERVED);
                refuse_if!(reserved != 0, EINVAL, "BIND: the reserved word is not zero");
                ids.id(file, id)?;
                ids.bind(id, address)
            }
            21 => {
                use ucm_resolve_addr as at;
                let id = fields.u32(at::ID);
                let source = match fields.u16(at::SRC_SIZE) {
                    0 => Address::None,
                    size => self.sized(at::SRC, size)?,
                };
                let destination = self.sized(at::DST, fields.u16(at::DST_SIZE))?;
                let reserved = fields.u32(at::RESERVED);
                refuse_if!(reserved != 0, EINVAL, "RESOLVE_ADDR: the reserved word is not zero");
                ids.id(file, id)?;
                ids.resolve_addr(id, source, destination)
            }
            other => Err(refusal!(ENOSYS, "command {other}")),
        }
    }

    /// GET_EVENT, when its byte has been read. False: another thread took the event, or its id is gone.
    pub fn get_event(&self, ids: &mut Ids, context: &CallContext<'_>) -> Answer<bool> {
        let queue = ids.files.get_mut(&context.file).ok_or_else(|| refusal!(EBADF, "the file is closed"))?;
        let Some(queued) = queue.pop() else { return Ok(false) };
        if let Err(refused) = self.respond(context.memory, self.fields().u64(0), &queued.bytes) {
            queue.put_back(queued);
            return Err(refused);
        }
        if let Some(id) = ids.ids.get_mut(&queued.owner) {
            id.events_reported = id.events_reported.wrapping_add(1);
        }
        Ok(true)
    }

    /// What is wrong with a GET_EVENT before it waits.
    pub fn check_get_event(&self) -> Answer<()> {
        // A library before ECE has no room for what was added then.
        self.need_room(ucm_event_resp::RESERVED)
    }

    /// An address in the room of a `struct sockaddr_in6`.
    fn sockaddr_in6(&self, at: usize) -> Answer<Address> {
        let room: [u8; 28] = self.fields().array(at);
        Address::read(&room)
            .filter(|address| !matches!(address, Address::Ib(_)))
            .ok_or_else(|| refusal!(EINVAL, "{}: no IP address", self.name))
    }

    /// An address that says how long it is.
    fn sized(&self, at: usize, size: u16) -> Answer<Address> {
        let room: [u8; 128] = self.fields().array(at);
        Address::read(&room)
            .filter(|address| address.size() == usize::from(size))
            .ok_or_else(|| refusal!(EINVAL, "{}: no address of {size} bytes", self.name))
    }

    fn create_id(&self, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
        use ucm_create_id as at;
        self.need_room(4)?;
        let fields = self.fields();
        let port_space = fields.u16(at::PS);
        let kind = match port_space {
            space::TCP => qp_type::RC,
            space::UDP | space::IPOIB => qp_type::UD,
            space::IB => fields.u8(at::QP_TYPE),
            other => return Err(refusal!(EINVAL, "port space {other:#x}")),
        };
        let number = ids.create(context.file, fields.u64(at::UID), port_space, kind);
        let answered = self.respond(context.memory, fields.u64(at::RESPONSE), &number.to_ne_bytes());
        if answered.is_err() {
            ids.destroy(context.now, number);
        }
        answered
    }

    fn destroy_id(&self, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
        use ucm_destroy_id as at;
        self.need_room(4)?;
        let fields = self.fields();
        let number = fields.u32(at::ID);
        ids.id(context.file, number)?;
        let reported = ids.destroy(context.now, number);
        self.respond(context.memory, fields.u64(at::RESPONSE), &reported.to_ne_bytes())
    }

    fn resolve_route(&self, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
        use super::queue::event::ROUTE_RESOLVED;
        use ucm_resolve_route as at;
        let fields = self.fields();
        let number = fields.u32(at::ID);
        let (id, _) = ids.id_with_device(context.file, number)?;
        refuse_if!(
            fields.u32(at::TIMEOUT_MS) == 0 || id.stage != Stage::AddrResolved,
            EINVAL,
            "RESOLVE_ROUTE of an id that is {:?}",
            id.stage
        );
        id.stage = Stage::RouteResolved;
        ids.tell(number, ROUTE_RESOLVED, 0);
        Ok(())
    }

    fn reject(&self, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
        use roce::wire::cm::reason::CONSUMER;
        use ucm_reject as at;
        /// `IB_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED`.
        const VENDOR_OPTION: u16 = 35;
        let fields = self.fields();
        let why = match u16::from(fields.u8(at::REASON)) {
            0 | CONSUMER => CONSUMER,
            VENDOR_OPTION => VENDOR_OPTION,
            other => return Err(refusal!(EINVAL, "REJECT for reason {other}")),
        };
        let len = usize::from(fields.u8(at::PRIVATE_DATA_LEN));
        let private = self.bytes.get(at::PRIVATE_DATA..at::PRIVATE_DATA + len).unwrap_or_default().to_vec();
        let number = fields.u32(at::ID);
        ids.id_with_device(context.file, number)?;
        ids.reject(context.now, number, why, &private)
    }

    fn set_option(&self, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
        use ucm_set_option as at;
        let fields = self.fields();
        let (number, len) = (fields.u32(at::ID), fields.u32(at::OPTLEN));
        let id = ids.id(context.file, number)?;
        refuse_if!(len > MAX_OPTION_LEN, EINVAL, "an option of {len} bytes");
        let mut value = [0; MAX_OPTION];
        let known = (len as usize).min(MAX_OPTION);
        context.memory.read(fields.u64(at::OPTVAL), &mut value[..known]).map_err(fault)?;
        let number32 = i32::from_ne_bytes([value[0], value[1], value[2], value[3]]);
        let wrong = || Err(refusal!(EINVAL, "SET_OPTION: length or state"));
        match (fields.u32(at::LEVEL), fields.u32(at::OPTNAME)) {
            (0, 0) if len == 1 => id.traffic_class = value[0],
            (0, 1) if len == 4 && (number32 != 0 || id.stage == Stage::Idle) => id.reuse = number32 != 0,
            // Wildcards are of all families here: there is nothing to keep apart.
            (0, 2) if len == 4 && matches!(id.stage, Stage::Idle | Stage::Bound) => {}
            (0, 3) if len == 1 && id.qp_type == qp_type::RC => id.ack_timeout = Some(value[0] & 31),
            (0, 0..=3) | (1, 1) => return wrong(),
            (level, name) => return Err(refusal!(ENOSYS, "option {name} of level {level}")),
        }
        Ok(())
    }

    fn migrate_id(&self, ids: &mut Ids, context: &CallContext<'_>) -> Answer<()> {
        use ucm_migrate_id as at;
        self.need_room(4)?;
        let fields = self.fields();
        let number = fields.u32(at::ID);
        let from = (context.file_of)(fields.u32(at::FD) as i32)
            .filter(|from| ids.files.contains_key(from))
            .ok_or_else(|| {
            refusal!(EINVAL, "MIGRATE_ID from a descriptor that is no connection manager")
        })?;
        let id = ids.id(from, number)?;
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
        self.respond(context.memory, fields.u64(at::RESPONSE), &reported.to_ne_bytes())
    }

    /// Id and response address of a QUERY.
    pub(super) fn queried(&self) -> (u32, u64, u32) {
        let fields = self.fields();
        (fields.u32(ucm_query::ID), fields.u64(ucm_query::RESPONSE), fields.u32(ucm_query::OPTION))
    }

    /// Id, response address and state of an INIT_QP_ATTR.
    pub(super) fn wanted_state(&self) -> (u32, u64, u32) {
        use ucm_init_qp_attr as at;
        let fields = self.fields();
        (fields.u32(at::ID), fields.u64(at::RESPONSE), fields.u32(at::QP_STATE))
    }
}
