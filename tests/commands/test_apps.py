"""The applications: their results equal numpy's, on both layers, and wrong ones are found."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import barnes_hut
import hierarchies
import numpy as np
import pytest

import smcoll
from smcoll.launch import launch

pytestmark = pytest.mark.lengthy

ROOT = Path(__file__).resolve().parents[2]
PAPERS = ROOT / "examples" / "papers"
OPENMP = ROOT / "bench" / "openmp_reduce.py"
VERSIONS = ROOT / "bench" / "versions.py"
SMALL = {
    "matvec": ["--size", 12, "--iterations", 5],
    "barnes_hut": ["--bodies", 3000, "--capacity", 20],
    "vectors": ["--doubles", "1,70", "--iterations", 2],
    "summa": ["--size", 24, "--block", 2],
}
# 1 and 3 ranks have less than two levels of hardware.
HAND_MADE = {"vectors": ["--groupings", "H_conf1"], "summa": ["--groupings", "simple"]}


def start(*arguments, code=0):
    """Run Python as a user would; the finished process."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    result = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, errors="replace",
        timeout=120, stdin=subprocess.DEVNULL, check=False,
        env={**os.environ, "PYTHONPATH": path})
    assert result.returncode == code, result.stdout + result.stderr
    return result


def start_ranks(ranks, *arguments):
    """The same in a job that somebody else starts."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return launch.run(
        ranks, [sys.executable, *map(str, arguments)], 60, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, environment={"PYTHONPATH": path})


def application(name, *arguments, code=0):
    return start(str(PAPERS / f"{name}.py"), *arguments, code=code)


def record_of(name, folder, *arguments):
    """The JSON of a small run."""
    file = folder / f"{name}.json"
    application(name, *SMALL[name], "-r", 2, "--json", file, *arguments)
    return json.loads(file.read_text())


@pytest.mark.parametrize("name, ranks", [
    (name, ranks) for name in SMALL for ranks in (1, 3) if (name, ranks) != ("vectors", 1)])
def test_both_layers_give_what_numpy_gives(name, ranks, tmp_path):
    rows = record_of(name, tmp_path, "-n", ranks, *HAND_MADE.get(name, []))["rows"]
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


# summa broadcasts only; two ranks stage Bcasts.
@pytest.mark.parametrize("name, ranks", [
    ("matvec", 2), ("barnes_hut", 2), ("summa", 3), ("vectors", 2)])
def test_arrays_in_heaps_are_used_where_they_lie(name, ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("SMCOLL_TEST_INTERNALS", "heap_threshold=64,direct_size=64")
    figure = tmp_path / "figure.png"
    rows = record_of(name, tmp_path, "-n", ranks, "--heap", "--plot", figure,
                     *HAND_MADE.get(name, []))["rows"]
    assert {row["layer"] for row in rows} == {"mpi", "smcoll", "smcoll, heap"}
    for row in rows:
        assert row["valid"] and figure.stat().st_size > 1000
        if row["layer"] != "mpi":
            assert row["ratio"] > 0 and row["paths"]["shared memory"] > 0
        assert (row["direct_bytes"] > 0) == (row["layer"] == "smcoll, heap")


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


# ---------------------------------------------------------------------- hierarchies


def write(folder, text):
    file = folder / "groupings.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("text, complaint", [
    ("[vectors.4]\nmine = [2, 3]", "a list of sizes with product 4 is needed"),
    ("[vectors.4]\nmine = [-2, -2]", "a list of sizes with product 4 is needed"),
    ("[vectors.4]\nmine = 4", "a list of sizes with product 4 is needed"),
    ("vectors = 4", "[vectors.4] is no table"),
    ("[vectors.4", "groupings.toml: "),
])
def test_a_malformed_file_of_groupings_is_refused(text, complaint, tmp_path):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        hierarchies.read(write(tmp_path, text), "vectors", 4)


def test_the_papers_groupings_are_in_the_file():
    groupings = hierarchies.read(hierarchies.DEFAULT_FILE, "vectors", 576)
    assert groupings == {"H_conf1": [3, 4, 2, 3, 8], "H_conf2": [6, 2, 2, 3, 8],
                         "H_conf3": [3, 2, 2, 8, 6], "H_conf4": [3, 2, 4, 6, 4]}


def test_every_grouping_in_the_file_fits_its_number_of_ranks():
    for name in ("vectors", "summa"):
        tables = [ranks for ranks in range(1, 600)
                  if hierarchies.read(hierarchies.DEFAULT_FILE, name, ranks)]
        assert len(tables) >= 4


@pytest.mark.parametrize("ranks, description", [
    (2, "core:2"), (4, "package:2 core:2"), (7, "core:7"), (12, "package:2 numa:2 core:3"),
    (64, "package:2 numa:2 l3:2 l2:2 core:4")])
def test_made_up_machines_have_a_core_for_each_rank(ranks, description):
    assert hierarchies.fitting(ranks) == description


@pytest.mark.mpi(6)
def test_hand_made_hierarchies_group_neighbours(comm_world):
    levels = hierarchies.by_sizes(comm_world, [3, 2], comm_world.rank)
    found = hierarchies.members(comm_world, levels)
    assert found == [[(0, 2, 4) if rank % 2 == 0 else (), (rank // 2 * 2, rank // 2 * 2 + 1)]
                     for rank in range(6)]


@pytest.mark.mpi(6)
def test_in_a_rotated_line_the_broadcaster_leads_its_group(comm_world):
    root = 3
    rotated = comm_world.Split(0, (comm_world.rank - root) % 6)
    levels = hierarchies.by_sizes(rotated, [3, 2], comm_world.rank)
    # Groups stay (0, 1), (2, 3), (4, 5); their ranks in the order 3, 4, 5, 0, 1, 2.
    found = hierarchies.members(comm_world, levels)
    assert found[3] == [(3, 4, 0), (3, 2)] and found[2] == [(), (3, 2)]
    assert found[0] == [(3, 4, 0), (0, 1)] and found[5] == [(), (4, 5)]


def test_hierarchical_variants_call_collectives_on_each_level(tmp_path):
    config = write(tmp_path, "[vectors.4]\ndeep = [2, 2]\nflat = [4]\n"
                   "[summa.4]\ngroups = [2, 2]\n")
    record = record_of("vectors", tmp_path, "-n", 4, "--config", config, "--groupings", "deep,flat")
    assert {row["grouping"]: row["valid"] for row in record["rows"]} == {"deep": True, "flat": True}
    assert {row["doubles"] for row in record["rows"]} == {1, 70}
    record = record_of("summa", tmp_path, "-n", 4, "--rows", 1, "--config", config, "--groupings",
                       "simple,groups")
    assert record["meta"]["facts"]["grid"] == "1 x 4 ranks"
    assert [(row["variant"], row["layer"], row["valid"]) for row in record["rows"]] == [
        ("simple", "mpi", True), ("simple", "smcoll", True), ("groups", "mpi", True),
        ("groups", "smcoll", True)]
    simple, groups = (row["paths"]["shared memory"] for row in record["rows"]
                      if row["layer"] == "smcoll")
    # Of 12 panels, in 5 runs: 4 ranks in one step; in two levels 2 roots, then all 4. Broadcasts of
    # one rank (the columns) count as another path.
    assert (simple, groups) == (12 * 5 * 4, 12 * 5 * (2 + 4))


@pytest.mark.parametrize("name", ["vectors", "summa"])
def test_the_hardwares_hierarchy_gives_the_same(name, tmp_path):
    pytest.importorskip("smcoll.topology")
    record = record_of(name, tmp_path, "-n", 4, "--groupings", "hardware", "--topology",
                       "package:2 core:2")
    assert record["meta"]["facts"]["hardware"] == (
        "made-up machine 'package:2 core:2': level 1 of 2 ranks, level 2 of 2 ranks")
    assert all(row["valid"] for row in record["rows"]) and len(record["rows"]) in (2, 4)


def test_without_a_description_there_are_two_levels_at_least(tmp_path):
    pytest.importorskip("smcoll.topology")
    record = record_of("vectors", tmp_path, "-n", 4)
    assert "level 2 of" in record["meta"]["facts"]["hardware"]
    assert {row["grouping"] for row in record["rows"]} == {"H_conf1", "H_conf2", "hardware"}


@pytest.mark.parametrize("description, complaint", [
    ("core:2", "has 1 level of 2 ranks"), ("package:many", "package:many")])
def test_a_machine_that_gives_no_hierarchy_is_refused(description, complaint):
    pytest.importorskip("smcoll.topology")
    result = application("vectors", "-n", 2, "--topology", description, "--groupings", "hardware",
                         code=2)
    assert complaint in result.stderr and "Traceback" not in result.stderr


# Collectives that lose what rank 1 has, or what it gets, must be found.
FORGETFUL = """\
import sys
import numpy as np
from mpi4py import MPI
import {name} as application
import program
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
FORGOTTEN = {"matvec": "Reduce", "barnes_hut": "Allreduce", "vectors": "Gather",
             "summa": "Bcast"}


