//! The device without its queue pairs and its carrier: tables, memory, events, counters, and the one way a completion takes.

use std::sync::Arc;

use mlx5_layout::send_wqe::MAX_WQE_BYTES;
use mlx5_layout::{CqeFields, CqeSyndrome};
use roce::Now;

use super::ah::Ah;
use super::command::{ContextId, EventSink, event_type};
use super::context::Context;
use super::counters::{Counters, PortCounters};
use super::cq::{Cq, Pushed};
use super::faults::Faults;
use super::model::{Capabilities, DeviceConfig};
use super::mr::Regions;
use super::pd::Pd;
use super::schedule::Schedule;
use super::sq::Pool;
use super::srq::Srq;
use super::table::Table;
use super::uar::Uar;
use crate::TokenBucket;
use crate::config::{DoorbellOrder, LinkPath, NicConfig};
use crate::memory::{Memory, Segment};
use crate::threads::{ThreadTime, Threads};

/// Where log lines go: stderr for a process, a vector for tests.
pub trait LogSink: Send {
    /// One line, without a newline at its end.
    fn line(&mut self, text: &str);
}

/// The switches of the configuration that the device looks at while it runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    pub strict: bool,
    pub doorbell_order: DoorbellOrder,
    pub relaxed_ordering: bool,
    pub path: LinkPath,
    /// Packets can leave.
    pub wire: bool,
}

/// The states of the program's threads, sampled once a round however many queues ask.
#[derive(Default)]
pub(super) struct ThreadSampler {
    threads: Option<Box<dyn Threads>>,
    last: Option<(Now, Arc<[ThreadTime]>)>,
}

impl ThreadSampler {
    pub(super) fn new(threads: Box<dyn Threads>) -> ThreadSampler {
        ThreadSampler { threads: Some(threads), last: None }
    }

    /// How they stand in the round of this time.
    pub(super) fn look(&mut self, now: Now) -> Arc<[ThreadTime]> {
        match &self.last {
            Some((at, threads)) if *at == now => threads.clone(),
            _ => {
                let threads = self.threads.as_mut().map(|threads| threads.look()).unwrap_or_default();
                let threads: Arc<[_]> = threads.into();
                self.last = Some((now, threads.clone()));
                threads
            }
        }
    }
}

/// Everything of the NIC but its queue pairs and the carrier.
pub(super) struct Core<M> {
    pub memory: M,
    pub events: Box<dyn EventSink>,
    pub log: Box<dyn LogSink>,
    pub options: Options,
    /// Every port of every device, those of `mlx5_0` first.
    pub ports: Vec<DeviceConfig>,
    pub ports_each: u8,
    /// What each port carried.
    pub port_counters: Vec<PortCounters>,
    pub capabilities: Capabilities,
    pub contexts: Table<Context>,
    pub pds: Table<Pd>,
    pub regions: Regions,
    pub uars: Table<Uar>,
    pub cqs: Table<Cq>,
    pub srqs: Table<Srq>,
    pub ahs: Table<Ah>,
    /// Keys of windows that were closed by the queue in hand or by a command: the other queues lose them before they have their turn.
    pub revoked: Vec<u32>,
    pub counters: Counters,
    pub schedule: Schedule,
    pub shapers: Vec<TokenBucket>,
    pub pool: Pool,
    pub now: Now,
    pub threads: ThreadSampler,
    /// What `softnic ctl` asked for; a NIC that was asked for nothing has none.
    pub faults: Option<Box<Faults>>,
    /// The WQE in hand.
    pub wqe: Box<[u8; MAX_WQE_BYTES]>,
    /// Scatter list of the message in hand.
    pub segments: Vec<Segment>,
    /// CQs that died in this poll; their QPs follow.
    pub dead_cqs: Vec<(u32, u32)>,
    /// Shared receive queues that died in this poll; their QPs follow.
    pub dead_srqs: Vec<(u32, u32)>,
    /// The line of `unreached` was said.
    pub unreached_said: bool,
    /// The time now, within a round.
    pub clock: fn() -> Now,
}

/// A message of so many bytes takes long enough to copy that its completion needs the time anew; reading the clock takes 20 ns.
pub(super) const LONG_BYTES: u32 = 4096;

