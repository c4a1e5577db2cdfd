//! The calls into the device, recorded where that was asked for, and their replay.

use std::path::Path;
use std::sync::{Arc, Mutex};

use mlx5_device::command::*;
use mlx5_device::config::NicConfigError;
use mlx5_device::counters::PortCounters;
use mlx5_device::faults::{Injection, Settings};
use mlx5_device::memory::{Memory, Registers};
use mlx5_device::model::{Capabilities, DeviceConfig};
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

/// The device of this process, on its memory and link. All calls that change it are here, and so recorded.
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
    ($($vis:vis fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        $($vis fn $name(&self, $($arg: $type),*) -> $answer {
            of_device!(&self.0, device => device.$name($($arg),*))
        })*
    };
}

impl<M: Memory> Nic<M> {
    looks! {
        pub fn ports() -> &[DeviceConfig];
        pub fn port_counters(place: usize) -> PortCounters;
        pub fn capabilities() -> &Capabilities;
        pub fn counters() -> Counters;
        pub fn open_qps(place: usize) -> usize;
        pub fn changes() -> &[String];
        pub fn due() -> Option<Now>;
    }
}

/// Methods for commands by number: arguments that are copied, then the one by reference.
macro_rules! methods {
    ($($vis:vis fn $name:ident($($arg:ident: $type:ty),*; $($by:ident: $by_type:ty)?) -> $answer:ty = $number:expr;)*) => { $(
        $vis fn $name(&mut self, $($arg: $type,)* $($by: &$by_type)?) -> $answer {
            match &mut self.0 {
                Recording::Off(device) => device.$name($($arg,)* $($by)?),
                Recording::On(device, recorder) => recorder
                    .command($number, &($($arg,)* $($by,)?), || device.$name($($arg,)* $($by)?)),
            }
        }
    )* };
}

/// Gives a device the command with this number. The bytes of its answer.
macro_rules! replay {
    (
        $device:ident, $wanted:ident, $bytes:ident:
        $($vis:vis fn $name:ident($($arg:ident: $type:ty),*; $($by:ident: $by_type:ty)?) -> $answer:ty = $number:expr;)*
    ) => { $(
        if $wanted == $number {
            let ($($arg,)* $($by,)?): ($($type,)* $($by_type,)?) = postcard::from_bytes($bytes).ok()?;
            return postcard::to_allocvec(&$device.$name($($arg,)* $(&$by)?)).ok();
        }
    )* };
}

/// All commands: those of the trait, and the device's own.
macro_rules! commands {
    (trait { $($of_trait:tt)* } own { $($own:tt)* }) => {
        impl<M: Memory> Commands for Nic<M> {
            methods! { $($of_trait)* }

            fn alloc_uar(
                &mut self,
                context: ContextId,
                kind: UarKind,
                registers: Box<dyn Registers>,
            ) -> Answer<Created> {
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

            looks! {
                fn port_is_down(place: usize) -> bool;
                fn query_qp(context: ContextId, qp: Handle) -> Answer<QueriedQp>;
                fn query_srq(context: ContextId, srq: Handle) -> Answer<QueriedSrq>;
            }
        }

        impl<M: Memory> Nic<M> {
            methods! { $($own)* }
        }

        /// Gives the device a command of a recording. Returns the answer's bytes; `None`: no such command.
        pub fn replay_command(device: &mut Device<Host>, replay: &Arc<Mutex<Replay>>, bytes: &[u8]) -> Option<Vec<u8>> {
            let (wanted, bytes) = postcard::take_from_bytes::<u64>(bytes).ok()?;
            if wanted == number::ALLOC_UAR {
                let (context, kind) = postcard::from_bytes(bytes).ok()?;
                let registers = Source::<Box<dyn Registers>>::Replayed(replay.clone());
                return postcard::to_allocvec(&device.alloc_uar(context, kind, Box::new(registers))).ok();
            }
            replay! { device, wanted, bytes: $($of_trait)* $($own)* }
            None
        }
    };
}

commands! {
    trait {
        fn open_context(device: usize;) -> Answer<ContextId> = 1;
        fn close_context(context: ContextId;) -> () = number::CLOSE;
        fn free_uar(context: ContextId, uar: Handle;) -> Answer<()> = 4;
        fn alloc_pd(context: ContextId;) -> Answer<Created> = 5;
        fn dealloc_pd(context: ContextId, pd: Handle;) -> Answer<()> = 6;
        fn reg_mr(context: ContextId; command: RegMr) -> Answer<MrKeys> = 7;
        fn rereg_mr(context: ContextId, mr: Handle, flags: u32; command: RegMr) -> Answer<MrKeys> = 8;
        fn dereg_mr(context: ContextId, mr: Handle;) -> Answer<()> = 9;
        fn create_cq(context: ContextId; command: CreateCq) -> Answer<Created> = 10;
        fn resize_cq(context: ContextId, cq: Handle; command: ResizeCq) -> Answer<u32> = 11;
        fn destroy_cq(context: ContextId, cq: Handle;) -> Answer<DestroyedCq> = 12;
        fn create_qp(context: ContextId; command: CreateQp) -> Answer<CreatedQp> = number::CREATE_QP;
        fn modify_qp(context: ContextId, qp: Handle; command: ModifyQp) -> Answer<()> = number::MODIFY_QP;
        fn destroy_qp(context: ContextId, qp: Handle;) -> Answer<u32> = number::DESTROY_QP;
        fn create_srq(context: ContextId; command: CreateSrq) -> Answer<CreatedSrq> = 16;
        fn modify_srq(context: ContextId, srq: Handle; command: ModifySrq) -> Answer<()> = 17;
        fn destroy_srq(context: ContextId, srq: Handle;) -> Answer<u32> = 18;
        fn create_ah(context: ContextId, pd: Handle; address: AddressVector) -> Answer<CreatedAh> = 19;
        fn destroy_ah(context: ContextId, ah: Handle;) -> Answer<()> = 20;
        fn alloc_mw(context: ContextId; command: AllocMw) -> Answer<Created> = 21;
        fn dealloc_mw(context: ContextId, mw: Handle;) -> Answer<()> = 22;
    }
    own {
        pub fn set_link(device: usize, port: u8, up: bool;) -> Result<(), String> = 30;
        pub fn set(; settings: Settings) -> Result<(), String> = 31;
        pub fn inject(injection: Injection;) -> Result<(), String> = 32;
    }
}
