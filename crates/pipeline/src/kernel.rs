//! The kernels of a pipeline and what they are told: `kernels/pipeline.h`. The host twin runs them here.

use std::sync::atomic::{AtomicU32, AtomicU64};

use host_twin::{Arguments, Launch, TwinError, run};
use rdma_shim::kernel::Source;

host_twin::include_kernels!("kernels");

/// The kernels that wait.
pub const SOURCE: Source = Source {
    name: "wait.cu",
    text: include_str!("../kernels/wait.cu"),
    headers: &[("pipeline.h", include_str!("../kernels/pipeline.h")), ("slots.h", slots::header::TEXT)],
    twin: &KERNELS,
};

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its time was over.
    None,
    /// A request is whole.
    Request,
    /// The host wants an end.
    Stop,
}

/// `struct db_turn`: the request that is served.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turn {
    state: u32,
    /// Of the request; otherwise that of the request before.
    pub slot: u32,
    pub sequence: u32,
    pad: u32,
}

impl Turn {
    /// Before the first request: the search begins at slot 0.
    pub fn first(slots: u32) -> Turn {
        Turn { slot: slots.saturating_sub(1), ..Turn::default() }
    }

    /// `None`: no state is known by that number.
    pub fn state(&self) -> Option<State> {
        match self.state {
            0 => Some(State::None),
            1 => Some(State::Request),
            2 => Some(State::Stop),
            _ => None,
        }
    }
}

/// `struct db_arrivals`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Told {
    flags: u64,
    stride: u64,
    sequences: u64,
    cancel: u64,
    wait_ns: u64,
    slots: u32,
    pad: u32,
}

/// Where requests arrive, as memory of this process.
#[derive(Debug)]
pub struct Arrivals<'a> {
    /// One for each slot, written by the NIC.
    pub flags: &'a [AtomicU64],
    /// Of each slot's last request.
    pub sequences: &'a [AtomicU32],
    /// Anything but 0 ends a wait that found nothing for 64 rounds.
    pub cancel: &'a AtomicU32,
    pub wait_ns: u64,
}

/// Which kernel waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// A block of so many threads looks at all slots side by side.
    Block(u32),
    /// One thread walks from slot to slot, as in the paper's release.
    OneThread,
}

/// Why nothing was waited for.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    #[error(
        "{flags} flags and sequences of {sequences} slots: there is one of each for a slot, and 1 slot at least"
    )]
    Slots { flags: usize, sequences: usize },
    #[error(transparent)]
    Twin(#[from] TwinError),
}

/// Waits once, by the host twin.
pub fn wait(
    arrivals: &Arrivals<'_>,
    turn: &mut Turn,
    waiting: Waiting,
    launch: Launch,
) -> Result<(), WaitError> {
    let name = if waiting == Waiting::OneThread { "wait_inputs_one" } else { "wait_inputs" };
    wait_by(KERNELS.find(name)?, arrivals, turn, waiting, launch)
}

