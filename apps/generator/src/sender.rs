//! The sending end: makes everything first, then posts as fast as its window allows, then asks what arrived.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use measure::timer;
use verbs::connect::{ConnectError, Path, RegionOffer, Session, Wait};
use verbs::{Context, Cq, Mr, Pages, Pd, Qp, QpBuilder, QpType, QueuePair, SendOperations};

use crate::control::{
    Answer, CREDIT_STRIDE, DRAIN_INTERRUPTED, Proposal, Received, SETUP, SenderEnd, first_line,
};
use crate::lane::{ACCESS, connect, memory, qp_type};
use crate::payload::Slots;
use crate::plan::{Op, Plan};
use crate::post_times::PostTimes;
use crate::poster::{self, Entries, Kind, Poster, Requests};

/// How long a receiver may take to begin to listen.
const CONNECT: Duration = Duration::from_secs(3);
/// Longest time without a completion after the last post. With more threads than cores a kernel kept a
/// polling thread from its core for 5 s. A NIC's thread may be one: its work is late, not lost.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How often the control connection and the clock are looked at while messages flow.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest sleep between looks at the stop flag: the whole end within a second.
const NAP: Duration = Duration::from_millis(50);
/// Polls without a completion before the core is offered to others.
const POLLS: u32 = 64;

/// When posting ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StopCondition {
    Count(u64),
    Elapsed(Duration),
}

impl StopCondition {
    /// Messages of a queue pair.
    pub fn share(self, plan: &Plan, qp: u32) -> u64 {
        match self {
            StopCondition::Count(count) => plan.share(count, qp),
            StopCondition::Elapsed(_) => u64::MAX,
        }
    }
}

/// What the sender timed.
pub struct Times {
    /// Before the first post to the last completion.
    pub seconds: f64,
    pub posts: PostTimes,
    /// Of messages after a pause each (timer `first_ns`).
    pub firsts: PostTimes,
}

/// What the sender saw and the receiver told.
pub struct Outcome {
    pub posted: u64,
    pub completed: u64,
    pub times: Times,
    pub received: Received,
    pub interrupted: bool,
    pub error: Option<String>,
}

impl Outcome {
    /// Tells the receiver what was posted and gets its counts. `error`: why posting ended.
    pub fn new(
        session: &mut Session,
        done: &SenderEnd,
        times: Times,
        mut error: Option<String>,
        interrupted: bool,
    ) -> Outcome {
        let received = ask(session, done, interrupted || error.is_some()).unwrap_or_else(|why| {
            error.get_or_insert(format!("{why:#}"));
            Received::default()
        });
        let error = error.or_else(|| received.error.clone());
        let (posted, completed) = (done.posted.iter().sum(), done.completed.iter().sum());
        Outcome { posted, completed, times, received, interrupted, error }
    }
}

/// One queue pair of the sender.
struct Track<'a> {
    poster: Box<dyn Poster>,
    requests: Requests<'a>,
    posted: u64,
    completed: u64,
    /// Messages to post in all.
    share: u64,
    /// Offset of its credit word.
    credit_at: usize,
}

/// Queue pairs that nothing is posted to, each connected with itself.
pub struct IdleQps(Vec<QueuePair>);

impl IdleQps {
    pub fn open(context: &Context, path: &Path, count: u32) -> Result<IdleQps> {
        let (pd, cq) = (context.alloc_pd()?, Cq::new(context, 1)?);
        let one = || -> Result<QueuePair> {
            let qp = QpBuilder::new(QpType::Rc).send_requests(16).receive_requests(1).build(&pd, &cq, &cq)?;
            cli::connect_pair(path, ACCESS, &qp, &qp)?;
            Ok(qp)
        };
        let made: Result<Vec<_>> = (0..count).map(|_| one()).collect();
        Ok(IdleQps(made.with_context(|| format!("opening {count} idle queue pairs"))?))
    }

    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }
}

/// A connected sender, ready to post.
pub struct Sender {
    plan: Plan,
    session: Session,
    posters: Vec<Box<dyn Poster>>,
    source: Mr<Pages>,
    credits: Mr<Pages>,
    target: RegionOffer,
    _pd: Pd,
}

