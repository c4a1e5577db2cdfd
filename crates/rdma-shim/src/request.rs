//! Requests of the `verbs` crate in the memory layout of the C routines.

use std::marker::PhantomData;

use verbs::{Payload, ReceiveRequest, Remote, SendOperation, SendRequest};

use crate::sys::{db_recv_wr, db_send_wr, db_sge};

/// `IBV_SEND_INLINE`.
const INLINE: u32 = 8;

/// A request that the shim has no WQE for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the shim cannot post {0}")]
pub struct Unsupported(&'static str);

/// Why posting stopped, and where. Requests before that one are posted and rung.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("request {index} of the list: {kind}")]
pub struct PostError {
    /// Place of the refused request in the list, from 0.
    pub index: usize,
    /// Why.
    pub kind: PostErrorKind,
}

/// Why a request was not posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostErrorKind {
    /// Poll, then try again (`ENOMEM`).
    #[error("the queue is full")]
    Full,
    /// Too many entries, too much inline data, or no such request (`EINVAL`).
    #[error("the request does not fit this queue's limits")]
    Invalid,
    /// The service has no such operation (`EOPNOTSUPP`).
    #[error("the queue pair's service has no such operation")]
    NoSuchOperation,
    /// The shim has no WQE for it.
    #[error(transparent)]
    Unsupported(Unsupported),
}

impl PostError {
    pub(crate) fn of(code: i32, index: u32) -> PostError {
        let kind = match code {
            12 => PostErrorKind::Full,
            95 => PostErrorKind::NoSuchOperation,
            _ => PostErrorKind::Invalid,
        };
        PostError { index: index as usize, kind }
    }

    /// Whether polling can help.
    pub fn is_full(&self) -> bool {
        self.kind == PostErrorKind::Full
    }
}

/// Send requests side by side, ready to be posted any number of times, whole or in pieces.
#[derive(Default)]
pub struct SendList<'a> {
    raw: Vec<db_send_wr>,
    _requests: PhantomData<SendRequest<'a>>,
}

impl<'a> SendList<'a> {
    /// An empty list with room for `capacity` requests.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { raw: Vec::with_capacity(capacity), _requests: PhantomData }
    }

    /// Adds a request at the end.
    pub fn push(&mut self, request: &SendRequest<'a>) -> Result<(), Unsupported> {
        self.raw.push(to_raw(request)?);
        Ok(())
    }

    /// Empties the list and keeps its room.
    pub fn clear(&mut self) {
        self.raw.clear();
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The requests as the C routines take them, for queues that are laid out by hand. Their addresses are
    /// valid as long as the slices that the requests borrow.
    pub fn as_raw(&self) -> &[db_send_wr] {
        &self.raw
    }
}

/// Receive requests side by side.
#[derive(Default)]
pub struct ReceiveList<'a> {
    raw: Vec<db_recv_wr>,
    _requests: PhantomData<ReceiveRequest<'a>>,
}

impl<'a> ReceiveList<'a> {
    /// An empty list with room for `capacity` requests.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { raw: Vec::with_capacity(capacity), _requests: PhantomData }
    }

    /// Adds a request at the end.
    pub fn push(&mut self, request: &ReceiveRequest<'a>) {
        self.raw.push(receive_to_raw(request));
    }

    /// Empties the list and keeps its room.
    pub fn clear(&mut self) {
        self.raw.clear();
    }

    pub(crate) fn as_raw(&self) -> &[db_recv_wr] {
        &self.raw
    }
}

/// The request as the C routines take it. Points into the request's slices.
pub(crate) fn to_raw(request: &SendRequest<'_>) -> Result<db_send_wr, Unsupported> {
    if request.datagram.is_some() {
        return Err(Unsupported("datagrams"));
    }
    // Entries of both kinds are `struct ibv_sge` transparently, and that is `struct db_sge` field for field.
    let (list, count, inline) = match request.payload {
        Payload::Gather(list) => (list.as_ptr().cast::<db_sge>(), list.len(), 0),
        Payload::Inline(list) => (list.as_ptr().cast::<db_sge>(), list.len(), INLINE),
    };
    let none = Remote::default();
    // Numbers of enum ibv_wr_opcode.
    let (opcode, remote, immediate, compare_add, swap) = match request.operation {
        SendOperation::Write(remote) => (0, remote, [0; 4], 0, 0),
        SendOperation::WriteImm(remote, immediate) => (1, remote, immediate, 0, 0),
        SendOperation::Send => (2, none, [0; 4], 0, 0),
        SendOperation::SendImm(immediate) => (3, none, immediate, 0, 0),
        SendOperation::Read(remote) => (4, remote, [0; 4], 0, 0),
        SendOperation::CompareSwap { remote, compare, swap } => (5, remote, [0; 4], compare, swap),
        SendOperation::FetchAdd { remote, add } => (6, remote, [0; 4], add, 0),
        SendOperation::SendInvalidate(_) => return Err(Unsupported("SEND with invalidate")),
        SendOperation::LocalInvalidate(_) => return Err(Unsupported("local invalidation")),
    };
    Ok(db_send_wr {
        wr_id: request.id,
        sg_list: list,
        num_sge: u32::try_from(count).unwrap_or(u32::MAX),
        opcode,
        send_flags: request.flags.0 | inline,
        imm_data: u32::from_ne_bytes(immediate),
        remote_addr: remote.address,
        compare_add,
        swap,
        rkey: remote.rkey,
    })
}

fn receive_to_raw(request: &ReceiveRequest<'_>) -> db_recv_wr {
    db_recv_wr {
        wr_id: request.id,
        sg_list: request.scatter.as_ptr().cast::<db_sge>(),
        num_sge: u32::try_from(request.scatter.len()).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_layout_that_the_cast_relies_on() {
        assert_eq!(size_of::<verbs::Sge>(), size_of::<db_sge>());
        assert_eq!(size_of::<verbs::InlineSlice<'_>>(), size_of::<db_sge>());
        let entries = [verbs::Sge::new(0x1122_3344_5566_7788, 0x99aa_bbcc, 0xddee_ff00)];
        let raw = to_raw(&SendRequest::new(1, SendOperation::Send, Payload::Gather(&entries))).unwrap();
        // SAFETY: the pointer leads to the one entry above.
        let entry = unsafe { *raw.sg_list };
        assert_eq!(entry, db_sge { addr: 0x1122_3344_5566_7788, length: 0x99aa_bbcc, lkey: 0xddee_ff00 });
    }

    #[test]
    fn what_the_shim_cannot_post_is_refused_by_name() {
        let request = SendRequest::new(1, SendOperation::SendInvalidate(3), Payload::Gather(&[]));
        assert_eq!(to_raw(&request).unwrap_err().to_string(), "the shim cannot post SEND with invalidate");
    }
}
