//! The NIC of one process: all its devices, contexts and objects, driven by one thread at a time.
//!
//! Commands come from the ABI ([`crate::commands`]); [`Nic::poll`] is one round of the device's own work.
//! Time is an argument. Everything that programs pass by address goes through [`Memory`], and errors are
//! values: a guest cannot crash the NIC (INV-13).

use roce::Now;

use super::command::{EventSink, event_type};
use super::context::Contexts;
use super::core::Core;
use super::counters::{Counters, PortCounters};
use super::faults::{Injection, Settings};
use super::host::{EventTarget, HostInterface, LogSink};
use super::impairment::Impairment;
use super::model::{Capabilities, DeviceConfig};
use super::qps::Qps;
use super::table::Table;
use crate::carrier::Carrier;
use crate::config::{NicConfig, NicConfigError};
use crate::memory::Memory;

/// Arrivals taken in one round: acknowledgements leave at its end, and senders with short queues need them.
const ARRIVALS: usize = 32;

/// Changes that are kept in words, for the line of counters; all of them count.
const MAX_CHANGES: usize = 64;

/// Runs something on the carrier, or on the carrier with its impairment where that has anything to do.
macro_rules! on_carrier {
    ($nic:ident, |$core:ident, $link:ident, $qps:ident| $run:expr) => {{
        let $crate::Nic { core: $core, link: $link, qps: $qps, impairment, .. } = $nic;
        if impairment.acts() {
            let $link = &mut $crate::impairment::Impaired { carrier: $link, impairment };
            let done = $run;
            $link.impairment.report(&mut $core.host.counters);
            done
        } else {
            $run
        }
    }};
}
pub(super) use on_carrier;

/// The software NIC of one process. One thread at a time uses it.
pub struct Nic<M: Memory, C: Carrier> {
    pub(super) link: C,
    pub(super) contexts: Contexts,
    /// Protection domains, with what belongs to each as its users.
    pub(super) pds: Table<()>,
    /// Address handles: the protection domain of each.
    pub(super) ahs: Table<u32>,
    pub(super) qps: Qps,
    pub(super) core: Core<M>,
    pub(super) impairment: Impairment,
    /// The first changes, in words.
    changes: Vec<String>,
}

impl<M: Memory, C: Carrier> Nic<M, C> {
    /// A NIC with the devices of the configuration and nothing opened.
    ///
    /// Errors: a setting out of its range.
    pub fn new(
        config: &NicConfig,
        memory: M,
        link: C,
        events: Box<dyn EventSink>,
        log: LogSink,
        now: Now,
    ) -> Result<Nic<M, C>, NicConfigError> {
        config.check()?;
        let counters = Counters::default();
        let host = HostInterface { memory, events, log, counters, now, clock: Box::new(Now::default) };
        let mut nic = Nic {
            contexts: Contexts::default(),
            pds: Table::default(),
            ahs: Table::default(),
            qps: Qps::new(link.slot()),
            core: Core::new(config, host, link.has_wire()),
            impairment: Impairment::new(config, now),
            changes: Vec::new(),
            link,
        };
        nic.link.set_delay(config.delay_ns);
        Ok(nic)
    }

    /// From now on this clock stamps completions of long messages, not the time at which their round began.
    pub fn stamp_by(&mut self, clock: impl Fn() -> Now + Send + 'static) {
        self.core.host.clock = Box::new(clock);
    }

    // What the devices are.

    /// The ports of all devices, those of `mlx5_0` first.
    pub fn ports(&self) -> &[DeviceConfig] {
        &self.core.ports.configs
    }

    /// What the port at this place carried.
    pub fn port_counters(&self, place: usize) -> PortCounters {
        self.core.ports.counters.get(place).cloned().unwrap_or_default()
    }

    /// Limits and capability bits, the same for every device.
    pub fn capabilities(&self) -> &Capabilities {
        &self.core.capabilities
    }

