"""Comparing runs on disk: bits of the weights, lines of the log without what clocks measured."""

import json

from pretrace.checkpoint.detect import open_state
from pretrace.files import verify_manifest
from pretrace.runlog.read import records
from pretrace.train import RunFolder

CLOCKED = ("elapsed_s", "tokens_per_s", "memory_bytes", "mfu")


def weights(folder, step):
    with open_state(RunFolder(folder).checkpoint(step) / "model.safetensors") as view:
        return {n: view.read(n, 0, view.info(n).numel).copy() for n in view.names()}


def log(folder):
    rows = [json.loads(r.line()) for r in records(RunFolder(folder).log)]
    return [{k: v for k, v in row.items() if k not in CLOCKED} for row in rows]


def same_weights(a, b, step=12):
    wa, wb = weights(a, step), weights(b, step)
    return wa.keys() == wb.keys() and all(wa[n].tobytes() == wb[n].tobytes() for n in wa)


def assert_same(a, b, step=12):
    assert same_weights(a, b, step)
    assert log(a) == log(b)


def assert_whole(folder):
    for path in RunFolder(folder).whole_checkpoints().values():
        verify_manifest(path)
