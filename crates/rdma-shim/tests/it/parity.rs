//! For the same requests libmlx5, the shim and its twin leave equal bytes: ring, record, register (INV-5).
//!
//! libmlx5 posts to a real queue pair, which the device executes. The shim posts the same request objects to
//! plain memory that stands for the same queue: same length, same QPN, same bytes at the start. So nothing is
//! masked. A twin kernel posts them to its own memory. The register is hard: the device may change it (the
//! software NIC swaps in zero), and libmlx5 does not tell which half it uses. Hence its UAR page is moved
//! elsewhere in this process, and a plain page takes its place, which only this test reads. The test hands
//! each doorbell on to the moved page, so the device goes on executing. No queue pair state has to be frozen.

use crate::KERNELS;
use host_twin::{Arguments, Launch, Visibility, run};
use measure::need;
use rdma_shim::sys::*;
use verbs::{
    Context, Cq, InlineSlice, Mr, Pages, Payload, QpBuilder, QpCapacity, QpType, QueuePair, ReceiveRequest,
    SendFlags, SendList, SendOperation, SendRequest, Sge, WorkCompletion,
};

use crate::seeded::Seeded;
use rdma_shim::testing::{DEADLINE, connect, device, memory, wait_for};

mod covered;
use covered::Covered;

const PAGE_BYTES: usize = 4096;
/// Both halves of a doorbell register.
const REGISTER_WORDS: usize = 64;
/// `DB_DOORBELL_BLUEFLAME`.
const BLUEFLAME: u32 = 1;
const MAX_SGES: usize = 4;
const SEED: u64 = 0x5eed_0001;
/// A piece of memory for each end, READ and atomics in a corner of their own.
const MEMORY_BYTES: usize = 1 << 16;
/// Receives that the peer keeps posted.
const RECEIVES: u64 = 16;
/// Operations that take a receive: WRITE with immediate, SEND, SEND with immediate.
const RECEIVED: [u64; 3] = [1, SEND, 3];
const SEND: u64 = 2;
/// Beyond 2^16, after which an index of 16 bits begins again.
const WRAPPED: u64 = 70_000;

/// The plain page that libmlx5 takes for its UAR, and where the real one went.
struct MovedUar {
    plain: *mut u8,
    real: *mut u8,
    register: usize,
}

impl MovedUar {
    fn of(qp: &QueuePair) -> MovedUar {
        let register = qp.layout().unwrap().register;
        let offset = register.addr() % PAGE_BYTES;
        let page = register.wrapping_sub(offset);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: reserves a new page.
        let place =
            unsafe { libc::mmap(std::ptr::null_mut(), PAGE_BYTES, libc::PROT_NONE, anonymous, -1, 0) };
        assert_ne!(place, libc::MAP_FAILED);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // A second mapping of the page if the system gives one: moving it leaves a hole for a moment, into
        // which another test's thread may map. A card's page may refuse that.
        // SAFETY: replaces the reserved page; libmlx5 posts nothing until the next call has replaced its own.
        let mut real = unsafe { libc::mremap(page.cast(), 0, PAGE_BYTES, flags, place) };
        if real == libc::MAP_FAILED {
            // SAFETY: as above.
            real = unsafe { libc::mremap(page.cast(), PAGE_BYTES, PAGE_BYTES, flags, place) };
        }
        assert_eq!(real, place, "{}", std::io::Error::last_os_error());
        // SAFETY: libmlx5's own page, which has its second mapping, or the range just vacated.
        let plain =
            unsafe { libc::mmap(page.cast(), PAGE_BYTES, protection, anonymous | libc::MAP_FIXED, -1, 0) };
        assert_eq!(plain, page.cast());
        MovedUar { plain: page, real: real.cast(), register: offset }
    }

