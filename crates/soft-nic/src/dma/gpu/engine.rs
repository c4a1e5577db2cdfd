//! What the NIC's threads have of each GPU and do there: copies by the copy engine, launches of the mover.
//!
//! Copies use the NIC's own context. A program's call that waits for a kernel may hold the lock of the
//! program's context while that kernel waits for a message. A copy waiting for this lock could be neither
//! cancelled nor left to end. Kernels run in the program's context: two contexts have the GPU in turns.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use gpu::{
    Allocation, Arguments, Context, Function, Gpu, How, Kind, Module, PinnedMemory, Priority, Registered,
    Shape, Stream,
};

use super::mover::{ASSEMBLY, IDLE_NS, LIFE_NS, MAIL_BYTES, THREADS};
use super::worker::{JobState, Worker};

/// The longest that a copy, or a wait of the driver's, may take.
pub const LIMIT: Duration = Duration::from_secs(2);

/// Bytes of each half of the staging memory, between the GPU and pages that it does not see.
pub const HALF: usize = 256 << 10;

/// One copy: both sides as addresses of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    pub to: u64,
    pub from: u64,
    pub len: u64,
    /// How many of them, at the end, go after all others. Towards the host they go to [`Self::tail_to`]
    /// beside the others, and the NIC stores them from there: that costs no extra time.
    pub tail: u64,
    pub tail_to: u64,
    /// Which side is a GPU's.
    pub way: Way,
}

impl Copy {
    /// A copy in any order.
    pub fn new(way: Way, to: u64, from: u64, len: u64) -> Copy {
        Copy { to, from, len, tail: 0, tail_to: 0, way }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Out of a GPU into pages that it sees.
    ToHost,
    FromHost,
    /// From a GPU's memory to a GPU's.
    OnDevice,
}

/// A copy from the host below this length is made of rows: [`Stream::copy_rows_from_host`] does not wait for
/// kernels of other processes (H200, kernels of two: 64 bytes 10 µs, in one piece 4.5 ms).
const ROWS_BELOW: u64 = 64 << 10;

/// Two rows of `width` bytes, the first at `at`, the second `pitch` bytes behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rows {
    at: u64,
    width: u64,
    pitch: u64,
}

/// All `len` bytes in rows, some twice: rows that touch would be copied as one piece. `None`: too few bytes.
fn rows_of(len: u64) -> Option<[Rows; 2]> {
    let pitch = len / 2;
    let width = (len - pitch).div_ceil(2);
    let second = Rows { at: (len - pitch).saturating_sub(width), width, pitch };
    (width < pitch).then_some([Rows { at: 0, ..second }, second])
}

/// The last `tail` bytes of `len` as a row of their own, behind a row that has been copied before.
fn last_row(len: u64, tail: u64) -> Option<Rows> {
    Some(Rows { at: len.checked_sub(3 * tail)?, width: tail, pitch: 2 * tail })
}

/// Bytes beside the halves that the mover has for itself.
const SHORT_BYTES: usize = 64 << 10;

/// What the NIC's side gets of a GPU.
#[derive(Debug, Clone)]
pub struct Shared {
    /// Where commands are left for the mover.
    pub mail: Arc<PinnedMemory>,
    /// The driver's number of that.
    mail_id: Option<u64>,
    /// On the way: two halves, and what the mover reads and writes.
    stage: Arc<PinnedMemory>,
    /// Why there is no mover; the copy engine does all then.
    pub no_mover: Option<String>,
}

impl Shared {
    pub fn is_same(&self, other: &Shared) -> bool {
        Arc::ptr_eq(&self.mail, &other.mail)
    }

    /// Whether all that was made in the context still exists: a reset of the GPU also frees the NIC's memory
    /// and streams, and none of them may be touched after that.
    pub fn is_there(&self) -> bool {
        Allocation::id_at(self.mail.address().as_ptr() as u64) == self.mail_id
    }

    fn check(&self) -> Result<(), gpu::Error> {
        if self.is_there() { Ok(()) } else { Err(refused("the program has reset the GPU")) }
    }

    /// Where the NIC finds one of the halves.
    pub fn half(&self, index: usize) -> u64 {
        self.stage.address().as_ptr() as u64 + (index * HALF) as u64
    }

    /// What the mover reads and writes, apart from timed-out copies that may still be executed.
    pub fn short(&self) -> u64 {
        self.half(2)
    }
}

/// What a thread has of each GPU that this process has regions in, by CUDA's number.
pub type Cards<T> = BTreeMap<u32, T>;

pub fn on_card<T>(cards: &mut Cards<T>, ordinal: u32) -> Result<&mut T, gpu::Error> {
    cards.get_mut(&ordinal).ok_or_else(|| refused(&format!("GPU {ordinal} is gone")))
}

fn refused(why: &str) -> gpu::Error {
    gpu::Error::Refused(why.to_owned())
}

