"""smcoll tune: parameters and tables made of measurements, and the tables that Comm loads."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import typer
from rich.console import Console
from test_cli import refusal, smcoll
from typer.testing import CliRunner

from smcoll import Comm, Config
from smcoll.cli import guard, jobs, tune
from smcoll.cli.app import app_of
from smcoll.launch import launch
from smcoll.topology import node
from smcoll.tuning import select, tables
from smcoll.tuning.model import choice, costs, fit, machine, parameters

PARAMETERS = {
    "name": "made up", "local": {"latency": 1.0, "b": 1.0, "B": 0.5},
    "level": [{"name": "l3", "latency": 60, "b": 2.0, "B": 1.0}], "yield": 1000}


def two_cores(ranks=2, **changes):
    return machine.of_topology("package:1 l3:1 core:2", ranks,
                               parameters.from_dict(PARAMETERS | changes))


def row(up_to, algorithm, nbytes, predicted=2.0, measured=2.5, **changes):
    return {"up_to": up_to, "algorithm": algorithm, "fan_in": 1, "fan_out": 1,
            "section_bytes": 16384, "points": [[nbytes, predicted, measured]]} | changes


def content(**changes):
    """A table of this machine for 2 to 4 ranks."""
    rows = {"allreduce": [row(4096, "recursive_doubling", 512), row(select.UNLIMITED, "tiled",
                                                                    65536, section_bytes=32768)]}
    return {"format": tables.FORMAT, "version": tables.version(), "machine": tables.machine(),
            "parameters": PARAMETERS, "tables": [
                {"ranks": ranks, "oversubscribed": crowded, "heap": False, "rows": rows,
                 "errors": {"allreduce": 0.1}} for ranks in (2, 3) for crowded in (False, True)],
            } | changes


# ---------------------------------------------------------------------- parameters


def test_primitive_steps_become_parameters():
    """ns for all lines of a size; B is the time of one rank divided by how many share."""
    measured = {("exchange", "L3Cache", 0): 60.0}
    for name, ns in (("copy alone", 1.0), ("read alone", 2.0), ("reduce alone", 2.5),
                     ("copy together", 1.5), ("read together", 3.0), ("reduce together", 3.25),
                     ("post together", 4.25), ("renew between", 1.2), ("renew alone", 1.1)):
        measured[name, "L3Cache", 4096] = 64 * ns
    known = fit.fit(measured, 2, 2, "here", "a test")
    level = known.level("L3Cache")
    assert level.latency == 60
    curves = {name: getattr(level, name).at(1) for name in parameters.CURVES}
    assert curves == {"b": 2.0, "B": 1.5, "reduction": 0.5, "reduction_together": 0.25,
                      "rewrite": 1.0}
    assert (known.local.b.at(1), known.local.B.at(1)) == (1.0, 0.75)
    assert known.evicted.at(1) == pytest.approx(0.1)
    assert parameters.from_dict(known.as_dict(), "again").level("L3Cache") == level


def test_what_is_copied_in_one_buffer_uses_three_quarters_of_a_reduction_s_bytes():
    measured = {("exchange", "L3Cache", 0): 60.0}
    for nbytes, ns in ((4096, 1.0), (65536, 2.0)):
        lines = nbytes / 64
        for name in ("copy alone", "read alone", "copy together", "read together",
                     "reduce together", "post together", "renew between", "renew alone"):
            measured[name, "L3Cache", nbytes] = lines * ns
        measured["reduce alone", "L3Cache", nbytes] = lines * (ns + 1)
    level = fit.fit(measured, 2, 1, "here", "a test").level("L3Cache")
    assert level.b.points == ((3072, 1.0), (49152, 2.0))
    # What a reduction takes more is counted where reading was as far away.
    assert level.reduction.points == ((4096, pytest.approx(2 - level.b.at(4096), abs=1e-4)),
                                      (65536, 1.0))


def test_calls_and_steps_are_found_again():
    here = two_cores(call={"reduce": 250, "allreduce": 300}, step=40)
    keys = [(collective, nbytes, name, 1, 1, 16384) for collective in ("reduce", "allreduce")
            for name in ("tiled", "fan_in", "all_read", "recursive_halving")
            if (collective, name) in costs.COSTS for nbytes in (8, 4096)]
    times = {key: fit.predicted(here, key) / 1000 for key in keys}
    known = fit.calibrate(two_cores(), times)
    assert known.call["allreduce"] == pytest.approx(300, abs=1)
    assert known.call["reduce"] == pytest.approx(250, abs=1)
    assert known.step == pytest.approx(40, abs=1)


def test_states_of_the_machine_are_told_apart():
    rows = [{"collective": "bcast", "bytes": nbytes, "us": us, "distance_ns": ns}
            for nbytes in (8, 64) for us, ns in ((1.0, 200), (1.1, 210), (0.3, 31), (1.2, 220))]
    rows.append({"collective": "bcast", "bytes": 512, "us": 9.0, "distance_ns": 30})
    kept, facts = fit.in_one_state(rows)
    assert fit.times_of(kept) == {("bcast", 8, None, None, None, None): 1.1,
                                  ("bcast", 64, None, None, None, None): 1.1,
                                  ("bcast", 512, None, None, None, None): 9.0}
    assert (facts["left_out"], facts["ns"], facts["other_ns"]) == (2, 210, 31)


def test_one_state_keeps_everything():
    rows = [{"us": 1.0, "distance_ns": ns} for ns in (60, 61, 66, 70)]
    assert fit.in_one_state(rows)[0] == rows


# ---------------------------------------------------------------------- tables


def compared(times, collective="allreduce", **more):
    """Rows as fit.compared gives them; times: {(bytes, algorithm): µs}."""
    return [{"collective": collective, "bytes": nbytes, "algorithm": name, "ranks": 2,
             "section_bytes": 16384, "measured_us": us, "predicted_us": us * 1.1, "error": 0.1}
            | more for (nbytes, name), us in times.items()]


def test_a_table_leaves_the_default_only_for_a_real_gain():
    rows = compared({(8, "all_read"): 1.0, (8, "tiled"): 0.97,
                     (1024, "all_read"): 2.0, (1024, "tiled"): 1.0,
                     (8192, "all_read"): 4.0, (8192, "tiled"): 3.1,
                     (8192, "recursive_halving"): 3.0})
    fit.mark(rows, Config(), 2, False)
    chosen = [(row["bytes"], row["algorithm"]) for row in rows if row["chosen"]]
    assert chosen == [(8, "all_read"), (1024, "tiled"), (8192, "tiled")]
    table = fit.table(rows, 2, False)
    first, second = table["rows"]["allreduce"]
    assert (first["algorithm"], first["up_to"]) == ("all_read", 90)    # half way, as sizes go
    assert (second["algorithm"], second["up_to"]) == ("tiled", select.UNLIMITED)
    assert [point[0] for point in second["points"]] == [1024, 8192]
    assert table["errors"] == {"allreduce": 0.1}


def test_dissemination_is_never_chosen():
    """Protocol rule 7: its results differ from rank to rank in their last bits."""
    rows = compared({(8, "all_read"): 1.0, (8, "dissemination"): 0.1})
    fit.mark(rows, Config(), 2, False)
    assert [row["algorithm"] for row in rows if row["chosen"]] == ["all_read"]


def test_crossovers_lie_where_the_lines_meet():
    rows = compared({(64, "all_read"): 1.0, (64, "tiled"): 2.0,
                     (4096, "all_read"): 8.0, (4096, "tiled"): 4.0})
    assert fit.crossings(rows, "measured_us") == [
        {"collective": "allreduce", "from": "all_read", "to": "tiled", "bytes": 512,
         "by": "measured", "ranks": 2}]


@pytest.fixture
def write(tmp_path):
    def write(**changes):
        file = tmp_path / "table.json"
        tables.write(file, content(**changes))
        return file

    tables._warned.clear()
    return write


def test_a_table_decides_before_the_defaults_and_after_settings(write):
    file = write()
    told = tables.for_ranks(Config(table=str(file)), 2, False)
    assert told["source"] == "table"
    decided = select.decide(Config(), 2, False, table=told)
    short, long = decided["allreduce"]
    assert (short.up_to, short.algorithm) == (4096, "recursive_doubling")
    assert (long.algorithm, long.section_bytes) == ("tiled", 32768)
    assert "measured by smcoll tune" in long.reason
    assert long.evidence(100_000) == (2.0, 2.5)
    assert decided["bcast"][0].reason == "built-in default"
    explicit = select.decide(Config(algorithms="allreduce=all_read"), 2, False, table=told)
    assert [row.algorithm for row in explicit["allreduce"]] == ["all_read"]


@pytest.mark.parametrize("change, message", [
    ({"format": 0}, "not a table"),
    ({"version": "0.0.1"}, "made by smcoll 0.0.1"),
    ({"machine": {"processor": "another"}}, "another machine"),
    ({"parameters": {}}, "ParameterError"),
    ({"tables": [{}]}, "KeyError"),
    ({"tables": [{"ranks": 2, "oversubscribed": False, "heap": "no", "rows": {}}]}, "heap"),
    ({"tables": [{"ranks": 2, "oversubscribed": False, "heap": False,
                  "rows": {"allreduce": [row(8, "bla", 8)]}}]}, "'bla' is no allreduce"),
    ({"tables": [{"ranks": 2, "oversubscribed": False, "heap": False,
                  "rows": {"allreduce": [row(8, "tiled", 8, fan_in=0)]}}]}, "out of range"),
    ({"tables": [{"ranks": 2, "oversubscribed": False, "heap": False,
                  "rows": {"allreduce": [row(8, "tiled", 8), row(8, "tiled", 8)]}}]},
     "out of range"),
])
def test_a_table_that_is_no_good_is_ignored_with_one_warning(write, capsys, change, message):
    file = write(**change)
    for _ in range(2):
        assert tables.for_ranks(Config(table=str(file)), 2, False) is None
    warnings = capsys.readouterr().err.strip().splitlines()
    assert len(warnings) == 1
    assert message in warnings[0]
    assert str(file) in warnings[0]


def test_a_broken_or_missing_file_is_ignored(write, tmp_path, capsys):
    file = write()
    file.write_text(file.read_text()[:100])
    assert tables.load(str(file)) is None
    assert tables.load(str(tmp_path / "none.json")) is None
    assert len(capsys.readouterr().err.strip().splitlines()) == 2


def test_no_table_of_this_machine_is_no_problem(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tables.file_of("auto").is_relative_to(tmp_path)
    assert tables.load("auto") is None
    assert tables.load("off") is None
    assert capsys.readouterr().err == ""


def test_the_model_decides_only_where_it_was_right(write):
    """Without rows for a number of ranks: parameters of this machine, errors within 25 %."""
    errors = {"allreduce": 0.1, "reduce": 0.5}
    known = content(tables=[{"ranks": 2, "oversubscribed": False, "heap": False, "rows": {},
                             "errors": errors}])
    # Reading what others have written is as good as free, so is everything but all_read's work.
    known["parameters"] = PARAMETERS | {"level": [
        {"name": name, "latency": 1000, "b": 0.001, "B": 0.001, "reduction": 50.0}
        for name in ("L3Cache", "L2Cache", "Package", "NUMANode", "Machine")]}
    found = choice.rows(known, 2, Config())
    assert set(found) <= {"allreduce"}
    assert found["allreduce"][-1]["algorithm"] not in ("all_read", "dissemination")
    assert found["allreduce"][-1]["up_to"] == select.UNLIMITED
    known["tables"][0]["errors"]["allreduce"] = 0.3
    assert choice.rows(known, 2, Config()) == {}


def test_the_model_is_not_asked_where_ranks_share_cores(write):
    file = write(tables=[{"ranks": 2, "oversubscribed": False, "heap": False, "rows": {},
                          "errors": {"allreduce": 0.0}}])
    assert tables.for_ranks(Config(table=str(file)), 64, True) is None


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("collective, algorithm", [("allreduce", "tiled"), ("bcast", "fan_out"),
                                                   ("allgather", "direct")])
def test_a_measured_row_uses_as_many_segments_as_vectors_of_its_size_do(write, ranks, collective,
                                                                       algorithm):
    sizes = (4096, 65536, select.UNLIMITED)
    rows = [row(size, algorithm, 32768) for size in sizes]
    config = Config(segments=7, table=str(write(tables=[
        {"ranks": ranks, "oversubscribed": False, "heap": False, "errors": {},
         "rows": {collective: rows}}])))
    decided = select.decide(config, ranks, False, table=tables.for_ranks(config, ranks, False))
    assert [one.segments for one in decided[collective]] == [
        min(7, select.usual_segments(collective, ranks, nbytes=size)) for size in sizes]
    assert decided[collective][0].reason != decided["scan"][0].reason


# ---------------------------------------------------------------------- shared heaps


LARGE = 1 << 20


def with_heaps(**errors):
    """A table with heaps in use beside those without."""
    known = content()
    heap = {"ranks": 2, "oversubscribed": False, "heap": True, "errors": errors, "rows": {
        "allreduce": [row(32767, "all_read", 64), row(select.UNLIMITED, "shared_heap", LARGE)],
        "allgather": [row(select.UNLIMITED, "direct", LARGE)]}}
    return {"tables": [*known["tables"], heap]}


@pytest.mark.staged("from one byte on heaps are used there")
def test_what_was_measured_with_heaps_decides_where_ranks_share_heaps(write):
    config = Config(table=str(write(**with_heaps())), internals={"heap_threshold": 32 << 10})
    private, shared = (tables.for_ranks(config, 2, False, heaps) for heaps in (False, True))
    decided = select.decide(config, 2, False, table=shared, heaps=True)
    assert select.decision_for(decided, "allreduce", LARGE).algorithm == "shared_heap"
    # Against the built-in limit, since it was measured so.
    assert select.decision_for(decided, "allgather", LARGE).algorithm == "direct"
    # What was not measured: the built-in limits, by which a Scan is staged.
    assert select.decision_for(decided, "scan", 65536).algorithm == "direct"
    assert select.decision_for(decided, "reduce", 65536).algorithm == "shared_heap"
    decided = select.decide(config, 2, False, table=private)
    assert select.decision_for(decided, "allreduce", LARGE).algorithm == "tiled"
    # No table with heaps for three ranks: what was measured without, and the built-in limits.
    decided = select.decide(config, 3, False, table=tables.for_ranks(config, 3, False, True),
                            heaps=True)
    assert select.decision_for(decided, "allreduce", 1024).algorithm == "recursive_doubling"
    assert select.decision_for(decided, "allreduce", LARGE).algorithm == "shared_heap"


def test_direct_access_is_chosen_for_ranks_with_heaps_only():
    rows = compared({(8, "all_read"): 1.0, (LARGE, "all_read"): 40.0,
                     (LARGE, "shared_heap"): 20.0})
    fit.mark(rows, Config(), 2, False)
    assert [row["algorithm"] for row in rows if row["chosen"]] == ["all_read", "all_read"]
    fit.mark(rows, Config(), 2, False, heap=True)
    assert [row["algorithm"] for row in rows if row["chosen"]] == ["all_read", "shared_heap"]
    assert fit.table(rows, 2, False, heap=True)["heap"]


@pytest.mark.parametrize("measured, threshold, decided", [
    # Half way between two sizes, in the first: direct access from 32 KiB on all the same.
    ([(90, "all_read"), (None, "shared_heap")], 32768,
     [(32767, "all_read"), (None, "shared_heap")]),
    ([(None, "shared_heap")], 32768, [(32767, "all_read"), (None, "shared_heap")]),
    ([(90, "tiled"), (5000, "shared_heap"), (None, "all_read")], 32768,
     [(5000, "tiled"), (None, "all_read")]),
    ([(None, "shared_heap")], 1, [(0, "all_read"), (None, "shared_heap")]),
    ([(65536, "tiled"), (None, "shared_heap")], 32768,
     [(65536, "tiled"), (None, "shared_heap")]),
])
def test_arrays_that_are_too_short_for_a_heap_are_not_looked_for_there(measured, threshold,
                                                                      decided):
    rows = [[up_to or select.UNLIMITED, name, 1, 1, 16384, []] for up_to, name in measured]
    table = {"source": "table", "heap": True, "rows": {"allreduce": rows}}
    found = select.decide(Config(internals={"heap_threshold": threshold}), 2, False, table=table,
                          heaps=True)
    assert [(row.up_to, row.algorithm) for row in found["allreduce"]] == [
        (up_to if up_to is not None else select.UNLIMITED, name) for up_to, name in decided]


def test_the_model_decides_about_direct_access_where_it_was_right_about_it():
    errors = {"allgather": 0.1}
    # What others have written is far away, own memory is not: copying in is a waste.
    known = content(tables=[{"ranks": 3, "oversubscribed": False, "heap": True, "rows": {},
                             "errors": errors}],
                    parameters=PARAMETERS | {"local": {"latency": 1.0, "b": 9.0, "B": 9.0}})
    found = choice.rows(known, 3, Config(), True)
    usual = select.decide(Config(), 3, False, heaps=True)
    assert select.decision_for(usual, "allgather", 64 << 20).algorithm == "direct"
    assert found["allgather"][-1]["algorithm"] == "shared_heap"
    assert choice.rows(known, 3, Config()) == {}


# ---------------------------------------------------------------------- communicators


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
def test_rank_0_s_table_is_everybody_s(comm_world, tmp_path):
    """Only rank 0 finds a table; all ranks follow it, and explain says so."""
    file = tmp_path / f"table-{comm_world.rank}.json"
    if comm_world.rank == 0:
        tables.write(file, content())
    with Comm(comm_world, Config(table=str(file), heap=False)) as comm:
        for nbytes, name in ((1024, "recursive_doubling"), (80_000, "tiled")):
            explanation = comm.explain("allreduce", nbytes=nbytes)
            assert explanation.algorithm == name
            assert (explanation.predicted_us, explanation.measured_us) == (2.0, 2.5)
            assert explanation.error == pytest.approx(-0.2)
            assert "decision table" in str(explanation)
            assert "predicted 2 us, measured 2.5 us, error -20 %" in str(explanation)
            result = np.zeros(nbytes // 8)
            comm.Allreduce(np.ones(nbytes // 8), result)
            assert (result == comm.size).all()
        assert len(set(comm_world.allgather(str(comm.explain("bcast", nbytes=8))))) == 1


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
def test_ranks_agree_without_the_table_that_rank_0_lacks(comm_world, tmp_path):
    file = tmp_path / f"table-{comm_world.rank}.json"
    if comm_world.rank != 0:
        tables.write(file, content())
    table = str(file) if comm_world.rank else "off"
    with Comm(comm_world, Config(table=table, heap=False)) as comm:
        assert comm.explain("allreduce", nbytes=1024).reason.startswith("built-in")
        assert comm.explain("allreduce", nbytes=1024).error is None


# ---------------------------------------------------------------------- the command


@pytest.mark.lengthy
def test_tune_measures_and_its_table_is_used(tmp_path):
    table = tmp_path / "table.json"
    result = smcoll("tune", "-n", 2, "--sizes", "8,4K,64K", "--collectives", "barrier,allreduce",
                    "--rounds", 1, "-r", 1, "--budget", 0.0001, "--yes", "--table", table,
                    "--json", tmp_path / "t.json", "--csv", tmp_path / "t.csv",
                    "--plot", tmp_path / "t.png")
    assert "predicted beside measured" in result.stdout
    record = json.loads((tmp_path / "t.json").read_text())
    for line in record["rows"]:
        assert line["error"] == pytest.approx(line["predicted_us"] / line["measured_us"] - 1)
    points = {(line["collective"], line["bytes"]) for line in record["rows"]}
    for flag in ("best", "chosen"):
        assert len([line for line in record["rows"] if line[flag]]) == len(points)
    assert (tmp_path / "t.csv").exists()
    assert (tmp_path / "t.png").stat().st_size > 1000
    assert set(tables.read(table)["tables"][0]["rows"]) == {"barrier", "allreduce"}

    environment = {**os.environ, "SMCOLL_TABLE": str(table)}
    smcoll("info", "-n", 2, "--json", tmp_path / "i.json", environment=environment)
    chosen = json.loads((tmp_path / "i.json").read_text())["algorithms"]
    assert chosen["barrier"][0]["reason"] == select.REASONS["table"]
    assert chosen["bcast"][0]["reason"] == "built-in default"
    model = smcoll("model", "-n", 2, "--collectives", "allreduce", environment=environment).stdout
    assert "recursive_halving" in model
    # The same from the files that tune has written, for other machines, too.
    for file in (table, tmp_path / "t.json"):
        other = smcoll("model", "-n", 2, "--collectives", "allreduce", "--params", file).stdout
        assert model.splitlines()[2:] == other.splitlines()[2:]
    smcoll("tune", "--clear", "--table", table)
    assert not table.exists()
    # Where programs are told to look is where it is taken to lie.
    result = smcoll("tune", "--clear", environment={"SMCOLL_TABLE": str(table)})
    assert f"there is no decision table {table}" in result.stdout


@pytest.mark.lengthy
def test_tune_with_heaps_measures_direct_access_beside_staging(tmp_path, monkeypatch):
    for setting, value in (("HEAP", "0"), ("TEST_INTERNALS", "heap_threshold=32768")):
        monkeypatch.setenv(f"SMCOLL_{setting}", value)
    table = tmp_path / "table.json"
    options = ("-n", 2, "--sizes", "8,64K", "--collectives", "allreduce,allgather", "--rounds", 1,
               "-r", 1, "--budget", 0.0001, "--yes", "--table", table,
               "--json", tmp_path / "t.json")
    smcoll("tune", *options)
    smcoll("tune", "--heap", *options)
    record = json.loads((tmp_path / "t.json").read_text())
    measured = {(line["collective"], line["bytes"]) for line in record["rows"]
                if line["algorithm"] == "shared_heap"}
    assert measured == {("allreduce", 65536), ("allgather", 65536)}
    assert [one["heap"] for one in tables.read(table)["tables"]] == [False, True]
    environment = {**os.environ, "SMCOLL_TABLE": str(table)}
    for options in ((), ("--heap",)):
        model = smcoll("model", "-n", 2, "--collectives", "allreduce", *options,
                       environment=environment).stdout
        assert ("shared_heap" in model) == bool(options)


@pytest.mark.parametrize("options, message", [
    (["-n", "1"], "needs 2 ranks"),
    (["--collectives", "gatherv"], "--collectives: gatherv"),
    (["--sizes", "12"], "multiples of 8"),
])
def test_tune_refuses_bad_options(options, message):
    assert message in refusal("tune", *options)


# ---------------------------------------------------------------------- a busy machine


def test_what_others_take_of_a_core_is_seen():
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
                for _ in launch.cores(node.allowed_cpus())]
    try:
        time.sleep(0.5)
        assert guard.busy_share() > guard.BUSY
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def test_a_busy_machine_is_not_measured_unless_somebody_says_so(monkeypatch, capsys):
    monkeypatch.setattr(guard, "busy_share", lambda: 0.5)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(typer.Exit):
        guard.check_quiet(False)
    assert "other processes take 50 % of a core" in capsys.readouterr().err
    guard.check_quiet(True)
    shares = iter((0.5, 0.01))     # something that was over after a second
    monkeypatch.setattr(guard, "busy_share", lambda: next(shares))
    guard.check_quiet(False)


@pytest.mark.parametrize("error, options, written", [
    (0.8, [], False), (0.8, ["--yes"], True), (0.3, [], True)])
def test_no_table_is_made_of_noise(monkeypatch, tmp_path, error, options, written):
    line = {"collective": "bcast", "bytes": 8, "ranks": 2, "algorithm": "fan_out", "fan_out": 1,
            "measured_us": 1.0, "predicted_us": 1 + error, "error": error, "best": True,
            "default": True, "chosen": True}
    table = tmp_path / "table.json"
    monkeypatch.setattr(guard, "busy_share", lambda: 0.0)
    monkeypatch.setattr(launch, "cores", lambda cpus: [[0], [1]])
    monkeypatch.setattr(tune, "tune", lambda task, counts, cores, meta: {
        "meta": meta, "rows": [line], "crossovers": [], "tables": [], "parameters": {},
        "states": {"2": {"left_out": 0}}, "measured": []})
    result = CliRunner().invoke(app_of(), ["tune", "-n", "2", "--table", str(table), "--json",
                                      str(tmp_path / "t.json"), *options])
    assert table.exists() is written, result.output
    assert result.exit_code == (0 if written else 2)
    assert (tmp_path / "t.json").exists()
    assert written or "80 % off" in result.output


def test_parameters_are_progress_but_no_rows(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(jobs, "Console", lambda **_: Console(file=screen, force_terminal=True,
                                                             width=100))
    with jobs.progress_bar("2 ranks", 2) as advance:
        assert "starting" in screen.getvalue()
        advance({"collective": "parameter exchange", "bytes": 0, "parameter": "exchange"})
        advance({"collective": "bcast", "bytes": 8})
        time.sleep(0.3)
    assert "1/2" in screen.getvalue() and "2/2" not in screen.getvalue()
