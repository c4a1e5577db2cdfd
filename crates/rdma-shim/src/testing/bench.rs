//! A machine under test.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use host_twin::{Kernels, TwinError, Visibility};
use verbs::code::Access;
use verbs::{Context, Cq, Pd, QpBuilder, QpCapacity, QpType};

use crate::Options;
use crate::kernel::{Machine, Place, Queue, Region};

/// Longest wait of a kernel; far above what a busy machine needs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A machine that runs kernels, and a protection domain of the device under it.
#[derive(Debug)]
pub struct Bench {
    /// The GPU or the host twin.
    pub machine: Machine,
    /// The protection domain.
    pub pd: Pd,
    /// One test at a time has kernels on a GPU: another would wait for what it leaves running.
    _turn: Option<MutexGuard<'static, ()>>,
}

static TURN: Mutex<()> = Mutex::new(());

impl Bench {
    /// The host twin; `seed` orders its stores' visibility. Error: `kernels` were built without a compiler.
    pub fn twin(kernels: &Kernels, context: &Context, seed: u64) -> Result<Bench, String> {
        if let Err(error @ TwinError::NoKernels { .. }) = kernels.find("any") {
            return Err(error.to_string());
        }
        let visibility = Visibility::Weak { seed };
        Ok(Bench { machine: Machine::twin(visibility), pd: context.alloc_pd().unwrap(), _turn: None })
    }

    /// The first GPU. Error: there is none.
    pub fn gpu(context: &Context) -> Result<Bench, String> {
        let turn = Some(TURN.lock().unwrap_or_else(PoisonError::into_inner));
        let machine = Machine::gpu(None, None).map_err(|error| error.to_string())?;
        Ok(Bench { machine, pd: context.alloc_pd().unwrap(), _turn: turn })
    }

    /// Queue pairs with 64 sends and 16 receives.
    pub fn builder() -> QpBuilder {
        let capacity = QpCapacity {
            send_requests: 64,
            receive_requests: 16,
            send_sges: 1,
            receive_sges: 1,
            inline_bytes: 0,
        };
        QpBuilder::new(QpType::Rc).capacity(capacity).own_register(true)
    }

    /// A CQ of 128 entries.
    pub fn cq(&self) -> Cq {
        Cq::new(self.pd.context(), 127).unwrap()
    }

    /// A queue for kernels, not connected, and their memory.
    pub fn end(&self) -> (Queue, Region) {
        let cq = self.cq().into_direct().unwrap();
        let queue =
            Queue::create(&self.machine, &Bench::builder(), &self.pd, cq, None, Options::default()).unwrap();
        (queue, Region::new(&self.machine, &self.pd, Place::Host, 1 << 14, Access::ALL).unwrap())
    }
}
