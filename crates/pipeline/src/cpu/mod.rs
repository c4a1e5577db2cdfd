//! The modes in which this thread waits. It runs the model and posts, by libibverbs or by the shim; or an
//! [`Offload`] computes beside it, and may post.
//!
//! [`Served`] has the slots of one model. One thread calls it; other threads make and drop a client's
//! [`Endpoint`], which takes kernel calls. In order: [`Served::grant`], [`Endpoint::new`], its queue pair's
//! states, [`Served::admit`]; at the end [`Served::remove`], the endpoint's drop, [`Served::withdraw`].

mod endpoint;
mod error;
mod job;
mod offload;
mod poster;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use slots::layout::PREFIX_BYTES;
use slots::server::ServerError;
use slots::{Geometry, Server, SlotOrder, Status, TensorKind};

pub use endpoint::{ACCESS, Counts, Endpoint, Memory, Setting};
pub use error::CpuError;
pub use job::Job;
pub use offload::Offload;
pub use poster::Poster;

use crate::PATIENCE;
use crate::trace::unix_ns;

/// Looks that find nothing between two readings of the clock for that.
const LOOKS: u64 = 1 << 10;

/// Makes outputs of inputs, in the memory of earlier ones where it can.
pub type Model<'a> = dyn FnMut(&[Vec<f32>], &mut Vec<Vec<f32>>) -> Result<(), String> + 'a;

/// The slots of one model, and its clients.
pub struct Served {
    server: Server,
    memory: Memory,
    endpoints: BTreeMap<u32, Endpoint>,
    /// Clients whose endpoints are being dropped, and their slots that were being sent.
    leaving: BTreeMap<u32, Vec<u32>>,
    inputs: Vec<Vec<f32>>,
    outputs: Vec<Vec<f32>>,
    began: Instant,
    looks: u64,
    patience_ns: u64,
    sent: Vec<u32>,
    arrived: Vec<u32>,
    offload: Option<Box<dyn Offload>>,
    model_failure: Option<String>,
    /// A planted defect.
    #[cfg(test)]
    forgets_sending: bool,
    /// When a slot's request was offloaded, by the clock of `began`.
    begun: BTreeMap<u32, u64>,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Served({:?}, {} clients)", self.memory.geometry, self.endpoints.len())
    }
}

impl Served {
    /// Error: no memory, or a model with tensors of another type.
    pub fn new(geometry: Geometry, slots: u32) -> Result<Served, CpuError> {
        Served::with(Memory::new(geometry, slots)?, slots, None)
    }

    /// Has `offload` compute requests out of `slots` slots of `memory`, as a model. Errors: [`Self::new`]'s.
    pub fn with(memory: Memory, slots: u32, offload: Option<Box<dyn Offload>>) -> Result<Served, CpuError> {
        let geometry = memory.geometry.clone();
        let messages = [&geometry.request, &geometry.answer];
        let mut entries = messages.iter().flat_map(|message| message.entries());
        if entries.any(|entry| entry.kind != TensorKind::F32.number()) {
            return Err(CpuError::Kind);
        }
        let room = |entry: &slots::layout::Entry| vec![0.0; entry.length as usize / size_of::<f32>()];
        Ok(Served {
            inputs: geometry.request.entries().iter().map(room).collect(),
            outputs: Vec::new(),
            server: Server::new(geometry, slots),
            memory,
            endpoints: BTreeMap::new(),
            leaving: BTreeMap::new(),
            began: Instant::now(),
            looks: 0,
            patience_ns: PATIENCE.as_nanos() as u64,
            sent: Vec::new(),
            arrived: Vec::new(),
            offload,
            model_failure: None,
            #[cfg(test)]
            forgets_sending: false,
            begun: BTreeMap::new(),
        })
    }

    /// Has the offload note how long a request's steps take. Error: it cannot; there is no offload.
    pub fn trace(&mut self) -> Result<(), CpuError> {
        match &mut self.offload {
            Some(offload) => offload.trace(),
            None => Err(CpuError::Offload("nothing computes beside the thread that serves".into())),
        }
    }

    /// Fails clients that have not taken an answer for so long, in place of [`PATIENCE`].
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Where endpoints have their slots.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Gives slots to a new client: its number, and [`Setting::granted`].
    pub fn grant(&mut self, wanted: u16) -> Result<(u32, Vec<(u32, u32)>), ServerError> {
        self.server.grant(wanted)
    }

    /// Lets a client have so many requests outstanding, instead of one a slot. Call it before it gets slots.
    pub fn limit(&mut self, client: u32, credits: u16) -> Result<(), ServerError> {
        self.server.limit(client, credits)
    }

    /// Serves each client's requests in this order.
    pub fn set_order(&mut self, order: SlotOrder) {
        self.server.set_order(order);
    }

