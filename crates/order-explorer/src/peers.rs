//! The orders of libmlx5, of the paper's release and of the GPU peers: restated, no code copied.
//!
//! Sources of the peers': rdma-core `providers/mlx5/qp.c` (`post_send_db`) and `util/udma_barrier.h`; NVSHMEM
//! `ibgda_device.cuh`; DeepEP `csrc/kernels/legacy/ibgda_device.cuh`; gpunetio
//! `doca_gpunetio_dev_verbs_qp.cuh` (`submit_db`) and `..._common.cuh` (`lock`); Monarch `rdmaxcel.cu`.

use crate::program::Machine::X86;
use crate::program::Place::{self, Gpu, Host};
use crate::program::{Atomic, Fence, Instruction, Machine, Op, Order, Scenario, Scope, Value};
use crate::queue::{Cells, Ops, cells, fence, thread, two_rings};

pub fn libmlx5(machine: Machine) -> Scenario {
    let x86 = machine == X86;
    let to_device = if x86 { Fence::Compiler } else { Fence::DmbOshst };
    let wc_start = if x86 { Fence::Sfence } else { Fence::DsbSt };
    two_rings(machine, Host, |q, index| {
        vec![fence(to_device), q.record(index), fence(wc_start), q.register(index), fence(wc_start)]
    })
}

pub fn released_record() -> Scenario {
    two_rings(Machine::Gpu, Host, |q, index| vec![q.release(q.record, index, Scope::Sys), q.register(index)])
}

/// Record and register by release stores of scope GPU: the paper's release, and DeepEP behind its fence.
pub fn releases(place: Place) -> Scenario {
    two_rings(Machine::Gpu, place, |q, index| {
        vec![q.release(q.record, index, Scope::Gpu), q.release(q.register, index, Scope::Gpu)]
    })
}

pub fn volatile_only() -> Scenario {
    two_rings(Machine::Gpu, Host, |q, index| vec![q.record(index), q.register(index)])
}

/// `__threadfence` for queues in GPU memory, else `__threadfence_system`.
fn nvshmem_fence(place: Place) -> Instruction {
    fence(Fence::AcqRel(if place == Gpu { Scope::Gpu } else { Scope::Sys }))
}

fn nvshmem_ring(q: &Cells, index: Value, place: Place) -> Ops {
    vec![nvshmem_fence(place), q.record(index), nvshmem_fence(place), q.register(index)]
}

pub fn nvshmem(place: Place) -> Scenario {
    two_rings(Machine::Gpu, place, |q, index| nvshmem_ring(q, index, place))
}

fn deepep_ring(q: &Cells, index: Value) -> Ops {
    vec![q.release(q.record, index, Scope::Gpu), q.release(q.register, index, Scope::Gpu)]
}

pub fn deepep(place: Place) -> Scenario {
    two_rings(Machine::Gpu, place, |q, index| {
        [vec![fence(Fence::AcqRel(Scope::Gpu))], deepep_ring(q, index)].concat()
    })
}

fn gpunetio_ring(q: &Cells, index: Value, scope: Scope) -> Ops {
    vec![
        fence(Fence::Release(scope)),
        q.register(index),
        q.record(index),
        fence(Fence::Release(scope)),
        q.register(index),
    ]
}

pub fn gpunetio(place: Place, scope: Scope) -> Scenario {
    two_rings(Machine::Gpu, place, |q, index| gpunetio_ring(q, index, scope))
}

/// Fences around a peer's lock and its word of filled WQEs.
struct Lock {
    filled: Instruction,
    ready: Option<Instruction>,
    locked: Instruction,
    unlock: Option<Instruction>,
    unlocking: Order,
}

/// Two blocks, one WQE each: fill, publish in order, then the block that is ahead rings for all, locked.
fn two_blocks(place: Place, lock: &Lock, ring: impl Fn(&Cells, Value) -> Ops) -> Scenario {
    let (mut scenario, q) = cells(place, 2);
    for (n, name) in [(0, "block 0"), (1, "block 1")] {
        let atomic = |cell, does| Instruction::from(Op::Atomic { cell, does, order: Order::Plain });
        let ring = ring(&q, Value::Is(n + 1));
        let mut ops = [q.wqe(n), vec![lock.filled]].concat();
        ops.push(atomic(q.ready, Atomic::Advance { begin: n, end: n + 1 }));
        ops.extend(lock.ready);
        ops.extend([atomic(q.lock, Atomic::Lock), lock.locked]);
        ops.push(atomic(q.raised, Atomic::Raise { to: n + 1, skip: ring.len() }));
        ops.extend(ring);
        ops.extend(lock.unlock);
        ops.push(Op::Store { cell: q.lock, value: Value::Is(0), order: lock.unlocking }.into());
        scenario.threads.push(thread(name, Machine::Gpu, usize::from(n), ops));
    }
    scenario
}

pub fn nvshmem_shared(place: Place) -> Scenario {
    two_blocks(place, &block_wide_lock(nvshmem_fence(place)), |q, index| nvshmem_ring(q, index, place))
}

pub fn deepep_shared(place: Place) -> Scenario {
    two_blocks(place, &block_wide_lock(fence(Fence::AcqRel(Scope::Gpu))), deepep_ring)
}

/// NVSHMEM's and DeepEP's lock: fences of scope CTA around it.
fn block_wide_lock(filled: Instruction) -> Lock {
    let block_wide = fence(Fence::AcqRel(Scope::Cta));
    Lock { filled, ready: None, locked: block_wide, unlock: Some(block_wide), unlocking: Order::Plain }
}

pub fn gpunetio_shared(place: Place, scope: Scope) -> Scenario {
    let acquire = fence(Fence::Acquire(Scope::Gpu));
    let lock = Lock {
        filled: fence(Fence::Release(Scope::Gpu)),
        ready: Some(acquire),
        locked: acquire,
        unlock: None,
        unlocking: Order::Release(Scope::Gpu),
    };
    two_blocks(place, &lock, |q, index| gpunetio_ring(q, index, scope))
}
