"""MPICH's own tests of collectives (test/mpi/coll, in C), run by the ranks of Python jobs.

    python tests/libraries/mpich_coll.py [-n 2,4,5,8] [--libraries] [--sources DIR] [--json FILE]

The tests come with Debian's source package of mpich (``apt-get source``, into a folder of their
own; nothing of apt's settings is changed), are compiled as shared objects against the mpi.h that
lies beside the installed MPI, and are called one after the other by ranks that have imported
mpi4py.MPI, and with ``--libraries`` have said ``smcoll.install(libraries=True)``. A test passes if
rank 0 prints "No Errors" and main() returns 0 on all ranks. One that fails, crashes or hangs ends
its job, and is tried once more in a job of its own, whose word counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
RANKS = (2, 4, 5, 8)
DEADLINE = 120.0    # seconds for one test, with ranks that outnumber cores
START = 60.0        # seconds until a job's ranks have begun their first test

# What the tests are given, besides what MPICH's own list says; dtpools wants to be told.
ARGUMENTS = {
    "allred": ["-count=10"],
    "bcast": ["-type=MPI_INT", "-count=1000", "-seed=7", "-testsize=8"],
}
LEFT_OUT = {
    "gather_big": "needs 20 GB",
}
# From configure; the machine is a Linux with glibc, as everywhere in smcoll.
CONFIG = """\
#include <stdint.h>
#define THREAD_PACKAGE_NAME THREAD_PACKAGE_POSIX
#define POINTERINT_t long
#define STDC_HEADERS 1
"""
CONFIG += "".join(f"#define HAVE_{name} 1\n" for name in (
    "STDARG_H", "STDLIB_H", "STDINT_H", "INTTYPES_H", "STRING_H", "STRINGS_H", "UNISTD_H",
    "MEMORY_H", "SYS_TYPES_H", "SYS_TIME_H", "SYS_STAT_H", "SYS_RESOURCE_H", "GETRUSAGE",
    "LIMITS_H", "PTHREAD_H", "USLEEP", "STRDUP", "LONG_LONG", "LONG_DOUBLE", "MEMSET",
    "FLOAT__COMPLEX", "DOUBLE__COMPLEX", "LONG_DOUBLE__COMPLEX", "_BOOL"))
CONFIG += "#define USE_LONG_DOUBLE_COMPLEX 1\n"
CONFIG += "".join(f"#define SIZEOF_{name} {size}\n" for name, size in (
    ("SHORT", 2), ("INT", 4), ("LONG", 8), ("LONG_LONG", 8), ("VOID_P", 8), ("MPI_OFFSET", 8)))


class Unavailable(RuntimeError):
    """Something that these tests need can't be had here; the text says what."""


# ---------------------------------------------------------------------- what is run


def fetch(folder: Path) -> Path:
    """MPICH's folder test/mpi, fetched by apt into ``folder``.

    apt's lists of sources are made there from the machine's own entries for packages.
    """
    for program in ("apt-get", "tar"):
        if shutil.which(program) is None:
            raise Unavailable(f"there is no {program}")
    for part in ("parts", "lists/partial", "cache/archives/partial"):
        (folder / "apt" / part).mkdir(parents=True, exist_ok=True)
    apt = Path("/etc/apt")
    entries = [apt / "sources.list", *sorted(apt.glob("sources.list.d/*"))]
    for path in entries:
        if not path.is_file() or path.suffix not in (".list", ".sources"):
            continue
        text = path.read_text()
        text = re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.MULTILINE)
        text = re.sub(r"^deb\s", "deb-src ", text, flags=re.MULTILINE)
        (folder / "apt" / "parts" / path.name).write_text(text)
    base = folder / "apt"
    options = [f"-oDir::Etc::sourcelist={base}/none", f"-oDir::Etc::sourceparts={base}/parts",
               f"-oDir::State::lists={base}/lists", f"-oDir::Cache={base}/cache",
               "-oAPT::Sandbox::User=root", "-q"]
    for command in (["update"], ["source", "--download-only", "mpich"]):
        result = subprocess.run(["apt-get", *options, *command], cwd=folder, capture_output=True,
                                text=True, timeout=300, check=False)
        if result.returncode != 0:
            raise Unavailable(f"apt-get {' '.join(command)}: {result.stderr.strip()[-500:]}")
    archives = [*folder.glob("mpich_*.orig.tar.*"), *folder.glob("mpich_*.tar.*")]
    if not archives:
        raise Unavailable("apt-get source mpich brought no archive")
    with tarfile.open(archives[0]) as tar:
        wanted = [member for member in tar
                  if re.match(r"[^/]+/test/mpi/(coll|util|include|dtpools)/", member.name)]
        tar.extractall(folder, members=wanted, filter="data")
    return next(folder.glob("*/test/mpi"))


