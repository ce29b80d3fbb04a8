"""DeepSpeed's own ZeRO-1 trains a tiny recipe on two gloo processes. A program: FOLDER RECIPE RANK PORT HALF.

Saves after 4 updates, and the float32 masters after 8 as `truth.pt`.
"""

import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

folder, recipe_file, rank, port, half = sys.argv[1:]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank,
               "DS_ACCELERATOR": "cpu"}  # fmt: skip
import deepspeed  # noqa: E402

sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # needs a compiler, is not needed
from deepspeed.utils import safe_get_full_fp32_param  # noqa: E402

from pretrace.recipe import load  # noqa: E402
from pretrace.train import begin  # noqa: E402

recipe = load(recipe_file)
training = begin(recipe)
deepspeed.init_distributed("gloo")
config = {
    "train_micro_batch_size_per_gpu": recipe.step.micro_batch, "zero_optimization": {"stage": 1},
    "bf16": {"enabled": half == "1"}, "gradient_clipping": recipe.step.clip.max_norm, "zero_allow_untested_optimizer": True,
}  # fmt: skip
model = training.state.model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.01)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for step in range(8):
    if step == 4:
        engine.save_checkpoint(folder)
    batch = training.read(recipe.step.topology.positions(step, 0, int(rank)))
    logits = engine(torch.from_numpy(batch.tokens).long()).float()
    engine.backward(F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.labels).long().flatten()))
    engine.step()
truth = {name: safe_get_full_fp32_param(p).clone() for name, p in engine.module.named_parameters()}
if rank == "0":
    torch.save(truth, Path(folder) / "truth.pt")
torch.distributed.barrier()