impl Sender {
    /// Connects to the receiver at `address` and makes all queue pairs. Nothing is sent yet.
    pub fn connect(
        proposal: Proposal,
        kind: Kind,
        address: &str,
        context: &Context,
        path: &Path,
        stop: &AtomicBool,
    ) -> Result<Sender> {
        let mut session = propose(&proposal, address, stop)?;
        let plan = proposal.plan;
        let slots_bytes = plan.slot_bytes() * (plan.source_slots() * plan.qps) as usize;
        let (pd, source) = memory(context, slots_bytes)?;
        let credits = Pages::new(CREDIT_STRIDE as usize * plan.qps as usize).context("memory for credits")?;
        let credits = Mr::register(&pd, credits, ACCESS)?;
        let posters = (0..plan.qps).map(|_| poster::create(kind, &builder(&plan), &pd, plan.window + 16));
        let posters = posters.collect::<Result<Vec<_>>>()?;
        let qps: Vec<_> = posters.iter().map(|poster| poster.qp()).collect();
        let target = join(&mut session, &plan, path, &qps, RegionOffer::new(&credits), stop)?;
        Ok(Sender { plan, session, posters, source, credits, target, _pd: pd })
    }

    /// Sends, and gets the receiver's counts.
    pub fn run(self, until: StopCondition, pause: Option<Duration>, stop: &AtomicBool) -> Result<Outcome> {
        let Sender { plan, mut session, posters, source, credits, target, _pd } = self;
        let lane_bytes = plan.slot_bytes() * plan.source_slots() as usize;
        let bases: Vec<_> = (0..posters.len()).map(|lane| lane * lane_bytes).collect();
        let entries =
            bases.iter().map(|&base| Entries::new(&plan, &source, base)).collect::<Result<Vec<_>>>()?;
        let mut tracks = Vec::with_capacity(posters.len());
        for (index, poster) in posters.into_iter().enumerate() {
            let slots = Slots::new(&source, bases[index], &plan);
            (0..u64::from(plan.source_slots())).for_each(|slot| slots.fill(slot));
            let peer_base = index as u64 * plan.slot_bytes() as u64 * u64::from(plan.target_slots());
            let mut requests = Requests::new(&plan, &entries[index], &slots, target, peer_base)?;
            let share = until.share(&plan, index as u32);
            let whole = share - share % u64::from(plan.batch);
            if whole < share && share != u64::MAX {
                requests.prepare_tail(&plan, &entries[index], whole..share, target, peer_base)?;
            }
            let credit_at = index * CREDIT_STRIDE as usize;
            tracks.push(Track { poster, requests, posted: 0, completed: 0, share, credit_at });
        }
        let (mut times, mut firsts) = (PostTimes::new(), PostTimes::new());
        let transfer = timer::TRANSFER.start();
        let ended = match pause {
            None => post_all(&plan, &mut tracks, &credits, &mut session, until, &mut times, stop),
            Some(pause) => post_after_pauses(&plan, &mut tracks, &mut session, pause, &mut firsts, stop),
        };
        let seconds = transfer.elapsed().as_secs_f64();
        let interrupted = stop.load(Ordering::Relaxed);
        let error = ended.err().map(|error| format!("{error:#}"));
        let done = SenderEnd {
            posted: tracks.iter().map(|track| track.posted).collect(),
            completed: tracks.iter().map(|track| track.completed).collect(),
        };
        let times = Times { seconds, posts: times, firsts };
        Ok(Outcome::new(&mut session, &done, times, error, interrupted))
    }
}

/// Connects to the receiver at `address`, which accepts the proposal.
pub fn propose(proposal: &Proposal, address: &str, stop: &AtomicBool) -> Result<Session> {
    let mut session = Session::connect(address, Wait::at_most(CONNECT).unless(stop))
        .context("is a receiver listening there?")?;
    session.send(proposal)?;
    let peer = session.peer();
    let line = session
        .receive("an answer", Wait::at_most(SETUP).unless(stop))
        .with_context(|| format!("{peer} is not a generator"))?;
    match first_line::<Answer>(line, peer)?.refusal {
        Some(why) => bail!("{peer} refuses: {why}"),
        None => Ok(session),
    }
}

