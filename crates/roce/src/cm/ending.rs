//! How connections end: REJ, DREQ and DREP, and a program that lets go.

use super::*;

/// What a REJ says that it refuses.
const OF_REQ: u8 = 0;
const OF_REP: u8 = 1;
const OF_NONE: u8 = 2;

impl Cm {
    /// Refuses a request or an answer; the connection is no more. Up to 72 bytes of additional information, 148 of private data.
    ///
    /// Errors: no such connection, another state, too much private data.
    pub fn reject(
        &mut self,
        now: Now,
        id: ConnectionId,
        why: u16,
        info: &[u8],
        private: &[u8],
    ) -> Result<(), CmError> {
        let connection = self.owned(id)?;
        let state = connection.state;
        if !state.may_reject() {
            return Err(CmError::State { id: id.0, state, command: "REJ" });
        }
        let ids = Ids { local: id.0, remote: connection.remote_id.unwrap_or(0) };
        let refused = match state {
            State::ReqReceived | State::ReqPostponed => OF_REQ,
            State::RepReceived => OF_REP,
            _ => OF_NONE,
        };
        let mad = encode(connection.transaction, Message::Rej(rej(ids, refused, why, info)), private)?;
        let route = connection.route;
        self.send(route, mad);
        if refused == OF_REQ {
            self.remove(id.0);
        } else {
            // The other end may have sent already.
            self.answered(id.0);
            self.rest(now, id.0);
        }
        Ok(())
    }

    /// Ends a connection, or answers the other end's wish to. Up to 220 bytes of private data (224 in an answer).
    ///
    /// Errors: no such connection, another state, too much private data.
    pub fn disconnect(&mut self, now: Now, id: ConnectionId, private: &[u8]) -> Result<(), CmError> {
        let connection = self.owned(id)?;
        let ids = Ids { local: id.0, remote: connection.remote_id.unwrap_or(0) };
        let (state, route) = (connection.state, connection.route);
        match state {
            State::Established => {
                let qpn = connection.attributes.remote_qpn;
                let transaction = self.names.transaction(id.0);
                let mad = encode(transaction, Message::Dreq { ids, qpn }, private)?;
                self.send_dreq(now, id.0, mad);
                Ok(())
            }
            State::DreqReceived => {
                let mad = encode(connection.transaction, Message::Drep(ids), private)?;
                connection.answer = Some(mad.clone());
                self.send(route, mad);
                self.rest(now, id.0);
                Ok(())
            }
            _ => Err(CmError::State { id: id.0, state, command: "DREQ" }),
        }
    }

    fn send_dreq(&mut self, now: Now, id: u32, mad: Box<[u8; MAD_BYTES]>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = State::DreqSent;
        let (timeout_ns, retries) = (connection.response_ns, connection.retries);
        self.send_awaiting(now, id, mad, timeout_ns, retries);
    }

