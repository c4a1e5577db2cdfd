//! The receiving end: takes a plan, counts and checks by itself, and tells the sender what it found.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rdma_shim::kernel::{Machine, Place, Region};
use verbs::connect::{ConnectError, Listener, Path, RegionOffer, Session, Wait};
use verbs::{Context, Mr, Pages, Pd, Qp};

use crate::control::{
    Answer, CREDIT_STRIDE, GRACE, Proposal, Received, SETUP, SenderEnd, VERSION, credit_words, first_line,
};
use crate::kernel_receiver::KernelReceiver;
use crate::lane::{ACCESS, Lane, connect, memory};
use crate::plan::{Op, Plan};

/// Looks without a message before the control connection is looked at.
const LOOKS: u32 = 256;

/// What receives messages, and where they land when that is not this process' memory.
pub enum ReceiverKind {
    Processor(Option<GpuTarget>),
    /// A kernel; where there is nothing to look at until all is over, this thread.
    Kernel {
        receiver: KernelReceiver,
        /// The GPU's memory, for this thread.
        gpu: Option<GpuTarget>,
    },
}

/// Memory of a GPU, where messages land that the processor looks at when all is over.
pub struct GpuTarget {
    /// The machine that has the memory.
    pub machine: Machine,
    /// How the NIC learns of it.
    pub place: Place,
}

impl GpuTarget {
    /// Whether a plan can be received there by a processor.
    fn check(gpu: Option<&GpuTarget>, plan: &Plan) -> Result<()> {
        if gpu.is_some() && (plan.op == Op::Send || plan.verify.uses_credits()) {
            bail!(
                "a processor looks at messages in GPU memory when all is over: it takes --op write or write-imm, with --verify end"
            );
        }
        Ok(())
    }

    fn region(&self, pd: &Pd, bytes: usize) -> Result<Region> {
        Region::new(&self.machine, pd, self.place, bytes, ACCESS).context("memory for messages")
    }
}

/// Where messages land, and what the processor sees of it.
struct Target<'m> {
    host: &'m Mr<Pages>,
    gpu: Option<Region>,
}

impl Target<'_> {
    fn offer(&self) -> RegionOffer {
        self.gpu.as_ref().map_or_else(|| RegionOffer::new(self.host), |gpu| RegionOffer::new(gpu.mr()))
    }

    /// Copies messages from the GPU's memory.
    fn refresh(&self) -> Result<()> {
        let Some(gpu) = &self.gpu else { return Ok(()) };
        let mut bytes = vec![0; 1 << 20];
        for at in (0..self.host.len()).step_by(bytes.len()) {
            let piece = &mut bytes[..(self.host.len() - at).min(1 << 20)];
            gpu.memory().read(at, piece).context("copying messages from the GPU")?;
            self.host.write(at, piece);
        }
        Ok(())
    }
}

/// What became of one session.
pub struct Outcome {
    /// Counts, as the sender was told.
    pub received: Received,
    pub interrupted: bool,
    pub warm_up: bool,
}

/// Serves one sender; reports a client that is no sender, and waits for the next. `None`: a signal came
/// first. `limit`: how long a sender may take to connect after its warm-up; none: for ever. A sender that
/// does not come is an outcome with an error. Errors are those of set-up: nothing was received.
pub fn serve(
    listener: &Listener,
    context: &Context,
    path: &Path,
    kind: &ReceiverKind,
    limit: Option<Duration>,
    stop: &AtomicBool,
) -> Result<Option<Outcome>> {
    let (mut session, Proposal { plan, warm_up, .. }) = match first_sender(listener, limit, stop)? {
        FirstSender::Proposed(session, proposal) => (session, proposal),
        FirstSender::Late => {
            let within = limit.unwrap_or_default().as_secs();
            let error = format!("the sender did not come back within {within} s after its warm-up");
            let received = Received { error: Some(error), ..Received::default() };
            return Ok(Some(Outcome { received, interrupted: false, warm_up: false }));
        }
        FirstSender::Stopped => return Ok(None),
    };
    plan.check().or_else(|error| refuse(&mut session, anyhow::Error::msg(error)))?;
    let gpu = match kind {
        // Nothing arrives that a kernel could look at.
        ReceiverKind::Kernel { receiver, gpu } if plan.op != Op::Write || plan.verify.uses_credits() => {
            let prepared = receiver.prepare(&plan, context);
            let prepared = prepared.or_else(|error| refuse(&mut session, error))?;
            session.send(&Answer { generator: VERSION, refusal: None })?;
            let (received, interrupted) = prepared.serve(&mut session, path, stop)?;
            // As in `receive`.
            let _ = session.send(&received);
            return Ok(Some(Outcome { received, interrupted, warm_up }));
        }
        ReceiverKind::Kernel { gpu, .. } | ReceiverKind::Processor(gpu) => gpu.as_ref(),
    };
    GpuTarget::check(gpu, &plan).or_else(|error| refuse(&mut session, error))?;
    let lane_bytes = plan.slot_bytes() * plan.target_slots() as usize;
    let memory = memory(context, lane_bytes * plan.qps as usize);
    let (pd, region) = memory.or_else(|error| refuse(&mut session, error))?;
    let gpu = gpu.map(|gpu| gpu.region(&pd, region.len())).transpose();
    let target = Target { host: &region, gpu: gpu.or_else(|error| refuse(&mut session, error))? };
    let lane = |lane| Lane::new(&plan, &pd, &region, lane * lane_bytes);
    let lanes: Result<Vec<_>> = (0..plan.qps as usize).map(lane).collect();
    let mut lanes = lanes.or_else(|error| refuse(&mut session, error))?;
    session.send(&Answer { generator: VERSION, refusal: None })?;
    join(&mut session, path, &plan, target.offer(), &mut lanes, stop)?;
    let (received, interrupted) = receive(&mut session, &plan, &mut lanes, &target, stop);
    Ok(Some(Outcome { received, interrupted, warm_up }))
}

