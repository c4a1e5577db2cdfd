//! The connections of a manager by their names: opened, found, told, removed; MADs, timers and listeners.

use super::*;

impl Cm {
    /// State of a connection, `None` when it is no more.
    pub fn state(&self, id: ConnectionId) -> Option<State> {
        self.connections.get(&id.0).map(|connection| connection.state)
    }

    /// Adds a connection with a fresh id and transaction id of this end; `None` when there are too many.
    pub(super) fn open(&mut self, state: State, route: Route) -> Option<&mut Connection> {
        if self.connections.len() >= self.max_connections {
            return None;
        }
        let id = self.names.fresh(|id| self.connections.contains_key(&id))?;
        let transaction = self.names.transaction(id);
        let connection = Connection { id, state, route, transaction, owned: true, ..Connection::default() };
        Some(self.connections.entry(id).or_insert(connection))
    }

    /// Opens a connection by its first message, which `message` makes of its id.
    pub(super) fn ask(
        &mut self,
        now: Now,
        state: State,
        req: &Req,
        response_ns: u64,
        message: impl Fn(u32) -> Message,
        private: &[u8],
    ) -> Result<ConnectionId, CmError> {
        // Looked at before anything is changed.
        encode(0, message(0), private)?;
        let limit = self.max_connections;
        let route = Route { local: req.primary.local_gid, remote: req.primary.remote_gid };
        let connection = self.open(state, route).ok_or(CmError::Full { limit })?;
        connection.local_qpn = req.qpn;
        connection.attributes = Req { qpn: 0, starting_psn: 0, ..*req };
        connection.response_ns = response_ns;
        let id = connection.id;
        let mad = encode(connection.transaction, message(id), private)?;
        self.send_awaiting(now, id, mad);
        Ok(ConnectionId(id))
    }

    /// A connection that a message names by our id, if the message comes from its other end.
    pub(super) fn named(&mut self, route: Route, ids: Ids) -> Result<&mut Connection, CmDrop> {
        let found = self.of_peer(route, ids.remote)?;
        let known = found.remote_id.is_none_or(|remote| remote == ids.local);
        if known { Ok(found) } else { Err(CmDrop::NoConnection) }
    }

    /// The same of a message that some states take.
    pub(super) fn named_in(
        &mut self,
        route: Route,
        ids: Ids,
        takes: impl Fn(State) -> bool,
    ) -> Result<&mut Connection, CmDrop> {
        let found = self.named(route, ids)?;
        if takes(found.state) { Ok(found) } else { Err(CmDrop::OutOfState) }
    }

    /// A connection by our id alone, of a message that comes from its other end.
    pub(super) fn of_peer(&mut self, route: Route, id: u32) -> Result<&mut Connection, CmDrop> {
        let found = self.connections.get_mut(&id).filter(|found| found.route.remote == route.remote);
        found.ok_or(CmDrop::NoConnection)
    }

    /// The connection of a command.
    pub(super) fn owned(&mut self, id: ConnectionId) -> Result<&mut Connection, CmError> {
        let found = self.connections.get_mut(&id.0).filter(|connection| connection.owned);
        found.ok_or(CmError::Gone { id: id.0 })
    }

    /// The same, of a command that goes with some states.
    pub(super) fn owned_in(
        &mut self,
        id: ConnectionId,
        goes_with: impl Fn(State) -> bool,
        command: &'static str,
    ) -> Result<&mut Connection, CmError> {
        let connection = self.owned(id)?;
        let state = connection.state;
        if goes_with(state) { Ok(connection) } else { Err(CmError::State { id: id.0, state, command }) }
    }

    /// Forgets a connection with all its names.
    pub(super) fn remove(&mut self, id: u32) {
        self.stop_timer(id);
        let Some(gone) = self.connections.remove(&id) else { return };
        self.release(gone.waits_at);
        let qpn = Some(gone.attributes.qpn);
        for (names, number) in [(&mut self.by_peer, gone.remote_id), (&mut self.by_qpn, qpn)] {
            if let Some(name) = number.map(|number| (gone.route.remote, number))
                && names.get(&name) == Some(&id)
            {
                names.remove(&name);
            }
        }
    }

    /// Tells the program, unless it has let the connection go.
    pub(super) fn tell(&mut self, id: u32, cause: Cause) {
        if let Some(connection) = self.connections.get(&id).filter(|connection| connection.owned) {
            self.events.push_back(Event { id: ConnectionId(id), route: connection.route, cause });
        }
    }

    pub(super) fn send(&mut self, route: Route, mad: Box<[u8; MAD_BYTES]>) {
        self.counters.sent += 1;
        self.outgoing.push_back(AddressedMad { from: route.local, to: route.remote, mad });
    }

    /// Sends a message that is not kept.
    pub(super) fn send_message(&mut self, route: Route, transaction: u64, message: Message) {
        let encoded = CmMad { transaction, message, private: &[] }.encode();
        self.send(route, Box::new(encoded.expect("no private data always fits")));
    }

    /// Sends a MAD of a connection and waits for its answer, as long and as often as the connection says.
    pub(super) fn send_awaiting(&mut self, now: Now, id: u32, mad: Box<[u8; MAD_BYTES]>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (route, timeout_ns) = (connection.route, connection.response_ns);
        connection.sent =
            Some(Sent { mad: mad.clone(), timeout_ns, retries_left: connection.attributes.max_cm_retries });
        self.send(route, mad);
        self.start_timer(id, now.after(timeout_ns));
    }

    /// Sends an answer again, to a repeated request.
    pub(super) fn answer_again(&mut self, route: Route, answer: Box<[u8; MAD_BYTES]>) -> Taken {
        self.counters.answered_again += 1;
        self.send(route, answer);
        Ok(())
    }

    /// The listener to this service at this address: one that named the address goes first.
    pub(super) fn listener(&self, service: u64, address: Gid) -> Option<(u64, Option<Gid>)> {
        [(service, Some(address)), (service, None)].into_iter().find(|key| self.listeners.contains_key(key))
    }

    /// Opens a connection for a request, which takes a place in its listener's backlog; `fill` sets the rest.
    pub(super) fn admit(
        &mut self,
        key: (u64, Option<Gid>),
        (state, route): (State, Route),
        remote_id: u32,
        transaction: u64,
        fill: impl FnOnce(&mut Connection),
    ) -> Result<ConnectionId, CmDrop> {
        // Nothing is said when there is no room: it will be asked again.
        if self.listeners.get(&key).is_none_or(|listener| listener.waiting >= listener.backlog) {
            return Err(CmDrop::Full);
        }
        let connection = self.open(state, route).ok_or(CmDrop::Full)?;
        connection.remote_id = Some(remote_id);
        connection.transaction = transaction;
        connection.waits_at = Some(key);
        fill(connection);
        let id = connection.id;
        self.by_peer.insert((route.remote, remote_id), id);
        self.listeners.entry(key).and_modify(|listener| listener.waiting += 1);
        Ok(ConnectionId(id))
    }

    /// Gives the place back.
    pub(super) fn release(&mut self, key: Option<(u64, Option<Gid>)>) {
        if let Some(listener) = key.and_then(|key| self.listeners.get_mut(&key)) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }

    /// Sets the one timer of a connection.
    pub(super) fn start_timer(&mut self, id: u32, due: Now) {
        self.stop_timer(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.timer = Some(due);
            self.timers.insert((due, id));
        }
    }

    pub(super) fn stop_timer(&mut self, id: u32) {
        if let Some(due) = self.connections.get_mut(&id).and_then(|connection| connection.timer.take()) {
            self.timers.remove(&(due, id));
        }
    }
}
