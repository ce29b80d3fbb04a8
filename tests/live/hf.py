"""A plain Hugging Face Trainer as a user writes it, and what `from_hf` reads from it: nothing of our executor is in here."""

import os
import tempfile

import torch

VOCAB, SEQ, PAD = 48, 16, 0


def llama(kind=None):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=SEQ, pad_token_id=PAD, use_cache=False,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return (kind or LlamaForCausalLM)(config)


def row(i):
    """Sequence i: from 2 to SEQ tokens, padded on the right."""
    draw = torch.Generator().manual_seed(i)
    ids = torch.randint(1, VOCAB, (SEQ,), generator=draw)
    ids[2 + int(torch.randint(0, SEQ - 1, (1,), generator=draw)) :] = PAD
    return {"input_ids": ids, "attention_mask": ids.ne(PAD).long(), "labels": torch.where(ids.ne(PAD), ids, -100)}


def run(rank, world, how):
    """The parameters after each update, as one vector of bit patterns; and the plan that was read before training."""
    import transformers
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from pretrace.step.importers_hf import from_hf

    if world > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": "29500"}  # fmt: skip
    transformers.utils.logging.set_verbosity_error()
    model, seen = llama(), []

    class Look(TrainerCallback):
        def on_step_end(self, *_, **__):
            seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]).view(torch.int32))

    class InOrder(Trainer):
        def _get_train_sampler(self, *_, **__):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    n = max(how["steps"], 1) * how["gas"] * world * how["micro"]
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, per_device_train_batch_size=how["micro"], gradient_accumulation_steps=how["gas"], max_steps=how["steps"],
            learning_rate=3e-3, weight_decay=0.1, use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
            disable_tqdm=True, dataloader_pin_memory=False, **how["arguments"],
        )  # fmt: skip
        trainer = InOrder(model=model, args=args, train_dataset=[row(i) for i in range(n)], callbacks=[Look()])
        plan = from_hf(trainer, {"schedule": how["schedule"]} if "schedule" in how else {})
        trainer.train()
    return {"seen": seen, "plan": plan.to_yaml()}
