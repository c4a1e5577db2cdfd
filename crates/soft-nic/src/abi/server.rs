//! What all commands of one process share: the NIC behind its lock, open files, ports, pages, events.
//!
//! Lock order: the open file, then the NIC, then the event pipes.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use mlx5_device::command::{ContextId, refusal};
use mlx5_device::memory::Memory;
use mlx5_device::model::DeviceConfig;
use mlx5_device::{Answer, Commands};

use super::attributes::Command;
use super::backing::Backing;
use super::clock::Clock;
use super::events::Events;
use super::layout::Reader;
use crate::config::Config;
use crate::dma::dma_buf::{Recognise, is_dma_buf};
use crate::os::{DevicePages, locked};
use crate::sysfs::Machine;

#[derive(Debug, Default)]
pub struct OpenFile {
    pub device: u8,
    /// The device's context, once GET_CONTEXT made it.
    pub context: Option<ContextId>,
    /// Where UAR pages lie in the file of pages, by their handles.
    pub uars: BTreeMap<u32, u64>,
    /// What CQs hold of their completion channels, by the CQ's handle.
    pub cq_channels: BTreeMap<u32, Arc<()>>,
    /// What lies beneath regions, by their handles.
    pub backing: BTreeMap<u32, Backing>,
}

impl OpenFile {
    /// A fresh open of this device.
    pub fn new(device: u8) -> Self {
        Self { device, ..Self::default() }
    }

    /// The context, or the error of a command that came before GET_CONTEXT.
    pub fn context(&self) -> Answer<ContextId> {
        self.context.ok_or_else(|| refusal!(EINVAL, "no context yet: GET_CONTEXT comes first"))
    }
}

/// The NIC behind a lock that commands get before the NIC's own thread.
#[derive(Debug)]
pub struct Shared<D> {
    /// Empty once the NIC has stopped.
    nic: Mutex<Option<D>>,
    waiting: AtomicU32,
}

impl<D> Shared<D> {
    /// Makes the NIC thread stand back until the announcement is dropped.
    pub fn announce(&self) -> Announced<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Announced(&self.waiting)
    }

    /// Whether a command waits for the NIC.
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    pub fn command(&self) -> Answer<Locked<'_, D>> {
        let locked = self.nic.lock().ok().and_then(Locked::new);
        locked.ok_or_else(|| refusal!(EIO, "the NIC has stopped after an internal error"))
    }

    /// Locks for the NIC's own thread; `None` when the NIC has stopped after a panic.
    pub fn poll(&self) -> Option<Locked<'_, D>> {
        // Yield to commands: they are few, and a mutex alone would let the polling thread starve them.
        while self.is_wanted() {
            std::thread::yield_now();
        }
        self.nic.lock().ok().and_then(Locked::new)
    }

    /// Locks it unless another thread has it or waits for it.
    pub fn try_poll(&self) -> Option<Locked<'_, D>> {
        if self.is_wanted() {
            return None;
        }
        self.nic.try_lock().ok().and_then(Locked::new)
    }

    /// Runs `run` on the NIC unless another thread has the NIC or waits for it; false when `run` panicked.
    /// The lock is inside what catches the panic, so no thread gets the NIC again.
    pub fn attempt(&self, run: impl FnOnce(&mut D)) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.try_poll().map(|mut nic| run(&mut nic)))).is_ok()
    }
}

#[derive(Debug)]
pub struct Locked<'s, D>(MutexGuard<'s, Option<D>>);

impl<'s, D> Locked<'s, D> {
    /// `None` when the NIC has stopped.
    fn new(guard: MutexGuard<'s, Option<D>>) -> Option<Self> {
        guard.is_some().then_some(Self(guard))
    }
}

impl<D> Deref for Locked<'_, D> {
    type Target = D;

    fn deref(&self) -> &D {
        self.0.as_ref().expect("looked when it was locked")
    }
}

impl<D> DerefMut for Locked<'_, D> {
    fn deref_mut(&mut self) -> &mut D {
        self.0.as_mut().expect("looked when it was locked")
    }
}

