"""Writes the case files of this folder: was a Pythia model trained on the Pile, or on the deduplicated Pile?

    python recipes/cases/generate.py [OUT]

One file for each size, label and generation of the published checkpoints. Every value stands beside its source; the test suite
compares what this program writes with what stands here, plans every case without data, and asks each what it lacks.
"""

import sys
from pathlib import Path

SIZES = {
    # ranks x gas x micro-batch, published last; couples of other sizes; how many sequences the training-free stages read
    "70m": {
        "dealt": ((8, 16, 8), (8, 4, 32), (16, 2, 32), (32, 1, 32)), "settings": ((8, 4, 32), (8, 16, 8)),
        "pairs": ("160m", "410m"), "yml": "models/70M/pythia-70m.yml: trained on 32 gpus, micro-batch 32, gas 1",
        "outsider": True,
    },
    "2.8b": {
        "dealt": ((8, 32, 4), (8, 16, 8), (64, 2, 8), (64, 1, 16)), "settings": ((8, 16, 8), (8, 32, 4)),
        "pairs": ("70m", "160m", "410m", "1.4b"), "yml": "models/2.8B/pythia-2.8b.yml: trained on 64 gpus, micro-batch 16, gas 1",
        "outsider": False,
    },
}  # fmt: skip
STEPS = {"v1": (1, 2, 4, 8, 16, 32, 64), "v0": (2000,)}
START = {"v1": "{step: 0, burn_in: 0}", "v0": "{step: 1000, burn_in: 64}"}

HEAD = """\
# Was {model} trained on {edition_words}? Generation {generation} of the published checkpoints.
# Written by recipes/cases/generate.py. Not run here: the corpora are 600 GB each. Without data:
#   pretrace retrace plan recipes/cases/{stem}.yaml       runs, device-hours and money
#   pretrace retrace run recipes/cases/{stem}.yaml        says what to fetch and where to put it
# With the token files only, before anything is trained:
#   pretrace retrace orders recipes/cases/{stem}.yaml     from which step on any two of the four forms differ
{generation_words}
claim: {edition}+documents+samples@1234

# Model, optimizer, schedule and precision: the published NeoX configuration and config.json; each value's source stands in it.
recipe: ../pythia-{size}{dash}.yaml

# Published in float16 (README: "mixed precision, using fp16 for all models except pythia-1b").
reference: {{checkpoints: {place}/{model}, dtype: float16}}

hypotheses: {{}}
# The four released forms. seed 1234: the GPT-NeoX default (README, "Multiple random seeds"). 146,432,000 samples: 143,000
# updates of 1,024 sequences. surplus: `train-data-paths` asks for 0.5% more (GPT-NeoX v1.0, gpt2_dataset.py and
# data_utils.py). form_of: entry i of the ready file is said to be sample i of training (README, "Exploring the Dataset"); it
# is compared, not believed.
orders:
  seeds: [1234]
  version: v1.0
  num_samples: 146432000
  surplus: true
  epochs: 1
  datasets:
    standard: {{path: {data}/pile-standard/pile_20B_tokenizer_text_document, form: corpus, shuffles: [both]}}
    standard-ready:
      {{path: {data}/pile-standard-pythia-preshuffled/document, form: preshuffled, shuffles: [none], form_of: standard}}
    deduped: {{path: {data}/pile-deduped/pile_0.87_deduped_text_document, form: corpus, shuffles: [both]}}
    deduped-ready:
      {{path: {data}/pile-deduped-pythia-preshuffled/document, form: preshuffled, shuffles: [none], form_of: deduped}}

# Must not matter: fewer ranks with more micro-steps (the same 1,024 sequences), and the precision of the arithmetic.
base: few-ranks
benign:
{benign}
# Orders of each data set with seeds 2 to 20: neither 1234 nor 1, the sibling's.
decoys: {{count: 19, seed_key: data.order.seed, first_seed: 2}}

# pythia-70m-seed1 (README, "Multiple random seeds": the standard Pile with seed 1): the same stack, and nobody doubts its data.
sibling:
  recipe: ../pythia-70m.yaml
  edits:
    data.sources: [{{path: {data}/pile-standard/pile_20B_tokenizer_text_document, format: bin_idx, weight: null, content: ""}}]
    data.order: {{family: neox, version: v1.0, num_samples: 146432000, seed: 1, split: null, part: train, surplus: true}}
  reference: {{checkpoints: {place}/pythia-70m-seed1, dtype: float16}}
no_sibling_because: ""

start: {start}
steps: [{steps}]
deciding_step: {deciding}
"""

