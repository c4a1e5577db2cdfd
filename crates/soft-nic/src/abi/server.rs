//! The uverbs command server of one process: open files, method table, dispatch.
//!
//! A command runs on the program's thread: decode, device call under the NIC's lock, answer. Lock order: the open file,
//! then the NIC, then the event pipes. Follows Linux `drivers/infiniband/core/uverbs_std_types*.c` for what each method
//! takes and answers. Left out (refused as a kernel without them does, counted by name): XRC, flows, DEVX, device memory.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx5_device::command::{CommandError, ContextId, refusal};
use mlx5_device::memory::Memory;
use mlx5_device::model::DeviceConfig;
use mlx5_device::{Answer, Commands};

use super::attributes::{Command, Kind, Method, bytes, may, method, must, refuse};
use super::backing::Backing;
use super::clock::Clock;
use super::events::Events;
use super::layout::{
    create_cq, create_qp, destroy_cq_resp, destroy_qp_resp, destroy_srq_resp, mlx5_create_srq, qp_cap,
    query_port_resp,
};
use super::{ah, context, cq, mr, qp, srq, uar, write};
use crate::config::Config;
use crate::dma::dma_buf::{Recognise, is_dma_buf};
use crate::os::{DevicePages, UarPage, log, log_enabled};
use crate::sysfs::Machine;

/// Driver part of a command: input, output.
pub const UHW_IN: u16 = 0x1000;
pub const UHW_OUT: u16 = 0x1001;

const UHW: Kind = Kind::In { min: 0, max: 4096 };
const ANY_OUT: Kind = Kind::Out { min: 0 };

