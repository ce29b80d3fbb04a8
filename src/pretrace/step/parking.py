"""Keeps pieces of gradients until their turn: in memory, and beyond a budget in a file."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pretrace.errors import naming


@dataclass(frozen=True, slots=True)
class Ticket:
    """A parked piece: the tensor itself, or where it lies in the spill file."""

    held: Tensor | None
    offset: int
    numel: int
    dtype: torch.dtype
    device: torch.device

    @property
    def n_bytes(self) -> int:
        """Bytes of the piece."""
        return self.numel * self.dtype.itemsize


class Parking:
    """Parked pieces of one update. `live` and `peak` count bytes in memory, `spilled` bytes that went to the file."""

    def __init__(self, limit: int | None = None, folder: str | None = None) -> None:
        """`limit` bytes stay in memory if there is a `folder` for the rest; without one everything does."""
        self.limit, self.folder = limit, folder
        self.live = self.peak = self.spilled = 0
        self._file: int | None = None
        self._end = 0

    def put(self, piece: Tensor, *, owned: bool) -> Ticket:
        """Parks a piece; it is copied unless `owned`."""
        n = piece.nbytes
        if self.folder is not None and self.limit is not None and self.live + n > self.limit:
            return self._spill(piece)
        self.count(n)
        return Ticket(piece if owned else piece.clone(), 0, piece.numel(), piece.dtype, piece.device)

    def take(self, ticket: Ticket) -> Tensor:
        """Gives a piece back, once."""
        if ticket.held is not None:
            self.count(-ticket.n_bytes)
            return ticket.held
        assert self._file is not None
        assert self.folder is not None
        out = torch.empty(ticket.numel, dtype=ticket.dtype)
        view = _bytes(out)
        with naming(self.folder, "reading spilled gradients"):
            done = 0
            while done < len(view):
                n = os.preadv(self._file, [view[done:]], ticket.offset + done)
                if n == 0:
                    raise OSError(5, "the spill file is cut")
                done += n
        return out.to(ticket.device)

    def count(self, n_bytes: int) -> None:
        """Counts bytes that are held on behalf of an order."""
        self.live += n_bytes
        self.peak = max(self.peak, self.live)

    def close(self) -> None:
        """Gives the file's room back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _spill(self, piece: Tensor) -> Ticket:
        assert self.folder is not None
        data = _bytes(piece.detach().cpu().contiguous())
        with naming(self.folder, "spilling gradients"):
            if self._file is None:
                self._file, path = tempfile.mkstemp(dir=self.folder, prefix=".tmp-spill-")
                os.unlink(path)  # the room is given back whatever happens to this process
            at = self._end
            while data:
                n = os.pwrite(self._file, data, self._end)
                self._end += n
                data = data[n:]
        self.spilled += piece.nbytes
        return Ticket(None, at, piece.numel(), piece.dtype, piece.device)


def _bytes(tensor: Tensor) -> memoryview:
    array: Any = tensor.view(torch.uint8).numpy()
    return memoryview(array)
