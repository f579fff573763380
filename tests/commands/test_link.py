"""The link surface: other Cython code calls the engine on raw pointers, without the GIL."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import programs
import pytest

pytestmark = pytest.mark.lengthy

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "link"

PROGRAM = """
    import numpy as np
    import smcoll
    from mpi4py import MPI
    from residual import norms

    world = MPI.COMM_WORLD
    # Where arrays may lie in heaps, the first call agrees on memory for others, which counts.
    with smcoll.Comm(world, smcoll.Config(heap=False)) as comm:
        calls = comm.engine.calls
        mine = np.arange(10.0) * (world.rank + 1)
        two, largest = norms(comm, mine.copy(), 3)
        every = np.arange(10.0) * (np.arange(world.size)[:, None] + 1) / 8
        assert abs(two - np.sqrt((every ** 2).sum())) < 1e-12 and largest == every.max()
        assert comm.engine.calls == calls + 8
        row, = [row for row in comm.stats() if row["collective"] == "allreduce"]
        assert row["calls"] == 8 and row["path"] == "shared memory"
    with smcoll.Comm(MPI.COMM_SELF) as comm:
        try:
            norms(comm, mine, 1)
        except RuntimeError as error:
            assert "no shared segment" in str(error)
        else:
            raise AssertionError("no error")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("link")
    for file in EXAMPLE.iterdir():
        if file.suffix in (".py", ".pyx"):
            shutil.copy(file, folder)
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=folder,
                   check=True, timeout=120)
    return folder


@pytest.mark.parametrize("ranks", [2, 3])
def test_another_module_calls_an_allreduce_without_the_gil(built, ranks):
    paths = os.pathsep.join([str(built), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = programs.run_ranks(ranks, PROGRAM, environment={"PYTHONPATH": paths}, alone=True)
    assert result.returncode == 0, result.stderr
