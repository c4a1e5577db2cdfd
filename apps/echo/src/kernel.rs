//! `kernels/echo.cu`: a service that answers each message its queue receives, and a client that times it.
//!
//! Both are made before any launch, since a GPU may wait for running kernels when asked for memory. They own
//! what they use while they run, except the registration of their buffers. That is the caller's [`Region`],
//! and may go under a running kernel, which then gets an error CQE.

#![allow(non_camel_case_types, reason = "names are C's")]

pub mod add;

use std::time::Duration;

use rdma_shim::c_structs;
use rdma_shim::kernel::{
    Arguments, Failure, HostMemory, Kernel, KernelError, Memory, Queue, Region, Running, Source,
    db_kernel_end, db_kernel_queue,
};

host_twin::include_kernels!("kernels");

static SOURCE: Source =
    Source { name: "echo.cu", text: include_str!("../kernels/echo.cu"), headers: &[], twin: &KERNELS };
/// Where the status lies behind the run, on a line of its own.
const STATUS: usize = 256;
const SHARED_BYTES: usize = STATUS + size_of::<db_echo_status>();

c_structs! {
    /// `struct db_echo_run`.
    struct db_echo_run {
        queue: db_kernel_queue,
        buffers: u64,
        cancel: u64,
        wait_ns: u64,
        samples: u64,
        lkey: u32,
        stride: u32,
        window: u32,
        bytes: u32,
        count: u32,
        pad: u32,
    }

    /// `struct db_echo_status`.
    struct db_echo_status {
        end: db_kernel_end,
        messages: u64,
        ready: u32,
        wrong: u32,
        first_wrong: u32,
        posted: u32,
    }
}

/// How a run of either kernel ended, or how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Messages answered, or asked and answered.
    pub messages: u64,
    /// Why it ended, unless all is done. Its request is a buffer (service) or a question (client).
    pub failure: Option<Failure>,
    /// Words of answers that were not what they should be.
    pub wrong_words: u32,
    /// Question to which the first of them belongs.
    pub first_wrong: Option<u32>,
}

/// What both kernels hold.
#[derive(Debug)]
struct Parts {
    kernel: Kernel,
    /// Run and status.
    shared: Memory,
    cancel: HostMemory,
    _buffers: Memory,
    samples: Option<HostMemory>,
    queue: Queue,
}

impl Parts {
    fn new(
        name: &'static str,
        queue: Queue,
        region: &Region,
        mut run: db_echo_run,
    ) -> Result<Parts, KernelError> {
        let machine = queue.machine().clone();
        let refuse = |why: String| Err(KernelError::Refused(format!("{}: {why}", queue.name())));
        let (needed, there) = (u64::from(run.window) * u64::from(run.stride), region.memory().len());
        if run.stride == 0 || !run.stride.is_multiple_of(8) || run.window == 0 || needed > there as u64 {
            return refuse(format!(
                "{} buffers of {} bytes are not buffers of whole words in a region of {there}",
                run.window, run.stride
            ));
        }
        region.takes_arrivals(&machine)?;
        let room = queue.room()?;
        if !room.one_cq || run.window > room.sends.min(room.receives).min(room.completions / 3) {
            return refuse(format!(
                "{} messages at a time do not fit {} sends, {} receives and {} completions{}",
                run.window,
                room.sends,
                room.receives,
                room.completions,
                if room.one_cq { "" } else { " of one direction" }
            ));
        }
        let kernel = Kernel::prepare(&machine, &SOURCE, name)?;
        let (shared, cancel) = (machine.host_memory(SHARED_BYTES)?, machine.host_memory(4)?);
        let samples = match run.count {
            0 => None,
            count => Some(machine.host_memory(4 * count as usize)?),
        };
        run.queue = queue.addresses();
        run.buffers = region.memory().kernel_address();
        run.cancel = cancel.kernel_address();
        run.samples = samples.as_ref().map_or(0, HostMemory::kernel_address);
        run.lkey = region.mr().lkey();
        let shared = Memory::from(shared);
        shared.put(0, &run)?;
        Ok(Parts { kernel, shared, cancel, _buffers: region.memory().clone(), samples, queue })
    }

    fn status(&self) -> Result<db_echo_status, KernelError> {
        self.shared.get(STATUS)
    }

    fn outcome(&self) -> Result<Outcome, KernelError> {
        let status = self.status()?;
        Ok(Outcome {
            messages: status.messages,
            failure: status.end.failure(),
            wrong_words: status.wrong,
            first_wrong: (status.wrong > 0).then_some(status.first_wrong),
        })
    }

    /// The kernels' arguments. The status is new, except for the receives that an earlier launch posted.
    fn arguments(&self) -> Result<Arguments, KernelError> {
        let posted = self.status()?.posted;
        self.shared.put(STATUS, &db_echo_status { first_wrong: u32::MAX, posted, ..Default::default() })?;
        let at = self.shared.kernel_address();
        Ok(Arguments::new().u64(at).u64(at + STATUS as u64))
    }
}

/// What a service is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listening {
    /// Messages that it takes at a time, each with a buffer of its own.
    pub window: u32,
    /// Bytes of the longest message, a multiple of 8.
    pub most_bytes: u32,
    /// Longest time without a message.
    pub patience: Duration,
}

