//! A client's connection, on its own thread: set-up, sleep until the connection ends, and clean-up.
//!
//! Calls of the kernel are made here, so that the thread that serves makes none.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cli::{emit, sentence};
use pipeline::End;
use pipeline::cpu::Counts;
use pipeline::trace::Trace;
use serde::Serialize;
use serde::de::IgnoredAny;
use serving::{Arrival, Grant, Reply, SetupRequest, Transport};
use slots::Geometry;
use verbs::QpType;
use verbs::connect::{Closer, ConnectError, Listener, Path, Session, Wait};

use crate::options::Options;
use crate::report::{Joined, Left, Traced};

/// Time for a client to set its end up.
pub const SETUP: Duration = Duration::from_secs(10);

/// Time for a refused client to make its request, and how many have it at once. Others are closed at once.
const HEARING: Duration = Duration::from_secs(1);
const REFUSED: usize = 16;

/// Its number among its model's clients, and its slots with the sequences of their last requests.
pub type Granted = (u32, Vec<(u32, u32)>);

/// A client: its model's place, and its number among that model's.
pub type Key = (usize, u32);

/// What came of a client that has left.
#[derive(Debug, Default)]
pub struct Outcome {
    pub counts: Counts,
    /// What went wrong with its queue pair.
    pub failure: Option<String>,
    /// When the steps of its requests were taken, with `--trace`.
    pub trace: Option<Trace>,
}

/// What serves clients: a thread that polls, or kernels. Connections' threads call it, and may wait in it.
pub trait Service: Send + Sync + 'static {
    type End: End;
    /// Slots for a new client of a model. Error: why there are none, for the client.
    fn grant(&self, model: usize, wanted: u16) -> Result<Granted>;
    fn end(&self, model: usize, kind: QpType, arrival: Arrival, granted: &Granted) -> Result<Self::End>;
    /// Serves a client whose queue pair is connected: when this returns, it may write requests.
    fn admit(&self, key: Key, end: Self::End, closer: Closer) -> Result<()>;
    /// Stops serving it; nothing of its queue pair is left. `None`: the server has ended. Error: something
    /// may still write to its slots, which no other client may get.
    fn leave(&self, key: Key) -> Result<Option<Outcome>>;
    /// Takes its slots back.
    fn gone(&self, key: Key);
    /// Counts it: the last thing of a client.
    fn left(&self, key: Key, counts: Counts, has_failed: bool);
}

/// What all these threads know.
pub struct Shared<S> {
    pub service: S,
    pub path: Path,
    pub models: Vec<(String, Geometry)>,
    pub slots_per_client: u16,
    /// Requests that a client may have outstanding; `None`: as many as it has slots.
    pub credits: Option<u16>,
    pub transport: Option<Transport>,
    pub arrival: Option<Arrival>,
    pub clients: usize,
    connections: Count,
    /// Connections beyond the most, which are told why.
    refused: Count,
    pub json: Option<PathBuf>,
}

/// How many there are of something that has a limit.
#[derive(Debug, Default)]
struct Count(AtomicUsize);

