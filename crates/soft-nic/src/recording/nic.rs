//! The calls into the device, recorded where that was asked for, and their replay.

use std::path::Path;
use std::sync::{Arc, Mutex};

use mlx5_device::command::*;
use mlx5_device::config::NicConfigError;
use mlx5_device::counters::PortCounters;
use mlx5_device::faults::{Injection, Settings};
use mlx5_device::memory::{Memory, Registers};
use mlx5_device::model::{Capabilities, DeviceConfig};
use mlx5_device::threads::Threads;
use mlx5_device::{Commands, Counters, LogSink, UarKind};
use roce::Now;

use super::entry::Tag;
use super::events::number;
use super::recorder::Recorder;
use super::replayer::Replay;
use super::source::Source;
use crate::config::Config;
use crate::dma::Host;
use crate::link::Link;
use crate::os::log;

/// A device whose host is recorded or replayed.
pub type Device<M> = mlx5_device::Nic<Source<M>, Source<Link>>;

/// The device of this process, on its memory and its link. All calls that change the device are here, and so recorded.
pub struct Nic<M: Memory = Host>(Recording<M>);

enum Recording<M: Memory> {
    Off(Box<mlx5_device::Nic<M, Link>>),
    On(Box<Device<M>>, Arc<Recorder>),
}

/// Evaluates an expression of the device, recorded or not.
macro_rules! of_device {
    ($nic:expr, $device:ident => $does:expr) => {
        match $nic {
            Recording::Off($device) => $does,
            Recording::On($device, _) => $does,
        }
    };
}

/// The recording that the configuration asks for. Where it cannot begin there is none, and a line says so.
fn recorder(config: &Config, now: Now) -> Option<Arc<Recorder>> {
    let file = config.record.as_ref()?;
    match Recorder::create(Path::new(file), &config.to_toml(), now) {
        Ok(recorder) => Some(Arc::new(recorder)),
        Err(error) => {
            log(&format!("recording {file}: {error}; nothing is recorded and the program goes on"));
            None
        }
    }
}

impl<M: Memory> Nic<M> {
    /// A NIC with the devices of the configuration and nothing opened.
    ///
    /// Errors: a setting out of its range.
    pub fn new(
        config: &Config,
        memory: M,
        link: Link,
        events: Box<dyn EventSink>,
        log: LogSink,
        now: Now,
    ) -> Result<Nic<M>, NicConfigError> {
        let Some(recorder) = recorder(config, now) else {
            let device = mlx5_device::Nic::new(&config.nic(), memory, link, events, log, now)?;
            return Ok(Nic(Recording::Off(Box::new(device))));
        };
        let memory = Source::Recorded(memory, recorder.clone());
        let link = Source::Recorded(link, recorder.clone());
        let events = Box::new(Source::Recorded(events, recorder.clone()));
        let device = Device::new(&config.nic(), memory, link, events, log, now)?;
        Ok(Nic(Recording::On(Box::new(device), recorder)))
    }

    /// As [`mlx5_device::Nic::excuse`].
    pub fn excuse(&mut self, threads: Box<dyn Threads>) {
        match &mut self.0 {
            Recording::Off(device) => device.excuse(threads),
            Recording::On(device, recorder) => {
                device.excuse(Box::new(Source::Recorded(threads, recorder.clone())));
            }
        }
    }

    /// As [`mlx5_device::Nic::stamp_by`].
    pub fn stamp_by(&mut self, clock: fn() -> Now) {
        match &mut self.0 {
            Recording::Off(device) => device.stamp_by(clock),
            Recording::On(device, recorder) => {
                let recorder = recorder.clone();
                device.stamp_by(move || {
                    let now = clock();
                    recorder.time(Tag::Stamp, now);
                    now
                });
            }
        }
    }

    /// As [`mlx5_device::Nic::poll`].
    pub fn poll(&mut self, now: Now) -> usize {
        match &mut self.0 {
            Recording::Off(device) => device.poll(now),
            Recording::On(device, recorder) => {
                recorder.time(Tag::Round, now);
                recorder.guarded(|| device.poll(now))
            }
        }
    }

