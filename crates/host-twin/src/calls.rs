//! What a kernel's lane calls: the other side of `twin.h`, `struct` and number for number.
//!
//! Each call returns 0, or 1 when the launch was given up: the header then leaves the kernel by a jump, after the call has
//! returned, so that no frame of ours is passed.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::block::{Call, WARP};
use crate::direct::{self, Current};
use crate::host_memory::{HostMemory, change_word};
use crate::lane_set::LaneSet;
use crate::lanes::Lanes;
use crate::memory::{Kind, Memory, Scope, StoreBuffer};
use crate::random::SplitMix;
use crate::site::{Site, What};

/// Loads and looks at the clock in a row after which a lane is taken to poll: it then gives its core away, and after more
/// of them it sleeps. Some hundred lanes share a few cores.
const POLLS: u32 = 8;
const MANY_POLLS: u32 = 400;
const NAP: Duration = Duration::from_micros(20);

/// As the CUDA C++ Programming Guide limits `__nanosleep`.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// `enum db_twin_scope`.
const CTA: u32 = 1;
const GPU: u32 = 2;

/// A lane, for the calls of its thread.
pub(crate) struct Here {
    state: Arc<Lanes>,
    /// Numbered through the launch.
    lane: usize,
    random: RefCell<SplitMix>,
    polls: Cell<u32>,
}

thread_local! {
    static HERE: Cell<*const Here> = const { Cell::new(std::ptr::null()) };
}

impl Here {
    pub(crate) fn new(state: Arc<Lanes>, lane: usize, random: SplitMix) -> Here {
        Here { state, lane, random: RefCell::new(random), polls: Cell::new(0) }
    }

    /// Runs the lane's kernel on this thread.
    pub(crate) fn enter(&self, kernel: impl FnOnce() -> c_int) {
        HERE.set(std::ptr::from_ref(self));
        kernel();
        HERE.set(std::ptr::null());
    }

    fn block(&self) -> usize {
        self.lane / self.state.threads
    }

    fn thread(&self) -> usize {
        self.lane % self.state.threads
    }

    fn stores(&self) -> MutexGuard<'_, StoreBuffer> {
        self.state.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After a change of the buffer: how much waits, and whether its thread has to know.
    fn changed(&self, buffer: MutexGuard<'_, StoreBuffer>) {
        let before = self.state.waiting.swap(buffer.len(), Ordering::SeqCst);
        let wake = before == 0 && !buffer.is_empty();
        drop(buffer);
        if wake {
            self.state.stored.notify_one();
        }
    }

    /// Gives the core away where the seed says so: lanes are interrupted anywhere.
    fn interrupt(&self) {
        let choice = self.random.borrow_mut().below(256);
        if choice == 0 {
            std::thread::sleep(NAP);
        } else if choice < 24 {
            std::thread::yield_now();
        }
    }

    /// Likewise while the lane polls.
    fn poll(&self) {
        let polls = self.polls.get() + 1;
        self.polls.set(polls.min(MANY_POLLS));
        if polls >= MANY_POLLS {
            std::thread::sleep(NAP);
        } else if polls >= POLLS {
            std::thread::yield_now();
        }
    }

    fn store(&self, address: u64, bytes: &[u8], kind: Kind) {
        self.polls.set(0);
        let mut buffer = self.stores();
        let now_ns = self.state.now_ns();
        buffer.store(&mut HostMemory, self.lane, (address, bytes), kind, now_ns);
        buffer.tick(&mut HostMemory, now_ns);
        self.changed(buffer);
        self.interrupt();
    }

    fn load(&self, address: u64, out: &mut [u8]) {
        self.poll();
        if self.state.waiting.load(Ordering::SeqCst) == 0 {
            HostMemory.load(address, out);
        } else {
            self.stores().load(&HostMemory, self.lane, address, out);
        }
        self.interrupt();
    }

    fn fence(&self, scope: u32) {
        self.polls.set(0);
        let lanes = self.state.blocks.len() * self.state.threads;
        let first = self.block() * self.state.threads;
        let scope = match scope {
            CTA => Scope::Lanes((first..first + self.state.threads).collect()),
            GPU => Scope::Lanes(LaneSet::first(lanes)),
            _ => Scope::System,
        };
        let mut buffer = self.stores();
        buffer.fence(&mut HostMemory, self.lane, scope);
        self.changed(buffer);
        fence(Ordering::SeqCst);
        self.interrupt();
    }

    fn atomic(&self, address: u64, bytes: usize, change: impl Fn(u64) -> u64) -> u64 {
        // A lock's word is polled with atomics.
        self.poll();
        let mut buffer = self.stores();
        buffer.settle(&mut HostMemory, address, bytes);
        let old = change_word(address, bytes, change);
        self.changed(buffer);
        self.interrupt();
        old
    }