def header_folder() -> Path:
    """Where the mpi.h of the MPI lies that mpi4py loads."""
    from smcoll.launch import launch

    library = Path(launch.mpi_info().library)
    for base in (library.parent.parent, Path(sys.prefix)):
        if (base / "include" / "mpi.h").exists():
            return base / "include"
    raise Unavailable(f"there is no mpi.h beside {library}")


class Compiled:
    """The tests as shared objects in a folder."""

    def __init__(self, sources: Path, folder: Path):
        from smcoll.launch import launch

        self.compiler = os.environ.get("CC", "cc")
        if shutil.which(self.compiler) is None:
            raise Unavailable(f"there is no C compiler {self.compiler!r}")
        self.folder = folder
        self.library = launch.mpi_info().library
        # dtpools includes "../dtpoolsconf.h".
        (folder / "inside").mkdir(parents=True, exist_ok=True)
        for name in ("mpitestconf.h", "dtpoolsconf.h"):
            (folder / name).write_text(CONFIG)
        # The process goes on after a test: MPI_Finalize is Python's to call.
        (folder / "stay.c").write_text("int mtest_stays_initialised(void) { return 0; }\n")
        self.flags = ["-O1", "-w", "-fPIC", "-std=gnu11", "-DMPI_Finalize=mtest_stays_initialised",
                      f"-I{folder}", f"-I{folder}/inside",
                      f"-I{sources}/include", f"-I{sources}/dtpools/include",
                      f"-I{header_folder()}"]
        helpers = [sources / "util" / name for name in
                   ("mtest.c", "mtest_common.c", "mtest_thread.c", "dtypes.c")]
        helpers += [*sorted((sources / "dtpools" / "src").glob("*.c")), folder / "stay.c"]
        self.problems: dict[str, str] = {}
        files = sorted((sources / "coll").glob("*.c"))
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            self.objects = list(pool.map(self.helper, helpers))
            done = list(pool.map(self.test, files))
        self.tests = [path.stem for path, works in zip(files, done, strict=True) if works]

    def helper(self, path: Path) -> Path:
        """Compile what all tests share."""
        target = self.folder / f"{path.stem}.o"
        result = subprocess.run([self.compiler, *self.flags, "-c", str(path), "-o", str(target)],
                                capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise Unavailable(f"{path.name} can't be compiled: {result.stderr[:1000]}")
        return target

    def test(self, path: Path) -> bool:
        """Compile one test; False, and a line in ``problems``, if that fails."""
        if path.stem in LEFT_OUT:
            self.problems[path.stem] = LEFT_OUT[path.stem]
            return False
        # -Bsymbolic: some have a variable named err, as a function of libc is.
        command = [self.compiler, *self.flags, "-shared", "-Dmain=mtest_main", str(path),
                   *map(str, self.objects), "-o", str(self.folder / f"{path.stem}.so"),
                   self.library, "-lm", "-Wl,--no-undefined", "-Wl,-Bsymbolic"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            lines = [line for line in result.stderr.splitlines() if "error:" in line
                     or "undefined reference" in line]
            self.problems[path.stem] = (lines or ["fails"])[0].split("error: ")[-1]
            return False
        return True


# ---------------------------------------------------------------------- a rank


def rank_main(folder: Path, tests: list[str], libraries: bool) -> int:
    """Run these tests one after the other, each with its output in a file."""
    import ctypes
    import faulthandler

    import begin

    MPI = begin.begin(libraries)
    world = MPI.COMM_WORLD
    between = MPI.Intracomm(world).Dup() if not libraries else world.Dup()
    libc = ctypes.CDLL(None)
    rank = world.Get_rank()
    stack = open(folder / f"stack-{rank}", "w")  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    records = open(folder / f"rank-{rank}.jsonl", "a", buffering=1)  # noqa: SIM115
    compiled = folder.parent
    usual = os.dup(1)
    for name in tests:
        records.write(json.dumps({"test": name, "outcome": "started"}) + "\n")
        output = os.open(folder / f"{name}.{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1)
        os.close(output)
        library = ctypes.CDLL(str(compiled / f"{name}.so"), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        words = [name.encode(), *(word.encode() for word in ARGUMENTS.get(name, []))]
        argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
        code = library.mtest_main(len(words), argv)
        libc.fflush(None)
        os.dup2(usual, 1)
        world.Set_errhandler(MPI.ERRORS_ARE_FATAL)
        records.write(json.dumps({"test": name, "outcome": "ended", "code": code}) + "\n")
        request = between.Ibarrier()
        while not request.Test():
            time.sleep(0.001)
        if rank == 0:
            counted = begin.served() if libraries else None
            (folder / "counted").write_text(json.dumps(counted))
            (folder / "counted").replace(folder / "served.json")   # whole, whenever this one ends
        # One whose errors were found: what it left behind is not for the next.
        if not passed(folder, name, code if rank == 0 else 0):
            break
    os.dup2(usual, 1)
    return 0


def passed(folder: Path, name: str, code: int) -> bool:
    """Whether rank 0 printed that there were no errors."""
    text = (folder / f"{name}.0").read_text(errors="replace")
    return code == 0 and "No Errors" in text


# ---------------------------------------------------------------------- jobs


def read_records(folder: Path, rank: int) -> list[dict]:
    """What this rank has reported."""
    path = folder / f"rank-{rank}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")]


def run_job(folder: Path, tests: list[str], ranks: int, libraries: bool,
            deadline: float) -> tuple[dict[str, dict], dict | None]:
    """Run tests until one fails or all are through; the outcomes, and who served the calls."""
    from smcoll.launch import launch

    folder.mkdir()
    (folder / "tests.json").write_text(json.dumps(tests))
    argv = [sys.executable, str(HERE / "mpich_coll.py"), "--rank", str(folder)]
    argv += ["--libraries"] if libraries else []
    # Ranks outnumber cores: no threads beside them.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command, environment = launch.command(
        ranks, argv, session_directory=folder,
        environment={"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path})
    why = ""
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=subprocess.STDOUT,
                                   preexec_fn=launch.end_with_parent)
        try:
            seen, since = 0, time.monotonic()
            while process.poll() is None:
                time.sleep(0.02)
                # Progress is that of the last rank.
                now = min(len(read_records(folder, rank)) for rank in range(ranks))
                if now != seen:
                    seen, since = now, time.monotonic()
                if time.monotonic() - since > (deadline if seen else deadline + START):
                    why = f"no end after {deadline:.0f} s"
                    break
        finally:
            end(process, folder, ranks)
    outcomes: dict[str, dict] = {}
    records = [read_records(folder, rank) for rank in range(ranks)]
    for name in tests:
        codes = [record["code"] for of_rank in records for record in of_rank
                 if record["test"] == name and record["outcome"] == "ended"]
        if not any(record["test"] == name for of_rank in records for record in of_rank):
            break
        fine = len(codes) == ranks and not any(codes) and passed(folder, name, 0)
        text = ""
        if not fine:
            text = why if len(codes) < ranks else f"main returned {sorted(set(codes))}"
            text = text or f"the job ended ({process.returncode})"
            said = [(folder / f"{name}.{rank}").read_text(errors="replace").strip()
                    for rank in range(ranks) if (folder / f"{name}.{rank}").exists()]
            said.append((folder / "output").read_text(errors="replace").strip())
            text += "; " + telling(said)
        outcomes[name] = {"passed": fine, "why": text}
    counted = None
    if (folder / "served.json").exists():
        counted = json.loads((folder / "served.json").read_text())
    return outcomes, counted


def telling(outputs: list[str]) -> str:
    """The lines of these that say what went wrong, each once; or their ends."""
    lines = [line.strip() for text in outputs for line in text.splitlines()]
    errors = [line for line in lines
              if re.search(r"MPI_ERR|rror|signal|expect|should|Found", line)
              and "end of error" not in line.lower() and "abort" not in line]
    chosen = dict.fromkeys(errors or [line for line in lines[-5:] if line])
    return " | ".join(chosen)[:500]


def end(process: subprocess.Popen, folder: Path, ranks: int) -> None:
    """End a job, and the ranks that it would leave behind."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for rank in range(ranks):
        try:
            pid = int((folder / f"pid-{rank}").read_text())
            # The number may have gone to another process since.
            if str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            continue


def run_all(compiled: Compiled, ranks: int, libraries: bool, tests: list[str] | None = None,
            deadline: float = DEADLINE) -> tuple[dict[str, dict], dict[str, int]]:
    """Every test's outcome at this number of ranks, and calls by who served them."""
    left = list(compiled.tests if tests is None else tests)
    results: dict[str, dict] = {}
    served: dict[str, int] = {}
    # One for each job: a rank of the last one may still be writing.
    folders = (compiled.folder / f"job-{ranks}-{int(libraries)}-{i}" for i in itertools.count())
    folder = compiled.folder

    def job(names: list[str]) -> dict[str, dict]:
        nonlocal folder
        folder = next(folders)
        outcomes, counted = run_job(folder, names, ranks, libraries, deadline)
        for key, value in (counted or {}).items():
            served[key] = served.get(key, 0) + value
        return outcomes

    while left:
        outcomes = job(left)
        if not outcomes:    # the job did not start: that is the first test's failure
            text = (folder / "output").read_text(errors="replace")[-500:]
            outcomes = {left[0]: {"passed": False, "why": f"the job did not start: {text}"}}
        for name, outcome in outcomes.items():
            if not outcome["passed"] and len(outcomes) > 1:
                outcome = job([name]).get(name, outcome)
            results[name] = outcome
        left = [name for name in left if name not in results]
    return results, served


# ---------------------------------------------------------------------- the table


def print_table(found: dict[int, dict[str, dict]], problems: dict[str, str]) -> None:
    """One line for each file, one column for each number of ranks."""
    counts = sorted(found)
    names = sorted({name for results in found.values() for name in results})
    print(f"{'file':24s}" + "".join(f"{count:>8d}" for count in counts))
    for name in names:
        marks = ["pass" if found[count][name]["passed"] else "FAIL" for count in counts]
        print(f"{name:24s}" + "".join(f"{mark:>8s}" for mark in marks))
    for name, why in sorted(problems.items()):
        print(f"{name:24s} not compiled: {why[:70]}")
    for count in counts:
        fine = sum(outcome["passed"] for outcome in found[count].values())
        print(f"{count} ranks: {fine} of {len(found[count])} pass")


def main() -> int:
    """Exit code 3: what is needed can't be had."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--ranks", default=",".join(map(str, RANKS)))
    parser.add_argument("--libraries", action="store_true", help="smcoll.install(libraries=True)")
    parser.add_argument("--sources", type=Path, help="MPICH's folder test/mpi, instead of apt's")
    parser.add_argument("--folder", type=Path, help="where to compile (a temporary folder)")
    parser.add_argument("--tests", nargs="*", help="of these files only")
    parser.add_argument("--deadline", type=float, default=DEADLINE, help="seconds for one test")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        tests = json.loads((arguments.rank / "tests.json").read_text())
        return rank_main(arguments.rank, tests, arguments.libraries)

    from smcoll.launch import launch

    with tempfile.TemporaryDirectory(prefix="mpich-coll-", ignore_cleanup_errors=True) as scratch:
        folder = arguments.folder or Path(scratch, "build")
        try:
            compiled = Compiled(arguments.sources or fetch(Path(scratch)), folder.resolve())
        except Unavailable as error:
            print(f"mpich_coll.py: {error}", file=sys.stderr)
            return 3
        print(f"{launch.mpi_info().title}: {len(compiled.tests)} files compiled, "
              f"{len(compiled.problems)} not", flush=True)
        found, served = {}, {}
        for ranks in map(int, arguments.ranks.split(",")):
            began = time.monotonic()
            found[ranks], served[ranks] = run_all(compiled, ranks, arguments.libraries,
                                                  arguments.tests, arguments.deadline)
            fine = sum(outcome["passed"] for outcome in found[ranks].values())
            print(f"{ranks} ranks: {fine} of {len(found[ranks])} pass, "
                  f"{time.monotonic() - began:.0f} s, served: {served[ranks]}", flush=True)
        print_table(found, compiled.problems)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps({
                "mpi": launch.mpi_info().title, "libraries": arguments.libraries,
                "python": sysconfig.get_python_version(), "found": found, "served": served,
                "not_compiled": compiled.problems}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
