//! Requests of every kind from kernels of the host twin, and messages of every kind to them; posts by a whole
//! block; and what a collective call refuses.

use crate::{KERNELS, PLANTED};
use host_twin::{Arguments, run, start};
use measure::need;
use rdma_shim::sys::{db_completion, db_send_wr, db_sge};
use verbs::{InlineSlice, Payload, SendOperation, SendRequest, WorkCompletion};

use crate::twin_queue::{DEADLINE, Queue, STRICT, Shared, Status, Target, compiler, launch};
use rdma_shim::testing::{device, softnic, wait_for};

/// `enum ibv_wr_opcode` and `enum ibv_send_flags`.
const WRITE: u32 = 0;
const READ: u32 = 4;
const COMPARE_SWAP: u32 = 5;
const FETCH_ADD: u32 = 6;
const SIGNALED: u32 = 2;
const INLINE: u32 = 8;
/// `enum ibv_wc_opcode`.
const WRITTEN: u32 = 1;
const HAVE_READ: u32 = 2;
const SWAPPED: u32 = 3;
const ADDED: u32 = 4;
const RECEIVED: u32 = 128;
const RECEIVED_WITH_IMM: u32 = 129;
const EINVAL: u32 = 22;

fn deadline_ns() -> u64 {
    (DEADLINE / 2).as_nanos() as u64
}

/// Each with the completion that it is to have, and what is to be in memory afterwards.
#[test]
fn twin_kernels_carry_out_every_kind_of_request() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    for seed in 1..5 {
        let mut queue = Queue::new(&context, STRICT);
        let sge =
            |at: u64, length| db_sge { addr: queue.local.address() + at, length, lkey: queue.local.lkey() };
        let (whole, two) = ([sge(0, 8)], [sge(16, 4), sge(32, 12)]);
        let (read, swapped, added) = ([sge(64, 8)], [sge(72, 8)], [sge(80, 8)]);
        queue.local.write(0, &[1; 64]);
        queue.local.write(16, b"two ");
        queue.local.write(32, b"pieces of it");
        queue.remote.write(128, &7_u64.to_le_bytes());
        queue.remote.write(136, &40_u64.to_ne_bytes());
        queue.remote.write(144, &41_u64.to_ne_bytes());
        let remote = |at: u64| queue.remote.address() + at;
        let request = |opcode, list: &[db_sge], remote_addr, flags| db_send_wr {
            wr_id: 0,
            sg_list: list.as_ptr(),
            num_sge: list.len() as u32,
            opcode,
            send_flags: SIGNALED | flags,
            imm_data: 0,
            remote_addr,
            compare_add: 40,
            swap: 77,
            rkey: queue.remote.rkey(),
        };
        let rows = [
            (request(WRITE, &whole, remote(0), 0), WRITTEN, 8),
            (request(WRITE, &two, remote(16), 0), WRITTEN, 16),
            (request(WRITE, &two[..1], remote(48), INLINE), WRITTEN, 4),
            (request(READ, &read, remote(128), 0), HAVE_READ, 8),
            (request(COMPARE_SWAP, &swapped, remote(136), 0), SWAPPED, 8),
            (request(FETCH_ADD, &added, remote(144), 0), ADDED, 8),
        ];
        let mut wrs: Vec<db_send_wr> = rows.iter().map(|row| row.0).collect();
        wrs.iter_mut().zip(50..).for_each(|(wr, id)| wr.wr_id = id);
        let (mut out, mut error) = ([db_completion::default(); 6], u32::MAX);
        let arguments = Arguments::new()
            .pointer(&raw mut queue.sq)
            .pointer(&raw mut queue.cq)
            .pointer(wrs.as_mut_ptr())
            .push(wrs.len() as u32)
            .push(deadline_ns())
            .pointer(out.as_mut_ptr())
            .pointer(&raw mut error);
        // SAFETY: the kernel takes these, and everything lives until it has ended.
        unsafe { run(KERNELS.find("carry_out").unwrap(), &launch(1, seed), arguments) }.unwrap();
        assert_eq!(error, 0, "seed {seed}: {out:?}");
        for (index, (found, (_, opcode, bytes))) in out.iter().zip(rows).enumerate() {
            let what = format!("seed {seed}, request {index}: {found:?}");
            assert_eq!((found.status, found.wr_id, found.opcode), (0, 50 + index as u64, opcode), "{what}");
            assert!(found.is_send == 1 && found.qpn == queue.qp.number(), "{what}");
            if found.opcode >= HAVE_READ {
                assert_eq!(found.byte_len, bytes, "{what}");
            }
        }
        let at = |memory: &verbs::Mr<verbs::Pages>, offset: usize, len: usize| {
            let mut bytes = vec![0; len];
            memory.read(offset, &mut bytes);
            bytes
        };
        assert_eq!(at(&queue.remote, 0, 8), [1; 8], "seed {seed}: the WRITE");
        assert_eq!(at(&queue.remote, 16, 16), b"two pieces of it", "seed {seed}: the WRITE of two pieces");
        assert_eq!(at(&queue.remote, 48, 4), b"two ", "seed {seed}: the inline WRITE");
        assert_eq!(at(&queue.local, 64, 8), 7_u64.to_le_bytes(), "seed {seed}: the READ");
        assert_eq!(at(&queue.local, 72, 8), 40_u64.to_ne_bytes(), "seed {seed}: what was there");
        assert_eq!(at(&queue.local, 80, 8), 41_u64.to_ne_bytes(), "seed {seed}: what was there");
        assert_eq!(at(&queue.remote, 136, 8), 77_u64.to_ne_bytes(), "seed {seed}: what was swapped in");
        assert_eq!(at(&queue.remote, 144, 8), 81_u64.to_ne_bytes(), "seed {seed}: the sum");
    }
}

