"""The ranks' part of ``smcoll sweep-nodes``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from smcoll.bench.points import points_of

# Allreduce across nodes in the three forms of Li, Hoefler & Snir 2013 (2.5, Fig. 21).
FORMS = ("tree", "dissemination", "tiled")
COLLECTIVES = ("barrier", "allreduce")


@dataclass(frozen=True)
class NodesTask:
    """What to measure; travels to the ranks as JSON."""

    collectives: list[str]
    sizes: list[int]
    settings: dict  # of measure.Settings; its budget is for each variant
    forms: list[str]
    network_ranks: list[int]  # of tiled; 0: what smcoll chooses
    pretended_nodes: int = 0  # that this job's ranks are dealt out to; 0: none
    thread_level: str = "multiple"
    config: dict = field(default_factory=dict)  # of smcoll.Config

    def variants(self, collective: str) -> dict[str, dict]:
        """Name -> settings. A barrier has nothing to cut into slices."""
        found = {}
        for form in self.forms:
            if form != "tiled":
                found[form] = {"across_nodes": form}
            elif collective != "barrier":
                for number in self.network_ranks:
                    name = f"tiled, {number} at once" if number else "tiled"
                    found[name] = {"across_nodes": form, "internals": {"network_ranks": number}}
        return found

    def points(self) -> Iterator[tuple[str, int]]:
        """Each (collective, bytes)."""
        return points_of(self.collectives, self.sizes)

    def rows(self) -> int:
        """How many there will be."""
        return sum(len(self.variants(collective)) for collective, _ in self.points())

    def measure(self, comm, report: Callable[[dict], None]) -> dict:
        """Measure on the ranks of ``comm``: all variants of a point by turns, beside MPI's own."""
        from mpi4py import MPI

        import smcoll
        from smcoll.bench import measure
        from smcoll.bench.compare_job import facts_about_job

        if self.pretended_nodes:
            os.environ["SMCOLL_NODE"] = str(
                comm.Get_rank() * self.pretended_nodes // comm.Get_size())
        plain = MPI.Intracomm.Dup(MPI.Intracomm(comm))
        mpi = measure.methods_of("mpi", plain)
        bench = measure.Bench(comm, [mpi], measure.Settings(**self.settings))
        facts = facts_about_job(MPI, bench)
        nodes = len(facts["nodes"])
        if nodes < 2:
            raise smcoll.Error("all ranks are on one node: --hosts or --pretend-nodes gives more")
        made = {name: smcoll.Comm(comm, smcoll.Config(strict=True, **self.config, **settings))
                for collective in self.collectives
                for name, settings in self.variants(collective).items()}
        # The first second of a job is slow whatever runs in it: ranks settle on their cores.
        bench.measure("allreduce", 1024)
        for collective, nbytes in self.points():
            names = list(self.variants(collective))
            bench.contenders = [mpi, *(measure.methods_of(name, made[name]) for name in names)]
            bench.settings = measure.Settings(**self.settings | {
                "budget": self.settings["budget"] * len(bench.contenders)})
            result = bench.measure(collective, nbytes)
            if bench.control.Get_rank() == 0:
                for name in names:
                    report(row_of(result, name, nodes))
        bench.close()
        plain.Free()
        for one in made.values():
            one.Free()
        return facts


def row_of(result, name: str, nodes: int) -> dict:
    """One row, as in the JSON."""
    row = {"collective": result.collective, "bytes": result.nbytes, "ranks": result.ranks,
           "nodes": nodes, "algorithm": name}
    for key, contender in (("smcoll", name), ("mpi", "mpi")):
        row[f"{key}_us"] = result.median(contender)
        row[f"{key}_us_min"] = min(result.times[contender])
        row[f"{key}_us_max"] = max(result.times[contender])
    wrong = False in (result.valid["mpi"], result.valid[name])
    row["ratio"], row["ratio_low"], row["ratio_high"] = (
        (None, None, None) if wrong else result.ratio("mpi", name))
    return row | {"valid": result.valid[name], "mpi_valid": result.valid["mpi"]}
