//! What needs a GPU. Each test says aloud when there is none: «one CUDA device (no CUDA driver: …)».
//!
//! What loses a context runs in a process of its own, this same program, so that the others keep theirs.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpu::cache::{Cache, Origin};
use gpu::{
    Arguments, CancelWord, DeviceMemory, End, Error, Form, Gpu, GpuTimer, Graph, How, ImageBuilder, Kind,
    Module, PinnedMemory, Priority, Registered, SelfLaunching, Shape, Staging, Stamp, Stamps, Stream,
    Toolkit, code,
};
use measure::need;

use crate::bench::{Bench, LIMIT, ONE, soon, units};
use crate::process;

/// Whole pages, as libmlx5 maps them.
struct Pages(NonNull<u8>, Layout);

impl Pages {
    fn new(count: usize) -> Pages {
        let layout = Layout::from_size_align(count * 4096, 4096).unwrap();
        // SAFETY: the layout has a size.
        Pages(NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap(), layout)
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.1.size());
        // SAFETY: inside the allocation.
        unsafe { self.0.add(offset) }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the allocation, aligned by the tests, and reached through atomics only.
        unsafe { self.at(offset).cast().as_ref() }
    }

    fn long_word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { self.at(offset).cast().as_ref() }
    }
}

// SAFETY: the bytes are reached through atomics only.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

#[test]
fn gpu_says_what_it_is() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let gpu = bench.context.gpu();
    println!(
        "TABLE {gpu}: {}, {}, {} at {}, {} multiprocessors, {} MiB, driver for CUDA {}, {:?}",
        gpu.name().unwrap(),
        gpu.arch().unwrap(),
        gpu,
        gpu.bus_id().unwrap(),
        gpu.multiprocessors().unwrap(),
        gpu.memory_bytes().unwrap() >> 20,
        gpu::driver_version().unwrap(),
        gpu.abilities().unwrap()
    );
    let error = Gpu::of_ordinal(99).unwrap_err().to_string();
    assert!(error.contains("GPU 99"), "{error}");
}

#[test]
fn gpu_memory_is_filled_written_and_read_within_its_bounds() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let (stream, memory) = (bench.stream(), DeviceMemory::new(&bench.context, 100_000).unwrap());
    // Smaller than what is copied, and no divisor of it.
    let between = PinnedMemory::new(&bench.context, 4097).unwrap();
    let way = Staging { stream: &stream, between: &between, limit: LIMIT };
    memory.fill(0xa5, &stream).unwrap();
    let text: Vec<u8> = b"doorbell".iter().copied().cycle().take(10_000).collect();
    memory.write(70_001, &text, way).unwrap();
    let mut found = vec![0; 100_000];
    memory.read(0, &mut found, way).unwrap();
    assert!(found[70_001..80_001] == text && found[70_000] == 0xa5 && found[80_001] == 0xa5);
    // Whole words and what is left of them, from every offset within a word.
    for offset in 0..9 {
        between.write(offset, &text[..29]).unwrap();
        let mut found = [0; 29];
        between.read(offset, &mut found).unwrap();
        assert_eq!(found, text[..29], "from {offset}");
        let seen = between.bytes().iter().map(|byte| byte.load(Ordering::Relaxed));
        assert!(seen.skip(offset).take(29).eq(text[..29].iter().copied()), "at {offset}");
    }
    for error in [
        memory.read(99_999, &mut [0; 2], way).unwrap_err(),
        memory.write(usize::MAX, b"x", way).unwrap_err(),
        DeviceMemory::new(&bench.context, 0).unwrap_err(),
        PinnedMemory::new(&bench.context, usize::MAX).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Refused(_)), "{error}");
    }
    let error = DeviceMemory::new(&bench.context, 1 << 50).unwrap_err();
    assert!(
        error.code() == Some(code::OUT_OF_MEMORY) && error.to_string().contains("1125899906842624 bytes"),
        "{error}"
    );
    assert!(!error.is_context_lost());
    drop(memory);
    assert_eq!(bench.kept(), 0);
}