/// libmlx5 sends before the kernel has posted a receive: nothing arrives until then, then each as what it is.
#[test]
fn twin_kernels_receive_every_kind_of_message_once_they_have_posted() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    const BYTES: usize = 64;
    for seed in 1..4 {
        let mut queue = Queue::new(&context, STRICT);
        let remote = queue.local.remote(1024).unwrap();
        let (send, with_imm, written) = (b"sent", b"sent with immediate", b"written");
        let pieces = [&send[..], &with_imm[..], &written[..]].map(|bytes| [InlineSlice::new(bytes)]);
        let operations = [
            SendOperation::Send,
            SendOperation::SendImm(*b"imm1"),
            SendOperation::WriteImm(remote, *b"imm2"),
        ];
        for (operation, piece) in operations.into_iter().zip(&pieces) {
            queue.peer.post_send(&SendRequest::new(9, operation, Payload::Inline(piece))).unwrap();
        }
        let mut sent = [WorkCompletion::default(); 4];
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(queue.peer_cq.poll(&mut sent).unwrap(), 0, "no receive was posted");

        let (mut out, mut error) = ([db_completion::default(); 3], u32::MAX);
        let arguments = Arguments::new()
            .pointer(&raw mut queue.rq)
            .pointer(&raw mut queue.cq)
            .push(queue.local.address())
            .push(queue.local.lkey())
            .push(BYTES as u32)
            .push(out.len() as u32)
            .push(deadline_ns())
            .pointer(out.as_mut_ptr())
            .pointer(&raw mut error);
        // SAFETY: the kernel takes these, and everything lives until it has ended.
        let running =
            unsafe { start(KERNELS.find("take_in").unwrap(), &launch(1, seed), arguments) }.unwrap();
        let mut left = 3;
        wait_for("the peer's completions", || {
            let count = queue.peer_cq.poll(&mut sent).unwrap();
            assert!(sent[..count].iter().all(WorkCompletion::is_success), "{sent:?}");
            left -= count;
            (left == 0).then_some(())
        });
        running.wait().unwrap();
        assert_eq!(error, 0, "seed {seed}: {out:?}");
        let found = out.map(|done| (done.status, done.wr_id, done.opcode, done.byte_len, done.has_imm));
        let expected =
            [(0, 100, RECEIVED, 4, 0), (0, 101, RECEIVED, 19, 1), (0, 102, RECEIVED_WITH_IMM, 7, 1)];
        assert_eq!(found, expected, "seed {seed}");
        assert_eq!((out[1].imm_data.to_ne_bytes(), out[2].imm_data.to_ne_bytes()), (*b"imm1", *b"imm2"));
        assert!(out.iter().all(|done| done.is_send == 0 && done.qpn == queue.qp.number()), "{out:?}");
        let mut text = [0; 19];
        queue.local.read(BYTES, &mut text);
        assert_eq!(&text, b"sent with immediate", "seed {seed}");
        queue.local.read(1024, &mut text[..7]);
        assert_eq!(&text[..7], b"written", "seed {seed}");
    }
}

