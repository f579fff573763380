"""The applications: their results equal numpy's, on both layers, and wrong ones are found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import harness
import numpy as np
import pytest

from smcoll import launch
from smcoll.apps import barnes_hut

ROOT = Path(__file__).resolve().parents[1]
OPENMP = ROOT / "bench" / "openmp_reduce.py"
SMALL = {
    "matvec": ["--size", 12, "--iterations", 5],
    "barnes_hut": ["--bodies", 3000, "--capacity", 20],
}


def again_without_launcher(run):
    """``run()``, again where mpiexec's own server did not start (see harness.launcher_failed)."""
    for _ in range(harness.LAUNCHES):
        result = run()
        if "PMIx server's listener thread" not in result.stdout + result.stderr:
            break
    return result


def start(*arguments, code=0):
    """Run Python as a user would; the finished process."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    result = again_without_launcher(lambda: subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, errors="replace",
        timeout=120, stdin=subprocess.DEVNULL, check=False,
        env={**os.environ, "PYTHONPATH": path}))
    assert result.returncode == code, result.stdout + result.stderr
    return result


def start_ranks(ranks, *arguments):
    """The same in a job that somebody else starts."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return again_without_launcher(lambda: launch.run(
        ranks, [sys.executable, *map(str, arguments)], 60, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, environment={"PYTHONPATH": path}))


def application(name, *arguments, code=0):
    return start("-m", f"smcoll.apps.{name}", *arguments, code=code)


def record_of(name, folder, *arguments):
    """The JSON of a small run."""
    file = folder / f"{name}.json"
    application(name, *SMALL[name], "-r", 2, "--json", file, *arguments)
    return json.loads(file.read_text())


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", SMALL)
def test_both_layers_give_what_numpy_gives(name, ranks, tmp_path):
    rows = record_of(name, tmp_path, "-n", ranks)["rows"]
    variants = {row["variant"] for row in rows}
    assert sorted((row["variant"], row["layer"]) for row in rows) == sorted(
        (variant, layer) for variant in variants for layer in ("mpi", "smcoll"))
    for row in rows:
        assert row["valid"] and row["ranks"] == ranks and row["repetitions"] == 2
        assert row["total_s"] > 0 and row["computing_s"] > 0
        assert sum(row["collectives_s"].values()) > 0
        if row["layer"] == "mpi":
            assert row["paths"] == {}
        else:
            assert row["ratio"] > 0
            assert ranks == 1 or row["paths"]["shared memory"] > 0


def test_matvec_counts_all_its_collectives(tmp_path):
    _, ours = record_of("matvec", tmp_path, "-n", 2)["rows"]
    # A scatter, a broadcast and 5 reductions; in 1 + 2 x 2 runs; on 2 ranks.
    assert len(ours["calls_s"]) == 7
    assert ours["paths"] == {"shared memory": 7 * 5 * 2}


def test_barnes_hut_reduces_vectors_of_varying_length(tmp_path):
    record = record_of("barnes_hut", tmp_path, "-n", 2)
    lengths = record["meta"]["facts"]["subspaces_per_level"]
    assert lengths[0] == 8 and len(set(lengths)) > 2
    assert all(len(row["calls_s"]) == len(lengths) for row in record["rows"])


def test_subspaces_are_those_of_the_definition():
    class Alone:
        def Allreduce(self, mine, total):
            total[:] = mine

    positions = barnes_hut.bodies(500, seed=3, rank=0)
    assert positions.min() >= 0 and positions.max() <= 1
    levels = barnes_hut.build(Alone(), positions, capacity=30)
    assert barnes_hut.same(levels, barnes_hut.reference(barnes_hut.keys(positions), 30))
    # By hand, body by body: space is divided about its centre; x is the lowest bit.
    low, width, full = [np.zeros(3)], 1.0, None
    for counts in levels:
        width /= 2
        corners = [corner + width * np.array([eighth & 1, eighth >> 1 & 1, eighth >> 2])
                   for corner in low for eighth in range(8)]
        by_hand = [int(np.all((positions >= corner[:, None])
                              & (positions < corner[:, None] + width), axis=0).sum())
                   for corner in corners]
        assert counts.tolist() == by_hand
        full = [count > 30 for count in by_hand]
        low = [corner for corner, divided in zip(corners, full, strict=True) if divided]
    assert not any(full)


