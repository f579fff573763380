"""The command line, from outside: what it prints, writes and returns."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import typer
from typer.testing import CliRunner

from smcoll import config
from smcoll.algorithms import ALGORITHMS
from smcoll.base import __version__
from smcoll.bench import lower_bound
from smcoll.cli import guard, output, page, peers, selection
from smcoll.cli.app import app_of
from smcoll.launch import hosts, launch, mpi_settings
from smcoll.topology import node
from smcoll.tuning import learned, select, variants

LIMITS = Path(__file__).parents[2] / "bench" / "results" / "limits-2-cores.json"
PROGRAM = """\
import sys
from mpi4py import MPI
import numpy as np
import neighbour
world = MPI.COMM_WORLD
total = np.empty(3)
world.Allreduce(np.full(3, world.rank + 1.0), total)
if world.rank == 0:
    print("argv", sys.argv[1:], "name", __name__, "layer", type(world).__module__.split(".")[0],
          "total", total.tolist(), flush=True)
what = sys.argv[1] if len(sys.argv) > 1 else ""
if world.rank == world.size - 1:
    if what == "raise":
        raise ValueError("on purpose")
    if what == "exit":
        sys.exit(7)
if what in ("raise", "exit"):
    world.Barrier()
"""


def smcoll(*arguments, cwd=None, environment=None, code=0):
    """Run the program as from a shell; the finished process."""
    result = subprocess.run(
        launch.own_command(*map(str, arguments)), capture_output=True, text=True, errors="replace",
        timeout=120, stdin=subprocess.DEVNULL, cwd=cwd, check=False,
        env={**os.environ, **(environment or {})})
    assert result.returncode == code, result.stdout + result.stderr
    return result


def refusal(*arguments, environment=None):
    """What a command says that refuses its arguments, in one line and without frame. In this
    process, since most of such a command's time is its start.
    """
    result = CliRunner().invoke(app_of(), [str(argument) for argument in arguments],
                                env=environment)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.fixture
def program(tmp_path):
    """A program with a module beside it, also as a package."""
    for folder in (tmp_path, tmp_path / "package"):
        folder.mkdir(exist_ok=True)
    (tmp_path / "neighbour.py").touch()
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text(PROGRAM)
    return tmp_path / "program.py"


# ---------------------------------------------------------------------- run


def test_run_gives_the_program_its_arguments_and_the_layer(program):
    result = smcoll("run", "-n", 2, program, "a", "-n", "5", "--json", "x y")
    assert result.stdout.strip() == ("argv ['a', '-n', '5', '--json', 'x y'] name __main__ "
                                     "layer smcoll total [3.0, 3.0, 3.0]")


def test_run_module(program):
    result = smcoll("run", "-n", 2, "-m", "package", "-m", "b", cwd=program.parent)
    assert "argv ['-m', 'b'] name __main__ layer smcoll total [3.0" in result.stdout


def test_run_without_mpiexec_is_one_rank(program):
    result = smcoll("run", program, "c")
    assert "argv ['c'] name __main__ layer smcoll total [1.0" in result.stdout


def test_run_inside_a_job(program):
    job = launch.run(2, launch.own_command("run", str(program), "d"), 60, capture_output=True,
                     text=True, stdin=subprocess.DEVNULL)
    assert job.returncode == 0, job.stderr
    assert "argv ['d'] name __main__ layer smcoll total [3.0" in job.stdout


def test_run_inside_a_job_refuses_to_start_another(program):
    result = smcoll("run", "-n", 2, program, environment={"PMI_RANK": "0"}, code=2)
    assert "leave -n and --hosts out" in " ".join(result.stderr.replace("│", " ").split())


def test_an_exception_on_one_rank_ends_the_job(program):
    result = smcoll("run", "-n", 3, program, "raise", code=1)
    assert "ValueError: on purpose" in result.stderr
    # The program's own frames only.
    assert "run_program.py" not in result.stderr


def test_exit_codes_are_kept(program):
    smcoll("run", "-n", 3, program, "exit", code=7)
    smcoll("run", program, "exit", code=7)


def test_run_disabled_by_environment(program):
    result = smcoll("run", "-n", 2, program, environment={"SMCOLL_DISABLE": "1"})
    assert "layer mpi4py total [3.0" in result.stdout


@pytest.mark.parametrize("ranks", [(), ("-n", 2)])
def test_a_program_that_is_not_there_is_said_once(tmp_path, ranks):
    missing = tmp_path / "nothing.py"
    assert smcoll("run", *ranks, missing, code=2).stderr == (
        f"smcoll: can't open file {str(missing)!r}: No such file or directory\n")
    assert smcoll("run", *ranks, "-m", "nothing.inner", code=1).stderr == (
        "smcoll: No module named nothing\n")


def test_a_folder_without_a_program_is_said_once(tmp_path):
    assert smcoll("run", "-n", 2, tmp_path, code=1).stderr == (
        f"smcoll: can't find '__main__' module in {str(tmp_path)!r}\n")


def test_a_wrong_setting_is_said_once_before_ranks_start(program):
    result = smcoll("run", "-np", 2, program, environment={"SMCOLL_FAN_IN": "many"}, code=2)
    assert result.stderr.startswith("smcoll: SMCOLL_FAN_IN: ")
    assert result.stderr.count("\n") == 1


def test_a_number_of_ranks_behind_the_program_is_mentioned(program):
    result = smcoll("run", program, "-n", 4)
    assert f"smcoll run -n 4 {program}" in result.stderr
    assert "smcoll run" not in smcoll("run", "-n", 2, program, "-n", 4).stderr


@pytest.mark.lengthy
def test_code_and_standard_input_are_run_as_python_does(program):
    text = PROGRAM.replace("import neighbour", "")
    result = smcoll("run", "-n", 2, "-c", text, "a", "-n", "5")
    assert result.stdout.strip() == ("argv ['a', '-n', '5'] name __main__ layer smcoll "
                                     "total [3.0, 3.0, 3.0]")
    for options, total in ((("-n", 2), "3.0"), ((), "1.0")):
        result = subprocess.run(
            launch.own_command("run", *map(str, options), "-", "b"), input=PROGRAM, text=True,
            capture_output=True, timeout=60, check=False, cwd=program.parent)
        assert f"argv ['b'] name __main__ layer smcoll total [{total}" in result.stdout
    result = smcoll("run", "-n", 2, "-c", text, "raise", code=1)
    assert "ValueError: on purpose" in result.stderr and "run_program.py" not in result.stderr
    assert "either -m or -c" in smcoll("run", "-m", "-c", "x", code=2).stderr


def test_version():
    assert smcoll("--version").stdout == f"smcoll {__version__}\n"


# ---------------------------------------------------------------------- too many ranks


@pytest.mark.parametrize("command", [
    ["compare"], ["sweep"], ["sweep-nodes", "--pretend-nodes", "2"], ["tune"],
    ["info", "--topology"], ["run", "-c", "pass"]])
def test_a_slip_of_the_keyboard_starts_no_thousands_of_processes(command):
    first, *rest = command
    said = refusal(first, "-n", 5000, *rest)
    assert "5000 ranks on" in said and "--yes" in said


def test_ranks_are_too_many_beyond_8_a_core_or_half_of_the_memory(monkeypatch):
    monkeypatch.setattr(launch, "cores", lambda cpus: [[0], [1]])
    monkeypatch.setattr(node, "memory_headroom", lambda: math.inf)
    memory = lambda: SimpleNamespace(available=8 << 30)  # noqa: E731
    monkeypatch.setattr(psutil, "virtual_memory", memory)
    assert guard.too_many(16) == ""
    assert guard.too_many(17) == "17 ranks on 2 cores are more than 8 a core"
    # Of each machine.
    assert guard.too_many(17, [hosts.Host("a"), hosts.Host("b")]) == ""
    monkeypatch.setattr(node, "memory_headroom", lambda: 1 << 30)
    assert "more than half of the 1 GiB" in guard.too_many(16)


@pytest.mark.parametrize("answer", [True, False])
def test_somebody_at_a_terminal_is_asked(monkeypatch, answer):
    asked = []
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(sys, stream, SimpleNamespace(isatty=lambda: True, write=print,
                                                         flush=print))
    monkeypatch.setattr(typer, "confirm", lambda question, err: asked.append(question) or answer)
    monkeypatch.setattr(typer, "echo", lambda text, err: None)
    if answer:
        guard.ask("many", "Really?", False)
    else:
        with pytest.raises(typer.Exit):
            guard.ask("many", "Really?", False)
    guard.ask("many", "Really?", True)
    assert asked == ["Really?"]


# ---------------------------------------------------------------------- info


def test_info(tmp_path):
    result = smcoll("info", "-n", 4, "--json", tmp_path / "info.json")
    info = launch.mpi_info()
    assert info.mpiexec in result.stdout and info.library in result.stdout
    facts = json.loads((tmp_path / "info.json").read_text())
    assert facts["mpi"]["family"] == info.family
    assert facts["machine"]["affinity"] == sorted(os.sched_getaffinity(0))
    assert facts["machine"]["shared_memory_total"] >= facts["machine"]["shared_memory_free"] > 0
    layout = facts["layout"]
    assert layout["total"] == layout["header"] + 4 * (
        layout["control_per_rank"] + layout["streams_per_rank"]
        + layout["banks"] * layout["segments"] * layout["segment_size"])
    [shown] = re.findall(r"= (\d[\d +x()\s]*) bytes;", result.stdout)
    assert eval(shown.replace("x", "*")) == layout["total"]
    assert set(facts["algorithms"]) == set(ALGORITHMS)


def test_info_without_mpi_says_so():
    result = smcoll("info", environment={"MPI4PY_LIBMPI": "/nonexistent/libmpi.so",
                                         "MPI4PY_MPIABI": "nonexistent"})
    assert "can't load an MPI library" in result.stdout


def test_info_shows_what_was_learned_and_tune_clear_forgets_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    environment = {"XDG_CACHE_HOME": str(tmp_path), "SMCOLL_TABLE": "auto"}
    assert "nothing so far" in smcoll("info", "--learned", environment=environment).stdout
    settings = config.Config(table="off")
    found = variants.for_communicator(settings, select.decide(settings, 2, False), 2, 1, False)
    number = next(number for number, row in enumerate(found["allreduce"], 1)
                  if (row.algorithm, row.section_bytes) == ("tiled", 32 << 10))
    learned.remember(learned.Kind(2, False, 1, False), found, {("allreduce", 16): SimpleNamespace(
        variant=number, times={number: 4600.0, 0: 5400.0}, calls=300)})
    result = smcoll("info", "--learned", "--json", tmp_path / "l.json", environment=environment)
    assert re.search(r"allreduce\s+up to 64 KiB\s+tiled, 32 KiB\s+4.6\s+the table's\s+5.4",
                     result.stdout), result.stdout
    assert json.loads((tmp_path / "l.json").read_text())["learned"]["2 ranks"]["allreduce"]
    cleared = smcoll("tune", "--clear", environment=environment).stdout
    assert str(learned.file()) in cleared and not learned.file().exists()


def test_info_config_lists_every_setting():
    text = smcoll("info", "--config").stdout
    for row in config.describe():
        assert row["environment"] in text and row["name"] in text


# ---------------------------------------------------------------------- compare


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """One short comparison for several tests."""
    folder = tmp_path_factory.mktemp("compare")
    result = smcoll("compare", "-n", 2, "-m", "8:4K", "--factor", 64, "--budget", 0.05,
                    "--limits", LIMITS, "--json", folder / "out.json", "--csv", folder / "out.csv")
    return result, json.loads((folder / "out.json").read_text()), folder / "out.csv"


def test_compare_rows(compared):
    rows = compared[1]["rows"]
    points = [(row["collective"], row["bytes"]) for row in rows]
    sizes = [8, 512, 4096]
    assert points == [("barrier", 0), *(
        (name, size) for name in ("bcast", "reduce", "allreduce") for size in sizes)]
    for row in rows:
        assert row["ranks"] == 2
        assert row["valid"] is row["mpi_valid"] is row["point_to_point_valid"] is True
        assert row["path"] == "shared memory" and row["algorithm"]
        assert 0 < row["smcoll_us_min"] <= row["smcoll_us"] <= row["smcoll_us_max"]
        assert 0 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["point_to_point_us"] > 0 and row["point_to_point_ratio"] > 0
        assert row["iterations"] % 2 == 0 or row["collective"] in ("barrier", "allreduce")


def test_compare_meta(compared):
    meta = compared[1]["meta"]
    info = launch.mpi_info()
    assert meta["mpi"]["mpiexec"] == info.mpiexec
    assert meta["point_to_point"] == mpi_settings.point_to_point_settings(info.family)
    assert [len(job["placement"]) for job in meta["jobs"]] == [2]
    assert meta["jobs"][0]["thread_level"] == "multiple"


def test_compare_table_says_how_messages_were_forced(compared):
    text = compared[0].stdout
    (name, value), = mpi_settings.point_to_point_settings(launch.mpi_info().family).items()
    assert f"{name}={value}" in text
    assert "smcoll's path: shared memory;" in text


def test_compare_shows_each_opponent_beside_smcoll_s_time_of_the_same_job(compared):
    text, rows = compared[0].stdout, compared[1]["rows"]
    tables = text.split(" as it comes")[1].split(" forced onto point-to-point messages")
    for table, prefix in zip(tables, ("", "point_to_point_"), strict=True):
        for row in rows:
            ours = output.microseconds(row[f"{prefix}smcoll_us"])
            theirs = output.microseconds(row["mpi_us" if not prefix else f"{prefix}us"])
            assert any({ours, theirs} <= set(line.split()) for line in table.splitlines())
    assert text.count("faster in ") == text.count(", slower ") == 2
    # Median of quotients, quotient of medians: the same measurements.
    for row in rows:
        assert row["point_to_point_us_min"] / row["point_to_point_smcoll_us_max"] <= (
            row["point_to_point_ratio"]) <= (
            row["point_to_point_us_max"] / row["point_to_point_smcoll_us_min"])


def test_compare_shows_the_least_time_that_the_machine_allows(compared):
    limits = lower_bound.read(LIMITS)
    for row in compared[1]["rows"]:
        assert row["limit_us"] == lower_bound.lower_bound(
            limits, row["collective"], row["bytes"], 2, statistic="median")
    assert "limit" in compared[0].stdout


def test_compare_csv(compared):
    with open(compared[2], newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["collective"], int(row["bytes"])) for row in rows] == [
        (row["collective"], row["bytes"]) for row in compared[1]["rows"]]


@pytest.mark.lengthy
def test_compare_one_algorithm_one_thread_level(tmp_path):
    smcoll("compare", "-n", 2, "-m", 4096, "--factor", 1000, "--collectives", "reduce,allreduce",
           "--algorithms", "tiled", "--no-point-to-point", "--thread-level", "single", "-i", 10,
           "-x", 2, "-r", 5, "--no-validate", "--json", tmp_path / "out.json")
    record = json.loads((tmp_path / "out.json").read_text())
    assert {row["algorithm"] for row in record["rows"]} == {"tiled"}
    assert {(row["iterations"], row["repetitions"]) for row in record["rows"]} == {(10, 5)}
    assert {row["valid"] for row in record["rows"]} == {None}
    assert "point_to_point_us" not in record["rows"][0]
    assert record["meta"]["jobs"][0]["thread_level"] in ("single", "funneled")


def test_compare_inside_a_job(tmp_path):
    job = launch.run(2, launch.own_command(
        "compare", "-m", "8:8", "--collectives", "bcast", "--budget", "0.02", "--read",
        "--json", str(tmp_path / "out.json")), 60, capture_output=True, text=True,
        stdin=subprocess.DEVNULL)
    assert job.returncode == 0, job.stderr
    assert "point-to-point: not measured" in job.stdout
    assert "faster in" in job.stdout
    assert "results were checked, and read behind each call" in " ".join(job.stdout.split())
    record = json.loads((tmp_path / "out.json").read_text())
    row, = record["rows"]
    assert row["ranks"] == 2 and row["valid"] is True
    assert record["meta"]["task"]["settings"]["read"] is True


@pytest.mark.lengthy
def test_compare_inside_a_job_on_several_nodes(tmp_path):
    program = tmp_path / "pretend.py"
    program.write_text("""\
