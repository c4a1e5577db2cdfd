//! The side that is asked: REQ in, REP out, RTU in; and MRA when the program takes its time.

use super::connection::turned;
use super::*;

impl Cm {
    /// Accepts a request: `rep` with all but its `ids`. Up to 196 bytes of private data.
    ///
    /// Errors: no such connection, another state, too much private data.
    pub fn accept(&mut self, now: Now, id: ConnectionId, rep: &Rep, private: &[u8]) -> Result<(), CmError> {
        let connection = self.owned_in(id, State::may_accept, "REP")?;
        let message = Message::Rep(Rep { ids: connection.ids(), ..*rep });
        let mad = encode(connection.transaction, message, private)?;
        connection.state = State::RepSent;
        connection.local_qpn = rep.qpn;
        connection.attributes.responder_resources = rep.responder_resources;
        connection.attributes.initiator_depth = rep.initiator_depth;
        let released = std::mem::take(&mut connection.waits_at);
        self.release(released);
        self.send_awaiting(now, id.0, mad);
        Ok(())
    }

    /// The program asks for more time: a repeated REQ gets an MRA of this 5-bit code. Nothing is sent now.
    ///
    /// Errors: no such connection, another state.
    pub fn postpone(&mut self, id: ConnectionId, timeout: u8) -> Result<(), CmError> {
        let connection = self.owned_in(id, State::may_accept, "MRA")?;
        connection.state = State::ReqPostponed;
        connection.postponed = timeout & 31;
        Ok(())
    }

    /// Data of the other end has come before its RTU: the connection stands.
    ///
    /// Errors: no such connection, another state.
    pub fn establish(&mut self, id: ConnectionId) -> Result<(), CmError> {
        let connection = self.owned_in(id, State::takes_rtu, "data that came")?;
        connection.state = State::Established;
        let rtu = Message::Rtu(connection.ids().turned());
        self.answered(id.0);
        self.tell(id.0, Cause::Received(rtu, Vec::new()));
        Ok(())
    }

    pub(super) fn take_req(&mut self, now: Now, route: Route, mad: &CmMad<'_>, req: &Req) -> Taken {
        if let Some(known) = self.by_peer.get(&(route.remote, req.local_id)).copied() {
            return self.take_req_again(route, mad, known);
        }
        let ids = Ids { local: 0, remote: req.local_id };
        if let Some(other) = self.by_qpn.get(&(route.remote, req.qpn)).copied() {
            // Their QP has another connection, as far as we know.
            let refusal = Message::Rej(rej(ids, 0, reason::STALE_CONNECTION, &[]));
            self.send_message(route, mad.transaction, refusal);
            self.end_stale(now, other);
            return Ok(());
        }
        let Some(key) = self.listener(req.service, route.local) else {
            let refusal = Message::Rej(rej(ids, 0, reason::INVALID_SERVICE_ID, &[]));
            self.send_message(route, mad.transaction, refusal);
            return Ok(());
        };
        let fill = |connection: &mut Connection| {
            connection.attributes = turned(req);
            connection.response_ns = code_ns(req.local_response_timeout);
        };
        let id = self.admit(key, (State::ReqReceived, route), req.local_id, mad.transaction, fill)?;
        self.by_qpn.insert((route.remote, req.qpn), id.0);
        self.tell(id.0, mad.into());
        Ok(())
    }

    /// A REQ that came before.
    fn take_req_again(&mut self, route: Route, mad: &CmMad<'_>, id: u32) -> Taken {
        let Some(connection) = self.connections.get(&id) else { return Err(CmDrop::NoConnection) };
        let (ids, state, timeout) = (connection.ids(), connection.state, connection.postponed);
        let answer = match state {
            State::ReqPostponed => Message::Mra(Mra { ids, message: 0, timeout }),
            State::TimeWait => Message::Rej(rej(ids, 0, reason::STALE_CONNECTION, &[])),
            // Linux leaves this one to the REP's own timer.
            State::RepSent if connection.sent.is_some() => {
                let again = connection.sent.as_ref().map(|sent| sent.mad.clone());
                return again.map_or(Ok(()), |mad| self.answer_again(route, mad));
            }
            _ => return Err(CmDrop::OutOfState),
        };
        self.counters.answered_again += 1;
        self.send_message(route, mad.transaction, answer);
        Ok(())
    }

    pub(super) fn take_rtu(&mut self, route: Route, mad: &CmMad<'_>, ids: Ids) -> Taken {
        let connection = self.named_in(route, ids, State::takes_rtu)?;
        connection.state = State::Established;
        let id = connection.id;
        self.answered(id);
        self.tell(id, mad.into());
        Ok(())
    }
}
