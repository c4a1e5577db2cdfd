//! A chain of turns wakes a thread that sleeps when it ends, and not before.

use std::sync::mpsc::{Receiver, channel};

use ::gpu::{Function, Shape, Stream, Unit};

use super::*;

/// Longest wait for anything that happens at once.
const SOON: Duration = Duration::from_secs(20);

/// In what time a sleeping thread is to wake.
pub const IN_TIME: Duration = Duration::from_millis(10);
/// In what time it wakes on a busy machine, and where more than the wake is timed.
pub const WOKEN: Duration = Duration::from_secs(1);

/// How long wakes of a thread that sleeps took.
#[derive(Default)]
pub struct Wakes {
    pub took: Vec<Duration>,
}

impl Wakes {
    /// Prints them, and whether their median keeps the aim. The least is below `most`: others may run, too.
    pub fn judge(mut self, what: &str, most: Duration) {
        self.took.sort_unstable();
        let is_kept = self.took[self.took.len() / 2] < IN_TIME;
        let aim = if is_kept { String::new() } else { format!(": aim not met: {IN_TIME:?}") };
        println!("TABLE {what} after {:?}{aim}", self.took);
        assert!(self.took[0] < most, "{what} after {:?}", self.took);
    }
}

/// Tells of each end of a pipeline's turns from now on.
pub fn ends(served: &mut Served) -> Receiver<()> {
    let (tells, ended) = channel();
    served.call_at_end(Arc::new(move || tells.send(()).unwrap()));
    ended
}

/// Marks the host's own slot three times, each time turns that have not ended by themselves.
pub fn ends_at_marks(served: &mut Served, ended: &Receiver<()>, what: &str) {
    let mut wakes = Wakes::default();
    for _ in 0..3 {
        assert!(ended.recv_timeout(Duration::from_millis(30)).is_err(), "an end that nothing has asked for");
        let since = Instant::now();
        served.mark_stop().unwrap();
        ended.recv_timeout(SOON).unwrap();
        wakes.took.push(since.elapsed());
        served.wait_end(SOON).unwrap();
        served.start().unwrap();
    }
    wakes.judge(what, IN_TIME);
}

#[test]
fn the_twin_s_chain_wakes_at_a_stop_and_at_a_model_s_error() {
    need!(has_compiler(), cc, "a C++ compiler");
    let mut pipeline = TestPipeline::new(Arrival::Flag, None, None);
    let mut peer = pipeline.join(0, 0, 1);
    let ended = ends(&mut pipeline.served);
    pipeline
        .served
        .prepare_by_cpu(|| Err("it is broken".into()))
        .and_then(|()| pipeline.served.start())
        .unwrap();
    // Idle waits end by their time, and are no end of the chain.
    assert!(ended.recv_timeout(Duration::from_millis(30)).is_err());
    let mut wakes = Wakes::default();
    for _ in 0..3 {
        let since = Instant::now();
        pipeline.served.cancel();
        ended.recv_timeout(SOON).unwrap();
        wakes.took.push(since.elapsed());
        assert!(!pipeline.served.is_running().unwrap());
        pipeline.served.wait_end(SOON).unwrap();
        pipeline.served.start().unwrap();
        assert!(pipeline.served.is_running().unwrap());
    }
    wakes.judge("the end of the chain is told", WOKEN);
    pipeline.ask(&mut peer, 1, 1.0);
    ended.recv_timeout(SOON).unwrap();
    let error = pipeline.served.wait_end(SOON).unwrap_err().to_string();
    assert_eq!(error, "the model: it is broken");
    // It may be started again, and be told again: a start that is refused takes nothing back.
    pipeline.served.start().unwrap();
    pipeline.served.cancel();
    assert!(matches!(pipeline.served.start(), Err(ServedError::Refused(_))));
    ended.recv_timeout(SOON).unwrap();
    pipeline.served.wait_end(SOON).unwrap();
}

#[test]
fn a_chain_whose_model_panics_has_ended_and_says_why() {
    need!(has_compiler(), cc, "a C++ compiler");
    let mut pipeline = TestPipeline::new(Arrival::Flag, None, None);
    let mut peer = pipeline.join(0, 0, 1);
    let ended = ends(&mut pipeline.served);
    pipeline.served.prepare_by_cpu(|| panic!("planted")).and_then(|()| pipeline.served.start()).unwrap();
    pipeline.ask(&mut peer, 1, 1.0);
    ended.recv_timeout(SOON).unwrap();
    assert!(!pipeline.served.is_running().unwrap());
    let error = pipeline.served.wait_end(SOON).unwrap_err().to_string();
    assert_eq!(error, "the model: it has panicked");
}

