//! A client's server end: a pool's queue, its protection domain, regions over its slots and flags only.
//!
//! A queue is reused: one that is dropped while a graph runs would stay for good. The next client gets it
//! with new registrations; the keys of the client before open nothing any more.

use std::sync::{Arc, Mutex, PoisonError};

use rdma_shim::Options;
use rdma_shim::kernel::{Machine, Queue, Share};
use slots::Geometry;
use verbs::connect::RegionOffer;
use verbs::{Context, Cq, Qp, QpBuilder, QpType, SendOperations};

use crate::Processor;

use super::{Client, Served, ServedError, Slots, answer_regions, refuse};

/// Queues for the clients of all models of a server.
#[derive(Debug)]
pub struct Pool {
    machine: Machine,
    context: Context,
    slots: u32,
    most: usize,
    posts: Processor,
    /// Both directions complete in one CQ, which the CPU polls.
    has_one_cq: bool,
    all: Mutex<QueueStock>,
}

#[derive(Debug, Default)]
struct QueueStock {
    /// By kind, and by the slots that they are for.
    unused: Vec<((QpType, u32), Queue)>,
    made: usize,
}

impl Pool {
    /// Each queue is for clients of at most so many slots; `most`: queues of each kind at a time.
    pub fn new(machine: &Machine, context: &Context, slots: u32, most: usize) -> Pool {
        Pool {
            machine: machine.clone(),
            context: context.clone(),
            slots,
            most: 2 * most,
            posts: Processor::Gpu,
            has_one_cq: false,
            all: Mutex::default(),
        }
    }

    /// Queues for pipelines whose answers this processor posts: [`Served::posted_by`].
    pub fn posted_by(self, posts: Processor) -> Pool {
        Pool { posts, ..self }
    }

    /// Queues that kernels post to while the CPU posts receives and polls. No limit: each is a client's.
    pub(crate) fn polled_by_cpu(machine: &Machine, context: &Context) -> Pool {
        Pool { most: usize::MAX, has_one_cq: true, ..Pool::new(machine, context, 0, 0) }
    }

    /// A queue in RESET for so many slots. Give it back.
    pub(crate) fn take(&self, kind: QpType, slots: u32) -> Result<Queue, ServedError> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = all.unused.iter().position(|(its, _)| *its == (kind, slots)) {
            return Ok(all.unused.swap_remove(at).1);
        }
        if all.made >= self.most {
            let remedy = "wait until a client leaves, or start the server again";
            return refuse(format!("all {} queue pairs are taken: {remedy}", self.most));
        }
        let pd = self.context.alloc_pd()?;
        let builder = QpBuilder::new(kind).send_requests(2 * slots).receive_requests(2 * slots);
        let builder = builder.operations(SendOperations::WRITE | SendOperations::SEND).own_register(true);
        // A quarter of the entries is given back late.
        let cq = || Cq::new(&self.context, 4 * slots + 1)?.into_direct();
        let (send, receive) = (cq()?, (!self.has_one_cq).then(cq).transpose()?);
        let is_mixed = self.posts == Processor::Cpu || self.has_one_cq;
        let create = if is_mixed { Queue::create_mixed } else { Queue::create };
        let queue = create(&self.machine, &builder, &pd, send, receive, Options::default())?;
        all.made += 1;
        Ok(queue)
    }

    /// Takes a queue back that nothing uses. One that cannot be emptied is the pool's loss.
    pub(crate) fn give(&self, kind: QpType, slots: u32, queue: Queue) {
        if let Ok(queue) = queue.emptied() {
            self.all.lock().unwrap_or_else(PoisonError::into_inner).unused.push(((kind, slots), queue));
        }
    }
}

/// A client's end. Its queue is in the pipeline while the client is served; dropped, the pool gets the queue.
#[derive(Debug)]
pub struct Endpoint {
    pool: Arc<Pool>,
    kind: QpType,
    queue: Option<Queue>,
    /// Slots and flags.
    shares: Vec<Share>,
    client: Client,
    geometry: Geometry,
}

impl Endpoint {
    /// Registers and clears the granted slots, numbers one behind the other with the sequences of their last
    /// requests, and takes a queue.
    pub fn new(
        slots: &Slots,
        pool: &Arc<Pool>,
        kind: QpType,
        granted: &[(u32, u32)],
    ) -> Result<Endpoint, ServedError> {
        let (Some(&(first, sequence)), count) = (granted.first(), granted.len() as u32) else {
            return refuse("a client without slots");
        };
        if count > pool.slots {
            return refuse(format!("{count} slots, and a client has {} at most", pool.slots));
        }
        let queue = pool.take(kind, pool.slots)?;
        match slots.shares(queue.qp().pd(), first, count) {
            Ok(shares) => {
                let lkey = shares[0].mr().lkey();
                let client = Client {
                    first,
                    count,
                    sequence,
                    lkey,
                    is_reliable: kind == QpType::Rc,
                    ..Client::default()
                };
                let geometry = slots.geometry().clone();
                let (pool, queue, shares) = (Arc::clone(pool), Some(queue), shares.into());
                Ok(Endpoint { pool, kind, queue, shares, client, geometry })
            }
            Err(error) => {
                pool.give(kind, pool.slots, queue);
                Err(error)
            }
        }
    }

    /// The queue pair, in any state. `None` while the pipeline has it.
    pub fn qp(&self) -> Option<&Qp> {
        self.queue.as_ref().map(Queue::qp)
    }

    /// Slots and flags, as the client is to name them.
    pub fn regions(&self) -> Vec<RegionOffer> {
        self.shares.iter().map(|share| RegionOffer::new(share.mr())).collect()
    }

    /// Where the client wants its answers. Error: they do not fit there.
    pub fn answer_to(&mut self, offered: &[RegionOffer]) -> Result<(), ServedError> {
        let regions = answer_regions(offered, &self.geometry, self.client.count as usize);
        let [answers, flags] = regions.map_err(ServedError::Refused)?;
        self.client.answers = (answers.address, answers.rkey);
        self.client.flags = (flags.address, flags.rkey);
        Ok(())
    }

    /// Has the client served: the place that it has. Its queue pair is connected.
    pub fn admit(&mut self, served: &mut Served) -> Result<u32, ServedError> {
        match self.queue.take() {
            Some(queue) => served.add_client(queue, self.client),
            None => refuse("the client is served already"),
        }
    }

    /// Takes its queue back from the pipeline, whose kernels have let the client go: answers that were
    /// posted, and how many of them were refusals.
    pub fn leave(&mut self, served: &mut Served, place: u32) -> Result<[u64; 2], ServedError> {
        let answered = served.answered(place)?;
        self.queue = Some(served.take_queue(place)?);
        Ok(answered)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // A client that still asks gets no answer, and not the error of a region that is gone.
        if let Some(queue) = &self.queue {
            let _ = queue.qp().reset();
        }
        // Before the queue: the next client of its protection domain finds none of them.
        self.shares.clear();
        if let Some(queue) = self.queue.take() {
            self.pool.give(self.kind, self.pool.slots, queue);
        }
    }
}
