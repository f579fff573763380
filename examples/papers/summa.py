"""Matrix multiplication by SUMMA, with broadcasts in one step and in hierarchies.

    python examples/papers/summa.py -n 8

Goglin, Jeannot, Mansouri & Mercier 2018, section 7.3. Ranks form a grid; each has a block of A, B
and C = A B. Panel by panel, the ranks that have a panel of A's columns broadcast it along their
rows of the grid, those that have a panel of B's rows along their columns, and every rank adds the
product to its C. "simple": one Bcast along a row or column. Others: first among one rank of each
group, then inside the groups; with hand-made groups from a file (--config), or the hardware's.
All numbers are whole, so sums are exact in any order, and C must equal numpy's.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable

import numpy as np
import program

NAME = "summa"


class Line:
    """A row or a column of the grid: broadcasts from any of its ranks.

    ``hierarchy_of(comm, position)`` gives the levels (see ``hierarchies``) of ``comm``, whose rank
    0 is the one that broadcasts; ``position`` is this rank's in the line. None: in one step.
    """

    def __init__(self, comm, hierarchy_of: Callable | None):
        self.comm = comm
        self.made = [comm]
        self.levels: list[list] = []  # for each root
        if hierarchy_of is None:
            return
        size, position = comm.Get_size(), comm.Get_rank()
        for root in range(size):
            rotated = comm.Split(0, (position - root) % size)
            levels = hierarchy_of(rotated, position)
            self.levels.append(levels)
            self.made += [rotated, *(level for level in levels if level and level is not rotated)]

    def watched(self, stopwatch) -> Callable[[np.ndarray, int], None]:
        """The broadcast ``f(buffer, root)``, timed."""
        if not self.levels:
            comm = stopwatch.watch(self.comm)
            return lambda buffer, root: comm.Bcast(buffer, root=root)
        levels = [[stopwatch.watch(comm) for comm in levels if comm] for levels in self.levels]

        def broadcast(buffer: np.ndarray, root: int) -> None:
            for comm in levels[root]:
                comm.Bcast(buffer, root=0)

        return broadcast


def multiply(row: Callable, column: Callable, place: tuple[int, int], a: np.ndarray, b: np.ndarray,
             size: int, block: int) -> np.ndarray:
    """This rank's block of C. ``row``, ``column``: broadcasts ``f(buffer, root)``; ``place``: row
    and column in the grid; ``size``: of the whole matrices; ``block``: of a panel.
    """
    c = np.zeros((a.shape[0], b.shape[1]))
    a_panel, b_panel = np.empty((a.shape[0], block)), np.empty((block, b.shape[1]))
    for first in range(0, size, block):
        a_owner, a_start = divmod(first, a.shape[1])
        b_owner, b_start = divmod(first, b.shape[0])
        if place[1] == a_owner:
            a_panel[:] = a[:, a_start:a_start + block]
        if place[0] == b_owner:
            b_panel[:] = b[b_start:b_start + block]
        row(a_panel, a_owner)
        column(b_panel, b_owner)
        c += a_panel @ b_panel
    return c


def grid(ranks: int, rows: int | None) -> tuple[int, int]:
    """Rows and columns of the grid of ranks; as square as possible, not more rows than columns."""
    if rows is None:
        rows = next(rows for rows in range(math.isqrt(ranks), 0, -1) if ranks % rows == 0)
    return rows, ranks // rows


def matrices(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A and B, whole."""
    random = np.random.default_rng(seed)
    a, b = random.integers(-8, 9, (2, size, size), dtype=np.int8).astype(np.float64)
    return a, b


