"""The variants of an algorithm that are worth measuring: radices and section sizes.

``smcoll tune`` measures them in jobs of its own, a communicator that learns tries them in passing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from smcoll.algorithms import IN_RANK_ORDER, RADICES, STREAMED, TABLE, Algorithm
from smcoll.config import RADIX_LIMIT, Config
from smcoll.tuning.select import (
    ALL_SEGMENTS,
    SHARED_HEAP,
    UNLIMITED,
    Decision,
    decision_in,
    may_be_chosen,
    override,
    two_ranks_rings,
    usual_segments,
)

KIB, MIB = 1 << 10, 1 << 20
SECTIONS = (16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB)
LONGEST_ELEMENT = 32     # bytes, of those with kernels
LAST_CLASS = 31          # of calls, by powers of two (engine/plans.pxd): all longer ones, too
USUAL_SECTION = 64 * KIB
# All ranks together reduce ranks**2 vectors in all-read.
LARGEST_ALL_READ = 16 * MIB
# A variant's number travels in a word (engine/plans.pxd); 0 is the row of the decision table.
MOST_VARIANTS = 255


def radices(ranks: int) -> list[int]:
    """Flat, and two narrower trees."""
    return sorted({min(radix, max(1, ranks - 1), RADIX_LIMIT) for radix in (2, 4, ranks - 1)})


def worth_its_work(algorithm: str, nbytes: int, ranks: int) -> bool:
    """Whether an algorithm's work does not grow out of proportion with ranks and bytes."""
    return algorithm != "all_read" or ranks <= 2 or nbytes * ranks <= LARGEST_ALL_READ


def section_sizes(nbytes: int, ranks: int, usual: int,
                  segment_size: int = SECTIONS[-1]) -> list[int]:
    """Bytes of sections worth trying, in data regions of ``segment_size``; ``usual``: the built-in
    default's, compared with all."""
    if nbytes <= SECTIONS[0]:
        return [SECTIONS[0]]
    chosen = SECTIONS if ranks <= 2 else sorted({*SECTIONS[1::2], usual, segment_size})
    return [section for section in chosen if section <= min(nbytes, segment_size)] or [chosen[0]]


def follows_hardware(algorithm: Algorithm) -> bool:
    """Whether it is made of steps inside and between parts of the hardware: in one part alone it
    is another one's equal."""
    return "arity" in algorithm.radices or algorithm.name in ("one_stage", "two_stage")


@lru_cache(maxsize=64)
def learnable(collective: str, usual: Decision, config: Config, ranks: int, domains: int,
              oversubscribed: bool) -> tuple[Decision, ...]:
    """What a communicator that learns may try, alike on all ranks: a variant's number is 1 + its
    place here. Empty where the settings name the algorithm, or there is nothing to choose.

    ``usual``: a row of the table in use, for all that a variant does not say; ``domains``: parts of
    the hardware that the ranks lie in.
    """
    if collective in STREAMED or collective in config.named:
        return ()
    if collective == "barrier" and oversubscribed:
        # Each dependent step is a turn of the run queue, and all_read has one: nothing is faster
        # (docs/notebook-learning.md), and trials of so short a call are a matter of luck.
        return ()
    found: list[Decision] = []
    for row in TABLE:
        if (row.collective != collective or row.name == SHARED_HEAP
                or not may_be_chosen(collective, row.name)
                # Of two ranks, all_read's one exchange is theirs, or half of it.
                or (ranks <= 2 and row.name in ("dissemination", "tree"))
                or (follows_hardware(row) and domains <= 1)):
            continue
        names = [name for name in RADICES.get((collective, row.name), ()) if name != "arity"]
        fixed = {name: getattr(config, name) for name in names if getattr(config, name)}
        for radix in radices(ranks) if names else [0]:
            chosen = dict.fromkeys(names, radix) | fixed
            for section in (0,) if row.function is None else SECTIONS:
                if section > config.segment_size:
                    continue
                one = override(usual, collective, row.name, section_bytes=section or None,
                               **chosen)
                for nbytes in two_ranks_rings():
                    segments = usual_segments(collective, ranks, domains, nbytes)
                    if ranks > 2 and section <= SECTIONS[0]:
                        segments = ALL_SEGMENTS
                    found.append(replace(one, segments=min(segments, config.segments)))
    return tuple(dict.fromkeys(found))[:MOST_VARIANTS]


