"""nanoGPT and llm.c (GPT-2 with plain linears), Meta's Llama release, llama2.c."""

from __future__ import annotations

from pretrace.checkpoint.table import Ignored, Move, Rename, Split, Table
from pretrace.checkpoint.tables_hf import pairs

_G = "transformer.h.{i}."
# Names as in HF GPT-2, but Linear weights [out, in]: the two are told apart by the shape of c_attn.
NANOGPT = Table(
    name="nanogpt",
    family="gpt2",
    may_lack="transformer.",
    equal=(("transformer.h.0.attn.c_attn.weight", 1, "transformer.wte.weight", 1),),
    moves=(
        Rename("transformer.wte.weight", "embed.weight"),
        Rename("transformer.wpe.weight", "pos_embed.weight"),
        *pairs(_G + "ln_1", "blocks.{i}.norm1"),
        Split(_G + "attn.c_attn.weight", "blocks.{i}.attn.{q,k,v}.weight", by="blocks"),
        Split(_G + "attn.c_attn.bias", "blocks.{i}.attn.{q,k,v}.bias", by="blocks"),
        *pairs(_G + "attn.c_proj", "blocks.{i}.attn.out"),
        *pairs(_G + "ln_2", "blocks.{i}.norm2"),
        *pairs(_G + "mlp.c_fc", "blocks.{i}.mlp.up"),
        *pairs(_G + "mlp.c_proj", "blocks.{i}.mlp.down"),
        *pairs("transformer.ln_f", "final_norm"),
        Rename("lm_head.weight", "head.weight", optional=True),
    ),
    ignored=(Ignored(_G + "attn.bias", "the causal mask"),),
)


_M = "layers.{i}."
_PAIRS = "rotary pairs interleaved -> half-split"
# Meta's release and llama2.c, whose .bin we list under the same names.
META_LLAMA = Table(
    name="meta llama",
    family="llama",
    moves=(
        Rename("tok_embeddings.weight", "embed.weight"),
        Rename(_M + "attention_norm.weight", "blocks.{i}.norm1.weight"),
        Move(_M + "attention.wq.weight", "blocks.{i}.attn.q.weight", "(h ~d) i -> (h d) i", words=_PAIRS),
        Move(_M + "attention.wk.weight", "blocks.{i}.attn.k.weight", "(g ~d) i -> (g d) i", words=_PAIRS),
        Rename(_M + "attention.wv.weight", "blocks.{i}.attn.v.weight"),
        Rename(_M + "attention.wo.weight", "blocks.{i}.attn.out.weight"),
        Rename(_M + "ffn_norm.weight", "blocks.{i}.norm2.weight"),
        Rename(_M + "feed_forward.w1.weight", "blocks.{i}.mlp.gate.weight"),
        Rename(_M + "feed_forward.w3.weight", "blocks.{i}.mlp.up.weight"),
        Rename(_M + "feed_forward.w2.weight", "blocks.{i}.mlp.down.weight"),
        Rename("norm.weight", "final_norm.weight"),
        Rename("output.weight", "head.weight", optional=True),
    ),
    ignored=(Ignored("rope.freqs", "rotary frequencies"), Ignored("freqs_cis", "rotary frequencies")),
)
