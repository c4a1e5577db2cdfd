//! Reasons for unreachable peers, of which a program otherwise learns «retry exceeded» and nothing else.
//!
//! A NIC knows the peer's address, its QPN and that no answer came. The line names them and this NIC's
//! fabric, so that both ends can be compared.

use core::net::Ipv6Addr;

use roce::wire::Gid;
use roce::wire::ip_of;

use super::ah;
use super::core::Core;
use super::model::{GidEntry, GidKind};
use super::qp::Qp;
use crate::carrier::{Carrier, PathAddress};
use crate::config::{LinkLayer, LinkPath};
use crate::reason::About;

impl<M> Core<M> {
    /// Says once a queue that no route leads to a peer, and what would have one.
    #[cold]
    pub(super) fn explain_no_route(&mut self, qp: &mut Qp, path: &PathAddress, peer: u32) {
        if std::mem::replace(&mut qp.path.explained, true) {
            return;
        }
        let layer = self.ports.configs[qp.path.port].link_layer;
        let [to, from] = [(path.dlid, path.dgid), (path.slid, path.sgid)].map(|end| in_words(layer, end));
        let why = self.why_no_route(qp.path.port, path, peer);
        let why = format!("nothing reaches {to} from {from}: {why}");
        self.host.explain(About::Qp(qp.qpn, None), "no-route", why);
    }

    fn why_no_route(&self, port: usize, path: &PathAddress, peer: u32) -> String {
        let (ports, configs) = (&self.ports, &self.ports.configs);
        let there = ah::resolve(configs, port, path.dlid, path.grh.then_some(&path.dgid));
        if let Some(there) = there.filter(|_| ports.path != LinkPath::Wire) {
            return format!(
                "that address is of mlx5_{} here, whose QPs have other numbers than {peer:#x}; compare dest_qp_num with the peer's QPN",
                configs[there].index
            );
        }
        let is_way = |gid: &GidEntry| gid.kind == GidKind::RoceV2 && ip_of(Gid(gid.gid)).is_some();
        let Some(index) = configs[port].gids.iter().position(is_way).filter(|_| ports.wire) else {
            return "no NIC of this fabric has that address (`softnic ctl list` says which it has), and this one sends no packets there"
                .to_owned();
        };
        match [path.sgid, path.dgid].map(|gid| ip_of(Gid(gid))) {
            [Some(from), Some(to)] if from.is_ipv4() != to.is_ipv4() => {
                "one is an IPv4 address and the other is not; take GIDs of one family at both ends".to_owned()
            }
            _ => format!(
                "the packets of this NIC are RoCE v2 between IP addresses. Use a GID such as index {index} at both ends \
                 (`-x {index}` of perftest); index 0, which many programs take, is RoCE v1"
            ),
        }
    }

    /// Why a peer let all retries of a queue time out.
    #[cold]
    pub(super) fn explain_silence(&self, link: &impl Carrier, qp: &Qp) -> String {
        let (peer, fabric) = (qp.attributes.dest_qpn, link.fabric_in_words());
        let layer = self.ports.configs[qp.path.port].link_layer;
        let address = in_words(layer, (qp.path.address.dlid, qp.path.address.dgid));
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

/// One end of a path: its LID, or its GID.
fn in_words(layer: LinkLayer, (lid, gid): (u16, [u8; 16])) -> String {
    match layer {
        LinkLayer::Ib => format!("LID {lid}"),
        LinkLayer::Roce => Ipv6Addr::from(gid).to_string(),
    }
}