def for_communicator(config: Config, decisions: dict[str, list[Decision]], ranks: int,
                     domains: int, oversubscribed: bool) -> dict[str, tuple[Decision, ...]]:
    """What each collective of a communicator may try, of those that have a choice."""
    config = config.settled(oversubscribed)
    found = {collective: learnable(collective, replace(rows[-1], points=()), config, ranks, domains,
                                   oversubscribed)
             for collective, rows in decisions.items()}
    return {collective: rows for collective, rows in found.items() if len(rows) > 1}


def to_try(collective: str, variants: Sequence[Decision], in_class: int, ranks: int,
           rows: list[Decision], inline: dict[str, int]) -> dict[int, Decision]:
    """Those that are worth trying for the calls of a class (2**in_class bytes, or fewer but more
    than half of that), by their numbers. ``rows``: the collective's table; ``inline``: bytes that
    flag lines of each kind hold.

    Where one of these calls travels in flag lines, only what has such a form: the others might need
    memory that is refused. Of a reduction only what combines the operands in the same order as the
    table's row: whatever is chosen, a call gives the same bits.
    """
    nbytes = 1 << in_class
    usual = decision_in(rows, nbytes)
    lines = {row.name: row.lines for row in TABLE if row.collective == collective}
    end = nbytes if in_class < LAST_CLASS else UNLIMITED
    ends = (nbytes // 2 + 1, end, *(row.up_to for row in rows if nbytes // 2 < row.up_to < end))
    orders = {order_of(collective, decision_in(rows, one)) for one in ends}
    if len(orders) > 1:
        return {}      # calls of one class whose rows have different orders keep their rows

    def has_inline_form(name: str) -> bool:
        kind = lines[name]
        return kind is not None and nbytes // 2 < inline[kind]

    in_lines = any(map(has_inline_form, lines))
    sections = section_sizes(nbytes, ranks, USUAL_SECTION)

    def shape(row: Decision) -> tuple:
        if nbytes <= SECTIONS[0]:
            # One section, whatever its size: one variant for each algorithm and radix.
            return family(row)
        return *family(row), row.section_bytes, row.segments

    found: dict[tuple, int] = {}
    for number, row in enumerate(variants, 1):
        if (not worth_its_work(row.algorithm, nbytes, ranks)
                or row.section_bytes < 2 * LONGEST_ELEMENT * ranks    # Engine.holds
                or (in_lines and not has_inline_form(row.algorithm))
                # The trials of stores (coll/stores.pyx) count rounds through the segments in use.
                or (ranks <= 2 and row.section_bytes > 0 and row.segments != usual.segments)
                or order_of(collective, row) not in orders):
            continue
        if (nbytes <= SECTIONS[0] or row.section_bytes in sections) and shape(row) != shape(usual):
            found.setdefault(shape(row), number)
    return {number: variants[number - 1] for number in found.values()}


def order_of(collective: str, row: Decision) -> tuple | None:
    """Two rows with the same give a reduction the same bits (protocol rule 7). None: nothing is
    reduced."""
    if collective not in IN_RANK_ORDER:
        return None
    if row.algorithm in IN_RANK_ORDER[collective]:
        return ("rank order",)
    # In trees an element goes the same way wherever it lies; elsewhere its slice decides.
    goes_by_tree = "fan_in" in RADICES.get((collective, row.algorithm), ())
    return family(row) if goes_by_tree else (*family(row), row.section_bytes)


def family(row: Decision) -> tuple[str, int, int]:
    """What two variants have in common that differ in how they use the banks only."""
    return row.algorithm, row.fan_in, row.fan_out
