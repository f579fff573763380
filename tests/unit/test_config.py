"""Config: defaults, environment variables, units, bad values, and that fields reach the engine."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import smcoll
from smcoll import config
from smcoll.algorithms import ALGORITHMS
from smcoll.base.internals import VARIABLE, Internals
from smcoll.config import describe
from smcoll.topology import sysfs
from smcoll.tuning import select

FIELDS = {entry.name for entry in config.settings()}
MOST = 25

# For each field: (text in the environment, value), other than the default.
VALID = {
    "segment_size": ("32K", 32768),
    "segments": ("3", 3),
    "fan_in": ("5", 5),
    "fan_out": ("16", 16),
    "algorithms": ("scan=chain, allreduce=recursive_doubling",
                   "allreduce=recursive_doubling,scan=chain"),
    "table": ("OFF", "off"),
    "across_nodes": ("Off", "off"),
    "pipeline": ("off", False),
    "watch_nodes": ("off", False),
    "libraries": ("on", True),
    "stores": ("non_temporal", "non_temporal"),
    "heap": ("1", True),
    "heap_size": ("1G", 1 << 30),
    "kernel_copy": ("off", False),
    "eager": ("yes", True),
    "strict": ("1", True),
    "timeout": ("2.5", 2.5),
    "warn_after": ("0", 0.0),
    "report_signal": ("quit", "SIGQUIT"),
    "budget": ("1M", 1 << 20),
    "learn": ("use", "use"),
    "memory": ("memfd", "memfd"),
    "verbose": ("true", True),
    "disable": ("on", True),
}
INVALID = {
    "segment_size": ["-1", "12Q", "", "1G", "K"],
    "segments": ["0", "-3", "1.5", "many"],
    "fan_in": ["-1", "256", "wide"],
    "fan_out": ["-1", "256"],
    "algorithms": ["tiled", "allreduce=no_such", "allreduce=", "allreduce=tiled=2", "reduce=auto",
                   "gatherv=direct", "all=tiled"],
    "across_nodes": ["maybe", "recursive_doubling"],
    "pipeline": ["perhaps", "2"],
    "watch_nodes": ["maybe"],
    "libraries": ["NEURON"],
    "table": [""],
    "stores": ["fast", ""],
    "heap": ["maybe"],
    "heap_size": ["-1", "lots"],
    "kernel_copy": ["maybe"],
    "eager": ["maybe"],
    "strict": ["maybe"],
    "timeout": ["-1", "soon", "nan"],
    "warn_after": ["-1", "soon"],
    "report_signal": ["SIGNONE", "KILL", "SIGUSR1", "999"],
    "budget": ["-1", "lots"],
    "learn": ["sometimes", ""],
    "memory": ["ram", ""],
    "verbose": ["maybe"],
    "disable": ["maybe"],
}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith("SMCOLL_"):
            monkeypatch.delenv(name)


def test_every_field_is_tested():
    """One more makes all others harder to find: what nobody sets by hand is derived."""
    assert len(FIELDS) <= MOST
    assert set(VALID) == FIELDS
    assert set(INVALID) == FIELDS


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_value_from_argument_and_environment(monkeypatch, name):
    text, value = VALID[name]
    default = getattr(smcoll.Config(), name)
    assert default != value
    assert getattr(smcoll.Config(**{name: value}), name) == value
    assert getattr(smcoll.Config(**{name: text}), name) == value
    monkeypatch.setenv(f"SMCOLL_{name.upper()}", text)
    config = smcoll.Config()
    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(default)
    # An explicit value wins over the environment, also when it is the default.
    assert getattr(smcoll.Config(**{name: default}), name) == default


@pytest.mark.parametrize("name, text", [(n, text) for n in INVALID for text in INVALID[n]])
def test_bad_value_names_the_field(monkeypatch, name, text):
    with pytest.raises(ValueError, match=name):
        smcoll.Config(**{name: text})
    monkeypatch.setenv(f"SMCOLL_{name.upper()}", text)
    with pytest.raises(ValueError, match=f"SMCOLL_{name.upper()}"):
        smcoll.Config()


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_wrong_python_type(name):
    with pytest.raises(ValueError, match=name):
        smcoll.Config(**{name: object()})


def test_internals_are_no_settings(monkeypatch):
    """Tests reach rare paths by them; nothing that users read has them."""
    names = {entry.name for entry in dataclasses.fields(Internals)}
    assert not names & FIELDS
    assert "internals" not in str(describe())
    monkeypatch.setenv(VARIABLE, "inline_slots=3,bundle_size=64")
    found = smcoll.Config(internals={"inline_slots": 2}).internals
    assert (found.inline_slots, found.bundle_size, found.banks) == (2, 64, 2)
    # As settings travel to other ranks, and as copies are made.
    config = smcoll.Config(internals={"banks": 3}, algorithms={"scan": "chain"})
    monkeypatch.setenv(VARIABLE, "banks=4,inline_slots=5")
    assert smcoll.Config(**dataclasses.asdict(config)) == config
    assert dataclasses.replace(config, heap=True).internals == config.internals
    assert config.named == {"scan": "chain"}


@pytest.mark.parametrize("text", ["banks=9", "banks=0", "banks=many", "banks", "no_such=1",
                                  "watch_nodes=2", "network_section=1"])
def test_bad_internals(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match=VARIABLE):
        smcoll.Config()


def test_across_nodes_takes_truth_values():
    assert smcoll.Config(across_nodes=True).across_nodes == "auto"
    assert smcoll.Config(across_nodes=False).across_nodes == "off"
    assert smcoll.Config(across_nodes="tree").across_nodes == "tree"


def test_units():
    for text, value in [("8192", 8192), ("64k", 65536), ("64 KiB", 65536), ("1M", 1 << 20),
                        ("1mb", 1 << 20)]:  # fmt: skip
        assert smcoll.Config(segment_size=text).segment_size == value
    # Data regions are whole pages.
    assert smcoll.Config(segment_size=5000).segment_size == 8192


def test_frozen_and_complete():
    config = smcoll.Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.segments = 3
    with pytest.raises(TypeError):
        smcoll.Config(no_such_field=1)
    assert config == smcoll.Config()
    assert hash(config) == hash(smcoll.Config())


def test_the_paper_s_defaults():
    config = smcoll.Config()
    assert (config.internals.banks, config.segments) == (2, 8)
    assert config.pipeline
    assert not config.strict
    assert not config.eager


def test_describe():
    rows = describe()
    assert {row["name"] for row in rows} == FIELDS
    for row in rows:
        assert row["environment"] == f"SMCOLL_{row['name'].upper()}"
        assert row["documentation"]
        assert set(row) == {"name", "environment", "default", "unit", "documentation"}


# ---------------------------------------------------------------------- what settings do


@pytest.mark.one_node
@pytest.mark.mpi(3)
@pytest.mark.parametrize("collective", ["barrier", "bcast", "reduce", "allreduce", "scan",
                                        "exscan", "allgather"])
def test_algorithm_by_name(comm_world, collective):
    for name in smcoll.algorithms.ALGORITHMS[collective]:
        config = smcoll.Config(algorithms={collective: name})
        with smcoll.Comm(comm_world, config) as comm:
            calls = {
                "barrier": comm.Barrier,
                "bcast": lambda comm=comm: comm.Bcast(np.ones(900)),
                "reduce": lambda comm=comm: comm.Reduce(np.ones(900), np.ones(900)),
                "allreduce": lambda comm=comm: comm.Allreduce(np.ones(900), np.ones(900)),
                "scan": lambda comm=comm: comm.Scan(np.ones(900), np.ones(900)),
                "exscan": lambda comm=comm: comm.Exscan(np.ones(900), np.ones(900)),
                "allgather": lambda comm=comm: comm.Allgather(np.ones(900), np.ones(2700)),
            }
            calls[collective]()
            assert comm.explain(collective, nbytes=7200).algorithm == name
            rows = [(row["collective"], row["algorithm"], row["path"], row["calls"])
                    for row in comm.stats() if row["calls"]]
            assert rows == [(collective, name, "shared memory", 1)]


@pytest.mark.one_node
@pytest.mark.mpi(3)
def test_radices_reach_the_algorithm(comm_world):
    config = smcoll.Config(fan_in=1, fan_out=2, algorithms="allreduce=fan_in_fan_out")
    with smcoll.Comm(comm_world, config) as comm:
        parameters = comm.explain("allreduce", nbytes=8).parameters
        assert (parameters["fan_in"], parameters["fan_out"]) == (1, 2)


@pytest.mark.parametrize("core_cache", [512 << 10, 1 << 20, 5 << 18, 2 << 20])
def test_what_two_ranks_both_post_stays_in_a_cores_own_cache(core_cache):
    config = smcoll.Config()
    rows = select.decide(config, 2, False, core_cache=core_cache)["allreduce"]
    assert [row.segments for row in rows] == [8, 4, 2]
    for row in rows:
        ring = config.internals.banks * row.segments * min(row.up_to, row.section_bytes)
        assert core_cache // 4 < 2 * ring <= core_cache
        assert row.up_to == select.UNLIMITED or row.up_to & (row.up_to - 1) == 0
    for collective in ("allgather", "reduce_scatter"):
        alike = select.decide(config, 2, False, core_cache=core_cache)[collective]
        assert [(row.up_to, row.segments, row.section_bytes) for row in alike] == [
            (row.up_to, row.segments, rows[-1].section_bytes) for row in rows]
    assert all(row.segments == 8 for row in select.decide(config, 2, False, core_cache=core_cache)[
        "bcast"])


def test_a_small_cache_does_not_make_sections_of_two_ranks_short():
    assert select.two_ranks_rings(256 << 10) == select.two_ranks_rings(512 << 10)
    assert min(section for _, section in select.two_ranks_rings(1).values()) == 32 << 10


@pytest.mark.parametrize("collective", ["reduce", "allreduce", "allgather", "reduce_scatter"])
def test_two_ranks_stage_arrays_in_heaps_in_the_sections_of_private_ones(collective):
    private, in_heaps = (
        select.decide(smcoll.Config(table="off"), 2, False, heaps=heaps, core_cache=1 << 20)[
            collective] for heaps in (False, True))
    for nbytes in (256 << 10, 1 << 20, 64 << 20):
        usual, row = (select.decision_in(rows, nbytes) for rows in (private, in_heaps))
        assert row.algorithm == select.SHARED_HEAP
        assert (row.section_bytes, row.segments) == (usual.section_bytes, usual.segments)


@pytest.mark.parametrize("collective", ["scan", "exscan"])
def test_scans_of_ranks_that_share_cpus_and_long_ones_are_chains(collective):
    config = smcoll.Config()

    def algorithm(ranks, crowded, nbytes):
        rows = select.decide(config, ranks, crowded)[collective]
        return select.decision_in(rows, nbytes).algorithm

    for nbytes in (8, 1 << 20):
        assert algorithm(2, True, nbytes) == "direct"
        assert algorithm(8, True, nbytes) == "chain"
    for ranks, crowded in ((16, True), (3, False)):
        assert algorithm(ranks, crowded, 256) == "direct"
        assert algorithm(ranks, crowded, 1 << 20) == "chain"


@pytest.mark.parametrize("ranks", [2, 8, 100])
def test_only_what_outgrows_the_last_level_cache_is_written_around_it(ranks):
    sizes = select.streaming_sizes(ranks, cache=32 << 20)
    # All ranks' arrays together are at least as large as the cache.
    copies = {"bcast": ranks, "gather": 2, "allgather": ranks + 1, "alltoall": 2 * ranks}
    assert all((sizes[name] + 1) * count > 32 << 20 for name, count in copies.items())
    larger = select.streaming_sizes(ranks, cache=256 << 20)
    assert all(larger[collective] >= 8 * sizes[collective] for collective in sizes)
    assert select.streaming_sizes(ranks, cache=0) == sizes    # unknown: taken to be 32 MiB


def test_where_ranks_share_cores_segments_and_sections_are_longer_unless_set():
    apart, sharing = (smcoll.Config(table="off").settled(oversubscribed)
                      for oversubscribed in (False, True))
    assert apart.segment_size < sharing.segment_size
    assert sharing.settled(False) == sharing
    for ranks in (4, 8):
        for collective in ("bcast", "reduce", "allreduce"):
            sections = [select.decide(smcoll.Config(table="off"), ranks, oversubscribed)[
                collective][-1].section_bytes for oversubscribed in (False, True)]
            assert sections[0] < sections[1] == sharing.segment_size
    small = smcoll.Config(table="off", segment_size="32K")
    assert small.settled(True) == small
    assert select.decide(small, 8, True)["bcast"][-1].section_bytes == 32 << 10


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("cache", [0, 8 << 20, 32 << 20, 256 << 20])
def test_a_root_measures_results_below_those_that_always_go_around_the_caches(ranks, cache):
    least = select.measured_results_from(ranks, cache)
    always = select.streaming_sizes(ranks, cache)["gather"]
    assert 1 << 20 <= least < always
    # Half of the caches, where every rank has a result and its part of all others'.
    assert least == 1 << 20 or 0 <= (cache or 32 << 20) // 2 - least * (ranks + 1) <= ranks


@pytest.mark.parametrize("ranks", [3, 8, 16])
def test_an_alltoall_of_more_ranks_is_read_through_the_kernel_where_it_outgrows_the_caches(ranks):
    config = smcoll.Config()
    for cache in (32 << 20, 256 << 20):
        handed_out = select.kernel_copy_sizes(config, ranks, cache=cache)["alltoall"]
        # In bytes of all ranks' arrays: each has as many blocks in both as there are ranks, and
        # hands out all but its own.
        arrays = 2 * ranks * ranks / (ranks - 1)
        assert 2 * cache - arrays < arrays * handed_out <= 2 * cache
    # Unknown caches are taken to be 32 MiB.
    assert select.kernel_copy_sizes(config, ranks) == select.kernel_copy_sizes(
        config, ranks, cache=32 << 20)
    # Ranks that share cores would measure each other, and try for long.
    assert "alltoall" in select.measured_routes(config, ranks, oversubscribed=False)
    assert select.measured_routes(config, ranks, oversubscribed=True) == {}


@pytest.mark.one_node
@pytest.mark.mpi(2, 4)
def test_from_where_results_are_written_around_the_caches(comm_world):
    moving = [name for name in ALGORITHMS if name not in ("barrier", "scan", "exscan")]
    with smcoll.Comm(comm_world, smcoll.Config(internals={"streaming_size": 3 << 20})) as comm:
        for collective in moving:
            assert comm.explain(collective, 1 << 20).parameters["around_caches_from"] == 3 << 20
    with smcoll.Comm(comm_world) as comm:
        sizes = select.streaming_sizes(comm.size, sysfs.last_level_caches(comm.size))
        for collective in moving:
            assert comm.explain(collective, 1 << 20).parameters["around_caches_from"] == sizes[
                collective]
        assert "around_caches_from" not in comm.explain("allreduce", 8).parameters
        assert "around_caches_from" not in comm.explain("scan", 1 << 20).parameters


@pytest.mark.mpi(2, 3)
def test_rank_0_s_settings_count(comm_world, monkeypatch):
    """Ranks with other environments do the same: rank 0's settings are everybody's."""
    rank = comm_world.rank
    names = ["allreduce=tiled", "allreduce=all_read", ""]
    monkeypatch.setenv(VARIABLE, f"inline_slots={2 + rank}")
    config = smcoll.Config(segment_size=4096 * (1 + rank), segments=1 + rank,
                           algorithms=names[rank], internals={"banks": 1 + rank})
    with smcoll.Comm(comm_world, config) as comm:
        result = np.zeros(5000)
        comm.Allreduce(np.ones(5000), result)
        assert (result == comm.size).all()
        agreed = comm.engine.config
        assert agreed.named == {"allreduce": "tiled"}
        assert (agreed.internals.banks, agreed.internals.inline_slots) == (1, 2)
        assert len(set(comm_world.allgather(str(comm.explain("bcast", nbytes=10**6))))) == 1


@pytest.mark.mpi(2)
def test_disable(comm_world):
    with smcoll.Comm(comm_world, smcoll.Config(disable=True)) as comm:
        result = np.zeros(3)
        comm.Allreduce(np.ones(3), result)
        assert (result == comm.size).all()
        assert comm.engine is None
        assert comm.explain("allreduce", nbytes=24).path == "MPI"
        rows = [(row["collective"], row["path"], row["calls"]) for row in comm.stats()]
        assert rows == [("allreduce", "MPI", 1)]


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_stats_and_explain(comm_world):
    with smcoll.Comm(comm_world) as comm:
        for _ in range(10):
            comm.Allreduce(np.ones(100), np.ones(100))
        comm.Bcast(np.ones(50_000), 1)
        rows = {row["collective"]: row for row in comm.stats() if row["calls"]}
        assert set(rows) == {"allreduce", "bcast"}
        assert (rows["allreduce"]["calls"], rows["allreduce"]["bytes"]) == (10, 8000)
        assert (rows["bcast"]["calls"], rows["bcast"]["bytes"]) == (1, 400_000)
        assert all(row["seconds"] > 0 for row in rows.values())
        for collective in ("barrier", "bcast", "reduce", "allreduce"):
            explanation = comm.explain(collective, nbytes=4096)
            assert explanation.path == "shared memory"
            assert explanation.algorithm in smcoll.algorithms.ALGORITHMS[collective]
            assert explanation.reason
            assert "\n" not in str(explanation)


# ---------------------------------------------------------------------- unknown variables

ROOT = Path(__file__).resolve().parents[2]
MADE = "import sys, smcoll; smcoll.Config(); smcoll.Config(); sys.stderr.write('made')"


def made_with(**environment) -> str:
    """What a process prints on stderr that makes settings."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run([sys.executable, "-c", MADE], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": path, **environment}).stderr


