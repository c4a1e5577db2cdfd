//! Events that wait for GET_EVENT. Each has a byte in a pipe: the program's `poll` sees it, and reading it
//! from the program's own descriptor waits as in a kernel: `O_NONBLOCK`, signals, restarts.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use crate::abi::layout::{Writer, ucm_event_resp};
use crate::os::pipe::Pipe;

/// What GET_EVENT answers, as it is written.
pub type EventWriter = Writer<{ ucm_event_resp::SIZE }>;

/// Events of one file at most; more than its pipe holds cannot be announced.
pub const MAX_EVENTS: usize = 16 * 1024;

/// `enum rdma_cm_event_type` of `rdma/rdma_cma.h`, which the kernel shares.
pub mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    /// A connection request has come.
    pub const CONNECT_REQUEST: u32 = 4;
    /// Accepted; the program says that it is ready.
    pub const CONNECT_RESPONSE: u32 = 5;
    /// No answer.
    pub const UNREACHABLE: u32 = 7;
    /// Refused.
    pub const REJECTED: u32 = 8;
    /// It stands.
    pub const ESTABLISHED: u32 = 9;
    /// It is over.
    pub const DISCONNECTED: u32 = 10;
    /// Its names are free again.
    pub const TIMEWAIT_EXIT: u32 = 15;
}

#[derive(Debug)]
pub struct Queued {
    /// The id that counts it.
    pub owner: u32,
    /// The id that it brings, of a request: gone with the event when the program does not take it.
    pub brings: Option<u32>,
    /// What the program gets.
    pub bytes: [u8; ucm_event_resp::SIZE],
}

/// An event without parameters.
pub fn event(id: u32, kind: u32, status: i32) -> EventWriter {
    use ucm_event_resp as at;
    Writer::new().u32(at::id, id).u32(at::event, kind).u32(at::status, status as u32)
}

#[derive(Debug)]
pub struct Queue {
    pipe: Pipe,
    events: VecDeque<Queued>,
}

impl Queue {
    /// An empty one; the descriptor is the program's.
    pub fn new() -> io::Result<(Queue, RawFd)> {
        let (pipe, fd) = Pipe::new()?;
        Ok((Queue { pipe, events: VecDeque::new() }, fd))
    }

    /// Inode of the pipe, by which a descriptor is known.
    pub fn inode(&self) -> u64 {
        self.pipe.inode
    }

    /// Whether there is room for another event.
    pub fn has_room(&self) -> bool {
        self.events.len() < MAX_EVENTS
    }

    /// Adds an event; lost when there is no room.
    pub fn push(&mut self, queued: Queued) -> bool {
        let pushed = self.has_room() && self.pipe.put(&[1]);
        if pushed {
            self.events.push_back(queued);
        }
        pushed
    }

    /// The first event, whose byte was read already.
    pub fn pop(&mut self) -> Option<Queued> {
        self.events.pop_front()
    }

    /// Puts an event back that could not be handed over, with its byte.
    pub fn put_back(&mut self, queued: Queued) {
        self.pipe.put(&[1]);
        self.events.push_front(queued);
    }

    /// Takes out the events of an id.
    pub fn withdraw(&mut self, owner: u32) -> Vec<Queued> {
        let (gone, left): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.events).into_iter().partition(|queued| queued.owner == owner);
        self.events = left;
        self.pipe.take_back(gone.len());
        gone.into()
    }

    /// All events, since the file is closed.
    pub fn into_events(self) -> VecDeque<Queued> {
        self.events
    }
}