impl Count {
    /// Whether there was room for another.
    fn take(&self, most: usize) -> bool {
        let more = |count: usize| (count < most).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S> Shared<S> {
    pub fn new(options: &Options, path: Path, models: Vec<(String, Geometry)>, service: S) -> Arc<Shared<S>> {
        Arc::new(Shared {
            service,
            path,
            models,
            slots_per_client: options.slots_per_client,
            credits: options.credits,
            transport: options.transport,
            arrival: options.arrival(),
            clients: options.clients.into(),
            connections: Count::default(),
            refused: Count::default(),
            json: options.json.clone(),
        })
    }

    /// Those that a connection is among.
    fn count(&self, is_full: bool) -> &Count {
        if is_full { &self.refused } else { &self.connections }
    }

    /// Reports that a client comes or goes. A slow reader of these lines delays that client's thread alone.
    fn say(&self, (model, client): Key, peer: &str, left: Option<Left<'_>>) {
        let model = &self.models[model].0;
        if let Some(error) = left.as_ref().and_then(|left| left.error) {
            complain!("inference-server: client {client} of {model} ({peer}): {error}");
        }
        let kind = if left.is_some() { "left" } else { "joined" };
        self.write(&Joined { kind, client, model, peer, left });
    }

    fn write(&self, line: &impl Serialize) {
        if let Err(error) = emit(self.json.as_deref(), line) {
            complain!("inference-server: {}", sentence(&error));
        }
    }
}

/// Accepts clients for ever. Nothing wakes this thread but a client.
pub fn accept<S: Service>(listener: &Listener, shared: &Arc<Shared<S>>) {
    loop {
        let Ok(session) = listener.accept(Wait::at_most(Duration::MAX)) else {
            // No descriptor is free, say; a client that leaves makes room.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let mine = Arc::clone(shared);
        let is_full = !shared.connections.take(shared.clients);
        if is_full && !shared.refused.take(REFUSED) {
            continue;
        }
        let attend = move || {
            attend(session, &mine, is_full);
            mine.count(is_full).give();
        };
        if std::thread::Builder::new().name("client".into()).stack_size(1 << 18).spawn(attend).is_err() {
            shared.count(is_full).give();
        }
    }
}

fn attend<S: Service>(mut session: Session, shared: &Shared<S>, is_full: bool) {
    let peer = session.peer().to_string();
    let (key, granted, setup_request) = match admitted(&mut session, shared, is_full) {
        Ok(admitted) => admitted,
        Err(error) => {
            complain!("inference-server: {peer}: {}", sentence(&error));
            let _ = session.send(&Reply::Refused(sentence(&error)));
            return;
        }
    };
    let joined = join(&mut session, shared, key, &granted, &setup_request);
    let mut error = joined.err().map(|error| sentence(&error));
    if error.is_none() {
        shared.say(key, &peer, None);
        let end: Result<IgnoredAny, _> = session.receive("its end", Wait::at_most(Duration::MAX));
        error = match end {
            Err(ConnectError::Closed { .. }) => None,
            Err(error) => Some(error.to_string()),
            Ok(_) => Some("it said something where nothing is to be said".into()),
        };
    }
    let Some(Outcome { counts, failure, trace }) = cleared(&shared.service, key, &granted) else { return };
    // An error of the queue pair is usually why the rest went wrong, or comes of the client's end.
    let error = failure.or(error);
    let Counts { answered, refused } = counts;
    if let Some(trace) = trace {
        shared.write(&Traced::new(key.1, &shared.models[key.0].0, &trace));
    }
    shared.say(key, &peer, Some(Left { answered, refused, error: error.as_deref() }));
    shared.service.left(key, counts, error.is_some());
}

/// Stops serving a client and reclaims its slots before anything is reported: a slow reader of the lines
/// keeps no slots from others. Slots that kernels may still use are kept; the client's failure names them.
fn cleared<S: Service>(service: &S, key: Key, (_, slots): &Granted) -> Option<Outcome> {
    match service.leave(key) {
        Ok(outcome) => outcome.inspect(|_| service.gone(key)),
        Err(error) => {
            let slots: Vec<String> = slots.iter().map(|(slot, _)| slot.to_string()).collect();
            let failure = format!("{}; not granted again: slots {}", sentence(&error), slots.join(", "));
            Some(Outcome { failure: Some(failure), ..Outcome::default() })
        }
    }
}

/// Receives the client's set-up request, and gets it slots.
fn admitted<S: Service>(
    session: &mut Session,
    shared: &Shared<S>,
    is_full: bool,
) -> Result<(Key, Granted, SetupRequest)> {
    let limit = if is_full { HEARING } else { SETUP };
    let setup_request: SetupRequest = session.receive("a set-up request", Wait::at_most(limit))?;
    if is_full {
        bail!("{} clients are connected, and that is the most", shared.clients);
    }
    let names = || shared.models.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let model = shared.models.iter().position(|(name, _)| *name == setup_request.model);
    let model =
        model.with_context(|| format!("no model {:?} here; there is: {}", setup_request.model, names()))?;
    setup_request.check(&shared.models[model].1)?;
    if setup_request.slots > shared.slots_per_client {
        let most = shared.slots_per_client;
        bail!(
            "{} slots are wanted, a client gets {most} at most: give the client --slots {most} or less",
            setup_request.slots
        );
    }
    served_alone("transport", setup_request.transport, shared.transport)?;
    served_alone("arrival", setup_request.arrival, shared.arrival)?;
    if (setup_request.arrival, setup_request.transport) == (Arrival::Send, Transport::Uc) {
        bail!(
            "arrival send is wanted on transport uc, where a SEND that is lost takes no receive: give the client --transport rc"
        );
    }
    let granted = shared.service.grant(model, setup_request.slots)?;
    Ok(((model, granted.0), granted, setup_request))
}

/// Refuses a client that wants another kind of an option than the one that is served.
fn served_alone<T: Debug + PartialEq>(option: &str, wanted: T, only: Option<T>) -> Result<()> {
    let name = |kind: &T| format!("{kind:?}").to_lowercase();
    match only.filter(|only| *only != wanted).as_ref().map(name) {
        None => Ok(()),
        Some(only) => bail!(
            "{option} {} is wanted, and {only} alone is served: give the client --{option} {only}",
            name(&wanted)
        ),
    }
}

/// Sets the client's end up, and has it served.
fn join<S: Service>(
    session: &mut Session,
    shared: &Shared<S>,
    key: Key,
    granted: &Granted,
    setup_request: &SetupRequest,
) -> Result<()> {
    let kind = match setup_request.transport {
        Transport::Rc => QpType::Rc,
        Transport::Uc => QpType::Uc,
    };
    let (service, wait) = (&shared.service, Wait::at_most(SETUP));
    let mut end = match service.end(key.0, kind, setup_request.arrival, granted) {
        Ok(end) => end,
        Err(error) => {
            session.send(&Reply::Refused(sentence(&error)))?;
            return Err(error);
        }
    };
    let (client, slots) = granted;
    session.send(&Reply::Granted(Grant {
        client: *client,
        model_id: shared.models[key.0].1.model_id,
        first: slots.first().map_or(0, |slot| slot.0),
        sequences: slots.iter().map(|slot| slot.1).collect(),
        credits: shared.credits.unwrap_or(setup_request.slots).min(setup_request.slots),
    }))?;
    end.connect(session, &shared.path, kind, wait)?;
    service.admit(key, end, session.closer()?)?;
    Ok(session.barrier(wait)?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// What serves one client, which it may not be able to let go.
    struct One {
        is_stuck: bool,
        is_gone: AtomicBool,
    }

    impl Service for One {
        type End = pipeline::cpu::Endpoint;
        fn grant(&self, _: usize, _: u16) -> Result<Granted> {
            bail!("it has one client")
        }
        fn end(&self, _: usize, _: QpType, _: Arrival, _: &Granted) -> Result<Self::End> {
            bail!("it has one client")
        }
        fn admit(&self, _: Key, _: Self::End, _: Closer) -> Result<()> {
            bail!("it has one client")
        }
        fn leave(&self, _: Key) -> Result<Option<Outcome>> {
            if self.is_stuck { bail!("a kernel still posts") } else { Ok(Some(Outcome::default())) }
        }
        fn gone(&self, _: Key) {
            self.is_gone.store(true, Ordering::Relaxed);
        }
        fn left(&self, _: Key, _: Counts, _: bool) {}
    }

    #[test]
    fn slots_of_a_client_that_cannot_be_let_go_are_not_granted_again() {
        let named = "a kernel still posts; not granted again: slots 4, 7";
        for (is_stuck, failure) in [(false, None), (true, Some(named))] {
            let service = One { is_stuck, is_gone: AtomicBool::new(false) };
            let outcome = cleared(&service, (0, 0), &(0, vec![(4, 1), (7, 0)])).unwrap();
            assert_eq!(outcome.failure.as_deref(), failure);
            assert_eq!(service.is_gone.into_inner(), !is_stuck);
        }
    }
}