V1_WORDS = """\
# Checkpoints: steps 0, 1, 2, 4, ... 512 and every 1,000 (README, "Models"). Summed warm-up rates move float16 weights by more
# than their spacing only from about step 16 on, so step 64 decides.
"""
V1_28B_WORDS = """\
# EleutherAI/pythia issues 195 and 205: 86 of 154 branches of pythia-2.8b, step 0 and the whole early grid among them, serve
# final-era weights. Integrity stops this case with that finding until the steps are fetched from a sound copy. Of the NeoX-format
# checkpoints (README: neox-ckpt-pythia-xxx-deduped-v1) the final step is published; others are to be asked for.
"""
V0_WORDS = """\
# The first release (models named -v0). 143 checkpoints, one every 1,000 updates (its model card), none at step 0: the replay
# begins at step 1,000 with moments burnt in on the 64 claimed batches before it, and needs 1,000 updates a run. Look at the
# cost first: the stages without training come before it and may end the case. Settings are taken to be those of the second
# release, which says of itself that it changed the batch of 160m, 410m and 1.4b, the lowest learning rate of 6.9b and 12b,
# and the attention kernel.
"""

DISTANCE = """
# The other model of this size shares seed, initial values and schedule (README: same data order for all sizes, seed 1234).
# Couples of other sizes say how far two such models usually are apart (not 1b, which was trained in bfloat16). 0.25: a
# quarter of the nearest couple.
sibling_distance:
  counterpart: {{checkpoints: {place}/{counterpart}, dtype: float16}}
  made_by: {other}+documents+samples@1234
  collapse: 0.25
  may_end: true
  pairs:
{pairs}"""

LOSSES = """
# Window (9000, 10000]: late enough for memory, early enough that sequences claimed for later are there. Its last 1,024
# sequences are read, and the 1,024 claimed for after the last checkpoint that lies in the folder. Fetch no later step than
# 10,000 for this.
delta_loss: {{windows: [[9000, 10000]], seen: 1024, later: 1024, permutations: 9999, seed: 1, alpha: 0.01, may_end: true}}
"""

RANKS = """
# {outsider_words}
palimpsest: {{step: 10000, sequences: 4096, outsider: {outsider}, permutations: 9999, seed: 1, alpha: 0.01, may_end: {may_end}}}
"""

TOPOLOGIES = """
# {yml}.
topologies:
  hypotheses: [standard+documents+samples@1234, deduped+documents+samples@1234]
  dealt:
{dealt}
"""

FETCH = """
fetch:
  {data}/pile-deduped: >-
    git lfs clone https://huggingface.co/datasets/EleutherAI/pythia_deduped_pile_idxmaps, then utils/unshard_memmap.py of
    EleutherAI/pythia (83 shards; sha256 of the whole .bin 0cd548efd15974d5cca78f9baddbd59220ca675535dcfc0c350087c79f504693:
    README)
  {data}/pile-standard: >-
    GPT-NeoX v1.0 prepare_data.py pile -t HFTokenizer -v 20B_tokenizer.json (EleutherAI/pythia issue 69); no copy with a digest
    is published
  {data}/pile-deduped-pythia-preshuffled: >-
    huggingface-cli download EleutherAI/pile-deduped-pythia-preshuffled --repo-type dataset, then utils/unshard_memmap.py with
    21 shards and the .idx beside it (README, "Exploring the Dataset"); no digests are published (issue 183)
  {data}/pile-standard-pythia-preshuffled: >-
    huggingface-cli download EleutherAI/pile-standard-pythia-preshuffled --repo-type dataset, then utils/unshard_memmap.py with
    21 shards and the .idx beside it (README, "Exploring the Dataset")
{models}"""

PLACE, DATA = "../../checkpoints", "../../data"


