"""Which algorithm, radices and section size for (collective, bytes, ranks). Knows nothing of MPI.

Order of authority: an explicit setting; what communicators have found while programs ran
(`engine.learning`, over this module's rows); a decision table that `smcoll tune` measured for this
number of ranks; the performance model with the parameters that it measured; the built-in defaults
below. The result is a table per collective, made once per communicator on every rank from rank 0's
settings and table, so that all ranks choose alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from smcoll.algorithms import ALGORITHMS, IN_RANK_ORDER, RADICES, STREAMED
from smcoll.base.internals import Internals
from smcoll.config import MAX_SEGMENTS, SEGMENT_SIZE, SEGMENT_SIZE_ON_SHARED_CORES

KIB = 1024
UNLIMITED = 1 << 62
SHARED_HEAP = "shared_heap"
ALL_SEGMENTS = MAX_SEGMENTS
USUAL_CORE_CACHE = 1024 * KIB     # where nothing is known
# For a smaller one, sections would be so short that their flags cost too much: 0.2 to 0.35 us each
# with far cores (AMD family 26).
LEAST_CORE_CACHE = 512 * KIB


@dataclass(frozen=True)
class Decision:
    """One row of a decision table: what is done for messages of up to ``up_to`` bytes."""

    up_to: int
    algorithm: str
    number: int
    fan_in: int
    fan_out: int
    section_bytes: int
    segments: int  # of a bank that are used in turn
    pipelined: bool
    reason: str
    arity: int = Internals.arity   # LHS's n
    points: tuple = ()         # what was measured: (bytes, predicted µs or None, measured µs)

    def evidence(self, nbytes: int) -> tuple[float | None, float | None]:
        """(predicted, measured) µs of the measured size that is nearest, None where there is none.

        A model's own row has predictions, and measurements only of other numbers of ranks: none.
        """
        if not self.points:
            return None, None
        nearest = min(self.points, key=lambda point: abs(
            math.log((point[0] + 1) / (nbytes + 1))))
        return nearest[1], nearest[2]


# Larger ones are faster staged, wherever the arrays lie (docs/heap.md): some copy in while others
# copy out, through regions that stay in the caches; a Scan's chain reads each prefix once. By the
# number of ranks, 2 or more. Where heaps were tuned, what was measured decides.
DIRECT_AT_MOST = {"bcast": (UNLIMITED, 8 << 20), "allgather": (UNLIMITED, 512 * KIB),
                  "scan": (0, 0), "exscan": (0, 0)}
# Two ranks measure from here on whether data are used where they lie: arrays in heaps, messages
# through the kernel. Shorter ones cost less than a trial could tell (`coll.routes`, whose smallest
# class this is).
MEASURED_FROM = 256 * KIB
# Where /sys does not tell how large the ranks' last-level caches are together.
USUAL_CACHES = 32 << 20
REASONS = {"table": "decision table measured by smcoll tune",
           "model": "performance model with this machine's parameters"}


def may_be_chosen(collective: str, algorithm: str, heaps: bool = False) -> bool:
    """Whether an algorithm may be used without being named.

    Dissemination gives ranks results that differ in their last bits (protocol rule 7). Direct
    access is for ranks that share heaps.
    """
    if algorithm == SHARED_HEAP:
        return heaps
    return (collective, algorithm) != ("allreduce", "dissemination")


def across_domains(collective: str) -> list[tuple[int, str, int, int]]:
    """Built-in rows where ranks lie in several domains: few bytes cross their boundaries.

    After LHS 3.3: a tree for short vectors, tiles for long ones; the limit between them is where
    LHS found it (16 KB and 14 KB), and not measured by us.
    """
    return {
        "barrier": [(UNLIMITED, "hierarchical", 0, ALL_SEGMENTS)],
        "bcast": [(UNLIMITED, "two_stage", 64 * KIB, ALL_SEGMENTS)],
        "reduce": [(16 * KIB, "n_ary", 32 * KIB, ALL_SEGMENTS),
                   (UNLIMITED, "tiled_hierarchical", 64 * KIB, ALL_SEGMENTS)],
        "allreduce": [(16 * KIB, "reduce_broadcast", 16 * KIB, ALL_SEGMENTS),
                      (UNLIMITED, "tiled_hierarchical", 64 * KIB, ALL_SEGMENTS)],
    }.get(collective, [])


def two_ranks_rings(core_cache: int = 0) -> dict[int, tuple[int, int]]:
    """{bytes of a vector at most: (segments of a bank, section bytes)} where two ranks both post.

    They change regions, so each core's own cache is to hold both rings: 2 banks each, of 8 segments
    if the settings don't say otherwise. Measured where that cache has 1 MiB, near and far
    (docs/notebook-stores.md). Limits are powers of two, as the classes of learning are. Sections
    are an Allreduce's; Allgather and Reduce_scatter have those of the longest vectors throughout.
    """
    cache = max(core_cache or USUAL_CORE_CACHE, LEAST_CORE_CACHE)
    whole = 1 << (cache.bit_length() - 1)
    one = whole // (2 * 2 * 8)
    return {one: (ALL_SEGMENTS, 2 * one), 4 * one: (4, 2 * one), UNLIMITED: (2, 4 * one)}


def usual_segments(collective: str, ranks: int, domains: int = 1, nbytes: int = UNLIMITED,
                   core_cache: int = 0) -> int:
    """How many segments of a bank a vector of so many bytes uses. Where all ranks post data at
    once, nobody runs ahead, and what they have in a ring of many segments doesn't fit the caches.
    """
    if (collective in ("barrier", "bcast", "reduce", "scan", "exscan")
            or (1 < domains < ranks and across_domains(collective))):
        return ALL_SEGMENTS
    if ranks > 2:
        return 2
    rings = two_ranks_rings(core_cache).items()
    return next((segments for most, (segments, _) in rings if nbytes <= most), 2)


def defaults(collective: str, ranks: int, oversubscribed: bool, domains: int = 1,
             core_cache: int = 0) -> list[tuple[int, str, int, int]]:
    """Built-in rows (up_to, algorithm, section bytes, segments of a bank), measured on 2 cores:
    docs/notebook.md.

    ``domains``: how many parts of the hardware the ranks lie in. Where each has one of its own,
    there is nothing to save.
    """
    if 1 < domains < ranks and (rows := across_domains(collective)):
        return rows
    segments = usual_segments(collective, ranks, domains)
    longest = SEGMENT_SIZE_ON_SHARED_CORES if oversubscribed else SEGMENT_SIZE
    if collective == "barrier":
        return [(UNLIMITED, "all_read", 0, ALL_SEGMENTS)]
    if collective == "bcast":
        long_row = (UNLIMITED, "fan_out", longest if oversubscribed else 64 * KIB, ALL_SEGMENTS)
        if ranks > 2 or oversubscribed:
            return [long_row]
        return [(256 * KIB, "fan_out", 32 * KIB, ALL_SEGMENTS), long_row]
    if collective == "reduce":
        if ranks <= 2:
            return [(256 * KIB, "fan_in", 32 * KIB, ALL_SEGMENTS),
                    (UNLIMITED, "fan_in", 64 * KIB, ALL_SEGMENTS)]
        if oversubscribed:
            # Nobody waits for the root to do all the work alone.
            return [(4096 * KIB, "fan_in", 32 * KIB, ALL_SEGMENTS),
                    # As many segments as where all ranks post at once: `usual_segments`.
                    (UNLIMITED, "tiled", longest, 2)]
        return [(16 * KIB, "fan_in", 32 * KIB, ALL_SEGMENTS),
                (UNLIMITED, "tiled", 32 * KIB, ALL_SEGMENTS)]
    if collective in ("scan", "exscan"):
        # Lower ranks run ahead of higher ones as far as there are segments.
        if ranks <= 2:
            return [(UNLIMITED, "direct", 64 * KIB, ALL_SEGMENTS)]
        chain = (UNLIMITED, "chain", 128 * KIB, ALL_SEGMENTS)
        # Where ranks share cores the work counts, not the steps; of more than 8 ranks too many of
        # these fall into other ranks' turns.
        if oversubscribed and ranks <= 8:
            return [chain]
        return [(16 * KIB, "direct", 64 * KIB, ALL_SEGMENTS), chain]
    if collective != "allreduce":
        section = 64 * KIB
        if collective == "reduce_scatter":
            section = 128 * KIB
        name = ALGORITHMS[collective][0]
        if ranks <= 2 and collective in ("allgather", "reduce_scatter"):
            rings = two_ranks_rings(core_cache)
            _, section = rings[UNLIMITED]
            return [(most, name, section, in_use) for most, (in_use, _) in rings.items()]
        return [(UNLIMITED, name, section, segments)]
    if ranks <= 2:
        # Two dependent exchanges of halves lose to one of everything where cores share no cache.
        return [(most, "all_read", section, in_use)
                for most, (in_use, section) in two_ranks_rings(core_cache).items()]
    # All-read does the work of all ranks on each, so its limit falls with their number.
    return [(128 * KIB // ranks, "all_read", 16 * KIB, ALL_SEGMENTS),
            (UNLIMITED, "tiled", longest, segments)]


def default_radix(ranks: int, oversubscribed: bool) -> int:
    """Radix of trees where none is set.

    Where ranks share cores, depth in dependent steps is what counts (each costs a turn of the run
    queue), so a tree is flat; so it is for few ranks. Else GS found 4 and 5 best on 16 cores.
    """
    if oversubscribed or ranks <= 5:
        return max(1, ranks - 1)
    return 4


def outgrown_by_alltoalls(ranks: int, cache: int) -> int:
    """How many bytes a rank hands out in an Alltoall where the arrays of all ranks are twice as
    large as their last-level caches together (``cache`` bytes; 0 if unknown)."""
    return max(MEASURED_FROM, (cache or USUAL_CACHES) * (ranks - 1) // (ranks * ranks))


def kernel_copy_sizes(config, ranks: int, core_cache: int = 0, cache: int = 0) -> dict[str, int]:
    """From how many bytes handed out messages are read in their sender's memory, by collective.

    ``measured_routes`` says of which that is only done where it turns out to be faster. In an
    Allgather that has to be left alone where blocks fit a core's own cache (of ``core_cache``
    bytes): who reads them there makes their owner's next stores to them dearer, and a program that
    computes much between its calls would not see that in their time. In an Alltoall of more than
    two ranks it pays from where the arrays of all ranks are twice as large as their last-level
    caches together (``cache`` bytes; 0 if unknown): before, it takes up to twice as long
    (docs/notebook-heap.md). What a rank hands out there is all its blocks but its own.
    """
    fixed = config.internals.kernel_copy_size
    if ranks > 2:
        return {"scatter": fixed or 1536 * KIB,
                "alltoall": fixed or outgrown_by_alltoalls(ranks, cache)}
    return {"scatter": fixed or MEASURED_FROM, "alltoall": fixed or MEASURED_FROM,
            "allgather": fixed or max(512 * KIB, core_cache // 2)}


def measured_routes(config, ranks: int, oversubscribed: bool,
                    cache: int = 0) -> dict[str, int | None]:
    """Collectives whose senders find out whether staging or the kernel is faster (`routes`), and
    from how many bytes handed out on their first calls go through the kernel; None: they don't.

    Between two ranks these do where all arrays of an Alltoall are twice as large as the last-level
    caches together (``cache`` bytes; 0 if unknown): there the kernel was faster, or as fast (AMD
    family 25 near and far, 26 near; docs/notebook-heap.md), and of so long calls a program may make
    too few to find out.

    In a Scatter to several ranks the kernel is: they copy at once what the root would have to copy
    alone. The root's own time would not tell, for it may run ahead of them. Nor does a rank's time
    tell much where several share a core, and of calls as long as their Alltoalls through the kernel
    are, trials would be a large part: there it is used from its size on.
    """
    if config.internals.kernel_copy_size:
        return {}
    if ranks == 2:
        outgrown = outgrown_by_alltoalls(ranks, cache)
        return {"scatter": outgrown, "alltoall": outgrown, "allgather": None}
    return {} if oversubscribed else {"alltoall": None}


def shortest_direct(config, ranks: int, core_cache: int) -> int:
    """Bytes of the shortest array that may be used where it lies in a shared heap.

    ``core_cache``: bytes of a core's own cache; 0 where ranks share cores. What fits there comes
    line by line from the core of its owner, who has stored it as programs do. Staged, it is stored
    as suits the reader (docs/stores.md), and one copies in while the other copies out. Two ranks
    measure which of the two is faster.
    """
    shortest = 2 * core_cache
    if ranks == 2:
        shortest = min(shortest, MEASURED_FROM)
    return config.internals.direct_size or max(config.internals.heap_threshold, shortest)


def direct_sizes(config, ranks: int, core_cache: int = 0) -> dict[str, int]:
    """From how many bytes messages in shared heaps may be used where they lie, by collective.

    Of what a rank hands out in a Scatter or Alltoall a message is one part.
    """
    shortest = shortest_direct(config, ranks, core_cache)
    if config.internals.direct_size or ranks == 2:
        return dict.fromkeys(STREAMED, shortest)
    part = max(config.internals.heap_threshold, 2 * core_cache // ranks)
    return {"gather": shortest, "scatter": part, "alltoall": part}


def measured_in_heaps(config, ranks: int, core_cache: int = 0,
                      cache: int = 0) -> dict[str, int]:
    """Collectives in which it is found out whether staging is faster than a shared heap (`routes`),
    and from how many bytes on their first calls are not staged.

    It is while cores are far, for what fits their caches. Of messages their sender finds it,
    between two ranks only: between more its own choice would be lost in what the others do. In the
    other collectives rank 0 does, for all; not where the algorithm was set.
    """
    if config.internals.direct_size:
        return {}
    first = dict.fromkeys(("reduce", "allreduce", "reduce_scatter", "allgather"), 2 * core_cache)
    if ranks == 2:
        half = (cache or USUAL_CACHES) // 2
        first |= {"bcast": 2 * core_cache, "gather": 2 * core_cache, "allgather": half,
                  "scatter": half // 2, "alltoall": core_cache}
    return {collective: nbytes for collective, nbytes in first.items()
            if collective in STREAMED or collective not in config.named}


def streaming_sizes(ranks: int, cache: int) -> dict[str, int]:
    """From how many bytes of result on a rank writes it around the caches, by collective.

    ``cache``: bytes of the ranks' last-level caches together, 0 if unknown. Measured
    (docs/notebook.md): it pays, even where the program reads the result next, from where the
    arrays of all ranks together are as large as these caches, in a Bcast twice as large. Allreduces
    don't care, a long Scatter goes through the kernel. Where a rank's result is reduced straight
    into its array it does not (Scan, Exscan: not here).
    """
    cache = cache or USUAL_CACHES
    # How many bytes the arrays of all ranks have for each byte that a rank's call counts: its
    # result, or the whole vector in a Reduce_scatter.
    arrays = {"bcast": ranks, "reduce": ranks + 1, "allreduce": 2 * ranks, "gather": 2,
              "scatter": 2 * ranks, "allgather": ranks + 1, "alltoall": 2 * ranks,
              "reduce_scatter": ranks + 1}
    early = ("gather", "allgather", "alltoall")
    return {collective: (cache if collective in early else 2 * cache) // copies
            for collective, copies in arrays.items()}


def measured_results_from(ranks: int, cache: int) -> int:
    """Bytes of a Gather's result from which on its root measures whether to write it around caches.

    That is where the arrays of all ranks are half as large as the last-level caches (``cache``; 0
    if unknown), if all are roots by turns: below, it never paid (docs/notebook.md).
    """
    return max(1 << 20, (cache or USUAL_CACHES) // (2 * (ranks + 1)))


def decide(config, ranks: int, oversubscribed: bool,
           domains: int = 1, table: dict | None = None,
           heaps: bool = False, core_cache: int = 0) -> dict[str, list[Decision]]:
    """The decision tables of a communicator.

    ``domains``: how many parts of the hardware its ranks lie in. ``table``: what
    ``tables.for_ranks`` gave on rank 0. ``heaps``: the ranks share heaps. ``core_cache``: bytes of
    a core's own cache; 0 where ranks share cores, or it is not known.
    """
    config = config.settled(oversubscribed)
    tables = {}
    radix = default_radix(ranks, oversubscribed)
    for collective, names in ALGORITHMS.items():
        wanted = config.named.get(collective)
        if wanted is None:
            rows = defaults(collective, ranks, oversubscribed, domains, core_cache)
            reason = "built-in default" + (", ranks outnumber CPUs" if oversubscribed else "")
        else:
            rows = [(UNLIMITED, wanted, config.segment_size, ALL_SEGMENTS)]
            reason = f"set by Config(algorithms='{collective}={wanted}') or SMCOLL_ALGORITHMS"
        tables[collective] = [
            Decision(
                up_to=up_to,
                algorithm=name,
                number=names.index(name),
                fan_in=min(config.fan_in or radix, 255),
                fan_out=min(config.fan_out or radix, 255),
                section_bytes=min(section or config.segment_size, config.segment_size),
                segments=min(segments, config.segments),
                pipelined=config.pipeline,
                reason=reason,
                arity=config.internals.arity,
            )
            for up_to, name, section, segments in rows
        ]
        built_in = tables[collective]
        measured = wanted is None and table is not None and collective in table["rows"]
        if measured:
            usual = tables[collective][-1]
            tables[collective] = [
                measured_row(usual, config, names, row, REASONS[table["source"]],
                             usual_segments(collective, ranks, domains, row[0], core_cache))
                for row in table["rows"][collective]]
        if not heaps or wanted is not None or SHARED_HEAP not in names:
            continue
        if measured and table["heap"]:
            tables[collective] = staged_below(tables[collective], built_in,
                                              config.internals.heap_threshold)
        else:
            most = DIRECT_AT_MOST.get(collective, (UNLIMITED, UNLIMITED))[ranks > 2]
            tables[collective] = with_heaps(tables[collective], names, ranks,
                                            shortest_direct(config, ranks, core_cache), most)
    return tables


def measured_row(usual: Decision, config, names: tuple[str, ...], row: list, reason: str,
                 segments: int) -> Decision:
    """A row of a table or of the model. Radices that were set count; what the row does not say is
    that of the default for long messages. ``segments``: with so many of a bank it was measured.
    """
    up_to, name, fan_in, fan_out, section, points = row
    return replace(
        usual, up_to=up_to, algorithm=name, number=names.index(name),
        fan_in=config.fan_in or fan_in, fan_out=config.fan_out or fan_out,
        section_bytes=min(section, config.segment_size), reason=reason,
        segments=min(segments, config.segments), points=tuple(tuple(point) for point in points))


def with_heaps(rows: list[Decision], names: tuple[str, ...], ranks: int, threshold: int,
               most: int = UNLIMITED) -> list[Decision]:
    """Arrays may lie in shared heaps: from ``threshold`` to ``most`` bytes they are used there.

    Where staging turns out to be faster (``measured_in_heaps``), two ranks stage as without heaps.
    """
    if threshold > most:
        return rows
    found = [row for row in rows if row.up_to < threshold - 1]
    if threshold > 1:
        found.append(replace(decision_in(rows, threshold - 1), up_to=threshold - 1))
    staged = rows if ranks <= 2 else [replace(rows[-1], section_bytes=64 * KIB)]
    found += [replace(row, algorithm=SHARED_HEAP, number=names.index(SHARED_HEAP), points=(),
                      up_to=min(row.up_to, most), reason="shared heaps")
              for row in staged if row.up_to >= threshold]
    return found + [row for row in rows if row.up_to > most]


def staged_below(rows: list[Decision], built_in: list[Decision], threshold: int) -> list[Decision]:
    """Measured rows without direct access to arrays below ``threshold`` bytes: these are private.

    In its place comes what the row before it says, or the default.
    """
    found: list[Decision] = []
    for row in rows:
        begin = found[-1].up_to + 1 if found else 0
        if row.algorithm == SHARED_HEAP and begin < threshold:
            end = min(row.up_to, threshold - 1)
            before = found.pop() if found else decision_in(built_in, end)
            found.append(replace(before, up_to=end))
        if not found or row.up_to > found[-1].up_to:
            found.append(row)
    return found


def decision_in(rows: list[Decision], nbytes: int) -> Decision:
    """The row for ``nbytes`` bytes."""
    return next((row for row in rows[:-1] if nbytes <= row.up_to), rows[-1])


def decision_for(tables: dict[str, list[Decision]], collective: str, nbytes: int) -> Decision:
    """The row that a call of ``nbytes`` bytes follows."""
    return decision_in(tables[collective], nbytes)


def in_rank_order(tables: dict[str, list[Decision]], collective: str, nbytes: int) -> Decision:
    """What an operation that does not commute follows: operands are combined in rank order.

    ValueError where an algorithm was set by name that can't do it.
    """
    ordered = IN_RANK_ORDER[collective]
    usual = decision_for(tables, collective, nbytes)
    rows = [usual, *tables[collective]]
    row = next((row for row in rows if row.algorithm in ordered), None)
    if row is not None:
        return row
    if usual.reason.startswith("set by"):
        raise ValueError(f"{collective} by {usual.algorithm!r} does not combine operands in rank "
                         "order, as an operation that does not commute needs it")
    # Functions are slow: in tiles each rank applies them to its slice only.
    name = "tiled" if "tiled" in ordered else ordered[0]
    return replace(usual, algorithm=name, number=ALGORITHMS[collective].index(name),
                   reason="the operation does not commute")


def override(decision: Decision, collective: str, algorithm=None, fan_in=None, fan_out=None,
             section_bytes=None, pipelined=None, arity=None) -> Decision:
    """The same row with an algorithm or radices of the caller's. ValueError for unknown ones."""
    changes = {}
    if algorithm is not None:
        names = ALGORITHMS[collective]
        if algorithm not in names:
            raise ValueError(f"{algorithm!r} is no {collective} algorithm "
                             f"(one of {', '.join(names)})")
        changes.update(algorithm=algorithm, number=names.index(algorithm))
    for name, value, least in (("fan_in", fan_in, 1), ("fan_out", fan_out, 1),
                               ("arity", arity, 2)):
        if value is None:
            continue
        if not least <= value <= 255:
            raise ValueError(f"{name}={value} is not between {least} and 255")
        if name not in RADICES.get((collective, algorithm or decision.algorithm), ()):
            raise ValueError(f"{collective} {algorithm or decision.algorithm} has no {name} radix")
        changes[name] = value
    if section_bytes is not None:
        if section_bytes < 64:
            raise ValueError(f"section_bytes={section_bytes} is less than 64")
        # What was chosen for the row's own sections does not hold for others.
        changes.update(section_bytes=section_bytes, segments=ALL_SEGMENTS)
    if pipelined is not None:
        changes["pipelined"] = bool(pipelined)
    return replace(decision, reason="given with the call", **changes)
