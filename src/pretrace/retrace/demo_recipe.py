"""The demo's recipe: a small decoder of Pythia's shape, trained as Pythia's stack would, with 8 virtual ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pretrace.data import DataSpec
from pretrace.data.families import NeoxOrder
from pretrace.data.order import DocumentRules
from pretrace.data.sources import TokenSource
from pretrace.model.presets import gpt_neox
from pretrace.recipe import Recipe
from pretrace.recipe.spec import CheckpointSpec, Seeds
from pretrace.retrace.books import Edition
from pretrace.step.buckets import Whole
from pretrace.step.finish_spec import ClipSpec, KernelSpec
from pretrace.step.loss_scale import NoScale
from pretrace.step.loss_spec import LossSpec
from pretrace.step.optim_spec import AdamW, decay_matrices
from pretrace.step.orders import GlooRing
from pretrace.step.plan import StepPlan
from pretrace.step.reduction_spec import ReductionSpec
from pretrace.step.schedule import Constant


@dataclass(frozen=True, slots=True)
class Size:
    """How large the demo is."""

    vocab_size: int
    n_layers: int
    d_model: int
    seq_len: int
    micro_batch: int  # on each of 8 ranks
    steps: tuple[int, ...]
    deciding_step: int
    horizon: int  # updates that the data must last for; the reference makes as many as the last of `steps`

    @property
    def global_batch(self) -> int:
        """Sequences per update."""
        return 8 * self.micro_batch


FULL = Size(2048, 3, 96, 96, 2, (2, 4, 8, 16, 32), 32, 64)
QUICK = Size(1024, 2, 64, 64, 1, (2, 4, 8), 8, 32)


def source(edition: Edition) -> TokenSource:
    """The token file of an edition, known by its content."""
    return TokenSource(path=str(edition.prefix), format="bin_idx", content=edition.content)


def recipe(size: Size, edition: Edition, vocab_size: int, *, name: str, order_seed: int, init_seed: int) -> Recipe:
    """The complete recipe of a run on one edition."""
    model = gpt_neox(
        vocab_size=vocab_size, max_seq_len=size.seq_len, n_layers=size.n_layers, d_model=size.d_model, n_heads=4
    )
    order = NeoxOrder(
        family="neox", version="v1.0", num_samples=size.horizon * size.global_batch, seed=order_seed, split=None,
        part="train", surplus=False,
    )  # fmt: skip
    rules = DocumentRules(eod_id=None, mask_after_eod=False, separate_attention=False, restart_positions=False)
    return Recipe(
        name=name, model=model, step=_plan(size), steps=max(size.steps),
        data=DataSpec(sources=(source(edition),), seq_len=size.seq_len, order=order, documents=rules),
        seeds=Seeds(init=init_seed, dropout=0),
        checkpoints=CheckpointSpec(at=(0, *size.steps), every=0, dtype="float16", keep_states=1),
    )  # fmt: skip


def _plan(size: Size) -> StepPlan:
    return StepPlan(
        world_size=8, grad_accum_steps=1, micro_batch=size.micro_batch, accum_dtype="float32", reduce_dtype="float32",
        loss=LossSpec(denominator="global_tokens", count="after_shift", divide="loss", logits_dtype="float32", z_loss=0.0,
                      z_loss_on="counted"),
        reduction=ReductionSpec(collective="all_reduce", order=GlooRing(sum_dtype="wire", max_segment_bytes=1 << 20),
                                buckets=Whole(), scaling=(), scaling_first=()),
        loss_scale=NoScale(kind="none"),
        clip=ClipSpec(max_norm=1.0, scope="global", norm="tensors", rule="torch", eps=1e-6),
        optimizer=AdamW(kind="adamw", kernel="torch_foreach", betas=(0.9, 0.95), eps=1e-8, eps_place="corrected",
                        bias_correction=True, decay_place="before", groups=decay_matrices(0.1)),
        schedule=Constant(kind="constant", peak=2e-3, warmup_steps=max(size.steps)),
        kernels=KernelSpec(param_dtype="float32", compute_dtype="bfloat16", mixed="autocast", attention="any", threads=1,
                           compile=False, deterministic=True),
    )  # fmt: skip


def benign(size: Size) -> dict[str, dict[str, Any]]:
    """Settings that must not matter: how the same sequences are dealt to ranks and micro-steps, and the precision.

    None of them is the reference's own (8 ranks, one micro-step, bfloat16): an investigator does not know it.
    """
    batch = size.global_batch
    fp32, bf16 = {"step.kernels.compute_dtype": "float32"}, {"step.kernels.compute_dtype": "bfloat16"}
    return {
        "whole-batch": dealt(1, 1, batch) | fp32,  # the base: the fastest, for the decoys
        "gas8": dealt(1, 8, batch // 8) | fp32,
        "ranks4-tree": dealt(4, 2, batch // 8) | fp32 | {"step.reduction.order": {"kind": "tree", "sum_dtype": "wire"}},
        "bf16-gas4": dealt(1, 4, batch // 4) | bf16,
        "bf16-ranks2": dealt(2, 1, batch // 2) | bf16,
    }


def dealt(world_size: int, grad_accum_steps: int, micro_batch: int) -> dict[str, Any]:
    """The edit that deals an update to so many ranks, micro-steps and sequences."""
    return {
        "step.world_size": world_size, "step.grad_accum_steps": grad_accum_steps, "step.micro_batch": micro_batch,
    }  # fmt: skip
