//! How connections end: REJ, DREQ and DREP, and a program that lets go.

use super::*;

/// What a REJ says that it refuses.
const OF_REQ: u8 = 0;
const OF_REP: u8 = 1;
const OF_NONE: u8 = 2;

impl Cm {
    /// Refuses a request (then removed) or an answer (then TimeWait). Up to 72 bytes of info, 148 private.
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
        let connection = self.owned_in(id, State::may_reject, "REJ")?;
        let refused = match connection.state {
            State::ReqReceived | State::ReqPostponed => OF_REQ,
            State::RepReceived => OF_REP,
            _ => OF_NONE,
        };
        let message = Message::Rej(rej(connection.ids(), refused, why, info));
        let mad = encode(connection.transaction, message, private)?;
        let route = connection.route;
        self.send(route, mad);
        if refused == OF_REQ {
            self.remove(id.0);
        } else {
            // The other end may have sent already.
            self.rest(now, id.0);
        }
        Ok(())
    }

    /// Ends a connection or answers the other end's DREQ. Up to 220 bytes of private data (answer: 224).
    ///
    /// Errors: no such connection, another state, too much private data.
    pub fn disconnect(&mut self, now: Now, id: ConnectionId, private: &[u8]) -> Result<(), CmError> {
        let begun = self.names.transaction(id.0);
        let connection = self.owned_in(id, State::may_disconnect, "DREQ")?;
        let (route, ids) = (connection.route, connection.ids());
        if connection.state == State::Established {
            let dreq = Message::Dreq(Dreq { ids, qpn: connection.attributes.qpn });
            let mad = encode(begun, dreq, private)?;
            connection.state = State::DreqSent;
            self.send_awaiting(now, id.0, mad);
        } else {
            let mad = encode(connection.transaction, Message::Drep(ids), private)?;
            self.send(route, mad);
            self.rest(now, id.0);
        }
        Ok(())
    }

    /// The program lets go: the other end is told what it must know, and no event of the connection follows.
    pub fn release_connection(&mut self, now: Now, id: ConnectionId) {
        let Ok(connection) = self.owned(id) else { return };
        // A peer that times out before it knows our id is known by its HCA (IBTA vol. 1 §12.6.7.2, reason 4).
        let guid = connection.attributes.ca_guid.to_be_bytes();
        let state = connection.state;
        let told = match state {
            State::ReqSent | State::ReqAcknowledged => self.reject(now, id, reason::TIMEOUT, &guid, &[]),
            state if state.may_reject() => self.reject(now, id, reason::CONSUMER, &[], &[]),
            state if state.may_disconnect() => self.disconnect(now, id, &[]),
            State::SidrReqReceived => self.refuse_sidr_req(id),
            // A DREQ that was sent and a rest go on by themselves, and a SIDR_REQ of ours needs no word.
            _ => Ok(()),
        };
        // No private data always fits.
        debug_assert_eq!(told, Ok(()));
        if matches!(state, State::ReqSent | State::ReqAcknowledged | State::SidrReqSent) {
            self.remove(id.0);
        } else if let Ok(connection) = self.owned(id) {
            connection.owned = false;
        }
    }

    /// The other end's QP shows that it has forgotten this connection.
    pub(super) fn end_stale(&mut self, now: Now, id: u32) {
        if self.state(ConnectionId(id)) == Some(State::Established) {
            let told = self.disconnect(now, ConnectionId(id), &[]);
            debug_assert_eq!(told, Ok(()));
        }
    }

    pub(super) fn take_dreq(&mut self, now: Now, route: Route, mad: &CmMad<'_>, dreq: &Dreq) -> Taken {
        let Dreq { ids, qpn } = *dreq;
        let drep = Message::Drep(ids.turned());
        let Ok(connection) = self.named(route, ids) else {
            // The peer is to forget what we have forgotten.
            self.send_message(route, mad.transaction, drep);
            return Ok(());
        };
        let (id, state) = (connection.id, connection.state);
        if connection.local_qpn != qpn {
            return Err(CmDrop::OutOfState);
        }
        if state == State::TimeWait {
            self.counters.answered_again += 1;
            self.send_message(route, mad.transaction, drep);
            return Ok(());
        }
        if !state.takes_dreq() {
            return Err(CmDrop::OutOfState);
        }
        connection.state = State::DreqReceived;
        connection.transaction = mad.transaction;
        let owned = connection.owned;
        self.answered(id);
        if owned {
            self.tell(id, mad.into());
        } else {
            // Both ends ended it at once, and ours has no answer to send.
            self.send_message(route, mad.transaction, drep);
            self.rest(now, id);
        }
        Ok(())
    }

    pub(super) fn take_drep(&mut self, now: Now, route: Route, mad: &CmMad<'_>, ids: Ids) -> Taken {
        let connection = self.named_in(route, ids, State::takes_drep)?;
        let (id, state) = (connection.id, connection.state);
        if state == State::DreqSent {
            self.tell(id, mad.into());
        }
        self.rest(now, id);
        Ok(())
    }

    pub(super) fn take_rej(&mut self, now: Now, route: Route, mad: &CmMad<'_>, rej: &Rej) -> Taken {
        let connection = match (rej.ids.remote, rej.reason) {
            // A peer that timed out before our answer came knows its own id only.
            (0, reason::TIMEOUT) => {
                let known = self.by_peer.get(&(route.remote, rej.ids.local)).copied();
                let id = known.ok_or(CmDrop::NoConnection)?;
                self.named(route, Ids { local: rej.ids.local, remote: id })?
            }
            // A peer that refuses a REQ need not have made an id.
            _ if rej.message == OF_REQ && rej.ids.local == 0 => self.of_peer(route, rej.ids.remote)?,
            _ => self.named(route, rej.ids)?,
        };
        let (id, state) = (connection.id, connection.state);
        // Of the REQ, when that has been answered: it came twice, and the second one late.
        let late = state.rests_after_rej() && rej.message == OF_REQ;
        if late || !(state.takes_rej() || state.rests_after_rej()) {
            return Err(CmDrop::OutOfState);
        }
        self.tell(id, mad.into());
        if state.rests_after_rej() || rej.reason == reason::STALE_CONNECTION {
            self.rest(now, id);
        } else {
            self.remove(id);
        }
        Ok(())
    }
}
