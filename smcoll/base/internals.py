"""What no user sets: numbers behind the settings, each with the reason for its value.

Tests reach rare paths by them: ``Config(internals={"inline_slots": 2})``, or for whole jobs
``SMCOLL_TEST_INTERNALS=inline_slots=2,bundle_size=64``. Rank 0's hold for all ranks, as its
settings do, since they select paths. Imports nothing of this package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

VARIABLE = "SMCOLL_TEST_INTERNALS"
MAX_BANKS = 8
MAX_INLINE_SLOTS = 1024
KIB, MIB = 1 << 10, 1 << 20
LONGEST = 1 << 50


def _number(value: int, low: int, high: int):
    return field(default=value, metadata={"low": low, "high": high})


@dataclass(frozen=True)
class Internals:
    """Whole numbers, sizes in bytes."""

    # Banks of segments, and of inline slots. While all ranks leave one, they use the other (GS
    # section 3); each more costs as much memory again.
    banks: int = _number(2, 1, MAX_BANKS)

    # n of n-ary trees: a parent has n - 1 children in each round. LHS found 2 the best, by their
    # model and by measurement.
    arity: int = _number(2, 2, 255)

    # The largest all-read exchange whose data travel in the flag's own lines. A rank has two such
    # slots, which take a page; every rank reads all of them.
    inline_size: int = _number(2 * KIB, 32, 32 * KIB)

    # The same of Bcast, Reduce and Scan. Longer ones gain little, and each communicator has
    # banks x inline_slots such slots in its control pages (docs/notebook.md, "How much a flag line
    # of a rooted call should hold").
    rooted_inline_size: int = _number(1120, 32, 8 * KIB)

    # How far ranks that nobody waits for run ahead of others. From 8 to 32 slots short calls take
    # 0.6 to 0.8 of the time, from 32 to 64 little less (docs/notebook.md, "Short calls that nobody
    # waits for").
    inline_slots: int = _number(32, 1, MAX_INLINE_SLOTS)

    # A rank's chunks for messages to single ranks: to every rank a ring of 8 chunks of 1 page to
    # 128 KiB. Where there is room for more, chunks take turns in it, so that lines have left the
    # reader's cache when they are written again; 2 MiB is twice a core's own cache
    # (docs/stores.md).
    stream_size: int = _number(2 * MIB, 1, 1 << 30)

    # Results of so many bytes are written around the caches; 0: by collective, ranks and caches
    # (`select.streaming_sizes`).
    streaming_size: int = _number(0, 0, LONGEST)

    # Over several nodes, an Allreduce of more is exchanged in slices. At 32 KiB leaders alone are
    # as fast on two nodes and faster on more, at 1 MiB slower (docs/notebook-nodes.md).
    slice_above: int = _number(32 * KIB, 0, LONGEST)

    # Ranks of a node that exchange slices at once; 0: 4, or the ranks of the smallest node.
    # `smcoll sweep-nodes --network-ranks` compares numbers.
    network_ranks: int = _number(0, 0, 4096)

    # The piece of a long vector, or of each slice, that is on the network while the next is in
    # shared memory: a data region by default. Not measured apart.
    network_section: int = _number(128 * KIB, 4 * KIB, 1 << 30)

    # The longest message between two ranks that travels with others between the same nodes. It is
    # copied once more for that: a few us at 8 KiB, where a message of its own takes tens. Not
    # measured apart.
    bundle_size: int = _number(8 * KIB, 0, 1 << 30)

    # numpy's arrays from this size on go to the heap: each takes whole pages there, so this is well
    # above one (docs/heap.md).
    heap_threshold: int = _number(32 * KIB, 1, LONGEST)

    # Arrays and messages of so many bytes are used where they lie in a heap; 0: by collective,
    # ranks and caches, at least heap_threshold (`select.shortest_direct`, `select.direct_sizes`).
    direct_size: int = _number(0, 0, LONGEST)

    # From so many bytes handed out to other ranks on, messages are always read in their sender's
    # memory; 0: where that is measured to be faster (`select.kernel_copy_sizes`).
    kernel_copy_size: int = _number(0, 0, LONGEST)

    def __post_init__(self) -> None:
        for entry in fields(self):
            value, low, high = getattr(self, entry.name), *entry.metadata.values()
            if not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{entry.name}={value!r} is no whole number between {low} and "
                                 f"{high}")


def internals_of(given: Internals | Mapping[str, int] | None) -> Internals:
    """Those that are given, the others as the environment says, or by default. ValueError."""
    if isinstance(given, Internals):
        return given
    if not isinstance(given, Mapping | None):
        raise ValueError(f"internals: {given!r} is no mapping")
    try:
        told = dict(part.split("=") for part in os.environ.get(VARIABLE, "").split(",") if part)
        return Internals(**{name: int(value) for name, value in told.items()} | dict(given or {}))
    except (ValueError, TypeError) as error:
        raise ValueError(f"internals, {VARIABLE}: {error}") from None
