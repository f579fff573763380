"""NEURON and PETSc, whose collectives are called in C, with and without smcoll under them.

(``--slow``; NEURON comes from PyPI, PETSc from Debian's packages, each into a folder of its own.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import petsc_environment
import pytest

from smcoll.launch import launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
HERE = Path(__file__).parent
DEADLINE = 300    # seconds, one job


@pytest.fixture(scope="session")
def neuron(tmp_path_factory) -> dict[str, str]:
    """Variables with which this Python finds NEURON, and what is installed here."""
    folder = tmp_path_factory.mktemp("neuron")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    result = subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet",
                             "neuron>=9"], capture_output=True, text=True, timeout=600, check=False)
    if result.returncode != 0:
        pytest.skip(f"pip install neuron: {result.stderr.strip()[-500:]}")
    path = [*(entry for entry in sys.path if entry), str(packages)]
    return {"PYTHONPATH": os.pathsep.join(path)}


@pytest.fixture(scope="session")
def petsc(tmp_path_factory) -> dict[str, str]:
    """Variables with which this Python finds petsc4py."""
    try:
        return petsc_environment.make(tmp_path_factory.mktemp("petsc"))
    except petsc_environment.Unavailable as error:
        pytest.skip(str(error))


def result_of(program: str, ranks: int, environment: dict[str, str], *options: str) -> dict:
    """What this program's rank 0 says."""
    job = launch.run(ranks, [sys.executable, str(HERE / program), "--json", *options], DEADLINE,
                     capture_output=True, text=True, stdin=subprocess.DEVNULL,
                     environment=environment | {"OPENBLAS_NUM_THREADS": "1"})
    assert job.returncode == 0, job.stdout[-3000:] + job.stderr[-3000:]
    return next(json.loads(line) for line in job.stdout.splitlines() if line.startswith("{"))


@pytest.mark.parametrize("ranks", [2, 4])
def test_neuron_has_the_same_spikes(neuron, capsys, ranks):
    plain = result_of("neuron_ring.py", ranks, neuron)
    alone = result_of("neuron_ring.py", 1, neuron, "--calls", "10")
    with capsys.disabled():
        print(f"\n{plain}")
    assert plain["spikes"] > 100_000
    assert plain["checksum"] == alone["checksum"]
    ours = result_of("neuron_ring.py", ranks, neuron, "--libraries")
    with capsys.disabled():
        print(ours)
    assert ours["checksum"] == plain["checksum"] and ours["spikes"] == plain["spikes"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_petsc_has_the_same_residuals(petsc, capsys, ranks):
    plain = result_of("petsc_ksp.py", ranks, petsc)
    with capsys.disabled():
        print("\n", {name: value for name, value in plain.items() if name != "history"})
    assert plain["last"] < 1e-6 * plain["first"] and plain["same_in_every_solve"]
    ours = result_of("petsc_ksp.py", ranks, petsc, "--libraries")
    with capsys.disabled():
        print({name: value for name, value in ours.items() if name != "history"})
    assert ours["residuals"] == plain["residuals"] and ours["same_in_every_solve"]
    # Two numbers have one sum; more of them another in each order.
    tolerance = 0 if ranks == 2 else 1e-6
    for mine, theirs in zip(ours["history"], plain["history"], strict=True):
        assert mine == pytest.approx(theirs, rel=tolerance, abs=0)
