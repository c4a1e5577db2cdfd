"""Two ranks of PyTorch on the GPUs of this machine, or both on one. NCCL takes them for two hosts, and so uses the NIC.

usage: two_ranks.py train        DistributedDataParallel for 100 steps, each gradient compared with that of the whole batch
       two_ranks.py reduce       how long an all-reduce takes, for some lengths
       two_ranks.py collectives  NCCL's collectives, send and receive, each element compared
       two_ranks.py nvshmem      NVSHMEM's all-to-all and broadcast of symmetric memory, each element compared
Prints lines that begin with RANK; ends with 0 when both ranks did.
"""

import datetime
import os
import socket
import subprocess
import sys
import time

# Elements of four bytes of each buffer.
COUNT = 1 << 20
# Seconds after which a rank that has not ended is killed. A collective times out before, and a row of
# `xtask/compat` after them.
DEADLINE = 100


def train(torch, rank):
    from torch.nn.parallel import DistributedDataParallel

    def model():
        torch.manual_seed(7)
        sizes = [256, 1024, 1024, 10]
        layers = [torch.nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])]
        # Smooth: where a sum is rounded differently about the corner of a ReLU, a whole gradient differs.
        return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2]).cuda()

    # Behind an all-reduce that waits for the other rank, which is late: what follows waits in the driver.
    first = torch.full((1 << 18,), float(rank + 1), device="cuda")
    if rank == 0:
        time.sleep(0.15)
    torch.distributed.all_reduce(first)
    assert first.cpu().eq(3.0).all(), "the sum of both ranks"
    ours, whole = DistributedDataParallel(model()), model()
    optimiser = torch.optim.SGD(ours.parameters(), lr=0.05)
    worst = 0.0
    for step in range(100):
        torch.manual_seed(1000 + step)
        inputs, targets = torch.randn(64, 256).cuda(), torch.randn(64, 10).cuda()
        for mine, theirs in zip(whole.parameters(), ours.module.parameters()):
            mine.data.copy_(theirs.data)
        whole.zero_grad()
        torch.nn.functional.mse_loss(whole(inputs), targets).backward()
        optimiser.zero_grad()
        half = slice(32 * rank, 32 * rank + 32)
        loss = torch.nn.functional.mse_loss(ours(inputs[half]), targets[half])
        loss.backward()
        for mine, theirs in zip(whole.parameters(), ours.module.parameters()):
            error = (mine.grad - theirs.grad).abs().max() / mine.grad.abs().max()
            worst = max(worst, error.item())
        optimiser.step()
    assert worst < 1e-4, f"gradients differ by {worst}"
    print(f"RANK {rank}: 100 steps, worst relative difference of a gradient {worst:.1e}, loss {loss.item():.4f}", flush=True)


def reduce(torch, rank):
    for kib in (4, 64, 1024, 16384):
        values = torch.ones(kib << 8, device="cuda")
        times = []
        for turn in range(25):
            torch.cuda.synchronize()
            torch.distributed.barrier()
            torch.cuda.synchronize()
            since = time.perf_counter()
            torch.distributed.all_reduce(values)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - since)
        middle = sorted(times[5:])[10]
        print(f"RANK {rank}: all-reduce of {kib} KiB {middle * 1e6:.0f} us, {kib * 8192e-9 / middle:.2f} Gb/s", flush=True)


