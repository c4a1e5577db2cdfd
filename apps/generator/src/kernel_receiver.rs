//! The receiving end when a kernel receives, on a GPU or its host twin. The kernel checks numbers and bodies,
//! posts receives and grants credits. This end connects, says when the sender is done, and adds up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use generator::kernel::receive::{self, Receive, Receivers, THREADS, Taken};
use host_twin::MAX_LANES;
use rdma_shim::kernel::{KernelError, Machine, Place, Queue, Region, Running};
use verbs::connect::{ConnectError, Path, RegionOffer, Session, Wait};
use verbs::{Context, Cq, Pd, QpBuilder, Remote};

use crate::control::{CREDIT_STRIDE, DRAIN_INTERRUPTED, GRACE, Received, SETUP, SenderEnd, credit_words};
use crate::kernel_sender::told;
use crate::lane::{ACCESS, connect, qp_type};
use crate::payload;
use crate::plan::{Plan, Service, Verify};

/// Requests for credits under way at most, twice.
const CREDIT_REQUESTS: u32 = 32;
/// How often the sender and the stop flag are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The kernel that receives messages, and where they land.
pub struct KernelReceiver {
    receive: Receive,
    place: Place,
}

/// Everything of one session that is made before it begins.
pub struct Prepared<'t> {
    receiver: &'t KernelReceiver,
    plan: Plan,
    region: Arc<Region>,
    queues: Vec<Queue>,
}

impl KernelReceiver {
    /// Puts the kernel on the machine.
    pub fn new(machine: &Machine, place: Place) -> Result<KernelReceiver> {
        Ok(KernelReceiver { receive: Receive::prepare(machine)?, place })
    }

    /// Memory and queue pairs for a plan. Errors: what the kernel does not take, and every refusal.
    pub fn prepare(&self, plan: &Plan, context: &Context) -> Result<Prepared<'_>> {
        let machine = self.receive.machine();
        if plan.service == Service::Uc {
            bail!("a kernel receives --service rc alone: it counts on nothing being lost");
        }
        let lanes = (THREADS * plan.qps) as usize;
        if !machine.is_gpu() && lanes > MAX_LANES {
            bail!(
                "--qps {} needs {lanes} lanes at the receiver, and the host twin has {MAX_LANES}",
                plan.qps
            );
        }
        self.receive.check_queues(plan.qps as usize)?;
        let pd = context.alloc_pd()?;
        let bytes = lane_bytes(plan) * plan.qps as usize;
        let region = Region::new(machine, &pd, self.place, bytes, ACCESS).context("memory for messages")?;
        let queues: Result<Vec<_>, KernelError> = (0..plan.qps).map(|_| queue(plan, machine, &pd)).collect();
        let queues = queues.context("a queue pair for kernels")?;
        Ok(Prepared { receiver: self, plan: plan.clone(), region: Arc::new(region), queues })
    }
}

fn lane_bytes(plan: &Plan) -> usize {
    plan.slot_bytes() * plan.target_slots() as usize
}

fn queue(plan: &Plan, machine: &Machine, pd: &Pd) -> Result<Queue, KernelError> {
    let cq = |entries| -> Result<_, KernelError> { Ok(Cq::new(pd.context(), entries)?.into_direct()?) };
    // A quarter of a ring is given back late.
    let (send_cq, cq) = (cq(2 * CREDIT_REQUESTS)?, cq(2 * plan.receives().max(1))?);
    let builder = QpBuilder::new(qp_type(plan.service))
        .send_requests(CREDIT_REQUESTS)
        .receive_requests(plan.receives())
        .inline_bytes(8)
        .own_register(true);
    Queue::create(machine, &builder, pd, send_cq, Some(cq), rdma_shim::Options::default())
}

