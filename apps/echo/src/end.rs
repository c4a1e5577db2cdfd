//! What both ends do: make a queue, tell each other what they are, connect.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rdma_shim::kernel::{Machine, Queue, Region};
use serde::{Deserialize, Serialize};
use verbs::code::Access;
use verbs::connect::{ConnectError, Hello, Path, QpOffer, Session, Wait};
use verbs::{Context, Cq, Pd, Qp, QpBuilder, QpType, SendOperations};

use crate::options::Options;

/// Version of what the ends say to each other; both must have the same.
const VERSION: u32 = 1;
/// How long set-up may take.
pub const SETUP: Duration = Duration::from_secs(10);
/// Longest wait of a kernel for one message; the host looks after its peer and its user more often.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// How often the host looks: the whole end within a second.
pub const LOOK: Duration = Duration::from_millis(50);
/// A peer reaches our memory only by requests that we post.
pub const ACCESS: Access = Access::LOCAL_WRITE;

/// What an end says of itself, beside the connection protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Parameters {
    /// [`VERSION`].
    echo: u32,
    /// Of the longest message.
    bytes: u32,
    answers: bool,
}

/// The client's last word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientEnd {
    pub asked: u64,
}

/// The service's last line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceEnd {
    pub answered: u64,
    /// Why it ended, if something went wrong.
    pub error: Option<String>,
}

/// A queue pair for so many messages at a time, in both directions.
pub fn builder(window: u32) -> QpBuilder {
    let builder = QpBuilder::new(QpType::Rc).send_requests(window).receive_requests(window);
    builder.operations(SendOperations::SEND).own_register(true)
}

/// A CQ for both directions of it.
pub fn cq(context: &Context, window: u32) -> Result<Cq> {
    Ok(Cq::new(context, 4 * window.max(16))?)
}

/// A queue that kernels use, and registered memory for so many bytes.
pub fn queue(
    options: &Options,
    machine: &Machine,
    pd: &Pd,
    window: u32,
    bytes: u64,
) -> Result<(Queue, Region)> {
    let cq = cq(pd.context(), window)?.into_direct()?;
    let queue = Queue::create(machine, &builder(window), pd, cq, None, rdma_shim::Options::default())?;
    let bytes = usize::try_from(bytes).context("memory for messages")?;
    let region = Region::new(machine, pd, options.memory.place(), bytes, ACCESS)
        .with_context(|| format!("{bytes} bytes for messages"))?;
    Ok((queue, region))
}

/// Exchanges parameters with the peer, and connects the queue pair. Gives the longest message that it takes.
pub fn join(
    session: &mut Session,
    path: &Path,
    qp: &Qp,
    bytes: u32,
    answers: bool,
    stop: &AtomicBool,
) -> Result<u32> {
    path.to_init(qp, ACCESS, 0)?;
    let offer = QpOffer::new(qp);
    let parameters = Parameters { echo: VERSION, bytes, answers };
    let ours = Hello::new(path, QpType::Rc, vec![offer], Vec::new(), parameters);
    let theirs = session.exchange(&ours, Wait::at_most(SETUP).unless(stop))?;
    let (peer, said) = (session.peer(), theirs.parameters);
    if said.echo != VERSION {
        bail!(
            "{peer} is an echo of version {}, this one is of version {VERSION}: use the same build",
            said.echo
        );
    }
    if said.answers == answers {
        bail!("{peer} {} as well", if answers { "answers" } else { "asks" });
    }
    let (service, asking) = if answers { (bytes, said.bytes) } else { (said.bytes, bytes) };
    if asking > service {
        bail!(
            "questions of {asking} bytes are asked of a service that takes {service}: give it --payload {asking}"
        );
    }
    path.connect(qp, offer, &theirs, theirs.queue_pairs[0])?;
    Ok(said.bytes)
}

/// Whether the connection speaks another protocol, or none, so that it is no peer.
pub fn is_stranger(error: &anyhow::Error) -> bool {
    use ConnectError::{Closed, Deadline, Malformed, Stranger, Version};
    let said = error.downcast_ref::<ConnectError>();
    matches!(
        said,
        Some(Closed { .. } | Deadline { .. } | Malformed { .. } | Stranger { .. } | Version { .. })
    )
}