#[test]
fn gpu_kernel_takes_its_arguments_and_no_others() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let (stream, pinned) = (bench.stream(), PinnedMemory::new(&bench.context, 64).unwrap());
    bench.launch(&stream, "add", Arguments::new().u64(pinned.device_address() + 8).u32(41)).unwrap();
    bench.launch(&stream, "add", Arguments::new().u64(pinned.device_address() + 8).u32(1)).unwrap();
    stream.wait("kernel `add`", LIMIT).unwrap();
    assert_eq!(pinned.words()[2].load(Ordering::Acquire), 42);
    for arguments in [Arguments::new(), Arguments::new().u32(1).u64(0), Arguments::new().u64(0).u32(0).u32(0)]
    {
        let error = bench.launch(&stream, "add", arguments).unwrap_err().to_string();
        assert!(error.contains("`add` takes parameters of [8, 4] bytes"), "{error}");
    }
    let error = bench.module.function("no_such_kernel").unwrap_err();
    assert!(error.code() == Some(code::NOT_FOUND) && error.to_string().contains("no_such_kernel"), "{error}");
    let function = bench.module.function("add").unwrap();
    let wide = Shape { block: [4096, 1, 1], ..ONE };
    // SAFETY: the shape is refused before anything runs.
    let error = unsafe { stream.launch(&function, wide, &Arguments::new().u64(0).u32(0)) }.unwrap_err();
    assert!(error.to_string().contains("4096"), "{error}");
    let (few, many) = (function.max_blocks(1024).unwrap(), function.max_blocks(32).unwrap());
    let each = bench.context.gpu().multiprocessors().unwrap();
    println!("TABLE side by side: {few} blocks of 1024 threads, {many} of 32, on {each} multiprocessors");
    assert!(few >= each && many > few && many.is_multiple_of(each), "{few} {many} {each}");
    assert_eq!(function.max_blocks(4096).unwrap(), 0);
}

#[test]
fn gpu_image_for_another_architecture_is_refused_by_name() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let other = if bench.image.arch.number == 100 { 90 } else { 100 };
    let builder = ImageBuilder::new(Toolkit::find(None).unwrap(), Cache::off());
    let image = builder.image(&units(), gpu::Arch::sm(other), Form::Cubin).unwrap();
    let error = Module::load(&bench.context, &image).unwrap_err().to_string();
    assert!(error.contains(&format!("an image for sm_{other} on a GPU of {}", bench.image.arch)), "{error}");
}

#[test]
fn gpu_kernel_that_does_not_end_is_given_up_and_ends_by_its_cancel_word() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let (stream, cancel) = (bench.stream(), CancelWord::new(&bench.context).unwrap());
    let alive = PinnedMemory::new(&bench.context, 64).unwrap();
    // All that is used below is made before: making it may wait for the device.
    let (other, in_use) = (bench.stream(), DeviceMemory::new(&bench.context, 4096).unwrap());
    let (add, pages) = (bench.module.function("add").unwrap(), Pages::new(1));
    // SAFETY: the page lives until all streams are idle.
    let registered = unsafe { Registered::new(&bench.context, pages.at(0), 64, Kind::Memory) }.unwrap();
    let arguments = Arguments::new().u64(cancel.device_address()).u64(alive.device_address());
    bench.launch(&stream, "spin", arguments).unwrap();
    let since = Instant::now();
    let error = stream.wait("kernel `spin`", Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }) && since.elapsed() < LIMIT, "{error}");
    soon("the kernel's word", || alive.words()[0].load(Ordering::Acquire) == 1);
    // What other streams do goes on meanwhile.
    // SAFETY: the word lives until all streams are idle.
    unsafe { other.launch(&add, ONE, &Arguments::new().u64(alive.device_address() + 4).u32(7)) }.unwrap();
    other.wait("kernel `add`", LIMIT).unwrap();
    assert_eq!(alive.words()[1].load(Ordering::Acquire), 7);
    // What is dropped now may be in use: it is set aside. Pages, unmapped next, are waited for a while.
    let since = Instant::now();
    drop((in_use, registered));
    assert!(since.elapsed() < LIMIT && bench.kept() == 2, "{:?}, {} kept", since.elapsed(), bench.kept());
    assert!(!bench.context.at_rest(Duration::ZERO));
    let since = Instant::now();
    cancel.cancel();
    stream.wait("kernel `spin`", LIMIT).unwrap();
    println!("TABLE a cancel word ends a kernel after {} us", since.elapsed().as_micros());
    assert!(bench.context.at_rest(LIMIT) && bench.kept() == 0, "{} kept", bench.kept());
}