def values(torch, rank, seed):
    """What a rank sends: whole numbers, whose sums single precision holds exactly."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 1 << 20, (COUNT,), generator=generator).float().cuda()


def compare(torch, found, wanted, what):
    assert torch.equal(found, wanted), f"{what}: {(found != wanted).sum().item()} of {found.numel()} elements are wrong"


def collectives(torch, rank):
    group, other, half = torch.distributed, 1 - rank, COUNT // 2
    sent = [[values(torch, of, seed) for of in range(2)] for seed in range(6)]
    sums = [one + two for one, two in sent]

    found = sent[0][rank].clone()
    group.all_reduce(found)
    compare(torch, found, sums[0], "all-reduce")

    found = sent[1][rank].clone()
    group.broadcast(found, src=1)
    compare(torch, found, sent[1][1], "broadcast")

    found = torch.empty(2 * COUNT, device="cuda")
    group.all_gather_into_tensor(found, sent[2][rank])
    compare(torch, found, torch.cat(sent[2]), "all-gather")

    found = torch.empty(half, device="cuda")
    group.reduce_scatter_tensor(found, sent[3][rank])
    compare(torch, found, sums[3][rank * half :][:half], "reduce-scatter")

    found = torch.empty(COUNT, device="cuda")
    group.all_to_all_single(found, sent[4][rank])
    compare(torch, found, torch.cat([of[rank * half :][:half] for of in sent[4]]), "all-to-all")

    found = torch.empty(COUNT, device="cuda")
    both = [group.P2POp(group.isend, sent[5][rank], other), group.P2POp(group.irecv, found, other)]
    for request in group.batch_isend_irecv(both):
        request.wait()
    compare(torch, found, sent[5][other], "send and receive")
    print(f"RANK {rank}: all compared", flush=True)
    # A rank that leaves while the other's last message is on its way would end it.
    group.barrier()


def nvshmem(torch, rank):
    import torch.distributed._symmetric_memory as symmetric

    name, half = torch.distributed.group.WORLD.group_name, COUNT // 2
    # NVSHMEM takes the context that is there.
    torch.empty(1, device="cuda")
    symmetric.set_backend("NVSHMEM")
    symmetric.enable_symm_mem_for_group(name)
    here = torch.device("cuda", torch.cuda.current_device())
    source, sink = (symmetric.empty(COUNT, dtype=torch.float32, device=here) for _ in range(2))
    for buffer in (source, sink):
        symmetric.rendezvous(buffer, group=name)
    sent = [values(torch, of, 1) for of in range(2)]
    source.copy_(sent[rank])
    sink.fill_(-1)
    torch.cuda.synchronize()
    torch.distributed.barrier()
    torch.ops.symm_mem.nvshmem_all_to_all(source, sink, name)
    torch.cuda.synchronize()
    torch.distributed.barrier()
    compare(torch, sink, torch.cat([of[rank * half :][:half] for of in sent]), "all-to-all")

    source.copy_(values(torch, rank, 2))
    torch.cuda.synchronize()
    torch.distributed.barrier()
    torch.ops.symm_mem.nvshmem_broadcast(source, 0, name)
    torch.cuda.synchronize()
    torch.distributed.barrier()
    compare(torch, source, values(torch, 0, 2), "broadcast")
    print(f"RANK {rank}: all compared", flush=True)


def one(what, rank, port):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.set_device(rank % torch.cuda.device_count())
    limit = datetime.timedelta(seconds=60)
    where = f"tcp://127.0.0.1:{port}"
    # NVSHMEM's ranks find each other over TCP: what goes over the NIC is NVSHMEM's.
    backend = "gloo" if what == "nvshmem" else "nccl"
    torch.distributed.init_process_group(backend, init_method=where, rank=rank, world_size=2, timeout=limit)
    kinds = {"train": train, "reduce": reduce, "collectives": collectives, "nvshmem": nvshmem}
    kinds[what](torch, rank)
    torch.distributed.destroy_process_group()


def both(what):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(2):
        environment = dict(os.environ, NCCL_HOSTID=f"rank-{rank}")
        command = [sys.executable, __file__, what, str(rank), str(port)]
        ranks.append(subprocess.Popen(command, env=environment))
    until, codes = time.monotonic() + DEADLINE, [None, None]
    # One that failed leaves the other waiting.
    while None in codes and not any(codes) and time.monotonic() < until:
        time.sleep(0.05)
        codes = [rank.poll() for rank in ranks]
    if None in codes and not any(codes):
        print(f"rank {codes.index(None)} did not end within {DEADLINE} s", file=sys.stderr)
    for rank in ranks:
        rank.kill()
    sys.exit(any([rank.wait(timeout=10) != 0 for rank in ranks]))


if len(sys.argv) == 2:
    both(sys.argv[1])
else:
    one(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
