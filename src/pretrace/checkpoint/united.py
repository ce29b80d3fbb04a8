"""Several views as one, each under a prefix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from pretrace.checkpoint.view import Extent, StateView, TensorInfo, View
from pretrace.findings import Finding


class United(View):
    """The tensors of all views; one's name is the prefix and its name there."""

    def __init__(self, views: Mapping[str, StateView], metadata: Mapping[str, Any] | None = None) -> None:
        self._of = {prefix + name: (view, name) for prefix, view in views.items() for name in view.names()}
        infos = {name: replace(view.info(inner), name=name) for name, (view, inner) in self._of.items()}
        super().__init__(infos, metadata, tuple(f for view in views.values() for f in view.findings()))
        self._views = tuple(views.values())
        self.format = next((view.format for view in self._views), "")

    def has(self, name: str) -> bool:
        """Whether there is a tensor of that name."""
        return name in self._of

    def below(self, name: str) -> tuple[StateView, str]:
        """The view that holds a tensor, and what the tensor is called there."""
        return self._of[name]

    def one_below(self, names: Iterable[str]) -> tuple[StateView, dict[str, str]] | None:
        """The one view that holds all of these tensors, and what each is called there; None if they lie in several."""
        found = {name: self._of[name] for name in names}
        views = {id(view): view for view, _ in found.values()}
        return (next(iter(views.values())), {n: inner for n, (_, inner) in found.items()}) if len(views) == 1 else None

    def _read(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        view, inner = self._of[info.name]
        view.read(inner, start, stop, block)

    def source(self, name: str) -> tuple[tuple[str, ...], str]:
        """As the view below says."""
        self.info(name)
        view, inner = self._of[name]
        return view.source(inner)

    def extents(self, name: str) -> tuple[Extent, ...] | None:
        """As the view below says."""
        self.info(name)
        view, inner = self._of[name]
        return view.extents(inner)

    def files(self) -> tuple[str, ...]:
        """The files of all views."""
        return tuple(dict.fromkeys(file for view in self._views for file in view.files()))

    def verify(self) -> tuple[Finding, ...]:
        """The checksums of all views."""
        found: list[Finding] = []
        for view in self._views:  # views of one file say the same
            found += (finding for finding in view.verify() if finding not in found)
        return tuple(found)

    def close(self) -> None:
        """Closes all views."""
        for view in self._views:
            view.close()
