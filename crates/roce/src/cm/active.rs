//! The side that asks: REQ out, REP in, RTU out.

use super::*;

impl Cm {
    /// Requests a connection by `req` (`local_id` is set here), on its primary path. Up to 92 private bytes.
    ///
    /// Errors: too much private data, too many connections.
    pub fn connect(&mut self, now: Now, req: &Req, private: &[u8]) -> Result<ConnectionId, CmError> {
        let message = |id| Message::Req(Req { local_id: id, ..*req });
        // Their time to answer, and the way there and back.
        let lifetime = req.primary.ack_timeout.saturating_sub(1);
        let response_ns = code_ns(req.remote_response_timeout) + 2 * code_ns(lifetime);
        self.ask(now, State::ReqSent, req, response_ns, message, private)
    }

    /// Says that our end is ready, after [`Event::Replied`]. Up to 224 bytes of private data.
    ///
    /// Errors: no such connection, another state, too much private data.
    pub fn ready(&mut self, id: ConnectionId, private: &[u8]) -> Result<(), CmError> {
        let connection = self.owned_in(id, |state| state == State::RepReceived, "RTU")?;
        let mad = encode(connection.transaction, Message::Rtu(connection.ids()), private)?;
        connection.state = State::Established;
        connection.answer = Some(mad.clone());
        let route = connection.route;
        self.send(route, mad);
        Ok(())
    }

    pub(super) fn take_rep(&mut self, now: Now, route: Route, mad: &CmMad<'_>, rep: &Rep) -> Taken {
        let connection = self.named(route, rep.ids)?;
        let (id, state) = (connection.id, connection.state);
        if !state.takes_rep() {
            // It stands, or will: the answer did not arrive.
            let answer = connection.answer.clone().filter(|_| state == State::Established);
            return self.answer_again(route, answer.ok_or(CmDrop::OutOfState)?);
        }
        if let Some(other) = self.by_qpn.get(&(route.remote, rep.qpn)).copied().filter(|other| *other != id) {
            // Their QP has another connection, as far as we know: one of both ends has begun anew.
            let refusal = rej(rep.ids.turned(), 1, reason::STALE_CONNECTION, &[]);
            self.send_message(route, mad.transaction, Message::Rej(refusal));
            self.end_stale(now, other);
            let rej = Message::Rej(Rej { ids: rep.ids, ..refusal });
            self.tell(id, Cause::Received(rej, Vec::new()));
            self.remove(id);
            return Ok(());
        }
        self.answered(id);
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        connection.state = State::RepReceived;
        connection.remote_id = Some(rep.ids.local);
        let attributes = &mut connection.attributes;
        attributes.qpn = rep.qpn;
        attributes.starting_psn = rep.starting_psn;
        attributes.rnr_retry = rep.rnr_retry;
        // What they hold, we may have outstanding, and the other way round.
        attributes.initiator_depth = rep.responder_resources;
        attributes.responder_resources = rep.initiator_depth;
        let lifetime = attributes.primary.ack_timeout.saturating_sub(1);
        attributes.primary.ack_timeout = ack_timeout(rep.target_ack_delay, lifetime);
        self.by_peer.insert((route.remote, rep.ids.local), id);
        self.by_qpn.insert((route.remote, rep.qpn), id);
        self.tell(id, mad.into());
        Ok(())
    }

    /// The other end has what we sent, and takes its time: nothing is sent again before that is over.
    pub(super) fn take_mra(&mut self, now: Now, route: Route, mra: &Mra) -> Taken {
        let Mra { ids, message, timeout } = *mra;
        let connection = self.named(route, ids)?;
        let (id, state) = (connection.id, connection.state);
        connection.state = match (message, state) {
            (0, State::ReqSent | State::ReqAcknowledged) => State::ReqAcknowledged,
            (1, State::RepSent | State::RepAcknowledged) => State::RepAcknowledged,
            _ => return Err(CmDrop::OutOfState),
        };
        if connection.state == State::ReqAcknowledged {
            connection.remote_id = Some(ids.local);
        }
        let longer = code_ns(timeout) + code_ns(connection.attributes.primary.ack_timeout);
        if let Some(sent) = &mut connection.sent {
            sent.timeout_ns = longer;
        }
        self.start_timer(id, now.after(longer));
        Ok(())
    }
}