    /// Waits for the lanes that the mask names. None: the launch was given up.
    fn warp(&self, call: Call) -> Option<Box<[u64; WARP]>> {
        self.polls.set(0);
        self.interrupt();
        let (index, lane) = (self.block(), self.thread());
        let mut block = self.state.block(index);
        // Who cannot go on stays until the launch is given up.
        let let_go = block.arrive_at_warp(lane, call).unwrap_or_else(|fault| {
            self.state.control.fail(fault);
            Vec::new()
        });
        // Votes and shuffles order no memory.
        if call.site.what == What::SyncWarp {
            self.state.meet(index, &let_go);
        }
        drop(block);
        self.state.let_go(index, &let_go);
        self.released()
    }

    /// Waits for the lanes of the block.
    fn syncthreads(&self, site: Site, vote: u64) -> Option<Box<[u64; WARP]>> {
        self.polls.set(0);
        self.interrupt();
        let (index, lane) = (self.block(), self.thread());
        let mut block = self.state.block(index);
        // Who cannot go on stays until the launch is given up.
        let let_go = block.arrive_at_block(lane, site, vote).unwrap_or_else(|fault| {
            self.state.control.fail(fault);
            Vec::new()
        });
        self.state.meet(index, &let_go);
        drop(block);
        self.state.let_go(index, &let_go);
        self.released()
    }

    fn released(&self) -> Option<Box<[u64; WARP]>> {
        loop {
            if let Some(values) = self.state.block(self.block()).take(self.thread()) {
                self.interrupt();
                return Some(values);
            }
            if self.state.control.is_given_up() {
                return None;
            }
            std::thread::park();
        }
    }
}