@pytest.mark.parametrize("name", FORGOTTEN)
def test_a_wrong_result_is_found(name, tmp_path):
    program = tmp_path / "forgetful.py"
    arguments = [*map(str, SMALL[name]), "-r", "1", *HAND_MADE.get(name, [])]
    program.write_text(FORGETFUL.format(name=name, collective=FORGOTTEN[name],
                                        arguments=arguments))
    job = start_ranks(2, program)
    assert job.returncode == 1, job.stderr
    wrong = 4 if name == "vectors" else 2  # of two lengths
    assert job.stdout.count("the result differs from numpy's") == wrong


@pytest.mark.parametrize("arguments, complaint", [
    (["matvec", "-n", 5, "--size", 12], "--size 12 is no multiple of 5 ranks"),
    (["matvec", "-n", 0], "0 is not at least 1"),
    (["matvec", "--json", "nowhere/file.json"], "there is no folder nowhere"),
    (["barnes_hut", "-n", 3, "--bodies", 2], "--bodies 2 are fewer than 3 ranks"),
    (["barnes_hut", "--seed", "-1"], "--seed -1 is negative"),
    (["barnes_hut", "--plot", "figure.nonsense"], "unknown kind of figure"),
    (["vectors", "-n", 4, "--groupings", "H_conf1,H_conf9"],
     "H_conf9 (there are H_conf1, H_conf2, hardware)"),
    (["vectors", "--config", "nowhere.toml"], "--config nowhere.toml: "),
    (["vectors", "--doubles", "8,0"], "0 is not at least 1"),
    (["summa", "-n", 4, "--size", 100, "--block", 64], "--size 100 is no multiple of 2 ranks"),
    (["summa", "-n", 4, "--rows", 3], "4 ranks make no grid"),
])
def test_bad_options_are_refused_before_any_rank_starts(arguments, complaint):
    result = application(*arguments, code=2)
    assert complaint in result.stderr and not result.stdout


