//! The device without its contexts, its queue pairs and its carrier: what the work of a round touches.

use roce::Now;

use super::cq::Cqs;
use super::faults::Faults;
use super::fetch::WqeFetch;
use super::host::HostInterface;
use super::mkey::Mkeys;
use super::model::Capabilities;
use super::payload_scatter::PayloadScatter;
use super::ports::Ports;
use super::schedule::Schedule;
use super::srq::Srqs;
use super::uar::Uars;
use super::unreachable::Unreachable;
use crate::config::NicConfig;

pub(super) struct Core<M> {
    pub host: HostInterface<M>,
    pub capabilities: Capabilities,
    pub ports: Ports,
    pub mkeys: Mkeys,
    pub cqs: Cqs,
    pub srqs: Srqs,
    pub uars: Uars,
    pub schedule: Schedule,
    /// What `softnic ctl` asked for; a NIC that was asked for nothing has none.
    pub faults: Option<Box<Faults>>,
    pub wqe_fetch: WqeFetch,
    pub payload_scatter: PayloadScatter,
    pub unreachable: Unreachable,
}

impl<M> Core<M> {
    pub(super) fn new(config: &NicConfig, host: HostInterface<M>, wire: bool, now: Now) -> Core<M> {
        Core {
            host,
            capabilities: config.model.capabilities(),
            ports: Ports::new(config, wire, now),
            mkeys: Mkeys::default(),
            cqs: Cqs::default(),
            srqs: Srqs::default(),
            uars: Uars::new(config.strict, config.doorbell_order),
            schedule: Schedule::default(),
            faults: None,
            wqe_fetch: WqeFetch::default(),
            payload_scatter: PayloadScatter::new(config.relaxed_ordering),
            unreachable: Unreachable::default(),
        }
    }

    /// Whether the messages of this second leave room for one more.
    pub(super) fn keeps_pace(&mut self) -> bool {
        self.faults.as_mut().is_none_or(|faults| faults.keeps_pace(self.host.now))
    }

    /// Whether the port at this place is down.
    pub(super) fn is_down(&self, port: usize) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.is_down(port))
    }
}
