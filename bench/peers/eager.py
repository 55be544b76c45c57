"""PyTorch eager, one process. Arguments: THREADS STEPS MICRO_BATCHES MODEL (gpt or llama). Prints one line: step seconds of each measured step."""

import sys
import time

import torch

from llama import Llama
from model import Gpt, adamw, batch, loss_fn

threads, steps, micro = map(int, sys.argv[1:4])
torch.set_num_threads(threads)
torch.manual_seed(0)
model = {"gpt": Gpt, "llama": Llama}[sys.argv[4]]()
optimizer = adamw(model.parameters())
x, y = batch()
seconds = []
for i in range(steps + 2):
    start = time.perf_counter()
    optimizer.zero_grad()
    for xi, yi in zip(x.chunk(micro), y.chunk(micro)):
        (loss_fn(model(xi), yi) / micro).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    seconds.append(time.perf_counter() - start)
print("STEPS", *(f"{s:.6f}" for s in seconds[2:]), flush=True)
