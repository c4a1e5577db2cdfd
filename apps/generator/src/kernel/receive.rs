//! The generator's receiver (`kernels/generate_receive.cu`): a warp for each queue pair takes what arrives.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_shim::c_structs;
use rdma_shim::kernel::{
    Arguments, Failure, HostMemory, Kernel, KernelError, Machine, Memory, Queue, Region, Room, Running,
    Source, db_kernel_end, db_kernel_queue,
};
use verbs::Remote;

use super::generate::{Operation, Plan, inside};

pub(super) static SOURCE: Source =
    super::source("generate_receive.cu", include_str!("../../kernels/generate_receive.cu"));

c_structs! {
    /// `struct db_receive_plan` of `kernels/generate_receive.cu`.
    struct db_receive_plan {
        cancel: u64,
        payload_bytes: u64,
        slot_bytes: u64,
        opcode: u32,
        source_slots: u32,
        target_slots: u32,
        window: u32,
        receives: u32,
        sample: u32,
        has_credits: u32,
        pad: u32,
    }

    /// `struct db_receive_lane`.
    struct db_receive_lane {
        queue: db_kernel_queue,
        slots: u64,
        local: u64,
        credits: u64,
        scratch: u64,
        told: u64,
        shown: u64,
        lkey: u32,
        rkey: u32,
    }

    /// `struct db_receive_result`.
    struct db_receive_result {
        received: u64,
        checked: u64,
        verified: u64,
        torn: u64,
        end: db_kernel_end,
    }
}

/// Distance of a lane's words: a line each.
const LINE: usize = 128;
/// `CREDITS_OUTSTANDING`.
const CREDITS_OUTSTANDING: u32 = 16;
/// Lanes of a warp, which each queue pair has.
pub const THREADS: u32 = 32;

#[derive(Debug)]
pub struct Lane {
    /// Polled by the kernel; its send queue takes 8 bytes inline, and 16 requests where there are credits.
    pub queue: Queue,
    /// Offset of its slots in the region.
    pub slots_at: usize,
    /// The sender's word for credits.
    pub credits: Remote,
}

/// What a queue pair has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    pub received: u64,
    /// Of these, compared.
    pub checked: u64,
    /// Of these, whole.
    pub verified: u64,
    /// Of these, not what was sent, or not the next one.
    pub torn: u64,
    pub failure: Option<Failure>,
}

/// The kernel, ready to be launched.
#[derive(Debug)]
pub struct Receive {
    machine: Machine,
    kernel: Kernel,
}

/// What a launch holds.
#[derive(Debug)]
pub struct Receivers {
    queues: Vec<Queue>,
    results: Memory,
    words: HostMemory,
    _told: [Memory; 2],
    _scratch: Memory,
    _region: Arc<Region>,
}

impl Receive {
    /// Puts the kernel on the machine.
    pub fn prepare(machine: &Machine) -> Result<Receive, KernelError> {
        let kernel = Kernel::prepare(machine, &SOURCE, "generate_receive")?;
        Ok(Receive { machine: machine.clone(), kernel })
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// An error unless the machine runs a warp for each of so many queue pairs at once: a late one would post
    /// its receives after another has ended.
    pub fn check_queues(&self, queues: usize) -> Result<(), KernelError> {
        self.kernel.blocks(queues, 1, THREADS).map(drop)
    }

    /// Starts receiving on all lanes, into `region`. Errors: numbers that do not fit; queues or a region of
    /// another machine; more lanes than the machine runs.
    pub fn start(
        &self,
        plan: &Plan,
        lanes: Vec<Lane>,
        region: Arc<Region>,
    ) -> Result<Running<Receivers>, KernelError> {
        plan.check_received()?;
        region.takes_arrivals(&self.machine)?;
        for lane in &lanes {
            self.machine.reaches(&lane.queue.name(), lane.queue.machine())?;
            plan.fits_receiver(&lane.queue.name(), &lane.queue.room()?)?;
        }
        let blocks = self.kernel.blocks(lanes.len(), 1, THREADS)?;
        let (machine, count) = (&self.machine, lanes.len());
        let cancel = machine.host_memory(4)?;
        let told_plan = Memory::from(machine.host_memory(size_of::<db_receive_plan>())?);
        told_plan.put(0, &plan.told_receiver(&cancel))?;
        let told_lanes = Memory::from(machine.host_memory(count * size_of::<db_receive_lane>())?);
        let results = Memory::from(machine.host_memory(count * size_of::<db_receive_result>())?);
        let (words, scratch) = (machine.host_memory(2 * count * LINE)?, machine.own_memory(count * LINE)?);
        let mut queues = Vec::with_capacity(count);
        for (index, lane) in lanes.into_iter().enumerate() {
            let slots = u64::from(plan.target_slots) * plan.slot_bytes;
            inside("target slots", lane.slots_at, slots, region.memory().len())?;
            let line = |number: usize| (number * LINE) as u64;
            let told = db_receive_lane {
                queue: lane.queue.addresses(),
                slots: region.memory().kernel_address() + lane.slots_at as u64,
                local: region.memory().address() + lane.slots_at as u64,
                credits: lane.credits.address,
                scratch: scratch.kernel_address() + line(index),
                told: words.kernel_address() + line(2 * index),
                shown: words.kernel_address() + line(2 * index + 1),
                lkey: region.mr().lkey(),
                rkey: lane.credits.rkey,
            };
            told_lanes.put(index * size_of::<db_receive_lane>(), &told)?;
            queues.push(lane.queue);
        }
        let arguments = Arguments::new()
            .u64(told_plan.kernel_address())
            .u64(told_lanes.kernel_address())
            .u64(results.kernel_address());
        let (_told, _scratch, _region) = ([told_plan, told_lanes], scratch, region);
        let held = Receivers { queues, results, words, _told, _scratch, _region };
        // SAFETY: the kernel takes these three. It reads the lanes' slots, in the region, and stores into
        // each lane's results, words and scratch and its queues; all of it is held, and it looks at `cancel`.
        unsafe { self.kernel.launch([blocks, THREADS], &arguments, cancel, held) }
    }
}

impl Plan {
    /// What the kernel relies on.
    fn check_received(&self) -> Result<(), KernelError> {
        let good = self.fits_slots()
            && self.source_slots > 0
            && self.target_slots > 0
            && (self.receives == 0) == (self.operation == Operation::Write);
        if good { Ok(()) } else { Err(KernelError::Refused(format!("{self:?} cannot be received"))) }
    }

