"""The case file that `pretrace retrace init` writes: every key, with what it asks for."""

TEMPLATE = """\
# A provenance case. Fill it in, then: pretrace retrace run THIS_FILE
# Everything here is locked before the reference is read; the digest that is printed then belongs into your report.
# Paths are relative to this file. Nothing has a default: a choice that could bend the verdict is written out.

# Which of the hypotheses below is claimed of the reference.
claim: deduped

# How the reference is said to have been made, as far as all hypotheses agree: a complete pretrace recipe.
recipe: recipe.yaml

# The published checkpoints: a folder with one checkpoint a step (step-00000016, step16, iter_0000016 ...), step 0 among them.
# dtype: what they were published in; predictions are rounded to it before anything is compared.
reference:
  checkpoints: reference/checkpoints
  dtype: float16

# The claim and its rivals: recipe edits by dotted key. A verdict is only as good as this list: rivals not listed are not tested.
hypotheses:
  deduped:
    edits: {}
  standard:
    edits:
      data.sources:
        - {path: data/standard, format: bin_idx, weight: 1.0, content: ""}

# Settings that must not matter, at least four, spanning precision; their scatter is the noise floor. None may change the
# global batch. `base` is the one that the decoys run under.
base: gas8
benign:
  gas8: {step.world_size: 1, step.grad_accum_steps: 8, step.micro_batch: 1}
  whole-batch: {step.world_size: 1, step.grad_accum_steps: 1, step.micro_batch: 8}
  ranks2: {step.world_size: 2, step.grad_accum_steps: 2, step.micro_batch: 2}
  bf16: {step.kernels.compute_dtype: bfloat16, step.world_size: 1, step.grad_accum_steps: 2, step.micro_batch: 4}

# Decoys: other orders of each hypothesis's own data, never a rival's. 19 reach p = 0.05, 99 reach 0.01.
decoys:
  count: 19
  seed_key: data.order.seed
  first_seed: 1000

# The sibling control: a run of the same stack whose data nobody doubts. It is the licence to contradict a claim that no rival
# explains. If there is none: `sibling: null`, and say why below.
sibling:
  recipe: sibling.yaml
  reference:
    checkpoints: sibling/checkpoints
    dtype: float16
no_sibling_because: ""

# Where replays begin. A start after step 0 burns in the optimizer's moments on that many claimed batches before it.
start: {step: 0, burn_in: 0}

# Where the runs are compared. Only the deciding step decides; the others describe.
steps: [1, 2, 4, 8, 16]
deciding_step: 16
"""
