"""What ``SMCOLL_VERBOSE=1`` prints: a line for each communicator, and a table at exit."""

from __future__ import annotations

import sys
from collections.abc import Callable

from mpi4py import MPI

from smcoll.mpi.names import name_of

_world = MPI.COMM_WORLD    # kept: install() rebinds the name


class Report:
    """The calls of this process's communicators, summed by collective, path and reason.

    The table is printed by rank 0 of COMM_WORLD, of its own calls.
    """

    def __init__(self) -> None:
        self.rank: int | None = None
        self.sums: dict[tuple[str, ...], list] = {}
        self.learned: list[str] = []
        # Each adds what it knows before the table is printed.
        self.sources: list[Callable[[Report], None]] = []

    def announce(self, comm: MPI.Comm, reason: str) -> None:
        """One line for a communicator that is about to be used, by its rank 0."""
        self.rank = _world.Get_rank()    # while MPI is surely alive
        if comm.Get_rank() == 0:
            name = name_of(comm)
            _print(f"smcoll: communicator {name + ' ' if name else ''}of {comm.Get_size()} "
                   f"rank{'s' if comm.Get_size() > 1 else ''}{_in_world(comm)}: {reason}")

    def add(self, rows: list[dict], learned: list[str]) -> None:
        """Rows of ``Comm.stats()``, and what was learned, of a communicator that ends."""
        self.learned += learned
        for row in rows:
            key = (row["collective"], row["path"], row.get("reason", row["algorithm"]))
            sums = self.sums.setdefault(key, [0, 0, 0.0, 0])
            for i, field in enumerate(("calls", "bytes", "seconds", "from_c")):
                sums[i] += row[field]

    def add_left_to_mpi(self, calls_from_c: dict[str, int], reason: str) -> None:
        """Calls of C libraries that MPI carried out, by collective."""
        for name, calls in calls_from_c.items():
            self.sums[name.lower(), "MPI", reason] = [calls, 0, 0.0, calls]

    def print_table(self) -> None:
        """All that was added since the last table, on standard error."""
        for add_more in self.sources:
            add_more(self)
        sums, self.sums = self.sums, {}
        if self.rank != 0 or not sums:
            return
        lines = [("collective", "calls", "bytes", "seconds", "path", "algorithm, or why MPI")]
        for (collective, path, reason), (calls, nbytes, seconds, from_c) in sorted(sums.items()):
            if from_c > 0:
                reason += f" ({'all' if from_c == calls else from_c} from C)"
            # Calls that went to MPI at once are counted, not measured.
            measured = (str(nbytes), f"{seconds:.6f}") if seconds else ("-", "-")
            lines.append((collective, str(calls), *measured, path, reason))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        learned, self.learned = self.learned, []
        table = [
            "smcoll: " + "  ".join(
                cell.rjust(width) if i in (1, 2, 3) else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ).rstrip() for cells in lines]
        _print("\n".join(["smcoll: calls of rank 0 of MPI_COMM_WORLD:", *table,
                          *(f"smcoll: learned: {line}" for line in learned)]))


def _in_world(comm: MPI.Comm) -> str:
    """Which ranks of COMM_WORLD a communicator has, in words; "" where all, or some of others."""
    group, world = comm.Get_group(), _world.Get_group()
    ranks = MPI.Group.Translate_ranks(group, None, world)
    every = range(world.Get_size())
    group.Free()
    world.Free()
    if MPI.UNDEFINED in ranks or sorted(ranks) == list(every):
        return ""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return f" ({', '.join(_run_in_words(run) for run in runs)} of MPI_COMM_WORLD)"


def _run_in_words(run: list[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


def _print(text: str) -> None:
    # In one piece: other ranks print at the same time.
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
