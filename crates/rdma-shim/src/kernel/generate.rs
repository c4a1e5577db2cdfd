//! The generator's senders (`kernels/generate.cu`): messages of a plan, posted by threads or warps of a machine.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use verbs::Remote;

use super::code::{Arguments, Source};
use super::end::{Failure, db_kernel_end};
use super::error::KernelError;
use super::machine::{Kernel, Machine};
use super::memory::{HostMemory, Memory, Plain};
use super::queue::{Queue, db_kernel_queue};
use super::region::Region;
use super::running::Running;
use super::shared::SharedQueue;

pub(super) const SOURCE: Source =
    Source { name: "generate.cu", text: include_str!("../../kernels/generate.cu") };

pub(super) const SHARED: Source =
    Source { name: "generate_shared.cu", text: include_str!("../../kernels/generate_shared.cu") };

pub(super) const ORIGINAL: Source =
    Source { name: "generate_original.cu", text: include_str!("../../kernels/generate_original.cu") };

/// `struct db_generate_plan` of `kernels/generate.h`.
#[repr(C)]
#[derive(Debug)]
struct db_generate_plan {
    cancel: u64,
    run_ns: u64,
    patience_ns: u64,
    hurry_ns: u64,
    payload_bytes: u64,
    slot_bytes: u64,
    opcode: u32,
    send_flags: u32,
    source_slots: u32,
    target_slots: u32,
    batch: u32,
    doorbell_batch: u32,
    window: u32,
    producers: u32,
}

// SAFETY: numbers without padding.
unsafe impl Plain for db_generate_plan {}

/// `struct db_generate_lane`.
#[repr(C)]
#[derive(Debug)]
struct db_generate_lane {
    queue: db_kernel_queue,
    shared: u64,
    slots: u64,
    source: u64,
    target: u64,
    credits: u64,
    share: u64,
    samples: u64,
    shown: u64,
    share_words: u64,
    lkey: u32,
    rkey: u32,
}

// SAFETY: numbers without padding.
unsafe impl Plain for db_generate_lane {}

/// `struct db_generate_result`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct db_generate_result {
    posted: u64,
    completed: u64,
    begin_ns: u64,
    end_ns: u64,
    begin_ticks: u64,
    end_ticks: u64,
    post_ticks: u64,
    batches: u64,
    end: db_kernel_end,
}

// SAFETY: numbers without padding.
unsafe impl Plain for db_generate_result {}

/// `struct db_generate_share`.
const SHARE_BYTES: usize = 256;
/// `DB_GENERATE_SAMPLES`.
const SAMPLES: usize = 4096;
/// Bytes of the words that show progress: a line of their own.
const SHOWN_BYTES: usize = 128;
/// Lanes of a warp.
const WARP: u32 = 32;
/// Warps on one queue: every block of a launch can run at a time on any GPU.
pub const MAX_PRODUCERS: u32 = 128;

/// Who posts on a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// One thread.
    Thread,
    /// One thread, in the original release's style: a doorbell a message, WRITEs that are not inline.
    Original,
    /// One warp, 32 messages side by side.
    Warp,
    /// So many warps, on the same queue.
    Shared(u32),
}

impl Style {
    /// Threads that post on a queue pair.
    pub fn threads(self) -> u32 {
        match self {
            Style::Thread | Style::Original => 1,
            Style::Warp => WARP,
            Style::Shared(producers) => producers.saturating_mul(WARP),
        }
    }

    /// Blocks of a launch for a queue pair, and threads of each.
    fn shape(self) -> [u32; 2] {
        match self {
            Style::Shared(producers) => [producers, WARP],
            _ => [1, self.threads()],
        }
    }
}

/// Operation that carries a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// RDMA WRITE; the message number is the payload's last word.
    Write,
    /// RDMA WRITE with immediate: the message's source slot.
    WriteImm,
    /// SEND; the message number is the payload's last word.
    Send,
}

impl Operation {
    /// Numbers of enum ibv_wr_opcode.
    pub(super) fn opcode(self) -> u32 {
        match self {
            Operation::Write => 0,
            Operation::WriteImm => 1,
            Operation::Send => 2,
        }
    }
}