/// Runs a call of the lane on this thread: 1 when it has to leave the kernel. `direct`: what it is where memory is direct, on
/// whose stacks nobody leaves: a lane that is not to go on does not.
fn call(
    what: u32,
    (file, line): (*const c_char, c_int),
    weak: impl FnOnce(&Here, Site) -> Option<()>,
    direct: impl FnOnce(Current, Site),
) -> c_int {
    // SAFETY: `__builtin_FILE()` is a literal.
    let site = unsafe { Site::new(What::of(what).unwrap_or(What::Start), file, line.unsigned_abs()) };
    if let Some(lane) = direct::current() {
        lane.note(site);
        direct(lane, site);
        return 0;
    }
    let here = HERE.get();
    assert!(!here.is_null(), "a kernel's primitive was called outside a launch");
    // SAFETY: `Here::enter` set it for as long as the kernel runs on this thread.
    let here = unsafe { &*here };
    here.state.note(here.lane, site);
    if here.state.control.is_given_up() || weak(here, site).is_none() {
        return 1;
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn db_twin_store(
    address: u64,
    value: u64,
    bytes: u32,
    signal: u32,
    file: *const c_char,
    line: c_int,
) -> c_int {
    let kind = if signal == 0 { Kind::Bytes } else { Kind::Signal };
    let value = value.to_le_bytes();
    let bytes = &value[..bytes as usize];
    let weak = |here: &Here, _| {
        here.store(address, bytes, kind);
        Some(())
    };
    call(What::Store as u32, (file, line), weak, |lane, _| {
        HostMemory.store(address, bytes);
        lane.act();
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn db_twin_load(
    address: u64,
    value: *mut u64,
    bytes: u32,
    file: *const c_char,
    line: c_int,
) -> c_int {
    let loaded = Cell::new([0; 8]);
    let load = |load: &dyn Fn(&mut [u8])| {
        let mut bytes_of_word = [0; 8];
        load(&mut bytes_of_word[..bytes as usize]);
        loaded.set(bytes_of_word);
    };
    let weak = |here: &Here, _| {
        load(&|out| here.load(address, out));
        Some(())
    };
    let left = call(What::Load as u32, (file, line), weak, |lane, _| {
        lane.poll(false);
        load(&|out| HostMemory.load(address, out));
    });
    // SAFETY: `twin.h` passes a local.
    unsafe { value.write(u64::from_le_bytes(loaded.get())) };
    left
}

#[unsafe(no_mangle)]
unsafe extern "C" fn db_twin_atomic(
    operation: u32,
    address: u64,
    operand: u64,
    compared: u64,
    old: *mut u64,
    bytes: u32,
    file: *const c_char,
    line: c_int,
) -> c_int {
    // In the order of `enum db_twin_operation`.
    let change = |word: u64| match operation {
        0 => word.wrapping_add(operand),
        1 => operand,
        2 if word == compared => operand,
        2 => word,
        3 => word & operand,
        4 => word | operand,
        _ => word ^ operand,
    };
    let was = Cell::new(0);
    let weak = |here: &Here, _| {
        was.set(here.atomic(address, bytes as usize, change));
        Some(())
    };
    let left = call(What::Atomic as u32, (file, line), weak, |lane, _| {
        lane.poll(false);
        was.set(change_word(address, bytes as usize, change));
    });
    // SAFETY: `twin.h` passes a local.
    unsafe { old.write(was.get()) };
    left
}

#[unsafe(no_mangle)]
extern "C" fn db_twin_fence(scope: u32, file: *const c_char, line: c_int) -> c_int {
    let weak = |here: &Here, _| {
        here.fence(scope);
        Some(())
    };
    call(What::Fence as u32, (file, line), weak, |lane, _| {
        fence(Ordering::SeqCst);
        lane.act();
    })
}

/// Votes, in `votes`, and the value of lane `from`.
#[unsafe(no_mangle)]
unsafe extern "C" fn db_twin_warp(
    what: u32,
    mask: u32,
    value: *mut u64,
    from: u32,
    votes: *mut u32,
    file: *const c_char,
    line: c_int,
) -> c_int {
    // SAFETY: `twin.h` passes a local.
    let (brought, met) = (unsafe { value.read() }, Cell::new((0, 0)));
    let weak = |here: &Here, site| {
        let gathered = here.warp(Call { site, mask, value: brought })?;
        let vote = |all: u32, lane: usize| all | u32::from(gathered[lane] != 0) << lane;
        met.set(((0..WARP).fold(0, vote), gathered[from as usize % WARP]));
        Some(())
    };
    let left = call(what, (file, line), weak, |lane, site| {
        met.set(lane.warp(site, mask, brought, from as usize));
    });
    // SAFETY: `twin.h` passes locals.
    unsafe { votes.write(met.get().0) };
    // SAFETY: as above.
    unsafe { value.write(met.get().1) };
    left
}

/// What the block's lanes voted, added up.
#[unsafe(no_mangle)]
unsafe extern "C" fn db_twin_block(vote: u64, all: *mut u64, file: *const c_char, line: c_int) -> c_int {
    let votes = Cell::new(0);
    let weak = |here: &Here, site| {
        votes.set(here.syncthreads(site, vote)?[0]);
        Some(())
    };
    let left = call(What::SyncThreads as u32, (file, line), weak, |lane, site| {
        votes.set(lane.syncthreads(site, vote))
    });
    // SAFETY: `twin.h` passes a local.
    unsafe { all.write(votes.get()) };
    left
}

/// A shared variable's place, in `place`.
#[unsafe(no_mangle)]
unsafe extern "C" fn db_twin_shared(
    tag: *const c_char,
    name: *const c_char,
    bytes: u64,
    align: u64,
    place: *mut *mut u8,
    file: *const c_char,
    line: c_int,
) -> c_int {
    // SAFETY: `twin.h` passes a literal.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let (tag, bytes, align) = (tag.addr(), bytes as usize, align as usize);
    let found = Cell::new(std::ptr::null_mut());
    let weak = |here: &Here, _| {
        found.set(here.state.variable(here.block(), tag, &name, bytes, align)?);
        Some(())
    };
    let left = call(What::Start as u32, (file, line), weak, |lane, _| {
        found.set(lane.variable(tag, &name, bytes, align));
    });
    // SAFETY: `twin.h` passes a local.
    unsafe { place.write(found.get()) };
    left
}

/// After many atomics in a row, where memory is direct: others may have to go on.
#[unsafe(no_mangle)]
extern "C" fn db_twin_others(file: *const c_char, line: c_int) -> c_int {
    call(What::Atomic as u32, (file, line), |_, _| Some(()), |lane, _| lane.poll(true))
}

#[unsafe(no_mangle)]
extern "C" fn db_twin_pause(ns: u64, file: *const c_char, line: c_int) -> c_int {
    let pause = Duration::from_nanos(ns).min(LONGEST_SLEEP);
    let weak = |here: &Here, _| {
        if ns > 0 {
            std::thread::sleep(pause);
        } else {
            here.poll();
        }
        Some(())
    };
    call(What::Time as u32, (file, line), weak, |lane, _| {
        let begun = Instant::now();
        lane.poll(ns > 0);
        while begun.elapsed() < pause {
            lane.poll(true);
        }
    })
}

/// Looks at the clock by kernels that were compiled to stop there (`DB_TWIN_GATED_CLOCK`): of the whole process, so for one test.
#[derive(Debug)]
pub struct Gate {
    begun: AtomicU64,
    let_go: AtomicU64,
}

/// The one gate.
pub static GATE: Gate = Gate { begun: AtomicU64::new(0), let_go: AtomicU64::new(0) };

impl Gate {
    /// How many looks have begun.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Lets so many, counted from the first, go on.
    pub fn let_go(&self, looks: u64) {
        self.let_go.store(looks, Ordering::SeqCst);
    }
}

#[unsafe(no_mangle)]
extern "C" fn db_twin_gate(file: *const c_char, line: c_int) -> c_int {
    let look = GATE.begun.fetch_add(1, Ordering::SeqCst) + 1;
    let is_shut = || GATE.let_go.load(Ordering::SeqCst) < look;
    let weak = |here: &Here, _| {
        while is_shut() {
            if here.state.control.is_given_up() {
                return None;
            }
            std::thread::sleep(NAP);
        }
        Some(())
    };
    let direct = |lane: Current, _| {
        while is_shut() {
            lane.poll(true);
        }
    };
    call(What::Time as u32, (file, line), weak, direct)
}

/// Nanoseconds since the first look at it in this process.
#[unsafe(no_mangle)]
extern "C" fn db_twin_clock() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