    /// The program lets go: the other end is told what it must know, and no event of the connection follows.
    pub fn release_connection(&mut self, now: Now, id: ConnectionId) {
        let Ok(connection) = self.owned(id) else { return };
        connection.owned = false;
        let id = id.0;
        let ids = Ids { local: id, remote: connection.remote_id.unwrap_or(0) };
        let (state, route, transaction) = (connection.state, connection.route, connection.transaction);
        let (qpn, service) = (connection.attributes.remote_qpn, connection.service);
        // A peer that times out before it knows our id is known by its HCA (IBTA vol. 1 §12.6.7.2, reason 4).
        let guid = connection.ca_guid.to_be_bytes();
        let refuse = |cm: &mut Self, refused, why, info: &[u8]| {
            cm.send_message(route, transaction, Message::Rej(rej(ids, refused, why, info)));
        };
        match state {
            State::ReqSent | State::ReqAcknowledged => {
                refuse(self, OF_NONE, reason::TIMEOUT, &guid);
                self.remove(id);
            }
            State::ReqReceived | State::ReqPostponed => {
                refuse(self, OF_REQ, reason::CONSUMER, &[]);
                self.remove(id);
            }
            State::RepSent | State::RepAcknowledged | State::RepReceived => {
                let refused = if state == State::RepReceived { OF_REP } else { OF_NONE };
                refuse(self, refused, reason::CONSUMER, &[]);
                self.answered(id);
                self.rest(now, id);
            }
            State::Established => {
                let transaction = self.names.transaction(id);
                if let Ok(mad) = encode(transaction, Message::Dreq { ids, qpn }, &[]) {
                    self.send_dreq(now, id, mad);
                }
            }
            State::DreqReceived => {
                if let Ok(mad) = encode(transaction, Message::Drep(ids), &[]) {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.answer = Some(mad.clone());
                    }
                    self.send(route, mad);
                }
                self.rest(now, id);
            }
            // Both go on by themselves.
            State::DreqSent | State::TimeWait => {}
            State::SidrReqSent => self.remove(id),
            State::SidrReqReceived => self.refuse_datagram(id, service),
        }
    }

    /// The other end's QP shows that it has forgotten this connection.
    pub(super) fn end_stale(&mut self, now: Now, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        if connection.state != State::Established {
            return;
        }
        let ids = Ids { local: id, remote: connection.remote_id.unwrap_or(0) };
        let qpn = connection.attributes.remote_qpn;
        let transaction = self.names.transaction(id);
        if let Ok(mad) = encode(transaction, Message::Dreq { ids, qpn }, &[]) {
            self.send_dreq(now, id, mad);
        }
    }

    pub(super) fn take_dreq(
        &mut self,
        now: Now,
        route: Route,
        mad: &CmMad<'_>,
        ids: Ids,
        qpn: u32,
    ) -> Result<(), CmDrop> {
        let Ok(connection) = self.named(route, ids) else {
            // The peer is to forget what we have forgotten.
            let back = Ids { local: ids.remote, remote: ids.local };
            self.send_message(route, mad.transaction, Message::Drep(back));
            return Ok(());
        };
        let (id, state) = (connection.id, connection.state);
        if connection.local_qpn != qpn {
            return Err(CmDrop::WrongQpn { id, qpn });
        }
        if state == State::TimeWait {
            let back = Ids { local: id, remote: ids.local };
            self.counters.answered_again += 1;
            self.send_message(route, mad.transaction, Message::Drep(back));
            return Ok(());
        }
        if !state.takes_dreq() {
            return Err(CmDrop::State { id, state });
        }
        connection.state = State::DreqReceived;
        connection.transaction = mad.transaction;
        let owned = connection.owned;
        self.answered(id);
        if owned {
            self.tell(id, Event::Disconnected { id: ConnectionId(id), how: Disconnect::Asked });
        } else {
            // Both ends ended it at once, and ours has no answer to send.
            let back = Ids { local: id, remote: ids.local };
            self.send_message(route, mad.transaction, Message::Drep(back));
            self.rest(now, id);
        }
        Ok(())
    }

    pub(super) fn take_drep(&mut self, now: Now, route: Route, ids: Ids) -> Result<(), CmDrop> {
        let connection = self.named(route, ids)?;
        let (id, state) = (connection.id, connection.state);
        if !state.takes_drep() {
            return Err(CmDrop::State { id, state });
        }
        self.answered(id);
        if state == State::DreqSent {
            self.tell(id, Event::Disconnected { id: ConnectionId(id), how: Disconnect::Answered });
        }
        self.rest(now, id);
        Ok(())
    }

    pub(super) fn take_rej(
        &mut self,
        now: Now,
        route: Route,
        rej: &Rej,
        private: &[u8],
    ) -> Result<(), CmDrop> {
        let connection = match (rej.ids.remote, rej.reason) {
            // A peer that timed out before our answer came knows its own id only.
            (0, reason::TIMEOUT) => {
                let known = self.by_peer.get(&(route.remote, rej.ids.local)).copied();
                let id = known.ok_or(CmDrop::NoConnection { id: 0 })?;
                self.named(route, Ids { local: rej.ids.local, remote: id })?
            }
            // A peer that refuses a REQ need not have made an id.
            _ if rej.message == OF_REQ && rej.ids.local == 0 => {
                let id = rej.ids.remote;
                let found = self.connections.get_mut(&id).filter(|found| found.route.remote == route.remote);
                found.ok_or(CmDrop::NoConnection { id })?
            }
            _ => self.named(route, rej.ids)?,
        };
        let (id, state) = (connection.id, connection.state);
        // Of the REQ, when that has been answered: it came twice, and the second one late.
        let late = state.rests_after_rej() && rej.message == OF_REQ;
        if late || !(state.takes_rej() || state.rests_after_rej()) {
            return Err(CmDrop::State { id, state });
        }
        self.answered(id);
        let (refusal, private) = (Box::new(*rej), private.to_vec());
        self.tell(id, Event::Rejected { id: ConnectionId(id), rej: refusal, private });
        if state.rests_after_rej() || rej.reason == reason::STALE_CONNECTION {
            self.rest(now, id);
        } else {
            self.remove(id);
        }
        Ok(())
    }
}
