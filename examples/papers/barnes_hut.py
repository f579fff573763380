"""Building the tree of a Barnes-Hut simulation: space is divided until no part is too full.

    python examples/papers/barnes_hut.py -n 4

Li, Hoefler & Snir 2013, section 3.7. Every rank holds a part of the bodies (Plummer's sphere, the
usual model of a star cluster). Level by level, each subspace with too many bodies is divided into
eight; every rank counts its own bodies in the new ones, and one Allreduce, of another length on
each level, gives their numbers in all. The counts must equal those that numpy gets from the sorted
list of all bodies.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import program

NAME = "barnes_hut"
DEEPEST = 21  # levels; three coordinates of 21 bits make a key of 63
LARGEST_RADIUS = 8.0  # in units of Plummer's; 98 % of the mass of the endless sphere


def bodies(count: int, seed: int, rank: int) -> np.ndarray:
    """Positions of this rank's bodies in the unit cube: (3, count)."""
    random = np.random.default_rng([seed, rank])
    # The mass within radius r is (1 + r**-2) ** -1.5.
    mass = random.uniform(0, (1 + LARGEST_RADIUS ** -2) ** -1.5, count)
    radius = 1 / np.sqrt(np.maximum(mass, 1e-300) ** (-2 / 3) - 1)
    cosine = random.uniform(-1, 1, count)
    angle = random.uniform(0, 2 * np.pi, count)
    flat = radius * np.sqrt(1 - cosine ** 2)
    positions = np.stack([flat * np.cos(angle), flat * np.sin(angle), radius * cosine])
    return positions / (2 * LARGEST_RADIUS) + 0.5


def keys(positions: np.ndarray) -> np.ndarray:
    """Of each body three bits per level: in which eighth of each subspace it is (Morton order)."""
    cells = (positions * (1 << DEEPEST)).astype(np.int64)
    np.clip(cells, 0, (1 << DEEPEST) - 1, out=cells)
    key = np.zeros(positions.shape[1], np.int64)
    for axis, cell in enumerate(cells):
        key |= spread(cell) << axis
    return key


def spread(number: np.ndarray) -> np.ndarray:
    """21 bits, each moved to three times its place."""
    for shift, mask in ((32, 0x1F00000000FFFF), (16, 0x1F0000FF0000FF), (8, 0x100F00F00F00F00F),
                        (4, 0x10C30C30C30C30C3), (2, 0x1249249249249249)):
        number = (number | (number << shift)) & mask
    return number


def build(comm, positions: np.ndarray, capacity: int) -> list[np.ndarray]:
    """Per level the numbers of bodies in its subspaces, in Morton order. The same on all ranks."""
    key = keys(positions)
    parent = np.zeros(len(key), np.int64)  # of each body left: which subspace that is too full
    divided, levels = 1, []
    while divided and len(levels) < DEEPEST:
        octant = (key >> 3 * (DEEPEST - 1 - len(levels))) & 7
        subspace = 8 * parent + octant
        mine = np.bincount(subspace, minlength=8 * divided)
        counts = np.empty_like(mine)
        comm.Allreduce(mine, counts)
        levels.append(counts)
        too_full = counts > capacity
        divided = int(too_full.sum())
        left = too_full[subspace]
        key, parent = key[left], (np.cumsum(too_full) - 1)[subspace[left]]
    return levels


def reference(key: np.ndarray, capacity: int) -> list[np.ndarray]:
    """The same from the keys of all bodies: a subspace is a range of the sorted list."""
    key = np.sort(key)
    full, levels = np.zeros(1, np.int64), []
    while len(full) and len(levels) < DEEPEST:
        shift = 3 * (DEEPEST - 1 - len(levels))
        first = (8 * full[:, None] + np.arange(8)).ravel()
        # The last range ends at 2 ** 63, which is no int64.
        counts = (np.searchsorted(key, ((first + 1) << shift) - 1, "right")
                  - np.searchsorted(key, first << shift, "left"))
        levels.append(counts)
        full = first[counts > capacity]
    return levels


def contend(arguments: argparse.Namespace, world, layers: dict) -> tuple[list, dict]:
    """One contender for each layer, with the same bodies."""
    ranks, rank = world.Get_size(), world.Get_rank()
    shares = [len(part) for part in np.array_split(np.empty(arguments.bodies, bool), ranks)]
    mine = bodies(shares[rank], arguments.seed, rank)
    expected = None
    if rank == 0:
        everything = np.concatenate([keys(bodies(share, arguments.seed, number))
                                     for number, share in enumerate(shares)])
        expected = reference(everything, arguments.capacity)
    expected = world.bcast(expected)

    def contender(layer: str, comm) -> program.Contender:
        return program.Contender(
            layer, lambda stopwatch: build(stopwatch.watch(comm), mine, arguments.capacity),
            lambda levels: same(levels, expected), [comm])

    facts = {"bodies": arguments.bodies, "capacity": arguments.capacity,
             "subspaces_per_level": [len(level) for level in expected]}
    return [contender(layer, comm) for layer, comm in layers.items()], facts


def same(levels: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    """Level by level."""
    return len(levels) == len(expected) and all(map(np.array_equal, levels, expected))


def check(arguments: argparse.Namespace, ranks: int) -> None:
    """Every rank has a body."""
    if arguments.bodies < ranks:
        raise ValueError(f"--bodies {arguments.bodies} are fewer than {ranks} ranks")


def panel(axes, rows: list[dict], facts: dict) -> None:
    """The Allreduce of each level: time against bytes."""
    nbytes = [8 * length for length in facts["subspaces_per_level"]]
    for row, marker in zip(rows, "so^", strict=False):
        axes.plot(range(1, len(nbytes) + 1), np.multiply(row["calls_s"], 1e6), label=row["layer"],
                  color=program.COLOURS[row["layer"]], marker=marker, markersize=4)
    axes.set(yscale="log", xlabel="level (KiB)", ylabel="µs in Allreduce",
             xticks=range(1, len(nbytes) + 1))
    axes.set_xticklabels([f"{level}\n({size / 1024:.3g})"
                          for level, size in enumerate(nbytes, 1)], fontsize="x-small")
    axes.legend(fontsize="small")


def main() -> int:
    """The program."""
    parser = program.make_parser(NAME, __doc__)
    parser.add_argument("--bodies", type=program.positive, default=4_000_000,
                        help="in all (4000000)")
    parser.add_argument("--capacity", type=program.positive, default=128,
                        help="bodies that a subspace may hold (128)")
    return program.main(program.Application(
        NAME, "Barnes-Hut tree building", parser, check, contend, panel))


if __name__ == "__main__":
    sys.exit(main())
