//! Datagram services: which QP and Q_Key a service id has (SIDR, IBTA vol. 1 §12.11).

use super::*;

/// Most SIDR_REPs that are kept; a new one takes the place of the oldest.
const KEPT: usize = 64;

/// `status` of a SIDR_REP: the service id has no listener.
const UNSUPPORTED: u8 = 1;
/// `status` of a SIDR_REP: the program refused.
const REFUSED: u8 = 2;

impl Cm {
    /// Asks for the QP of a datagram service; of `req` it uses the service, the P_Key, the response timeout,
    /// the retries and the path. Up to 216 bytes of private data.
    ///
    /// Errors: too much private data, too many connections.
    pub fn send_sidr_req(&mut self, now: Now, req: &Req, private: &[u8]) -> Result<ConnectionId, CmError> {
        let Req { pkey, service, .. } = *req;
        let message = |request| Message::SidrReq(SidrReq { request, pkey, service });
        self.ask(now, State::SidrReqSent, req, code_ns(req.remote_response_timeout), message, private)
    }

    /// Answers a SIDR_REQ; `rep` with all but `request` and `service`. Up to 136 bytes of private data.
    ///
    /// Errors: no such question, another state, too much private data.
    pub fn send_sidr_rep(&mut self, id: ConnectionId, rep: &SidrRep, private: &[u8]) -> Result<(), CmError> {
        let connection = self.owned_in(id, |state| state == State::SidrReqReceived, "SIDR_REP")?;
        let (route, transaction) = (connection.route, connection.transaction);
        let (request, service) = (connection.ids().remote, connection.attributes.service);
        let mad = encode(transaction, Message::SidrRep(SidrRep { request, service, ..*rep }), private)?;
        self.send(route, mad.clone());
        // Kept for repeated requests.
        if self.sidr_reps.len() >= KEPT {
            self.sidr_reps.pop_front();
        }
        self.sidr_reps.push_back(((route, request, transaction), mad));
        self.remove(id.0);
        Ok(())
    }

    /// The program lets a question go without an answer.
    pub(super) fn refuse_sidr_req(&mut self, id: ConnectionId) -> Result<(), CmError> {
        self.send_sidr_rep(id, &refusal(0, 0, REFUSED), &[])
    }

    pub(super) fn take_sidr_req(&mut self, route: Route, mad: &CmMad<'_>, req: &SidrReq) -> Taken {
        let SidrReq { request, service, .. } = *req;
        let question = (route, request, mad.transaction);
        if let Some((_, answer)) = self.sidr_reps.iter().find(|(kept, _)| *kept == question) {
            return self.answer_again(route, answer.clone());
        }
        if self.by_peer.contains_key(&(route.remote, request)) {
            return Err(CmDrop::OutOfState);
        }
        let Some(key) = self.listener(service, route.local) else {
            self.send_message(route, mad.transaction, unsupported(request, service));
            return Ok(());
        };
        let fill = |connection: &mut Connection| connection.attributes.service = service;
        let id = self.admit(key, (State::SidrReqReceived, route), request, mad.transaction, fill)?;
        self.tell(id.0, mad.into());
        Ok(())
    }

    pub(super) fn take_sidr_rep(&mut self, route: Route, mad: &CmMad<'_>, rep: &SidrRep) -> Taken {
        let id = rep.request;
        if self.of_peer(route, id)?.state != State::SidrReqSent {
            return Err(CmDrop::OutOfState);
        }
        self.tell(id, mad.into());
        self.remove(id);
        Ok(())
    }
}

/// A SIDR_REP that says that the service id has no listener.
pub(super) fn unsupported(request: u32, service: u64) -> Message {
    Message::SidrRep(refusal(request, service, UNSUPPORTED))
}

fn refusal(request: u32, service: u64, status: u8) -> SidrRep {
    SidrRep { request, status, info_bytes: 0, qpn: 0, service, qkey: 0, info: [0; 72] }
}