    /// Serves a client from now on.
    pub fn admit(&mut self, client: u32, mut endpoint: Endpoint) {
        if let Some(Err(error)) = self.offload.as_mut().map(|offload| offload.admit(client, &endpoint)) {
            endpoint.failure.get_or_insert(error.to_string());
        }
        self.endpoints.insert(client, endpoint);
    }

    /// Stops serving a client. Drop its endpoint before [`Self::withdraw`]. Error: a kernel may still post
    /// there. Its memory, keys, queue and slots then stay for good: do not withdraw them.
    pub fn remove(&mut self, client: u32) -> Result<Option<Endpoint>, CpuError> {
        let Some(endpoint) = self.endpoints.remove(&client) else { return Ok(None) };
        if let Some(Err(error)) = self.offload.as_mut().map(|offload| offload.remove(client)) {
            std::mem::forget(endpoint);
            return Err(error);
        }
        self.leaving.insert(client, endpoint.sending().collect());
        Ok(Some(endpoint))
    }

    /// Takes a client's slots back. Nothing of its queue pair is left.
    pub fn withdraw(&mut self, client: u32) -> Result<(), ServerError> {
        for slot in self.leaving.remove(&client).unwrap_or_default() {
            self.server.sent(slot)?;
        }
        self.server.withdraw(client)
    }

    /// How many clients are served, and what they got together.
    pub fn counts(&self) -> (usize, Counts) {
        let add = |all: Counts, endpoint: &Endpoint| Counts {
            answered: all.answered + endpoint.counts.answered,
            refused: all.refused + endpoint.counts.refused,
        };
        (self.endpoints.len(), self.endpoints.values().fold(Counts::default(), add))
    }

    /// Whether no answer is being sent.
    pub fn is_quiet(&self) -> bool {
        self.endpoints
            .values()
            .all(|endpoint| endpoint.failure.is_some() || endpoint.sending().next().is_none())
    }

    /// Clients that failed, and why. Each has to be removed.
    pub fn failed(&self) -> impl Iterator<Item = (u32, &str)> {
        self.endpoints.iter().filter_map(|(client, endpoint)| Some((*client, endpoint.failure.as_deref()?)))
    }

    /// Takes what has come from all clients: whether there was anything.
    pub fn look(&mut self) -> bool {
        let mut has_come = false;
        for (&client, endpoint) in &mut self.endpoints {
            endpoint.look(&mut self.sent, &mut self.arrived);
            has_come |= !self.sent.is_empty() || !self.arrived.is_empty();
            let sent = self.sent.drain(..).try_for_each(|slot| self.server.sent(slot));
            let arrived = self.arrived.drain(..).try_for_each(|slot| {
                let prefix = endpoint.prefix(slot);
                self.server.arrived(client, slot, &prefix)
            });
            if let Err(error) = sent.and(arrived) {
                endpoint.failure.get_or_insert(error.to_string());
            }
        }
        self.looks = self.looks.wrapping_add(1);
        // Behind a look that found something a model may run for long.
        if has_come || self.looks.is_multiple_of(LOOKS) {
            let now_ns = self.began.elapsed().as_nanos() as u64;
            let begun = self.offload.as_ref().map_or(u64::MAX, |offload| offload.turns()[1]);
            let endpoints = self.endpoints.values_mut();
            endpoints.for_each(|endpoint| endpoint.expire(now_ns, self.patience_ns, begun));
        }
        has_come
    }

    /// Serves the next request: whether there was one. `model` makes outputs of inputs; with none, requests
    /// are answered with [`Status::Stopping`]. Where requests are offloaded, any model stands for that one.
    pub fn serve(&mut self, model: Option<&mut Model<'_>>) -> Result<bool, CpuError> {
        if self.offload.is_some() {
            return self.serve_beside(model.is_some());
        }
        let Some(work) = self.server.take() else { return Ok(false) };
        let began = self.began;
        let now_ns = || began.elapsed().as_nanos() as u64;
        let begun_ns = now_ns();
        let status = match (work.refused, model, self.endpoints.get(&work.client)) {
            (Some(status), ..) => status,
            (None, None, _) => Status::Stopping,
            (None, Some(_), None) => Status::Stopping,
            (None, Some(model), Some(endpoint)) => {
                endpoint.read(work.slot, &mut self.inputs);
                let done = model(&self.inputs, &mut self.outputs);
                let entries = self.memory.geometry.answer.entries().iter();
                let wanted = entries.map(|entry| entry.length as usize / size_of::<f32>());
                let is_whole = wanted.eq(self.outputs.iter().map(Vec::len));
                match done {
                    Ok(()) if is_whole => endpoint.put(work.slot, &self.outputs),
                    Ok(()) => self.note_failure("its outputs are not of the model's sizes"),
                    Err(why) => self.note_failure(&why),
                }
            }
        };
        let times = [begun_ns, now_ns()];
        if let Some(prefix) = self.server.done(work.slot, status, times)? {
            self.answer((work.client, work.slot), status != Status::Ok, &prefix)?;
        }
        Ok(true)
    }