#[test]
fn gpu_context_serves_threads_that_have_not_seen_it() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let (stream, pages) = (bench.stream(), Pages::new(1));
    // Each of these is the first call in its thread.
    type Call<'a> = (&'a str, &'a (dyn Fn() -> gpu::Result<()> + Sync));
    let calls: [Call<'_>; 8] = [
        ("stream", &|| Stream::new(&bench.context, Priority::Greatest).map(drop)),
        ("timer", &|| GpuTimer::new(&bench.context).map(drop)),
        ("device memory", &|| DeviceMemory::new(&bench.context, 64).map(drop)),
        ("pinned memory", &|| PinnedMemory::new(&bench.context, 64).map(drop)),
        ("module", &|| Module::load(&bench.context, &bench.image).map(drop)),
        ("function", &|| bench.module.function("add").map(drop)),
        // SAFETY: nothing is recorded.
        ("graph", &|| unsafe { Graph::capture(&stream, |_| Ok(())) }.map(drop)),
        ("state", &|| stream.is_idle().map(drop)),
    ];
    std::thread::scope(|scope| {
        for (name, call) in calls {
            scope.spawn(call).join().unwrap().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        // SAFETY: the page lives until the thread has ended, which drops the registration.
        let register = || unsafe { Registered::new(&bench.context, pages.at(0), 8, Kind::Memory) }.map(drop);
        scope.spawn(register).join().unwrap().unwrap();
    });
    assert_eq!(bench.kept(), 0);
}

#[test]
fn gpu_timer_runs_on_the_gpus_clock() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let (stream, mut timer) = (bench.stream(), GpuTimer::new(&bench.context).unwrap());
    let since = Instant::now();
    timer.begin(&stream).unwrap();
    bench.launch(&stream, "pass_time", Arguments::new().u64(3_000_000)).unwrap();
    timer.finish(&stream).unwrap();
    let elapsed = timer.elapsed(LIMIT).unwrap();
    let seen = since.elapsed() + Duration::from_micros(100);
    assert!(elapsed >= Duration::from_micros(2_900) && elapsed <= seen, "{elapsed:?} of {seen:?}");
    let never = GpuTimer::new(&bench.context).unwrap();
    assert!(never.elapsed(LIMIT).is_err());
}

#[test]
fn gpu_sees_records_that_share_a_page_and_a_ring_that_begins_inside_one() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let (stream, pages) = (bench.stream(), Pages::new(4));
    // Sends' and receives' records on page 0; the ring from there to page 2.
    let register = |offset, len| {
        // SAFETY: the pages live until the end of the test, where all streams are idle.
        unsafe { Registered::new(&bench.context, pages.at(offset), len, Kind::Memory) }.unwrap()
    };
    let before = gpu::registered_extents();
    let (first, second, ring) = (register(64, 8), register(128, 8), register(256, 9000));
    assert_eq!((first.how(), second.how().len(), ring.how().len()), (&[How::Memory][..], 1, 2));
    assert_eq!(gpu::registered_extents() - before, 2);
    drop(first);
    for (registered, offset, value) in [(&second, 128, 5), (&ring, 256, 6), (&ring, 256 + 8996, 7)] {
        let inside = registered.device_address() + if offset == 128 { 0 } else { offset as u64 - 256 };
        bench.launch(&stream, "add", Arguments::new().u64(inside).u32(value)).unwrap();
        stream.wait("kernel `add`", LIMIT).unwrap();
        assert_eq!(pages.word(offset).load(Ordering::Acquire), value);
    }
    drop((second, ring));
    assert_eq!(gpu::registered_extents(), before);
}

