//! One `write` to `/dev/infiniband/rdma_cm`: header and command copied once, lengths checked, answered.
//!
//! Commands as in `rdma/rdma_user_cm.h`, ABI 4. What they do is in `commands`, but for GET_EVENT.

use mlx5_device::Answer;
use mlx5_device::command::{refusal, refuse_if};
use mlx5_device::memory::Memory;
use roce::Now;

use super::address::Address;
use super::ids::Ids;
use crate::abi::attributes::fault;
use crate::abi::layout::{Reader, ucm_event_resp, ucm_hdr};

/// The longest command, ACCEPT, with room to spare: what a newer library adds behind is not looked at.
const MAX_COMMAND: usize = 512;

/// Name, by command number. Empty: GET_OPTION, which no kernel has, and BIND_IP, RESOLVE_IP, QUERY_ROUTE and
/// JOIN_IP_MCAST: librdmacm first binds an `AF_IB` address to learn that a kernel has their successors.
#[rustfmt::skip]
const NAMES: [&str; 23] = [
    "CREATE_ID", "DESTROY_ID", "", "", "RESOLVE_ROUTE", "", "CONNECT", "LISTEN", "ACCEPT", "REJECT", "DISCONNECT", "INIT_QP_ATTR",
    "GET_EVENT", "", "SET_OPTION", "NOTIFY", "", "LEAVE_MCAST", "MIGRATE_ID", "QUERY", "BIND", "RESOLVE_ADDR", "JOIN_MCAST",
];
const GET_EVENT: u32 = 12;

/// A command of a program.
#[derive(Debug)]
pub struct Call {
    /// Its number, as in `rdma/rdma_user_cm.h`.
    pub(super) command: u32,
    pub(super) name: &'static str,
    /// Room for the answer.
    pub(super) room: usize,
    bytes: Vec<u8>,
    /// What `write` returns.
    pub written: usize,
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
    /// Errors: `EFAULT`; `EINVAL` for unfit lengths and unknown commands; `ENOSYS` for one not answered here.
    pub fn read(memory: &dyn Memory, address: u64, len: usize) -> Answer<Call> {
        refuse_if!(len < ucm_hdr::SIZE, EINVAL, "{len} bytes, a command has a header of 8");
        let mut bytes = vec![0; len.min(ucm_hdr::SIZE + MAX_COMMAND)];
        memory.read(address, &mut bytes).map_err(fault)?;
        let header = Reader(&bytes);
        let command = header.u32(ucm_hdr::cmd);
        let (given, room) = (usize::from(header.u16(ucm_hdr::len_in)), usize::from(header.u16(ucm_hdr::out)));
        let name = NAMES.get(command as usize).ok_or_else(|| refusal!(EINVAL, "command {command}"))?;
        refuse_if!(given + ucm_hdr::SIZE > len, EINVAL, "a command of {given} bytes in {len}");
        refuse_if!(name.is_empty(), ENOSYS, "command {command}");
        bytes.drain(..ucm_hdr::SIZE);
        bytes.truncate(given);
        Ok(Call { command, name, room, bytes, written: len })
    }

    /// Whether it waits for an event: read the event's byte first.
    pub fn is_get_event(&self) -> bool {
        self.command == GET_EVENT
    }

    /// The command behind its header.
    pub(super) fn fields(&self) -> Reader<'_> {
        Reader(&self.bytes)
    }

    /// Checks that the answer has room for `least` bytes.
    pub(super) fn need_room(&self, least: usize) -> Answer<()> {
        let (name, room) = (self.name, self.room);
        refuse_if!(room < least, ENOSPC, "{name}: room for {room} bytes, {least} are needed");
        Ok(())
    }

    /// Writes as much of the answer as there is room for.
    pub(super) fn respond(&self, memory: &dyn Memory, response: u64, answer: &[u8]) -> Answer<()> {
        let answer = &answer[..answer.len().min(self.room)];
        memory.write(response, answer, true).map_err(fault)
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
        self.need_room(ucm_event_resp::reserved)
    }

    /// An address that says how long it is.
    pub(super) fn sized(&self, at: usize, size: u16) -> Answer<Address> {
        let room: [u8; 128] = self.fields().array(at);
        Address::read(&room)
            .filter(|address| address.size() == usize::from(size))
            .ok_or_else(|| refusal!(EINVAL, "{}: no address of {size} bytes", self.name))
    }
}