    /// Why the model failed first, if it did: its requests are answered with [`Status::ModelFailed`].
    pub fn model_failure(&self) -> Option<&str> {
        self.model_failure.as_deref()
    }

    fn note_failure(&mut self, why: &str) -> Status {
        self.model_failure.get_or_insert_with(|| why.to_owned());
        Status::ModelFailed
    }

    /// From now on a slot's request does not wait until the NIC has read the answer before.
    #[cfg(test)]
    pub(crate) fn forget_sending(&mut self) {
        self.forgets_sending = true;
    }

    #[cfg(test)]
    pub(crate) fn answered(&self, client: u32) -> u64 {
        self.endpoints.get(&client).map_or(0, |endpoint| endpoint.counts.answered)
    }

    fn serve_beside(&mut self, computes: bool) -> Result<bool, CpuError> {
        let Some(mut offload) = self.offload.take() else { return Ok(false) };
        let served = self.serve_by(&mut *offload, computes);
        self.offload = Some(offload);
        served
    }

    fn serve_by(&mut self, offload: &mut dyn Offload, computes: bool) -> Result<bool, CpuError> {
        let now_ns = |served: &Served| served.began.elapsed().as_nanos() as u64;
        let mut did = false;
        #[cfg(test)]
        if self.forgets_sending {
            let all: Vec<u32> = self.endpoints.values().flat_map(Endpoint::sending).collect();
            all.into_iter().for_each(|slot| {
                let _ = self.server.sent(slot);
            });
        }
        for (client, endpoint) in &mut self.endpoints {
            if endpoint.failure.is_none() {
                endpoint.failure = offload.failure(*client);
            }
        }
        while let Some(Job { client, slot, status, .. }) = offload.ended()? {
            did = true;
            let ended_ns = now_ns(self);
            let is_traced = self.endpoints.get(&client).is_some_and(Endpoint::is_traced);
            let sends_ns = if is_traced { unix_ns() } else { 0 };
            let begun_ns = self.begun.remove(&slot).unwrap_or(ended_ns);
            if let Some(prefix) = self.server.done(slot, status, [begun_ns, ended_ns])? {
                self.answer((client, slot), status != Status::Ok, &prefix)?;
                // An answer that could not be posted has no doorbell.
                if is_traced
                    && let Some(endpoint) = self.endpoints.get_mut(&client)
                    && endpoint.failure.is_none()
                {
                    let rung_ns = unix_ns();
                    endpoint.note_end(slot, offload.times()?, [sends_ns, rung_ns]);
                }
            }
        }
        if !offload.has_room() {
            return Ok(did);
        }
        let turn_ns = unix_ns();
        let Some(work) = self.server.take() else { return Ok(did) };
        let endpoint = self.endpoints.get(&work.client).filter(|endpoint| endpoint.failure.is_none());
        let status = work.refused.unwrap_or(if computes { Status::Ok } else { Status::Stopping });
        let begun_ns = now_ns(self);
        match endpoint.and_then(|endpoint| endpoint.job(&work, status)) {
            Some(job) if offload.posts() => {
                if self.server.hand_over(work.slot)? {
                    let next = self.server.expected(work.slot)?;
                    // `begin` gives this turn the number of turns before it.
                    if let Some(endpoint) = self.endpoints.get_mut(&work.client) {
                        endpoint.handed_over((work.slot, next), status != Status::Ok, offload.turns()[0]);
                    }
                    offload.begin(job)?;
                }
            }
            Some(job) if status == Status::Ok => {
                self.begun.insert(work.slot, begun_ns);
                if let Some(endpoint) = self.endpoints.get_mut(&work.client) {
                    endpoint.note_begin(work.slot, turn_ns);
                }
                offload.begin(job)?;
            }
            // Refused, or the client is gone.
            _ => {
                let refused = if status == Status::Ok { Status::Stopping } else { status };
                if let Some(prefix) = self.server.done(work.slot, refused, [begun_ns; 2])? {
                    self.answer((work.client, work.slot), true, &prefix)?;
                }
            }
        }
        Ok(true)
    }

    fn answer(
        &mut self,
        (client, slot): (u32, u32),
        is_refused: bool,
        prefix: &[u8; PREFIX_BYTES],
    ) -> Result<(), ServerError> {
        let numbers = (slot, self.server.expected(slot)?);
        let endpoint = self.endpoints.get_mut(&client).filter(|endpoint| endpoint.failure.is_none());
        let posted = endpoint.map(|endpoint| match endpoint.answer(numbers, prefix, is_refused) {
            Ok(()) => true,
            Err(error) => {
                endpoint.failure.get_or_insert(error.to_string());
                false
            }
        });
        // Nothing reads the answer of a client that is gone.
        if posted == Some(true) { Ok(()) } else { self.server.sent(slot) }
    }
}
