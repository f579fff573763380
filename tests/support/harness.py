"""Runs tests inside mpiexec jobs, driven by an ordinary pytest process outside.

``@pytest.mark.mpi(2, 3, 5)`` makes one item per rank count of a test. All items of one rank count
share one mpiexec job, started when the first of them is run: to start the ranks takes longer than
most tests. Files marked ``own_job`` have one each. Every rank of the job runs a pytest session of
its own, which waits for the outer process to say which test is next::

    outer pytest                          rank r of the job
    ------------                          -----------------
    starts mpiexec                        collects the files, reports "ready"
    appends a node id to `commands`  -->  runs that test, appends the outcome to `rank-<r>.jsonl`
    waits for the outcomes of all ranks   enters a nonblocking barrier, polls `commands` asleep

Nothing here relies on MPI to report: a rank that hangs in MPI or in smcoll is one whose outcome is
missing. When that happens (the deadline passed, or another rank failed and the rest did not come
within ``GRACE`` seconds), the stacks of the missing ranks are collected (SIGUSR1, faulthandler),
the job is killed, the test fails, and the next test gets a fresh job.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import ClassVar

import pretend
import pytest

DEADLINE = 120.0  # seconds a test may take inside a job
START_DEADLINE = 120.0  # seconds until every rank has collected its tests
END_DEADLINE = 60.0  # seconds from "stop" until mpiexec has ended
GRACE = 10.0  # seconds that the other ranks have after the first one failed
POLL = 0.002

_ranks_of_this_job: int | None = None
_running: list[Job] = []


def inside_job() -> int | None:
    """The number of ranks of the job that this process is a rank of; None in the outer process."""
    return _ranks_of_this_job


# ---------------------------------------------------------------------- the outer process


class MpiFailure(Exception):
    """Some ranks of a job failed a test; the text says which and how."""


class Job:
    """One mpiexec job that runs tests of these files with one number of ranks."""

    def __init__(self, files: list[Path], ranks: int, config: pytest.Config):
        from smcoll.launch import launch

        self.ranks = ranks
        self.directory = Path(tempfile.mkdtemp(prefix="mpi-tests-"))
        self.outcomes: list[list[dict]] = [[] for _ in range(ranks)]
        self._offsets = [0] * ranks
        self._asked = 0
        description = {
            "files": list(map(str, files)),
            "ranks": ranks,
            "sys_path": sys.path,
            "rootdir": str(config.rootpath),
            "import_mode": config.getoption("importmode"),
            "nodes": config.getoption("nodes"),
        }
        (self.directory / "job.json").write_text(json.dumps(description))
        (self.directory / "commands").touch()
        (self.directory / "pytest.ini").write_text("[pytest]\n")
        program = [sys.executable, str(Path(__file__).resolve()), str(self.directory)]
        options, pretended = pretend.settings(ranks, config.getoption("nodes"), self.directory)
        arguments, environment = launch.command(ranks, program, extra_options=options,
                                                session_directory=self.directory)
        environment = {
            name: value for name, value in environment.items() if not name.startswith("PYTEST_")
        }
        # Ranks outnumber cores: no threads beside them, and no plugins that they don't use.
        environment |= {"OPENBLAS_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environment |= pretended
        with open(self.directory / "output", "wb") as output:
            self.process = subprocess.Popen(
                arguments,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=launch.end_with_parent,
            )
        _running.append(self)
        try:
            self._collect("start of the job", START_DEADLINE)
        except BaseException:
            self.kill()
            raise

    def run(self, nodeid: str, deadline: float) -> None:
        """Run one test on all ranks. Raises MpiFailure, or pytest's Skipped."""
        self._command({"test": nodeid})
        try:
            records = self._collect(nodeid, deadline)
        except BaseException:
            self.kill()
            raise
        skipped = [record for record in records if record["outcome"] == "skipped"]
        if len(skipped) == self.ranks:
            pytest.skip(skipped[0]["text"])
        if skipped:
            self.kill()
            raise MpiFailure(f"{len(skipped)} of {self.ranks} ranks skipped this test")

    def stop(self) -> None:
        """Let the ranks end (MPI_Finalize, atexit); MpiFailure when they don't end well."""
        self._command({"stop": True})
        try:
            code = self.process.wait(END_DEADLINE)
        except subprocess.TimeoutExpired:
            text = f"the job did not end within {END_DEADLINE:.0f} s of its last test\n"
            text += self._stacks(range(self.ranks))
            self.kill()
            raise MpiFailure(text) from None
        output = self._output()
        self.kill()
        if code != 0:
            raise MpiFailure(f"mpiexec ended with exit code {code} after the last test\n{output}")

    def kill(self) -> None:
        """End mpiexec, and every rank that it leaves behind; forget the job."""
        if self not in _running:
            return
        _running.remove(self)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for rank in range(self.ranks):
            self._signal(rank, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _command(self, command: dict) -> None:
        with open(self.directory / "commands", "a") as commands:
            commands.write(json.dumps(command) + "\n")
        self._asked += 1

    def _collect(self, what: str, deadline: float) -> list[dict]:
        """Wait for the next record of every rank; MpiFailure if one failed or is missing."""
        began = time.monotonic()
        give_up = began + deadline
        records: dict[int, dict] = {}
        while len(records) < self.ranks:
            arrived = {
                rank: record
                for rank in range(self.ranks)
                if rank not in records and (record := self._next_record(rank)) is not None
            }
            records |= arrived
            now = time.monotonic()
            if any(record["outcome"] == "failed" for record in arrived.values()):
                give_up = min(give_up, now + GRACE)
            if len(records) == self.ranks:
                break
            if self.process.poll() is not None:
                time.sleep(0.1)  # what ranks wrote just before may still be on its way
                missing = [rank for rank in range(self.ranks) if rank not in records]
                records |= {r: rec for r in missing if (rec := self._next_record(r)) is not None}
                if len(records) < self.ranks:
                    self._fail(what, records, f"mpiexec ended ({self.process.returncode})")
            elif now > give_up:
                self._fail(what, records, f"no answer after {now - began:.0f} s")
            elif not arrived:
                time.sleep(POLL)
        if any(record["outcome"] == "failed" for record in records.values()):
            self._fail(what, records, "")
        return [records[rank] for rank in range(self.ranks)]

    def _fail(self, what: str, records: dict[int, dict], reason: str) -> None:
        missing = [rank for rank in range(self.ranks) if rank not in records]
        failed = sorted(rank for rank, rec in records.items() if rec["outcome"] == "failed")
        passed = sorted(rank for rank, rec in records.items() if rec["outcome"] == "passed")
        lines = [f"{what}: {self.ranks} ranks: failed {failed}, passed {passed}"]
        if missing:
            lines.append(f"missing {missing}: {reason}")
        seen: dict[str, int] = {}
        for rank in failed:
            text = records[rank]["text"]
            summary = records[rank]["summary"]
            if summary in seen:
                lines.append(f"---- rank {rank}: as rank {seen[summary]}: {summary}")
            else:
                lines.append(f"---- rank {rank}:\n{text}" if len(seen) < 3
                             else f"---- rank {rank}: {summary}")
                seen[summary] = rank
        if missing:
            lines.append(self._stacks(missing))
        lines.append(self._output())
        raise MpiFailure("\n".join(line for line in lines if line))

    def _stacks(self, ranks) -> str:
        """Where these ranks are: their Python stacks, one text for ranks at the same place."""
        ranks = [rank for rank in ranks if self._signal(rank, signal.SIGUSR1)]
        time.sleep(0.5)
        places: dict[str, list[int]] = {}
        for rank in range(self.ranks):
            with contextlib.suppress(OSError):
                stack = (self.directory / f"rank-{rank}.stack").read_text().strip()
                if stack:
                    places.setdefault(_own_frames(stack), []).append(rank)
        return "\n".join(f"---- stack of ranks {who}:\n{stack}" for stack, who in places.items())

    def _signal(self, rank: int, number: signal.Signals) -> bool:
        try:
            pid = int((self.directory / f"rank-{rank}.pid").read_text())
            program = Path(f"/proc/{pid}/cmdline").read_bytes()
            # The number may have gone to another process since.
            if str(self.directory).encode() not in program:
                return False
            os.kill(pid, number)
        except (OSError, ValueError):
            return False
        return True

    def _next_record(self, rank: int) -> dict | None:
        path = self.directory / f"rank-{rank}.jsonl"
        try:
            if path.stat().st_size <= self._offsets[rank]:
                return None
            with open(path) as lines:
                lines.seek(self._offsets[rank])
                line = lines.readline()
        except OSError:
            return None
        if not line.endswith("\n"):
            return None
        self._offsets[rank] += len(line.encode())
        return json.loads(line)

    def _output(self) -> str:
        with contextlib.suppress(OSError):
            text = (self.directory / "output").read_text(errors="replace").strip()
            if text:
                return f"---- output of the job:\n{text[-4000:]}"
        return ""


def _own_frames(stack: str) -> str:
    """The frames of a faulthandler dump down to pytest's own, without thread ids."""
    frames = []
    for line in stack.splitlines():
        if "_pytest" in line or "pluggy" in line:
            break
        frames.append("Thread:" if "hread 0x" in line else line)
    return "\n".join(frames)


def kill_jobs() -> None:
    """End every job that is still there (interrupted session)."""
    for job in list(_running):
        job.kill()


class MpiItem(pytest.Item):
    """One test with one rank count, run by a job."""

    # By key: the number of ranks, and the file if it has jobs of its own.
    jobs: ClassVar[dict[tuple[int, str], Job]] = {}
    files: ClassVar[dict[tuple[int, str], list[Path]]] = {}

    def __init__(self, *, function: pytest.Function, **kwargs):
        super().__init__(**kwargs)
        self.ranks = function.callspec.params["mpi_ranks"]
        alone = function.get_closest_marker("own_job") is not None
        self.key = (self.ranks, str(function.path) if alone else "")
        self.last_of_job = False
        self.own_markers = list(function.own_markers)
        self.keywords.update(function.keywords)
        self._location = function.location

    def runtest(self) -> None:
        for key, other in self.jobs.items():
            # Its last item may have been one that is skipped out here.
            if key != self.key and other in _running:
                other.stop()
        job = self.jobs.get(self.key)
        if job is None or job not in _running:
            job = self.jobs[self.key] = Job(self.files[self.key], self.ranks, self.config)
        try:
            job.run(self.nodeid, self.get_closest_marker("mpi").kwargs.get("deadline", DEADLINE))
        finally:
            if self.last_of_job and job in _running:
                job.stop()

    def repr_failure(self, excinfo, style=None):
        if isinstance(excinfo.value, MpiFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self._location[0], self._location[1], self._location[2]


def replace_mpi_items(session: pytest.Session, items: list[pytest.Item]) -> list[pytest.Item]:
    """Marked functions become MpiItems, in an order in which one job at a time is alive."""
    result: list[pytest.Item] = []
    for item in items:
        if item.get_closest_marker("mpi") is not None and "mpi_ranks" in item.callspec.params:
            item = MpiItem.from_parent(item.parent, name=item.name, function=item)
        result.append(item)
    # The other tests stay where they are, before all jobs.
    result.sort(key=lambda item: getattr(item, "key", (0, "")))
    jobs = [item for item in result if isinstance(item, MpiItem)]
    MpiItem.files = {key: list(dict.fromkeys(item.path for item in jobs if item.key == key))
                     for key in {item.key for item in jobs}}
    last = {item.key: item for item in jobs}
    for item in last.values():
        item.last_of_job = True
    return result


# ---------------------------------------------------------------------- a rank of a job


class RankPlugin:
    """Runs in each rank what the outer process asks for, and reports the outcome."""

    def __init__(self, directory: Path, rank: int, sync):
        self.directory = directory
        self.rank = rank
        self.sync = sync
        self.report_file = open(directory / f"rank-{rank}.jsonl", "a", buffering=1)  # noqa: SIM115
        self.collect_errors: list[str] = []

    def report(self, outcome: str, text: str = "", summary: str = "") -> None:
        record = {"outcome": outcome, "text": text, "summary": summary}
        self.report_file.write(json.dumps(record) + "\n")

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.collect_errors.append(str(report.longrepr))

    def pytest_sessionfinish(self) -> None:
        if self.collect_errors:  # pytest_runtestloop is not reached then
            self.report("failed", "\n".join(self.collect_errors), "collection")

    def pytest_runtestloop(self, session) -> bool:
        if self.collect_errors:
            return True
        items = {item.nodeid: item for item in session.items}
        # `run` collects garbage behind each test: not through all of pytest's items each time.
        gc.collect()
        gc.freeze()
        self.report("passed")
        with open(self.directory / "commands") as commands:
            while True:
                command = self.next_command(commands)
                if "stop" in command:
                    return True
                item = items.get(command["test"])
                if item is None:
                    self.report("failed", f"{command['test']} was not collected here", "collection")
                else:
                    self.run(item)
                self.synchronise()

    def next_command(self, commands) -> dict:
        text = ""
        while not text.endswith("\n"):
            part = commands.readline()
            text += part
            if not part:
                # The outer process is gone, and its directory with it.
                if not self.directory.exists():
                    return {"stop": True}
                time.sleep(POLL)
        return json.loads(text)

    def run(self, item: pytest.Item) -> None:
        from _pytest.runner import runtestprotocol

        reports = runtestprotocol(item, nextitem=None, log=False)
        # Failed communicators, kept by tracebacks, end here and not in the midst of another test.
        gc.collect()
        failed = [report for report in reports if report.failed]
        skipped = [report for report in reports if report.skipped]
        if failed:
            summary = failed[0].longreprtext.strip().splitlines()
            text = "\n".join(
                f"{report.longreprtext}\n"
                + "\n".join(f"[{title}]\n{section}" for title, section in report.sections)
                for report in failed
            )
            self.report("failed", text, _error_line(summary))
        elif skipped:
            reason = skipped[0].longrepr
            text = reason[2] if isinstance(reason, tuple) else str(reason)
            self.report("skipped", text.removeprefix("Skipped: "))
        else:
            self.report("passed")

    def synchronise(self) -> None:
        """Wait, asleep, for all ranks: MPI makes progress for those that still need it."""
        request = self.sync.Ibarrier()
        while not request.Test():
            time.sleep(POLL)


def _error_line(lines: list[str]) -> str:
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return errors[0] if errors else (lines[-1] if lines else "")


def rank_main(directory: Path) -> int:
    """A rank's whole life."""
    global _ranks_of_this_job

    job = json.loads((directory / "job.json").read_text())
    sys.path[:] = job["sys_path"]
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.Get_rank()
    if MPI.COMM_WORLD.Get_size() != job["ranks"]:
        raise RuntimeError(f"{MPI.COMM_WORLD.Get_size()} ranks instead of {job['ranks']}")
    if job["nodes"] > 1 and job["ranks"] > 1:
        pretend.enter_node(MPI.COMM_WORLD, job["nodes"])
    (directory / f"rank-{rank}.pid").write_text(str(os.getpid()))
    stack = open(directory / f"rank-{rank}.stack", "w")  # noqa: SIM115
    faulthandler.enable(stack)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    _ranks_of_this_job = job["ranks"]
    plugin = RankPlugin(directory, rank, MPI.COMM_WORLD.Dup())
    arguments = [
        *job["files"],
        "-c", str(directory / "pytest.ini"),
        "--rootdir", job["rootdir"],
        "--confcutdir", str(Path(__file__).parents[1]),
        "--import-mode", job["import_mode"],
        "--nodes", str(job["nodes"]),
        "--runxfail",  # the outer process heeds xfail
        "-p", "no:terminal",
        "-p", "no:cacheprovider",
        "-p", "no:faulthandler",
        "-p", "no:unraisableexception",
    ]  # fmt: skip
    code = pytest.main(arguments, plugins=[plugin])
    faulthandler.disable()
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else int(code)


if __name__ == "__main__":
    import harness  # this very file, under the name that conftest.py imports

    sys.exit(harness.rank_main(Path(sys.argv[1])))
