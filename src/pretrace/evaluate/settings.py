"""What moves a number of an evaluation, all written out. Two evaluations may be compared where these are equal."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from pretrace.spec import Spec

Truncation = Literal["left", "refuse"]
Bos = Literal["tokenizer", "always", "never"]
Dtype = Literal["float32", "bfloat16", "float16"]
Through = Literal["decoder", "transformers"]


class Settings(Spec):
    """How rows become log-likelihoods.

    max_length : tokens that the model reads at most; the harness's name for it, also the length of rolling windows.
    truncation : `left` cuts tokens from the left of a context that does not fit (the harness's rule); `refuse` leaves the row
        unscored.
    bos : `tokenizer` adds what the tokenizer's own post-processor adds (the harness's rule); `always` puts the prefix token
        before every context that does not begin with it; `never` adds nothing.
    prefix : id of the token before a text without context. The tokenizer's begin-of-text token, or else its end-of-text token
        (the harness's rule).
    dtype : of weights, activations and logits. The softmax over them is always taken in float32; lm-evaluation-harness takes
        it in the model's dtype.
    limit : the first rows only; None for all. fewshot: examples before each row; None for what the task says.
    batch_tokens, threads : padded positions of one forward; threads of a CPU. They move the last bits of a log-likelihood, so
        they are printed, not hashed.
    """

    max_length: PositiveInt
    truncation: Truncation
    bos: Bos
    prefix: NonNegativeInt
    dtype: Dtype
    through: Through
    device: str
    limit: PositiveInt | None
    fewshot: NonNegativeInt | None
    batch_tokens: PositiveInt
    threads: PositiveInt

    not_hashed: ClassVar[frozenset[str]] = frozenset({"batch_tokens", "threads"})
