//! Stacks of lanes, and the switch between them: registers that a call preserves, and the stack pointer.
//!
//! After the System V ABI for x86-64, §3.2.1. Left out: other processors.
//! A stack ends in a guard page, and kernels are compiled to touch each page of their frames. So a kernel
//! with too large arrays ends the process at once.

use std::arch::naked_asm;
use std::io;
use std::sync::{LazyLock, Mutex, PoisonError};

/// A lane's stack, its last page included.
const STACK_BYTES: usize = 128 << 10;
const PAGE_BYTES: usize = 4096;
/// A stack and its guard page. With a power of two alone, all lanes' frames would share the same cache sets.
const STRIDE_BYTES: usize = STACK_BYTES + PAGE_BYTES;
/// By how much each lane's frames begin lower than those of the lane before, modulo a page.
const SHIFT_BYTES: usize = 320;

/// Stacks that launches have given back, for the next.
static SPARE: Mutex<Vec<Stacks>> = Mutex::new(Vec::new());
const MOST_SPARE: usize = 8;

/// Most lanes of a block that get stacks, if the environment sets it: a larger launch fails while the program
/// runs, as on a GPU that is out of memory.
static MOST_LANES: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(MOST_LANES_NAME).ok());
const MOST_LANES_NAME: &str = "DOORBELL_TWIN_LANES";

/// Error: the environment allows fewer lanes, or its text is no number.
fn check(lanes: usize, most: Option<&str>) -> io::Result<()> {
    let wrong = |why: &str| Err(io::Error::other(format!("{lanes} lanes, and {MOST_LANES_NAME} is {why}")));
    match most.map(|text| (text, text.parse::<usize>())) {
        Some((text, Ok(most))) if lanes > most => wrong(text),
        Some((text, Err(_))) => wrong(&format!("`{text}`, which is no number")),
        _ => Ok(()),
    }
}

/// Goes on where the stack `to` was left, and leaves the running one's pointer in `from`.
///
/// # Safety
/// `to` was left by this function, or made by [`Stacks::begin`]; nobody runs on it.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn switch(from: *mut *mut u8, to: *mut u8) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// What a new stack returns to: calls its entry with its argument, which never returns.
#[unsafe(naked)]
unsafe extern "C" fn first() {
    naked_asm!("mov rdi, r12", "call r13", "ud2")
}

/// Words that [`switch`] takes from a stack, the last first, with entry and argument for [`first`].
fn frame(entry: Entry, argument: *mut u8) -> [usize; 8] {
    let first = first as unsafe extern "C" fn() as usize;
    [0, 0, entry as usize, argument.expose_provenance(), 0, 0, first, 0]
}

/// What runs on a new stack. It never returns.
pub(crate) type Entry = unsafe extern "C" fn(*mut u8);

/// Stacks of a block's lanes.
#[derive(Debug)]
pub(crate) struct Stacks {
    base: *mut u8,
    lanes: usize,
}

// SAFETY: memory of the process; one thread at a time has it.
unsafe impl Send for Stacks {}

impl Stacks {
    /// At least so many, new ones or those that a launch gave back.
    pub(crate) fn take(lanes: usize) -> io::Result<Stacks> {
        check(lanes, MOST_LANES.as_deref())?;
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = spare.iter().position(|stacks| stacks.lanes >= lanes) {
            return Ok(spare.swap_remove(index));
        }
        drop(spare);
        Stacks::map(lanes.next_power_of_two())
    }

    /// For the next launch. No lane runs on them any more.
    pub(crate) fn give_back(self) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < MOST_SPARE {
            spare.push(self);
        }
    }

    fn map(lanes: usize) -> io::Result<Stacks> {
        let bytes = lanes * STRIDE_BYTES;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        // SAFETY: a new mapping, at no given address.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stacks = Stacks { base: base.cast(), lanes };
        for lane in 0..lanes {
            let guard = stacks.base.wrapping_add(lane * STRIDE_BYTES);
            // SAFETY: a page of the mapping that was just made.
            if unsafe { libc::mprotect(guard.cast(), PAGE_BYTES, libc::PROT_NONE) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(stacks)
    }

    /// A lane's stack on which `entry(argument)` is about to begin: what [`switch`] goes to.
    ///
    /// # Safety
    /// No thread runs on that lane's stack.
    pub(crate) unsafe fn begin(&self, lane: usize, entry: Entry, argument: *mut u8) -> *mut u8 {
        assert!(lane < self.lanes, "lane {lane} of {}", self.lanes);
        let top = (lane + 1) * STRIDE_BYTES - (lane * SHIFT_BYTES % PAGE_BYTES) / 16 * 16;
        let words = frame(entry, argument);
        // So that the stack pointer is a multiple of 16 when `first` begins.
        let start = self.base.wrapping_add(top - size_of_val(&words) - 8);
        // SAFETY: within the lane's stack, whose top this is, and aligned.
        unsafe { start.cast::<[usize; 8]>().write(words) };
        start
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        // SAFETY: our own mapping, on which nobody runs.
        unsafe { libc::munmap(self.base.cast(), self.lanes * STRIDE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_lanes_refuses_more_of_them_and_says_its_text() {
        for (most, words) in [
            (None, None),
            (Some("64"), None),
            (Some("63"), Some("64 lanes, and DOORBELL_TWIN_LANES is 63")),
            (Some("many"), Some("64 lanes, and DOORBELL_TWIN_LANES is `many`, which is no number")),
        ] {
            let said = check(64, most).err().map(|error| error.to_string());
            assert_eq!(said.as_deref(), words, "{most:?}");
        }
    }
}
