//! A client's server end and its connection, whichever processor waits: [`cpu::Endpoint`], [`gpu::Endpoint`].

use verbs::connect::{ConnectError, Hello, Path, QpOffer, RegionOffer, Session, Wait};
use verbs::{Qp, QpType};

use crate::cpu::{self, ACCESS, CpuError};
use crate::gpu::{self, ServedError};

/// Why a client is not connected.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Cpu(#[from] CpuError),
    #[error(transparent)]
    Gpu(#[from] ServedError),
    #[error("the client is served already")]
    Served,
    #[error("it offers no queue pair")]
    NoQueuePair,
}

/// A client's end, its queue pair in any state.
pub trait End: Send + 'static {
    /// Error: it is served already.
    fn qp(&self) -> Result<&Qp, EndError>;
    /// Slots and flags, as the client is to name them.
    fn regions(&self) -> Vec<RegionOffer>;
    /// The queue pair is in INIT.
    fn post_receives(&mut self) -> Result<(), EndError>;
    /// Where the client wants its answers. Error: they do not fit there.
    fn answer_to(&mut self, offered: &[RegionOffer]) -> Result<(), EndError>;

    /// Exchanges queue pair and region data with the client, and connects the queue pair. A barrier follows.
    fn connect(
        &mut self,
        session: &mut Session,
        path: &Path,
        kind: QpType,
        wait: Wait<'_>,
    ) -> Result<(), EndError> {
        path.to_init(self.qp()?, ACCESS, 0)?;
        self.post_receives()?;
        let offer = QpOffer::new(self.qp()?);
        let ours = Hello::new(path, kind, vec![offer], self.regions(), ());
        let theirs = session.exchange(&ours, wait)?;
        self.answer_to(&theirs.regions)?;
        let peers = theirs.queue_pairs.first().ok_or(EndError::NoQueuePair)?;
        Ok(path.connect(self.qp()?, offer, &theirs, *peers)?)
    }
}

impl End for cpu::Endpoint {
    fn qp(&self) -> Result<&Qp, EndError> {
        Ok(self.qp())
    }

    fn regions(&self) -> Vec<RegionOffer> {
        self.regions()
    }

    fn post_receives(&mut self) -> Result<(), EndError> {
        Ok(self.post_receives()?)
    }

    fn answer_to(&mut self, offered: &[RegionOffer]) -> Result<(), EndError> {
        Ok(self.answer_to(offered)?)
    }
}

impl End for gpu::Endpoint {
    fn qp(&self) -> Result<&Qp, EndError> {
        self.qp().ok_or(EndError::Served)
    }

    fn regions(&self) -> Vec<RegionOffer> {
        self.regions()
    }

    /// The kernel does when it takes the client in.
    fn post_receives(&mut self) -> Result<(), EndError> {
        Ok(())
    }

    fn answer_to(&mut self, offered: &[RegionOffer]) -> Result<(), EndError> {
        Ok(self.answer_to(offered)?)
    }
}
