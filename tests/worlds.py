"""A synthetic world: every order's update is a drift that all share, plus a direction of its own, plus benign noise."""

from dataclasses import dataclass, field

import numpy as np

from pretrace.provenance import START, Runs, gram_of

DIM = 2000


@dataclass
class World:
    seed: int
    noise: float = 0.01  # of a benign rerun, beside order-specific updates of length 1
    drift_length: float = 5.0
    rows: dict = field(default_factory=dict)

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)
        self.drift = self.drift_length * self.direction()
        self.rows[START] = 100 * self.direction()

    def direction(self):
        v = self.rng.normal(size=DIM)
        return v / np.linalg.norm(v)

    def add(self, name, update):
        self.rows[name] = update
        return name

    def hypothesis(self, name, own=None, drift=None, n_decoys=19, n_own=4):
        """Adds benign reruns of one order (`own`: its order-specific update) and decoys that share its drift."""
        own = self.direction() if own is None else own
        drift = self.drift if drift is None else drift
        runs = [self.add(f"{name}/{i}", drift + own + self.noise * self.direction()) for i in range(n_own)]
        decoys = [
            self.add(f"{name}/decoy{j}", drift + self.direction() + self.noise * self.direction())
            for j in range(n_decoys)
        ]
        return own, Runs(tuple(runs), tuple(decoys))

    def gram(self, pieces=3):
        table = np.stack(list(self.rows.values()))
        return gram_of(list(self.rows), np.array_split(table, pieces, axis=1))