def part(number: int, parts: int, size: int) -> slice:
    """The rows or columns of one rank."""
    return slice(number * size // parts, (number + 1) * size // parts)


def read_groupings(arguments: argparse.Namespace, ranks: int) -> dict[str, dict[int, list[int]]]:
    """Name -> {length of a row or column: sizes}."""
    import hierarchies

    groupings: dict[str, dict[int, list[int]]] = {}
    for length in sorted(set(grid(ranks, arguments.rows))):
        for name, sizes in hierarchies.read(arguments.config, NAME, length).items():
            groupings.setdefault(name, {})[length] = sizes
    return groupings


def variants(arguments: argparse.Namespace, groupings: dict) -> list[str]:
    """Those to run, of all."""
    import hierarchies

    return hierarchies.chosen(arguments, [hierarchies.SIMPLE, *groupings, hierarchies.HARDWARE])


def hierarchy_maker(name: str, groupings: dict[str, dict[int, list[int]]],
                    length: int) -> Callable | None:
    """What ``Line`` needs for a variant."""
    import hierarchies

    if name == hierarchies.HARDWARE:
        return lambda comm, position: hierarchies.by_hardware(comm)
    sizes = groupings.get(name, {}).get(length)
    if sizes is None:
        return None
    return lambda comm, position: hierarchies.by_sizes(comm, sizes, position)


def contend(arguments: argparse.Namespace, world, layers: dict) -> tuple[list, dict]:
    """One contender for each variant and layer, with the same matrices."""
    import hierarchies

    ranks, rank, size = world.Get_size(), world.Get_rank(), arguments.size
    rows, columns = grid(ranks, arguments.rows)
    place = divmod(rank, columns)
    groupings = read_groupings(arguments, ranks)
    names = variants(arguments, groupings)
    facts = {"matrices": f"{size} x {size} doubles, panels of {arguments.block}",
             "grid": f"{rows} x {columns} ranks"}
    if hierarchies.HARDWARE in names:
        facts["hardware"] = hierarchies.prepare_hardware(world, arguments.topology)
    facts |= {name: "; ".join(f"lines of {length}: {sizes}" for length, sizes in
                              groupings[name].items()) for name in names if name in groupings}
    a, b = matrices(size, arguments.seed)
    own_rows, own_columns = part(place[0], rows, size), part(place[1], columns, size)
    expected = a[own_rows] @ b[:, own_columns]
    a, b = a[own_rows, own_columns].copy(), b[own_rows, own_columns].copy()

    def contender(name: str, layer: str, comm) -> program.Contender:
        row = Line(comm.Split(place[0]), hierarchy_maker(name, groupings, columns))
        column = Line(comm.Split(place[1]), hierarchy_maker(name, groupings, rows))

        def run(stopwatch):
            return multiply(row.watched(stopwatch), column.watched(stopwatch), place, a, b, size,
                            arguments.block)

        return program.Contender(layer, run, lambda c: np.array_equal(c, expected),
                                 [*row.made, *column.made], name)

    return [contender(name, layer, comm) for name in names for layer, comm in layers.items()], facts


def check(arguments: argparse.Namespace, ranks: int) -> None:
    """Each panel lies within one rank's block."""
    if arguments.rows is not None and ranks % arguments.rows:
        raise ValueError(f"--rows {arguments.rows}: {ranks} ranks make no grid of so many rows")
    for length in grid(ranks, arguments.rows):
        if arguments.size % (length * arguments.block):
            raise ValueError(f"--size {arguments.size} is no multiple of {length} ranks x --block "
                             f"{arguments.block}")
    variants(arguments, read_groupings(arguments, ranks))


def panel(axes, rows: list[dict], facts: dict) -> None:
    """Total time of each variant on each layer."""
    names = list(dict.fromkeys(row["variant"] for row in rows))
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    for number, layer in enumerate(layers):
        times = {row["variant"]: row["total_s"] * 1e3 for row in rows if row["layer"] == layer}
        axes.bar(np.arange(len(names)) + 0.8 / len(layers) * number,
                 [times[name] for name in names], 0.72 / len(layers), label=layer,
                 color=program.COLOURS[layer])
    axes.set(xticks=np.arange(len(names)) + 0.2, xticklabels=names,
             ylabel="ms in all, without barriers")
    axes.tick_params(axis="x", labelsize="small")
    axes.legend(fontsize="small", loc="lower right")


def main() -> int:
    """The program."""
    import hierarchies

    parser = program.make_parser(NAME, __doc__)
    hierarchies.add_options(parser)
    parser.add_argument("--size", type=program.positive, default=1536,
                        help="rows and columns of the matrices (1536)")
    parser.add_argument("--block", type=program.positive, default=64,
                        help="columns of A and rows of B in a panel (64)")
    parser.add_argument("--rows", type=program.positive, default=None,
                        help="of the grid of ranks (as square as possible)")
    return program.main(program.Application(
        NAME, "Matrix multiplication (SUMMA)", parser, check, contend, panel))


if __name__ == "__main__":
    sys.exit(main())
