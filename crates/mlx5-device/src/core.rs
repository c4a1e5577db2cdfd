//! The device without its contexts, its queue pairs and its carrier: what the work of a round touches.

use super::cq::Cqs;
use super::fetch::WqeFetch;
use super::host::HostInterface;
use super::mkey::Mkeys;
use super::model::Capabilities;
use super::payload_scatter::PayloadScatter;
use super::ports::Ports;
use super::schedule::Schedule;
use super::srq::Srqs;
use super::uar::Uars;
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
    pub wqe_fetch: WqeFetch,
    pub payload_scatter: PayloadScatter,
}

impl<M> Core<M> {
    pub(super) fn new(config: &NicConfig, host: HostInterface<M>, wire: bool) -> Core<M> {
        Core {
            host,
            capabilities: config.model.capabilities(),
            ports: Ports::new(config, wire),
            mkeys: Mkeys::default(),
            cqs: Cqs::default(),
            srqs: Srqs::default(),
            uars: Uars::new(config.strict, config.doorbell_order),
            schedule: Schedule::default(),
            wqe_fetch: WqeFetch::default(),
            payload_scatter: PayloadScatter::new(config.relaxed_ordering),
        }
    }
}