impl Prepared<'_> {
    /// Connects, and takes messages until the sender is through, is gone, or a signal comes.
    pub fn serve(self, session: &mut Session, path: &Path, stop: &AtomicBool) -> Result<(Received, bool)> {
        let plan = self.plan.clone();
        let region = Arc::clone(&self.region);
        let running = self.connect(session, path, stop)?;
        let (done, error) = match run(&running, session, stop) {
            Ok(done) => (done, None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        let interrupted = stop.load(Ordering::Relaxed);
        if error.is_some() || done.is_none() {
            running.cancel();
        }
        let taken = running.end(DRAIN_INTERRUPTED)?.taken()?;
        let mut received = Received::default();
        for (lane, taken) in taken.iter().enumerate() {
            let completed = done.as_ref().map(|done| done.completed[lane]);
            received.add(&counts(&plan, &region, lane, taken, completed)?);
        }
        received.error = error.or_else(|| {
            taken.iter().filter(|_| !interrupted).find_map(|taken| taken.failure).map(|why| why.to_string())
        });
        Ok((received, interrupted))
    }

    fn connect(self, session: &mut Session, path: &Path, stop: &AtomicBool) -> Result<Running<Receivers>> {
        let Prepared { receiver, plan, region, queues } = self;
        let qps: Vec<_> = queues.iter().map(Queue::qp).collect();
        for qp in &qps {
            path.to_init(qp, ACCESS, 0)?;
        }
        let slots = RegionOffer::new(region.mr());
        let credits = credit_words(&plan, connect(session, &plan, path, &qps, slots, stop)?)?;
        let lane = |(index, queue): (usize, Queue)| {
            let word = credits.address + CREDIT_STRIDE * index as u64;
            let credits = Remote { address: word, rkey: credits.rkey };
            receive::Lane { queue, slots_at: index * lane_bytes(&plan), credits }
        };
        let lanes = queues.into_iter().enumerate().map(lane).collect();
        let running = receiver.receive.start(&told(&plan, None), lanes, region)?;
        let since = Instant::now();
        while !running.held().is_some_and(Receivers::is_ready) {
            if running.wait(Duration::from_micros(100))? || since.elapsed() > SETUP {
                bail!("the kernel that receives has not posted its receives within {SETUP:?}");
            }
        }
        session.barrier(Wait::at_most(SETUP).unless(stop))?;
        Ok(running)
    }
}

/// The sender's last line, `None` when a signal came first; by then the kernel has what can come.
fn run(running: &Running<Receivers>, session: &mut Session, stop: &AtomicBool) -> Result<Option<SenderEnd>> {
    let receivers = running.held().context("the kernel that receives is not running")?;
    let done = loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        ensure!(!running.is_over()?, "the kernel that receives has ended");
        ensure!(session.is_alive(), "the sender is gone");
        match session.receive::<SenderEnd>("the sender's counts", Wait::at_most(LOOK_EVERY)) {
            Ok(done) => break done,
            Err(ConnectError::Deadline { .. }) => {}
            Err(ConnectError::Closed { .. }) => bail!("the sender is gone"),
            Err(error) => return Err(error.into()),
        }
    };
    done.check(receivers.queues().len())?;
    receivers.tell(&done.completed);
    let (mut moved, mut seen) = (Instant::now(), receivers.progress());
    while !running.wait(LOOK_EVERY)? {
        let now = receivers.progress();
        if now != seen {
            (moved, seen) = (Instant::now(), now);
        }
        if stop.load(Ordering::Relaxed) || moved.elapsed() > GRACE {
            running.cancel();
        }
    }
    Ok(Some(done))
}

/// What a lane took, and with it its slots where these are looked at when all is over.
fn counts(
    plan: &Plan,
    region: &Region,
    lane: usize,
    taken: &Taken,
    completed: Option<u64>,
) -> Result<Received> {
    let mut counts = Received {
        received: taken.received,
        received_bytes: taken.received.saturating_mul(plan.payload_bytes),
        checked: taken.checked,
        verified: taken.verified,
        torn: taken.torn,
        lost: completed.map_or(0, |completed| completed.saturating_sub(taken.received)),
        error: None,
    };
    if plan.verify != Verify::End || completed.is_none() {
        return Ok(counts);
    }
    let (slots, stride) = (u64::from(plan.target_slots()), plan.slot_bytes());
    let mut slot_bytes = vec![0; stride];
    for slot in 0..slots.min(taken.received) {
        // The last message that went there.
        let message = slot + (taken.received - 1 - slot) / slots * slots;
        region.memory().read(lane * lane_bytes(plan) + slot as usize * stride, &mut slot_bytes)?;
        let body = &slot_bytes[stride - plan.payload_bytes as usize..][..plan.body_bytes()];
        counts.checked += 1;
        match payload::is_body_of(plan.source_slot(message), body) {
            true => counts.verified += 1,
            false => counts.torn += 1,
        }
    }
    Ok(counts)
}
