"""smcoll beside several MPIs: each in its own jobs, in its own Python environment."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console

from smcoll.bench.compare_job import CompareTask
from smcoll.cli import compare_output, info, jobs
from smcoll.cli.jobs import Where
from smcoll.cli.page import prose
from smcoll.cli.words import counted
from smcoll.launch import launch

# Asked of each environment's Python: which MPI it has, and in which settings it is to be measured.
_PROBE = """\
import json, sys
from smcoll.launch import launch, mpi_settings
mpi = launch.mpi_info()
several_nodes = bool(int(sys.argv[1]))
print(json.dumps([mpi.title, list(mpi_settings.settings(mpi.family, several_nodes))]))
"""


def compare_peers(console: Console, task: CompareTask, environments: list[str],
                  counts: list[int], where: Where) -> dict:
    """Measure in every environment and setting. The record: merged rows, and each peer's own."""
    found: dict[str, tuple[str, str]] = {}
    for environment in environments:
        title, settings = probe(environment, bool(where.hosts))
        if title in found:
            raise typer.BadParameter(f"--peers {environment}: {title} is in {found[title][0]} too")
        for setting in settings:
            found[title if setting == "default" else f"{title} {setting}"] = environment, setting
    points = len(list(task.points()))
    jobs.announce(console, f"Comparing {counted(points, 'point')} with "
                  f"{counted(len(found), 'way')} to run an MPI", counts,
                  len(found) * len(counts),
                  len(found) * len(counts) * points * task.settings["budget"])
    peers: dict[str, dict] = {}
    for name, (environment, setting) in found.items():
        print(f"measuring {name}", file=sys.stderr, flush=True)
        peers[name] = measure_peer(task, environment, setting, counts, where)
        if peers[name]["meta"].get("partial"):
            break
    stopped = {key: record["meta"][key] for record in peers.values()
               for key in ("partial", "exit_code") if key in record["meta"]}
    return {
        "meta": stopped | {
            "command": ["smcoll", *sys.argv[1:]],
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "machine": info.machine_facts(),
            "task": asdict(task),
            "peers": {name: record["meta"] for name, record in peers.items()},
        },
        "rows": merge({name: record["rows"] for name, record in peers.items()}),
    }


def python_of(environment: str) -> str:
    """Its interpreter: of a virtual environment's folder, or named itself."""
    path = Path(environment)
    python = path / "bin" / "python" if path.is_dir() else path
    if not os.access(python, os.X_OK) or python.is_dir():
        raise typer.BadParameter(f"--peers {environment}: no Python environment is there")
    return str(python)


