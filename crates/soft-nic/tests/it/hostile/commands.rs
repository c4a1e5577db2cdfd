//! Commands with something wrong in them, in a context of their own beside the traffic.

use mlx5_device::Commands as _;
use mlx5_device::UarKind;
use mlx5_device::command::{
    AddressVector, AllocMw, CommandError, ContextId, CreateCq, CreateQp, CreateSrq, ModifyQp, ModifySrq,
    QpCap, RegMr, ResizeCq,
};
use roce::ServiceType;
use soft_nic::dma::Host;
use soft_nic::testing::{Block, Driver, QpId, QpShape, Region, RegisterPage, Setup, block};

use super::Tally;
use super::rng::Rng;

/// Every way in which a command can be refused here.
pub const REFUSALS: [(&str, i32); 42] = [
    ("open", libc::ENODEV),
    ("ALLOC_PD", libc::EINVAL),
    ("ALLOC_PD", libc::ENOMEM),
    ("DEALLOC_PD", libc::EINVAL),
    ("DEALLOC_PD", libc::EBUSY),
    ("REG_MR", libc::EINVAL),
    ("REG_MR", libc::ENOMEM),
    ("REG_MR", libc::EFAULT),
    ("REG_MR", libc::EOPNOTSUPP),
    ("DEREG_MR", libc::EINVAL),
    ("ALLOC_MW", libc::EINVAL),
    ("ALLOC_MW", libc::ENOMEM),
    ("DEALLOC_MW", libc::EINVAL),
    ("UAR_DESTROY", libc::EINVAL),
    ("UAR_DESTROY", libc::EBUSY),
    ("CREATE_CQ", libc::EINVAL),
    ("CREATE_CQ", libc::ENOMEM),
    ("CREATE_CQ", libc::EFAULT),
    ("DESTROY_CQ", libc::EINVAL),
    ("DESTROY_CQ", libc::EBUSY),
    ("CREATE_QP", libc::EINVAL),
    ("CREATE_QP", libc::ENOMEM),
    ("CREATE_QP", libc::EFAULT),
    ("CREATE_QP", libc::EOPNOTSUPP),
    ("MODIFY_QP", libc::EINVAL),
    ("QUERY_QP", libc::EINVAL),
    ("DESTROY_QP", libc::EINVAL),
    ("CREATE_SRQ", libc::EINVAL),
    ("CREATE_SRQ", libc::ENOMEM),
    ("CREATE_SRQ", libc::EFAULT),
    ("MODIFY_SRQ", libc::EINVAL),
    ("QUERY_SRQ", libc::EINVAL),
    ("DESTROY_SRQ", libc::EINVAL),
    ("DESTROY_SRQ", libc::EBUSY),
    ("RESIZE_CQ", libc::EINVAL),
    ("RESIZE_CQ", libc::EFAULT),
    ("REREG_MR", libc::EINVAL),
    ("REREG_MR", libc::EFAULT),
    ("REREG_MR", libc::EOPNOTSUPP),
    ("CREATE_AH", libc::EINVAL),
    ("CREATE_AH", libc::ENOMEM),
    ("DESTROY_AH", libc::EINVAL),
];

pub struct Commands {
    driver: Driver<Host>,
    context: ContextId,
    closed: ContextId,
    pd: u32,
    cq: u32,
    srq: u32,
    qp: u32,
    page: u32,
    ring: Block,
    record: Block,
    memory: Block,
    full: Full,
}

/// A device on which nothing more can be made: every limit is what is in use.
struct Full {
    driver: Driver<Host>,
    region: Region,
    qp: QpId,
    page: u32,
}

impl Full {
    fn new() -> Full {
        let mut driver = Driver::new(Setup::new("hostile-full"));
        let (region, qp) = (driver.region(4096, 0xf), driver.create_qp(QpShape::default()));
        driver.nic.create_ah(driver.context, driver.pd, &neighbour()).expect("an AH");
        driver.nic.lower_limits(|limits| {
            (limits.max_pd, limits.max_mr, limits.max_cq, limits.max_qp, limits.max_ah) = (1, 1, 2, 1, 1);
            (limits.max_srq, limits.max_mw) = (0, 1);
        });
        let page =
            driver.nic.alloc_uar(driver.context, UarKind::BlueFlame, Box::new(RegisterPage::default()));
        Full { region, qp, page: page.expect("a page").number, driver }
    }

