//! Guarded loads, stores and copies: assembly whose faults a signal handler turns into a returned value.
//!
//! Every routine is a leaf without a stack frame, and all lie between two labels. When SIGSEGV or SIGBUS
//! stops the processor there, the handler moves the instruction pointer to a landing pad that returns
//! "fault"; elsewhere it passes the signal to the handler before it. x86-64 System V only. An application
//! that later installs its own handler without chaining to this one removes the protection: a bad address
//! then ends the process, as it would in the application's own code (`docs/soft-nic.md`).

use core::arch::global_asm;
use std::sync::OnceLock;

use mlx5_device::memory::Fault;
use nix::errno::Errno;

use super::sanitizer;

// Two registers come back: rax = 1 on a fault, rdx = the value, or the faulting address.
//
// `softnic_guard_copy` stores in strictly increasing addresses and naturally aligned pieces: 1, 2, 4, 8 bytes
// until the destination is a multiple of 16, then 16 at a time (aligned 16-byte stores are single-copy atomic
// on every processor with AVX), then 8, 4, 2, 1. No byte is loaded twice, as memcpy's usual overlapping tail
// would (INV-6). No string instruction is used: its stores may be seen in any order (Intel SDM vol. 3 §9.2.4
// "Fast-String Operation"). Small messages' sizes come first: one aligned word (payload), and 64 bytes (WQE
// and CQE), whose last word is stored by itself, as `Host::write` wants it.
global_asm!(
    r#"
    .macro softnic_label name
    .globl  \name
    .hidden \name
\name:
    .endm

    .macro softnic_routine name
    .type   \name,@function
    softnic_label \name
    .endm

    # One piece of the copy where the destination's address, or what is left, has this bit.
    .macro softnic_piece bytes, part
    mov     \part, [rsi]
    mov     [rdi], \part
    add     rsi, \bytes
    add     rdi, \bytes
    .endm

    .macro softnic_head bytes, part
    test    dil, \bytes
    jz      1f
    cmp     rdx, \bytes
    jb      8f
    softnic_piece \bytes, \part
    sub     rdx, \bytes
1:
    .endm

    .macro softnic_tail bytes, part
    test    dl, \bytes
    jz      1f
    softnic_piece \bytes, \part
1:
    .endm

    .macro softnic_done
    xor     eax, eax
    ret
    .endm

    .pushsection .text.softnic_guard,"ax",@progbits
    .balign 64
    softnic_label softnic_guard_start

    softnic_routine softnic_guard_copy
    cmp     rdx, 8
    jne     14f
    test    dil, 7
    jnz     15f
    mov     rax, [rsi]
    mov     [rdi], rax
    softnic_done
14: cmp     rdx, 64
    jne     15f
    test    dil, 15
    jnz     15f
    movups  xmm0, [rsi]
    movups  xmm1, [rsi + 16]
    movups  xmm2, [rsi + 32]
    mov     rax, [rsi + 48]
    mov     rcx, [rsi + 56]
    movaps  [rdi], xmm0
    movaps  [rdi + 16], xmm1
    movaps  [rdi + 32], xmm2
    mov     [rdi + 48], rax
    mov     [rdi + 56], rcx
    softnic_done
15: softnic_head 1, al
    softnic_head 2, ax
    softnic_head 4, eax
    softnic_head 8, rax
    sub     rdx, 64
    jb      6f
    .balign 16
5:  movups  xmm0, [rsi]
    movups  xmm1, [rsi + 16]
    movups  xmm2, [rsi + 32]
    movups  xmm3, [rsi + 48]
    movaps  [rdi], xmm0
    movaps  [rdi + 16], xmm1
    movaps  [rdi + 32], xmm2
    movaps  [rdi + 48], xmm3
    add     rsi, 64
    add     rdi, 64
    sub     rdx, 64
    jae     5b
6:  add     rdx, 64
7:  cmp     rdx, 16
    jb      8f
    movups  xmm0, [rsi]
    movaps  [rdi], xmm0
    add     rsi, 16
    add     rdi, 16
    sub     rdx, 16
    jmp     7b
8:  softnic_tail 8, rax
    softnic_tail 4, eax
    softnic_tail 2, ax
    test    dl, 1
    jz      13f
    mov     al, [rsi]
    mov     [rdi], al
13: softnic_done

    softnic_routine softnic_guard_copy_relaxed
    mov     rcx, rdx
    rep     movsb
    softnic_done

    softnic_routine softnic_guard_load32
    mov     edx, [rdi]
    softnic_done

    softnic_routine softnic_guard_store
    cmp     edx, 4
    ja      3f
    je      2f
    cmp     edx, 2
    je      1f
    mov     [rdi], sil
    softnic_done
1:  mov     [rdi], si
    softnic_done
2:  mov     [rdi], esi
    softnic_done
3:  mov     [rdi], rsi
    softnic_done

    softnic_routine softnic_guard_compare_swap32
    mov     eax, esi
    lock cmpxchg [rdi], edx
    mov     edx, eax
    softnic_done

    softnic_routine softnic_guard_compare_swap64
    mov     rax, rsi
    lock cmpxchg [rdi], rdx
    mov     rdx, rax
    softnic_done

    softnic_routine softnic_guard_fetch_add64
    lock xadd [rdi], rsi
    mov     rdx, rsi
    softnic_done

    softnic_label softnic_guard_end
    softnic_label softnic_guard_landing
    mov     eax, 1
    ret
    .popsection
    "#
);

