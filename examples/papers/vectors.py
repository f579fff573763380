"""Hierarchical vector processing: the hardware's levels against hand-made ones.

    python examples/papers/vectors.py -n 8

Goglin, Jeannot, Mansouri & Mercier 2018, section 7.4, Algorithm 5. From the lowest level up, rank 0
of each communicator collects the vectors of the others (Gather) and makes one of them: their sum,
divided by a vector of its own. Hand-made hierarchies H_conf1-4 come from a file (--config). All
numbers are whole and the divisors powers of two, so sums are exact in any order, and results must
equal numpy's bit by bit; they are others for each hierarchy, since each has other divisors.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import program

NAME = "vectors"


def vector_of(rank: int, count: int, seed: int) -> np.ndarray:
    """What a rank has at first."""
    return np.random.default_rng([seed, rank]).integers(-999, 1000, count).astype(np.float64)


def divisor_of(rank: int, count: int) -> np.ndarray:
    """The local vector that a rank divides by (lvec)."""
    return 2.0 ** ((np.arange(count) + rank) % 3)


def combine(vectors: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    """The local operation (func): addition, and normalization by the local vector."""
    return vectors.sum(axis=0) / divisor


def process(levels: list, vector: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    """Algorithm 5. The result is on the rank that is root of all levels; elsewhere it means
    nothing.
    """
    result = vector
    for comm in reversed(levels):
        if not comm:
            break  # no root below, so not in this level
        is_root = comm.Get_rank() == 0
        vectors = np.empty((comm.Get_size(), len(vector))) if is_root else None
        comm.Gather(result, vectors, root=0)
        if not is_root:
            break
        result = combine(vectors, divisor)
    return result


def reference(hierarchy: list[list[tuple[int, ...]]], count: int, seed: int) -> np.ndarray:
    """The same for all ranks, without communication. ``hierarchy``: see ``hierarchies.members``."""
    results = [vector_of(rank, count, seed) for rank in range(len(hierarchy))]
    deepest = max(map(len, hierarchy))
    # Ranks that are bound less deeply have fewer levels: those count from the top.
    for level in reversed(range(deepest)):
        for group in {levels[level] for levels in hierarchy if len(levels) > level} - {()}:
            results[group[0]] = combine(np.stack([results[rank] for rank in group]),
                                        divisor_of(group[0], count))
    return results[0]


def contend(arguments: argparse.Namespace, world, layers: dict) -> tuple[list, dict]:
    """One contender for each layer, hierarchy and vector length."""
    import hierarchies

    ranks, rank = world.Get_size(), world.Get_rank()
    groupings = hierarchies.read(arguments.config, NAME, ranks)
    names = hierarchies.chosen(arguments, [*groupings, hierarchies.HARDWARE])
    facts = {"iterations": arguments.iterations}
    if hierarchies.HARDWARE in names:
        facts["hardware"] = hierarchies.prepare_hardware(world, arguments.topology)
    facts |= {name: groupings[name] for name in names if name in groupings}

    def contender(layer: str, name: str, levels: list, base: np.ndarray) -> program.Contender:
        count = len(base)
        vector, divisor = vector_of(rank, count, arguments.seed), divisor_of(rank, count)

        def run(stopwatch):
            watched = [stopwatch.watch(comm) if comm else comm for comm in levels]
            # No iteration repeats another.
            return [process(watched, vector * (iteration + 1), divisor)
                    for iteration in range(arguments.iterations)]

        def right(results) -> bool:
            return rank != 0 or all(np.array_equal(result, base * (iteration + 1))
                                    for iteration, result in enumerate(results))

        return program.Contender(layer, run, right, [comm for comm in levels if comm],
                                 f"{name}, {count}", {"grouping": name, "doubles": count})

    made = {}
    for name in names:
        for layer, comm in layers.items():
            made[name, layer] = (hierarchies.by_hardware(comm) if name == hierarchies.HARDWARE
                                 else hierarchies.by_sizes(comm, groupings[name], rank))
    contenders = []
    for count in arguments.doubles:
        for name in names:
            base = reference(hierarchies.members(world, made[name, "mpi"]), count, arguments.seed)
            contenders += [contender(layer, name, made[name, layer], base) for layer in layers]
    return contenders, facts


def counts(text: str) -> list[int]:
    """``64,4096``"""
    return [program.positive(part) for part in text.split(",")]


def check(arguments: argparse.Namespace, ranks: int) -> None:
    """There is something to run."""
    import hierarchies

    known = [*hierarchies.read(arguments.config, NAME, ranks), hierarchies.HARDWARE]
    hierarchies.chosen(arguments, known)


def panel(axes, rows: list[dict], facts: dict) -> None:
    """Total time against the length, for each hierarchy and layer."""
    for grouping in dict.fromkeys(row["grouping"] for row in rows):
        for layer, style in (("mpi", "--"), ("smcoll", "-"), (program.HEAP, ":")):
            points = [row for row in rows if (row["grouping"], row["layer"]) == (grouping, layer)]
            axes.plot([8 * row["doubles"] for row in points],
                      [row["total_s"] * 1e3 for row in points], style, marker="o",
                      markersize=3, label=f"{grouping}, {layer}",
                      linewidth=2.5 if grouping == "hardware" else 1.2)
    axes.set(xscale="log", yscale="log", xlabel="bytes of a vector",
             ylabel="ms in all, without barriers")
    axes.legend(fontsize="x-small")


def main() -> int:
    """The program."""
    import hierarchies

    parser = program.make_parser(NAME, __doc__)
    hierarchies.add_options(parser)
    parser.add_argument("--doubles", type=counts, default=[64, 4096, 65536],
                        help="lengths of the vectors (64,4096,65536)")
    parser.add_argument("--iterations", type=program.positive, default=20,
                        help="in a run (20)")
    return program.main(program.Application(
        NAME, "Hierarchical vector processing", parser, check, contend, panel))


if __name__ == "__main__":
    sys.exit(main())