    /// One more of something, asked for rightly.
    fn round(&mut self, rng: &mut Rng, tally: &mut Tally, cq: &CreateCq, qp: &CreateQp) {
        let (context, pd) = (self.driver.context, self.driver.pd);
        let (start, length) = (self.region.address, 4096);
        let mr = RegMr { start, length, iova: start, pd, access: 0xf };
        let cqs = self.driver.cq(self.driver.qp(self.qp).send_cq).handle;
        let qp = CreateQp { pd, send_cq: cqs, recv_cq: cqs, uar_page: Some(self.page), ..*qp };
        let nic = &mut self.driver.nic;
        let (buffer, record) = (start, start);
        let srq = CreateSrq { pd, max_wr: 15, max_sge: 1, user_handle: 0, buffer, record };
        let made = match rng.below(7) {
            0 => note(tally, "ALLOC_PD", nic.alloc_pd(context)).is_some(),
            1 => note(tally, "REG_MR", nic.reg_mr(context, &mr)).is_some(),
            2 => note(tally, "CREATE_CQ", nic.create_cq(context, cq)).is_some(),
            3 => note(tally, "CREATE_QP", nic.create_qp(context, &qp)).is_some(),
            4 => note(tally, "CREATE_SRQ", nic.create_srq(context, &srq)).is_some(),
            5 => note(tally, "ALLOC_MW", nic.alloc_mw(context, &AllocMw { pd, kind: 2 })).is_some(),
            _ => note(tally, "CREATE_AH", nic.create_ah(context, pd, &neighbour())).is_some(),
        };
        assert!(!made, "more than there may be");
    }
}

/// The device itself, by its LID.
fn neighbour() -> AddressVector {
    AddressVector { port: 1, dlid: 1, ..AddressVector::default() }
}

impl Commands {
    pub fn new() -> Commands {
        let mut driver = Driver::new(Setup::new("hostile-commands"));
        let closed = driver.nic.open_context(0).expect("an open");
        let context = driver.nic.open_context(0).expect("an open");
        driver.nic.close_context(closed);
        let pd = driver.nic.alloc_pd(context).expect("a PD").handle;
        let (ring, record, memory) = (block(32 * 1024), block(64), block(8192));
        let page = driver.nic.alloc_uar(context, UarKind::BlueFlame, Box::new(RegisterPage::default()));
        let page = page.expect("a page").number;
        let full = Full::new();
        let mut commands =
            Commands { driver, context, closed, pd, cq: 0, srq: 0, qp: 0, page, ring, record, memory, full };
        commands.cq = commands.driver.nic.create_cq(context, &commands.cq_request()).expect("a CQ").handle;
        commands.srq =
            commands.driver.nic.create_srq(context, &commands.srq_request()).expect("an SRQ").handle;
        commands.qp = commands
            .driver
            .nic
            .create_qp(context, &CreateQp { srq: Some(commands.srq), ..commands.qp_request() })
            .expect("a QP")
            .handle;
        commands
    }

    fn cq_request(&self) -> CreateCq {
        CreateCq {
            cqe: 255,
            cqe_size: 64,
            buffer: self.ring.address(),
            record: self.record.address(),
            user_handle: 7,
            channel: None,
            ignore_overrun: false,
        }
    }

    fn srq_request(&self) -> CreateSrq {
        let (buffer, record) = (self.ring.address(), self.record.address());
        CreateSrq { pd: self.pd, max_wr: 255, max_sge: 1, user_handle: 9, buffer, record }
    }

    fn qp_request(&self) -> CreateQp {
        CreateQp {
            service: ServiceType::Rc,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            cap: QpCap::default(),
            user_handle: 8,
            signal_all: false,
            buffer: self.ring.address(),
            record: self.record.address(),
            sq_wqe_count: 64,
            rq_wqe_count: 64,
            rq_wqe_shift: 6,
            mlx5_flags: 1 << 10,
            user_index: 1,
            uar_page: Some(self.page),
        }
    }

    /// A few commands of every family.
    pub fn round(&mut self, rng: &mut Rng, tally: &mut Tally) {
        self.regions(rng, tally);
        self.cqs(rng, tally);
        self.srqs(rng, tally);
        self.qps(rng, tally);
        self.states(rng, tally);
        self.handles(rng, tally);
        let (cq, qp) = (self.cq_request(), self.qp_request());
        self.full.round(rng, tally, &cq, &qp);
        self.driver.poll();
    }

