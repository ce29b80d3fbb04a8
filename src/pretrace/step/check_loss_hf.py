"""The installed Hugging Face Trainer as a step for `check-loss`: its own loop, sampler, loss and gradient accumulation."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pretrace.errors import PretraceError
from pretrace.step.check_loss import PADDED
from pretrace.step.check_loss_run import VOCABULARY, MicroBatch

STEP = "pretrace.step.check_loss_hf:step"


def version() -> str:
    """The installed transformers, for the report.

    Raises
    ------
    PretraceError
        If transformers or accelerate is not installed.
    """
    try:
        import accelerate
        import transformers
    except ImportError as error:
        raise PretraceError(
            f"{error.name} is not installed", "check-loss --hf", "pip install transformers accelerate"
        ) from None
    return f"transformers {transformers.__version__}, accelerate {accelerate.__version__}"


def step(micro_batches: list[MicroBatch]) -> list[Tensor]:
    """One update of a tiny Llama by `Trainer` with its default loss; returns the gradients that its optimizer sees."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=2 * PADDED, pad_token_id=0, use_cache=False,
    )  # fmt: skip
    caught = _Catch(LlamaForCausalLM(config))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=len(micro_batches[0].input_ids), max_steps=1, report_to=[], use_cpu=True,
            gradient_accumulation_steps=len(micro_batches), save_strategy="no", disable_tqdm=True, max_grad_norm=0.0,
            logging_strategy="no", optim="adamw_torch", dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = _in_order(Trainer)(
            model=caught.model, args=arguments, train_dataset=_rows(micro_batches), callbacks=[caught.callback()]
        )
        trainer.train()
    return caught.gradients


def _rows(micro_batches: list[MicroBatch]) -> list[dict[str, Tensor]]:
    """This rank's sequences, laid out as the Trainer deals them: batch k * world_size + r goes to rank r."""
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    rows: list[dict[str, Tensor]] = []
    for batch in micro_batches:
        # Other ranks' places hold the same rows: the sampler needs the length, this rank never reads them.
        for _ in range(world_size):
            rows += [{"input_ids": i, "attention_mask": m, "labels": y}
                     for i, m, y in zip(batch.input_ids, batch.attention_mask, batch.labels, strict=True)]  # fmt: skip
    assert 0 <= rank < world_size
    return rows


def _in_order(trainer: Any) -> Any:
    class InOrder(trainer):  # type: ignore[misc]  # a class that is known only here
        """Reads the data set as it stands."""

        def _get_train_sampler(self, *_: Any, **__: Any) -> Iterable[int]:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    return InOrder


class _Catch:
    """Holds the gradients at the moment before the optimizer takes them."""

    def __init__(self, model: Any) -> None:
        self.model, self.gradients = model, list[Tensor]()

    def callback(self) -> Any:
        from transformers import TrainerCallback

        outer = self

        class Callback(TrainerCallback):  # transformers is imported only here
            """Copies the gradients."""

            def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
                outer.gradients = [p.grad.detach().clone() for p in outer.model.parameters() if p.grad is not None]

        return Callback()