/// Every method that the NIC answers: `rdma/ib_user_ioctl_cmds.h`, `rdma/mlx5_user_ioctl_cmds.h`.
static METHODS: &[Method] = &[
    method(0, 0, "DEVICE.INVOKE_WRITE").takes(&[
        may(write::CORE_IN, UHW),
        may(write::CORE_OUT, ANY_OUT),
        must(write::WRITE_CMD, bytes(8)),
        may(UHW_IN, UHW),
        may(UHW_OUT, ANY_OUT),
    ]),
    method(0, 2, "DEVICE.QUERY_PORT")
        .takes(&[must(0, bytes(1)), must(1, Kind::Out { min: query_port_resp::SIZE as u16 - 8 })]),
    method(0, 3, "DEVICE.GET_CONTEXT").takes(&[
        must(0, Kind::Out { min: 4 }),
        may(1, ANY_OUT),
        may(UHW_IN, UHW),
        may(UHW_OUT, ANY_OUT),
    ]),
    method(0, 5, "DEVICE.QUERY_GID_TABLE").takes(&[
        must(0, bytes(8)),
        may(1, bytes(4)),
        must(2, ANY_OUT),
        must(3, Kind::Out { min: 8 }),
    ]),
    method(0, 6, "DEVICE.QUERY_GID_ENTRY").takes(&[
        must(0, bytes(4)),
        must(1, bytes(4)),
        may(2, bytes(4)),
        must(3, Kind::Out { min: 32 }),
    ]),
    method(1, 0, "PD.DESTROY").takes(&[must(0, Kind::Handle)]),
    method(3, 0, "CQ.CREATE").takes(&[
        must(cq::HANDLE, Kind::NewHandle),
        must(cq::CQE, bytes(4)),
        must(cq::USER_HANDLE, bytes(8)),
        may(cq::COMP_CHANNEL, Kind::Fd),
        must(cq::COMP_VECTOR, bytes(4)),
        may(cq::FLAGS, bytes(4)),
        must(cq::RESP_CQE, Kind::Out { min: 4 }),
        may(cq::EVENT_FD, Kind::Fd),
        must(UHW_IN, Kind::In { min: create_cq::SIZE as u16 - 8, max: create_cq::SIZE as u16 }),
        may(UHW_OUT, ANY_OUT),
    ]),
    method(3, 1, "CQ.DESTROY")
        .takes(&[must(0, Kind::Handle), must(1, Kind::Out { min: destroy_cq_resp::SIZE as u16 })]),
    method(4, 0, "QP.CREATE").takes(&[
        must(qp::HANDLE, Kind::NewHandle),
        may(qp::XRCD, Kind::Handle),
        may(qp::PD, Kind::Handle),
        may(qp::SRQ, Kind::Handle),
        may(qp::SEND_CQ, Kind::Handle),
        may(qp::RECV_CQ, Kind::Handle),
        may(qp::IND_TABLE, Kind::Handle),
        must(qp::USER_HANDLE, bytes(8)),
        must(qp::CAP, bytes(qp_cap::SIZE as u16)),
        must(qp::TYPE, Kind::In { min: 0, max: 8 }),
        may(qp::FLAGS, bytes(4)),
        may(qp::SOURCE_QPN, bytes(4)),
        may(qp::EVENT_FD, Kind::Fd),
        must(qp::RESP_CAP, Kind::Out { min: qp_cap::SIZE as u16 }),
        must(qp::RESP_QP_NUM, Kind::Out { min: 4 }),
        must(UHW_IN, Kind::In { min: create_qp::SQ_BUF_ADDR as u16, max: create_qp::SIZE as u16 }),
        may(UHW_OUT, ANY_OUT),
    ]),
    method(4, 1, "QP.DESTROY")
        .takes(&[must(0, Kind::Handle), must(1, Kind::Out { min: destroy_qp_resp::SIZE as u16 })]),
    method(5, 0, "SRQ.CREATE").takes(&[
        must(srq::HANDLE, Kind::NewHandle),
        may(srq::PD, Kind::Handle),
        may(srq::XRCD, Kind::Handle),
        may(srq::CQ, Kind::Handle),
        must(srq::USER_HANDLE, bytes(8)),
        must(srq::MAX_WR, bytes(4)),
        must(srq::MAX_SGE, bytes(4)),
        must(srq::LIMIT, bytes(4)),
        may(srq::MAX_NUM_TAGS, bytes(4)),
        must(srq::TYPE, Kind::In { min: 0, max: 8 }),
        may(srq::EVENT_FD, Kind::Fd),
        must(srq::RESP_MAX_WR, Kind::Out { min: 4 }),
        must(srq::RESP_MAX_SGE, Kind::Out { min: 4 }),
        may(srq::RESP_SRQ_NUM, Kind::Out { min: 4 }),
        must(UHW_IN, Kind::In { min: mlx5_create_srq::RESERVED0 as u16, max: mlx5_create_srq::SIZE as u16 }),
        may(UHW_OUT, ANY_OUT),
    ]),
    method(5, 1, "SRQ.DESTROY")
        .takes(&[must(0, Kind::Handle), must(1, Kind::Out { min: destroy_srq_resp::SIZE as u16 })]),
    method(6, 0, "AH.DESTROY").takes(&[must(0, Kind::Handle)]),
    method(7, 1, "MR.DESTROY").takes(&[must(0, Kind::Handle)]),
    method(7, 4, "MR.REG_DMABUF_MR").takes(&[
        must(mr::dma_buf::HANDLE, Kind::NewHandle),
        must(mr::dma_buf::PD, Kind::Handle),
        must(mr::dma_buf::OFFSET, bytes(8)),
        must(mr::dma_buf::LENGTH, bytes(8)),
        must(mr::dma_buf::IOVA, bytes(8)),
        must(mr::dma_buf::FD, bytes(4)),
        must(mr::dma_buf::ACCESS_FLAGS, bytes(4)),
        must(mr::dma_buf::RESP_LKEY, Kind::Out { min: 4 }),
        must(mr::dma_buf::RESP_RKEY, Kind::Out { min: 4 }),
    ]),
    method(8, 0, "MW.DESTROY").takes(&[must(0, Kind::Handle)]),
    method(0x10, 0, "ASYNC_EVENT.ALLOC").takes(&[must(0, Kind::NewFd)]),
    method(0x1008, 0x1000, "UAR.ALLOC").takes(&[
        must(uar::HANDLE, Kind::NewHandle),
        must(uar::TYPE, Kind::In { min: 0, max: 8 }),
        must(uar::MMAP_OFFSET, Kind::Out { min: 8 }),
        must(uar::MMAP_LENGTH, Kind::Out { min: 4 }),
        must(uar::PAGE_ID, Kind::Out { min: 4 }),
    ]),
    method(0x1008, 0x1001, "UAR.DESTROY").takes(&[must(uar::HANDLE, Kind::Handle)]),
];

/// Objects that a kernel knows and this device has not, and what they are for: their methods are `EOPNOTSUPP`, not "unknown".
const ABSENT_OBJECTS: &[(u16, &str, &str)] = &[
    (9, "FLOW", "steering"),
    (10, "XRCD", "XRC domains"),
    (11, "RWQ_IND_TBL", "receive-side scaling"),
    (12, "WQ", "receive-side scaling"),
    (13, "FLOW_ACTION", "steering"),
    (14, "DM", "memory of the device"),
    (15, "COUNTERS", "counters of flows"),
    (0x1000, "DEVX", "firmware commands"),
    (0x1001, "DEVX_OBJ", "objects made by firmware commands"),
    (0x1002, "DEVX_UMEM", "memory of DEVX objects"),
    (0x1003, "FLOW_MATCHER", "steering"),
    (0x1004, "DEVX_ASYNC_CMD_FD", "answers to DEVX queries"),
    (0x1005, "DEVX_ASYNC_EVENT_FD", "events of DEVX objects"),
    (0x1006, "VAR", "doorbells of virtio queues"),
    (0x1007, "PP", "packet pacing"),
    (0x1009, "STEERING_ANCHOR", "steering"),
];