#[test]
fn gpu_rings_a_doorbell_page_registered_as_memory_after_a_refusal_as_registers() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let (stream, pages) = (bench.stream(), Pages::new(1));
    // SAFETY: the page lives until the end of the test, where all streams are idle.
    let doorbell = unsafe { Registered::new(&bench.context, pages.at(0x800), 8, Kind::Doorbell) }.unwrap();
    println!("TABLE a doorbell page that is memory: {:?}", doorbell.how());
    assert!(matches!(doorbell.how(), [How::MemoryAfter(_)]), "{:?}", doorbell.how());
    bench
        .launch(&stream, "ring", Arguments::new().u64(doorbell.device_address()).u64(0x0123_4567_89ab_cdef))
        .unwrap();
    stream.wait("kernel `ring`", LIMIT).unwrap();
    assert_eq!(pages.long_word(0x800).load(Ordering::Acquire), 0x0123_4567_89ab_cdef);
}

/// Two threads drop what they registered while a kernel runs. When it has ended, one of them frees for both,
/// and the other, which finds nothing to free, must not unmap its pages before.
#[test]
fn gpu_pages_are_given_back_before_any_thread_unmaps_them() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let (stream, cancel) = (bench.stream(), CancelWord::new(&bench.context).unwrap());
    let alive = PinnedMemory::new(&bench.context, 64).unwrap();
    let before = gpu::registered_extents();
    let owned = [0, 1].map(|_| {
        // SAFETY: a new mapping, not yet in use.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        let start = NonNull::new(start.cast::<u8>()).unwrap();
        // SAFETY: it is unmapped below, after the drop.
        let shown = unsafe { Registered::new(&bench.context, start, 4096, Kind::Memory) }.unwrap();
        (start.as_ptr().expose_provenance(), shown)
    });
    let arguments = Arguments::new().u64(cancel.device_address()).u64(alive.device_address());
    bench.launch(&stream, "spin", arguments).unwrap();
    soon("the kernel's word", || alive.words()[0].load(Ordering::Acquire) == 1);
    std::thread::scope(|scope| {
        for (start, shown) in owned {
            scope.spawn(move || {
                drop(shown);
                // SAFETY: mapped above, unregistered, and not in use.
                let unmapped = unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(start), 4096) };
                assert_eq!(unmapped, 0);
            });
        }
        // Both wait for the device by now.
        std::thread::sleep(Duration::from_millis(50));
        cancel.cancel();
    });
    assert_eq!(gpu::registered_extents(), before);
    stream.wait("kernel `spin`", LIMIT).unwrap();
}

#[test]
fn gpu_memory_for_a_nic_is_exported_as_a_dma_buf_of_its_own_pages() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    need!(
        bench.context.gpu().abilities().map(|can| can.dma_buf).unwrap_or(false),
        "export of dma-bufs by the driver"
    );
    let memory = DeviceMemory::for_export(&bench.context, 5000).unwrap();
    assert_eq!((memory.len(), memory.address() % 4096), (2 << 20, 0));
    let fd = memory.dma_buf().unwrap();
    let target =
        std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd))).unwrap();
    assert!(target.to_string_lossy().contains("dmabuf"), "{}", target.display());
    let odd = DeviceMemory::new(&bench.context, 5000).unwrap();
    assert!(odd.dma_buf().unwrap_err().to_string().contains("for_export"));
}