    /// Takes what libmlx5 stored, and hands its doorbell on to the device.
    fn take_doorbell(&self) -> [u64; REGISTER_WORDS] {
        let plain = self.plain.wrapping_add(self.register).cast::<u64>();
        let real = self.real.wrapping_add(self.register).cast::<u64>();
        let mut taken = [0; REGISTER_WORDS];
        for (index, word) in taken.iter_mut().enumerate() {
            // SAFETY: both halves lie in the plain page.
            *word = unsafe { plain.wrapping_add(index).read_volatile() };
            // SAFETY: as above.
            unsafe { plain.wrapping_add(index).write_volatile(0) };
        }
        for half in [0, REGISTER_WORDS / 2] {
            if taken[half] != 0 {
                // SAFETY: the moved page is the device's; a doorbell is one 8-byte store.
                unsafe { real.wrapping_add(half).write_volatile(taken[half]) };
            }
        }
        taken
    }
}

impl Drop for MovedUar {
    fn drop(&mut self) {
        // SAFETY: the moved page is ours; libmlx5 unmaps the plain one where it believes its own to be.
        unsafe { libc::munmap(self.real.cast(), PAGE_BYTES) };
    }
}

/// The shim's idea of the same send and receive queue, in plain memory.
struct Mirror {
    ring: Vec<u64>,
    receive_ring: Vec<u64>,
    record: Vec<u64>,
    register: Vec<u64>,
    _slots: Vec<db_slot>,
    _wr_ids: Vec<u64>,
    sq: db_sq,
    rq: db_rq,
}

/// A copy of memory that libmlx5 wrote.
fn copy_of(address: *const u8, bytes: usize) -> Vec<u64> {
    // SAFETY: callers name a ring of a live queue pair, whose only writer is this thread's libmlx5.
    (0..bytes / 8).map(|word| unsafe { address.cast::<u64>().wrapping_add(word).read_volatile() }).collect()
}