def case(size, edition, generation):
    """The text of one case file."""
    deduped = edition == "deduped"
    name = name_of(size, edition, generation)
    other = "standard" if deduped else "deduped"
    spec = SIZES[size]
    fields = {
        "size": size, "edition": edition, "dash": "-deduped" if deduped else "", "model": name,
        "stem": stem(size, edition, generation),
        "generation": generation, "edition_words": "the deduplicated Pile" if deduped else "the whole Pile",
        "generation_words": words(size, edition, generation), "place": PLACE, "data": DATA, "other": other,
        "benign": benign(spec), "start": START[generation], "steps": ", ".join(map(str, STEPS[generation])),
        "deciding": STEPS[generation][-1], "counterpart": name_of(size, other, generation), "yml": spec["yml"],
        "pairs": "".join(pair(each) for each in spec["pairs"]),
        "dealt": "\n".join(f"    - {dealt(*each)}" for each in spec["dealt"]),
    }  # fmt: skip
    outside = spec["outsider"] and generation == "v1"
    fields |= {
        "outsider": f"{PLACE}/pythia-{size}-seed2/step10000" if outside else "null", "may_end": str(bool(outside)).lower(),
        "outsider_words": "The outsider: the same model on the Pile in the order of seed 2 (README, \"Multiple random seeds\")."
        if outside else "No model of this shape is known to have read none of the four; without an outsider ranks end nothing.",
    }  # fmt: skip
    fields["models"] = "".join(fetch(model) for model in models(size, edition, generation, outside))
    parts = [HEAD, DISTANCE if generation == "v1" else "", LOSSES, RANKS, TOPOLOGIES, FETCH]
    return "".join(part.format(**fields) for part in parts)


def name_of(size, edition, generation="v1"):
    """A model's name on the Hugging Face hub."""
    return f"pythia-{size}" + ("-deduped" if edition == "deduped" else "") + ("-v0" if generation == "v0" else "")


def stem(size, edition, generation):
    """The name of a case file."""
    return f"pythia-{size}-{edition}-{generation}"


def words(size, edition, generation):
    """What is to be known of one generation's checkpoints."""
    corrupt = V1_28B_WORDS if (size, edition) == ("2.8b", "standard") else ""
    return V0_WORDS if generation == "v0" else V1_WORDS + corrupt


def dealt(ranks, gas, micro):
    return f"{{world_size: {ranks}, grad_accum_steps: {gas}, micro_batch: {micro}}}"


def benign(spec):
    (few, more), published = spec["settings"], spec["dealt"][-1]

    def setting(name, topology, compute):
        ranks, gas, micro = topology
        topology = f"step.world_size: {ranks}, step.grad_accum_steps: {gas}, step.micro_batch: {micro}"
        return f"  {name}: {{{topology}, step.kernels.compute_dtype: {compute}}}\n"

    return (
        setting("few-ranks", few, "float16") + setting("more-gas", more, "float16") + setting("published", published, "float16")
        + setting("bf16", few, "bfloat16") + setting("fp32", few, "float32")
    )  # fmt: skip


def pair(size):
    a, b = (f"{{checkpoints: {PLACE}/{name_of(size, edition)}, dtype: float16}}" for edition in ("deduped", "standard"))
    return f"    {size}: {{a: {a}, b: {b}}}\n"


def models(size, edition, generation, outside):
    names = [name_of(size, edition, generation), "pythia-70m-seed1"]
    if generation == "v1":
        other = "standard" if edition == "deduped" else "deduped"
        names += [name_of(size, other)] + [name_of(s, e) for s in SIZES[size]["pairs"] for e in ("deduped", "standard")]
    return names + ([f"pythia-{size}-seed2"] if outside else [])


def fetch(model):
    return (
        f"  {PLACE}/{model}: >-\n    for each step N: huggingface-cli download EleutherAI/{model} --revision stepN --local-dir "
        f"{model}/stepN\n"
    )


def cases():
    """Every case file of this folder: name -> text."""
    kinds = [(s, e, g) for s in SIZES for e in ("standard", "deduped") for g in ("v1", "v0")]
    return {f"{stem(*kind)}.yaml": case(*kind) for kind in kinds}


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, text in cases().items():
        (folder / name).write_text(text)