/// Methods that a kernel knows of objects that this device has.
const ABSENT_METHODS: &[(u16, u16, &str)] = &[
    (0, 4, "DEVICE.QUERY_CONTEXT (ibv_import_device)"),
    (0, 0x1000, "DEVICE.QUERY_PORT of mlx5 (mlx5dv_query_port)"),
    (7, 0, "MR.DM_MR_REG (memory of the device)"),
    (7, 2, "MR.ADVISE_MR (ibv_advise_mr)"),
    (7, 3, "MR.QUERY_MR (ibv_import_mr)"),
];

/// Names that get a line; a program that tries numbers must not fill its log.
const SAID: usize = 64;

/// What every libmlx5 asks at each open to learn what there is, and does without: a line for each would be noise in every
/// program's output.
const PROBED: &str = "DEVX method ";

/// One open of a device file.
#[derive(Debug)]
pub struct OpenFile {
    pub device: u8,
    /// The device's context, once GET_CONTEXT made it.
    pub context: Option<ContextId>,
    /// UAR pages by handle.
    pub uars: BTreeMap<u32, Arc<UarPage>>,
    /// Completion channels of CQs, by the CQ's handle.
    pub cq_channels: BTreeMap<u32, u32>,
    /// What lies beneath regions, by their handles.
    pub backing: BTreeMap<u32, Backing>,
}

impl OpenFile {
    /// A fresh open of this device.
    pub fn new(device: u8) -> Self {
        Self {
            device,
            context: None,
            uars: BTreeMap::new(),
            cq_channels: BTreeMap::new(),
            backing: BTreeMap::new(),
        }
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

    /// Runs something on the NIC unless another thread has it or waits for it; false when that panicked. The lock is inside what catches
    /// the panic, so no thread gets the NIC again.
    pub fn attempt(&self, run: impl FnOnce(&mut D)) -> bool {
        catch_unwind(AssertUnwindSafe(|| {
            if let Some(mut nic) = self.try_poll() {
                run(&mut nic);
            }
        }))
        .is_ok()
    }

    /// Takes the NIC out for good, whatever state a panic left it in.
    fn take(&self) -> Option<D> {
        self.nic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The NIC, locked.
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
        match &*self.0 {
            Some(nic) => nic,
            None => unreachable!("looked when it was locked"),
        }
    }
}

impl<D> DerefMut for Locked<'_, D> {
    fn deref_mut(&mut self) -> &mut D {
        match &mut *self.0 {
            Some(nic) => nic,
            None => unreachable!("looked when it was locked"),
        }
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
    /// Clock pages.
    pub clock: Clock,
    /// What device descriptors are duplicates of.
    pub pages: Arc<DevicePages>,
    pub(super) machine: Machine,
    /// Every port of every device.
    pub ports: Vec<DeviceConfig>,
    /// Ports of each device.
    pub(super) ports_each: u8,
    pub(super) memory: Box<dyn Memory + Sync>,
    /// Tells dma-bufs; tests take other descriptors for one.
    pub(super) is_dma_buf: Recognise,
    refused: Mutex<BTreeMap<String, u64>>,
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
        let refused = Mutex::default();
        let pages = Arc::new(DevicePages::new()?);
        let clock = Clock::new(&pages)?;
        Ok(Self { nic, events, clock, pages, machine, ports, ports_each, memory, is_dma_buf, refused })
    }

    /// Takes back what a command made, when its answer could not be written.
    pub fn or_undo<T>(&self, written: Answer<()>, undo: impl FnOnce(&mut D) -> Answer<T>) -> Answer<()> {
        if written.is_err() {
            undo(&mut *self.nic()?)?;
        }
        written
    }

    /// Answers the verbs ioctl whose header is at `address`; the error is what the program's `errno` gets.
    pub fn ioctl(&self, file: &mut OpenFile, address: u64) -> Result<(), CommandError> {
        let command = Command::decode(&*self.memory, address, Self::find);
        let answer = command.as_ref().map_err(Clone::clone).and_then(|command| self.dispatch(file, command));
        if let Err(CommandError { errno: libc::EOPNOTSUPP | libc::EPROTONOSUPPORT, reason }) = &answer {
            self.note_refusal(reason, &format!("not supported: {reason}"));
        }
        if log_enabled() {
            let called = command.as_ref().map_or_else(|_| "undecoded".to_owned(), ToString::to_string);
            let outcome = answer.as_ref().map_or_else(ToString::to_string, |()| "ok".to_owned());
            log(&format!("{called} -> {outcome}"));
        }
        answer
    }