/// Whether a chain of turns ends when the host's own slot is marked as stop, and again after a restart.
fn ends_at_a_mark(posts: Processor, planted: Option<&'static str>, limit: Duration) -> bool {
    let machine = Machine::twin(Visibility::InOrder);
    let buffers = machine.own_memory(8192).unwrap();
    let at = buffers.kernel_address();
    let geometry = geometry();
    let setting = Setting {
        geometry: &geometry,
        slots: 6,
        clients: 2,
        arrival: Arrival::Flag,
        place: Place::Gpu,
        inputs: &[at],
        outputs: &[at + 4096],
        wait: Duration::from_secs(600),
        threads: 32,
        copying: [2, 32],
    };
    let mut served = Served::posted_by(posts, &machine, setting).unwrap();
    served.planted = planted.map(|name| (0, Source { twin: &PLANTED, ..launch::SOURCES[0] }, name));
    let ended = ends(&mut served);
    served
        .prepare_by_cpu(move || buffers.fill(0).map_err(|error| error.to_string()))
        .and_then(|()| served.start())
        .unwrap();
    let mut wakes = Wakes::default();
    for _ in 0..3 {
        assert!(ended.recv_timeout(Duration::from_millis(30)).is_err(), "an end that nothing has asked for");
        let since = Instant::now();
        served.mark_stop().unwrap();
        if ended.recv_timeout(limit).is_err() {
            served.stop(SOON).unwrap();
            return false;
        }
        wakes.took.push(since.elapsed());
        served.wait_end(SOON).unwrap();
        served.start().unwrap();
    }
    wakes.judge(&format!("answers posted by {posts:?}: a marked slot ends the chain"), WOKEN);
    served.stop(SOON).unwrap();
    true
}

#[test]
fn a_slot_that_the_host_marks_as_stop_ends_the_chain() {
    need!(has_compiler(), cc, "a C++ compiler");
    for posts in [Processor::Gpu, Processor::Cpu] {
        assert!(ends_at_a_mark(posts, None, SOON), "{posts:?}");
        let planted = Some("wait_inputs+DB_DEFECT_NO_MARK");
        assert!(
            !ends_at_a_mark(posts, planted, Duration::from_millis(200)),
            "{posts:?}: the defect is not seen"
        );
    }
}

/// Counts its runs; told by a word, it stores where there is no memory.
const COUNT: &str = "extern \"C\" __global__ void count_or_die(unsigned *words) {
    atomicAdd(&words[0], 1u);
    if (((volatile unsigned *)words)[1]) *(volatile unsigned *)16 = 1;
}
";

struct Count(Function, Memory, #[allow(dead_code, reason = "kept")] Memory);

// SAFETY: the kernel writes two words, which the value keeps; a store to no memory ends the context.
unsafe impl ::gpu::Recorded for Count {
    fn record(&self, stream: &Stream) -> ::gpu::Result<()> {
        let arguments = ::gpu::Arguments::new().u64(self.1.kernel_address());
        let shape = Shape { grid: [1, 1, 1], block: [1, 1, 1], shared_bytes: 0 };
        // SAFETY: as above.
        unsafe { stream.launch(&self.0, shape, &arguments) }
    }
}

/// A pipeline on the GPU whose idle waits end each millisecond, and the model's words.
fn counting(machine: &Machine, again: Repeat) -> (Served, HostMemory, Receiver<()>) {
    let words = machine.host_memory(4096).unwrap();
    let buffers = machine.own_memory(8192).unwrap();
    let at = buffers.kernel_address();
    let geometry = geometry();
    let setting = Setting {
        geometry: &geometry,
        slots: 64,
        clients: 2,
        arrival: Arrival::Flag,
        place: Place::Gpu,
        inputs: &[at],
        outputs: &[at + 4096],
        wait: Duration::from_millis(1),
        threads: 64,
        copying: [2, 64],
    };
    let mut served = Served::new(machine, setting).unwrap();
    let ended = ends(&mut served);
    let module = machine.module(&[Unit::new("count.cu", COUNT)]).unwrap();
    let function = module.function("count_or_die").unwrap();
    let model = Count(function, words.clone().into(), buffers);
    served.prepare_graph(again, Box::new(model)).and_then(|()| served.start()).unwrap();
    (served, words, ended)
}

#[test]
fn gpu_sleep_lasts_for_the_whole_chain_of_turns() {
    let machine = need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
    for again in [Repeat::Relaunch, Repeat::While] {
        let (mut served, words, ended) = counting(&machine, again);
        let runs = || words.words()[0].load(Ordering::Acquire);
        let since = Instant::now();
        while runs() < 100 {
            assert!(since.elapsed() < SOON, "{again:?}: {} turns", runs());
            assert!(ended.try_recv().is_err(), "{again:?}: an end is told after {} turns", runs());
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut wakes = [Wakes::default(), Wakes::default()];
        for marks in [false, true, false, true, false, true] {
            let since = Instant::now();
            if marks {
                served.mark_stop().unwrap()
            } else {
                served.cancel()
            }
            ended.recv_timeout(SOON).unwrap();
            wakes[usize::from(marks)].took.push(since.elapsed());
            // What was told is the end of all turns.
            let last = runs();
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(runs(), last, "{again:?}: a turn after the end");
            served.wait_end(SOON).unwrap();
            served.start().unwrap();
        }
        for (wakes, by) in wakes.into_iter().zip(["a stop request", "a marked slot"]) {
            wakes.judge(&format!("{again:?}: {by} ends the chain"), IN_TIME);
        }
        served.stop(SOON).unwrap();
    }
}

#[test]
fn gpu_destructive_illegal_address_of_a_model_ends_the_sleep_with_an_error() {
    let machine = need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
    let (mut served, words, ended) = counting(&machine, Repeat::Relaunch);
    let mut wakes = Wakes::default();
    assert!(ended.recv_timeout(Duration::from_millis(50)).is_err());
    let since = Instant::now();
    words.words()[1].store(1, Ordering::Release);
    ended.recv_timeout(SOON).unwrap();
    // It ends the context: there is one.
    wakes.took.push(since.elapsed());
    wakes.judge("an illegal address is told", WOKEN);
    let error = served.wait_end(SOON).unwrap_err();
    assert!(matches!(&error, ServedError::Gpu(error) if error.is_context_lost()), "{error}");
}
