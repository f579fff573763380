"""The compiled protocol under ThreadSanitizer: ``python tests/verification/threads_under_tsan.py``.

Builds a copy of smcoll with ``-fsanitize=thread`` (gcc; a few minutes) and runs random sequences of
all collectives there with threads for ranks (``ranks_as_threads.pyx``), every result checked, with
2, 3 and 5 threads, small banks, and counters that wrap. ThreadSanitizer must have nothing to say.
Then plants bugs in the copy (``mutants.py``) that it must report. ``--folder`` keeps the copy.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import mutants

# ThreadSanitizer sees ordinary stores only; the other kinds are in assembly.
CONFIGS = (
    {"segment_size": 4096, "segments": 2, "stores": "ordinary",
     "internals": {"banks": 2, "inline_slots": 2, "inline_size": 64, "stream_size": 1}},
    {"segment_size": 4096, "segments": 1, "stores": "ordinary",
     "internals": {"banks": 1, "inline_slots": 1, "inline_size": 64, "stream_size": 1,
                   "rooted_inline_size": 32}},
    {"segment_size": 4096, "segments": 1, "stores": "ordinary",
     "internals": {"banks": 2, "inline_slots": 1, "streaming_size": 1}},
    {"segment_size": 32768, "segments": 3,
     "internals": {"banks": 3, "inline_slots": 3, "inline_size": 512}},
)
THREADS = (2, 3, 5)
STARTS = (1, 2**63 - 50, 2**64 - 100)  # of all counters
COMPLETE = "complete"
DEADLINE = 40.0  # seconds for one sequence (it takes one or two)

# What ThreadSanitizer must report of a planted bug, or find in the data that it spoils. Slots that
# are released before they are read are test_banks.py's: here a writer would have to come all the
# way round within one copy.
PLANTED = ("post_before_copy", "one_exchange_slot", "no_bank_barrier", "bank_one_round_early",
           "no_read_handshake", "stream_post_before_copy", "no_credit", "one_cell_too_many",
           "credit_before_reading", "relaxed_flag", "relaxed_load")


def library() -> str | None:
    """gcc's ThreadSanitizer library, to be loaded before anything else; None without it."""
    if shutil.which("gcc") is None:
        return None
    path = subprocess.run(["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True,
                          check=True).stdout.strip()
    return os.path.realpath(path) if os.path.isabs(path) else None


def build(folder: Path) -> None:
    """Compile the copy of smcoll in ``folder``, the threads' program too, for ThreadSanitizer."""
    flags = "-fsanitize=thread"
    mutants.build(folder, CC="gcc", SMCOLL_BUILD_CFLAGS=f"{flags} -g -O1",
                  SMCOLL_BUILD_LDFLAGS=flags)


def copy_and_build(folder: Path) -> None:
    """A copy of smcoll, compiled from nothing: other flags than those of what is built here."""
    mutants.copy_sources(folder)
    shutil.rmtree(folder / "build", ignore_errors=True)
    for built in folder.glob("smcoll/**/*.so"):
        built.unlink()
    shutil.copy(folder / "tests" / "verification" / "ranks_as_threads.pyx", folder / "smcoll")
    build(folder)


def run(folder: Path, calls: int, seeds: range,
        one_report: bool = False) -> tuple[list[str], list[str]]:
    """Run the sequences in another process: wrong results or hangs, and what TSan reported.

    ``one_report``: ends with the first report (hundreds of them take minutes).
    """
    with tempfile.TemporaryDirectory(prefix="smcoll-tsan-") as logs:
        environment = os.environ | {
            "PYTHONPATH": str(folder),
            "LD_PRELOAD": library(),
            "TSAN_OPTIONS": f"exitcode=0 log_path={logs}/report history_size=5 "
            f"halt_on_error={int(one_report)}",
            # UCX patches madvise, which a thread calls when the sanitizer has left it already.
            "UCX_MEM_EVENTS": "n",
            "UCX_MEM_MMAP_HOOK_MODE": "none",
        }
        result = subprocess.run(
            [sys.executable, __file__, "--inside", str(calls), str(seeds.start), str(seeds.stop)],
            env=environment, cwd=logs, capture_output=True, text=True, check=False)
        text = "".join(path.read_text() for path in sorted(Path(logs).glob("report*")))
    problems = result.stdout.splitlines()
    if problems[-1:] == [COMPLETE]:
        return [], re.findall(r"SUMMARY: ThreadSanitizer: (.*)", text)
    races = re.findall(r"SUMMARY: ThreadSanitizer: (data race .*)", text)
    if not problems:
        problems = [f"crashed: {short(one)}"
                    for one in re.findall(r"SUMMARY: ThreadSanitizer: (SEGV .*)", text)]
    if not problems and not (one_report and races):
        raise RuntimeError(f"the threads ended with {result.returncode}:\n{result.stderr[-2000:]}"
                           f"{text[-2000:]}")
    # Threads that hang fault while the process ends: not a finding.
    return problems, races


def inside(calls: int, seeds: range) -> int:
    """In the process with the sanitizer: a line for the sequence that went wrong, or COMPLETE."""
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False  # no MPI: no threads of its own
    from smcoll.ranks_as_threads import run_threads

    for seed in seeds:
        for config in CONFIGS:
            for threads in THREADS:
                problem = run_threads(threads, calls, seed * 1000 + threads,
                                      STARTS[seed % len(STARTS)], config, DEADLINE)
                if problem is not None:
                    print(f"{config}, seed {seed}, {threads} threads: {problem}", flush=True)
                    os._exit(1)  # threads that hang can't be ended
    print(COMPLETE, flush=True)
    return 0


def short(report: str) -> str:
    """"data race in post_line_length", without paths and Cython's prefixes."""
    return re.sub(r" \S+ in (?:__pyx_f_(?:\d*smcoll_)?(?:\d+[a-z]+_?)*?_)?", " in ", report)


def check_planted(folder: Path, name: str, calls: int) -> tuple[list[str], list[str]]:
    """Plant one bug in the copy, run, and put the sources back (built again by the next one)."""
    [mutant] = [mutant for mutant in mutants.MUTANTS if mutant.name == name]
    before = {edit.file: (folder / edit.file).read_text() for edit in mutant.edits}
    try:
        mutants.plant(folder, mutant)
        build(folder)
        # Where every read is a race, the first one says it all.
        return run(folder, calls, range(1, 4), one_report=not mutant.tests)
    finally:
        for file, text in before.items():
            (folder / file).write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, help="collectives in a sequence")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--folder", type=Path, help="keep the copy here, and use it again")
    parser.add_argument("-k", default="", metavar="REGEX", help="of the planted bugs only these")
    parser.add_argument("--inside", nargs=3, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options.inside[0], range(options.inside[1], options.inside[2]))
    if library() is None:
        print("no gcc with libtsan", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="smcoll-tsan-") as temporary:
        folder = options.folder or Path(temporary) / "smcoll"
        if not folder.exists():
            copy_and_build(folder)
        build(folder)
        problems, reports = run(folder, options.calls, range(1, 1 + options.seeds))
        sequences = options.seeds * len(CONFIGS) * len(THREADS)
        print(f"{sequences} sequences of {options.calls} calls: {len(problems)} wrong, "
              f"{len(reports)} reports", *problems, *reports, sep="\n", flush=True)
        failed = bool(problems or reports)
        print("\n| planted bug | reports | first report | data |\n|---|---|---|---|")
        for name in PLANTED:
            if not re.search(options.k, name):
                continue
            problems, reports = check_planted(folder, name, options.calls)
            failed |= not reports and not problems
            data = problems[0].rpartition("}, ")[2] if problems else "no wrong result"
            print(f"| {name} | {len(reports)} | {short(reports[0]) if reports else ''} | {data} |",
                  flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