/// A command that waits for the NIC or has it.
pub struct Announced<'s>(&'s AtomicU32);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub struct Server<D> {
    pub nic: Shared<D>,
    /// Event pipes; the NIC's sink is a clone.
    pub events: Events,
    pub clock: Clock,
    /// What device descriptors are duplicates of.
    pub pages: Arc<DevicePages>,
    pub(super) machine: Machine,
    pub ports: Vec<DeviceConfig>,
    pub(super) ports_each: u8,
    pub(super) memory: Box<dyn Memory + Sync>,
    /// Tells dma-bufs; tests take other descriptors for one.
    pub(super) is_dma_buf: Recognise,
}

impl<D: Commands> Server<D> {
    /// A server for this configuration. `events` is what the NIC's sink was made of.
    ///
    /// Errors: the kernel's, when there is no memory or descriptor for the clock pages.
    pub fn new(
        config: &Config,
        machine: Machine,
        nic: D,
        events: Events,
        memory: Box<dyn Memory + Sync>,
    ) -> std::io::Result<Self> {
        let (ports, ports_each) = (DeviceConfig::all(&config.nic()), config.ports);
        let nic = Shared { nic: Mutex::new(Some(nic)), waiting: AtomicU32::new(0) };
        let pages = Arc::new(DevicePages::new()?);
        let clock = Clock::new(&pages)?;
        Ok(Self { nic, events, clock, pages, machine, ports, ports_each, memory, is_dma_buf })
    }

    /// Writes the answer of a command that made something, which is taken back when that fails.
    pub(super) fn or_undo<T>(
        &self,
        write: impl FnOnce() -> Answer<()>,
        undo: impl FnOnce(&mut D) -> Answer<T>,
    ) -> Answer<()> {
        let written = write();
        if written.is_err() {
            undo(&mut *self.nic()?)?;
        }
        written
    }

    pub(super) fn nic(&self) -> Answer<Locked<'_, D>> {
        self.nic.command()
    }

    /// Whether the port at this place is down; the ports of a NIC that has stopped are as they began.
    pub fn port_is_down(&self, place: u8) -> bool {
        self.nic().is_ok_and(|nic| nic.port_is_down(usize::from(place)))
    }

    /// An internal error: the NIC is gone for good. Peers see it leave, every open context gets
    /// `IBV_EVENT_DEVICE_FATAL`, and commands answer `EIO`.
    pub fn stop(&self) {
        let nic = locked(&self.nic.nic).take();
        if nic.is_some() {
            self.events.fatal();
        }
        // Its end may trip over what the panic left.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(nic)));
    }

    /// A program closed its last descriptor of this open: everything that it left goes.
    pub fn close(&self, file: OpenFile) {
        let Some(context) = file.context else { return };
        if let Ok(mut nic) = self.nic() {
            nic.close_context(context);
        }
        self.events.close_context(context);
    }
}

/// What answers a command.
pub(super) type Handler<D> = fn(&mut Call<'_, D>) -> Answer<()>;

/// One command of a program: the open file that it came by, and what it says.
pub(super) struct Call<'c, D> {
    pub server: &'c Server<D>,
    pub file: &'c mut OpenFile,
    pub command: &'c Command<'c>,
    /// Core input of an older command, at least as long as its table says; empty for a method of its own.
    pub core_in: Reader<'c>,
}

impl<'c, D: Commands> Call<'c, D> {
    pub fn context(&self) -> Answer<ContextId> {
        self.file.context()
    }

    pub fn nic(&self) -> Answer<Locked<'c, D>> {
        self.server.nic()
    }

    /// The device that was opened, by its first port.
    pub fn device(&self) -> Answer<&'c DeviceConfig> {
        self.port(1).map(|(_, device)| device)
    }

    /// A port of that device, with its place; `EINVAL` for a number that it has not.
    pub fn port(&self, number: u64) -> Answer<(usize, &'c DeviceConfig)> {
        let each = self.server.ports_each;
        let before = u8::try_from(number).ok().and_then(|number| number.checked_sub(1)).filter(|n| *n < each);
        let missing = || refusal!(EINVAL, "port {number} is not in 1..={each}");
        let place =
            usize::from(self.file.device) * usize::from(each) + usize::from(before.ok_or_else(missing)?);
        let port = self.server.ports.get(place);
        Ok((place, port.ok_or_else(|| refusal!(ENODEV, "no device mlx5_{}", self.file.device))?))
    }
}