fn wait_by(
    kernel: host_twin::Kernel,
    arrivals: &Arrivals<'_>,
    turn: &mut Turn,
    waiting: Waiting,
    launch: Launch,
) -> Result<(), WaitError> {
    let (flags, sequences) = (arrivals.flags.len(), arrivals.sequences.len());
    let slots = u32::try_from(flags).ok().filter(|slots| *slots > 0 && flags == sequences);
    let slots = slots.ok_or(WaitError::Slots { flags, sequences })?;
    let told = Told {
        flags: arrivals.flags.as_ptr().expose_provenance() as u64,
        stride: size_of::<u64>() as u64,
        sequences: arrivals.sequences.as_ptr().expose_provenance() as u64,
        cancel: std::ptr::from_ref(arrivals.cancel).expose_provenance() as u64,
        wait_ns: arrivals.wait_ns,
        slots,
        pad: 0,
    };
    let threads = if let Waiting::Block(threads) = waiting { threads } else { 1 };
    let launch = Launch { threads: threads.into(), ..launch };
    let arguments =
        Arguments::new().pointer(std::ptr::from_ref(&told).cast_mut()).pointer(std::ptr::from_mut(turn));
    // SAFETY: the kernel reads what it is told, a flag and a sequence for each slot, and the cancel word. It writes the turn and
    // sequences. All live until it has ended.
    unsafe { run(kernel, &launch, arguments) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use gpu::Toolkit;
    use host_twin::Visibility;
    use measure::need;
    use rdma_shim::testing::compile_everywhere;
    use slots::layout::{flag, next};

    use super::*;

    host_twin::include_kernels!("planted");

    const WAITINGS: [Waiting; 4] =
        [Waiting::OneThread, Waiting::Block(1), Waiting::Block(32), Waiting::Block(96)];

    struct Memory {
        flags: Vec<AtomicU64>,
        sequences: Vec<AtomicU32>,
        cancel: AtomicU32,
    }

    impl Memory {
        fn new(slots: u32) -> Memory {
            let flags = (0..slots).map(|_| AtomicU64::new(0)).collect();
            Memory {
                flags,
                sequences: (0..slots).map(|_| AtomicU32::new(0)).collect(),
                cancel: AtomicU32::new(0),
            }
        }

        fn arrivals(&self, wait_ns: u64) -> Arrivals<'_> {
            Arrivals { flags: &self.flags, sequences: &self.sequences, cancel: &self.cancel, wait_ns }
        }

        fn request(&self, slot: usize) {
            let sequence = next(self.sequences[slot].load(Ordering::Relaxed));
            self.flags[slot].store(flag(sequence), Ordering::Release);
        }
    }

    fn launch(seed: Option<u64>) -> Launch {
        let visibility = seed.map_or(Visibility::InOrder, |seed| Visibility::Weak { seed });
        Launch { visibility, ..Launch::new(1, 1) }
    }

    const LONG: u64 = u64::MAX;

    #[test]
    fn slots_have_their_turn() {
        for (waiting, seed) in
            WAITINGS.iter().flat_map(|waiting| [None, Some(7)].map(|seed| (*waiting, seed)))
        {
            let memory = Memory::new(70);
            let mut turn = Turn::first(70);
            [3, 68, 69, 0].iter().for_each(|slot| memory.request(*slot));
            let mut order = Vec::new();
            for again in [None, None, Some(0), None, None] {
                wait(&memory.arrivals(LONG), &mut turn, waiting, launch(seed)).unwrap();
                assert_eq!(turn.state(), Some(State::Request), "{waiting:?}");
                order.push((turn.slot, turn.sequence));
                if let Some(slot) = again {
                    memory.request(slot);
                }
            }
            assert_eq!(order, [(0, 1), (3, 1), (68, 1), (69, 1), (0, 2)], "{waiting:?}");
        }
    }

    #[test]
    fn a_flag_of_another_request_is_none() {
        for waiting in WAITINGS {
            let memory = Memory::new(5);
            let mut turn = Turn::first(5);
            memory.sequences[2].store(9, Ordering::Relaxed);
            for sequence in [9, 8, 11, 0] {
                memory.flags[2].store(flag(sequence), Ordering::Relaxed);
                wait(&memory.arrivals(200_000), &mut turn, waiting, launch(None)).unwrap();
                assert_eq!((turn.state(), turn.slot), (Some(State::None), 4), "{waiting:?} {sequence}");
            }
            memory.flags[2].store(u64::MAX, Ordering::Relaxed);
            wait(&memory.arrivals(200_000), &mut turn, waiting, launch(None)).unwrap();
            assert_eq!(turn.state(), Some(State::None), "{waiting:?}");
        }
    }

    #[test]
    fn a_wait_ends_by_a_request_that_comes_meanwhile_or_by_the_cancel_word() {
        for (waiting, is_request) in
            WAITINGS.iter().flat_map(|waiting| [false, true].map(|one| (*waiting, one)))
        {
            let memory = Memory::new(40);
            let mut turn = Turn::first(40);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(std::time::Duration::from_millis(3));
                    match is_request {
                        true => memory.request(17),
                        false => memory.cancel.store(1, Ordering::Release),
                    }
                });
                wait(&memory.arrivals(LONG), &mut turn, waiting, launch(None)).unwrap();
            });
            let wanted = if is_request { (State::Request, 17) } else { (State::Stop, 39) };
            assert_eq!((turn.state(), turn.slot), (Some(wanted.0), wanted.1), "{waiting:?}");
        }
    }

    #[test]
    fn memory_of_the_wrong_size_is_refused() {
        let (one, two) = (Memory::new(1), Memory::new(2));
        let wrong = Arrivals { sequences: &two.sequences, ..one.arrivals(0) };
        let none = Memory::new(0);
        for arrivals in [wrong, none.arrivals(0)] {
            let error = wait(&arrivals, &mut Turn::default(), Waiting::OneThread, launch(None)).unwrap_err();
            assert!(error.to_string().contains("one of each for a slot"), "{error}");
        }
    }

    #[test]
    fn every_kernel_compiles_and_links_for_every_architecture() {
        let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
        compile_everywhere(toolkit, &[SOURCE.unit()]);
    }

    /// What the tests above would see with a defect.
    #[test]
    fn a_planted_defect_is_seen() {
        let memory = Memory::new(4);
        let mut turn = Turn { slot: 1, ..Turn::default() };
        [0, 3].iter().for_each(|slot| memory.request(*slot));
        let planted = |name: &str| PLANTED.find(&format!("wait_inputs+{name}")).unwrap();
        let block = Waiting::Block(32);
        wait_by(planted("DB_DEFECT_FROM_SLOT_0"), &memory.arrivals(LONG), &mut turn, block, launch(None))
            .unwrap();
        assert_eq!(turn.slot, 0, "it is slot 3's turn");
        memory.flags[3].store(0, Ordering::Relaxed);
        wait_by(planted("DB_DEFECT_ANY_FLAG"), &memory.arrivals(LONG), &mut turn, block, launch(None))
            .unwrap();
        assert_eq!((turn.slot, turn.sequence), (0, 2), "its flag is that of the request before");
    }
}