def test_it_runs_in_a_job_that_somebody_else_starts():
    def job(*arguments):
        return start_ranks(2, PAPERS / "matvec.py", "--size", 8, "--iterations", 2,
                           *arguments)

    assert job().returncode == 0
    refused = job("-n", 3)
    assert refused.returncode != 0 and "a job of 2 already" in refused.stderr


def test_figures_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    for name in SMALL:
        file = tmp_path / f"{name}.svg"
        record_of(name, tmp_path, "-n", 2, "--plot", file, *HAND_MADE.get(name, []))
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


def test_by_level_measures_every_algorithm_of_the_tuned_component(tmp_path):
    if launch.mpi_info().family != launch.OPEN_MPI:
        assert "tuned component" in application("by_level", code=2).stderr
        return
    result = application("by_level", "-n", 4, "--topology", "package:2 core:2", "--sizes",
                         "8", "--budget", 0.01, "-r", 2, "--json", tmp_path / "out.json")
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    common = ["linear", "chain", "pipeline"]
    assert [row["algorithm"] for row in rows if row["collective"] == "bcast"] == [
        *common, "split_binary", "binary", "binomial"]
    assert [row["algorithm"] for row in rows if row["collective"] == "reduce"] == [
        *common, "binary", "binomial", "in_order_binary"]
    assert all(row["valid"] for row in rows)
    assert all(row["predicted_native_us"] > 0 and row["predicted_by_level_us"] > 0
               for row in rows)
    assert "level 1 of 2 ranks, level 2 of 2 ranks" in " ".join(result.stdout.split())


def test_two_versions_are_compared_where_their_cores_were_equally_far():
    def measured(ratio, distance):
        return {(2, "bcast", 8): {"ratio": ratio, "distance": distance}}

    compared = runpy.run_path(str(VERSIONS))["compared"]
    near, far = compared([(measured(3.0, "far"), measured(2.0, "far")),
                          (measured(2.0, "near"), measured(4.0, "near")),
                          (measured(9.0, "near"), measured(1.0, "far")),
                          (measured(9.0, "mixed"), measured(1.0, "mixed")),
                          (measured(None, "near"), measured(2.0, "near")),
                          (measured(3.0, "near"), measured(2.0, "near"))])[::-1]
    assert far["ratios"] == [1.5] and far["distance"] == "far"
    assert near["ratios"] == [0.5, 1.5] and near["ratio"] == 1.0 and near["rounds"] == 2


def test_a_version_is_compared_with_itself(tmp_path):
    if smcoll.__file__ != str(ROOT / "smcoll" / "__init__.py"):
        pytest.skip("this smcoll was not built in place")
    rows = tmp_path / "rows.json"
    start(VERSIONS, ROOT, "--rounds", 1, "-n", 2, "--collectives", "bcast", "--sizes", 8,
          "--budget", 0.02, "--json", rows)
    record = json.loads(rows.read_text())
    assert len(set(record["meta"]["commits"])) == 1
    for row in record["rows"]:
        assert (row["collective"], row["bytes"], row["rounds"]) == ("bcast", 8, 1)
    problem = start(VERSIONS, tmp_path, code=2).stderr
    assert "instead of" in problem or "no smcoll that is built in place" in problem
