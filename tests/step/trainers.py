"""Small trainers that divide their loss in different ways, and some that do it wrong: what `check-loss` must tell apart.

Each is written as a person would write it for one project; nothing of pretrace is used.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 32))


def ranks():
    return dist.get_world_size() if dist.is_initialized() else 1


def total(value):
    value = torch.tensor(float(value))
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


def average_over_ranks(net):
    for p in net.parameters():
        if dist.is_initialized():
            dist.all_reduce(p.grad)
            p.grad /= ranks()
    return net


def losses(net, batch, reduction="sum"):
    return F.cross_entropy(net(batch.input_ids).flatten(0, 1), batch.targets.flatten(), reduction=reduction)


def mean_of_means(micro_batches):
    """nanoGPT's way: cross_entropy's own mean, divided by the number of micro-steps."""
    net = model()
    for batch in micro_batches:
        (losses(net, batch, "mean") / len(micro_batches)).backward()
    return average_over_ranks(net)


def global_sum(micro_batches):
    """torchtitan's way: sum over labels by the labels of all ranks, summed over ranks."""
    net = model()
    n = total(sum((b.targets != -100).sum() for b in micro_batches))
    for batch in micro_batches:
        (losses(net, batch) / n).backward()
    for p in net.parameters():
        if dist.is_initialized():
            dist.all_reduce(p.grad)
    return net


def rank_sum(micro_batches):
    """OLMo-core's way: a rank's sum by its own labels, then the mean over ranks."""
    net = model()
    n = sum((b.targets != -100).sum() for b in micro_batches)
    for batch in micro_batches:
        (losses(net, batch) / n).backward()
    return average_over_ranks(net)


def each_example_alike(micro_batches):
    """Every sequence weighs the same."""
    net = model()
    n = total(sum(len(b.targets) for b in micro_batches))
    for batch in micro_batches:
        logits = net(batch.input_ids)
        per_token = F.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none")
        per_sequence = per_token.sum(1) / (batch.targets != -100).sum(1)
        (per_sequence.sum() / n * ranks()).backward()
    return average_over_ranks(net)


def all_positions(micro_batches):
    """OLMo's way: padding counts in the denominator."""
    net = model()
    n = sum(b.targets.numel() for b in micro_batches)
    for batch in micro_batches:
        (losses(net, batch) / n).backward()
    return average_over_ranks(net)


def counts_before_the_shift(micro_batches):
    """The older Trainer's count: labels before they are shifted, one more for each sequence."""
    net = model()
    n = total(sum((b.labels != -100).sum() for b in micro_batches))
    for batch in micro_batches:
        (losses(net, batch) / n * ranks()).backward()
    return average_over_ranks(net)


def forgot_gas(micro_batches):
    """huggingface/transformers#37766: the division by the micro-steps was dropped."""
    net = model()
    for batch in micro_batches:
        losses(net, batch, "mean").backward()
    return average_over_ranks(net)


def forgot_ranks(micro_batches):
    """Sums over ranks what is a mean on each."""
    net = model()
    for batch in micro_batches:
        (losses(net, batch, "mean") / len(micro_batches)).backward()
    for p in net.parameters():
        if dist.is_initialized():
            dist.all_reduce(p.grad)
    return net


def late_sync(micro_batches):
    """karpathy/build-nanogpt#30: ranks do not exchange their gradients at all."""
    net = model()
    for batch in micro_batches:
        (losses(net, batch, "mean") / len(micro_batches)).backward()
    return net


def drops_at_random(micro_batches):
    net = nn.Sequential(model()[0], nn.Dropout(0.5), nn.Linear(16, 32))
    for batch in micro_batches:
        losses(net, batch, "mean").backward()
    return net


def returns_nothing(micro_batches):
    mean_of_means(micro_batches)


def falls_over(micro_batches):
    raise RuntimeError("no such luck")


def divides_by_ranks_twice(micro_batches):
    """The labels of all ranks, and then the mean over ranks as well: what DDP does to a global sum."""
    net = model()
    n = total(sum((b.targets != -100).sum() for b in micro_batches))
    for batch in micro_batches:
        (losses(net, batch) / n).backward()
    return average_over_ranks(net)


def loses_micro_steps_on_ranks(micro_batches):
    """Right everywhere but with several ranks and more than two micro-steps, where the first ones are lost."""
    net = model()
    lost = len(micro_batches) - 2 if dist.is_initialized() else 0
    for i, batch in enumerate(micro_batches):
        if i >= lost:
            (losses(net, batch, "mean") / len(micro_batches)).backward()
    return average_over_ranks(net)
