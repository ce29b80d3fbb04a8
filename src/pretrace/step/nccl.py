"""NCCL's orders as read in its source (device/all_reduce.h, graph/trees.cc): declared, not run here.

Rings come from topology search, channels and chunk sizes from a cost model, so they are arguments. Ring position i of a channel
starts chunk i-1, hence chunk c is added c+1, c+2, ..., c: the opposite direction to gloo's.
"""

from __future__ import annotations

from collections.abc import Sequence

from pretrace.step.nesting import Nesting

Range = tuple[int, int, Nesting]  # start, stop, who is added to whom
_ALIGNED_BYTES = 16  # of the chunks of a channel's last loop


def ring_ranges(rings: Sequence[Sequence[int]], chunk_bytes: int, numel: int, itemsize: int) -> list[Range]:
    """All-reduce: the buffer is split among channels, each goes round its ring in loops of one chunk a rank."""
    found: list[Range] = []
    world_size, aligned = len(rings[0]), max(1, _ALIGNED_BYTES // itemsize)
    part = _up(-(-numel // len(rings)), aligned)
    for channel, ring in enumerate(rings):
        at, stop = min(channel * part, numel), min((channel + 1) * part, numel)
        while at < stop:
            chunk = min(max(1, chunk_bytes // itemsize), _up(-(-(stop - at) // world_size), aligned))
            for position in range(world_size):
                a, b = min(at + position * chunk, stop), min(at + (position + 1) * chunk, stop)
                found.append((a, b, _after(ring, ring[position])))
            at += world_size * chunk
    return found


def scatter_ranges(rings: Sequence[Sequence[int]], chunk_bytes: int, numel: int, itemsize: int) -> list[Range]:
    """Reduce-scatter: what goes to rank d starts at d's successor, whatever the chunk size."""
    n = len(rings[0])
    return [(d * numel // n, (d + 1) * numel // n, _after(rings[0], d)) for d in range(n)]


def double_tree(world_size: int, ranks_per_node: int, mirror: bool) -> Nesting:
    """A chain within each node, a binary tree over nodes; `mirror`: the second tree, mirrored if even, shifted by one if odd.

    Every rank adds its own copy first, then its children in order.

    >>> [double_tree(4, 1, mirror) for mirror in (False, True)]
    [(0, (2, 1, 3)), (3, (1, 2, 0))]
    """
    nodes, size = world_size // ranks_per_node, ranks_per_node

    def below(node: int) -> Nesting:
        members: list[Nesting] = [_chain_down(node * size, (node + 1) * size)]
        members += [below(child) for child in _children(nodes, node, mirror)]
        return tuple(members) if len(members) > 1 else members[0]

    root = 0 if not mirror else (nodes - 1 if nodes % 2 == 0 else 1 % nodes)
    return below(root)


def _after(ring: Sequence[int], owner: int) -> tuple[int, ...]:
    """The ring from the owner's successor round to the owner."""
    at = list(ring).index(owner) + 1
    return (*ring[at:], *ring[:at])


def _chain_down(start: int, stop: int) -> Nesting:
    """Within a node each rank adds its own copy first, then what its neighbour sends: (0, (1, (2, 3)))."""
    return start if stop - start == 1 else (start, _chain_down(start + 1, stop))


def _children(nodes: int, node: int, mirror: bool) -> list[int]:
    if not mirror:
        return _btree_children(nodes, node)
    if nodes % 2 == 0:
        return [nodes - 1 - child for child in _btree_children(nodes, nodes - 1 - node)]
    return [(child + 1) % nodes for child in _btree_children(nodes, (node - 1) % nodes)]


def _btree_children(nodes: int, node: int) -> list[int]:
    if node == 0:
        top = 1 << (nodes - 1).bit_length() >> 1 if nodes > 1 else 0
        return [top] if top else []
    low = (node & -node) >> 1
    if not low:
        return []
    right = low
    while right and node + right >= nodes:
        right >>= 1
    return [node - low] + ([node + right] if right else [])


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
