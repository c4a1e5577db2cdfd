//! Runs cases on a GPU: prepares memory, launches, waits, reads the clock's words, compares the rings.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpu::{
    Arguments, BuildError, Context, Function, Gpu, GpuTimer, Image, ImageBuilder, Module, Priority, Shape,
    Stream,
};

use super::case::{Case, Floor, Place, Poster, Room, Sharing};
use super::content::{self, Expected, LKEY, LOCAL, QPN, REMOTE, RKEY, Wrong};
use super::memory::{Memory, PEER_BYTES, SQ_BYTES};
use super::nic::{NicRun, Rules, Signals, UNITS};
use super::{PeerHeaders, put_image, shim_image};
use rdma_shim::Order;
use rdma_shim::kernel::Plain;

/// Longest run: the slowest posts take 2 µs, of which there are 2^15 at most, one after the other.
const RUN: Duration = Duration::from_secs(5);
/// Longest wait of a post for room, of which there always is.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Between checks whether a kernel beside a played NIC has ended: polling would take a core from the NIC.
const PAUSE: Duration = Duration::from_micros(100);
/// Longest time that a played NIC needs for the last doorbell of a kernel that has ended.
const LAST_DOORBELL: Duration = Duration::from_secs(1);
/// Readings of the timer that its step is made of.
const READINGS: u32 = 64;

/// Why there is no number.
#[derive(Debug, thiserror::Error)]
pub enum GpuBenchError {
    #[error(transparent)]
    Gpu(#[from] gpu::Error),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error("{0}")]
    Impossible(String),
    #[error("no peer: {0}")]
    NoPeer(String),
    /// The shim refuses the benchmark's shared queue.
    #[error("`db_shared_init` refuses a queue of {blocks} blocks with a CQ of {entries} entries: {error}")]
    Unshareable { blocks: u32, entries: u32, error: u32 },
    #[error("{kernel}: producer {producer}'s posts returned {error}, where there is room for all")]
    Post {
        kernel: &'static str,
        producer: usize,
        /// What they returned, one over the other.
        error: u32,
    },
    #[error("{kernel}: {wrong}")]
    Content { kernel: &'static str, wrong: Wrong },
    /// The played NIC was told of less than was posted.
    #[error("{kernel}: the doorbell told of {executed} of {posts} WQEs")]
    Untold { kernel: &'static str, executed: u64, posts: u32 },
    /// Record or register do not tell the device of all.
    #[error("{kernel}: queue {queue}'s {word} is {found:02x?} after {posts} posts")]
    Doorbell { kernel: &'static str, queue: u32, word: &'static str, found: Vec<u8>, posts: u64 },
}

/// What a run took.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sample {
    /// Posts of all producers.
    pub posts: u32,
    /// By the global timer, from the first producer's start to the last one's end.
    pub span_ns: u64,
    /// By events around the launch, launch and end included.
    pub event_ns: u64,
    /// Of a steady state: how long the played NIC had rung WQEs that it had not completed.
    pub nic_ns: Option<u64>,
}

impl Sample {
    pub fn ns_per_wqe(&self) -> f64 {
        self.span_ns as f64 / f64::from(self.posts)
    }
}

/// Ends the threads of a played NIC.
struct StopAtEnd<'a>(&'a Signals);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// A GPU with the kernels and the memory for them.
#[derive(Debug)]
pub struct GpuBench {
    memory: Memory,
    timer: RefCell<GpuTimer>,
    stream: Stream,
    kernels: HashMap<String, Function>,
    no_peer: Option<String>,
}

impl GpuBench {
    /// Compiles and loads. If a peer's headers do not compile, only its cases fail ([`Self::no_peer`]: why).
    pub fn new(
        gpu: Gpu,
        builder: &ImageBuilder,
        peer: Option<&PeerHeaders>,
    ) -> Result<GpuBench, GpuBenchError> {
        let context = Context::new(gpu)?;
        let mut bench = GpuBench {
            memory: Memory::new(&context)?,
            timer: RefCell::new(GpuTimer::new(&context)?),
            stream: Stream::new(&context, Priority::Least)?,
            kernels: HashMap::new(),
            no_peer: None,
        };
        let arch = gpu.arch()?;
        bench.load(&context, &shim_image(builder, arch)?)?;
        bench.no_peer = match peer {
            None => Some("its headers were not given".into()),
            Some(peer) => match put_image(peer, builder, arch) {
                Ok(image) => bench.load(&context, &image).err().map(|error| error.to_string()),
                Err(error) => Some(error.to_string()),
            },
        };
        Ok(bench)
    }

    fn load(&mut self, context: &Context, image: &Image) -> Result<(), GpuBenchError> {
        let module = Module::load(context, image)?;
        for name in &image.facts.functions {
            self.kernels.insert(name.clone(), module.function(name)?);
        }
        Ok(())
    }

    /// Why there are no kernels of the peer's; `None` when there are.
    pub fn no_peer(&self) -> Option<&str> {
        self.no_peer.as_deref()
    }