impl Mirror {
    fn of(qp: &QueuePair, blueflame: bool) -> Mirror {
        let layout = qp.layout().unwrap();
        let ring = copy_of(layout.send.address, (layout.send.entries * layout.send.stride) as usize);
        let receive_ring =
            copy_of(layout.receive.address, (layout.receive.entries * layout.receive.stride) as usize);
        let (record, register) = (vec![0], vec![0; REGISTER_WORDS]);
        let slots = vec![db_slot::default(); layout.send.entries as usize];
        let wr_ids = vec![0; layout.receive.entries as usize];
        let mut mirror = Mirror {
            sq: db_sq {
                ring: ring.as_ptr() as u64,
                record: record.as_ptr() as u64 + 4,
                reg: register.as_ptr() as u64,
                slots: slots.as_ptr() as u64,
                blocks: layout.send.entries,
                qpn: layout.number,
                half_bytes: layout.blueflame_half_bytes,
                max_sge: qp.capacity().send_sges,
                max_inline: qp.capacity().inline_bytes,
                opcodes: 0x7f,
                doorbell: blueflame.into(),
                ..db_sq::default()
            },
            rq: db_rq {
                ring: receive_ring.as_ptr() as u64,
                record: record.as_ptr() as u64,
                wr_ids: wr_ids.as_ptr() as u64,
                wqes: layout.receive.entries,
                stride: layout.receive.stride,
                qpn: layout.number,
                max_sge: qp.capacity().receive_sges,
                ..db_rq::default()
            },
            ring,
            receive_ring,
            record,
            register,
            _slots: slots,
            _wr_ids: wr_ids,
        };
        // SAFETY: the struct is ours alone.
        assert_eq!(unsafe { db_c_sq_init(&raw mut mirror.sq, layout.send.stride) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { db_c_rq_init(&raw mut mirror.rq) }, 0);
        mirror
    }

    fn compare_send(&self, qp: &QueuePair, register: &[u64], what: &str) {
        let layout = qp.layout().unwrap();
        let ring = copy_of(layout.send.address, self.ring.len() * 8);
        if let Some(word) = (0..ring.len()).find(|&word| ring[word] != self.ring[word]) {
            let (block, byte) = (word / 8, word % 8 * 8);
            panic!(
                "block {block}, byte {byte}: libmlx5 {:016x}, shim {:016x}; {what}",
                ring[word], self.ring[word]
            );
        }
        assert_eq!(copy_of(layout.record.cast(), 8)[0] >> 32, self.record[0] >> 32, "send record; {what}");
        if self.sq.doorbell == BLUEFLAME {
            assert_eq!(register, self.register, "register; {what}");
        } else {
            // The same 8 bytes: libmlx5 alternates halves, the shim's plain doorbell stays in the first.
            let (first, second) = register.split_at(REGISTER_WORDS / 2);
            let rung = if first[0] != 0 { first } else { second };
            assert_eq!(rung, &self.register[..REGISTER_WORDS / 2], "register; {what}");
            assert!(self.register[REGISTER_WORDS / 2..].iter().all(|&word| word == 0), "second half; {what}");
        }
    }

    /// The same bytes as another mirror's.
    fn assert_is(&self, other: &Mirror, what: &str) {
        assert_eq!(self.ring, other.ring, "ring, twin and shim; {what}");
        assert_eq!(self.receive_ring, other.receive_ring, "receive ring, twin and shim; {what}");
        assert_eq!(self.record, other.record, "records, twin and shim; {what}");
        assert_eq!(self.register, other.register, "register, twin and shim; {what}");
    }

    fn compare_receive(&self, qp: &QueuePair, what: &str) {
        let layout = qp.layout().unwrap();
        assert_eq!(copy_of(layout.receive.address, self.receive_ring.len() * 8), self.receive_ring, "{what}");
        assert_eq!(
            copy_of(layout.record.cast(), 8)[0] as u32,
            self.record[0] as u32,
            "receive record; {what}"
        );
    }
}

/// Has a kernel of the twin post a list, its stores in an order that `seed` chooses.
fn post_by_twin<Q, R>((kernel, lanes): (&str, u32), queue: *mut Q, list: *const R, count: u32, seed: u64) {
    let (mut error, mut bad) = (u32::MAX, 0_u32);
    let arguments = Arguments::new()
        .pointer(queue)
        .pointer(list.cast_mut())
        .push(count)
        .pointer(&raw mut error)
        .pointer(&raw mut bad);
    let visibility = Visibility::Weak { seed };
    let launch = Launch { visibility, deadline: DEADLINE, ..Launch::new(1, lanes) };
    // SAFETY: kernels of `post.cu` take these; callers pass a queue in plain memory and a list of its kind.
    unsafe { run(KERNELS.find(kernel).unwrap(), &launch, arguments) }.unwrap();
    assert_eq!(error, 0, "{kernel}");
}

/// Payload of one request: what its slices point into.
struct Pieces {
    sges: Vec<Sge>,
    inline: Option<Vec<Vec<u8>>>,
}

/// Operations of a service, as their place in [`request`].
fn operations(kind: QpType) -> &'static [u64] {
    if kind == QpType::Rc { &[0, 1, 2, 3, 4, 5, 6] } else { &[0, 1, 2, 3] }
}

/// Pieces for an operation, of every count that the queue takes, empty ones included; inline ones have
/// `inline_bytes` together, if any.
fn pieces(seeded: &mut Seeded, operation: u64, local: &Mr<Pages>, inline_bytes: u64) -> Pieces {
    if operation >= 5 {
        return Pieces { sges: vec![local.sge(64..72).unwrap()], inline: None };
    }
    let count = seeded.below(MAX_SGES as u64 + 1);
    if operation != 4 && seeded.once_in(2) {
        let mut left = inline_bytes;
        let lengths = (0..count).map(|piece| {
            let len = if piece + 1 == count { left } else { seeded.below(left + 1) };
            left -= len;
            len
        });
        let lengths: Vec<_> = lengths.collect();
        let inline = lengths.iter().map(|&len| (0..len).map(|_| seeded.below(256) as u8).collect()).collect();
        return Pieces { sges: Vec::new(), inline: Some(inline) };
    }
    let sge = |seeded: &mut Seeded| {
        let len = if seeded.once_in(5) { 0 } else { seeded.below(1024) as usize };
        let at = 4096 + seeded.below(4096) as usize;
        local.sge(at..at + len).unwrap()
    };
    Pieces { sges: (0..count).map(|_| sge(seeded)).collect(), inline: None }
}