/// Brings the queue pairs to RTS, each with its peer; gives the receiver's slots.
pub fn join(
    session: &mut Session,
    plan: &Plan,
    path: &Path,
    qps: &[&Qp],
    credits: RegionOffer,
    stop: &AtomicBool,
) -> Result<RegionOffer> {
    for qp in qps {
        path.to_init(qp, ACCESS, 0)?;
    }
    let offered = connect(session, plan, path, qps, credits, stop)?;
    let target = offered.context("the receiver offers no slots")?;
    let needed = plan.slot_bytes() as u64 * u64::from(plan.target_slots()) * u64::from(plan.qps);
    if target.bytes < needed || target.address.checked_add(target.bytes).is_none() {
        bail!("the receiver's slots are {target:?}, {needed} bytes are needed");
    }
    session.barrier(Wait::at_most(SETUP).unless(stop))?;
    Ok(target)
}

/// A sender's queue pairs.
pub fn builder(plan: &Plan) -> QpBuilder {
    // Only what is used: a request of any operation would take four blocks of the ring instead of one.
    let operations = if plan.op == Op::Send { SendOperations::SEND } else { SendOperations::WRITE };
    let inline = if plan.inline { plan.payload_bytes as u32 } else { 0 };
    QpBuilder::new(qp_type(plan.service))
        .send_requests(plan.window)
        .receive_requests(0)
        .inline_bytes(inline)
        .operations(operations)
        .own_register(true)
}

