"""A communicator over several nodes learns inside each of them; each node's first rank decides."""

from __future__ import annotations

import numpy as np
import pretend
import pytest
from restless import Program, Restless, be_restless

import smcoll
from smcoll.engine import learning
from smcoll.tuning import exploration, learned

SIZES = (600, 4096, 10_000, 70_000)


@pytest.mark.mpi(5, 8)
@pytest.mark.parametrize("spread", ["blocks", "round robin", "three nodes"], indirect=True)
def test_results_stay_right_while_rows_change_in_the_nodes(spread, mpi_ranks, monkeypatch):
    be_restless(monkeypatch)
    for seed in range(20):
        config = smcoll.Config(learn="on", strict=True, **pretend.SETTINGS)
        with smcoll.Comm(spread, config) as comm:
            # A call takes long, and ranks are to be late for several.
            Program(comm, 100 * mpi_ranks + seed, late=1e-2).run(1000, SIZES)
            changes = comm.allgather((comm.engine.node.rank, Restless.changes))
        if seed >= 7 and sum(number for _, number in changes) > 60:
            break
    assert sum(number for _, number in changes) > 60
    assert not any(number for local, number in changes if local > 0)


@pytest.mark.mpi(4)
@pytest.mark.parametrize("spread", ["blocks", "round robin"], indirect=True)
@pytest.mark.parametrize("collective, in_nodes", [
    ("bcast", "bcast"), ("reduce", "reduce"), ("allreduce", "reduce_scatter"),
    ("allgather", "allgather"), ("reduce_scatter_block", "reduce_scatter")])
def test_each_collectives_stages_are_learned(spread, collective, in_nodes, monkeypatch,
                                             tmp_path_factory):
    """The times are the test's. What was found is told, and later communicators begin with it."""
    class Judged(exploration.Exploration):
        def record(self, nanoseconds):
            super().record([100.0 if self._on_trial else 1000.0] * len(nanoseconds))

    monkeypatch.setattr(learning, "Exploration", Judged)
    # A home of each rank's own: what other tests leave is no matter.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    size = spread.Get_size()
    data = np.ones(6000 * size)
    arguments = {"bcast": (data,), "allgather": (data[:6000], data.copy()),
                 "reduce_scatter_block": (data, data[:6000].copy())}.get(
                     collective, (data, data.copy()))
    internals = {**pretend.SETTINGS["internals"], "network_section": 65536}
    with smcoll.Comm(spread, smcoll.Config(learn="on", internals=internals)) as comm:
        method = getattr(comm, collective.capitalize())
        node = comm.engine.node
        leads = node.rank == 0 and node.size > 1
        for _ in range(50):
            for _ in range(50):
                method(*arguments)
                comm.Barrier()
            lines = comm.engine.lines_of_lessons()
            found = any(line.startswith(f"in the nodes, {in_nodes} of up to ") for line in lines)
            if all(comm.allgather(found or not leads)):
                break
        else:
            pytest.fail(f"2500 calls, and nothing was found: {lines}")
        assert leads or not lines
        if collective in ("bcast", "reduce", "allreduce") and node.size > 1:
            reason = comm.explain(collective, data.nbytes).reason
            assert f"{in_nodes} in this node: learned" in reason, reason
    if leads:
        kind, = learned.read()
        assert kind.startswith(f"{node.size} ranks") and kind.endswith("over several nodes"), kind