/// The service, ready to be launched: one thread.
#[derive(Debug)]
pub struct Echo(Parts);

impl Echo {
    /// Takes its buffers from `region`. Errors: more buffers or window than region or queue have; a region of
    /// another machine than the queue's; the GPU's.
    pub fn new(queue: Queue, region: &Region, listening: Listening) -> Result<Echo, KernelError> {
        let run = db_echo_run {
            wait_ns: nanoseconds(listening.patience),
            stride: listening.most_bytes,
            window: listening.window,
            ..Default::default()
        };
        Ok(Echo(Parts::new("echo", queue, region, run)?))
    }

    /// Launches it. A later launch goes on where the last one stopped, unless the queue has failed.
    pub fn start(self) -> Result<Running<Echo>, KernelError> {
        let (kernel, arguments, cancel) = (self.0.kernel.clone(), self.0.arguments()?, self.0.cancel.clone());
        // SAFETY: the arguments are the kernel's. It keeps to queue, buffers, run and status, all of which
        // `self` holds, and looks at the word before each wait and in it.
        unsafe { kernel.launch([1, 1], &arguments, cancel, self) }
    }

    /// Whether its first receives are posted.
    pub fn is_ready(&self) -> Result<bool, KernelError> {
        Ok(self.0.status()?.ready != 0)
    }

    pub fn outcome(&self) -> Result<Outcome, KernelError> {
        self.0.outcome()
    }

    pub fn queue(&self) -> &Queue {
        &self.0.queue
    }

    /// The queue, emptied and in RESET: connect it, and give it to a kernel again.
    pub fn into_queue(self) -> Result<Queue, KernelError> {
        self.0.queue.emptied()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Questions {
    /// How many, one after the other.
    pub count: u32,
    /// Bytes of each, a multiple of 8.
    pub bytes: u32,
    /// Longest wait for an answer.
    pub patience: Duration,
    /// Threads that fill and check.
    pub threads: u32,
}

/// The client, ready to be launched: one block.
#[derive(Debug)]
pub struct EchoClient(Parts, u32);

impl EchoClient {
    /// Question and answer lie in `region`. Errors: as [`Echo::new`], and questions of no whole words.
    pub fn new(queue: Queue, region: &Region, questions: Questions) -> Result<EchoClient, KernelError> {
        let run = db_echo_run {
            wait_ns: nanoseconds(questions.patience),
            stride: questions.bytes,
            window: 2,
            bytes: questions.bytes,
            count: questions.count,
            ..Default::default()
        };
        Ok(EchoClient(Parts::new("ask", queue, region, run)?, questions.threads))
    }

    /// Launches it, also again after a run that got all its answers. Errors: the GPU's; the run before
    /// failed, and a receive left from it could take an answer of this run. Look at [`Outcome::failure`]
    /// first, since a refused EchoClient takes its queue along.
    pub fn start(self) -> Result<Running<EchoClient>, KernelError> {
        if let Some(failure) = self.outcome()?.failure {
            return Err(KernelError::Refused(format!(
                "{}: the run before did not end well ({failure}), and what was posted for it may still be there; ask with a new EchoClient, \
                 over its queue if that was taken by into_queue() and connected anew",
                self.0.queue.name()
            )));
        }
        let (kernel, arguments, cancel) = (self.0.kernel.clone(), self.0.arguments()?, self.0.cancel.clone());
        // SAFETY: as `Echo::start`.
        unsafe { kernel.launch([1, self.1], &arguments, cancel, self) }
    }

    pub fn outcome(&self) -> Result<Outcome, KernelError> {
        self.0.outcome()
    }

    /// Round trips so far, in ns by the machine's own timer: from before a question's WQE is written until
    /// its answer's completion is taken.
    pub fn round_trips_ns(&self) -> Result<Vec<u32>, KernelError> {
        let (Some(samples), done) = (&self.0.samples, self.outcome()?.messages) else {
            return Ok(Vec::new());
        };
        let words = samples.words().iter().take(usize::try_from(done).unwrap_or(usize::MAX));
        Ok(words.map(|word| word.load(std::sync::atomic::Ordering::Relaxed)).collect())
    }

    pub fn queue(&self) -> &Queue {
        &self.0.queue
    }

    /// The queue, emptied and in RESET: connect it, and give it to a kernel again.
    pub fn into_queue(self) -> Result<Queue, KernelError> {
        self.0.queue.emptied()
    }
}

/// Word of a question, as the kernel makes it, for a client without a kernel.
pub fn question_word(question: u32, word: u32) -> u64 {
    (u64::from(question.wrapping_add(1)) << 32 | u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn nanoseconds(time: Duration) -> u64 {
    // Half of all, so that a deadline does not wrap.
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use gpu::Toolkit;

    #[test]
    fn every_kernel_compiles_and_links() {
        let toolkit = measure::need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
        rdma_shim::testing::compile_and_link(
            toolkit,
            &[super::SOURCE.unit(), super::add::unit()],
            measure::need::is_full(),
        );
    }
}