def probe(environment: str, several_nodes: bool) -> tuple[str, list[str]]:
    """(the MPI's name and version, its settings) of an environment."""
    result = subprocess.run([python_of(environment), "-c", _PROBE, str(int(several_nodes))],
                            capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise typer.BadParameter(f"--peers {environment}: smcoll and an MPI are needed there "
                                 f"({reason})")
    title, settings = json.loads(result.stdout)
    return title, settings


def measure_peer(task: CompareTask, environment: str, setting: str, counts: list[int],
                 where: Where) -> dict:
    """``smcoll compare`` with that environment's Python."""
    settings = task.settings
    with launch.Signals() as signals, contextlib.ExitStack() as cleared_away:
        with signals.held():
            folder = cleared_away.enter_context(
                tempfile.TemporaryDirectory(prefix="smcoll-peers-"))
            file = Path(folder, "rows.json")
            options = [
                "-n", ",".join(map(str, counts)), "--sizes", ",".join(map(str, task.sizes)),
                "--collectives", ",".join(task.collectives), "-i", settings["iterations"],
                "-x", settings["warmup"], "-r", settings["repetitions"],
                "--budget", settings["budget"], "-M", task.memory, "-T", settings["dtype"],
                "-k", "rotate" if settings["root"] < 0 else settings["root"],
                "--offset", settings["offset"],
                "--algorithms", ",".join(task.algorithms), "--thread-level", task.thread_level,
                "-c" if settings["validate"] else "-C", "--no-point-to-point",
                # Who was asked here is not asked again.
                "--mpi-setting", setting, "--yes", "--json", file,
                *(["--heap"] if task.heap else []), *(["--read"] if settings["read"] else []),
                *where.options()]
            process = cleared_away.enter_context(subprocess.Popen(
                [python_of(environment), "-m", "smcoll", "compare", *map(str, options)],
                stdout=subprocess.DEVNULL, stderr=None if sys.stderr.isatty() else subprocess.PIPE,
                text=True, preexec_fn=launch.end_with_parent))
            cleared_away.push(lambda _type, error, _trace: error and launch.end(process, error))
        errors, stop = "", None
        try:
            _, errors = process.communicate()
        except (KeyboardInterrupt, launch.Terminated) as error:
            # It writes what it has by then.
            stop = error
            launch.end(process, error, 15)
        # 1 with a file: a result of smcoll's was wrong, which the rows say.
        if not file.exists():
            if stop is not None:
                raise stop
            raise typer.BadParameter(f"--peers {environment}: smcoll compare failed there with "
                                     f"exit code {process.returncode}\n{errors or ''}")
        record = json.loads(file.read_text())
        if stop is not None:
            record["meta"]["partial"], record["meta"]["exit_code"] = jobs.stopped_by(stop)
        return record


def merge(rows_of: dict[str, list[dict]]) -> list[dict]:
    """One row for each point of all peers; smcoll's figures are those beside the fastest peer.

    The fastest is the one with the smallest ratio, each taken in its own job; a peer whose result
    was wrong is out of the row.
    """
    points: dict[tuple, dict[str, dict]] = {}
    for name, rows in rows_of.items():
        for row in rows:
            points.setdefault((row["ranks"], row["collective"], row["bytes"], row["algorithm"]),
                              {})[name] = row
    merged = []
    for (ranks, collective, nbytes, algorithm), peers in points.items():
        right = {name: row for name, row in peers.items() if row["ratio"] is not None}
        fastest = min(right, key=lambda name: right[name]["ratio"]) if right else None
        best = right[fastest] if fastest else next(iter(peers.values()))
        chosen = {key: best[key] for key in (
            "mpi_us", "mpi_us_min", "mpi_us_max", "smcoll_us", "smcoll_us_min", "smcoll_us_max",
            "ratio", "ratio_low", "ratio_high", "distance", "round_trip_ns", "path", "parameters",
            "mpi_valid")}
        smcoll = [row["valid"] for row in peers.values()]
        merged.append({
            "collective": collective, "bytes": nbytes, "ranks": ranks, **chosen,
            "fastest": fastest, "algorithm": algorithm,
            "valid": False if False in smcoll else None if None in smcoll else True,
            "problems": [f"{name}: {text}" for name, row in peers.items()
                         for text in row["problems"]],
            "peers": {name: {key: row[key] for key in (
                "mpi_us", "mpi_us_min", "mpi_us_max", "smcoll_us", "smcoll_us_min",
                "smcoll_us_max", "ratio", "ratio_low", "ratio_high", "distance", "valid",
                "mpi_valid")}
                for name, row in peers.items()},
        })
    return merged


def print_record(console: Console, record: dict, full: bool) -> None:
    """A table for each rank count and peer, the fastest peer's place, then what was wrong."""
    for ranks in dict.fromkeys(row["ranks"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["ranks"] == ranks]
        for peer in record["meta"]["peers"]:
            console.print(compare_output.table(
                compare_output.against_peer(rows, peer), f"{ranks} ranks, {peer}", "MPI", full))
        fastest = Counter(row["fastest"] or "none" for row in rows)
        console.print()
        prose(console, f"{ranks} ranks, beside the fastest MPI of each row: "
              f"{compare_output.summary(rows)} (fastest: " + ", ".join(
                  f"{name} in {count}" for name, count in fastest.items()) + ")")
    compare_output.print_how(console, record["rows"], record["meta"]["task"]["settings"]["read"])
    compare_output.print_problems(console, record["rows"])
