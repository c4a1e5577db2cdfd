//! What a kernel's lane calls: the other side of `twin.h`, `struct` and number for number.
//!
//! A call does not return in an abandoned launch: the lane's stack is dropped where it is. So nothing here
//! owns anything while the lane waits.

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::block::Current;
use crate::memory::Kind;
use crate::site::{LaneAction, Site};
use crate::warp::Call;
use crate::worker::current;

/// As the CUDA C++ Programming Guide limits `__nanosleep`.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// The lane that calls, at that place of its source.
fn lane(what: LaneAction, file: *const c_char, line: c_int) -> Current {
    let lane = current().expect("a kernel's primitive was called outside a launch");
    // SAFETY: `__builtin_FILE()` is a literal.
    lane.note(unsafe { Site::new(what, file, line.unsigned_abs()) });
    lane
}

#[unsafe(no_mangle)]
extern "C" fn db_twin_store(
    address: u64,
    value: u64,
    bytes: u32,
    signal: u32,
    file: *const c_char,
    line: c_int,
) {
    let kind = if signal == 0 { Kind::Bytes } else { Kind::Signal };
    lane(LaneAction::Store, file, line).store(address, &value.to_le_bytes()[..bytes as usize], kind);
}

#[unsafe(no_mangle)]
extern "C" fn db_twin_load(address: u64, bytes: u32, file: *const c_char, line: c_int) -> u64 {
    let mut word = [0; 8];
    lane(LaneAction::Load, file, line).load(address, &mut word[..bytes as usize]);
    u64::from_le_bytes(word)
}

#[unsafe(no_mangle)]
extern "C" fn db_twin_atomic(
    operation: u32,
    address: u64,
    operand: u64,
    compared: u64,
    bytes: u32,
    file: *const c_char,
    line: c_int,
) -> u64 {
    // In the order of `enum db_twin_operation`.
    lane(LaneAction::Atomic, file, line).change(address, bytes as usize, |word| match operation {
        0 => word.wrapping_add(operand),
        1 => operand,
        2 if word == compared => operand,
        2 => word,
        3 => word & operand,
        4 => word | operand,
        _ => word ^ operand,
    })
}

#[unsafe(no_mangle)]
extern "C" fn db_twin_fence(scope: u32, file: *const c_char, line: c_int) {
    lane(LaneAction::Fence, file, line).fence(scope);
}

/// The value of lane `from`; votes in `votes`.
#[unsafe(no_mangle)]
unsafe extern "C" fn db_twin_warp(
    what: u32,
    mask: u32,
    value: u64,
    from: u32,
    votes: *mut u32,
    file: *const c_char,
    line: c_int,
) -> u64 {
    let what = LaneAction::of(what).unwrap_or(LaneAction::Start);
    let (all, value) = lane(what, file, line).warp(Call { what, mask, value }, from as usize);
    // SAFETY: `twin.h` passes a local.
    unsafe { votes.write(all) };
    value
}

/// What the block's lanes voted, added up.
#[unsafe(no_mangle)]
extern "C" fn db_twin_block(vote: u64, file: *const c_char, line: c_int) -> u64 {
    lane(LaneAction::SyncThreads, file, line).syncthreads(vote)
}

/// A shared variable's place.
#[unsafe(no_mangle)]
unsafe extern "C" fn db_twin_shared(
    tag: *const c_char,
    name: *const c_char,
    bytes: u64,
    align: u64,
    file: *const c_char,
    line: c_int,
) -> *mut u8 {
    // SAFETY: `twin.h` passes a literal in UTF-8, as C++ sources are.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("variable");
    lane(LaneAction::Start, file, line).variable(tag.addr(), name, bytes as usize, align as usize)
}

/// After many atomics in a row, where memory is direct: others may have to go on.
#[unsafe(no_mangle)]
extern "C" fn db_twin_others(file: *const c_char, line: c_int) {
    lane(LaneAction::Atomic, file, line).poll(true);
}

#[unsafe(no_mangle)]
extern "C" fn db_twin_pause(ns: u64, file: *const c_char, line: c_int) {
    let (lane, begun) = (lane(LaneAction::Time, file, line), Instant::now());
    lane.poll(ns > 0);
    while begun.elapsed() < Duration::from_nanos(ns).min(LONGEST_SLEEP) {
        lane.poll(true);
    }
}

/// Clock reads by kernels compiled to stop there (`DB_TWIN_GATED_CLOCK`): process-wide, so for one test.
#[derive(Debug)]
pub struct ClockGate {
    begun: AtomicU64,
    let_go: AtomicU64,
}

/// The one gate.
pub static GATE: ClockGate = ClockGate { begun: AtomicU64::new(0), let_go: AtomicU64::new(0) };

impl ClockGate {
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
extern "C" fn db_twin_gate(file: *const c_char, line: c_int) {
    let lane = lane(LaneAction::Time, file, line);
    let look = GATE.begun.fetch_add(1, Ordering::SeqCst) + 1;
    while GATE.let_go.load(Ordering::SeqCst) < look {
        lane.poll(true);
    }
}

/// Nanoseconds since the first look at it in this process.
#[unsafe(no_mangle)]
extern "C" fn db_twin_clock() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
