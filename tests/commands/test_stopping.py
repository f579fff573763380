"""Commands that are stopped, or that could not write what they were started for."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from test_cli import refusal, smcoll

from smcoll.bench.measure_rank import RECORD_MARK
from smcoll.launch import launch


def words(text: str) -> str:
    """Without the frame around errors."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("command", [
    ["compare"], ["sweep"], ["sweep-nodes", "--pretend-nodes", "2"], ["tune"],
    ["model", "--params", "westmere", "--topology", "core:2"], ["info"]])
@pytest.mark.parametrize("option, name, message", [
    ("--json", "none/x.json", "No such file"), ("--csv", "folder", "Is a directory"),
    ("--plot", "x.gnu", "ends in none of"), ("--plot", "none/x.svg", "No such file")])
def test_impossible_files_are_refused_before_anything_is_measured(tmp_path, command, option, name,
                                                                  message):
    if command == ["info"] and option == "--csv":
        pytest.skip("info has no --csv")
    if option == "--plot":
        pytest.importorskip("matplotlib")
    (tmp_path / "folder").mkdir()
    began = time.monotonic()
    result = smcoll(*command, option, name, cwd=tmp_path, code=2)
    assert message in words(result.stderr)
    assert result.stdout == ""
    assert time.monotonic() - began < 20
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


def test_a_file_that_is_there_is_kept_until_the_new_one_is_written(tmp_path):
    (tmp_path / "x.json").write_text("old")
    smcoll("compare", "--json", tmp_path / "x.json", "--csv", "/nonexistent/x.csv", code=2)
    assert (tmp_path / "x.json").read_text() == "old"


def records_of(pid: int, folder: Path) -> int:
    """How many rows ranks have written into the files, without names in ``folder``, of a command
    and of those that it has started.
    """
    found = 0
    with contextlib.suppress(psutil.Error, OSError):
        found += sum(records_of(child.pid, folder) for child in psutil.Process(pid).children())
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return found
    for link in links:
        with contextlib.suppress(OSError):
            target = os.readlink(link)
            if target.startswith(str(folder)) and "(deleted)" in target:
                found += link.read_bytes().count(RECORD_MARK.encode())
    return found


@pytest.mark.parametrize("command", [
    ["compare"], ["sweep"], ["tune"], ["model", "--params", "westmere", "--topology", "core:2"]])
def test_a_figure_of_nothing_is_refused_before_anything_is_measured(tmp_path, command):
    pytest.importorskip("matplotlib")
    assert "a barrier has none" in refusal(*command, "--collectives", "barrier", "--plot",
                                           tmp_path / "x.svg")


def start_and_stop(folder, how, *arguments, measures=True):
    """Start a command, and send a signal when its job has measured something. The finished process.
    """
    folder.mkdir()
    process = subprocess.Popen(
        launch.own_command(*map(str, arguments)), stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "TMPDIR": str(folder)},
        # Who runs the tests in the background may ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        deadline = time.monotonic() + 60
        while not (records_of(process.pid, folder) if measures
                   else list(folder.glob("smcoll-job-*"))):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.1)
        if how == signal.SIGINT:
            os.killpg(process.pid, how)   # as a terminal does
        else:
            process.send_signal(how)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    return subprocess.CompletedProcess([], process.returncode, output, errors)


@pytest.mark.lengthy
@pytest.mark.parametrize("how, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("command", [
    ["compare", "-n", 2, "--budget", 0.2, "--collectives", "barrier,bcast,allreduce,alltoall"],
    ["compare", "-n", 2, "--budget", 0.2, "--collectives", "barrier,bcast,allreduce,alltoall",
     "--peers", sys.prefix],
    ["sweep", "-n", 2, "--budget", 0.05]], ids=["compare", "peers", "sweep"])
def test_what_was_measured_until_a_signal_is_kept_and_marked(tmp_path, how, code, command):
    result = start_and_stop(tmp_path / "tmp", how, *command, "--json", tmp_path / "x.json",
                            "--csv", tmp_path / "x.csv")
    assert result.returncode == code, result.stderr
    record = json.loads((tmp_path / "x.json").read_text())
    assert record["meta"]["partial"] == ("Ctrl-C" if how == signal.SIGINT else "SIGTERM")
    assert record["rows"] and all(row["partial"] for row in record["rows"])
    with open(tmp_path / "x.csv", newline="") as lines:
        assert [row["partial"] for row in csv.DictReader(lines)] == ["True"] * len(record["rows"])
    assert f"{len(record['rows'])} rows were measured" in result.stderr
    assert "partial" in result.stderr and "Traceback" not in result.stderr
    assert "2 ranks" in result.stdout
    assert list((tmp_path / "tmp").glob("smcoll-*")) == []


def test_a_tune_that_is_stopped_writes_no_table(tmp_path):
    result = start_and_stop(tmp_path / "tmp", signal.SIGTERM, "tune", "-n", 2, "--yes", "--table",
                            tmp_path / "table.json", "--json", tmp_path / "x.json")
    assert result.returncode == 143, result.stderr
    record = json.loads((tmp_path / "x.json").read_text())
    assert record["meta"]["partial"] == "SIGTERM" and record["tables"] == []
    assert not (tmp_path / "table.json").exists()


def test_sigterm_leaves_no_folder_of_a_job_behind(tmp_path):
    program = tmp_path / "sleep.py"
    program.write_text("import time\ntime.sleep(100)\n")
    result = start_and_stop(tmp_path / "tmp", signal.SIGTERM, "run", "-n", 2, program,
                            measures=False)
    assert result.returncode == 143
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_signal_while_a_job_is_being_started_leaves_nothing_behind(tmp_path, monkeypatch):
    """It comes when the folder is there and mpiexec runs, but nobody knows of either yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(launch, "command", lambda *_, **__: (["sleep", "100"], dict(os.environ)))
    begun = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **named):
            assert len(list(tmp_path.iterdir())) == 1
            super().__init__(*arguments, **named)
            begun.append(self)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(launch.Terminated), launch.job(2, ["program"]):
        pytest.fail("the block of a job that was ended")
    assert begun[0].poll() is not None
    assert list(tmp_path.iterdir()) == []


def test_signals_are_held_within_a_block_whose_signals_somebody_handles_already():
    with launch.Signals(), pytest.raises(launch.Terminated):
        with launch.Signals() as inner, inner.held():
            os.kill(os.getpid(), signal.SIGTERM)
            reached = True
        pytest.fail("not raised at the end of what held it")
    assert reached