/// What is done atomically. Only the NIC does RDMA atomics, so both mover and copy engine keep them atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
    CompareSwap32 { compare: u32, swap: u32 },
}

impl Atomic {
    /// How many it changes.
    pub fn bytes(self) -> u64 {
        if matches!(self, Atomic::CompareSwap32 { .. }) { 4 } else { 8 }
    }

    /// What is stored where `old` stands; `None`: that stays.
    pub fn of(self, old: u64) -> Option<u64> {
        match self {
            Atomic::CompareSwap { compare, swap } => (old == compare).then_some(swap),
            Atomic::FetchAdd { add } => Some(old.wrapping_add(add)),
            Atomic::CompareSwap32 { compare, swap } => (old == u64::from(compare)).then_some(swap.into()),
        }
    }
}

/// What a guarded routine returns in rax and rdx.
#[repr(C)]
#[derive(Clone, Copy)]
struct Outcome {
    /// 1 when the access faulted.
    faulted: u64,
    /// The value loaded, or the address that faulted.
    value: u64,
}

impl Outcome {
    /// `addr`: start of the access, for faults whose address the processor does not tell (non-canonical).
    fn check(self, addr: u64) -> Result<u64, Fault> {
        if self.faulted == 0 {
            return Ok(self.value);
        }
        Err(Fault { addr: if self.value == 0 { addr } else { self.value } })
    }
}

unsafe extern "C" {
    static softnic_guard_start: u8;
    static softnic_guard_end: u8;
    static softnic_guard_landing: u8;
    fn softnic_guard_copy(to: u64, from: u64, len: u64) -> Outcome;
    fn softnic_guard_copy_relaxed(to: u64, from: u64, len: u64) -> Outcome;
    fn softnic_guard_load32(addr: u64) -> Outcome;
    fn softnic_guard_store(addr: u64, value: u64, size: usize) -> Outcome;
    fn softnic_guard_compare_swap32(addr: u64, compare: u64, swap: u64) -> Outcome;
    fn softnic_guard_compare_swap64(addr: u64, compare: u64, swap: u64) -> Outcome;
    fn softnic_guard_fetch_add64(addr: u64, add: u64) -> Outcome;
}

/// Relaxed copies are in order below this length: a string instruction starts slower than a short copy ends.
const STRING_BYTES: usize = 512;

/// The process's memory, as its CPUs reach it; proof that the handler is installed. Cheap to copy.
///
/// What is written to is application memory that the device checked against its regions, a shared ring, or
/// the NIC's own buffer: that is what a NIC is for. A wrong address is only caught when it is not mapped.
#[derive(Debug, Clone, Copy)]
pub struct CpuMemory(());