fn request<'a>(
    seeded: &mut Seeded,
    id: u64,
    operation: u64,
    peer: &Mr<Pages>,
    payload: Payload<'a>,
    last: bool,
) -> SendRequest<'a> {
    let remote = peer.remote(8192 + 8 * seeded.below(512) as usize).unwrap();
    let immediate = (seeded.below(u32::MAX.into()) as u32).to_ne_bytes();
    let operation = match operation {
        0 => SendOperation::Write(remote),
        1 => SendOperation::WriteImm(remote, immediate),
        2 => SendOperation::Send,
        3 => SendOperation::SendImm(immediate),
        4 => SendOperation::Read(remote),
        5 => SendOperation::CompareSwap {
            remote,
            compare: seeded.below(u64::MAX),
            swap: seeded.below(u64::MAX),
        },
        _ => SendOperation::FetchAdd { remote, add: seeded.below(u64::MAX) },
    };
    let mut request = SendRequest::new(id, operation, payload);
    request.flags = if last || seeded.once_in(4) { SendFlags::SIGNALED } else { SendFlags::NONE };
    for flag in [SendFlags::SOLICITED, SendFlags::FENCE] {
        if seeded.once_in(4) {
            request.flags = request.flags | flag;
        }
    }
    request
}

/// A queue pair that libmlx5 posts to, with its mirror, and a peer that receives.
struct Stage {
    qp: QueuePair,
    uar: MovedUar,
    mirror: Mirror,
    cq: Cq,
    peer: QueuePair,
    peer_mirror: Mirror,
    peer_cq: Cq,
    local: Mr<Pages>,
    remote: Mr<Pages>,
    seeded: Seeded,
    /// Bytes of the next inline request of each operation.
    next_inline: [u64; 4],
    blocks: u64,
    covered: Covered,
    /// What the host twin posts to, where it takes part: the queue, and the peer's.
    twin: Option<[Mirror; 2]>,
}

impl Stage {
    fn new(context: &Context, kind: QpType, blueflame: bool, with_twin: bool) -> Stage {
        let pd = context.alloc_pd().unwrap();
        let (cq, peer_cq) = (Cq::new(context, 256).unwrap(), Cq::new(context, 256).unwrap());
        let capacity = QpCapacity {
            send_requests: 16,
            receive_requests: 32,
            send_sges: MAX_SGES as u32,
            receive_sges: 3,
            inline_bytes: 300,
        };
        let builder = QpBuilder::new(kind).capacity(capacity).own_register(true);
        let (qp, peer) =
            (builder.build(&pd, &cq, &cq).unwrap(), builder.build(&pd, &peer_cq, &peer_cq).unwrap());
        connect(&qp, peer.number());
        connect(&peer, qp.number());
        Stage {
            uar: MovedUar::of(&qp),
            mirror: Mirror::of(&qp, blueflame),
            peer_mirror: Mirror::of(&peer, blueflame),
            local: memory(&pd, MEMORY_BYTES),
            remote: memory(&pd, MEMORY_BYTES),
            seeded: Seeded(SEED),
            next_inline: [0; 4],
            blocks: 0,
            covered: Covered::default(),
            twin: with_twin.then(|| [&qp, &peer].map(|qp| Mirror::of(qp, blueflame))),
            qp,
            cq,
            peer,
            peer_cq,
        }
    }

    /// Keeps the peer's receive queue full, and compares what that wrote.
    fn post_receives(&mut self) {
        while self.peer_mirror.rq.producer - self.peer_mirror.rq.consumer < RECEIVES {
            // Each big enough for any SEND, beside an empty piece that is left out of the WQE.
            let piece = |at: usize| self.remote.sge(16384 + at * 8192..16384 + (at + 1) * 8192).unwrap();
            let empty = self.remote.sge(0..0).unwrap();
            let scatter = match self.seeded.below(4) {
                0 => vec![piece(0)],
                1 => vec![piece(1), piece(0)],
                2 => vec![empty, piece(2)],
                _ => vec![piece(0), piece(1), piece(2)],
            };
            let count = if scatter[0].length() == 0 { 0 } else { scatter.len() };
            self.covered.receive_pieces.insert(count);
            let wr = db_recv_wr { wr_id: 1, sg_list: scatter.as_ptr().cast(), num_sge: scatter.len() as u32 };
            let mut bad = 0;
            // SAFETY: the mirror's addresses lead into its vectors; an `Sge` is a `db_sge`.
            let code =
                unsafe { db_c_post_recv(&raw mut self.peer_mirror.rq, &raw const wr, 1, &raw mut bad) };
            assert_eq!(code, 0);
            if let Some([_, twin]) = &mut self.twin {
                twin.rq.consumer = self.peer_mirror.rq.consumer;
                post_by_twin(("post_receives", 1), &raw mut twin.rq, &raw const wr, 1, self.blocks);
                twin.assert_is(&self.peer_mirror, "receive");
            }
            self.peer.post_receive(&ReceiveRequest { id: 1, scatter: &scatter }).unwrap();
            self.peer_mirror.compare_receive(&self.peer, "receive");
        }
    }

