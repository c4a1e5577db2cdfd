//! The generator's senders (`kernels/generate.cu`): threads or warps of a machine post a plan's messages.

mod plan;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rdma_shim::c_structs;
use rdma_shim::kernel::{
    Arguments, Failure, HostMemory, Kernel, KernelError, Machine, Memory, Queue, Region, Running,
    SharedQueue, Source, db_kernel_end, db_kernel_queue,
};
use verbs::Remote;

pub use plan::{MAX_PRODUCERS, Operation, Plan, Style};
use plan::{WARP, db_generate_plan};

pub(super) static SOURCE: Source = super::source("generate.cu", include_str!("../../kernels/generate.cu"));
pub(super) static SHARED: Source =
    super::source("generate_shared.cu", include_str!("../../kernels/generate_shared.cu"));
pub(super) static ORIGINAL: Source =
    super::source("generate_original.cu", include_str!("../../kernels/generate_original.cu"));

c_structs! {
    /// `struct db_generate_lane`.
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

    /// `struct db_generate_result`.
    struct db_generate_result {
        posted: u64,
        completed: u64,
        begin_ns: u64,
        end_ns: u64,
        clock_ticks: u64,
        clock_ns: u64,
        post_ticks: u64,
        batches: u64,
        end: db_kernel_end,
    }
}

/// `struct db_generate_share`.
const SHARE_BYTES: usize = 256;
/// `DB_GENERATE_SAMPLES`.
const SAMPLES: usize = 4096;
/// Bytes of the words that show progress: a line of their own.
const SHOWN_BYTES: usize = 128;
/// What one queue pair has to do.
#[derive(Debug)]
pub struct Lane {
    pub queue: Queue,
    /// Offset of its slots in the source region.
    pub source_at: usize,
    /// The peer's slots.
    pub target: Remote,
    /// Offset, in the region of credits, of the word in which the peer counts checked messages, if it does.
    pub credit_at: Option<usize>,
    pub share: u64,
}

/// What a queue pair has done.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    pub posted: u64,
    pub completed: u64,
    /// Before the first post, by whichever producer, by the machine's clock.
    pub began: Duration,
    /// After the last completion.
    pub ended: Duration,
    /// Time spent in batches of posts alone, in ns by the machine's clock. Producers that share a queue post
    /// side by side: their mean.
    pub post_ns: f64,
    /// Times of the last whole batches in ns, at most 4096. On a shared queue: the first producer's, divided
    /// by the number of producers.
    pub batch_ns: Vec<f64>,
    pub batch_messages: u32,
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
enum KernelQueue {
    Own(Queue),
    Shared(SharedQueue),
}

impl KernelQueue {
    fn queue(&self) -> &Queue {
        match self {
            KernelQueue::Own(queue) => queue,
            KernelQueue::Shared(shared) => shared.queue(),
        }
    }

    fn into_queue(self) -> Result<Queue, KernelError> {
        match self {
            KernelQueue::Own(queue) => queue.emptied(),
            KernelQueue::Shared(shared) => shared.into_queue(),
        }
    }

    fn shared_address(&self) -> u64 {
        match self {
            KernelQueue::Own(_) => 0,
            KernelQueue::Shared(shared) => shared.kernel_address(),
        }
    }
}

