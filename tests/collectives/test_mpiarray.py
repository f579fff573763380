"""The tests of mpiarray, a program that knows nothing of smcoll (``--slow``; needs PyPI)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from smcoll.launch import launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """Variables with which this Python finds mpiarray and what its tests import.

    In an environment of its own, thrown away later, where pip sees what is installed here.
    """
    folder = tmp_path_factory.mktemp("mpiarray")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", "mpiarray[test]"],
                   check=True, timeout=600)
    path = [*(entry for entry in sys.path if entry), str(packages)]
    return {"PYTHONPATH": os.pathsep.join(path)}


@pytest.mark.parametrize("ranks", [2, 4])
def test_mpiarrays_own_tests(environment, tmp_path, capsys, ranks):
    program = ["-m", "pytest", "--color=no", "-p", "no:cacheprovider", "--pyargs",
               "mpiarray.tests.unit", "--ignore-glob=*test_guides.py",
               "--ignore-glob=*test_examples.py"]
    passed = []
    for disable in ("1", "0"):
        job = launch.run(
            ranks, launch.own_command("run", *program), 400, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, cwd=tmp_path, environment=environment | {
                "SMCOLL_DISABLE": disable, "SMCOLL_VERBOSE": "1", "OPENBLAS_NUM_THREADS": "1"})
        assert job.returncode == 0, job.stdout[-5000:] + job.stderr[-5000:]
        passed.append(sorted(re.findall(r"(\d+) passed", job.stdout)))
        with capsys.disabled():
            print(f"\nmpiarray, {ranks} ranks, SMCOLL_DISABLE={disable}: passed {passed[-1]}")
            for line in job.stderr.splitlines():
                if line.startswith("smcoll: ") and "communicator" not in line:
                    print(line)
    assert passed[0] == passed[1] and len(passed[0]) == ranks
    assert "shared memory  " in job.stderr