def test_bodies_at_one_place_end_the_division():
    class Alone:
        def Allreduce(self, mine, total):
            total[:] = mine

    together = np.full((3, 50), 0.3)
    levels = barnes_hut.build(Alone(), together, capacity=10)
    assert len(levels) == barnes_hut.DEEPEST
    assert all(sorted(level) == [0] * 7 + [50] for level in levels)


# A collective that forgets rank 1 (its own part becomes zero) must be found.
FORGETFUL = """\
import sys
import numpy as np
from mpi4py import MPI
from smcoll.apps import {name} as application
from smcoll.apps import program
original = program._Watched.__getattr__
def forgetful(self, name):
    method = original(self, name)
    if name != {collective!r} or MPI.COMM_WORLD.rank != 1:
        return method
    return lambda part, *rest, **options: method(np.zeros_like(part), *rest, **options)
program._Watched.__getattr__ = forgetful
sys.argv[1:] = {arguments!r}
sys.exit(application.main())
"""
FORGOTTEN = {"matvec": "Reduce", "barnes_hut": "Allreduce"}


@pytest.mark.parametrize("name", FORGOTTEN)
def test_a_wrong_sum_is_found(name, tmp_path):
    program = tmp_path / "forgetful.py"
    arguments = [str(argument) for argument in [*SMALL[name], "-r", 1]]
    program.write_text(FORGETFUL.format(name=name, collective=FORGOTTEN[name],
                                        arguments=arguments))
    job = start_ranks(2, program)
    assert job.returncode == 1, job.stderr
    assert job.stdout.count("the result differs from numpy's") == 2


@pytest.mark.parametrize("arguments, complaint", [
    (["matvec", "-n", 5, "--size", 12], "--size 12 is no multiple of 5 ranks"),
    (["matvec", "-n", 0], "0 is not at least 1"),
    (["matvec", "--json", "nowhere/file.json"], "there is no folder nowhere"),
    (["barnes_hut", "-n", 3, "--bodies", 2], "--bodies 2 are fewer than 3 ranks"),
    (["barnes_hut", "--seed", "-1"], "--seed -1 is negative"),
    (["barnes_hut", "--plot", "figure.nonsense"], "unknown kind of figure"),
])
def test_bad_options_are_refused_before_any_rank_starts(arguments, complaint):
    result = application(*arguments, code=2)
    assert complaint in result.stderr and not result.stdout


def test_it_runs_in_a_job_that_somebody_else_starts():
    def job(*arguments):
        return start_ranks(2, "-m", "smcoll.apps.matvec", "--size", 8, "--iterations", 2,
                           *arguments)

    assert job().returncode == 0
    refused = job("-n", 3)
    assert refused.returncode != 0 and "a job of 2 already" in refused.stderr


def test_figures_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    for name in SMALL:
        file = tmp_path / f"{name}.svg"
        record_of(name, tmp_path, "-n", 2, "--plot", file)
        text = file.read_text()
        assert text.count("<svg") == 1 and len(text) > 5000


def openmp(*arguments, code=0):
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler")
    return start(OPENMP, "-n", 2, "-m", "8:64K", "--factor", 1024, "--budget", 0.01, "--rounds", 1,
                 *arguments, code=code)


def test_openmp_and_smcoll_both_reduce_every_size(tmp_path):
    openmp("--json", tmp_path / "openmp.json")
    rows = json.loads((tmp_path / "openmp.json").read_text())["rows"]
    assert [row["bytes"] for row in rows] == [8, 8192, 65536]
    for row in rows:
        assert row["openmp_valid"] and row["valid"] and row["mpi_valid"]
        assert row["path"] == "shared memory"
        assert row["openmp_us"] > 0 and row["smcoll_us"] > 0 and row["ratio"] > 0


def test_a_compiler_that_fails_is_named(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    result = start(OPENMP, "-n", 2, "-m", "8", code=1)
    assert "there is no C compiler 'no-such-compiler'" in result.stderr