/// Posts batch after batch, on each queue pair in turn. The clock is read around a batch and nowhere inside.
fn post_all(
    plan: &Plan,
    tracks: &mut [Track<'_>],
    credits: &Mr<Pages>,
    session: &mut Session,
    until: StopCondition,
    times: &mut PostTimes,
    stop: &AtomicBool,
) -> Result<()> {
    let start = Instant::now();
    let mut looked = start;
    let mut idle = 0;
    loop {
        let mut busy = false;
        for track in tracks.iter_mut() {
            let count = (track.share - track.posted).min(plan.batch.into());
            if count > 0 && track.has_room(plan, credits, count) {
                let post = timer::POST.start();
                track.poster.post(&mut track.requests, track.posted, count as u32)?;
                times.record(post.elapsed_ns(), count);
                track.posted += count;
                busy = true;
            }
            busy |= track.poll(plan)?;
        }
        if tracks.iter().all(|track| track.completed == track.share) {
            return Ok(());
        }
        idle = if busy { 0 } else { idle + 1 };
        if idle % POLLS == POLLS - 1 {
            // The window is full: the NIC may need this core to empty it.
            std::thread::yield_now();
        }
        let now = Instant::now();
        let time_is_up = matches!(until, StopCondition::Elapsed(limit) if now - start >= limit);
        if stop.load(Ordering::Relaxed) || time_is_up {
            return drain(plan, tracks, session, stop);
        }
        if now - looked >= LOOK_EVERY {
            looked = now;
            is_there(session)?;
        }
    }
}

/// Posts one message after each pause, and waits for it: both NICs were idle when it came.
fn post_after_pauses(
    plan: &Plan,
    tracks: &mut [Track<'_>],
    session: &mut Session,
    pause: Duration,
    firsts: &mut PostTimes,
    stop: &AtomicBool,
) -> Result<()> {
    let track = tracks.first_mut().context("no queue pair to send on")?;
    while track.completed < track.share {
        let since = Instant::now();
        while since.elapsed() < pause {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            is_there(session)?;
            std::thread::sleep(NAP.min(pause.saturating_sub(since.elapsed())));
        }
        let first = timer::FIRST.start();
        track.poster.post(&mut track.requests, track.posted, 1)?;
        track.posted += 1;
        while track.completed < track.posted {
            if !track.poll(plan)? {
                std::thread::yield_now();
            }
            if first.elapsed() > PATIENCE {
                bail!("a message did not complete within {PATIENCE:?}");
            }
            if stop.load(Ordering::Relaxed) {
                return drain(plan, tracks, session, stop);
            }
        }
        firsts.record(first.elapsed_ns(), 1);
    }
    Ok(())
}

/// Waits for what was posted, as long as something completes now and then.
fn drain(plan: &Plan, tracks: &mut [Track<'_>], session: &mut Session, stop: &AtomicBool) -> Result<()> {
    let start = Instant::now();
    let (mut moved, mut looked) = (start, start);
    while tracks.iter().any(|track| track.completed < track.posted) {
        let mut busy = false;
        for track in tracks.iter_mut() {
            busy |= track.poll(plan)?;
        }
        // After the poll: it may be this thread that had no core.
        let now = Instant::now();
        if busy {
            moved = now;
        } else {
            std::thread::yield_now();
        }
        if let Some(time) = is_over(start, moved, now, stop.load(Ordering::Relaxed)) {
            let posted: u64 = tracks.iter().map(|track| track.posted).sum();
            let left: u64 = tracks.iter().map(|track| track.posted - track.completed).sum();
            bail!("{left} of {posted} messages that were posted did not complete, none of them for {time:?}");
        }
        if now - looked >= LOOK_EVERY {
            looked = now;
            is_there(session)?;
        }
    }
    Ok(())
}

/// An error when the receiver is gone.
fn is_there(session: &mut Session) -> Result<()> {
    if session.is_alive() { Ok(()) } else { bail!("the receiver is gone") }
}

/// Whether completions have been waited for long enough, and for how long; the last one came at `moved`.
fn is_over(start: Instant, moved: Instant, now: Instant, interrupted: bool) -> Option<Duration> {
    let (since, limit) = if interrupted { (start, DRAIN_INTERRUPTED) } else { (moved, PATIENCE) };
    (now - since > limit).then_some(limit)
}

impl Track<'_> {
    /// Whether that many more messages stay inside the window and, where credits count, the receiver's leave.
    fn has_room(&self, plan: &Plan, credits: &Mr<Pages>, count: u64) -> bool {
        let after = self.posted + count;
        let window = u64::from(plan.window);
        after - self.completed <= window
            && (!plan.verify.uses_credits()
                || after - credits.word64(self.credit_at).load(Ordering::Acquire) <= window)
    }

    /// Each completion stands for a batch, the last one for what is left.
    fn poll(&mut self, plan: &Plan) -> Result<bool> {
        let count = self.poster.poll()? as u64;
        self.completed = (self.completed + count * u64::from(plan.batch)).min(self.posted);
        Ok(count > 0)
    }
}

/// Tells the receiver what was sent and gets its counts.
fn ask(session: &mut Session, done: &SenderEnd, hurry: bool) -> Result<Received> {
    session.send(done)?;
    // The receiver may still wait for stragglers, and checks up to gigabytes.
    let limit = if hurry { Duration::from_millis(500) } else { Duration::from_secs(60) };
    match session.receive("the receiver's counts", Wait::at_most(limit)) {
        Ok(received) => Ok(received),
        Err(ConnectError::Closed { .. }) => bail!("the receiver is gone"),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_ends_when_nothing_completes_and_not_before() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        for (name, moved, now, interrupted, over) in [
            ("a thread that had no core for six seconds", 0.0, 6.0, false, None),
            ("nothing for half a minute", 0.0, 30.1, false, Some(PATIENCE)),
            ("a completion now and then", 100.0, 129.0, false, None),
            ("and then none", 100.0, 130.1, false, Some(PATIENCE)),
            ("a signal", 0.2, 0.2, true, None),
            ("a signal, whatever still comes", 0.4, 0.4, true, Some(DRAIN_INTERRUPTED)),
        ] {
            assert_eq!(is_over(start, at(moved), at(now), interrupted), over, "{name}");
        }
    }
}
