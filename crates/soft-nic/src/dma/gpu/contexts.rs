//! What takes the driver long, in a thread of its own, so that no copy waits behind it: contexts, and pages of the host.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use gpu::{Context, Gpu, How, Kind, Registered};

use super::engine::{self, Cards, CopyEngine, Kernels, LIMIT, Shared, on_card};
use super::worker::Worker;

/// The contexts of all GPUs that this process has had regions in.
#[derive(Default)]
pub struct GpuContexts {
    cards: BTreeMap<u32, (Context, Shared)>,
}

impl GpuContexts {
    /// Makes what the NIC needs of a GPU, the first time; the threads that copy and launch have it then.
    ///
    /// Errors: the driver's; the context that all was made in is lost, or the program has reset it.
    pub fn open(
        &mut self,
        gpu: Gpu,
        copies: &Worker<Cards<CopyEngine>>,
        launches: &Worker<Cards<Kernels>>,
    ) -> Result<(Context, Shared), gpu::Error> {
        let ordinal = gpu.ordinal();
        if let Some((context, shared)) = self.cards.get(&ordinal) {
            let refused = |why: &str| {
                let sentence = "a process that is to register memory there begins anew";
                Err(gpu::Error::Refused(format!("GPU {ordinal}: {why}: {sentence}")))
            };
            if !shared.is_there() {
                return refused("the program has reset it, and the NIC's part of it is gone");
            }
            return match copies.post(move |cards, _| on_card(cards, ordinal)?.state()).wait(LIMIT) {
                Some(Err(error)) => refused(&format!("the NIC's context there is lost ({error})")),
                // While the driver does not answer, nothing says that it is.
                _ => Ok((context.clone(), shared.clone())),
            };
        }
        let (context, engine, kernels) = engine::open(gpu)?;
        let shared = engine.shared.clone();
        // Before whatever is copied: jobs are done in their order.
        copies.post(move |cards, _| _ = cards.insert(ordinal, engine));
        launches.post(move |cards, _| _ = cards.insert(ordinal, kernels));
        self.cards.insert(ordinal, (context.clone(), shared.clone()));
        Ok((context, shared))
    }

    /// Lets every GPU see pages of the host. Says too whether the NIC may use that: not where the program has registered some of them
    /// and may let them go, nor where they are several runs, of which no copy of the engine's may use two.
    pub fn register(&mut self, ordinal: u32, start: u64, len: u64) -> Result<(Registered, bool), gpu::Error> {
        let refused = |why: &str| gpu::Error::Refused(why.to_owned());
        let (context, _) = self.cards.get(&ordinal).ok_or_else(|| refused("this GPU is gone"))?;
        let first = NonNull::new(std::ptr::with_exposed_provenance_mut(start as usize));
        let first = first.ok_or_else(|| refused("no memory"))?;
        // SAFETY: a region of the program's, which stays until it is deregistered, where this registration ends as soon as the
        // driver lets it, and nothing of the NIC's uses it from then on; or a ring of the NIC's, which stays that long.
        let registered = unsafe { Registered::new(context, first, len as usize, Kind::Memory) }?;
        let usable = registered.how() == [How::Memory] && registered.device_address() == start;
        Ok((registered, usable))
    }
}
