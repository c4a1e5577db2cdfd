//! Every counter of a process's NIC, by the names of the stats line.

use crate::Nic;
use crate::dma::{copiers, gpu};
use crate::rdma_cm::Manager;

/// Every counter of the device and of the link, by the names of the stats line.
pub fn counters(nic: &mut Nic, manager: &Manager) -> Vec<(&'static str, u64)> {
    let link = nic.link().counters();
    let wire = wire_counters(nic);
    let delay_ns = nic.link().delay_ns();
    let device = nic.counters().fields();
    device
        .chain(link.fields())
        .chain([("link_delay_ns", delay_ns)])
        .chain(wire)
        .chain(copiers::counters())
        .chain(gpu::counters())
        .chain(manager.counters())
        .collect()
}

/// Those of the wire; all are 0 without one, but for the connection manager's datagrams within the fabric (`mads_*`).
fn wire_counters(nic: &mut Nic) -> impl Iterator<Item = (&'static str, u64)> + use<> {
    let (wire, port) = nic.link().wire_counters().unwrap_or_default();
    let router = nic.link().mad_router();
    let (mads, local) = (router.counters(), router.local_counters());
    [
        ("wire_packets_sent", wire.sent),
        ("wire_packets_received", wire.received),
        ("wire_received_bytes", wire.received_bytes),
        ("wire_icrc_errors", wire.icrc_errors),
        ("wire_malformed", wire.malformed + port.malformed),
        ("wire_pkey_violations", wire.pkey_violations),
        ("wire_reserved", wire.reserved),
        ("wire_cnps", wire.cnps),
        ("wire_lost", wire.lost),
        ("wire_overtaken", wire.overtaken),
        ("wire_untaken", wire.untaken),
        ("wire_handed_on", port.handed_on),
        ("wire_undeliverable", port.undeliverable),
        ("wire_refused", port.refused),
        ("wire_unsent", port.unsent),
        ("wire_ports_owned", port.owned),
        ("wire_socket_errors", wire.socket_errors),
        ("mads_unclaimed", local.unclaimed),
        ("mads_malformed", local.malformed),
        ("mads_full", local.full),
        ("mads_failed", local.failed),
    ]
    .into_iter()
    .chain(mads.fields())
}