import os
import sys
from mpi4py import MPI
os.environ["SMCOLL_NODE"] = "ab"[MPI.COMM_WORLD.rank // 2]
from smcoll.cli import main
main()
""")
    path = os.pathsep.join(entry for entry in sys.path if entry)
    job = launch.run(3, [
        sys.executable, str(program), "compare", "--sizes", "8,64K", "--collectives",
        "barrier,bcast,reduce,allreduce,allgather", "--budget", "0.02", "-r", "2",
        "--json", str(tmp_path / "out.json")], 60, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, environment={"PYTHONPATH": path})
    assert job.returncode == 0, job.stderr
    assert "3 ranks on 2 nodes (2, 1)" in job.stdout
    record = json.loads((tmp_path / "out.json").read_text())
    nodes, = (job["nodes"] for job in record["meta"]["jobs"])
    assert [node["ranks"] for node in nodes] == [[0, 1], [2]]
    assert [node["host"].split()[-1] for node in nodes] == ["a", "b"]
    stages = {(row["collective"], row["bytes"]): row["parameters"].get("stages", [])
              for row in record["rows"]}
    assert {row["path"] for row in record["rows"]} == {"shared memory and network"}
    assert all(row["valid"] for row in record["rows"])
    assert stages["barrier", 0] == stages["allreduce", 8] == [
        "fan_in", "recursive_doubling", "fan_out"]
    assert "leaders: fan_in, recursive_doubling, fan_out" in " ".join(job.stdout.split())
    assert stages["bcast", 8] == ["binomial tree", "fan_out"]
    assert stages["reduce", 65536][1] == "binomial tree"
    assert stages["allreduce", 65536][1] == "slices by 1 ranks of a node"


def test_compare_fails_when_a_result_is_wrong(tmp_path):
    program = tmp_path / "broken.py"
    program.write_text("""\
import sys
from smcoll.bench import measure
from smcoll.cli import main

methods_of = measure.methods_of

def forgetful(name, comm):  # smcoll's Bcast never gets to the last element
    whole = methods_of(name, comm)
    if name != "smcoll":
        return whole
    return measure.Contender(name, lambda collective: lambda buffer, root: (
        whole.call_of(collective)(buffer[:-1], root)))

measure.methods_of = forgetful
sys.argv = ["smcoll", "compare", "-m", "64:64", "--collectives", "bcast", "--budget", "0.02"]
main()
""")
    path = os.pathsep.join(entry for entry in sys.path if entry)
    job = launch.run(2, [sys.executable, str(program)], 60, capture_output=True, text=True,
                     stdin=subprocess.DEVNULL, environment={"PYTHONPATH": path})
    assert job.returncode == 1, job.stderr
    assert "WRONG:" in job.stdout and "wrong 1" in job.stdout
    assert "smcoll bcast of 64 bytes: rank" in job.stdout


def test_a_job_that_fails_is_reported(tmp_path):
    result = smcoll("compare", "-n", 2, "-m", "8:8", "--collectives", "bcast",
                    environment={"SMCOLL_SEGMENTS": "no number"}, code=1)
    assert "SMCOLL_SEGMENTS" in result.stderr


@pytest.mark.parametrize("arguments, text", [
    (["-m", "8:x"], "not a number of bytes"),
    (["-m", "64:8"], "multiples of 8"),
    (["-m", "12"], "multiples of 8"),
    (["-n", "2,x"], "numbers of ranks"),
    (["-n", "0"], "numbers of ranks"),
    (["--collectives", "gossip"], "gossip"),
    (["--algorithms", "magic"], "magic"),
    (["--thread-level", "double"], "thread-level"),
    (["-T", "float16"], "a type such as"),
    (["-T", "complex128"], "a type such as"),
    (["-k", "first"], "rotate"),
    (["--mpi-setting", "turbo"], "turbo"),
    (["--mpi-setting", "han"], "on one host"),
    (["--hosts", "h1:x"], "is no host"),
    (["--hosts", "h1,h2"], "-n is needed"),
    (["--hosts", "h1:2", "-n", "4"], "the hosts take 2 ranks"),
    (["--hostfile", "/nonexistent"], "--hostfile"),
    (["--hosts", "h1", "--hostfile", "/dev/null"], "either --hosts or --hostfile"),
    (["--sizes", "12"], "multiples of 8"),
    (["--limits", os.devnull], "no limits as bench/limits.py writes them"),
])
def test_compare_refuses_bad_options(arguments, text):
    assert text in refusal("compare", *arguments)


def test_compare_with_a_bad_layout_fails():
    assert "layout" in smcoll("compare", "--layout", "0,0,x", "-n", 2, code=1).stderr


def test_sizes_end_with_the_largest():
    assert selection.sizes("8:4M", 4)[-3:] == [524288, 2097152, 4194304]
    assert selection.sizes("1K", 16) == [8, 128, 1024]
    assert selection.sizes("8:8", 4) == [8]
    assert selection.sizes("1:4", 2, element=1) == [1, 2, 4]
    assert selection.sizes("8:4M", 4, "1K,64") == [1024, 64]


@pytest.mark.lengthy
def test_compare_every_collective_of_the_interface(tmp_path):
    smcoll("compare", "-n", 3, "--sizes", "8,4K", "--collectives", "all", "--budget", 0.02, "-f",
           "-T", "int32", "-k", 1, "--no-point-to-point", "--json", tmp_path / "out.json")
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert {row["collective"] for row in rows} == set(selection.COLLECTIVES)
    assert len(rows) == 2 * len(selection.COLLECTIVES) - 1
    assert {row["valid"] for row in rows} == {True}, rows
    assert {row["path"] for row in rows} == {"shared memory"}


def test_compare_names_the_rows_that_memory_does_not_allow(tmp_path):
    result = smcoll("compare", "-n", 2, "--sizes", "8,64K", "--collectives", "alltoall", "--budget",
                    0.02, "-M", "256K", "--no-point-to-point", "--json", tmp_path / "out.json")
    assert [row["bytes"] for row in json.loads((tmp_path / "out.json").read_text())["rows"]] == [8]
    assert "left out: 2 ranks: alltoall of 65536 bytes" in " ".join(result.stdout.split())


@pytest.mark.lengthy
def test_compare_a_row_for_each_algorithm(tmp_path):
    smcoll("compare", "-n", 2, "--sizes", "64K", "--collectives", "allreduce,bcast", "--budget",
           0.02, "--algorithms", "auto,tiled,recursive_doubling", "--no-point-to-point", "--json",
           tmp_path / "out.json", "--plot", tmp_path / "out.svg")
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [(row["collective"], row["algorithm"]) for row in rows] == [
        ("allreduce", "all_read"), ("allreduce", "tiled"), ("allreduce", "recursive_doubling"),
        ("bcast", "fan_out")]
    # MPI is measured once for all of them.
    assert len({row["mpi_us"] for row in rows if row["collective"] == "allreduce"}) == 1


@pytest.mark.lengthy
def test_compare_direct_access_beside_staging(tmp_path):
    smcoll("compare", "-n", 2, "--sizes", "8M", "--collectives", "allreduce,alltoall,scan",
           "--heap", "--budget", 0.05, "--no-point-to-point", "--json", tmp_path / "c.json",
           environment={"SMCOLL_TEST_INTERNALS": ""})
    rows = json.loads((tmp_path / "c.json").read_text())["rows"]
    assert [(row["collective"], row["algorithm"]) for row in rows] == [
        ("allreduce", "shared_heap"), ("allreduce", "all_read"),
        ("alltoall", "direct, in place"), ("alltoall", "direct"),
        ("scan", "direct, staged"), ("scan", "direct")]
    assert all(row["valid"] for row in rows)


@pytest.mark.lengthy
def test_compare_peers_merges_environments_and_settings(tmp_path):
    settings = mpi_settings.settings(launch.mpi_info().family)
    result = smcoll("compare", "-n", 2, "--sizes", "8", "--collectives", "barrier,scan", "--budget",
                    0.02, "--limits", LIMITS, "--peers", sys.prefix,
                    "--json", tmp_path / "out.json")
    record = json.loads((tmp_path / "out.json").read_text())
    assert len(record["meta"]["peers"]) == len(settings)
    for row in record["rows"]:
        assert row["ratio"] == min(figures["ratio"] for figures in row["peers"].values())
        assert row["peers"][row["fastest"]]["ratio"] == row["ratio"]
        assert row["fastest"] in " ".join(result.stdout.split())
        assert row["limit_us"] > 0
    assert "limit" in result.stdout


def test_the_fastest_peer_is_the_one_with_the_smallest_ratio():
    def rows(mpi_us, smcoll_us, valid=True):
        ratio = mpi_us / smcoll_us
        return [{"ranks": 2, "collective": "scan", "bytes": 8, "algorithm": "direct",
                 "mpi_us": mpi_us, "mpi_us_min": mpi_us, "mpi_us_max": mpi_us,
                 "smcoll_us": smcoll_us, "smcoll_us_min": smcoll_us, "smcoll_us_max": smcoll_us,
                 "ratio": ratio if valid else None, "ratio_low": ratio if valid else None,
                 "ratio_high": ratio if valid else None, "path": "shared memory",
                 "distance": "near", "round_trip_ns": [90, 110],
                 "parameters": {}, "valid": True, "mpi_valid": valid,
                 "problems": [] if valid else ["mpi scan of 8 bytes: wrong"]}]

    row, = peers.merge({"A": rows(3, 1), "B": rows(4, 2), "C": rows(1, 1, valid=False)})
    assert (row["fastest"], row["ratio"], row["smcoll_us"], row["mpi_us"]) == ("B", 2, 2, 4)
    assert row["valid"] is True and row["problems"] == ["C: mpi scan of 8 bytes: wrong"]


def test_peers_without_smcoll_or_named_twice_are_refused(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 'No module named smcoll' >&2; exit 1\n")
    python.chmod(0o755)
    result = smcoll("compare", "--peers", tmp_path, code=2)
    assert "No module named smcoll" in result.stderr
    result = smcoll("compare", "--peers", f"{sys.prefix},{sys.prefix}", code=2)
    assert launch.mpi_info().title in result.stderr and "too" in result.stderr
    assert "no Python environment" in smcoll("compare", "--peers", "/dev/null", code=2).stderr


# ---------------------------------------------------------------------- sweep


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    result = smcoll("sweep", "-n", 3, "--sizes", "8,8K", "--collectives", "bcast,allreduce",
                    "--fan-in", "1,2,3", "--fan-out", "2", "--arity", "2,3,4",
                    "--segment-sizes", "4K,16K",
                    "--budget", 0.002, "--json", folder / "out.json", "--plot", folder / "out.svg")
    return result, json.loads((folder / "out.json").read_text()), folder / "out.svg"


@pytest.mark.lengthy
def test_sweep_measures_every_variant(swept):
    rows = swept[1]["rows"]
    assert {row["valid"] for row in rows} == {True}
    for segment_size in (4096, 16384):
        variants = [(row["algorithm"], *(row[name] for name in ("fan_in", "fan_out", "arity")
                                         if name in row)) for row in rows
                    if row["collective"] == "allreduce" and row["bytes"] == 8
                    and row["segment_size"] == segment_size]
        # Two children at most: a radix of 3 is the same tree as one of 2.
        assert variants == [
            ("all_read",), ("fan_in_fan_out", 1, 2), ("fan_in_fan_out", 2, 2),
            ("recursive_doubling",), ("recursive_halving",), ("tiled",), ("reduce_broadcast", 2),
            ("reduce_broadcast", 3), ("dissemination",), ("tiled_cyclic",),
            ("tiled_hierarchical", 2), ("tiled_hierarchical", 3)]
    assert len(rows) == 2 * 2 * (12 + 6)


def test_sweep_prints_the_fastest_of_each_size(swept):
    best = min((row for row in swept[1]["rows"] if (row["collective"], row["bytes"]) == (
        "allreduce", 8192)), key=lambda row: row["smcoll_us"])
    section = swept[0].stdout.split("allreduce, 3 ranks")[1]
    line = next(line for line in section.splitlines() if line.split()[0] == "8192")
    assert best["algorithm"] in line and str(best["segment_size"]) in line


def test_sweep_figure_has_time_against_size_and_against_radix(swept):
    pytest.importorskip("matplotlib")
    text = swept[2].read_text()
    assert text.count('id="axes_') == 4


@pytest.mark.parametrize("arguments, text", [
    (["--collectives", "gather"], "choice of algorithms"),
    (["--fan-in", "0"], "numbers of children"),
    (["--fan-out", "2,x"], "numbers of children"),
    (["--arity", "1,2"], "n of at least 2"),
    (["--segment-sizes", "4Q"], "not a number of bytes"),
    (["--algorithms", "magic"], "magic"),
])
def test_sweep_refuses_bad_options(arguments, text):
    assert text in refusal("sweep", *arguments)


# ---------------------------------------------------------------------- sweep-nodes


@pytest.mark.lengthy
def test_sweep_nodes_measures_every_form(tmp_path):
    pytest.importorskip("matplotlib")
    result = smcoll("sweep-nodes", "-n", "2,3", "--pretend-nodes", 2, "--sizes", "8,64K",
                    "--budget", 0.005, "-r", 2, "--network-ranks", "1,2",
                    "--json", tmp_path / "out.json", "--plot", tmp_path / "out.svg")
    record = json.loads((tmp_path / "out.json").read_text())
    forms = ["tree", "dissemination", "tiled, 1 at once", "tiled, 2 at once"]
    assert [(row["ranks"], row["nodes"], row["collective"], row["bytes"], row["algorithm"])
            for row in record["rows"]] == [
        (ranks, 2, collective, nbytes, form) for ranks in (2, 3)
        for collective, nbytes in (("barrier", 0), ("allreduce", 8), ("allreduce", 65536))
        for form in (forms if nbytes else forms[:2])]
    assert {row["valid"] for row in record["rows"]} == {True}
    assert [[len(node["ranks"]) for node in job["nodes"]] for job in record["meta"]["jobs"]] == [
        [1, 1], [2, 1]]
    assert all(result.stdout.count(word) for form in forms for word in form.split())
    assert "allreduce, 3 ranks on 2 nodes" in result.stdout
    # Allreduce against size for each job; barrier and both sizes against ranks.
    assert (tmp_path / "out.svg").read_text().count('id="axes_') == 5


@pytest.mark.parametrize("arguments, text", [
    ([], "several nodes are needed"),
    (["--hosts", "h1:1,h2:1", "--pretend-nodes", "2"], "either"),
    (["--pretend-nodes", "3", "-n", "2"], "a node needs a rank"),
    (["--pretend-nodes", "2", "--forms", "magic"], "magic"),
    (["--pretend-nodes", "2", "--collectives", "bcast"], "bcast"),
])
def test_sweep_nodes_refuses_bad_options(arguments, text):
    assert text in refusal("sweep-nodes", *arguments)


def test_forms_across_nodes_need_several_nodes():
    result = smcoll("sweep-nodes", "-n", 2, "--pretend-nodes", 1, "--sizes", 8, code=1)
    assert "all ranks are on one node" in result.stderr


def test_plot(compared, tmp_path):
    pytest.importorskip("matplotlib")
    output.plot(tmp_path / "figure.svg", compared[1]["rows"], "title")
    text = (tmp_path / "figure.svg").read_text()
    assert text.lstrip().startswith("<?xml") and text.count('id="axes_') == 3


def test_plot_without_matplotlib_says_what_to_install(tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')")
    result = smcoll("compare", "-n", 2, "--plot", tmp_path / "x.png", code=2,
                    environment={"PYTHONPATH": str(tmp_path)})
    assert "smcoll[plot]" in result.stderr


# ---------------------------------------------------------------------- help, and first lines

COMMANDS = typer.main.get_command(app_of()).commands


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_groups_and_short_texts(name):
    command = COMMANDS[name]
    options = [one for one in command.params if one.name not in ("help", "program", "pids")]
    assert options and command.rich_help_panel
    for one in options:
        assert one.rich_help_panel, one.name
        assert 5 <= len(one.help) <= 100 and "\n" not in one.help, one.name
    # Paragraphs are shown line by line.
    assert max(map(len, command.help.splitlines())) <= 78
    text = CliRunner().invoke(app_of(), [name, "-h"], env={"COLUMNS": "80"}).output
    assert all(f"─ {one.rich_help_panel} ─" in text for one in options)
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) <= 100


ABOUT = re.compile(r": about (a second|\d+ seconds|\d+ minutes|[\d.]+ hours)$")


def test_the_first_line_says_what_a_measurement_does_and_how_long_it_takes(compared, swept):
    first = compared[0].stdout.splitlines()[0]
    assert first.startswith("Comparing 10 points (collective and size) on 2 ranks in 2 jobs: about")
    assert ABOUT.search(first)
    first = swept[0].stdout.splitlines()[0]
    assert first.startswith(f"Sweeping {len(swept[1]['rows'])} variants and sizes on 3 ranks in 1 ")
    assert ABOUT.search(first)


@pytest.mark.parametrize("command, words", [
    (["info"], "Looking at this machine"), (["info", "--config"], "All settings"),
    (["model", "--params", "westmere", "--topology", "core:2", "--collectives", "bcast"],
     "Predicting bcast")])
def test_the_first_line_says_what_is_shown(command, words):
    first = smcoll(*command).stdout.splitlines()[0]
    assert first.startswith(words) and ABOUT.search(first)


@pytest.mark.parametrize("seconds, text", [
    (0.5, "a second"), (12.3, "12 seconds"), (100, "2 minutes"), (3600 * 5, "5.0 hours")])
def test_durations_for_people(seconds, text):
    assert page.duration(seconds) == text
