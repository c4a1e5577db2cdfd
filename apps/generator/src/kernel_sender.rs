//! The sending end when a kernel posts, on a GPU or on its host twin: the kernel takes the plan as a whole.
//!
//! This end makes queues and memory, launches once, and now and then checks for a receiver that is gone and
//! for a signal. What is posted, when, and what it took, the kernel says by its own clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use cli::Gpu;
use generator::kernel::generate::{self, Generate, Lane, Senders, Sent, Style};
use host_twin::{MAX_LANES, Visibility};
use rdma_shim::Options;
use rdma_shim::kernel::{KernelError, Machine, Place, Queue, Region, Running};
use verbs::connect::{Path, RegionOffer, Session};
use verbs::{Context, Cq, Pd, Remote};

use crate::control::{CREDIT_STRIDE, DRAIN_INTERRUPTED, Proposal, SenderEnd};
use crate::lane::ACCESS;
use crate::payload;
use crate::plan::{Op, Plan};
use crate::post_times::PostTimes;
use crate::sender::{LOOK_EVERY, Outcome, PATIENCE, StopCondition, Times, builder, join, propose};

/// Messages a doorbell when a warp posts and nothing else is asked for.
pub const WARP: u32 = 32;

/// The machine that runs the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    Gpu(Gpu),
    /// Threads of this processor; with a seed, stores become visible late and in another order.
    Twin {
        /// See [`Visibility::Weak`].
        seed: Option<u64>,
    },
}

impl Host {
    /// Starts it. Errors: no GPU, driver or toolkit: the places searched, and `without`, what works instead.
    pub fn machine(&self, without: &str) -> Result<Machine> {
        Ok(match self {
            Host::Gpu(gpu) => gpu.machine(&format!(": {without}"))?,
            Host::Twin { seed: None } => Machine::twin(Visibility::InOrder),
            Host::Twin { seed: Some(seed) } => Machine::twin(Visibility::Weak { seed: *seed }),
        })
    }
}

/// Which kernel posts, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    pub host: Host,
    pub style: Style,
    pub options: Options,
    pub place: Place,
}

impl Kind {
    /// Whether the plan can be posted so, before anything is opened for it.
    pub fn check(&self, plan: &Plan) -> Result<()> {
        let lanes = self.style.threads() as usize * plan.qps as usize;
        if matches!(self.host, Host::Twin { .. }) && lanes > MAX_LANES {
            bail!(
                "--qps {} needs {lanes} lanes of {} each, and the host twin has {MAX_LANES}: give fewer queue pairs or \
                 producers",
                plan.qps,
                self.style.threads(),
            );
        }
        if self.style == Style::Original && plan.doorbell_batch != 1 {
            bail!("--doorbell-batch {}: the original's style rings for each message", plan.doorbell_batch);
        }
        if self.style == Style::Original && plan.op == Op::Send {
            bail!("--op send: the original's style posts WRITEs, with an immediate or without");
        }
        let is_short_warp =
            self.style == Style::Warp && plan.batch < WARP && plan.doorbell_batch == plan.batch;
        if self.style.threads() > 1 && !is_short_warp && !plan.doorbell_batch.is_multiple_of(WARP) {
            bail!(
                "--doorbell-batch {}: a warp rings for whole warps' worth of messages; give a multiple of {WARP}, or a \
                 smaller --batch that it rings for at once",
                plan.doorbell_batch
            );
        }
        if matches!(self.style, Style::Shared(_)) && plan.doorbell_batch != 32 {
            bail!(
                "--doorbell-batch {}: warps that share a queue publish 32 messages at a time",
                plan.doorbell_batch
            );
        }
        Ok(())
    }
}

/// A connected sender, its kernel ready to be launched.
pub struct KernelSender {
    plan: Plan,
    session: Session,
    generate: Generate,
    queues: Vec<Queue>,
    source: Arc<Region>,
    credits: Arc<Region>,
    target: RegionOffer,
}

impl KernelSender {
    /// Connects to the receiver at `address` and makes all queue pairs. Nothing is sent yet.
    pub fn connect(
        proposal: Proposal,
        kind: &Kind,
        machine: &Machine,
        address: &str,
        context: &Context,
        path: &Path,
        stop: &AtomicBool,
    ) -> Result<KernelSender> {
        let plan = &proposal.plan;
        // Before anything else runs there: a receiver need not know of a kernel that does not compile.
        let generate = Generate::prepare(machine, kind.style)?;
        generate.check_queues(plan.qps as usize)?;
        let pd = context.alloc_pd()?;
        let lane_bytes = plan.slot_bytes() * plan.source_slots() as usize;
        let region = |place, bytes| Region::new(machine, &pd, place, bytes, ACCESS).map(Arc::new);
        let source = region(kind.place, lane_bytes * plan.qps as usize).context("memory for messages")?;
        let image = payload::image(plan);
        for lane in 0..plan.qps as usize {
            source.memory().write(lane * lane_bytes, &image)?;
        }
        let credits =
            region(Place::Host, CREDIT_STRIDE as usize * plan.qps as usize).context("memory for credits")?;
        let queues: Result<Vec<_>, KernelError> =
            (0..plan.qps).map(|_| queue(plan, machine, &pd, kind.options)).collect();
        let queues = queues.context("a queue pair for kernels")?;
        let mut session = propose(&proposal, address, stop)?;
        let qps: Vec<_> = queues.iter().map(Queue::qp).collect();
        let target = join(&mut session, plan, path, &qps, RegionOffer::new(credits.mr()), stop)?;
        Ok(KernelSender { plan: proposal.plan, session, generate, queues, source, credits, target })
    }

