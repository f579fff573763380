"""Data-parallel k-means over handwritten digits, with plain mpi4py and with smcoll.

    python examples/kmeans.py -n 4                  # starts its own ranks, both layers
    mpiexec -n 4 python examples/kmeans.py --layer smcoll

Every rank holds a part of the 1797 images (8 x 8 pixels) that ship with scikit-learn. Rank 0 draws
the initial centres and broadcasts them (Bcast); in each step every rank assigns its images to the
nearest centre and the sums and counts of all ranks are added up (Allreduce), until no image moves;
at the end the inertia is collected on rank 0 (Reduce). The pixels are whole numbers, so the sums
are exact in any order, and the centres must equal the serial ones bit by bit.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from dataclasses import dataclass

import numpy as np

IMAGES = 1797
MAX_STEPS = 200


@dataclass
class Outcome:
    """What one run of k-means gives."""

    centres: np.ndarray
    counts: np.ndarray
    inertia: float
    steps: int


class Stopwatch:
    """Calls a communicator's collectives, and adds up the time in them.

    A rank that is through with its images early waits for the others, whoever does the collective.
    A barrier before each takes that time out and adds it up by itself.
    """

    def __init__(self, comm):
        self.comm = comm
        self.calls = 0
        self.seconds = 0.0
        self.waiting = 0.0

    def __getattr__(self, name):
        method = getattr(self.comm, name)

        def timed(*arguments, **options):
            came = time.perf_counter()
            self.comm.Barrier()
            start = time.perf_counter()
            result = method(*arguments, **options)
            self.seconds += time.perf_counter() - start
            self.waiting += start - came
            self.calls += 1
            return result

        return timed


def load_images() -> np.ndarray:
    """1797 images of 64 pixels, each a whole number from 0 to 16."""
    from sklearn.datasets import load_digits

    return np.ascontiguousarray(load_digits().data, dtype=np.float64)


def initial_centres(images: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """As many different images, drawn at random."""
    chosen = np.random.default_rng(seed).choice(len(images), clusters, replace=False)
    return images[chosen]


def nearest(images: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each image: its nearest centre, and the squared distance to that.

    Image by image the same operations, so that how the images are divided changes nothing.
    """
    distances = np.empty((len(images), len(centres)))
    for number, centre in enumerate(centres):
        distances[:, number] = ((images - centre) ** 2).sum(axis=1)
    labels = distances.argmin(axis=1)
    return labels, distances[np.arange(len(images)), labels]


def sums_and_counts(images: np.ndarray, labels: np.ndarray, clusters: int) -> np.ndarray:
    """Per cluster the sum of its images, and in a last column how many they are."""
    table = np.zeros((clusters, images.shape[1] + 1))
    np.add.at(table[:, :-1], labels, images)
    table[:, -1] = np.bincount(labels, minlength=clusters)
    return table


