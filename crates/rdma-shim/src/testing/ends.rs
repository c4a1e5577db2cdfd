//! A device and its way to itself.

use std::time::{Duration, Instant};

use verbs::code::{Access, LinkLayer, Mtu};
use verbs::{AddressAttributes, Context, InitAttributes, Mr, Pages, Pd, Qp, RtrAttributes, RtsAttributes};

/// Longest wait of [`wait_for`]; far above what a busy machine needs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The first device of this host. Error: there is none, or it is not mlx5's.
pub fn device() -> Result<Context, String> {
    let context = verbs::open(None).map_err(|e| e.to_string())?;
    if context.is_mlx5() { Ok(context) } else { Err(format!("{} is not an mlx5 device", context.name())) }
}

/// The first device of this host, if it is the software NIC's, whose answer to a broken driver is defined.
pub fn softnic() -> Result<Context, String> {
    std::env::var_os("SOFTNIC_FABRIC").ok_or("not started by softnic run")?;
    device()
}

/// Brings a queue pair from RESET to RTS, with `peer` of the same port at the other end.
pub fn connect(qp: &Qp, peer: u32) {
    connect_with(qp, peer, 7);
}

/// As [`connect`], with a number of retries after an RNR NAK; 7 is without end.
pub fn connect_with(qp: &Qp, peer: u32, rnr_retry: u8) {
    let context = qp.pd().context();
    let port = context.query_port(1).unwrap();
    let gid = match port.link_layer {
        LinkLayer::Ethernet => context.gids(1).unwrap().into_iter().find(|gid| gid.roce_v2_ipv4().is_some()),
        _ => None,
    };
    let address = AddressAttributes {
        port: 1,
        lid: port.lid,
        gid: gid.map(|entry| entry.gid),
        gid_index: gid.map_or(0, |entry| entry.index as u8),
        hop_limit: 64,
        ..AddressAttributes::default()
    };
    qp.to_init(&InitAttributes { port: 1, pkey_index: 0, access: Access::ALL, qkey: 0 }).unwrap();
    let rtr = RtrAttributes {
        address,
        peer_qpn: peer,
        mtu: Mtu::Mtu1024,
        expected_psn: 0,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
    };
    qp.to_rtr(&rtr).unwrap();
    let rts = RtsAttributes { first_psn: 0, timeout: 14, retry_count: 7, rnr_retry, max_rd_atomic: 4 };
    qp.to_rts(&rts).unwrap();
}

/// Registered pages.
pub fn memory(pd: &Pd, bytes: usize) -> Mr<Pages> {
    Mr::register(pd, Pages::new(bytes).unwrap(), Access::ALL).unwrap()
}

/// Looks until there is something, or the deadline is over.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "no {what} within {DEADLINE:?}");
        std::thread::yield_now();
    }
}