    fn regions(&mut self, rng: &mut Rng, tally: &mut Tally) {
        let (start, length) = (self.memory.address(), self.memory.len() as u64);
        let mut request = RegMr { start, length, iova: start, pd: self.pd, access: 0xf };
        match rng.below(6) {
            0 => request.start = rng.edge(start),
            1 => request.length = rng.edge(length),
            2 => request.iova = rng.edge(start),
            3 => request.access = rng.edge(0xf) as u32,
            4 => request.pd = rng.edge(self.pd.into()) as u32,
            _ => request.length = 1 + rng.below(2 * length),
        }
        if let Some(keys) = note(tally, "REG_MR", self.driver.nic.reg_mr(self.context, &request)) {
            let (mut mr, mut flags) = (keys.handle, rng.below(8) as u32);
            let mut change = RegMr {
                start: start + rng.below(length),
                length: rng.below(length),
                iova: start,
                pd: self.pd,
                access: 0xf,
            };
            match rng.below(6) {
                0 => flags = rng.edge(7) as u32,
                1 => change.start = rng.edge(start),
                2 => change.length = rng.edge(length),
                3 => change.access = rng.edge(0xf) as u32,
                4 => mr = rng.edge(keys.handle.into()) as u32,
                _ => (change.start, change.length) = (start, length),
            }
            note(tally, "REREG_MR", self.driver.nic.rereg_mr(self.context, mr, flags, &change));
            self.driver.nic.dereg_mr(self.context, keys.handle).expect("just made");
        }
    }

    fn cqs(&mut self, rng: &mut Rng, tally: &mut Tally) {
        let mut request = self.cq_request();
        match rng.below(5) {
            0 => request.cqe = rng.edge(255) as u32,
            1 => request.cqe_size = rng.pick(&[0, 1, 32, 64, 96, 128, 256, u32::MAX]),
            2 => request.buffer = rng.address(request.buffer),
            3 => request.record = rng.address(request.record),
            _ => request.cqe = (1u32 << rng.below(32)).wrapping_sub(1),
        }
        if let Some(cq) = note(tally, "CREATE_CQ", self.driver.nic.create_cq(self.context, &request)) {
            let mut change = ResizeCq { cqe: 127, cqe_size: request.cqe_size, buffer: self.ring.address() };
            match rng.below(4) {
                0 => change.cqe = rng.edge(127) as u32,
                1 => change.cqe_size = rng.edge(64) as u32,
                2 => change.buffer = rng.address(change.buffer),
                _ => change.cqe = 1 << rng.below(32),
            }
            note(tally, "RESIZE_CQ", self.driver.nic.resize_cq(self.context, cq.handle, &change));
            self.driver.nic.destroy_cq(self.context, cq.handle).expect("just made");
        }
    }

    fn srqs(&mut self, rng: &mut Rng, tally: &mut Tally) {
        let mut request = self.srq_request();
        match rng.below(6) {
            0 => request.max_wr = rng.edge(255) as u32,
            1 => request.max_sge = rng.edge(1) as u32,
            2 => request.buffer = rng.address(request.buffer),
            3 => request.record = rng.address(request.record),
            4 => request.pd = rng.edge(self.pd.into()) as u32,
            _ => request.max_wr = 1 << rng.below(32),
        }
        if let Some(srq) = note(tally, "CREATE_SRQ", self.driver.nic.create_srq(self.context, &request)) {
            self.driver.nic.destroy_srq(self.context, srq.handle).expect("just made");
        }
        let (handle, mask) = (rng.pick(&[self.srq, self.srq, 4711]), rng.below(4) as u32);
        let request = ModifySrq { mask, limit: rng.edge(255) as u32 };
        note(tally, "MODIFY_SRQ", self.driver.nic.modify_srq(self.context, handle, &request));
    }

    fn qps(&mut self, rng: &mut Rng, tally: &mut Tally) {
        let mut request = self.qp_request();
        match rng.below(13) {
            12 => request.srq = Some(rng.edge(self.srq.into()) as u32),
            0 => request.pd = rng.edge(self.pd.into()) as u32,
            1 => request.send_cq = rng.edge(self.cq.into()) as u32,
            2 => request.recv_cq = rng.edge(self.cq.into()) as u32,
            3 => request.buffer = rng.address(request.buffer),
            4 => request.record = rng.address(request.record),
            5 => request.sq_wqe_count = rng.edge(64) as u32,
            6 => request.rq_wqe_count = rng.edge(64) as u32,
            7 => request.rq_wqe_shift = rng.edge(6) as u32,
            8 => request.mlx5_flags = rng.next() as u32,
            9 => request.uar_page = rng.pick(&[None, Some(u32::MAX), Some(12345)]),
            10 => request.cap.max_send_sge = rng.edge(30) as u32,
            _ => request.sq_wqe_count = 1 << rng.below(32),
        }
        if let Some(qp) = note(tally, "CREATE_QP", self.driver.nic.create_qp(self.context, &request)) {
            self.driver.nic.destroy_qp(self.context, qp.handle).expect("just made");
        }
    }

