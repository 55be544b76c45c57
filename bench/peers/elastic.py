"""A two-stage pipeline under torchrun that checkpoints with DCP every few steps and resumes after a restart.

WORK names a folder; WORK/steps.log gets a line "<unix time> <process id> <step>" after each step. EVERY = steps per checkpoint.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from model import Gpt, adamw, batch, loss_fn
from shape import LAYERS

# Without this, optimizer state cannot be loaded when the number of ranks changes.
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)
WORK, EVERY, CUT = os.environ["WORK"], int(os.environ.get("EVERY", "3")), 4

torch.set_num_threads(1)
# An attempt of its own for each restart: with the store's plain keys, PyTorch 2.11's restarted workers find the dead one's address
# and mostly need several more restarts.
agent_store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
attempt = dist.PrefixStore(f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}", agent_store)
dist.init_process_group(
    "gloo", store=attempt, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
)
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = Gpt() if world == 1 else (Gpt(0, CUT) if rank == 0 else Gpt(CUT, LAYERS))
optimizer = adamw(model.parameters())
log = open(f"{WORK}/steps.log", "a", buffering=1)
step, latest = 0, f"{WORK}/latest"
if os.path.exists(latest):
    folder = open(latest).read()
    model_state, optimizer_state = get_state_dict(model, optimizer, options=OPTIONS)
    state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=OPTIONS
    )
    step = state["step"]
if world == 2:
    schedule = Schedule1F1B(PipelineStage(model, rank, 2, torch.device("cpu")), 8, loss_fn=loss_fn)
x, y = batch()
while step < 1000:
    optimizer.zero_grad()
    if world == 1:
        for xi, yi in zip(x.chunk(8), y.chunk(8)):
            (loss_fn(model(xi), yi) / 8).backward()
    elif rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=y, losses=[])
    optimizer.step()
    step += 1
    log.write(f"{time.time():.4f} {os.getpid()} {step}\n")
    if step % EVERY == 0:
        model_state, optimizer_state = get_state_dict(model, optimizer, options=OPTIONS)
        folder = f"{WORK}/step-{step}"
        dcp.save({"model": model_state, "optimizer": optimizer_state, "step": step}, checkpoint_id=folder)
        if rank == 0:
            with open(latest + ".tmp", "w") as f:
                f.write(folder)
            os.rename(latest + ".tmp", latest)
sys.exit(0)
