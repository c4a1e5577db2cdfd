//! Answers in place of a missing peer: from the owner of QP1 for processes that do not exist, and, as a
//! kernel would answer, for a process of this host that ended silently.

use super::*;

/// The answer to a MAD without a receiver: no program listens, or the connection is gone. `None`: needs none.
pub fn refuse(mad: &[u8]) -> Option<Box<[u8; MAD_BYTES]>> {
    let mad = CmMad::decode(mad).ok()?;
    let answer = match mad.message {
        Message::Req(req) => {
            let ids = Ids { local: 0, remote: req.local_id };
            Message::Rej(rej(ids, 0, reason::INVALID_SERVICE_ID, &[]))
        }
        Message::SidrReq(SidrReq { request, service, .. }) => datagram::unsupported(request, service),
        Message::Dreq(Dreq { ids, .. }) => Message::Drep(ids.turned()),
        _ => return None,
    };
    encode(mad.transaction, answer, &[]).ok()
}

impl Cm {
    /// The process of a slot ended and no kernel tells its peers: established connections end, pending ones
    /// are refused. `asked`: our communication ids of requests that went to it and may be unanswered. Only
    /// connections whose other end has an address of this host (`is_here`).
    pub fn close_process(&mut self, now: Now, slot: u8, asked: &[u32], is_here: impl Fn(Gid) -> bool) {
        let left = |connection: &&Connection| {
            let unanswered = connection.state == State::ReqSent && asked.contains(&connection.id);
            let theirs = connection.remote_id.map_or(unanswered, |id| slot_of(id) == slot);
            theirs && is_here(connection.route.remote)
        };
        let last_words: Vec<(Route, u64, Message)> = self
            .connections
            .values()
            .filter(left)
            .filter_map(|connection| {
                // A peer that refuses a REQ need not have made an id.
                let ids = Ids { local: connection.remote_id.unwrap_or(0), remote: connection.id };
                let words = match connection.state {
                    State::ReqSent => Message::Rej(rej(ids, 0, reason::CONSUMER, &[])),
                    State::Established => Message::Dreq(Dreq { ids, qpn: connection.local_qpn }),
                    State::DreqSent => Message::Drep(ids),
                    state if state.may_reject() => Message::Rej(rej(ids, 2, reason::CONSUMER, &[])),
                    _ => return None,
                };
                Some((connection.route, connection.transaction, words))
            })
            .collect();
        for (route, transaction, words) in last_words {
            if let Ok(mad) = encode(transaction, words, &[]) {
                // One that its state does not take is counted as any other.
                let _ = self.handle_mad(now, route, &*mad);
            }
        }
    }
}