    /// A list of a few operations, as the seed says. Inline sizes come in turn, for each operation by itself.
    fn random_list(&mut self, kind: QpType) -> Vec<(u64, Pieces)> {
        let choices = operations(kind);
        let mut list = Vec::new();
        for _ in 0..1 + self.seeded.below(5) {
            let operation = choices[self.seeded.below(choices.len() as u64) as usize];
            let inline_bytes = self.next_inline.get(operation as usize).copied().unwrap_or(0);
            let pieces = pieces(&mut self.seeded, operation, &self.local, inline_bytes);
            if pieces.inline.as_ref().is_some_and(|pieces| !pieces.is_empty()) {
                let most = u64::from(self.qp.capacity().inline_bytes);
                self.next_inline[operation as usize] = (inline_bytes + 1) % (most + 1);
            }
            list.push((operation, pieces));
        }
        list
    }

    /// As many SENDs of nothing as there are receives.
    fn list_of_sends() -> Vec<(u64, Pieces)> {
        (0..RECEIVES).map(|_| (SEND, Pieces { sges: Vec::new(), inline: None })).collect()
    }

    /// Posts one list both ways, compares, and waits until the device is through.
    fn round(&mut self, plan: &[(u64, Pieces)]) {
        self.post_receives();
        let inline: Vec<Vec<InlineSlice<'_>>> = plan
            .iter()
            .map(|(_, p)| p.inline.iter().flatten().map(|bytes| InlineSlice::new(bytes)).collect())
            .collect();
        let mut shim_list = rdma_shim::SendList::default();
        let mut list = SendList::default();
        for (index, (operation, p)) in plan.iter().enumerate() {
            let payload = match p.inline {
                Some(_) => Payload::Inline(&inline[index]),
                None => Payload::Gather(&p.sges),
            };
            let last = index + 1 == plan.len();
            let request = request(&mut self.seeded, index as u64, *operation, &self.remote, payload, last);
            shim_list.push(&request).unwrap();
            list.push(&request);
            let count = p.inline.as_ref().map_or(p.sges.len(), Vec::len);
            self.covered.pieces.insert((*operation, count, p.inline.is_some()));
            if let Some(pieces) = &p.inline {
                let bytes = pieces.iter().map(Vec::len).sum::<usize>() as u64;
                self.covered.inline_bytes.insert((*operation, bytes));
            }
        }
        let before = self.mirror.sq.producer;
        let what = format!(
            "seed {SEED:#x}, block index {before}, operations {:?}",
            plan.iter().map(|p| p.0).collect::<Vec<_>>()
        );
        self.mirror.register.fill(0);
        let (raw, mut bad) = (shim_list.as_raw(), u32::MAX);
        // SAFETY: the mirror's addresses lead into its vectors; the list borrows what its requests name.
        let code =
            unsafe { db_c_post(&raw mut self.mirror.sq, raw.as_ptr(), raw.len() as u32, &raw mut bad) };
        assert_eq!(code, 0, "{what}");
        if let Some([twin, _]) = &mut self.twin {
            twin.register.fill(0);
            twin.sq.consumer = self.mirror.sq.consumer;
            // One thread after the other, and a warp's lanes together.
            let (kernel, lanes) =
                if self.seeded.once_in(2) { ("post_list", 1) } else { ("post_warp_list", 32) };
            post_by_twin((kernel, lanes), &raw mut twin.sq, raw.as_ptr(), raw.len() as u32, self.blocks);
            twin.assert_is(&self.mirror, &what);
        }
        self.qp.post_send_list(&mut list).unwrap_or_else(|error| panic!("{error}; {what}"));
        self.mirror.compare_send(&self.qp, &self.uar.take_doorbell(), &what);
        let received = plan.iter().filter(|(operation, _)| RECEIVED.contains(operation)).count();
        self.finish(&what, plan.len() as u64 - 1, received);
        self.blocks += self.mirror.sq.producer - before;
        self.covered.look_at_the_end(&self.mirror.ring, before..self.mirror.sq.producer);
        self.mirror.sq.consumer = self.mirror.sq.producer;
    }