    /// Step of the GPU's global timer, in ns.
    pub fn timer_step_ns(&mut self) -> Result<u64, GpuBenchError> {
        let word = self.memory.times.device_address();
        let arguments = Arguments::new().u64(word).u32(READINGS);
        // SAFETY: the kernel writes one word of the memory of this bench, which waits for its end.
        unsafe { self.launch("bench_timer_step", 1, 1, &arguments) }?;
        self.stream.wait("the look at the GPU's timer", RUN)?;
        Ok(self.memory.times.long_words()[0].load(Ordering::Acquire))
    }

    /// One run: posts, then compares what they left. Errors: an impossible case, the driver's, and what makes
    /// a time worthless: a failed post, a wrong WQE, a doorbell that does not name all.
    pub fn run(&mut self, case: &Case) -> Result<Sample, GpuBenchError> {
        if let Some(why) = case.impossible() {
            return Err(GpuBenchError::Impossible(why));
        }
        if let (true, Some(why)) = (case.is_peers(), &self.no_peer) {
            return Err(GpuBenchError::NoPeer(why.clone()));
        }
        self.memory.prepare(case, &self.stream)?;
        self.make_queues(case)?;
        let sample = match case.is_steady() {
            true => self.time_steady(case, case.kernel())?,
            false => self.time(case, case.kernel())?,
        };
        let expected = expected(case);
        // The played NIC has compared each; the ring holds its last lap.
        if !case.is_steady() {
            self.compare(case, &expected, case.kernel())?;
        }
        self.compare_doorbells(case, &expected)?;
        Ok(sample)
    }

    /// `posts` times what posts are made of; what is left in the ring is compared here too.
    pub fn floor(&mut self, floor: Floor, place: Place, posts: u32) -> Result<Sample, GpuBenchError> {
        let poster = Poster::Shim(Order::Strict);
        let case = Case { poster, room: Room::Unchecked, place, posts, ..Case::LONE };
        self.memory.prepare(&case, &self.stream)?;
        let sample = self.time(&case, floor.kernel)?;
        if floor.writes_wqes {
            let expected = Expected { signal_every: u32::MAX, ..expected(&case) };
            self.compare(&case, &expected, floor.kernel)?;
        }
        Ok(sample)
    }

    /// Times a case beside a played NIC.
    fn time_steady(&self, case: &Case, kernel: &'static str) -> Result<Sample, GpuBenchError> {
        let rules = Rules {
            queue: 0,
            posts: case.posts_of_all(),
            signal_every: case.signal_every(),
            names_next: case.is_peers() || case.sharing == Sharing::Shared,
            in_order: case.producers == 1,
            reserved_free: case.is_peers(),
            cqes: case.cqes(),
        };
        let (device, signals) = (self.memory.device(case), Signals::default());
        let (sample, played) = std::thread::scope(|scope| {
            let nic = scope.spawn(|| device.play(&rules, &signals));
            // However this ends, its threads do.
            let stop = StopAtEnd(&signals);
            while signals.ready.load(Ordering::Acquire) < UNITS && !nic.is_finished() {
                std::thread::yield_now();
            }
            let sample = self.time(case, kernel);
            let deadline = Instant::now() + LAST_DOORBELL;
            while sample.is_ok() && !nic.is_finished() && Instant::now() < deadline {
                std::thread::sleep(PAUSE);
            }
            drop(stop);
            (sample, nic.join().expect("a NIC that is played does not panic"))
        });
        // What was wrong with a WQE says more than what came of it.
        let NicRun { executed, busy, wrong, .. } = played;
        if let Some(wrong) = wrong {
            return Err(GpuBenchError::Content { kernel, wrong });
        }
        let sample = sample?;
        if executed != u64::from(rules.posts) {
            return Err(GpuBenchError::Untold { kernel, executed, posts: rules.posts });
        }
        Ok(Sample { nic_ns: Some(busy.as_nanos() as u64), ..sample })
    }

    /// Launches a kernel that takes `struct db_bench_run`, and waits for it.
    fn time(&self, case: &Case, kernel: &'static str) -> Result<Sample, GpuBenchError> {
        let arguments = Arguments::new().bytes(&self.arguments(case));
        let mut timer = self.timer.borrow_mut();
        timer.begin(&self.stream)?;
        // SAFETY: the kernels of `bench_post.cu` and the peer's routine write the times and what `prepare`
        // laid out for this case: rings, records, registers, slots, marks, structs. `posts_of_one` keeps to
        // the sizes. All is the bench's, until the stream is idle. The CPU reaches it by atomics and copies.
        unsafe { self.launch(kernel, case.producers, case.threads(), &arguments) }?;
        timer.finish(&self.stream)?;
        let since = Instant::now();
        while case.is_steady() && since.elapsed() < RUN && !self.stream.is_idle()? {
            std::thread::sleep(PAUSE);
        }
        self.stream.wait(kernel, RUN.saturating_sub(since.elapsed()))?;
        let event_ns = timer.elapsed(RUN)?.as_nanos() as u64;
        let times = self.memory.times(case.producers);
        if let Some((producer, time)) = times.iter().enumerate().find(|(_, time)| time.error != 0) {
            return Err(GpuBenchError::Post { kernel, producer, error: time.error });
        }
        let start = times.iter().map(|time| time.start_ns).min().unwrap_or(0);
        let end = times.iter().map(|time| time.end_ns).max().unwrap_or(0);
        Ok(Sample { posts: case.posts_of_all(), span_ns: end.saturating_sub(start), event_ns, nic_ns: None })
    }

