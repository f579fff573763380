"""Dense matrix-vector products with a matrix that is scattered by columns.

    python examples/papers/matvec.py -n 4

Li, Hoefler & Snir 2013, section 3.7. Rank 0 scatters the columns of the matrix (Scatter) and
broadcasts the vector (Bcast). In each iteration every rank multiplies its columns by its part of
the vector, and the products are summed on rank 0 (Reduce). So that no iteration repeats another,
iteration i multiplies by the vector rotated by i. All numbers are whole, so sums are exact in any
order, and the results must equal numpy's bit by bit.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import program

NAME = "matvec"


def data(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The transposed matrix (its rows are the columns to scatter), and the vector."""
    random = np.random.default_rng(seed)
    columns = random.integers(-8, 9, (size, size), dtype=np.int8).astype(np.float64)
    return columns, random.integers(-8, 9, size).astype(np.float64)


def reference(columns: np.ndarray, vector: np.ndarray, iterations: int) -> np.ndarray:
    """All products by numpy: (iterations, size)."""
    vectors = np.stack([np.roll(vector, iteration) for iteration in range(iterations)])
    return vectors @ columns


def multiply(comm, columns: np.ndarray | None, vector: np.ndarray, iterations: int) -> np.ndarray:
    """All products, on rank 0: (iterations, size). ``columns`` and ``vector``: rank 0's count."""
    rank, size = comm.Get_rank(), len(vector)
    width = size // comm.Get_size()
    mine = np.empty((width, size))
    comm.Scatter(columns, mine, root=0)
    comm.Bcast(vector, root=0)
    part = slice(rank * width, (rank + 1) * width)
    products = np.empty((iterations if rank == 0 else 0, size))
    for iteration in range(iterations):
        partial = np.roll(vector, iteration)[part] @ mine
        comm.Reduce(partial, products[iteration] if rank == 0 else None, root=0)
    return products


def contend(arguments: argparse.Namespace, world, layers: dict) -> tuple[list, dict]:
    """One contender for each layer, with the same matrix."""
    size, iterations = arguments.size, arguments.iterations
    is_root = world.Get_rank() == 0
    columns, vector = data(size, arguments.seed) if is_root else (None, np.zeros(size))
    expected = reference(columns, vector, iterations) if is_root else np.empty((0, size))

    def contender(layer: str, comm) -> program.Contender:
        def run(stopwatch):
            own = vector.copy() if is_root else np.zeros(size)
            return multiply(stopwatch.watch(comm), columns, own, iterations)

        return program.Contender(layer, run, lambda result: np.array_equal(result, expected),
                                 [comm])

    facts = {"matrix": f"{size} x {size} doubles", "iterations": iterations}
    return [contender(layer, comm) for layer, comm in layers.items()], facts


def check(arguments: argparse.Namespace, ranks: int) -> None:
    """Scatter gives all ranks as many columns."""
    if arguments.size % ranks:
        raise ValueError(f"--size {arguments.size} is no multiple of {ranks} ranks")


def panel(axes, rows: list[dict], facts: dict) -> None:
    """Time in each of the collectives."""
    names = ["Scatter", "Bcast", "Reduce"]
    for number, row in enumerate(rows):
        axes.bar(np.arange(len(names)) + 0.8 / len(rows) * number,
                 [row["collectives_s"][name] * 1e3 for name in names], 0.72 / len(rows),
                 label=row["layer"], color=program.COLOURS[row["layer"]])
    axes.set(xticks=np.arange(len(names)) + 0.2, xticklabels=names, ylabel="ms in all calls",
             yscale="log")
    axes.legend(fontsize="small")


def main() -> int:
    """The program."""
    parser = program.make_parser(NAME, __doc__)
    parser.add_argument("--size", type=program.positive, default=5040,
                        help="rows and columns of the matrix (5040; the paper: 49152)")
    parser.add_argument("--iterations", type=program.positive, default=128,
                        help="products (128)")
    return program.main(program.Application(
        NAME, "Matrix-vector product", parser, check, contend, panel))


if __name__ == "__main__":
    sys.exit(main())