impl<M: Memory> Core<M> {
    pub(super) fn new(
        config: &NicConfig,
        memory: M,
        wire: bool,
        events: Box<dyn EventSink>,
        log: Box<dyn LogSink>,
        now: Now,
    ) -> Core<M> {
        let ports = DeviceConfig::all(config);
        let shapers = ports.iter().map(|_| TokenBucket::new(config.rate_gbps, now)).collect();
        Core {
            memory,
            events,
            log,
            options: Options {
                strict: config.strict,
                doorbell_order: config.doorbell_order,
                relaxed_ordering: config.relaxed_ordering,
                path: config.path,
                wire,
            },
            capabilities: config.model.capabilities(),
            port_counters: vec![PortCounters::default(); ports.len()],
            ports,
            ports_each: config.ports,
            contexts: Table::default(),
            pds: Table::default(),
            regions: Regions::default(),
            uars: Table::default(),
            cqs: Table::default(),
            srqs: Table::default(),
            ahs: Table::default(),
            revoked: Vec::new(),
            counters: Counters::default(),
            schedule: Schedule::default(),
            shapers,
            pool: Pool::default(),
            now,
            threads: ThreadSampler::default(),
            faults: None,
            wqe: Box::new([0; MAX_WQE_BYTES]),
            segments: Vec::new(),
            dead_cqs: Vec::new(),
            dead_srqs: Vec::new(),
            unreached_said: false,
            clock: Now::default,
        }
    }

    /// Place of the first port of a device.
    pub(super) fn first_port(&self, device: usize) -> usize {
        device * usize::from(self.ports_each)
    }

    /// Place of a device's port by its number. The error is a sentence.
    pub(super) fn place_of_port(&self, device: usize, number: u8) -> Result<usize, String> {
        let devices = self.ports.len() / usize::from(self.ports_each);
        if device >= devices {
            return Err(format!("there is no device mlx5_{device}, this NIC has {devices}"));
        }
        let wanted = number.checked_sub(1).filter(|before| *before < self.ports_each);
        let missing = || format!("port {number} does not exist, mlx5_{device} has {}", self.ports_each);
        wanted.map(|before| self.first_port(device) + usize::from(before)).ok_or_else(missing)
    }

    /// Writes a CQE, and gives the event that the CQ was armed for. A full CQ fails here, and its QPs after this poll.
    pub(super) fn complete(&mut self, place: u32, mut fields: CqeFields, payload: Option<&[u8]>) {
        let Some(cq) = self.cqs.get_mut(place) else { return };
        // Copies before it may have taken most of this round: a card stamps what is whole.
        if fields.byte_count >= LONG_BYTES {
            self.now = self.now.max((self.clock)());
        }
        fields.timestamp = self.now.0;
        match cq.push(&self.memory, &mut fields, payload) {
            Pushed::Written { event } => {
                self.counters.cqes += 1;
                if let Some(syndrome) =
                    fields.opcode.is_error().then(|| CqeSyndrome::from_u8(fields.error.syndrome))
                {
                    self.counters.error(syndrome.unwrap_or(CqeSyndrome::RemoteAborted));
                }
                if event {
                    self.announce(place);
                }
            }
            Pushed::Died => self.overrun(place),
            Pushed::Dead => {}
        }
    }

    /// Gives the completion event of a CQ that was armed.
    pub(super) fn announce(&mut self, place: u32) {
        let Some(cq) = self.cqs.get_mut(place) else { return };
        if let Some(channel) = cq.channel
            && self.events.completion(channel, cq.user_handle)
        {
            cq.completion_events = cq.completion_events.wrapping_add(1);
            self.counters.completion_events += 1;
        }
    }

    fn overrun(&mut self, place: u32) {
        let Some(cq) = self.cqs.get_mut(place) else { return };
        self.counters.cq_overruns += 1;
        self.dead_cqs.push((place, cq.cqn));
        let (cqn, entries, context, element) = (cq.cqn, cq.entries, cq.context, cq.user_handle);
        if self.events.asynchronous(context, element, event_type::CQ_ERR) {
            cq.async_events = cq.async_events.wrapping_add(1);
            self.counters.async_events += 1;
        }
        self.log.line(&format!(
            "softnic: CQ {cqn:#x} overrun: {entries} entries, none given back; the CQ and its QPs are in error"
        ));
    }

    /// Gives an asynchronous event; true when it was delivered.
    pub(super) fn asynchronous(&mut self, context: ContextId, element: u64, kind: u32) -> bool {
        let delivered = self.events.asynchronous(context, element, kind);
        self.counters.async_events += u64::from(delivered);
        delivered
    }
}
