"""Who holds what of a reduced buffer, and in which order shards are normed. No tensor here."""

from __future__ import annotations

from pretrace.step.buckets import AnyBuckets, Fsdp1, Layout, Piece


def shards(placed: Layout, world_size: int) -> tuple[tuple[Piece, ...], ...]:
    """What each rank holds of a reduced buffer: the rank-th of `world_size` equal parts of every bucket."""
    found: list[tuple[Piece, ...]] = []
    for rank in range(world_size):
        mine = []
        for start, stop in placed.buckets:
            a, b = _share(start, stop, rank, world_size)
            mine += [part for piece in placed.pieces if (part := _part(piece, a, b)) is not None]
        found.append(tuple(mine))
    return tuple(found)


def normed_ranges(spec: AnyBuckets, placed: Layout, world_size: int, n_params: int) -> list[list[tuple[int, int]]]:
    """The ranges of the buffer whose norms each rank takes, in the order in which it stacks them.

    FSDP2 takes one norm a parameter, also of an empty shard; FSDP1 one a parameter that the rank holds something of, or one a
    flat parameter, the root's first.
    """
    if isinstance(spec, Fsdp1) and not spec.use_orig_params:
        buckets = placed.buckets[-1:] + placed.buckets[:-1]
        return [[_share(a, b, rank, world_size) for a, b in buckets] for rank in range(world_size)]
    held = shards(placed, world_size)
    if isinstance(spec, Fsdp1):
        root = placed.buckets[-1][0]
        ordered = [sorted(mine, key=lambda piece: (piece.at < root, piece.at)) for mine in held]
        return [[(p.at, p.at + p.stop - p.start) for p in mine] for mine in ordered]
    found = []
    for mine in held:
        ranges = {piece.param: (piece.at, piece.at + piece.stop - piece.start) for piece in mine}
        found.append([ranges.get(number, (0, 0)) for number in range(n_params)])
    return found


def _share(start: int, stop: int, rank: int, world_size: int) -> tuple[int, int]:
    share = -(-(stop - start) // world_size)
    return min(start + rank * share, stop), min(start + (rank + 1) * share, stop)


def _part(piece: Piece, a: int, b: int) -> Piece | None:
    low, high = max(piece.at, a), min(piece.at + piece.stop - piece.start, b)
    if low >= high:
        return None
    return Piece(piece.param, piece.start + low - piece.at, piece.start + high - piece.at, low)