/// What is sent on each queue pair. Slots hold a message at their end, and are used in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Operation.
    pub operation: Operation,
    /// Whether the payload travels in the WQE.
    pub inline: bool,
    /// Bytes of a message.
    pub payload_bytes: u64,
    /// Distance of slots at both ends, a multiple of 8.
    pub slot_bytes: u64,
    /// Slots that messages come from.
    pub source_slots: u32,
    /// Slots that they go to.
    pub target_slots: u32,
    /// Messages a completion.
    pub batch: u32,
    /// Messages a doorbell.
    pub doorbell_batch: u32,
    /// Outstanding messages at most.
    pub window: u32,
    /// How long to post; `None`: until each queue pair's share is posted.
    pub run: Option<Duration>,
    /// Nothing completes for so long: the end.
    pub patience: Duration,
    /// Likewise, once told to end.
    pub hurry: Duration,
}

/// What one queue pair has to do.
#[derive(Debug)]
pub struct Lane {
    /// Posted to by the kernel.
    pub queue: Queue,
    /// Offset of its slots in the source region.
    pub source_at: usize,
    /// The peer's slots.
    pub target: Remote,
    /// Offset, in the region of credits, of the word in which the peer counts what it has looked at; `None`: it does not.
    pub credit_at: Option<usize>,
    /// Messages.
    pub share: u64,
}

/// What a queue pair has done.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    /// Messages posted.
    pub posted: u64,
    /// Messages completed.
    pub completed: u64,
    /// Before the first post, by the machine's clock.
    pub began: Duration,
    /// After the last completion.
    pub ended: Duration,
    /// Time in batches of posts and nothing else, by the machine's clock, in nanoseconds; of producers that share a queue, who
    /// post side by side, the mean.
    pub post_ns: f64,
    /// The last batches' times in nanoseconds, at most 4096 of them; a last batch that is not whole is left out. On a shared
    /// queue the first producer's, as parts of what all do at that time.
    pub batch_ns: Vec<f64>,
    /// Messages of each.
    pub batch_messages: u32,
    /// Why it ended before its time.
    pub failure: Option<Failure>,
}

/// The kernel, ready to be launched.
#[derive(Debug)]
pub struct Generate {
    machine: Machine,
    kernel: Kernel,
    style: Style,
}

/// A queue pair as the kernel has it.
#[derive(Debug)]
enum Held {
    Own(Queue),
    Shared(SharedQueue),
}

impl Held {
    fn queue(&self) -> &Queue {
        match self {
            Held::Own(queue) => queue,
            Held::Shared(shared) => shared.queue(),
        }
    }

    fn shared_address(&self) -> u64 {
        match self {
            Held::Own(_) => 0,
            Held::Shared(shared) => shared.kernel_address(),
        }
    }
}

/// What a launch holds.
#[derive(Debug)]
pub struct Senders {
    queues: Vec<Held>,
    style: Style,
    plan: Plan,
    shares: Vec<u64>,
    results: Memory,
    samples: Memory,
    shown: HostMemory,
    _told: [Memory; 3],
    _regions: [Arc<Region>; 2],
}

impl Generate {
    /// Puts the kernel on the machine.
    pub fn prepare(machine: &Machine, style: Style) -> Result<Generate, KernelError> {
        let (source, name) = match style {
            Style::Thread => (SOURCE, "generate_thread"),
            Style::Original => (ORIGINAL, "generate_original"),
            Style::Warp => (SOURCE, "generate_warp"),
            Style::Shared(_) => (SHARED, "generate_shared"),
        };
        Ok(Generate { machine: machine.clone(), kernel: Kernel::prepare(machine, &source, name)?, style })
    }

