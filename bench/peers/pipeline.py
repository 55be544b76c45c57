"""torch.distributed.pipelining, Schedule1F1B, two CPU processes over Gloo, one thread each.

Run by torchrun --standalone --nproc-per-node=2 pipeline.py STEPS MICRO_BATCHES CUT. The last rank prints the step seconds.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from model import Gpt, adamw, batch, loss_fn
from shape import LAYERS

steps, micro, cut = map(int, sys.argv[1:4])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = Gpt(0, cut) if rank == 0 else Gpt(cut, LAYERS)
schedule = Schedule1F1B(PipelineStage(model, rank, 2, torch.device("cpu")), micro, loss_fn=loss_fn)
optimizer = adamw(model.parameters())
x, y = batch()
seconds = []
for i in range(steps + 2):
    start = time.perf_counter()
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=y, losses=[])
    optimizer.step()
    seconds.append(time.perf_counter() - start)
if rank == 1:
    print("STEPS", *(f"{s:.6f}" for s in seconds[2:]), flush=True)
dist.destroy_process_group()
