"""The harness itself: what a test that fails, hangs or dies in a job looks like outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lengthy

INNER_TESTS = '''
import os
import signal
import time
from pathlib import Path

import pytest


@pytest.mark.mpi(1, 2)
@pytest.mark.parametrize("value", [1, 2])
def test_passes(comm_world, mpi_ranks, value):
    # All ranks of a job are children of one process.
    Path(__file__).with_name(f"job-{mpi_ranks}-{os.getppid()}").touch()
    assert comm_world.allreduce(value) == mpi_ranks * value


@pytest.mark.mpi(2)
def test_fails_on_one(comm_world):
    assert comm_world.rank == 0, "rank one says no"


@pytest.mark.mpi(2)
def test_fails_and_hangs(comm_world):
    if comm_world.rank == 1:
        raise RuntimeError("rank one gave up")
    comm_world.recv(source=1)


@pytest.mark.mpi(2, deadline=1)
def test_hangs(comm_world):
    time.sleep(1000)


@pytest.mark.mpi(2)
def test_dies(comm_world):
    if comm_world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)


@pytest.mark.mpi(2)
def test_skips(comm_world):
    pytest.skip("not today")


@pytest.mark.mpi(2)
def test_skips_on_one(comm_world):
    if comm_world.rank == 0:
        pytest.skip("rank zero only")


@pytest.mark.mpi(2)
@pytest.mark.xfail(strict=True)
def test_expected_to_fail(comm_world):
    raise AssertionError


@pytest.fixture
def broken():
    yield
    raise RuntimeError("teardown")


@pytest.mark.mpi(2)
def test_teardown_fails(comm_world, broken):
    pass


@pytest.mark.mpi(2)
def test_last(comm_world):
    assert comm_world.size == 2


def test_without_mpi():
    pass
'''

EXPECTED = {
    "test_passes[1ranks-1]": "PASSED",
    "test_passes[1ranks-2]": "PASSED",
    "test_passes[2ranks-1]": "PASSED",
    "test_passes[2ranks-2]": "PASSED",
    "test_fails_on_one[2ranks]": "FAILED",
    "test_fails_and_hangs[2ranks]": "FAILED",
    "test_hangs[2ranks]": "FAILED",
    "test_dies[2ranks]": "FAILED",
    "test_skips[2ranks]": "SKIPPED",
    "test_skips_on_one[2ranks]": "FAILED",
    "test_expected_to_fail[2ranks]": "XFAIL",
    "test_teardown_fails[2ranks]": "FAILED",
    "test_last[2ranks]": "PASSED",
    "test_without_mpi": "PASSED",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("suite")
    tests = Path(__file__).parents[1]
    shutil.copytree(tests / "support", path / "support")
    conftest = (tests / "conftest.py").read_text()
    (path / "conftest.py").write_text(conftest + "\nharness.GRACE = 1.0\n")
    (path / "test_inner.py").write_text(INNER_TESTS)
    return path


def run_pytest(directory, *options) -> str:
    arguments = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options]
    # The inner pytest finds smcoll where this one found it.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    result = subprocess.run(
        arguments, cwd=directory, env=os.environ | {"PYTHONPATH": path}, text=True,
        capture_output=True, timeout=200,
    )  # fmt: skip
    return result.stdout + result.stderr


def outcomes(output: str) -> dict[str, str]:
    lines = [line.split() for line in output.splitlines() if line.startswith("test_inner.py::")]
    return {
        words[0].removeprefix("test_inner.py::"): words[1]
        for words in lines
        if len(words) > 1 and words[1] in ("PASSED", "FAILED", "SKIPPED", "XFAIL", "ERROR")
    }


@pytest.fixture(scope="module")
def output(directory):
    return run_pytest(directory, "test_inner.py")


def test_each_test_has_its_own_outcome(output):
    """A failure ends the job, and the tests behind it run in a fresh one."""
    assert outcomes(output) == EXPECTED, output


@pytest.mark.parametrize("text", [
    "failed [1], passed [0]",
    "rank one says no",
    "rank one gave up",
    "---- stack of ranks [0]:",
    "---- stack of ranks [0, 1]:",
    "no answer after 1 s",
    "mpiexec ended",
    "1 of 2 ranks skipped this test",
    "RuntimeError: teardown",
])  # fmt: skip
def test_failures_say_what_happened(output, text):
    assert text in output


def test_one_job_per_rank_count(directory):
    for file in directory.glob("job-*"):
        file.unlink()
    output = run_pytest(directory, "test_inner.py", "-k", "passes")
    assert set(outcomes(output).values()) == {"PASSED"}, output
    jobs = sorted(file.name.split("-")[1] for file in directory.glob("job-*"))
    assert jobs == ["1", "2"]


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_single_test_and_import_mode(directory, mode):
    node = "test_inner.py::test_passes[2ranks-2]"
    output = run_pytest(directory, f"--import-mode={mode}", node)
    assert outcomes(output) == {"test_passes[2ranks-2]": "PASSED"}, output
