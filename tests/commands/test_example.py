"""The example program, whose centres equal the serial ones on both layers; bench/'s scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from smcoll.launch import launch

KMEANS = Path(__file__).resolve().parents[2] / "examples" / "kmeans.py"
SWEEP, PEERS, SUMMARY, LATE_RANK = (
    Path(__file__).resolve().parents[2] / "bench" / name
    for name in ("sweep.py", "peers.py", "summary.py", "late_rank.py"))


def run(*arguments):
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, env={**os.environ, "PYTHONPATH": path},
                          stdin=subprocess.DEVNULL, check=False)


@pytest.mark.lengthy
def test_kmeans_starts_its_own_ranks_and_equals_the_serial_result():
    pytest.importorskip("sklearn")
    result = run(KMEANS, "-n", 3, "--seeds", 1)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if "collectives in" in line]
    assert [line.split()[0] for line in lines] == ["mpi", "smcoll"]
    assert all("3 ranks" in line and "centres equal the serial ones" in line for line in lines)
    assert "time in collectives: MPI's own" in result.stdout


@pytest.mark.lengthy
def test_kmeans_has_as_many_centres_as_are_asked_for():
    pytest.importorskip("sklearn")
    result = run(KMEANS, "-n", 2, "--seeds", 1, "--clusters", 300, "--heap")
    assert result.returncode == 0 and result.stdout.count("centres equal") == 3, result.stderr
    result = run(KMEANS, "-n", 2, "--clusters", 1798)
    assert result.returncode == 2 and "there are 1797 images" in result.stderr


@pytest.mark.lengthy
def test_kmeans_finds_wrong_sums(tmp_path):
    pytest.importorskip("sklearn")
    # An Allreduce that forgets a rank must not pass.
    program = tmp_path / "wrong.py"
    program.write_text(f"""\
import sys
sys.path.insert(0, {str(KMEANS.parent)!r})
import kmeans
add_up = kmeans.sums_and_counts
from mpi4py import MPI
kmeans.parallel.__globals__["sums_and_counts"] = lambda images, labels, clusters: (
    add_up(images, labels, clusters) * (MPI.COMM_WORLD.rank != 1))
kmeans.serial = type(kmeans.serial)(kmeans.serial.__code__,
                                    dict(kmeans.__dict__, sums_and_counts=add_up))
sys.argv = ["kmeans.py", "--layer", "mpi", "--seeds", "1"]
sys.exit(kmeans.main())
""")
    job = launch.run(2, [sys.executable, str(program)], 60, capture_output=True, text=True,
                     stdin=subprocess.DEVNULL,
                     environment={"PYTHONPATH": os.pathsep.join(e for e in sys.path if e)})
    assert "DIFFER FROM" in job.stdout, job.stderr
    assert job.returncode == 1


@pytest.mark.lengthy
def test_sweep_script_writes_a_row_for_each_variant(tmp_path):
    result = run(SWEEP, "-n", 3, "--collectives", "allreduce", "--fan-in", "2,3", "--fan-out", 2,
                 "--algorithms", "tiled,fan_in_fan_out", "--segment-sizes", "4K,64K",
                 "--sizes", "8,64K", "--budget", "0.005", "--json", tmp_path / "sweep.json")
    assert result.returncode == 0, result.stderr
    rows = json.loads((tmp_path / "sweep.json").read_text())["rows"]
    # Radix 3 of 3 ranks is radix 2: 2 sizes of segments x 2 of messages x (1 + 1) variants.
    assert len(rows) == 8 and all(row["valid"] and row["smcoll_us"] > 0 for row in rows)


@pytest.mark.lengthy
def test_peers_and_summary_scripts_show_the_fastest_peer(tmp_path):
    file = tmp_path / "peers.json"
    result = run(PEERS, sys.prefix, "-n", 2, "--sizes", "8,1K", "--collectives", "barrier,scan",
                 "--budget", "0.01", "--json", file)
    assert result.returncode == 0, result.stderr
    rows = json.loads(file.read_text())["rows"]
    summary = run(SUMMARY, file)
    assert summary.returncode == 0, summary.stderr
    scan = next(line for line in summary.stdout.splitlines() if line.startswith("| scan"))
    ratios = [row["ratio"] for row in rows if row["collective"] == "scan"]
    assert [cell.strip(" *") for cell in scan.split("|")[2:-1]] == [f"{x:.2f}" for x in ratios]


def test_late_ranks_are_measured_on_both_layers(tmp_path):
    file = tmp_path / "late.json"
    result = run(LATE_RANK, "-n", 3, "--late", "0.1,3", "--rounds", 2, "--calls", 1, "--json", file)
    assert result.returncode == 0, result.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [(row["late_ms"], row["ranks"]) for row in rows] == [(0.1, 3), (3, 3)]
    assert all(0 < row[f"{name}_us"] <= row[f"{name}_us_90"] and row[f"{name}_cpu_ms"] >= 0
               for row in rows for name in ("mpi", "smcoll"))
    assert "late by ms" in result.stdout
    result = run(LATE_RANK, "-n", 1)
    assert result.returncode == 2 and "at least 2 ranks" in result.stderr
