"""All tables that names are looked up in."""

from __future__ import annotations

from pretrace.checkpoint.table import Table
from pretrace.checkpoint.tables_hf import HF_GPT2, HF_GPT_NEOX, HF_LLAMA
from pretrace.checkpoint.tables_jax import MAXTEXT, PAXML
from pretrace.checkpoint.tables_megatron import MEGATRON, MEGATRON_CORE, MEGATRON_V0, MEGATRON_V1
from pretrace.checkpoint.tables_neox import NEOX
from pretrace.checkpoint.tables_small import META_LLAMA, NANOGPT

ALL: tuple[Table, ...] = (
    HF_GPT_NEOX, HF_GPT2, HF_LLAMA, *NEOX, NANOGPT, META_LLAMA, *MAXTEXT, PAXML, MEGATRON, MEGATRON_V1, MEGATRON_V0,
    *MEGATRON_CORE,
)  # fmt: skip
HF = {table.family: table for table in (HF_GPT_NEOX, HF_GPT2, HF_LLAMA)}
