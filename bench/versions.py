"""This version of smcoll beside another one: which calls have become slower?

    git worktree add ../before v1.0 && (cd ../before && python setup.py build_ext --inplace)
    python bench/versions.py ../before -n 2 --collectives all --read --json versions.json

Two versions cannot be loaded into one job. So jobs of ``smcoll compare`` follow each other, one of
each version in a round, by turns in front. Each measures MPI's own collectives beside smcoll's, and
these are the yardstick: a round's ratio is how many times faster than MPI this version was, divided
by the same of the other one. Of a row those rounds count in which the ranks' cores were equally far
in both jobs. What jobs learn is kept for the later ones of the same version, and nowhere else.

All further options are those of ``smcoll compare``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from smcoll.cli import info, output

HERE = Path(__file__).resolve().parents[1]
SLOWER = 0.97    # a median below this is marked


def environment(checkout: Path, learned: Path) -> dict[str, str]:
    """With which a Python process, and those that it starts, load this checkout's smcoll."""
    path = [str(checkout), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)),
                         "XDG_CACHE_HOME": str(learned), "OMP_NUM_THREADS": "1"}


def loaded(checkout: Path, variables: dict[str, str]) -> Path:
    """From where the compiled smcoll comes. CalledProcessError: it can't be loaded."""
    program = "import smcoll, smcoll.engine.engine; print(smcoll.__file__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=checkout, env=variables, text=True,
                          check=True, stdout=subprocess.PIPE)
    return Path(done.stdout.strip()).resolve()


def commit(checkout: Path) -> str | None:
    """That git has checked out there; None where it is no repository, or there is no git."""
    if shutil.which("git") is None:
        return None
    done = subprocess.run(["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], text=True,
                          check=False, capture_output=True)
    return done.stdout.strip() or None


def job(checkout: Path, variables: dict[str, str], options: list[str]) -> dict[tuple, dict]:
    """The rows of one ``smcoll compare``."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.json")
        subprocess.run([sys.executable, "-m", "smcoll", "compare", "--yes", "--no-point-to-point",
                        *options, "--json", str(rows)],
                       cwd=checkout, env=variables, check=True, stdout=subprocess.DEVNULL)
        return {(row["ranks"], row["collective"], row["bytes"]): row
                for row in json.loads(rows.read_text())["rows"]}


def compared(rounds: list[tuple[dict, dict]]) -> list[dict]:
    """For each row and distance of the cores: this version's speed in units of the other one's."""
    found: dict[tuple, list[float]] = {}
    for this, other in rounds:
        for key in this.keys() & other.keys():
            ratios = this[key]["ratio"], other[key]["ratio"]
            distances = {this[key]["distance"], other[key]["distance"]}
            if None not in ratios and len(distances - {"mixed"}) == len(distances) == 1:
                found.setdefault((*key, this[key]["distance"]), []).append(ratios[0] / ratios[1])
    return [{"ranks": ranks, "collective": collective, "bytes": nbytes, "distance": distance,
             "rounds": len(ratios), "ratio": statistics.median(ratios), "ratios": ratios}
            for (ranks, collective, nbytes, distance), ratios in sorted(found.items())]


def report(rows: list[dict]) -> None:
    """A table on the screen."""
    from rich.table import Table

    if not rows:
        print("in no round were the cores equally far in both jobs: more rounds (--rounds)")
        return
    table = Table(title="this version's speed / the other one's", title_justify="left",
                  caption=f"*: a median below {SLOWER}", caption_justify="left")
    for name in ("ranks", "collective", "bytes", "cores", "rounds", "median", "least", "largest"):
        table.add_column(name, justify="left" if name in ("collective", "cores") else "right")
    for row in rows:
        mark = "*" if row["ratio"] < SLOWER else ""
        table.add_row(str(row["ranks"]), row["collective"], str(row["bytes"]), row["distance"],
                      str(row["rounds"]), f"{mark}{row['ratio']:.2f}",
                      f"{min(row['ratios']):.2f}", f"{max(row['ratios']):.2f}")
    console = output.wide_console(force_terminal=False)
    console.print(table)
    mean = statistics.geometric_mean(row["ratio"] for row in rows)
    console.print(f"geometric mean of the medians: {mean:.3f}")


def main() -> int:
    """The jobs, and what they show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of smcoll, built in place")
    parser.add_argument("--rounds", type=int, default=7, help="jobs of each version (7)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write all rows")
    arguments, options = parser.parse_known_args()
    if arguments.rounds < 1:
        parser.error("at least a round")
    with tempfile.TemporaryDirectory() as folder:
        versions = []
        for number, checkout in enumerate((HERE, arguments.other.resolve())):
            learned = Path(folder, str(number))
            learned.mkdir()
            variables = environment(checkout, learned)
            try:
                source = loaded(checkout, variables)
            except (OSError, subprocess.CalledProcessError):
                parser.error(f"no smcoll that is built in place: {checkout}")
            if not source.is_relative_to(checkout):
                parser.error(f"Python loads {source} instead of {checkout}")
            versions.append((checkout, variables))
        rounds = []
        for number in range(arguments.rounds):
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
            turn = versions if number % 2 == 0 else versions[::-1]
            try:
                results = [job(*version, options) for version in turn]
            except subprocess.CalledProcessError as error:
                return error.returncode    # it has said why
            rounds.append(tuple(results if number % 2 == 0 else results[::-1]))
    rows = compared(rounds)
    report(rows)
    if arguments.json is not None:
        output.write_json(arguments.json, {"meta": {
            "command": ["python", "bench/versions.py", *sys.argv[1:]],
            "commits": [commit(checkout) for checkout, _ in versions],
            "machine": info.machine_facts()}, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
