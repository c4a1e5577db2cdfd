//! The calls into the device, recorded where that was asked for, and their replay.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;

use mlx5_device::command::*;
use mlx5_device::config::NicConfigError;
use mlx5_device::faults::{Injection, Settings};
use mlx5_device::memory::{Memory, Registers};
use mlx5_device::threads::{ThreadTime, Threads};
use mlx5_device::{Commands, LogSink, UarKind};
use roce::Now;

use super::recorder::Recorder;
use super::replayer::Replay;
use super::source::Source;
use super::tag::Tag;
use super::values::{Put, Take, Words, number, words_of};
use crate::config::Config;
use crate::dma::Host;
use crate::link::Link;
use crate::os::log;

/// The device with what it asks of its machine.
pub type Device<M> = mlx5_device::Nic<Source<M>, Source<Link>>;

/// The device of this process, on its memory and its link.
pub struct Nic<M: Memory = Host> {
    device: Device<M>,
    recorder: Option<Arc<Recorder>>,
}

impl<M: Memory> Deref for Nic<M> {
    type Target = Device<M>;

    fn deref(&self) -> &Device<M> {
        &self.device
    }
}

impl<M: Memory> DerefMut for Nic<M> {
    fn deref_mut(&mut self) -> &mut Device<M> {
        &mut self.device
    }
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

struct NoThreads;

impl Threads for NoThreads {
    fn look(&mut self) -> Vec<ThreadTime> {
        Vec::new()
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
        log: Box<dyn LogSink>,
        now: Now,
    ) -> Result<Nic<M>, NicConfigError> {
        let recorder = recorder(config, now);
        let (memory, link) = (Source::new(memory, recorder.as_ref()), Source::new(link, recorder.as_ref()));
        let events: Box<dyn EventSink> = match &recorder {
            None => events,
            recorder => Box::new(Source::new(events, recorder.as_ref())),
        };
        let device = Device::new(&config.nic(), memory, link, events, log, now)?;
        let mut nic = Nic { device, recorder };
        if nic.recorder.is_some() {
            // A replay has a clock and threads, whatever the device has.
            nic.stamp_by(Now::default);
            nic.excuse(Box::new(NoThreads));
        }
        Ok(nic)
    }

    /// As [`mlx5_device::Nic::excuse`].
    pub fn excuse(&mut self, threads: Box<dyn Threads>) {
        self.device.excuse(match &self.recorder {
            None => threads,
            recorder => Box::new(Source::new(threads, recorder.as_ref())),
        });
    }

    /// As [`mlx5_device::Nic::stamp_by`].
    pub fn stamp_by(&mut self, clock: fn() -> Now) {
        let Some(recorder) = self.recorder.clone() else { return self.device.stamp_by(clock) };
        self.device.stamp_by(move || {
            let now = clock();
            recorder.time(Tag::Stamp, now);
            now
        });
    }

    /// As [`mlx5_device::Nic::poll`].
    pub fn poll(&mut self, now: Now) -> usize {
        if let Some(recorder) = &self.recorder {
            recorder.time(Tag::Round, now);
        }
        self.device.poll(now)
    }

    /// As [`mlx5_device::Nic::poll_last`].
    pub fn poll_last(&mut self, now: Now) -> usize {
        if let Some(recorder) = &self.recorder {
            recorder.time(Tag::LastRound, now);
        }
        self.device.poll_last(now)
    }

    /// Nothing that follows is recorded.
    pub fn end_recording(&mut self) {
        if let Some(recorder) = &self.recorder {
            recorder.end();
        }
    }