    /// As [`mlx5_device::Nic::poll_last`].
    pub fn poll_last(&mut self, now: Now) -> usize {
        match &mut self.0 {
            Recording::Off(device) => device.poll_last(now),
            Recording::On(device, recorder) => {
                recorder.time(Tag::LastRound, now);
                recorder.guarded(|| device.poll_last(now))
            }
        }
    }

    /// Nothing that follows is recorded.
    pub fn end_recording(&mut self) {
        if let Recording::On(_, recorder) = &self.0 {
            recorder.end();
        }
    }

    /// The link, for sleeping and its counters.
    pub fn link(&mut self) -> &mut Link {
        match &mut self.0 {
            Recording::Off(device) => device.link(),
            Recording::On(device, _) => device.link().recorded(),
        }
    }

    /// As [`mlx5_device::Nic::lower_limits`]; a replay does not know of it.
    #[cfg(any(test, feature = "testing"))]
    pub fn lower_limits(&mut self, lower: impl FnOnce(&mut Capabilities)) {
        of_device!(&mut self.0, device => device.lower_limits(lower))
    }
}

/// What only looks, and is not recorded.
macro_rules! looks {
    ($($name:ident($($arg:ident: $type:ty)?) -> $answer:ty;)*) => {
        impl<M: Memory> Nic<M> {
            $(pub fn $name(&self, $($arg: $type)?) -> $answer {
                of_device!(&self.0, device => device.$name($($arg)?))
            })*
        }
    };
}

looks! {
    ports() -> &[DeviceConfig];
    port_counters(place: usize) -> PortCounters;
    capabilities() -> &Capabilities;
    counters() -> Counters;
    open_qps(place: usize) -> usize;
    changes() -> &[String];
    is_waiting() -> bool;
}

/// Commands by number: arguments that are copied, then the one by reference.
macro_rules! commands {
    (
        trait { $($number:pat, $n:expr, $name:ident($($arg:ident: $type:ty),*; $($by:ident: $by_type:ty)?) -> $answer:ty;)* }
        own { $($own_n:literal $own:ident($($own_arg:ident: $own_type:ty),*; $($own_by:ident: $own_by_type:ty)?);)* }
    ) => {
        impl<M: Memory> Commands for Nic<M> {
            $(fn $name(&mut self, $($arg: $type,)* $($by: &$by_type)?) -> Answer<$answer> {
                match &mut self.0 {
                    Recording::Off(device) => device.$name($($arg,)* $($by)?),
                    Recording::On(device, recorder) => recorder
                        .command($n, &($($arg,)* $($by,)?), || device.$name($($arg,)* $($by)?)),
                }
            })*

            fn close_context(&mut self, context: ContextId) {
                match &mut self.0 {
                    Recording::Off(device) => device.close_context(context),
                    Recording::On(device, recorder) => {
                        recorder.command(number::CLOSE, &context, || device.close_context(context));
                    }
                }
            }

            fn alloc_uar(
                &mut self,
                context: ContextId,
                kind: UarKind,
                registers: Box<dyn Registers>,
            ) -> Answer<AllocatedUar> {
                match &mut self.0 {
                    Recording::Off(device) => device.alloc_uar(context, kind, registers),
                    Recording::On(device, recorder) => {
                        let registers = Box::new(Source::Recorded(registers, recorder.clone()));
                        recorder.command(number::ALLOC_UAR, &(context, kind), || {
                            device.alloc_uar(context, kind, registers)
                        })
                    }
                }
            }

            fn port_is_down(&self, place: usize) -> bool {
                of_device!(&self.0, device => device.port_is_down(place))
            }

            fn query_qp(&self, context: ContextId, qp: Handle) -> Answer<QueriedQp> {
                of_device!(&self.0, device => device.query_qp(context, qp))
            }

            fn query_srq(&self, context: ContextId, srq: Handle) -> Answer<QueriedSrq> {
                of_device!(&self.0, device => device.query_srq(context, srq))
            }
        }

        impl<M: Memory> Nic<M> {
            $(pub fn $own(&mut self, $($own_arg: $own_type,)* $($own_by: &$own_by_type)?) -> Result<(), String> {
                match &mut self.0 {
                    Recording::Off(device) => device.$own($($own_arg,)* $($own_by)?),
                    Recording::On(device, recorder) => recorder
                        .command($own_n, &($($own_arg,)* $($own_by,)?), || device.$own($($own_arg,)* $($own_by)?)),
                }
            })*
        }

        /// Gives the device a command of a recording. The bytes of its answer; `None` when there is no such command.
        pub fn replay_command(device: &mut Device<Host>, replay: &Arc<Mutex<Replay>>, bytes: &[u8]) -> Option<Vec<u8>> {
            let (number, bytes) = postcard::take_from_bytes::<u64>(bytes).ok()?;
            match number {
                $($number => {
                    let ($($arg,)* $($by,)?): ($($type,)* $($by_type,)?) = postcard::from_bytes(bytes).ok()?;
                    postcard::to_allocvec(&device.$name($($arg,)* $(&$by)?)).ok()
                })*
                $($own_n => {
                    let ($($own_arg,)* $($own_by,)?): ($($own_type,)* $($own_by_type,)?) = postcard::from_bytes(bytes).ok()?;
                    postcard::to_allocvec(&device.$own($($own_arg,)* $(&$own_by)?)).ok()
                })*
                number::CLOSE => {
                    device.close_context(postcard::from_bytes(bytes).ok()?);
                    Some(Vec::new())
                }
                number::ALLOC_UAR => {
                    let (context, kind) = postcard::from_bytes(bytes).ok()?;
                    let registers = Source::<Box<dyn Registers>>::Replayed(replay.clone());
                    postcard::to_allocvec(&device.alloc_uar(context, kind, Box::new(registers))).ok()
                }
                _ => None,
            }
        }
    };
}

