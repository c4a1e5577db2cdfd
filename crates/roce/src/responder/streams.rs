//! Acknowledgements gathered, and READ responses on their way out.

use std::collections::VecDeque;

use crate::message::psn_count;
use crate::packet::{Position, position_of};
use crate::{Fragment, Opcode, Psn, Region, Request};

/// Acknowledgements gathered, and READ responses on their way out.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    /// On a wire: the most packets that one acknowledgement waits for.
    pub(super) ack_every: Option<u32>,
    /// Packets executed since the last acknowledgement was due.
    pub(super) unacknowledged: u32,
    /// The READs among the responses to send, in the same order.
    pub(super) reads: VecDeque<ReadStream>,
    /// The READ response packet sent last: its PSN, whether the READ was a repetition, and what it reads.
    pub(super) last_read: Option<(Psn, bool, Region)>,
}

/// A READ response on its way out.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadStream {
    /// What the READ was granted; its `va` and `key` are as the requester named them.
    pub(super) region: Region,
    pub(super) psn: Psn,
    pub(super) length: u32,
    pub(super) packets: u32,
    /// The next packet to send.
    pub(super) next: u32,
    /// The packet that this run of the response started with.
    pub(super) first: u32,
    /// Its key is gone.
    pub(super) revoked: bool,
}

impl Outbound {
    /// READ responses that room was allocated for.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.reads.capacity()
    }

    /// A READ was granted: its response is sent packet by packet, each reading its bytes then. So a later
    /// WRITE may change them; a requester that minds posts it with a fence (IBTA, ordering of operations).
    pub(super) fn begin_read(&mut self, request: &Request, region: Region, path_mtu_bytes: u32) {
        let Request { psn, length, remote_va, rkey, .. } = *request;
        let packets = psn_count(Opcode::Read, length, path_mtu_bytes);
        let region = Region { va: remote_va, key: rkey, ..region };
        self.reads.push_back(ReadStream { region, psn, length, packets, next: 0, first: 0, revoked: false });
    }

    /// Whether an executed request makes an ACK due: on a wire if it asks, or if enough have gathered.
    pub(super) fn acknowledges(&mut self, request: &Request) -> bool {
        let Some(ack_every) = self.ack_every else { return true };
        self.unacknowledged += 1;
        let due = request.ack_requested || self.unacknowledged >= ack_every;
        if due {
            self.unacknowledged = 0;
        }
        due
    }
}

impl ReadStream {
    /// The next packet, or as many in one as `most` bytes hold: PSN, position, bytes of the region.
    pub(super) fn next_piece(&self, path_mtu_bytes: u32, most: u32) -> (Psn, Position, Fragment) {
        let index = self.next;
        let offset = index * path_mtu_bytes;
        let rest = self.length - offset;
        let length = if rest <= most { rest } else { most - most % path_mtu_bytes };
        let position = position_of(index == self.first, length == rest);
        (self.psn.plus(index), position, Fragment { offset, length })
    }

    /// So many bytes, whole packets, have gone out; true: they end it.
    pub(super) fn advance(&mut self, bytes: u32, path_mtu_bytes: u32) -> bool {
        self.next += psn_count(Opcode::Read, bytes, path_mtu_bytes);
        self.next >= self.packets
    }

    /// Goes back to where `request`, the rest of this READ, starts. False when it is another one's, or when
    /// what lies before it has not been sent.
    pub(super) fn rewind(&mut self, request: &Request, path_mtu_bytes: u32) -> bool {
        let index = request.psn.distance_from(self.psn);
        if index > self.next {
            return false;
        }
        let offset = index * path_mtu_bytes;
        let same = request.rkey == self.region.key
            && request.remote_va == self.region.va.wrapping_add(u64::from(offset))
            && request.length == self.length - offset;
        if same {
            (self.next, self.first) = (index, index);
        }
        same
    }
}
