//! A client's connection, on a thread of its own: the set-up, a sleep until the connection ends, and the clearing away.
//!
//! Calls of the kernel are made here, so that the thread that serves makes none.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use cli::{emit, sentence};
use pipeline::Mode;
use pipeline::cpu::{ACCESS, Counts, Endpoint, Memory, Setting};
use serde::de::IgnoredAny;
use serving::{Arrival, Grant, Reply, Transport, Wish};
use verbs::connect::{Closer, ConnectError, Hello, Listener, Path, QpOffer, Session, Wait};
use verbs::{Context, QpType};

use crate::report::{Joined, Left};

/// Time for a client to set its end up.
const SETUP: Duration = Duration::from_secs(10);

/// What this thread asks of the one that serves.
pub enum Command {
    /// Slots for a new client of a model.
    Grant { model: usize, wanted: u16, reply: Sender<Result<Granted, String>> },
    /// The client's queue pair is connected.
    Admit { key: Key, endpoint: Box<Endpoint>, closer: Closer },
    /// The client has gone.
    Leave { key: Key, reply: Sender<Option<Endpoint>> },
    /// Nothing of its queue pair is left.
    Gone { key: Key, counts: Counts, has_failed: bool },
}

pub type Granted = (u32, Vec<(u32, u32)>);

/// A client: its model's place, and its number among that model's.
pub type Key = (usize, u32);

/// What all these threads know.
pub struct Shared {
    pub context: Context,
    pub path: Path,
    pub mode: Mode,
    pub models: Vec<(String, Memory)>,
    pub slots_per_client: u16,
    pub transport: Option<Transport>,
    pub arrival: Option<Arrival>,
    pub clients: usize,
    pub connections: AtomicUsize,
    pub json: Option<PathBuf>,
}

impl Shared {
    /// Says that a client comes or goes. A reader of these lines that is slow holds up that client's thread alone.
    fn say(&self, (model, client): Key, peer: &str, left: Option<Left<'_>>) {
        let model = &self.models[model].0;
        if let Some(error) = left.as_ref().and_then(|left| left.error) {
            complain!("inference-server: client {client} of {model} ({peer}): {error}");
        }
        let kind = if left.is_some() { "left" } else { "joined" };
        if let Err(error) = emit(self.json.as_deref(), &Joined { kind, client, model, peer, left }) {
            complain!("inference-server: {}", sentence(&error));
        }
    }
}

/// Accepts clients for ever. Nothing wakes this thread but a client.
pub fn accept(listener: &Listener, shared: &Arc<Shared>, commands: &Sender<Command>) {
    loop {
        let Ok(session) = listener.accept(Wait::at_most(Duration::MAX)) else {
            // No descriptor is free, say; a client that leaves makes room.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let (mine, commands) = (Arc::clone(shared), commands.clone());
        let is_full = shared.connections.fetch_add(1, Ordering::Relaxed) >= shared.clients;
        let attend = move || {
            attend(session, &mine, &commands, is_full);
            mine.connections.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("client".into()).stack_size(1 << 18).spawn(attend).is_err() {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn attend(mut session: Session, shared: &Shared, commands: &Sender<Command>, is_full: bool) {
    let peer = session.peer().to_string();
    let (key, granted, wish) = match admitted(&mut session, shared, commands, is_full) {
        Ok(admitted) => admitted,
        Err(error) => {
            complain!("inference-server: {peer}: {}", sentence(&error));
            let _ = session.send(&Reply::Refused(sentence(&error)));
            return;
        }
    };
    let joined = join(&mut session, shared, commands, key, &granted, &wish);
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
    // The server has ended already if nothing answers.
    let (reply, endpoint) = channel();
    if commands.send(Command::Leave { key, reply }).is_err() {
        return;
    }
    let endpoint = endpoint.recv().ok().flatten();
    let counts = endpoint.as_ref().map_or_else(Counts::default, |endpoint| endpoint.counts);
    // An error of the queue pair is usually why the rest went wrong, or comes of the client's end.
    let failure = endpoint.as_ref().and_then(|endpoint| endpoint.failure.clone());
    drop(endpoint);
    let error = failure.or(error);
    let Counts { answered, refused } = counts;
    shared.say(key, &peer, Some(Left { answered, refused, error: error.as_deref() }));
    let _ = commands.send(Command::Gone { key, counts, has_failed: error.is_some() });
}

/// Hears what the client wants, and gets it slots.
fn admitted(
    session: &mut Session,
    shared: &Shared,
    commands: &Sender<Command>,
    is_full: bool,
) -> Result<(Key, Granted, Wish)> {
    let wish: Wish = session.receive("a wish", Wait::at_most(SETUP))?;
    if is_full {
        bail!("{} clients are connected, and that is the most", shared.clients);
    }
    let names = || shared.models.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let model = shared.models.iter().position(|(name, _)| *name == wish.model);
    let model = model.with_context(|| format!("no model {:?} here; there is: {}", wish.model, names()))?;
    wish.check(&shared.models[model].1.geometry)?;
    if wish.slots > shared.slots_per_client {
        bail!("{} slots are wanted, a client gets {} at most", wish.slots, shared.slots_per_client);
    }
    if shared.transport.is_some_and(|only| only != wish.transport) {
        bail!("{:?} is wanted, {:?} alone is served", wish.transport, shared.transport);
    }
    if shared.arrival.is_some_and(|only| only != wish.arrival) {
        bail!("arrival by {:?} is wanted, {:?} alone is served", wish.arrival, shared.arrival);
    }
    let (reply, granted) = channel();
    let ending = || anyhow!("the server is ending");
    commands.send(Command::Grant { model, wanted: wish.slots, reply }).map_err(|_| ending())?;
    let granted = granted.recv().map_err(|_| ending())?.map_err(anyhow::Error::msg)?;
    Ok(((model, granted.0), granted, wish))
}

/// Sets the client's endpoint up, and has it served.
fn join(
    session: &mut Session,
    shared: &Shared,
    commands: &Sender<Command>,
    key: Key,
    (client, granted): &Granted,
    wish: &Wish,
) -> Result<()> {
    let kind = match wish.transport {
        Transport::Rc => QpType::Rc,
        Transport::Uc => QpType::Uc,
    };
    let (memory, wait) = (&shared.models[key.0].1, Wait::at_most(SETUP));
    let setting = Setting { mode: shared.mode, kind, arrival: wish.arrival, granted };
    let mut endpoint = match Endpoint::new(&shared.context, memory, &setting) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            session.send(&Reply::Refused(error.to_string()))?;
            return Err(error.into());
        }
    };
    session.send(&Reply::Granted(Grant {
        client: *client,
        model_id: memory.geometry.model_id,
        first: granted.first().map_or(0, |slot| slot.0),
        sequences: granted.iter().map(|slot| slot.1).collect(),
    }))?;
    shared.path.to_init(endpoint.qp(), ACCESS, 0)?;
    endpoint.post_receives()?;
    let offer = QpOffer::new(endpoint.qp());
    let ours = Hello::new(&shared.path, kind, vec![offer], endpoint.regions(), ());
    let theirs = session.exchange(&ours, wait)?;
    endpoint.answer_to(&theirs.regions)?;
    let peers = theirs.queue_pairs.first().context("it offers no queue pair")?;
    shared.path.connect(endpoint.qp(), offer, &theirs, *peers)?;
    let admit = Command::Admit { key, endpoint: Box::new(endpoint), closer: session.closer()? };
    commands.send(admit).map_err(|_| anyhow!("the server is ending"))?;
    Ok(session.barrier(wait)?)
}
