"""mpi4py's own tests on top of smcoll (``--slow``; needs PyPI).

The sdist of the installed version is fetched. Each module runs twice, with and without smcoll, on
1 to 5 ranks: smcoll must add no failure, and its calls must really have gone through shared memory.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import mpi4py
import pytest

from smcoll.launch import launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODULES = {
    "buffers": "test_cco_buf test_cco_vec test_msgspec",
    "objects": "test_cco_obj test_pickle",
    "nonblocking": "test_cco_nb_buf test_cco_nb_vec",
    "persistent": "test_cco_pr_buf test_cco_pr_vec test_cco_pr_ngh_buf",
    "neighbourhood": "test_cco_ngh_buf test_cco_ngh_obj",
    "inter": "test_cco_buf_inter test_cco_vec_inter test_cco_obj_inter test_comm_inter",
    "communicators": "test_comm test_comm_topo test_group test_attributes test_op test_subclass",
}
# Made of calls that go through shared memory; the others use some by the way, or none.
INTERCEPTED = ("buffers", "objects")

DEADLINE = 200    # seconds for one run


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> Path:
    """The folder of mpi4py's tests, of the version that is installed."""
    folder = tmp_path_factory.mktemp("mpi4py")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "mpi4py",
         f"mpi4py=={mpi4py.__version__}"], cwd=folder, check=True, timeout=300)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (tests,) = folder.glob("mpi4py-*/test")
    return tests


class Run:
    """One run of some modules: how each test went, over all ranks, and what smcoll printed."""

    def __init__(self, ranks: int, tests: Path, modules: list[str], folder: Path, disable: bool):
        folder.mkdir()
        program = Path(__file__).parents[1] / "support" / "unittest_ranks.py"
        argv = [sys.executable, str(program), str(folder), str(tests), *modules]
        self.problem = ""
        with open(folder / "output", "w") as output:
            try:
                job = launch.run(
                    ranks, argv, DEADLINE, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, environment={
                        "SMCOLL_DISABLE": str(int(disable)), "SMCOLL_VERBOSE": "1",
                        "OPENBLAS_NUM_THREADS": "1",
                        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)})
                if job.returncode != 0:
                    self.problem = f"exit code {job.returncode}"
            except subprocess.TimeoutExpired:
                self.problem = f"no end after {DEADLINE} s"
        self.output = (folder / "output").read_text(errors="replace")
        self.started: set[str] = set()
        self.failed: dict[str, str] = {}
        for rank in range(ranks):
            self.read(rank, folder / f"rank-{rank}.jsonl")

    def read(self, rank: int, path: Path) -> None:
        """A test failed if it did on any rank, or was never ended by it."""
        lines = path.read_text().splitlines() if path.exists() else []
        records = [json.loads(line) for line in lines]
        running = None
        for record in records:
            running = record["test"] if record["outcome"] == "started" else None
            if record["outcome"] == "started":
                self.started.add(record["test"])
            elif record["outcome"] == "failed":
                self.failed.setdefault(record["test"], f"rank {rank}: {record['text']}")
        if running is not None:
            self.failed.setdefault(running, f"rank {rank} did not end it: {self.problem}")

    def intercepted(self) -> int:
        """Calls of rank 0 that went through shared memory, as smcoll's table says."""
        table = re.findall(r"^smcoll: \w+ +(\d+) +\d+ +[\d.]+  shared memory ", self.output,
                           re.MULTILINE)
        return sum(map(int, table))


@pytest.mark.parametrize("ranks", range(1, 6))
@pytest.mark.parametrize("subject", MODULES)
def test_mpi4pys_own_tests(sources, tmp_path, capsys, subject, ranks):
    modules = MODULES[subject].split()
    plain = Run(ranks, sources, modules, tmp_path / "plain", disable=True)
    ours = Run(ranks, sources, modules, tmp_path / "smcoll", disable=False)
    with capsys.disabled():
        print(f"\n{subject}, {ranks} ranks: {len(ours.started)} tests; failed with smcoll "
              f"{sorted(ours.failed)}, without {sorted(plain.failed)}; {ours.intercepted()} calls "
              "of rank 0 through shared memory")
    assert plain.started, plain.output
    added = {name: text for name, text in ours.failed.items() if name not in plain.failed}
    added |= dict.fromkeys(plain.started - ours.started, "was not reached")
    assert not added, "\n".join([*(f"{name}: {text}" for name, text in added.items()),
                                 ours.problem, ours.output[-3000:]])
    assert ours.problem == plain.problem, ours.output
    assert plain.intercepted() == 0
    if ranks > 1 and subject in INTERCEPTED:
        assert ours.intercepted() > 0