#[test]
fn gpu_captured_graph_launches_itself_until_its_limit() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let counter = PinnedMemory::new(&bench.context, 64).unwrap();
    let add =
        |stream: &Stream| bench.launch(stream, "add", Arguments::new().u64(counter.device_address()).u32(1));
    for turns in [1, 10, 10_000] {
        counter.words()[0].store(0, Ordering::Relaxed);
        // SAFETY: the counter lives until the graph has ended.
        let mut graph = unsafe { SelfLaunching::of_capture(&bench.module, turns, None, add) }.unwrap();
        let since = Instant::now();
        // SAFETY: as above.
        unsafe { graph.start() }.unwrap();
        assert_eq!(graph.wait(LIMIT).unwrap(), End::LimitReached);
        let us = since.elapsed().as_secs_f64() * 1e6 / f64::from(turns);
        println!("TABLE two kernels, {turns:5} turns: {us:7.2} us a turn");
        assert_eq!((graph.turns(), counter.words()[0].load(Ordering::Acquire)), (turns, turns));
    }
}

#[test]
fn gpu_captured_graph_launches_itself_until_it_is_cancelled_and_again() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let (memory, counter) =
        (DeviceMemory::new(&bench.context, 4096).unwrap(), PinnedMemory::new(&bench.context, 64).unwrap());
    let fill = |stream: &Stream| memory.fill(7, stream);
    let add = |stream: &Stream| {
        // A scan for idle streams meanwhile leaves this one alone.
        bench.context.at_rest(Duration::ZERO);
        bench.launch(stream, "add", Arguments::new().u64(counter.device_address()).u32(1))
    };
    let both = |stream: &Stream| fill(stream).and_then(|()| add(stream));
    // SAFETY: memory and module live until the graph has ended.
    let behind = unsafe { SelfLaunching::of_capture(&bench.module, 0, None, both) }.unwrap();
    // SAFETY: as above.
    let beside = unsafe { SelfLaunching::of_capture_beside(&bench.module, 0, None, fill, add) }.unwrap();
    for mut graph in [behind, beside] {
        for _ in 0..2 {
            counter.words()[0].store(0, Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { graph.start() }.unwrap();
            // SAFETY: it is refused.
            let error = unsafe { graph.start() }.unwrap_err().to_string();
            assert!(error.contains("still runs"), "{error}");
            soon("a hundred turns", || graph.turns() > 100);
            assert_eq!(graph.ended().unwrap(), None);
            for _ in 0..1000 {
                let (turns, added) = (graph.turns(), counter.words()[0].load(Ordering::Acquire));
                assert!(turns <= added, "{turns} turns have ended, in which {added} were added");
            }
            let since = Instant::now();
            graph.cancel();
            assert_eq!(graph.wait(LIMIT).unwrap(), End::Cancelled);
            println!(
                "TABLE cancelled after {} turns, seen in {} us",
                graph.turns(),
                since.elapsed().as_micros()
            );
            assert!(graph.turns() > 100, "{}", graph.turns());
            assert_eq!(
                graph.turns(),
                counter.words()[0].load(Ordering::Acquire),
                "turns, and what they added"
            );
        }
    }
    assert_eq!(bench.kept(), 0);
}

/// Runs of a graph that launches itself, stamped; a turn passes 20 µs.
struct Stamped {
    // Dropped first: it uses what follows.
    graph: SelfLaunching,
    stamps: Stamps,
}

