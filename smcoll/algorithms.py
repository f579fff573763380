"""The table of the collectives' algorithms: one line each. Imports nothing of this package.

A new algorithm is a function ``cdef api int f(Call *)`` in a file of ``coll/``, and a line here.
(``api``, or declared in the file's ``.pxd``: then Cython exports it, too.)
"""

from __future__ import annotations

from typing import NamedTuple

# Which flag lines carry the data of small messages: those of the synchronising exchange, in which
# everybody hears everybody, or those of rooted calls.
EXCHANGE, ROOTED = "exchange", "rooted"


class Algorithm(NamedTuple):
    """One algorithm of one collective.

    ``function``, ``inline``: ``file.function`` below ``coll/``, for data that go through the data
    regions, and for those that fit ``lines``; None: there is no such form. ``radices``: which ones
    it takes: GS's fan_in and fan_out (children of a parent), LHS's arity n (a parent has n - 1
    children in each round). ``keeps_order``: operands are combined in rank order, as operations
    that don't commute need it.
    """

    collective: str
    name: str
    function: str | None = None
    inline: str | None = None
    lines: str | None = None
    radices: tuple[str, ...] = ()
    keeps_order: bool = False


TABLE = (
    # A barrier's flags are all there is of it.
    Algorithm("barrier", "all_read", None, "barriers.barrier_all_read", EXCHANGE),
    Algorithm("barrier", "tree", None, "tree.barrier_tree", EXCHANGE, ("fan_in", "fan_out")),
    Algorithm("barrier", "dissemination", None, "barriers.barrier_dissemination", EXCHANGE),
    Algorithm("barrier", "hierarchical", None, "tree.barrier_hierarchical", EXCHANGE, ("arity",)),

    Algorithm("bcast", "fan_out", "tree.bcast_fan_out", "tree.bcast_fan_out", ROOTED,
              ("fan_out",)),
    Algorithm("bcast", "n_ary", "tree.bcast_n_ary", "tree.bcast_n_ary", ROOTED,
              ("arity",)),
    Algorithm("bcast", "one_stage", "tree.bcast_one_stage", "tree.bcast_one_stage",
              ROOTED),
    Algorithm("bcast", "two_stage", "tree.bcast_two_stage", "tree.bcast_two_stage",
              ROOTED),
    Algorithm("bcast", "scatter_allgather", "bcast.bcast_scatter_allgather"),
    Algorithm("bcast", "shared_heap", "direct.bcast_shared_heap"),

    Algorithm("reduce", "fan_in", "tree.reduce_fan_in", "tree.reduce_fan_in", ROOTED,
              ("fan_in",)),
    Algorithm("reduce", "reduce_scatter_gather", "pairwise.reduce_scatter_gather"),
    Algorithm("reduce", "tiled", "tiled.reduce_tiled", keeps_order=True),
    Algorithm("reduce", "n_ary", "tree.reduce_n_ary", "tree.reduce_n_ary", ROOTED,
              ("arity",)),
    Algorithm("reduce", "tiled_cyclic", "tiled.reduce_tiled_cyclic"),
    Algorithm("reduce", "tiled_hierarchical", "tiled_hierarchical.reduce_tiled_hierarchical",
              radices=("arity",)),
    Algorithm("reduce", "shared_heap", "direct.reduce_shared_heap", keeps_order=True),

    Algorithm("allreduce", "all_read", "all_read.allreduce_all_read",
              "all_read.allreduce_all_read_inline", EXCHANGE, keeps_order=True),
    Algorithm("allreduce", "fan_in_fan_out", "tree.allreduce_fan_in_fan_out",
              radices=("fan_in", "fan_out")),
    Algorithm("allreduce", "recursive_doubling", "pairwise.allreduce_recursive_doubling"),
    Algorithm("allreduce", "recursive_halving", "pairwise.allreduce_recursive_halving"),
    Algorithm("allreduce", "tiled", "tiled.allreduce_tiled", keeps_order=True),
    Algorithm("allreduce", "reduce_broadcast", "tree.allreduce_reduce_broadcast",
              "tree.allreduce_reduce_broadcast", ROOTED, ("arity",)),
    # Gives the ranks results that differ in their last bits.
    Algorithm("allreduce", "dissemination", "dissemination.allreduce_dissemination"),
    Algorithm("allreduce", "tiled_cyclic", "tiled.allreduce_tiled_cyclic"),
    Algorithm("allreduce", "tiled_hierarchical",
              "tiled_hierarchical.allreduce_tiled_hierarchical", radices=("arity",)),
    Algorithm("allreduce", "shared_heap", "direct.allreduce_shared_heap", keeps_order=True),

    # One message for each pair of ranks, through their streams.
    Algorithm("gather", "direct"),
    Algorithm("scatter", "direct"),
    Algorithm("scatter", "two_stage"),
    Algorithm("alltoall", "direct"),

    # Every rank posts its data once, the others read what they need.
    Algorithm("allgather", "direct", "allgather.allgather_direct",
              "allgather.allgather_direct_inline", EXCHANGE),
    Algorithm("allgather", "shared_heap", "direct.allgather_shared_heap"),

    Algorithm("reduce_scatter", "direct", "reduce_scatter.reduce_scatter_direct",
              "reduce_scatter.reduce_scatter_direct_inline", EXCHANGE, keeps_order=True),
    Algorithm("reduce_scatter", "tree_one_stage", "staged_scatter.reduce_scatter_tree_one_stage",
              radices=("arity",)),
    Algorithm("reduce_scatter", "tree_two_stage", "staged_scatter.reduce_scatter_tree_two_stage",
              radices=("arity",)),
    Algorithm("reduce_scatter", "tiled_one_stage", "staged_scatter.reduce_scatter_tiled_one_stage",
              radices=("arity",)),
    Algorithm("reduce_scatter", "tiled_two_stage", "staged_scatter.reduce_scatter_tiled_two_stage",
              radices=("arity",)),
    Algorithm("reduce_scatter", "shared_heap", "direct_own.reduce_scatter_shared_heap",
              keeps_order=True),

    *(algorithm for collective in ("scan", "exscan") for algorithm in (
        Algorithm(collective, "direct", "scan.scan_direct", "scan.scan_direct_inline", ROOTED,
                  keeps_order=True),
        Algorithm(collective, "chain", "scan.scan_chain", "scan.scan_chain_inline", ROOTED,
                  keeps_order=True),
        Algorithm(collective, "shared_heap", "direct_own.scan_shared_heap", keeps_order=True))),
)

# Names by collective; a name's position is the algorithm's number.
ALGORITHMS = {
    collective: tuple(row.name for row in TABLE if row.collective == collective)
    for collective in dict.fromkeys(row.collective for row in TABLE)}

# The collectives whose data travel through the streams.
STREAMED = ("gather", "scatter", "alltoall")

IN_RANK_ORDER = {
    collective: names for collective in ALGORITHMS
    if (names := tuple(row.name for row in TABLE
                       if row.collective == collective and row.keeps_order))}

RADICES = {(row.collective, row.name): row.radices for row in TABLE if row.radices}