    fn find(object: u16, method: u16) -> Result<&'static Method, CommandError> {
        if let Some(found) = METHODS.iter().find(|known| (known.object, known.method) == (object, method)) {
            return Ok(found);
        }
        if let Some((.., name)) = ABSENT_METHODS.iter().find(|(o, m, _)| (*o, *m) == (object, method)) {
            return Err(refuse(libc::EPROTONOSUPPORT, *name));
        }
        Err(match ABSENT_OBJECTS.iter().find(|(absent, ..)| *absent == object) {
            Some((_, name, use_)) => refusal!(EOPNOTSUPP, "{name} method {method:#x} ({use_})"),
            None => unknown_method(object, method),
        })
    }

    /// Counts a refusal under its name: how often stands in the process's line of counters. The first is a line on stderr.
    pub(super) fn note_refusal(&self, name: &str, line: &str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let count = refused.entry(name.to_owned()).or_insert(0);
        *count += 1;
        let first = *count == 1 && refused.len() <= SAID;
        drop(refused);
        if first && !name.starts_with(PROBED) {
            log(&format!("{line} (said once)"));
        }
    }

    /// Names and counts of refused commands, for the stats file.
    pub fn refused(&self) -> Vec<(String, u64)> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.iter().map(|(name, count)| (name.clone(), *count)).collect()
    }

    fn dispatch(&self, file: &mut OpenFile, command: &Command<'_>) -> Answer<()> {
        match (command.method.object, command.method.method) {
            (0, 0) => write::invoke(self, file, command),
            (0, 2) => context::query_port(self, file, command),
            (0, 3) => context::get_context(self, file, command),
            (0, 5) => context::query_gid_table(self, file, command),
            (0, 6) => context::query_gid_entry(self, file, command),
            (1, 0) => self.nic()?.dealloc_pd(file.context()?, command.expect_handle(0)?),
            (3, 0) => cq::create(self, file, command),
            (3, 1) => cq::destroy(self, file, command),
            (4, 0) => qp::create(self, file, command),
            (4, 1) => qp::destroy(self, file, command),
            (5, 0) => srq::create(self, file, command),
            (5, 1) => srq::destroy(self, file, command),
            (6, 0) => ah::destroy(self, file, command),
            (7, 1) => mr::dereg(self, file, command.expect_handle(0)?),
            (7, 4) => mr::reg_dma_buf(self, file, command),
            (8, 0) => mr::destroy_window(self, file, command),
            (0x10, 0) => context::alloc_async_event(self, file, command),
            (0x1008, 0x1000) => uar::alloc(self, file, command),
            (0x1008, 0x1001) => uar::destroy(self, file, command),
            (object, method) => Err(unknown_method(object, method)),
        }
    }

    /// The NIC, locked for a command.
    pub(super) fn nic(&self) -> Answer<Locked<'_, D>> {
        self.nic.command()
    }

    /// Whether the port at this place is down; the ports of a NIC that has stopped are as they began.
    pub fn port_is_down(&self, place: u8) -> bool {
        self.nic().is_ok_and(|nic| nic.port_is_down(usize::from(place)))
    }

    /// The device that a file opened, by its first port.
    pub(super) fn device(&self, file: &OpenFile) -> Answer<&DeviceConfig> {
        let first = usize::from(file.device) * usize::from(self.ports_each);
        self.ports.get(first).ok_or_else(|| refusal!(ENODEV, "no such device"))
    }

    /// A port of that device, with its place; `EINVAL` for a number that it has not.
    pub(super) fn port(&self, file: &OpenFile, number: u64) -> Answer<(u8, &DeviceConfig)> {
        let each = self.ports_each;
        let before = u8::try_from(number).ok().and_then(|number| number.checked_sub(1)).filter(|n| *n < each);
        let missing = || refusal!(EINVAL, "port {number}, the device has {each}");
        let place = file.device * each + before.ok_or_else(missing)?;
        let port = self.ports.get(usize::from(place)).ok_or_else(|| refusal!(ENODEV, "no such device"))?;
        Ok((place, port))
    }

    /// An internal error: the NIC is gone for good. Peers see it leave, every open context gets `IBV_EVENT_DEVICE_FATAL`,
    /// and commands answer `EIO`.
    pub fn stop(&self) {
        let nic = self.nic.take();
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
        drop(file);
    }

    /// What an `mmap` of a device file at this offset maps.
    pub fn mapping(&self, file: &OpenFile, offset: u64, length: usize) -> Answer<Mapping> {
        uar::mapping(file, offset, length)
    }
}

/// What lies in [`DevicePages`] at an offset that a program maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapping {
    /// A UAR page.
    Uar,
    /// A clock page; never writable.
    Clock,
}

fn unknown_method(object: u16, method: u16) -> CommandError {
    refusal!(EPROTONOSUPPORT, "method {method:#x} of object {object:#x}")
}