def test_a_misspelt_variable_is_told_once_with_the_nearest_name():
    line, made = made_with(SMCOLL_SEGMENTSIZE="32K").splitlines()
    assert "SMCOLL_SEGMENTSIZE is no setting" in line and "SMCOLL_SEGMENT_SIZE is one" in line
    assert made == "made"
    assert "is one" not in made_with(SMCOLL_XYZZY="1")


def test_a_variable_that_was_a_setting_once_is_told():
    for name in ("SMCOLL_ALLREDUCE", "SMCOLL_BANKS", "SMCOLL_INLINE_SLOTS"):
        line, made = made_with(**{name: "4"}).splitlines()
        assert f"{name} is no setting and is ignored" in line and made == "made"


def test_only_the_first_rank_tells_and_not_again_after_its_launcher():
    assert made_with(SMCOLL_HAEP="1", PMI_RANK="1") == "made"
    assert "SMCOLL_HEAP" in made_with(SMCOLL_HAEP="1", PMI_RANK="0")
    assert made_with(SMCOLL_HAEP="1", SMCOLL_NAMES_TOLD="1") == "made"


@pytest.mark.mpi(2)
def test_the_ranks_of_a_job_make_settings_without_a_warning(comm_world, capfd, monkeypatch):
    """The suite's own variables are all known."""
    monkeypatch.setattr(config, "_looked_at_names", False)
    smcoll.Config()
    assert "is no setting" not in capfd.readouterr().err


def test_every_variable_that_the_sources_name_is_known():
    """Settings, launchers', tests', builds' and CI's."""
    found = set()
    for folder in ("smcoll", "tests", "bench", "examples", ".ci"):
        for file in (ROOT / folder).rglob("*"):
            # This file has misspelt ones; C has macros.
            if file.suffix in (".py", ".pyx", ".sh", "") and file.is_file() and (
                    file != Path(__file__)):
                found |= set(re.findall(r"\bSMCOLL_[A-Z_]*[A-Z]\b", file.read_text()))
    found |= set(re.findall(r"\bSMCOLL_[A-Z_]*[A-Z]\b", (ROOT / "setup.py").read_text()))
    macros = {name for name in found if name.endswith(("_H", "_KERNELS"))} | {
        # Of smcoll.h.
        f"SMCOLL_{name}" for name in ("API_VERSION", "CAPSULE", "IN_PLACE", "SUCCESS", "USE_MPI")}
    assert {"SMCOLL_NODE", "SMCOLL_CI_KEEP", "SMCOLL_TEST_MARK", "SMCOLL_HEAP"} <= found
    assert config.unknown_names(dict.fromkeys(found - macros, "")) == []