impl Stamped {
    /// `beside`: what launches it again runs beside the kernel that passes time.
    fn new(bench: &Bench, kept: usize, turns: u32, beside: bool, way: Staging<'_>) -> Stamped {
        let stamps = Stamps::new(&bench.module, kept, way).unwrap();
        let record = |stream: &Stream| bench.launch(stream, "pass_time", Arguments::new().u64(20_000));
        let (module, some) = (&bench.module, Some(&stamps));
        let graph = if beside {
            // SAFETY: module and stamps live until the graph has ended.
            unsafe { SelfLaunching::of_capture_beside(module, turns, some, |_| Ok(()), record) }
        } else {
            // SAFETY: as above.
            unsafe { SelfLaunching::of_capture(module, turns, some, record) }
        };
        Stamped { graph: graph.unwrap(), stamps }
    }

    fn start(&mut self) {
        // SAFETY: as in `new`.
        unsafe { self.graph.start() }.unwrap();
    }
}

#[test]
fn gpu_stamps_tell_begin_and_end_of_the_last_runs_and_how_many_were_overwritten() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let (stream, between) = (bench.stream(), PinnedMemory::new(&bench.context, 100).unwrap());
    let way = Staging { stream: &stream, between: &between, limit: LIMIT };
    for beside in [false, true] {
        let mut stamped = Stamped::new(&bench, 13, 40, beside, way);
        stamped.start();
        assert_eq!(stamped.graph.wait(LIMIT).unwrap(), End::LimitReached);
        assert_eq!((stamped.stamps.runs(way).unwrap(), stamped.graph.turns()), (40, 40));
        // 16 are kept, from number 24 on.
        for (wanted, count, lost) in
            [(0..40, 16, 24), (30..1000, 10, 0), (20..26, 2, 4), (0..10, 0, 10), (40..50, 0, 0)]
        {
            let (stamps, overwritten) = stamped.stamps.read(wanted.clone(), way).unwrap();
            assert_eq!((stamps.len(), overwritten), (count, lost), "{wanted:?}");
            assert!(stamps.iter().all(|stamp| stamp.end_ns >= stamp.start_ns + 19_000), "{stamps:?}");
            assert!(stamps.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns), "{stamps:?}");
        }
        stamped.stamps.clear(way).unwrap();
        assert_eq!(stamped.stamps.read(0..40, way).unwrap(), (Vec::new(), 0));
    }
    let refused = Stamps::new(&bench.module, usize::MAX, way).unwrap_err();
    assert!(refused.to_string().contains("at most"), "{refused}");
}

#[test]
fn gpu_graphs_that_launch_themselves_run_at_the_same_time() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let (stream, between) = (bench.stream(), PinnedMemory::new(&bench.context, 4096).unwrap());
    let way = Staging { stream: &stream, between: &between, limit: LIMIT };
    let mut both = [false, true].map(|beside| Stamped::new(&bench, 1 << 16, 0, beside, way));
    both.iter_mut().for_each(Stamped::start);
    soon("fifty turns of each", || both.iter().all(|one| one.graph.turns() > 50));
    both.iter().for_each(|one| one.graph.cancel());
    let [one, two] = both.each_ref().map(|one| {
        assert_eq!(one.graph.wait(LIMIT).unwrap(), End::Cancelled);
        one.stamps.read(0..u64::MAX, way).unwrap().0
    });
    let meet = |one: &Stamp, two: &Stamp| one.start_ns < two.end_ns && two.start_ns < one.end_ns;
    let pairs = one.iter().filter(|one| two.iter().any(|two| meet(one, two))).count();
    println!("TABLE of {} and {} runs, {pairs} met one of the other graph's", one.len(), two.len());
    assert!(pairs > 0);
}