/// What a launch holds.
#[derive(Debug)]
pub struct Senders {
    queues: Vec<KernelQueue>,
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
            Style::Thread => (&SOURCE, "generate_thread"),
            Style::Original => (&ORIGINAL, "generate_original"),
            Style::Warp => (&SOURCE, "generate_warp"),
            Style::Shared(_) => (&SHARED, "generate_shared"),
        };
        Ok(Generate { machine: machine.clone(), kernel: Kernel::prepare(machine, source, name)?, style })
    }

    /// An error if the machine cannot run so many queue pairs' threads at once: some would begin late.
    pub fn check_queues(&self, queues: usize) -> Result<(), KernelError> {
        self.blocks(queues).map(drop)
    }

    fn blocks(&self, queues: usize) -> Result<u32, KernelError> {
        let [each, threads] = self.style.shape();
        self.kernel.blocks(queues, each, threads)
    }

    /// Starts sending on all lanes. Errors: numbers that do not fit; queues or regions of another machine;
    /// more lanes than the machine runs.
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
            plan.fits(&lane.queue.name(), &lane.queue.room()?)?;
        }
        let [_, threads] = self.style.shape();
        let blocks = self.blocks(lanes.len())?;
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
                Style::Shared(_) => KernelQueue::Shared(SharedQueue::new(lane.queue, plan.signal_every())?),
                _ => KernelQueue::Own(lane.queue),
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
        // SAFETY: the kernel takes these three. It stores into the lanes' slots (in the source region), each
        // lane's results, samples and progress words, and its queues. All is held; it looks at `cancel`.
        unsafe { self.kernel.launch([blocks, threads], &arguments, cancel, held) }
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
        self.queues.iter().map(KernelQueue::queue)
    }

    /// The queues in lane order, emptied and in RESET: connect them, and give them to a kernel again.
    pub fn into_queues(self) -> Result<Vec<Queue>, KernelError> {
        self.queues.into_iter().map(KernelQueue::into_queue).collect()
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
        let ns_per_tick = result.clock_ns as f64 / result.clock_ticks.max(1) as f64;
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

#[cfg(test)]
mod tests {
    use super::super::post_bench::content::{LKEY, LOCAL, REMOTE, RKEY};
    use super::super::post_bench::nic::{Cqes, Rules};
    use super::super::post_bench::tests::{BLOCKS, PlainQueue, weak};
    use super::*;
    use host_twin::Visibility;
    use rdma_shim::sys::{DB_PUBLISHED_SHIFT, db_shared_sq};

    const SHARE: u64 = 64;

    fn compiler() -> Result<(), String> {
        crate::kernel::KERNELS.find("generate_shared").map(drop).map_err(|error| error.to_string())
    }

    /// The last of two producers finds that the other posted all, and reports. The run began with the other,
    /// whose clock says how long a tick is.
    #[test]
    fn a_shared_run_begins_with_its_first_producer_whoever_is_through_last() {
        measure::need!(compiler(), cc, "a C++ compiler");
        let queue = db_shared_sq {
            reserved: SHARE,
            rung: SHARE,
            consumed: SHARE,
            published: SHARE << DB_PUBLISHED_SHIFT,
            ..Default::default()
        };
        let (result, _) = last_of_two(queue, SHARE);
        assert_eq!((result.posted, result.completed, result.end.code), (SHARE, SHARE, 0));
        assert_eq!((result.begin_ns, result.clock_ticks, result.clock_ns), (7, 2000, 1000), "{result:?}");
        assert!(result.end_ns > 7);
    }

    /// A producer whose post is refused does not keep the ringer's role that it took with its blocks.
    #[test]
    fn a_refused_producer_is_not_the_ringer_any_more() {
        measure::need!(compiler(), cc, "a C++ compiler");
        let failed = db_shared_sq { reserved: 1 << 63, failing: 1, failed: 1, ..Default::default() };
        let (result, queue) = last_of_two(failed, 0);
        assert_ne!(result.end.code, 0);
        assert_eq!((queue.published, queue.rung, queue.reserved), (0, 0, 1 << 63 | 32));
    }

    /// Senders on a ring that a played NIC empties four times. It compares each WQE; a poll takes all of its
    /// completions that are there.
    #[test]
    fn senders_go_on_by_what_a_played_nic_completes() {
        measure::need!(compiler(), cc, "a C++ compiler");
        for (name, style, batch) in [
            ("generate_thread", Style::Thread, 1),
            ("generate_thread", Style::Thread, 16),
            ("generate_warp", Style::Warp, WARP),
        ] {
            let share = 4 * BLOCKS;
            let (plain, machine) = (PlainQueue::new(), Machine::twin(Visibility::InOrder));
            let memory = |bytes| machine.host_memory(bytes).unwrap();
            let (cancel, slots, shown, samples) =
                (memory(4), memory(64 * share as usize), memory(SHOWN_BYTES), memory(SAMPLES * 4));
            let [plan, lane, result, sq, cq] = [(); 5].map(|()| Memory::from(memory(4096)));
            let told = Plan { batch, doorbell_batch: batch, window: 128, ..plan_of(share) };
            plan.put(0, &told.told(&cancel, style)).unwrap();
            sq.put(0, &plain.sq()).unwrap();
            cq.put(0, &plain.cq()).unwrap();
            let queue = db_kernel_queue {
                sq: sq.kernel_address(),
                rq: 0,
                send_cq: cq.kernel_address(),
                receive_cq: 0,
            };
            let lane_told = db_generate_lane {
                queue,
                slots: slots.kernel_address(),
                source: LOCAL,
                target: REMOTE,
                share: u64::from(share),
                samples: samples.kernel_address(),
                shown: shown.kernel_address(),
                lkey: LKEY,
                rkey: RKEY,
                ..no_lane()
            };
            lane.put(0, &lane_told).unwrap();
            let arguments = [&plan, &lane, &result]
                .into_iter()
                .fold(host_twin::Arguments::new(), |all, memory| all.push(memory.kernel_address()));
            let rules = Rules {
                queue: 0,
                posts: share,
                signal_every: batch,
                names_next: false,
                in_order: true,
                reserved_free: false,
                cqes: Cqes::InOrder,
            };
            let (kernel, launch) =
                (crate::kernel::KERNELS.find(name).unwrap(), weak(batch, 1, style.threads()));
            // SAFETY: the kernel takes these three and keeps to what they name, all of which lives here.
            let (ended, played) = unsafe { plain.beside_a_nic(kernel, &launch, arguments, &rules) };
            let result: db_generate_result = result.get(0).unwrap();
            let completed = (ended, result.end.code, result.completed);
            assert_eq!(completed, (true, 0, u64::from(share)), "{name}: {result:?} {played:?}");
            assert_eq!((played.executed, played.wrong), (u64::from(share), None), "{name}");
        }
    }

    /// WRITEs of 64 bytes, each to and from a slot of its own.
    fn plan_of(slots: u32) -> Plan {
        Plan {
            operation: Operation::Write,
            inline: false,
            payload_bytes: 64,
            slot_bytes: 64,
            source_slots: slots,
            target_slots: slots,
            batch: 32,
            doorbell_batch: 32,
            window: 64,
            run: None,
            patience: Duration::from_secs(30),
            hurry: Duration::from_secs(1),
            receives: 0,
            sample: 0,
            has_credits: false,
        }
    }

    fn no_lane() -> db_generate_lane {
        db_generate_lane {
            queue: db_kernel_queue::default(),
            shared: 0,
            slots: 0,
            source: 0,
            target: 0,
            credits: 0,
            share: SHARE,
            samples: 0,
            shown: 0,
            share_words: 0,
            lkey: 0,
            rkey: 0,
        }
    }

    /// One producer of two, after the other is done and `claimed` messages were claimed: report and queue.
    fn last_of_two(mut queue: db_shared_sq, claimed: u64) -> (db_generate_result, db_shared_sq) {
        let machine = Machine::twin(Visibility::InOrder);
        let memory = |bytes| machine.host_memory(bytes).unwrap();
        let (cancel, shown, share_words) = (memory(4), memory(SHOWN_BYTES), memory(SHARE_BYTES));
        let ([plan, lane, results], shared) =
            ([4096; 3].map(|bytes| Memory::from(memory(bytes))), Memory::from(memory(4096)));
        let style = Style::Shared(2);
        plan.put(0, &plan_of(64).told(&cancel, style)).unwrap();
        let marks = memory(4096);
        (queue.sq.blocks, queue.filled) = (64, marks.kernel_address());
        shared.put(0, &queue).unwrap();
        // `struct db_generate_share`: claimed; a line behind it through, begin_ns, clock_ticks, clock_ns.
        let words = share_words.long_words();
        for (word, value) in [(0, claimed), (16, 1), (17, 7), (18, 2000), (19, 1000)] {
            words[word].store(value, Ordering::Relaxed);
        }
        let lane_told = db_generate_lane {
            shared: shared.kernel_address(),
            shown: shown.kernel_address(),
            share_words: share_words.kernel_address(),
            ..no_lane()
        };
        lane.put(0, &lane_told).unwrap();
        let addresses = [&plan, &lane, &results].map(Memory::kernel_address);
        let arguments = addresses.into_iter().fold(Arguments::new(), Arguments::u64);
        let kernel = Kernel::prepare(&machine, &SHARED, "generate_shared").unwrap();
        let held = (plan, lane, results.clone(), shared.clone(), shown, share_words.clone(), marks);
        // SAFETY: the kernel takes these three and keeps to what they name (held); nothing is left to post.
        let running = unsafe { kernel.launch([1, WARP], &arguments, cancel, held) }.unwrap();
        running.end(Duration::from_secs(300)).unwrap();
        (results.get(0).unwrap(), shared.get(0).unwrap())
    }
}