commands! {
    trait {
        number::OPEN, number::OPEN, open_context(device: usize;) -> ContextId;
        4, 4, free_uar(context: ContextId, uar: Handle;) -> ();
        5, 5, alloc_pd(context: ContextId;) -> AllocatedPd;
        6, 6, dealloc_pd(context: ContextId, pd: Handle;) -> ();
        7, 7, reg_mr(context: ContextId; command: RegMr) -> MrKeys;
        8, 8, rereg_mr(context: ContextId; command: ReregMr) -> MrKeys;
        9, 9, dereg_mr(context: ContextId, mr: Handle;) -> ();
        10, 10, create_cq(context: ContextId; command: CreateCq) -> CreatedCq;
        11, 11, resize_cq(context: ContextId, cq: Handle; command: ResizeCq) -> u32;
        12, 12, destroy_cq(context: ContextId, cq: Handle;) -> DestroyedCq;
        number::CREATE_QP, number::CREATE_QP, create_qp(context: ContextId; command: CreateQp) -> CreatedQp;
        number::MODIFY_QP, number::MODIFY_QP, modify_qp(context: ContextId, qp: Handle; command: ModifyQp) -> ();
        number::DESTROY_QP, number::DESTROY_QP, destroy_qp(context: ContextId, qp: Handle;) -> u32;
        16, 16, create_srq(context: ContextId; command: CreateSrq) -> CreatedSrq;
        17, 17, modify_srq(context: ContextId, srq: Handle; command: ModifySrq) -> ();
        18, 18, destroy_srq(context: ContextId, srq: Handle;) -> u32;
        19, 19, create_ah(context: ContextId, pd: Handle; address: AddressVector) -> CreatedAh;
        20, 20, destroy_ah(context: ContextId, ah: Handle;) -> ();
        21, 21, alloc_mw(context: ContextId; command: AllocMw) -> AllocatedMw;
        22, 22, dealloc_mw(context: ContextId, mw: Handle;) -> ();
    }
    own {
        30 set_link(device: usize, port: u8, up: bool;);
        31 set(; settings: Settings);
        32 inject(injection: Injection;);
    }
}