impl CpuMemory {
    /// Installs the handler for SIGSEGV and SIGBUS, once per process.
    ///
    /// Errors: what `sigaction` said.
    pub fn new() -> std::io::Result<CpuMemory> {
        static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();
        let installed = INSTALLED.get_or_init(|| {
            sanitizer::find();
            install_for(libc::SIGSEGV, &PREVIOUS_SEGV).and_then(|()| install_for(libc::SIGBUS, &PREVIOUS_BUS))
        });
        installed.map(|()| CpuMemory(())).map_err(std::io::Error::from)
    }

    /// Copies forward; `ordered`: stores in increasing addresses, else long ones by string instruction.
    #[inline(always)]
    pub(super) fn copy_bytes(self, to: u64, from: u64, len: usize, ordered: bool) -> Result<(), Fault> {
        sanitizer::copies(to, from, len);
        let outcome = if ordered || len < STRING_BYTES {
            // SAFETY: the routine keeps to the ABI and recovers from faults; `to` is what `CpuMemory` says.
            unsafe { softnic_guard_copy(to, from, len as u64) }
        } else {
            // SAFETY: as above.
            unsafe { softnic_guard_copy_relaxed(to, from, len as u64) }
        };
        outcome.check(to).map(|_| ())
    }

    /// One 32-bit acquire load (every x86 load is one).
    pub(super) fn load32(self, addr: u64) -> Result<u32, Fault> {
        // SAFETY: a guarded load changes nothing and recovers from faults.
        unsafe { softnic_guard_load32(addr) }.check(addr).map(|value| value as u32)
    }

    /// One release store (every x86 store is one) of the low `size` bytes: 1, 2, 4 or 8.
    #[inline(always)]
    pub(super) fn store(self, addr: u64, value: u64, size: usize) -> Result<(), Fault> {
        sanitizer::stores(addr, size);
        // SAFETY: as above.
        unsafe { softnic_guard_store(addr, value, size) }.check(addr).map(|_| ())
    }

    /// A locked operation; returns the old value.
    pub(super) fn atomic(self, addr: u64, operation: Atomic) -> Result<u64, Fault> {
        sanitizer::stores(addr, operation.bytes() as usize);
        let outcome = match operation {
            // SAFETY: as above.
            Atomic::CompareSwap32 { compare, swap } => unsafe {
                softnic_guard_compare_swap32(addr, compare.into(), swap.into())
            },
            // SAFETY: as above.
            Atomic::CompareSwap { compare, swap } => unsafe {
                softnic_guard_compare_swap64(addr, compare, swap)
            },
            // SAFETY: as above.
            Atomic::FetchAdd { add } => unsafe { softnic_guard_fetch_add64(addr, add) },
        };
        outcome.check(addr)
    }

    /// Copies a piece of a message; if `ordered` and `last`, the last word goes by a release store.
    #[inline(always)]
    pub(super) fn copy_piece(
        self,
        to: u64,
        from: u64,
        len: u64,
        ordered: bool,
        last: bool,
    ) -> Result<(), Fault> {
        if !(ordered && last) {
            return self.copy_bytes(to, from, len as usize, ordered);
        }
        if ends_with_its_last_word(to, len) {
            return self.copy_bytes(to, from, len as usize, true);
        }
        self.copy_then_word(to, from, len)
    }

    /// Copies all but the last word, and stores that by a release store.
    #[inline(never)]
    fn copy_then_word(self, to: u64, from: u64, len: u64) -> Result<(), Fault> {
        let word = last_word(to, len);
        self.copy_bytes(to, from, len as usize - word, true)?;
        let mut value = [0; 8];
        self.copy_bytes(value.as_mut_ptr() as u64, from + len - word as u64, word, true)?;
        self.store(to + len - word as u64, u64::from_le_bytes(value), word)
    }

    /// Stores the last `tail` bytes of a message of `len`, which lie at `word`, by a release store.
    pub(super) fn store_last(self, to: u64, len: u64, tail: u64, word: u64) -> Result<(), Fault> {
        if tail == 0 { Ok(()) } else { self.copy_piece(to + len - tail, word, tail, true, true) }
    }
}