    fn states(&mut self, rng: &mut Rng, tally: &mut Tally) {
        let right = self.driver.attributes(self.driver.nic.ports()[0].lid.into());
        let request = ModifyQp {
            mask: if rng.one_in(2) { rng.next() as u32 } else { rng.next() as u32 & 0x1f_ffff },
            state: rng.below(8) as u8,
            current_state: rng.below(7) as u8,
            path_mtu: rng.edge(right.path_mtu.into()) as u8,
            dest_qpn: rng.next() as u32,
            port: rng.below(3) as u8,
            pkey_index: rng.below(2) as u16,
            timeout: rng.next() as u8,
            max_rd_atomic: rng.next() as u8,
            ..right
        };
        note(tally, "MODIFY_QP", self.driver.nic.modify_qp(self.context, self.qp, &request));
        // Through its states now and then, so that there is something to refuse in each.
        let steps = [
            (0, 1),
            (1, 0x39),
            (2, 1 << 0 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20),
            (3, 0x1_2e01),
        ];
        let (state, mask) = rng.pick(&steps);
        note(
            tally,
            "MODIFY_QP",
            self.driver.nic.modify_qp(self.context, self.qp, &ModifyQp { state, mask, ..right }),
        );
    }

    fn handles(&mut self, rng: &mut Rng, tally: &mut Tally) {
        let (context, nobody) = (self.context, 1000 + rng.below(1 << 20) as u32);
        let nic = &mut self.driver.nic;
        let mut vector = neighbour();
        match rng.below(24) {
            0 => drop(note(tally, "open", nic.open_context(1 + rng.below(100) as usize))),
            1 => drop(note(tally, "ALLOC_PD", nic.alloc_pd(self.closed))),
            2 => note(tally, "DEALLOC_PD", nic.dealloc_pd(context, nobody)).unwrap_or_default(),
            3 => note(tally, "DEALLOC_PD", nic.dealloc_pd(context, self.pd)).unwrap_or_default(),
            4 => note(tally, "DEREG_MR", nic.dereg_mr(context, nobody)).unwrap_or_default(),
            5 => note(tally, "UAR_DESTROY", nic.free_uar(context, nobody)).unwrap_or_default(),
            6 => note(tally, "UAR_DESTROY", nic.free_uar(context, 0)).unwrap_or_default(),
            7 => drop(note(tally, "DESTROY_CQ", nic.destroy_cq(context, nobody))),
            8 => drop(note(tally, "DESTROY_CQ", nic.destroy_cq(context, self.cq))),
            9 => drop(note(tally, "QUERY_QP", nic.query_qp(context, nobody))),
            10 => drop(note(tally, "DESTROY_QP", nic.destroy_qp(context, nobody))),
            11 => note(tally, "DESTROY_AH", nic.destroy_ah(context, nobody)).unwrap_or_default(),
            12 => {
                vector.port = rng.edge(1) as u8;
                vector.sgid_index = rng.next() as u8;
                vector.dgid = rng.one_in(2).then_some([rng.next() as u8; 16]);
                if let Some(ah) = note(tally, "CREATE_AH", nic.create_ah(context, self.pd, &vector)) {
                    nic.destroy_ah(context, ah.handle).expect("just made");
                }
            }
            14 => drop(note(tally, "QUERY_SRQ", nic.query_srq(context, nobody))),
            15 => drop(note(tally, "DESTROY_SRQ", nic.destroy_srq(context, nobody))),
            16 => drop(note(tally, "DESTROY_SRQ", nic.destroy_srq(context, self.srq))),
            17 => drop(note(tally, "QUERY_SRQ", nic.query_srq(context, self.srq))),
            18 => note(tally, "DEALLOC_MW", nic.dealloc_mw(context, nobody)).unwrap_or_default(),
            19 => {
                let request = AllocMw { pd: rng.pick(&[self.pd, nobody]), kind: rng.below(5) as u8 };
                if let Some(window) = note(tally, "ALLOC_MW", nic.alloc_mw(context, &request)) {
                    nic.dealloc_mw(context, window.handle).expect("just made");
                }
            }
            13 => {
                // A whole context, dropped with everything in it.
                let other = nic.open_context(0).expect("an open");
                let pd = nic.alloc_pd(other).expect("a PD").handle;
                drop(nic.create_ah(other, pd, &vector));
                drop(nic.alloc_mw(other, &AllocMw { pd, kind: 1 }));
                let (start, length) = (self.memory.address(), self.memory.len() as u64);
                drop(nic.reg_mr(other, &RegMr { start, length, iova: start, pd, access: 1 }));
                nic.close_context(other);
                tally.mutants += 1;
            }
            _ => drop(note(tally, "QUERY_QP", nic.query_qp(context, self.qp))),
        }
    }
}

/// Counts the answer; gives what was made.
fn note<T>(tally: &mut Tally, command: &'static str, answer: Result<T, CommandError>) -> Option<T> {
    tally.mutants += 1;
    match answer {
        Ok(made) => {
            *tally.accepted.entry(command).or_default() += 1;
            Some(made)
        }
        Err(error) => {
            *tally.refused.entry((command, error.errno)).or_default() += 1;
            assert!(!error.reason.is_empty());
            None
        }
    }
}
