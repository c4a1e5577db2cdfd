//! Two connected queue pairs of one open device, as the tests need them.

use std::time::{Duration, Instant};

use verbs::code::{Access, LinkLayer, Mtu};
use verbs::{
    AddressAttributes, Context, Cq, InitAttributes, Mr, Pages, Pd, Qp, QpBuilder, QpType, QueuePair,
    RtrAttributes, RtsAttributes, WorkCompletion,
};

/// The first device of this host, if it is mlx5's.
pub fn device() -> Result<Context, String> {
    let context = verbs::open(None).map_err(|e| e.to_string())?;
    if context.is_mlx5() { Ok(context) } else { Err(format!("{} is not an mlx5 device", context.name())) }
}

/// Way from a port to itself.
pub fn own_address(context: &Context) -> AddressAttributes {
    let port = context.query_port(1).unwrap();
    let gid = match port.link_layer {
        LinkLayer::InfiniBand => None,
        LinkLayer::Ethernet => context.gids(1).unwrap().into_iter().find(|gid| gid.roce_v2_ipv4().is_some()),
    };
    AddressAttributes {
        port: 1,
        lid: port.lid,
        gid: gid.map(|entry| entry.gid),
        gid_index: gid.map_or(0, |entry| entry.index as u8),
        hop_limit: 64,
        ..AddressAttributes::default()
    }
}

pub const QKEY: u32 = 0x1111_1111;

/// Brings a queue pair from RESET to RTS, with `peer` at the other end.
pub fn connect(qp: &Qp, peer: u32) {
    let address = own_address(qp.pd().context());
    qp.to_init(&InitAttributes { port: 1, pkey_index: 0, access: Access::ALL, qkey: QKEY }).unwrap();
    let rtr = RtrAttributes {
        address,
        peer_qpn: peer,
        mtu: Mtu::Mtu1024,
        expected_psn: 0x123,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
    };
    qp.to_rtr(&rtr).unwrap();
    let rts = RtsAttributes { first_psn: 0x123, timeout: 14, retry_count: 7, rnr_retry: 7, max_rd_atomic: 4 };
    qp.to_rts(&rts).unwrap();
}

/// Two ends with a CQ and a region each.
pub struct Pair {
    pub pd: Pd,
    pub cqs: [Cq; 2],
    pub qps: [QueuePair; 2],
    pub memory: [Mr<Pages>; 2],
}

impl Pair {
    pub fn new(context: &Context, builder: &QpBuilder) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cqs = [(); 2].map(|()| Cq::new(context, 128).unwrap());
        let qps = [0, 1].map(|end: usize| builder.build(&pd, &cqs[end], &cqs[end]).unwrap());
        for end in 0..2 {
            connect(&qps[end], qps[1 - end].number());
        }
        let memory = [(); 2].map(|()| Mr::register(&pd, Pages::new(1 << 20).unwrap(), Access::ALL).unwrap());
        Self { pd, cqs, qps, memory }
    }

    pub fn rc(context: &Context) -> Self {
        Self::new(context, &QpBuilder::new(QpType::Rc).sges(2, 2).inline_bytes(64))
    }

    /// Waits for one completion at an end.
    pub fn completion(&mut self, end: usize) -> WorkCompletion {
        wait_for(&mut self.cqs[end])
    }
}

/// Waits for one completion.
pub fn wait_for(cq: &mut Cq) -> WorkCompletion {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut found = [WorkCompletion::default()];
    while cq.poll(&mut found).unwrap() == 0 {
        assert!(Instant::now() < deadline, "no completion within 10 s");
        std::thread::yield_now();
    }
    found[0]
}