    pub fn counters(&self) -> Counters {
        let mut counters = self.core.host.counters.clone();
        for port in &self.core.ports.counters {
            counters.messages_sent += port.messages_sent;
            counters.wire_bytes_sent += port.wire_bytes_sent;
        }
        counters
    }

    /// QPs at the port of this place; a QP that was never told its port is at its device's first.
    pub fn open_qps(&self, place: usize) -> usize {
        self.qps.iter().filter(|qp| qp.path.port == place).count()
    }

    /// The link, for sleeping and its counters.
    pub fn link(&mut self) -> &mut C {
        &mut self.link
    }

    // What `softnic ctl` asks for.

    /// Takes a port of a device, by its number, down or up; the device's contexts get the event. Nothing
    /// happens if it is so already. The error is a sentence.
    pub fn set_link(&mut self, device: usize, port: u8, up: bool) -> Result<(), String> {
        let place = self.core.ports.place(device, port)?;
        if self.impairment.is_down(place) != up {
            return Ok(());
        }
        let state = if up { "up" } else { "down" };
        let number = if self.core.ports.each > 1 { format!(" port={port}") } else { String::new() };
        self.changed(format!("link mlx5_{device} {state}{number}"));
        self.impairment.toggle(place);
        let kind = if up { event_type::PORT_ACTIVE } else { event_type::PORT_ERR };
        for context in self.contexts.of_device(device) {
            // The element is the port's number.
            EventTarget::new(context, port.into()).raise(&mut self.core.host, kind);
        }
        Ok(())
    }

    /// The first changes, in the words of `softnic ctl`: 64 at most, while `ctl_changes` counts all.
    pub fn changes(&self) -> &[String] {
        &self.changes
    }

    /// Changes loss, seed, delay and rates. The error is a sentence.
    pub fn set(&mut self, settings: &Settings) -> Result<(), String> {
        settings.check()?;
        self.changed(format!("set {settings}"));
        self.impairment.set(settings, self.core.host.now);
        if let Some(delay) = settings.delay {
            self.link.set_delay(delay.0);
        }
        Ok(())
    }

    /// One fault, at the next message that it fits. The error is a sentence.
    pub fn inject(&mut self, injection: Injection) -> Result<(), String> {
        self.impairment.wait(&self.qps, injection)?;
        self.changed(format!("inject {injection}"));
        Ok(())
    }

    /// Counts and says that this NIC is no longer as it was configured: the reader of the result must know.
    fn changed(&mut self, what: String) {
        self.core.host.counters.ctl_changes += 1;
        self.core.host.log_line(&format!("softnic ctl changed this NIC: {what}"));
        if self.changes.len() < MAX_CHANGES {
            self.changes.push(what);
        }
    }

    // The device's own work.

    /// One round. Returns how much was done; 0: nothing moved, the thread may rest.
    pub fn poll(&mut self, now: Now) -> usize {
        on_carrier!(self, |core, link, qps| core.poll(link, qps, now, ARRIVALS))
    }

    /// One of the last rounds: no acknowledgement waits for its program's message. Returns how much was done.
    pub fn poll_last(&mut self, now: Now) -> usize {
        on_carrier!(self, |core, link, qps| core.acknowledge_all(link, qps, None)) + self.poll(now)
    }

    /// When the next round is due, if no peer rings and the program posts nothing; `None`: no queue asks for
    /// one. A time that is not after the last round's: as soon as possible.
    pub fn due(&self) -> Option<Now> {
        let (schedule, now) = (&self.core.schedule, self.core.host.now);
        let has_room = |place: &u32| self.qps.get(*place).is_none_or(|qp| !qp.responses.refused);
        let replies = schedule.replying.list.iter().any(has_room);
        if replies || self.link.has_delayed() || self.impairment.has_overtaken() {
            return Some(now);
        }
        schedule.hot.list.iter().filter_map(|place| self.qps.get(*place)?.due(now)).min()
    }
}
