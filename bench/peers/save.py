"""What PyTorch's own checkpoints cost: the same model with its AdamW state. Arguments: FOLDER ROUNDS.

Prints SAVE and ASYNC: seconds that training would stand still for torch.save and for DCP's async_save, each round; and the
seconds until the asynchronous one is written (WRITTEN). SAVE_CPU and ASYNC_CPU: the processor seconds of each, until it is written.
"""

import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

from model import Gpt, adamw, batch, loss_fn

folder, rounds = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
model = Gpt()
optimizer = adamw(model.parameters())
x, y = batch()
loss_fn(model(x[:1]), y[:1]).backward()
optimizer.step()
save, stall, written, save_cpu, async_cpu = [], [], [], [], []
for i in range(rounds):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    start, cpu = time.perf_counter(), time.process_time()
    torch.save(state, f"{folder}/state.pt")
    save.append(time.perf_counter() - start)
    save_cpu.append(time.process_time() - cpu)
    start, cpu = time.perf_counter(), time.process_time()
    future = dcp.async_save(state, checkpoint_id=f"{folder}/dcp-{i}")
    stall.append(time.perf_counter() - start)
    future.result()
    written.append(time.perf_counter() - start)
    async_cpu.append(time.process_time() - cpu)
    shutil.rmtree(f"{folder}/dcp-{i}")
names = ("SAVE", "ASYNC", "WRITTEN", "SAVE_CPU", "ASYNC_CPU")
for name, values in zip(names, (save, stall, written, save_cpu, async_cpu)):
    print(name, *(f"{v:.6f}" for v in values), flush=True)
dist.destroy_process_group()