/// One GPU's copy engine, for the thread that copies.
pub struct CopyEngine {
    copies: Stream,
    tails: Stream,
    /// What the NIC's side gets of it.
    pub shared: Shared,
    /// The last copy did not end well.
    failed: bool,
}

/// What launches need of a GPU.
pub struct Kernels {
    mover: Option<(Stream, Function)>,
    shared: Shared,
}

/// Takes a share in the GPU's primary context, makes the NIC's own, and in both all that is needed, before a
/// kernel may keep the driver from it.
pub fn open(gpu: Gpu) -> Result<(Context, CopyEngine, Kernels), gpu::Error> {
    let context = Context::new(gpu)?;
    let mail = Arc::new(PinnedMemory::new(&context, MAIL_BYTES)?);
    let mover = Module::from_assembly(&context, ASSEMBLY)
        .and_then(|module| module.function("softnic_mover"))
        .and_then(|function| Ok((Stream::new(&context, Priority::Greatest)?, function)));
    let (mover, no_mover) = match mover {
        Ok(mover) => (Some(mover), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let own = Context::beside(gpu)?;
    let copies = Stream::new(&own, Priority::Greatest)?;
    let tails = Stream::new(&own, Priority::Greatest)?;
    let stage = Arc::new(PinnedMemory::new(&own, 2 * HALF + SHORT_BYTES)?);
    let mail_id = Allocation::id_at(mail.address().as_ptr() as u64);
    let shared = Shared { mail, mail_id, stage, no_mover };
    let kernels = Kernels { mover, shared: shared.clone() };
    Ok((context, CopyEngine { copies, tails, shared, failed: false }, kernels))
}

impl CopyEngine {
    /// An error when the GPU's context is lost, or was reset by the program.
    pub fn state(&self) -> Result<(), gpu::Error> {
        self.shared.check()?;
        self.copies.is_idle().map(drop)
    }

    /// Whether all copies have ended. Error: the context is lost.
    pub fn is_idle(&self) -> Result<bool, gpu::Error> {
        // What was made in a context goes when that is reset, streams too.
        Ok(!self.shared.is_there() || self.copies.is_idle()? && self.tails.is_idle()?)
    }

    /// Copies by the copy engine and waits for the end, unless the copy is cancelled.
    pub fn copy(&mut self, copy: Copy, job: &JobState) -> Result<(), gpu::Error> {
        // What did not end in its time still may.
        if self.failed && !self.is_idle()? {
            return Err(refused("an earlier copy has not ended"));
        }
        let begin = || if job.begin() { Ok(()) } else { Err(refused("it was cancelled")) };
        begin()?;
        self.shared.check()?;
        self.failed = true;
        let (copies, tails) = (&self.copies, &self.tails);
        let body = copy.len - copy.tail;
        let beside = copy.way == Way::ToHost;
        let (tail_by, tail_to) = if beside { (tails, copy.tail_to) } else { (copies, copy.to + body) };
        for (stream, to, offset, bytes) in [(copies, copy.to, 0, body), (tail_by, tail_to, body, copy.tail)] {
            if bytes == 0 {
                continue;
            }
            // The call before may have blocked for longer than the NIC waits.
            begin()?;
            let by_rows = match (offset, copy.way) {
                (0, Way::FromHost) if bytes < ROWS_BELOW => rows_of(bytes).map(Vec::from),
                (_, Way::FromHost) if offset > 0 => last_row(copy.len, bytes).map(|row| vec![row]),
                _ => None,
            };
            if let Some(rows) = by_rows {
                for Rows { at, width, pitch } in rows {
                    begin()?;
                    let (to, from) = (copy.to + at, copy.from + at);
                    // SAFETY: as below; all rows lie in the copy.
                    unsafe { copies.copy_rows_from_host(to, from, width as usize, pitch as usize) }?;
                }
                continue;
            }
            let (from, bytes) = (copy.from + offset, bytes as usize);
            match copy.way {
                // SAFETY: a region's memory or NIC pages; the driver refuses what is no GPU's (any more).
                // Deregistering waits for the end, after a timeout until twice `LIMIT` later; then nothing
                // keeps this from what lies there (`docs/soft-nic.md`). A ring stays mapped until the end.
                Way::ToHost => unsafe { stream.copy_to_host(to, from, bytes) },
                // SAFETY: as above.
                Way::FromHost => unsafe { stream.copy_from_host(to, from, bytes) },
                // SAFETY: as above.
                Way::OnDevice => unsafe { stream.copy_on_device(to, from, bytes) },
            }?;
        }
        copies.wait("a copy", LIMIT)?;
        if beside && copy.tail > 0 {
            tails.wait("a copy", LIMIT)?;
        }
        self.failed = false;
        Ok(())
    }
}

impl Kernels {
    /// Puts a mover on the GPU; whether it runs says its own word.
    pub fn launch(&self, done: u32, instance: u32, blocks: u32) -> Result<(), gpu::Error> {
        // Asked before a stream is used: a reset of the GPU frees those too.
        self.shared.check()?;
        let Some((stream, function)) = &self.mover else { return Err(refused("no mover on this GPU")) };
        let arguments = Arguments::new()
            .u64(self.shared.mail.device_address())
            .u32(done)
            .u32(instance)
            .u32(IDLE_NS)
            .u32(LIFE_NS);
        let shape = Shape { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 };
        // SAFETY: it keeps to its mail, and to what commands name: regions' memory, and the NIC's own.
        unsafe { stream.launch(function, shape, &arguments) }
    }

    /// Whether no mover runs, as its stream says: an error when its context is lost.
    pub fn is_idle(&self) -> Result<bool, gpu::Error> {
        match &self.mover {
            Some((stream, _)) if self.shared.is_there() => stream.is_idle(),
            _ => Ok(true),
        }
    }
}

/// The contexts of all GPUs that this process has had regions in. The driver takes long to make one and to
/// register pages: a separate thread does both, so that no copy waits behind it.
#[derive(Default)]
pub struct GpuContexts {
    cards: BTreeMap<u32, (Context, Shared)>,
}

impl GpuContexts {
    /// Makes what the NIC needs of a GPU, the first time; the threads that copy and launch have it then.
    ///
    /// Errors: the driver's; the context that all was made in is lost, or the program has reset it.
    pub fn open(
        &mut self,
        gpu: Gpu,
        copies: &Worker<Cards<CopyEngine>>,
        launches: &Worker<Cards<Kernels>>,
    ) -> Result<(Context, Shared), gpu::Error> {
        let ordinal = gpu.ordinal();
        if let Some((context, shared)) = self.cards.get(&ordinal) {
            let refused = |why: &str| {
                let sentence = "a process that is to register memory there begins anew";
                Err(gpu::Error::Refused(format!("GPU {ordinal}: {why}: {sentence}")))
            };
            if !shared.is_there() {
                return refused("the program has reset it, and the NIC's part of it is gone");
            }
            return match copies.post(move |cards, _| on_card(cards, ordinal)?.state()).wait(LIMIT) {
                Some(Err(error)) => refused(&format!("the NIC's context there is lost ({error})")),
                // While the driver does not answer, nothing says that it is.
                _ => Ok((context.clone(), shared.clone())),
            };
        }
        let (context, engine, kernels) = open(gpu)?;
        let shared = engine.shared.clone();
        // Before whatever is copied: jobs are done in their order.
        copies.post(move |cards, _| _ = cards.insert(ordinal, engine));
        launches.post(move |cards, _| _ = cards.insert(ordinal, kernels));
        self.cards.insert(ordinal, (context.clone(), shared.clone()));
        Ok((context, shared))
    }

    /// Lets every GPU see pages of the host. Returns too whether the NIC may use that: not where the program
    /// registered some and may unregister them, nor where they are several runs: no engine copy may use two.
    pub fn register(&mut self, ordinal: u32, start: u64, len: u64) -> Result<(Registered, bool), gpu::Error> {
        let refused = |why: &str| gpu::Error::Refused(why.to_owned());
        let (context, _) = self.cards.get(&ordinal).ok_or_else(|| refused("this GPU is gone"))?;
        let first = NonNull::new(std::ptr::with_exposed_provenance_mut(start as usize));
        let first = first.ok_or_else(|| refused("no memory"))?;
        // SAFETY: a program's region stays until deregistered, where this registration ends as soon as the
        // driver lets it, and nothing of the NIC's uses it from then on; a NIC ring stays until then.
        let registered = unsafe { Registered::new(context, first, len as usize, Kind::Memory) }?;
        let usable = registered.how() == [How::Memory] && registered.device_address() == start;
        Ok((registered, usable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_every_byte_of_a_copy_lie_apart_and_stay_inside() {
        for len in (0..300).chain([4095, 65_535]) {
            let Some(rows) = rows_of(len) else {
                assert!([0, 1, 2, 3, 5].contains(&len), "{len}");
                continue;
            };
            let mut held = vec![false; len as usize];
            for Rows { at, width, pitch } in rows {
                assert!(width > 0 && pitch > width, "{len}: rows that touch are one piece");
                for row in [at, at + pitch] {
                    held[row as usize..(row + width) as usize].fill(true);
                }
            }
            assert!(held.iter().all(|held| *held), "{len}: {rows:?}");
        }
        for (len, tail, row) in
            [(64, 8, Some((40, 8, 16))), (24, 8, Some((0, 8, 16))), (23, 8, None), (3, 1, Some((0, 1, 2)))]
        {
            assert_eq!(last_row(len, tail).map(|row| (row.at, row.width, row.pitch)), row, "{len}");
        }
    }
}