    /// One command, by its number.
    fn command<A: Put>(
        &mut self,
        number: u64,
        arguments: impl Put,
        run: impl FnOnce(&mut Device<M>, Option<&Arc<Recorder>>) -> A,
    ) -> A {
        let recorder = self.recorder.as_ref();
        if let Some(recorder) = recorder {
            recorder.entry(Tag::Command, (number, arguments));
        }
        let answer = run(&mut self.device, recorder);
        if let Some(recorder) = recorder {
            recorder.entry(Tag::Answer, &answer);
        }
        answer
    }
}

const OPEN: u64 = 1;
const ALLOC_UAR: u64 = 3;

/// Commands by number: arguments that are copied, then the one by reference.
macro_rules! commands {
    (
        trait { $($number:pat, $n:expr, $name:ident($($arg:ident: $type:ty),*; $($by:ident: $by_type:ty)?) -> $answer:ty;)* }
        own { $($own_n:literal $own:ident($($own_arg:ident: $own_type:ty),*; $($own_by:ident: $own_by_type:ty)?);)* }
    ) => {
        impl<M: Memory> Commands for Nic<M> {
            $(fn $name(&mut self, $($arg: $type,)* $($by: &$by_type)?) -> Answer<$answer> {
                self.command($n, ($($arg,)* $($by,)?), |device, _| device.$name($($arg,)* $($by)?))
            })*

            fn close_context(&mut self, context: ContextId) {
                self.command(number::CLOSE, context, |device, _| device.close_context(context));
            }

            fn alloc_uar(
                &mut self,
                context: ContextId,
                kind: UarKind,
                registers: Box<dyn Registers>,
            ) -> Answer<AllocatedUar> {
                self.command(ALLOC_UAR, (context, kind), |device, recorder| {
                    let registers = match recorder {
                        None => registers,
                        recorder => Box::new(Source::new(registers, recorder)),
                    };
                    device.alloc_uar(context, kind, registers)
                })
            }

            fn port_is_down(&self, place: usize) -> bool {
                self.device.port_is_down(place)
            }

            fn query_qp(&self, context: ContextId, qp: Handle) -> Answer<QueriedQp> {
                self.device.query_qp(context, qp)
            }

            fn query_srq(&self, context: ContextId, srq: Handle) -> Answer<QueriedSrq> {
                self.device.query_srq(context, srq)
            }
        }

        impl<M: Memory> Nic<M> {
            $(pub fn $own(&mut self, $($own_arg: $own_type,)* $($own_by: &$own_by_type)?) -> Result<(), String> {
                self.command($own_n, ($($own_arg,)* $($own_by,)?), |device, _| device.$own($($own_arg,)* $($own_by)?))
            })*
        }

        /// Gives the device a command of a recording. The words of its answer; `None` when there is no such command.
        pub fn replay_command(device: &mut Device<Host>, replay: &Arc<Replay>, words: &mut Words<'_>) -> Option<Vec<u64>> {
            Some(match words.word()? {
                $($number => {
                    $(let $arg = Take::take(words)?;)*
                    $(let $by: $by_type = Take::take(words)?;)?
                    words_of(&device.$name($($arg,)* $(&$by)?))
                })*
                $($own_n => {
                    $(let $own_arg = Take::take(words)?;)*
                    $(let $own_by: $own_by_type = Take::take(words)?;)?
                    words_of(&device.$own($($own_arg,)* $(&$own_by)?))
                })*
                number::CLOSE => {
                    device.close_context(Take::take(words)?);
                    Vec::new()
                }
                ALLOC_UAR => {
                    let (context, kind) = Take::take(words)?;
                    let registers = Source::<Box<dyn Registers>>::Replayed(replay.clone());
                    words_of(&device.alloc_uar(context, kind, Box::new(registers)))
                }
                _ => return None,
            })
        }
    };
}

commands! {
    trait {
        OPEN, OPEN, open_context(device: usize;) -> ContextId;
        4, 4, free_uar(context: ContextId, uar: Handle;) -> ();
        5, 5, alloc_pd(context: ContextId;) -> AllocatedPd;
        6, 6, dealloc_pd(context: ContextId, pd: Handle;) -> ();
        7, 7, reg_mr(context: ContextId; command: RegMr) -> MrKeys;
        8, 8, rereg_mr(context: ContextId; command: ReregMr) -> MrKeys;
        9, 9, dereg_mr(context: ContextId, mr: Handle;) -> ();
        number::CREATE_CQ, number::CREATE_CQ, create_cq(context: ContextId; command: CreateCq) -> CreatedCq;
        number::RESIZE_CQ, number::RESIZE_CQ, resize_cq(context: ContextId, cq: Handle; command: ResizeCq) -> u32;
        number::DESTROY_CQ, number::DESTROY_CQ, destroy_cq(context: ContextId, cq: Handle;) -> DestroyedCq;
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
