"""Candidate orders as a short block of the case file: data sets x shuffles x seeds, each a hypothesis of its own.

The names say what they are: `deduped+documents+samples@1234` shuffles documents and samples with seed 1234, as GPT-NeoX does;
`deduped+documents@1234` documents only; `deduped` stands in the order of its file. A pre-shuffled data set is read entry by
entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt, model_validator

from pretrace.data.families import NeoxOrder, PreshuffledOrder, ShuffledEntriesOrder, StreamOrder
from pretrace.data.sources import TokenSource
from pretrace.spec import Spec

Shuffle = Literal["both", "documents", "samples", "none"]
Form = Literal["corpus", "preshuffled"]

_SUFFIX: dict[Shuffle, str] = {
    "both": "+documents+samples",
    "documents": "+documents",
    "samples": "+samples",
    "none": "",
}


class Dataset(Spec):
    """One .bin/.idx pair and the ways it may have been read.

    `corpus`: documents in a stream, cut into samples (the form that GPT-NeoX indexes). `preshuffled`: an entry is a sample, so
    there are no documents to shuffle.
    """

    path: str
    form: Form
    shuffles: tuple[Shuffle, ...]
    form_of: str | None = None  # another data set of the block that this is a second file form of: not judged twice

    @model_validator(mode="after")
    def _possible(self) -> Dataset:
        if self.form == "preshuffled" and not set(self.shuffles) <= {"samples", "none"}:
            raise ValueError("an entry of a pre-shuffled file is a sample: its shuffles are samples or none")
        if not self.shuffles or len(set(self.shuffles)) < len(self.shuffles):
            raise ValueError("name each way of shuffling once, at least one")
        return self


class Orders(Spec):
    """Data sets x shuffles x seeds. An order that shuffles nothing has no seed and stands once."""

    datasets: dict[str, Dataset]
    seeds: tuple[NonNegativeInt, ...]
    version: Literal["v1.0", "head"]  # of GPT-NeoX
    num_samples: PositiveInt  # what training asks for: steps x sequences an update
    surplus: bool  # ask for 0.5% more, as GPT-NeoX does with `train-data-paths`
    epochs: PositiveInt  # of the orders that shuffle one thing or nothing; GPT-NeoX counts those of `both` itself

    @model_validator(mode="after")
    def _forms_are_known(self) -> Orders:
        for key, dataset in self.datasets.items():
            if dataset.form_of is not None and (dataset.form_of == key or dataset.form_of not in self.datasets):
                raise ValueError(
                    f"{key} is said to be a form of {dataset.form_of!r}, which is no other data set of the block"
                )
        return self


@dataclass(frozen=True, slots=True)
class Candidate:
    """One expanded order."""

    edits: dict[str, Any]  # of the case's recipe
    decoys: dict[str, Any]  # the order of a decoy, without its seed: all that the data set's own form can shuffle


def expand(orders: Orders) -> dict[str, Candidate]:
    """Name -> candidate, in the order of the block."""
    return {name: candidate for key in orders.datasets for name, candidate in expand_one(orders, key).items()}


def expand_one(orders: Orders, key: str) -> dict[str, Candidate]:
    """The candidates of one data set."""
    return dict(_of(orders, key, orders.datasets[key]))


def _of(orders: Orders, key: str, dataset: Dataset) -> Iterator[tuple[str, Candidate]]:
    source = TokenSource(path=dataset.path, format="bin_idx").model_dump(mode="json")
    decoys = _order(orders, dataset.form, "both" if dataset.form == "corpus" else "samples", 0)
    del decoys["seed"]
    for shuffle in dataset.shuffles:
        for seed in orders.seeds if shuffle != "none" else (0,):
            order = _order(orders, dataset.form, shuffle, seed)
            name = f"{key}{_SUFFIX[shuffle]}" + (f"@{seed}" if shuffle != "none" else "")
            yield name, Candidate({"data.sources": [source], "data.order": order}, decoys)


def _order(orders: Orders, form: Form, shuffle: Shuffle, seed: int) -> dict[str, Any]:
    made: Spec
    if form == "preshuffled":
        entries = PreshuffledOrder(family="preshuffled")
        made = ShuffledEntriesOrder(family="shuffled_entries", seed=seed) if shuffle == "samples" else entries
    elif shuffle == "both":
        made = NeoxOrder(family="neox", version=orders.version, num_samples=orders.num_samples, seed=seed, split=None,
                         part="train", surplus=orders.surplus)  # fmt: skip
    else:
        # With one shuffle left out the other draws from a fresh generator: what GPT-NeoX would do with that line removed.
        made = StreamOrder(
            family="stream", epochs=orders.epochs, document_seed=seed if shuffle == "documents" else None,
            sample_seed=seed if shuffle == "samples" else None, mix_epochs=True,
        )  # fmt: skip
    return made.model_dump(mode="json")