    /// Starts sending on all lanes. Errors: numbers that do not fit; queues or regions of another machine; more lanes than
    /// the machine runs.
    pub fn start(
        &self,
        plan: &Plan,
        lanes: Vec<Lane>,
        source: Arc<Region>,
        credits: Arc<Region>,
    ) -> Result<Running<Senders>, KernelError> {
        plan.check(self.style)?;
        self.machine.reaches("the region of messages", source.machine())?;
        self.machine.reaches("the region of credits", credits.machine())?;
        for lane in &lanes {
            self.machine.reaches(&lane.queue.name(), lane.queue.machine())?;
        }
        let (machine, count) = (&self.machine, lanes.len());
        let cancel = machine.host_memory(4)?;
        let told_plan = Memory::from(machine.host_memory(size_of::<db_generate_plan>())?);
        told_plan.put(0, &plan.told(&cancel, self.style))?;
        let told_lanes = Memory::from(machine.host_memory(count * size_of::<db_generate_lane>())?);
        let results = Memory::from(machine.host_memory(count * size_of::<db_generate_result>())?);
        let shown = machine.host_memory(count * SHOWN_BYTES)?;
        let samples = machine.own_memory(count * SAMPLES * 4)?;
        let share_words = machine.own_memory(count * SHARE_BYTES)?;
        share_words.fill(0)?;
        let mut shares = Vec::with_capacity(count);
        let mut queues = Vec::with_capacity(count);
        for (index, lane) in lanes.into_iter().enumerate() {
            let slots = u64::from(plan.source_slots) * plan.slot_bytes;
            inside("source slots", lane.source_at, slots, source.memory().len())?;
            let credits_at = lane.credit_at.map(|at| {
                inside("a credit word", at, 8, credits.memory().len())?;
                Ok::<u64, KernelError>(credits.memory().kernel_address() + at as u64)
            });
            let queue = match self.style {
                Style::Shared(_) => Held::Shared(SharedQueue::new(lane.queue, plan.signal_every())?),
                _ => Held::Own(lane.queue),
            };
            let told = db_generate_lane {
                queue: queue.queue().addresses(),
                shared: queue.shared_address(),
                slots: source.memory().kernel_address() + lane.source_at as u64,
                source: source.memory().address() + lane.source_at as u64,
                target: lane.target.address,
                credits: credits_at.transpose()?.unwrap_or(0),
                share: lane.share,
                samples: samples.kernel_address() + (index * SAMPLES * 4) as u64,
                shown: shown.kernel_address() + (index * SHOWN_BYTES) as u64,
                share_words: share_words.kernel_address() + (index * SHARE_BYTES) as u64,
                lkey: source.mr().lkey(),
                rkey: lane.target.rkey,
            };
            told_lanes.put(index * size_of::<db_generate_lane>(), &told)?;
            shares.push(lane.share);
            queues.push(queue);
        }
        let arguments = Arguments::new()
            .u64(told_plan.kernel_address())
            .u64(told_lanes.kernel_address())
            .u64(results.kernel_address());
        let [blocks, threads] = self.style.shape();
        let held = Senders {
            queues,
            style: self.style,
            plan: *plan,
            shares,
            results,
            samples,
            shown,
            _told: [told_plan, told_lanes, share_words],
            _regions: [source, credits],
        };
        // SAFETY: the kernel takes these three. It stores into the lanes' slots, which lie in the source region, into results,
        // samples and words of progress, each lane's own, and into its queues; all of it is held, and it looks at `cancel`.
        unsafe { self.kernel.launch([count as u32 * blocks, threads], &arguments, cancel, held) }
    }
}

impl Plan {
    /// What the kernels rely on.
    fn check(&self, style: Style) -> Result<(), KernelError> {
        let least = if self.operation == Operation::WriteImm { 1 } else { 8 };
        let cycles = [self.source_slots, self.target_slots];
        let whole = style == Style::Thread && self.operation == Operation::Write && !self.inline;
        let good = (least..=self.slot_bytes.min(1 << 31)).contains(&self.payload_bytes)
            && self.slot_bytes.is_multiple_of(8)
            && self.slot_bytes <= u64::from(u32::MAX)
            && (1..=self.batch).contains(&self.doorbell_batch)
            && cycles
                .iter()
                .all(|&slots| slots >= self.batch && (!whole || slots % self.doorbell_batch == 0))
            && (!whole || self.batch.is_multiple_of(self.doorbell_batch))
            && match style {
                Style::Thread => true,
                Style::Original => self.doorbell_batch == 1 && self.operation != Operation::Send && !self.inline,
                // A batch that fills no warp leaves the other lanes idle.
                Style::Warp if self.batch < WARP => self.doorbell_batch == self.batch,
                Style::Warp | Style::Shared(_) => {
                    cycles.iter().all(|&slots| slots >= WARP) && self.doorbell_batch.is_multiple_of(WARP)
                }
            }
            // A poster may have to wait for the last completion and needs room for a warp's messages behind it.
            && (!matches!(style, Style::Shared(_))
                || !self.inline && self.window >= 2 * WARP && (1..=MAX_PRODUCERS).contains(&style.shape()[0]));
        if good { Ok(()) } else { Err(KernelError::Refused(format!("{self:?} cannot be sent by {style:?}"))) }
    }