    /// An error unless the queue holds the receives, credits in flight and, after an error, a flush for each.
    /// Receives and sends have a CQ each.
    fn fits_receiver(&self, queue: &str, room: &Room) -> Result<(), KernelError> {
        if room.one_cq {
            return Err(KernelError::Refused(format!(
                "{queue}: its receives complete on the CQ of its sends; a receiver's queue has one for each"
            )));
        }
        let flushes = room.receive_completions - room.receive_completions / 4;
        // Two SENDs would be received into one slot.
        let slots = if self.operation == Operation::Send { self.target_slots } else { u32::MAX };
        let credits = if self.has_credits { CREDITS_OUTSTANDING } else { 0 };
        if self.receives <= room.receives.min(flushes).min(slots) && credits <= room.sends.min(room.flushes())
        {
            return Ok(());
        }
        Err(KernelError::Refused(format!(
            "{queue}: {} receives and {credits} credits at a time do not fit {} receives, {} completions of receives (a quarter is \
             given back late), {} slots, {} sends and {} completions of theirs",
            self.receives,
            room.receives,
            room.receive_completions,
            self.target_slots,
            room.sends,
            room.completions
        )))
    }

    fn told_receiver(&self, cancel: &HostMemory) -> db_receive_plan {
        db_receive_plan {
            cancel: cancel.kernel_address(),
            payload_bytes: self.payload_bytes,
            slot_bytes: self.slot_bytes,
            opcode: self.operation.opcode(),
            source_slots: self.source_slots,
            target_slots: self.target_slots,
            window: self.window,
            receives: self.receives,
            sample: self.sample,
            has_credits: self.has_credits.into(),
            pad: 0,
        }
    }
}

impl Receivers {
    /// Whether all receives are posted.
    pub fn is_ready(&self) -> bool {
        let words = self.words.words().chunks(LINE / 4).skip(1).step_by(2).take(self.queues.len());
        words.into_iter().all(|line| line[0].load(Ordering::Acquire) == 1)
    }

    /// Messages so far, as each lane told last.
    pub fn progress(&self) -> u64 {
        self.shown().map(|line| line[1].load(Ordering::Acquire)).sum()
    }

    /// Tells each lane how many messages its sender has completed: with these it ends.
    pub fn tell(&self, completed: &[u64]) {
        let counts = self.words.long_words().chunks(LINE / 8).step_by(2);
        // The flag in front of a count is a word of 32 bits to the kernel, and so it is here.
        let flags = self.words.words().chunks(LINE / 4).step_by(2);
        for ((count, flag), completed) in counts.zip(flags).zip(completed) {
            count[1].store(*completed, Ordering::Release);
            flag[0].store(1, Ordering::Release);
        }
    }

    fn shown(&self) -> impl Iterator<Item = &[std::sync::atomic::AtomicU64]> {
        self.words.long_words().chunks(LINE / 8).skip(1).step_by(2).take(self.queues.len())
    }

    /// What each lane has taken. Nothing runs any more: its launch has given this back.
    pub fn taken(&self) -> Result<Vec<Taken>, KernelError> {
        let one = |lane: usize| -> Result<Taken, KernelError> {
            let result: db_receive_result = self.results.get(lane * size_of::<db_receive_result>())?;
            let db_receive_result { received, checked, verified, torn, end } = result;
            Ok(Taken { received, checked, verified, torn, failure: end.failure() })
        };
        (0..self.queues.len()).map(one).collect()
    }

    /// The queue pairs, in the order of the lanes.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// The same, emptied and in RESET: connect them, and give them to a kernel again.
    pub fn into_queues(self) -> Result<Vec<Queue>, KernelError> {
        self.queues.into_iter().map(Queue::emptied).collect()
    }
}
