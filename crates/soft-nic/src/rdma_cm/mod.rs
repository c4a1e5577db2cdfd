//! The kernel's side of `/dev/infiniband/rdma_cm`: the connection manager's commands, and its one thread.
//!
//! The unmodified librdmacm writes commands (`call`, `commands`), each about one of its ids (`ids`).
//! `connect` turns them into what [`roce::cm::Cm`] does, and its events into those of `GET_EVENT` (`queue`).
//! MADs come and go by a [`MadPort`](mad_port::MadPort). Commands run on the program's thread; from the
//! device's first open on, a thread, [`THREAD_NAME`], waits for MADs and time-outs. Nothing here needs the
//! NIC's lock. A port's IP address is configured: its GID on RoCE v2; on InfiniBand it leads to GID and LID.
//! Left out: multicast, InfiniBand's own addresses but the wildcard, ECE, ibacm's routes, IPoIB's interface.

mod address;
mod call;
mod commands;
mod connect;
mod ids;
mod mad_port;
mod query;
mod queue;
#[cfg(test)]
mod tests;

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mlx5_device::Answer;
use mlx5_device::command::refusal;
use mlx5_device::memory::Memory;
use mlx5_device::model::DeviceConfig;
use roce::Now;
use roce::wire::Gid;

use crate::abi::attributes::refuse;
use crate::abi::reasons::Reasons;
use crate::link::mads::MadRouter;
use crate::os::pipe::pipe_inode;
use crate::os::signals::spawn;
use crate::os::{locked, log_command, system};
pub use call::Call;
use call::CallContext;
pub use ids::CmTimeouts;
use ids::Ids;
use mad_port::{FabricMads, MadWaiter};
use queue::Queue;

pub const THREAD_NAME: &str = "softnic-cm";
/// Longest wait of that thread when nothing is due.
const IDLE: Duration = Duration::from_secs(60);

/// The connection manager of one process.
pub struct Manager {
    devices: Vec<DeviceConfig>,
    timeouts: CmTimeouts,
    router: MadRouter,
    memory: Box<dyn Memory + Sync>,
    reasons: Reasons,
    running: Mutex<Option<Arc<Running>>>,
}

/// What there is once a program has opened the device.
struct Running {
    ids: Mutex<Ids>,
    bell: MadWaiter,
    stop: AtomicBool,
}

fn now() -> Now {
    Now(system::monotonic_ns())
}

impl Running {
    fn ids(&self) -> Answer<MutexGuard<'_, Ids>> {
        self.ids
            .lock()
            .map_err(|_| refusal!(EIO, "the connection manager has stopped after an internal error"))
    }
}

impl Manager {
    /// A manager that no program has opened yet.
    pub fn new(
        devices: Vec<DeviceConfig>,
        timeouts: CmTimeouts,
        router: MadRouter,
        memory: Box<dyn Memory + Sync>,
        reasons: Reasons,
    ) -> Manager {
        Manager { devices, timeouts, router, memory, reasons, running: Mutex::new(None) }
    }

    /// A program opens the device: the number of the open file, and the descriptor that is the program's.
    ///
    /// Errors: the kernel's, when there is no descriptor, socket or thread.
    pub fn open(&self) -> Answer<(u32, RawFd)> {
        let kernel = |error: std::io::Error| {
            refuse(error.raw_os_error().unwrap_or(libc::EIO), format!("the connection manager: {error}"))
        };
        let (queue, fd) = Queue::new().map_err(kernel)?;
        let running = self.run().map_err(kernel)?;
        let number = running.ids()?.open(queue);
        Ok((number, fd))
    }

    fn run(&self) -> std::io::Result<Arc<Running>> {
        let mut place = locked(&self.running);
        if let Some(running) = &*place {
            return Ok(running.clone());
        }
        let addresses = self.devices.iter().flat_map(|device| device.gids.iter().map(|entry| Gid(entry.gid)));
        let (port, bell) = FabricMads::open(self.router.clone(), addresses.collect())?;
        // Ids and PSNs of processes that follow each other in a slot must differ.
        let seed =
            system::monotonic_ns().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(std::process::id()) << 32;
        let mut ids = Ids::new(self.devices.clone(), Box::new(port), self.router.slot(), seed);
        ids.timeouts = self.timeouts;
        ids.reasons = self.reasons.clone();
        let running = Arc::new(Running { ids: Mutex::new(ids), bell, stop: AtomicBool::new(false) });
        let threads = running.clone();
        spawn(THREAD_NAME, move || attend(&threads))?;
        *place = Some(running.clone());
        Ok(running)
    }

