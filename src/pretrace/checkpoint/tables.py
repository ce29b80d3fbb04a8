"""All tables that names are looked up in."""

from __future__ import annotations

from pretrace.checkpoint.table import Table
from pretrace.checkpoint.tables_hf import HF_GPT2, HF_GPT_NEOX, HF_LLAMA

ALL: tuple[Table, ...] = (HF_GPT_NEOX, HF_GPT2, HF_LLAMA)
HF = {table.family: table for table in (HF_GPT_NEOX, HF_GPT2, HF_LLAMA)}