    /// Waits for the completions of the list's last request and of the receives that it used.
    fn finish(&mut self, what: &str, last: u64, receives: usize) {
        let mut found = [WorkCompletion::default(); 32];
        wait_for(what, || {
            let count = self.cq.poll(&mut found).unwrap();
            for wc in &found[..count] {
                assert!(wc.is_success(), "{wc:?}; {what}");
            }
            found[..count].iter().any(|wc| wc.id() == last).then_some(())
        });
        let mut left = receives;
        wait_for(what, || {
            let count = self.peer_cq.poll(&mut found).unwrap();
            assert!(found[..count].iter().all(WorkCompletion::is_success), "{what}");
            left = left
                .checked_sub(count)
                .unwrap_or_else(|| panic!("{count} receives, {left} are left; {what}"));
            (left == 0).then_some(())
        });
        self.peer_mirror.rq.consumer += receives as u64;
    }
}

fn compare_until_indices_wrap(context: &Context, kind: QpType) {
    let blueflame = std::env::var_os("MLX5_SHUT_UP_BF").is_none_or(|value| value == "0");
    let mut stage = Stage::new(context, kind, blueflame, false);
    assert!(stage.mirror.sq.half_bytes > 0, "a register of its own has BlueFlame");
    while stage.blocks < WRAPPED {
        let list = stage.random_list(kind);
        stage.round(&list);
    }
    // A receive has an index of its own, which fewer requests move on.
    while stage.peer_mirror.rq.producer < WRAPPED {
        stage.round(&Stage::list_of_sends());
    }
    assert!(stage.mirror.sq.producer > 1 << 16 && stage.peer_mirror.rq.producer > 1 << 16);
    stage.covered.assert_all(operations(kind), stage.qp.capacity().inline_bytes.into());
}

#[test]
fn parity_of_libmlx5_and_the_shim_on_rc() {
    let context = need!(device(), nic, "an mlx5 device");
    compare_until_indices_wrap(&context, QpType::Rc);
}

#[test]
fn parity_of_libmlx5_and_the_shim_on_uc() {
    let context = need!(device(), nic, "an mlx5 device");
    compare_until_indices_wrap(&context, QpType::Uc);
}

/// Each kernel is a launch: enough blocks for every operation, payload and end of the ring dozens of times.
#[test]
fn parity_of_libmlx5_the_shim_and_the_twin() {
    need!(KERNELS.find("post_list"), cc, "a C++ compiler");
    let blueflame = std::env::var_os("MLX5_SHUT_UP_BF").is_none_or(|value| value == "0");
    for kind in [QpType::Rc, QpType::Uc] {
        // A context each: libmlx5 reuses freed registers for the next queue, and the first one's was moved.
        let context = need!(device(), nic, "an mlx5 device");
        let mut stage = Stage::new(&context, kind, blueflame, true);
        while stage.blocks < 3_000 {
            let list = stage.random_list(kind);
            stage.round(&list);
        }
    }
}

/// libmlx5 reads `MLX5_SHUT_UP_BF` on opening the device: reruns the test on RC in a process of its own.
#[test]
fn parity_with_8_byte_doorbells_only() {
    need!(device(), nic, "an mlx5 device");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "parity::parity_of_libmlx5_and_the_shim_on_rc"])
        .env("MLX5_SHUT_UP_BF", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