    /// Makes those structs of queues that only a kernel knows the layout of.
    fn make_queues(&self, case: &Case) -> Result<(), GpuBenchError> {
        let memory = &self.memory;
        match (case.is_peers(), case.sharing) {
            (true, _) => {
                let arguments =
                    Arguments::new().u64(memory.peer_queues.address()).u64(memory.peers.address());
                // SAFETY: a thread reads an entry of the first, writes a struct of the second; all exist.
                unsafe { self.launch("bench_put_prepare", 1, case.queues(), &arguments) }
            }
            (_, Sharing::Exclusive) => Ok(()),
            (_, Sharing::Shared) => {
                let arguments = Arguments::new()
                    .u64(memory.queues.address())
                    .u64(memory.shared.address())
                    .bytes(memory.one_cq(case).bytes())
                    .u64(memory.marks())
                    .u32(case.signal_every() - 1)
                    .u64(memory.times.device_address());
                // SAFETY: the kernel reads one queue, writes the shared one and one word, in memory for them.
                unsafe { self.launch("bench_share", 1, 1, &arguments) }?;
                self.stream.wait("sharing a queue", RUN)?;
                match memory.times.words()[0].load(Ordering::Acquire) {
                    0 => Ok(()),
                    error => {
                        let entries = memory.one_cq(case).entries;
                        Err(GpuBenchError::Unshareable { blocks: case.blocks(), entries, error })
                    }
                }
            }
        }
    }

    /// `struct db_bench_run`.
    fn arguments(&self, case: &Case) -> Vec<u8> {
        let memory = &self.memory;
        let (queues, bytes) = match (case.is_peers(), case.sharing) {
            (true, _) => (memory.peers.address(), PEER_BYTES),
            (_, Sharing::Exclusive) => (memory.queues.address(), SQ_BYTES),
            (_, Sharing::Shared) => (memory.shared.address(), 0),
        };
        let apart = if case.sharing == Sharing::Shared { 0 } else { bytes };
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let words = [
            queues,
            memory.times.device_address(),
            LOCAL,
            REMOTE,
            pair(LKEY, RKEY),
            pair(case.posts_of_one(), case.per_ring),
            u64::from(apart),
            PATIENCE_NS,
            memory.cq.address(),
            u64::from(case.signal_every()),
        ];
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    /// # Safety
    /// As [`Stream::launch`].
    unsafe fn launch(
        &self,
        name: &str,
        blocks: u32,
        threads: u32,
        arguments: &Arguments,
    ) -> Result<(), GpuBenchError> {
        let missing = || gpu::Error::Refused(format!("the image has no kernel `{name}`"));
        let function = self.kernels.get(name).ok_or_else(missing)?;
        let shape = Shape::line(blocks, threads);
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { self.stream.launch(function, shape, arguments) }?;
        Ok(())
    }

    fn compare(&self, case: &Case, expected: &Expected, kernel: &'static str) -> Result<(), GpuBenchError> {
        let rings = self.memory.rings(case, &self.stream)?;
        content::check(&rings, expected).map_err(|wrong| GpuBenchError::Content { kernel, wrong })
    }

    fn compare_doorbells(&self, case: &Case, expected: &Expected) -> Result<(), GpuBenchError> {
        let kernel = case.kernel();
        for queue in 0..case.queues() {
            let posts = case.start() + u64::from(expected.posts);
            let (record, register) = self.memory.doorbell(queue);
            let wrong = |word, found: &[u8]| GpuBenchError::Doorbell {
                kernel,
                queue,
                word,
                found: found.into(),
                posts,
            };
            if record != ((posts & 0xffff) as u32).to_be_bytes() {
                return Err(wrong("record", &record));
            }
            // The index of the last WQE, or the next free one: the device looks at the record for the end.
            let index = u64::from(u16::from_be_bytes([register[1], register[2]]));
            let named = [posts - 1, posts].iter().any(|end| end & 0xffff == index);
            if !named || register[4..7] != (QPN + queue).to_be_bytes()[1..] {
                return Err(wrong("register", &register));
            }
        }
        Ok(())
    }
}

/// What a case leaves in its rings.
fn expected(case: &Case) -> Expected {
    Expected {
        queues: case.queues(),
        blocks: case.blocks(),
        start: case.start(),
        posts: case.posts_of_all() / case.queues(),
        in_order: case.sharing == Sharing::Exclusive,
        signal_every: case.signal_every(),
        reserved_free: case.is_peers(),
    }
}