/// Whether the guarded copy itself stores the last word last and whole (every x86 store is a release): one
/// word, and a CQE or a WQE.
pub(super) fn ends_with_its_last_word(to: u64, len: u64) -> bool {
    (len == 8 && to.is_multiple_of(8)) || (len == 64 && to.is_multiple_of(16))
}

/// Bytes of the last naturally aligned word (8, 4, 2 or 1) of `addr..addr + len`; `len` must not be 0.
pub(super) fn last_word(addr: u64, len: u64) -> usize {
    let end = addr.wrapping_add(len);
    1 << end.trailing_zeros().min(len.ilog2()).min(3)
}

/// The handler of SIGSEGV before ours. Written once, before our handler can run.
static PREVIOUS_SEGV: OnceLock<libc::sigaction> = OnceLock::new();
/// The handler of SIGBUS before ours.
static PREVIOUS_BUS: OnceLock<libc::sigaction> = OnceLock::new();

fn install_for(signal: i32, previous: &'static OnceLock<libc::sigaction>) -> Result<(), Errno> {
    // SAFETY: `sigaction` is plain old data, for which all zeroes is a value.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // Ask first, install second: the handler must not run before it knows the handler that it passes on to.
    // SAFETY: a null new action only asks; `old` lives through the call.
    if unsafe { libc::sigaction(signal, std::ptr::null(), &mut old) } != 0 {
        return Err(Errno::last());
    }
    let _ = previous.set(old);
    // SAFETY: as above.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = on_fault as *const () as usize;
    // ONSTACK: with a signal stack (Rust, Go), a stack overflow reaches the program's handler through this.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `ours` is complete (empty mask) and `on_fault` only does async-signal-safe work.
    if unsafe { libc::sigaction(signal, &ours, std::ptr::null_mut()) } != 0 {
        return Err(Errno::last());
    }
    Ok(())
}

/// The handler: recover a guarded access, or pass the signal on.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `ucontext_t` to a SA_SIGINFO handler; no other code uses it now.
    let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    let at = machine.gregs[libc::REG_RIP as usize] as usize;
    let guarded = (&raw const softnic_guard_start) as usize..(&raw const softnic_guard_end) as usize;
    // SAFETY: the kernel passes a valid `siginfo_t`, which stays until this handler returns.
    let siginfo = unsafe { &*info };
    let code = siginfo.si_code;
    // A positive code means that the processor raised it; `kill -SEGV` during a copy is not recovered.
    if guarded.contains(&at) && code > 0 {
        // SAFETY: for SIGSEGV and SIGBUS with a positive code `si_addr` is set.
        let addr = unsafe { siginfo.si_addr() };
        machine.gregs[libc::REG_RDX as usize] = addr as i64;
        machine.gregs[libc::REG_RIP as usize] = (&raw const softnic_guard_landing) as i64;
        return;
    }
    pass_on(signal, info, context, code);
}

/// Does what would have happened without us. Not copied: the previous handler's own mask and SA_RESETHAND.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void, code: i32) {
    let previous = if signal == libc::SIGBUS { PREVIOUS_BUS.get() } else { PREVIOUS_SEGV.get() };
    let (handler, flags) = previous.map_or((libc::SIG_DFL, 0), |p| (p.sa_sigaction, p.sa_flags));
    match handler {
        // The kernel does not let a program ignore a fault of its own, only a signal somebody sent.
        libc::SIG_IGN if code <= 0 => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: plain old data; zeroes mean SIG_DFL without flags.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: `default` is a complete action.
            unsafe { libc::sigaction(signal, &default, std::ptr::null_mut()) };
            if code <= 0 {
                // Nothing faults again on return, so raise it once more; it arrives when this handler ends.
                // SAFETY: raising a signal in the own thread touches no memory.
                unsafe { libc::raise(signal) };
            }
        }
        handler if flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: the program registered this address as a three-argument handler for this signal.
            let call = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            call(signal, info, context);
        }
        handler => {
            // SAFETY: the program registered this address as a one-argument handler for this signal.
            let call = unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(handler) };
            call(signal);
        }
    }
}
