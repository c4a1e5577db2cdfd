"""Two ranks of PyTorch over NCCL on the GPUs of this machine, or both on one. NCCL takes them for two hosts, and so uses the NIC.

usage: ddp.py train              DistributedDataParallel for 100 steps, each gradient compared with that of the whole batch
       ddp.py reduce             how long an all-reduce takes, for some lengths
Prints lines that begin with RANK; ends with 0 when both ranks did.
"""

import datetime
import os
import socket
import subprocess
import sys
import time


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


def one(what, rank, port):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.set_device(rank % torch.cuda.device_count())
    limit = datetime.timedelta(seconds=60)
    where = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("nccl", init_method=where, rank=rank, world_size=2, timeout=limit)
    {"train": train, "reduce": reduce}[what](torch, rank)
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
    # One that failed leaves the other waiting.
    while all(rank.poll() is None for rank in ranks):
        time.sleep(0.05)
    if any(rank.poll() for rank in ranks):
        for rank in ranks:
            rank.kill()
    sys.exit(max(rank.wait() != 0 for rank in ranks))


if len(sys.argv) == 2:
    both(sys.argv[1])
else:
    one(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