    /// Messages between completions of a queue that many share: a power of two, at most half the window.
    fn signal_every(&self) -> u32 {
        let most = self.batch.min(self.window / 2).max(1);
        1 << most.ilog2()
    }

    fn told(&self, cancel: &HostMemory, style: Style) -> db_generate_plan {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        db_generate_plan {
            cancel: cancel.kernel_address(),
            run_ns: self.run.map_or(0, |run| ns(run).max(1)),
            patience_ns: ns(self.patience),
            hurry_ns: ns(self.hurry),
            payload_bytes: self.payload_bytes,
            slot_bytes: self.slot_bytes,
            opcode: self.operation.opcode(),
            send_flags: if self.inline { 8 } else { 0 },
            source_slots: self.source_slots,
            target_slots: self.target_slots,
            batch: self.batch,
            doorbell_batch: self.doorbell_batch,
            window: self.window,
            producers: style.shape()[0],
        }
    }
}

pub(super) fn inside(what: &str, at: usize, len: u64, whole: usize) -> Result<(), KernelError> {
    let end = (at as u64).checked_add(len).filter(|end| *end <= whole as u64 && at.is_multiple_of(8));
    end.map(drop).ok_or_else(|| {
        KernelError::Refused(format!(
            "{len} bytes at {at} for {what} do not lie in the region's {whole} bytes"
        ))
    })
}

impl Senders {
    /// The queue pairs, in the order of the lanes.
    pub fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.queues.iter().map(Held::queue)
    }

    /// Messages posted and completed so far, as each lane told last.
    pub fn progress(&self) -> (u64, u64) {
        let words = self.shown.long_words().chunks(SHOWN_BYTES / 8).take(self.queues.len());
        words.fold((0, 0), |(posted, completed), words| {
            (posted + words[0].load(Ordering::Acquire), completed + words[1].load(Ordering::Acquire))
        })
    }

    /// What each lane has done. Nothing runs any more: its launch has given this back.
    pub fn sent(&self) -> Result<Vec<Sent>, KernelError> {
        (0..self.queues.len()).map(|lane| self.sent_by(lane)).collect()
    }

    fn sent_by(&self, lane: usize) -> Result<Sent, KernelError> {
        let result: db_generate_result = self.results.get(lane * size_of::<db_generate_result>())?;
        let ns = result.end_ns.saturating_sub(result.begin_ns);
        let ns_per_tick = ns as f64 / result.end_ticks.saturating_sub(result.begin_ticks).max(1) as f64;
        let batches = usize::try_from(result.batches).unwrap_or(usize::MAX);
        let mut bytes = vec![0; batches.min(SAMPLES) * 4];
        self.samples.read(lane * SAMPLES * 4, &mut bytes)?;
        let mut ticks: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap_or_default()))
            .collect();
        let (share, batch) = (self.shares[lane], u64::from(self.plan.batch));
        let (producers, batch_messages, last_is_short) = match self.style {
            Style::Shared(producers) => (producers, WARP, false),
            _ => (1, self.plan.batch, !share.is_multiple_of(batch) && result.posted == share),
        };
        if last_is_short {
            // The ring of samples begins anew: the last one lies in front of the next place.
            ticks.remove((batches - 1) % SAMPLES);
        }
        let ns_of = |ticks: f64| ticks * ns_per_tick / f64::from(producers);
        Ok(Sent {
            posted: result.posted,
            completed: result.completed,
            began: Duration::from_nanos(result.begin_ns),
            ended: Duration::from_nanos(result.end_ns),
            post_ns: ns_of(result.post_ticks as f64),
            batch_ns: ticks.into_iter().map(|ticks| ns_of(ticks.into())).collect(),
            batch_messages,
            failure: result.end.failure(),
        })
    }
}