def new_centres(table: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The mean of each cluster; the old centre where a cluster is empty."""
    counts = table[:, -1:]
    return np.where(counts > 0, table[:, :-1] / np.maximum(counts, 1), centres)


def serial(images: np.ndarray, centres: np.ndarray) -> Outcome:
    """One process, all images, no MPI."""
    moved, steps = True, 0
    while moved and steps < MAX_STEPS:
        labels, distances = nearest(images, centres)
        table = sums_and_counts(images, labels, len(centres))
        previous, centres = centres, new_centres(table, centres)
        moved = not np.array_equal(previous, centres)
        steps += 1
    return Outcome(centres, table[:, -1], float(distances.sum()), steps)


def parallel(comm, images: np.ndarray, centres: np.ndarray) -> Outcome:
    """Every rank has its own `images`; rank 0's `centres` count. Inertia: on rank 0."""
    comm.Bcast(centres, root=0)
    table = np.empty((len(centres), images.shape[1] + 1))
    moved, steps = True, 0
    while moved and steps < MAX_STEPS:
        labels, distances = nearest(images, centres)
        comm.Allreduce(sums_and_counts(images, labels, len(centres)), table)
        previous, centres = centres, new_centres(table, centres)
        moved = not np.array_equal(previous, centres)
        steps += 1
    inertia = np.zeros(1)
    comm.Reduce(np.array([distances.sum()]), inertia, root=0)
    return Outcome(centres, table[:, -1], float(inertia[0]), steps)


def same(outcome: Outcome, expected: Outcome) -> bool:
    """Bit by bit; the inertia is a sum of fractions, whose last digits depend on the order."""
    return (np.array_equal(outcome.centres, expected.centres)
            and np.array_equal(outcome.counts, expected.counts)
            and outcome.steps == expected.steps)


def run_rank(arguments: argparse.Namespace) -> int:
    """What each rank does. Exit code 1 when a result differs from the serial one."""
    from mpi4py import MPI

    import smcoll
    from smcoll.memory import heap_arrays

    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    images = load_images()
    mine = np.array_split(images, world.Get_size())[rank]
    makers = {"mpi": world.Dup, "smcoll": lambda: smcoll.Comm(world)}
    if arguments.heap:
        # What smcoll.install(heap=True) does for a whole program.
        heap_arrays.use()
        makers["smcoll"] = lambda: smcoll.Comm(world, smcoll.Config(heap=False))
        makers["heap"] = lambda: smcoll.Comm(world, smcoll.Config(heap=True, strict=True))
    layers = list(makers) if arguments.layer == "both" else [arguments.layer]
    watches = {layer: Stopwatch(makers[layer]()) for layer in layers}
    for watch in watches.values():
        # Unmeasured: connections and segments are made when they are first needed.
        parallel(watch.comm, mine, initial_centres(images, arguments.clusters, 0))
    wrong: set[str] = set()
    steps = 0
    for seed in range(arguments.seeds):
        centres = initial_centres(images, arguments.clusters, seed)
        expected = serial(images, centres)
        steps += expected.steps
        for layer, watch in watches.items():
            outcome = parallel(watch, mine, centres.copy() if rank == 0
                               else np.empty_like(centres))
            # Rank 0 alone has the inertia.
            good = same(outcome, expected) and (
                rank != 0 or np.isclose(outcome.inertia, expected.inertia, rtol=1e-12))
            if not all(world.allgather(bool(good))):
                wrong.add(layer)
    total = {}
    for layer, watch in watches.items():
        seconds, waiting = (max(world.allgather(value)) for value in (watch.seconds, watch.waiting))
        total[layer] = seconds
        if rank == 0:
            print(f"{layer:7} {world.Get_size()} ranks, {arguments.seeds} runs, {steps} steps: "
                  f"{watch.calls} collectives in {seconds * 1e3:.2f} ms "
                  f"({seconds / watch.calls * 1e6:.1f} us each; besides, {waiting * 1e3:.1f} ms "
                  f"waiting for slower ranks); inertia {expected.inertia:.1f}, centres "
                  f"{'DIFFER FROM' if layer in wrong else 'equal'} the serial ones", flush=True)
        watch.comm.Free()
    if rank == 0 and arguments.layer == "both":
        print(f"time in collectives: MPI's own {total['mpi'] * 1e3:.2f} ms, smcoll's "
              f"{total['smcoll'] * 1e3:.2f} ms: {total['mpi'] / total['smcoll']:.1f} times less",
              flush=True)
    return 1 if wrong else 0


def main() -> int:
    """Be a rank, or start them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=None, help="ranks to start (4)")
    parser.add_argument("--layer", choices=["smcoll", "mpi", "both"], default="both",
                        help="whose collectives (both)")
    parser.add_argument("--heap", action="store_true",
                        help="a third time, with arrays in shared heaps used where they lie")
    parser.add_argument("--clusters", type=int, default=10,
                        help="centres; an Allreduce has 520 bytes for each (10)")
    parser.add_argument("--seeds", type=int, default=10,
                        help="k-means runs, each from other initial centres (10)")
    arguments = parser.parse_args()
    if not 1 <= arguments.clusters <= IMAGES:
        parser.error(f"--clusters {arguments.clusters}: there are {IMAGES} images")

    from smcoll.launch import launch

    if launch.under_mpiexec():
        if arguments.n is not None:
            parser.error("this is a rank of a job already: leave -n out")
        return run_rank(arguments)
    if importlib.util.find_spec("sklearn") is None:
        parser.error("the images come with scikit-learn: pip install scikit-learn")
    program = [sys.executable, __file__, "--layer", arguments.layer,
               "--clusters", str(arguments.clusters), "--seeds", str(arguments.seeds)]
    program += ["--heap"] * arguments.heap
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return launch.run(arguments.n or 4, program, environment=threads).returncode


if __name__ == "__main__":
    sys.exit(main())
