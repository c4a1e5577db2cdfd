//! One line for a program whose messages reach no peer, which otherwise sees «retry exceeded» and nothing else.
//!
//! The address of a peer, its QPN and its silence are all that a NIC knows: the line names them, and where
//! the NIC looked, so that both ends can be compared.

use core::net::Ipv6Addr;

use roce::wire::Gid;
use roce::wire::ip_of;

use super::machine::Machine;
use super::model::GidKind;
use super::ports::Ports;
use super::qp::Qp;
use crate::carrier::{Carrier, PathAddress};
use crate::config::LinkLayer;

#[derive(Debug, Default)]
pub(super) struct Unreached {
    said: bool,
}

impl Unreached {
    /// No way leads from a GID of this port to that of a peer. Where packets can leave, another GID may be a way.
    #[cold]
    pub(super) fn no_way<M>(
        &mut self,
        machine: &mut Machine<M>,
        ports: &Ports,
        qpn: u32,
        port: usize,
        path: &PathAddress,
    ) {
        let gids = &ports.configs[port].gids;
        let is_way =
            |index: &usize| gids[*index].kind == GidKind::RoceV2 && ip_of(Gid(gids[*index].gid)).is_some();
        let Some(index) = (0..gids.len()).find(is_way).filter(|_| ports.wire && !self.said) else { return };
        let [from, to] = [path.sgid, path.dgid].map(Ipv6Addr::from);
        self.said = true;
        machine.say(&format!(
            "QP {qpn:#x}: nothing reaches {to} from {from}: the packets of this NIC are RoCE v2 between IP addresses. Use a \
             GID such as index {index} at both ends (`-x {index}` of perftest); index 0, which many programs take, is RoCE v1"
        ));
    }

    /// Why a peer let all retries of a queue time out.
    #[cold]
    pub(super) fn unanswered(&self, ports: &Ports, link: &impl Carrier, qp: &Qp) -> String {
        let (peer, fabric) = (qp.attributes.dest_qpn, link.fabric_in_words());
        let address = match ports.configs[qp.path.port].link_layer {
            LinkLayer::Ib => format!("LID {}", qp.path.address.dlid),
            LinkLayer::Roce => Ipv6Addr::from(qp.path.address.dgid).to_string(),
        };
        let there = match qp.path.way.peer() {
            _ if qp.path.way.route().is_some() => {
                "a NIC must have that address, and UDP port 4791 be open on the way".to_owned()
            }
            None => "no NIC there has that address".to_owned(),
            Some(slot) => link.peer_in_words(slot),
        };
        format!(
            "QP {peer:#x} at {address} does not answer. This NIC is on {fabric}; {there}. Compare with `softnic ctl list` at \
             the other end"
        )
    }
}