    /// Sends, and gets the receiver's counts.
    pub fn run(self, until: StopCondition, stop: &AtomicBool) -> Result<Outcome> {
        let KernelSender { plan, mut session, generate, queues, source, credits, target } = self;
        let told = told(&plan, Some(until));
        let lane_bytes = plan.slot_bytes() * plan.source_slots() as usize;
        let peer_bytes = plan.slot_bytes() as u64 * u64::from(plan.target_slots());
        let lanes = queues.into_iter().enumerate().map(|(index, queue)| Lane {
            queue,
            source_at: index * lane_bytes,
            target: Remote { address: target.address + index as u64 * peer_bytes, rkey: target.rkey },
            credit_at: plan.verify.uses_credits().then_some(index * CREDIT_STRIDE as usize),
            share: until.share(&plan, index as u32),
        });
        let running = generate.start(&told, lanes.collect(), source, credits)?;
        let mut error = watch(&running, &mut session, stop).err().map(|error| format!("{error:#}"));
        // Its own deadlines end it: by then nothing was completed for so long.
        let senders = running.end(PATIENCE + DRAIN_INTERRUPTED)?;
        let sent = senders.sent()?;
        let interrupted = stop.load(Ordering::Relaxed);
        if !interrupted {
            let failure = sent.iter().find_map(|sent| sent.failure);
            error = error.or(failure.map(|failure| failure.to_string()));
        }
        let done = SenderEnd {
            posted: sent.iter().map(|sent| sent.posted).collect(),
            completed: sent.iter().map(|sent| sent.completed).collect(),
        };
        let times = Times { seconds: seconds(&sent), posts: times(&sent), firsts: PostTimes::new() };
        Ok(Outcome::new(&mut session, &done, times, error, interrupted))
    }
}

/// A queue pair of its own CQs, posted to by kernels.
fn queue(plan: &Plan, machine: &Machine, pd: &Pd, options: Options) -> Result<Queue, KernelError> {
    let cq = |entries| -> Result<_, KernelError> { Ok(Cq::new(pd.context(), entries)?.into_direct()?) };
    // A quarter of its ring is released late, and on a shared queue each block of the ring may complete.
    let (send_cq, receive_cq) = (cq(2 * plan.window.next_power_of_two())?, cq(1)?);
    Queue::create(machine, &builder(plan), pd, send_cq, Some(receive_cq), options)
}

/// The plan as the kernels of both ends take it. `until`: when posting ends, to the sender's.
pub fn told(plan: &Plan, until: Option<StopCondition>) -> generate::Plan {
    generate::Plan {
        operation: plan.op,
        inline: plan.inline,
        payload_bytes: plan.payload_bytes,
        slot_bytes: plan.slot_bytes() as u64,
        source_slots: plan.source_slots(),
        target_slots: plan.target_slots(),
        batch: plan.batch,
        doorbell_batch: plan.doorbell_batch,
        window: plan.window,
        run: match until {
            Some(StopCondition::Elapsed(limit)) => Some(limit),
            Some(StopCondition::Count(_)) | None => None,
        },
        patience: PATIENCE,
        hurry: DRAIN_INTERRUPTED,
        receives: plan.receives(),
        sample: plan.verify.every(),
        has_credits: plan.verify.uses_credits(),
    }
}

/// Looks at the receiver and at the stop flag until the kernel has ended; tells it to when there is a reason.
fn watch(running: &Running<Senders>, session: &mut Session, stop: &AtomicBool) -> Result<()> {
    while !running.wait(LOOK_EVERY)? {
        if stop.load(Ordering::Relaxed) {
            running.cancel();
            return Ok(());
        }
        if !session.is_alive() {
            running.cancel();
            bail!("the receiver is gone");
        }
    }
    Ok(())
}

/// From before the first post of any queue pair to the last completion.
fn seconds(sent: &[Sent]) -> f64 {
    let begin = sent.iter().map(|sent| sent.began).min().unwrap_or_default();
    let end = sent.iter().map(|sent| sent.ended).max().unwrap_or_default();
    end.saturating_sub(begin).as_secs_f64()
}

fn times(sent: &[Sent]) -> PostTimes {
    let mut times = PostTimes::new();
    for sent in sent {
        let bursts = sent.batch_ns.iter().map(|&ns| (ns, sent.batch_messages.into()));
        times.record_run(sent.post_ns, sent.posted, bursts);
    }
    times
}
