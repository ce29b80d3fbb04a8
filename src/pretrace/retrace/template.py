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
  # One that was trained elsewhere (GPT-NeoX, say): shown as evidence, marked "not replayed here"; no verdict rests on it.
  # standard-on-neox:
  #   runs: neox/checkpoints
  #   recipe: neox.yaml

# More hypotheses in a short block: data sets x shuffles (both, documents, samples, none) x seeds. Each gets a name such as
# books+documents+samples@1234; `pretrace retrace orders THIS_FILE` says from which step on any two of them differ.
# orders:
#   seeds: [1234]
#   version: v1.0          # of GPT-NeoX, for `both`
#   num_samples: 4096      # what training asks for
#   surplus: false         # 0.5% more, as GPT-NeoX does with train-data-paths
#   epochs: 1              # of the orders that shuffle one thing or nothing
#   datasets:
#     books: {path: data/books, form: corpus, shuffles: [both, documents, samples, none]}
#     books-ready: {path: data/books-preshuffled, form: preshuffled, shuffles: [none], form_of: books}

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

# What follows may be left out; what is left out is reported as not run. The first three need no training. Where may_end says so
# they can contradict the claim before anything is trained; none of them can support it.

# The model of the reference's size that was trained on the other data, and couples of other sizes: has the difference collapsed?
# sibling_distance:
#   counterpart: {checkpoints: counterpart/checkpoints, dtype: float16}
#   made_by: standard      # the hypothesis that nobody doubts of the counterpart
#   pairs:
#     small: {a: {checkpoints: small-deduped, dtype: float16}, b: {checkpoints: small-standard, dtype: float16}}
#   collapse: 0.25         # collapsed: nearer than this part of the nearest other couple, at the deciding step
#   may_end: true

# Did the loss fall more on what each hypothesis claims for a window? Short and late ones see best; the last may end the case.
# delta_loss: {windows: [[8, 16]], seen: 1024, later: 768, permutations: 999, seed: 1, alpha: 0.01, may_end: true}

# Is the loss lower on what came last, less that of a model trained on none of the hypotheses?
# palimpsest: {step: 16, sequences: 4096, outsider: outsider/step16, permutations: 999, seed: 1, alpha: 0.01, may_end: false}

# Does gas or micro-batch move the gap between data sets, or only the level? The last topology is the published one.
# topologies:
#   hypotheses: [standard, deduped]
#   dealt:
#     - {world_size: 1, grad_accum_steps: 8, micro_batch: 1}
#     - {world_size: 1, grad_accum_steps: 1, micro_batch: 8}
#     - {world_size: 8, grad_accum_steps: 1, micro_batch: 1}

# Where inputs come from, for whoever has not got them: a path of this file, and words.
# fetch:
#   data/standard: "huggingface-cli download ORG/NAME --repo-type dataset --local-dir data"
"""