/// The sixth request of a row goes beyond the region: its error CQE, and the flushes behind it, name requests
/// without a slot of their own.
#[test]
fn twin_kernels_hear_which_request_of_a_row_failed() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    const STRIDE: u32 = 64;
    const COUNT: u32 = 12;
    const GOOD: u32 = 5;
    for seed in 1..4 {
        let mut queue = Queue::new(&context, STRICT);
        let end = queue.remote.address() + queue.remote.len() as u64;
        let mut out = [db_completion::default(); (COUNT - GOOD) as usize];
        let mut error = u32::MAX;
        let arguments = Arguments::new()
            .pointer(&raw mut queue.sq)
            .pointer(&raw mut queue.cq)
            .push(queue.local.address())
            .push(queue.local.lkey())
            .push(queue.remote.rkey())
            .push(end - u64::from(GOOD * STRIDE))
            .push(STRIDE)
            .push(COUNT)
            .push(deadline_ns())
            .push(out.len() as u32)
            .pointer(out.as_mut_ptr())
            .pointer(&raw mut error);
        // SAFETY: the kernel takes these, and everything lives until it has ended.
        unsafe { run(KERNELS.find("post_row").unwrap(), &launch(1, seed), arguments) }.unwrap();
        assert_eq!(error, 0, "seed {seed}: {out:?}");
        let found: Vec<_> = out.iter().map(|done| (done.wr_id, done.status)).collect();
        let expected: Vec<_> =
            (GOOD..COUNT).map(|n| (500 + u64::from(n), if n == GOOD { 10 } else { 5 })).collect();
        assert_eq!(found, expected, "seed {seed}");
    }
}

/// Two warps of a block, one doorbell, more messages than the ring holds.
#[test]
fn twin_blocks_post_with_one_doorbell_under_every_seed() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    const MESSAGES: u32 = 640;
    for seed in 1..5 {
        let mut queue = Queue::new(&context, STRICT);
        let target = Target { window: 64, ..queue.target(MESSAGES, DEADLINE / 2) };
        let found = queue.post_with(KERNELS.find("post_block").unwrap(), &launch(64, seed), target);
        assert_eq!(found, (Status::all(MESSAGES), 0), "seed {seed}: wrong words");
        assert!(queue.sq.producer == u64::from(MESSAGES) && queue.sq.blocks < MESSAGES);
    }
    let context = need!(softnic(), softnic, "the software NIC");
    let kernel = PLANTED.find("post_block+no-block-sync").unwrap();
    let shown = (1..41).any(|seed| {
        let mut queue = Queue::new(&context, STRICT);
        let patience = std::time::Duration::from_millis(300);
        let target = Target { window: 64, ..queue.target(MESSAGES, patience) };
        let (status, wrong) = queue.post_with(kernel, &launch(64, seed), target);
        status.error != 0 || wrong > 0
    });
    assert!(shown, "no WQE was executed too early under any seed");
}

/// Rows: length and flags of one lane's request, and the ring's length where it is not the queue's.
#[test]
fn collective_posts_refuse_what_one_lane_cannot_write_on_every_lane() {
    need!(compiler(), cc, "a C++ compiler");
    let context = need!(device(), nic, "an mlx5 device");
    let queue = Queue::new(&context, STRICT);
    let mut shared = Shared::of(&queue, 15);
    for (length, flags, blocks) in [(0, SIGNALED, 0), (1 << 31, SIGNALED, 0), (8, INLINE, 0), (8, 0, 16)] {
        let blocks = if blocks == 0 { queue.sq.blocks } else { blocks };
        let mut sq = rdma_shim::sys::db_sq { blocks, ..queue.sq.clone() };
        let mut result = [0_u32; 64];
        let arguments = Arguments::new().pointer(&raw mut sq).push(17_u32).push(length).push(flags);
        let arguments = arguments.pointer(result.as_mut_ptr());
        let row = format!("length {length}, flags {flags}, {blocks} blocks");
        // SAFETY: the kernel takes these; it writes no WQE, since it refuses the request.
        unsafe { run(KERNELS.find("post_block_oddly").unwrap(), &launch(64, 1), arguments) }.unwrap();
        assert_eq!(result, [EINVAL; 64], "a block; {row}");
        if blocks == 16 {
            continue;
        }
        let arguments =
            Arguments::new().pointer(&raw mut sq).pointer(shared.pointer()).push(17_u32).push(length);
        let arguments = arguments.push(flags).pointer(result.as_mut_ptr());
        result.fill(0);
        // SAFETY: as above.
        unsafe { run(KERNELS.find("post_warp_oddly").unwrap(), &launch(32, 1), arguments) }.unwrap();
        assert_eq!(result, [EINVAL; 64], "a warp; {row}");
    }
    assert_eq!((shared.reserved, queue.sq.producer), (0, 0), "nothing was taken");
}