/// The first client that proposes a plan, if one comes.
enum FirstSender {
    Proposed(Session, Proposal),
    /// None came within the limit.
    Late,
    /// A signal came first.
    Stopped,
}

/// The first client that proposes a plan. A browser, a port scanner or a generator of another version costs a
/// line and at most [`SETUP`], and is no session.
fn first_sender(listener: &Listener, limit: Option<Duration>, stop: &AtomicBool) -> Result<FirstSender> {
    let since = Instant::now();
    loop {
        let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(since.elapsed()));
        let mut session = match listener.accept(Wait::at_most(left).unless(stop)) {
            Err(ConnectError::Stopped { .. }) => return Ok(FirstSender::Stopped),
            Err(ConnectError::Deadline { .. }) => return Ok(FirstSender::Late),
            other => other?,
        };
        let peer = session.peer();
        let line = session
            .receive("a plan", Wait::at_most(SETUP).unless(stop))
            .with_context(|| format!("{peer} is not a generator"));
        match line.and_then(|line| first_line::<Proposal>(line, peer)) {
            Ok(proposal) => return Ok(FirstSender::Proposed(session, proposal)),
            Err(_) if stop.load(Ordering::Relaxed) => return Ok(FirstSender::Stopped),
            Err(stranger) => complain!("generator: {}; still listening", crate::sentence(&stranger)),
        }
    }
}

fn refuse<T>(session: &mut Session, error: anyhow::Error) -> Result<T> {
    session.send(&Answer { generator: VERSION, refusal: Some(cli::sentence(&error)) })?;
    Err(error)
}

/// Connects the lanes, their receives posted.
fn join(
    session: &mut Session,
    path: &Path,
    plan: &Plan,
    slots: RegionOffer,
    lanes: &mut [Lane<'_>],
    stop: &AtomicBool,
) -> Result<()> {
    for lane in lanes.iter_mut() {
        path.to_init(lane.qp(), ACCESS, 0)?;
        lane.post_receives()?;
    }
    let qps: Vec<&Qp> = lanes.iter().map(|lane| &**lane.qp()).collect();
    let credits = credit_words(plan, connect(session, plan, path, &qps, slots, stop)?)?;
    for (index, lane) in lanes.iter_mut().enumerate() {
        lane.set_credit_word(credits, CREDIT_STRIDE * index as u64);
    }
    Ok(session.barrier(Wait::at_most(SETUP).unless(stop))?)
}

/// Takes messages until the sender is done or gone, or a signal comes: the counts, and whether it was one.
fn receive(
    session: &mut Session,
    plan: &Plan,
    lanes: &mut [Lane<'_>],
    target: &Target<'_>,
    stop: &AtomicBool,
) -> (Received, bool) {
    let (done, error) = match run(session, plan, lanes, target, stop) {
        Ok(done) => (done, None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let mut received = Received::default();
    for (index, lane) in lanes.iter_mut().enumerate() {
        let (posted, completed) = done.as_ref().map_or((0, 0), |d| (d.posted[index], d.completed[index]));
        received.add(&if done.is_some() { lane.finish(posted, completed) } else { lane.counts() });
    }
    let interrupted = stop.load(Ordering::Relaxed);
    received.error = error;
    // A sender that is gone cannot be told; what it would have heard is printed here.
    let _ = session.send(&received);
    (received, interrupted)
}

/// The sender's last line, `None` when a signal came first.
fn run(
    session: &mut Session,
    plan: &Plan,
    lanes: &mut [Lane<'_>],
    target: &Target<'_>,
    stop: &AtomicBool,
) -> Result<Option<SenderEnd>> {
    let done = if plan.op == Op::Write && !plan.verify.uses_credits() {
        // Nothing to look at: this end sleeps, and leaves its core to the NIC.
        match session.receive::<SenderEnd>("the sender's counts", Wait::at_most(Duration::MAX).unless(stop)) {
            Err(ConnectError::Stopped { .. }) => return Ok(None),
            other => other?,
        }
    } else {
        match look_until_done(session, lanes, stop)? {
            Some(done) => done,
            None => return Ok(None),
        }
    };
    done.check(lanes.len())?;
    let mut quiet = Instant::now();
    target.refresh()?;
    while !lanes.iter().zip(&done.completed).all(|(lane, &completed)| lane.is_complete(completed)) {
        if stop.load(Ordering::Relaxed) || quiet.elapsed() > GRACE {
            break;
        }
        if look(lanes)? > 0 {
            quiet = Instant::now();
        }
        std::thread::yield_now();
        target.refresh()?;
    }
    Ok(Some(done))
}

fn look_until_done(
    session: &mut Session,
    lanes: &mut [Lane<'_>],
    stop: &AtomicBool,
) -> Result<Option<SenderEnd>> {
    let mut empty = 0;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if look(lanes)? > 0 {
            empty = 0;
            continue;
        }
        empty += 1;
        if empty % LOOKS != 0 {
            std::hint::spin_loop();
            continue;
        }
        // On two cores the NICs and the sender need this one as well.
        std::thread::yield_now();
        ensure!(session.is_alive(), "the sender is gone");
        match session.receive::<SenderEnd>("the sender's counts", Wait::at_most(Duration::ZERO)) {
            Ok(done) => return Ok(Some(done)),
            Err(ConnectError::Deadline { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn look(lanes: &mut [Lane<'_>]) -> Result<u64> {
    let mut found = 0;
    for lane in lanes {
        found += lane.look()?;
    }
    Ok(found)
}
