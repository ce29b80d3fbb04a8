"""Which number a step minimises: the denominator of the loss, what is counted, where the division happens, z-loss."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import NonNegativeFloat

from pretrace.spec import Spec

Denominator = Literal["micro_mean", "sequence_mean", "rank_step_tokens", "global_tokens", "positions"]
DENOMINATORS: tuple[Denominator, ...] = get_args(Denominator)


class LossSpec(Spec):
    """The rule by which the token losses of one update become one number.

    The ignored label is `pretrace.batch.IGNORE_INDEX` everywhere; a label masked at a packed boundary is an ignored label.
    """

    denominator: Denominator
    # "before_shift" is transformers' num_items_in_batch: the first token of a sequence is counted although nothing
    # predicts it, one more for each sequence whose first label is counted.
    count: Literal["after_shift", "before_shift"]
    # "loss": before the backward pass, as most trainers; "gradient": on the finished sum, as Megatron's
    # calculate_per_token_loss.
    divide: Literal["loss", "gradient"]
    logits_dtype: Literal["float32", "as_computed"]  # dtype in which softmax and loss are computed
    z_loss: NonNegativeFloat  # coefficient of logsumexp(logits)^2, normalised as the loss; 0: none
    z_loss_on: Literal["counted", "all"]  # positions that the z-loss looks at