#[test]
fn gpu_graph_that_it_may_not_launch_is_refused_with_a_reason() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let stream = bench.stream();
    // SAFETY: nothing is recorded.
    let empty = unsafe { Graph::capture(&stream, |_| Ok(())) }.unwrap();
    let error = empty.instantiate().unwrap_err().to_string();
    assert!(error.contains("no kernel, copy or fill (0 nodes)"), "{error}");
    // Our rules cannot see that this memory is not pinned; the driver can.
    let pages = Pages::new(1);
    let memory = DeviceMemory::new(&bench.context, 4096).unwrap();
    let from = pages.at(0).as_ptr() as u64;
    // SAFETY: what is recorded is never launched.
    let record = |stream: &Stream| unsafe { stream.copy(memory.address(), from, 4096) };
    // SAFETY: as above.
    let graph = unsafe { Graph::capture(&stream, record) }.unwrap();
    println!("TABLE a copy of pageable memory: {:?}", graph.nodes().unwrap());
    let error = graph.instantiate().unwrap_err().to_string();
    println!("TABLE refused: {error}");
    assert!(error.contains("the driver does not let the GPU launch this graph of 1 nodes"), "{error}");
}

#[test]
fn gpu_capture_that_fails_leaves_its_stream_of_use() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let (stream, pinned) = (bench.stream(), PinnedMemory::new(&bench.context, 64).unwrap());
    // SAFETY: nothing is launched.
    let error =
        unsafe { Graph::capture(&stream, |_| Err(Error::Refused("changed my mind".into()))) }.unwrap_err();
    assert_eq!(error, Error::Refused("changed my mind".into()));
    bench.launch(&stream, "add", Arguments::new().u64(pinned.device_address()).u32(3)).unwrap();
    stream.wait("kernel `add`", LIMIT).unwrap();
    assert_eq!(pinned.words()[0].load(Ordering::Acquire), 3);
}

#[test]
fn gpu_module_is_loaded_in_a_second_and_from_disk_in_fifty_milliseconds() {
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    let folder = std::env::temp_dir().join(format!("gpu-first-{}", std::process::id()));
    let times = [Origin::Built, Origin::Cached].map(|origin| {
        let since = Instant::now();
        let builder = ImageBuilder::new(Toolkit::find(None).unwrap(), Cache::at(&folder));
        let image = builder.image(&units(), bench.image.arch, Form::Cubin).unwrap();
        assert_eq!(image.origin, origin);
        Module::load(&bench.context, &image).unwrap().function("add").unwrap();
        since.elapsed()
    });
    std::fs::remove_dir_all(&folder).unwrap();
    println!(
        "TABLE context to module: compiled {} ms, from disk {} ms",
        times[0].as_millis(),
        times[1].as_millis()
    );
    assert!(times[0] < Duration::from_secs(1) && times[1] < Duration::from_millis(50), "{times:?}");
}

/// The test below as a process of its own.
const STAGE: &str = "GPU_TEST_FAULT";

#[test]
fn gpu_illegal_address_loses_the_context_in_bounded_time_and_says_so() {
    let name = "device::gpu_illegal_address_loses_the_context_in_bounded_time_and_says_so";
    let bench = need!(Bench::new(), gpu, "one CUDA device");
    if std::env::var_os(STAGE).is_none() {
        let log = std::env::temp_dir().join(format!("gpu-fault-{}", std::process::id()));
        let set = |us: &mut Command| {
            us.env(STAGE, "1");
        };
        let (said, good) = process::us(&["--exact", name, "--nocapture"], set, &log, Duration::from_secs(60));
        std::fs::remove_file(&log).unwrap();
        assert!(good && said.contains("1 passed"), "{said}");
        return;
    }
    let since = Instant::now();
    let (stream, memory) = (bench.stream(), DeviceMemory::new(&bench.context, 4096).unwrap());
    bench.launch(&stream, "add", Arguments::new().u64(0x10).u32(1)).unwrap();
    let error = stream.wait("kernel `add`", LIMIT).unwrap_err();
    assert!(error.is_context_lost() && error.to_string().contains("its context is lost"), "{error}");
    // Whatever comes next says the same, and nothing hangs, dropping included.
    let next = DeviceMemory::new(&bench.context, 4096).unwrap_err();
    assert!(next.is_context_lost(), "{next}");
    drop(memory);
    drop(stream);
    assert!(bench.kept() >= 1 && since.elapsed() < LIMIT);
}