    fn running(&self) -> Answer<Arc<Running>> {
        let place = locked(&self.running);
        place.clone().ok_or_else(|| refusal!(EIO, "the connection manager was not opened"))
    }

    /// Whether this descriptor still is the pipe of that open file.
    pub fn is_file(&self, number: u32, fd: RawFd) -> bool {
        let inode = pipe_inode(fd);
        let known = self
            .running()
            .and_then(|running| Ok(running.ids()?.files.get(&number).map(|queue| queue.inode())));
        inode.is_some() && known.is_ok_and(|known| known == inode)
    }

    /// A program closed its last descriptor of this open file.
    pub fn close(&self, number: u32) {
        if let Ok(running) = self.running()
            && let Ok(mut ids) = running.ids()
        {
            ids.close(now(), number);
            ids.turn(now());
        }
    }

    /// Copies a command that a program writes.
    pub fn read(&self, address: u64, len: usize) -> Answer<Call> {
        Call::read(&*self.memory, address, len)
    }

    /// Runs a command but GET_EVENT. `file_of` says which open file a descriptor is.
    pub fn run_call(&self, number: u32, call: &Call, file_of: &dyn Fn(i32) -> Option<u32>) -> Answer<()> {
        self.with(number, call, file_of, |ids, context| commands::run(call, ids, context))
    }

    /// Answers GET_EVENT, after its byte was read; false: there is no event any more.
    pub fn get_event(&self, number: u32, call: &Call) -> Answer<bool> {
        self.with(number, call, &|_| None, |ids, context| call.get_event(ids, context))
    }

    fn with<T: std::fmt::Debug>(
        &self,
        file: u32,
        call: &Call,
        file_of: &dyn Fn(i32) -> Option<u32>,
        run: impl FnOnce(&mut Ids, &CallContext<'_>) -> Answer<T>,
    ) -> Answer<T> {
        let running = self.running()?;
        let mut ids = running.ids()?;
        let before = ids.cm.poll_timeout();
        let context = CallContext { memory: &*self.memory, now: now(), file, file_of };
        let answer = run(&mut ids, &context);
        let next = ids.turn(context.now);
        drop(ids);
        if next.is_some_and(|next| before.is_none_or(|before| next < before)) {
            // The thread waits for something later.
            running.bell.ring();
        }
        if let Err(error) = &answer {
            self.reasons.note_refused(&format!("rdma_cm {}", call.name), error);
        }
        log_command(|| {
            let outcome = answer.as_ref().map_or_else(ToString::to_string, |answer| format!("{answer:?}"));
            format!("rdma_cm {} -> {outcome}", call.name)
        });
        answer
    }

    /// The program ends: tells its peers so, once.
    pub fn end(&self) {
        let Ok(running) = self.running() else { return };
        running.stop.store(true, Ordering::Release);
        running.bell.ring();
        // Another thread may hold the lock for ever: one that was stopped in a command by what ends us.
        if let Ok(mut ids) = running.ids.try_lock() {
            // The files stay: a thread that waits for an event goes on waiting, until the process is no more.
            let all: Vec<u32> = ids.ids.keys().copied().collect();
            for id in all {
                ids.destroy(now(), id);
            }
            ids.turn(now());
        }
    }

    /// Counters, by the names of the stats line.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        // Not a wait: this is asked when a program ends, whatever its threads hold.
        let counted =
            self.running().ok().and_then(|running| Some(running.ids.try_lock().ok()?.cm.counters()));
        counted.unwrap_or_default().fields()
    }
}

/// The thread: waits for MADs and for what is due.
fn attend(running: &Running) {
    while !running.stop.load(Ordering::Acquire) {
        let Ok(mut ids) = running.ids() else { return };
        let at = now();
        let next = ids.turn(at);
        drop(ids);
        let max = next.map_or(IDLE, |next| Duration::from_nanos(next.0.saturating_sub(at.0)).min(IDLE));
        running.bell.wait(max);
    }
}
