"""What the applications have in common: options, ranks, timing, table, JSON, figure.

An application makes *contenders*: the same computation on communicators of plain mpi4py ("mpi") and
of smcoll, perhaps in several variants. All run in the same job, by turns, twice in each repetition:
as they are, for the total time; and with every collective timed, between two barriers, for
computing and communication apart. The first barrier keeps waiting for slower ranks out of the time
of the collective; the second keeps ranks that are through from taking the core of one that isn't.
Both are MPI's own, for both layers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smcoll.launch import hosts, launch
from smcoll.launch.hosts import Host

FOLDER = Path(__file__).parent

COLLECTIVES = ("Bcast", "Gather", "Scatter", "Reduce", "Allreduce")
HEAP = "smcoll, heap"
COLOURS = {"mpi": "#D55E00", "smcoll": "#0072B2", HEAP: "#009E73"}  # of the layers


class Stopwatch:
    """Times the collectives of the communicators that it watches; unless ``running``, does nothing.

    ``calls``: name and seconds of each, in order; ``waiting``: seconds in the barriers around them.
    """

    def __init__(self, running: bool = True):
        self.running = running
        self.calls: list[tuple[str, float]] = []
        self.waiting = 0.0

    def watch(self, comm):
        """The communicator, with its collectives timed."""
        return _Watched(self, comm) if self.running else comm

    def by_collective(self) -> dict[str, float]:
        """Seconds in each collective."""
        seconds: dict[str, float] = {}
        for name, duration in self.calls:
            seconds[name] = seconds.get(name, 0.0) + duration
        return seconds


class _Watched:
    def __init__(self, stopwatch: Stopwatch, comm):
        from mpi4py import MPI

        self._stopwatch = stopwatch
        self._comm = comm
        self._barrier = MPI.Intracomm(comm).Barrier  # MPI's own, also of a smcoll communicator

    def __getattr__(self, name):
        method = getattr(self._comm, name)
        if name not in COLLECTIVES:
            return method

        def timed(*arguments, **options):
            came = time.perf_counter()
            self._barrier()
            start = time.perf_counter()
            method(*arguments, **options)
            end = time.perf_counter()
            self._barrier()
            self._stopwatch.waiting += start - came + time.perf_counter() - end
            self._stopwatch.calls.append((name, end - start))

        return timed


@dataclass
class Contender:
    """One way to run an application.

    ``run(stopwatch)`` is what is timed; ``right(result)`` says whether this rank's result is what
    numpy gives. ``comms``: all communicators used, for smcoll's own count of calls (contenders may
    share some). ``facts``: what is added to the row.
    """

    layer: str
    run: Callable[[Stopwatch], Any]
    right: Callable[[Any], bool]
    comms: list
    variant: str = ""
    facts: dict = field(default_factory=dict)


@dataclass
class Samples:
    """Of one contender: a number per repetition, each that of the slowest rank; seconds."""

    total: list[float] = field(default_factory=list)
    computing: list[float] = field(default_factory=list)
    communication: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    collectives: list[dict[str, float]] = field(default_factory=list)
    calls: list[list[float]] = field(default_factory=list)
    valid: bool = True


# ---------------------------------------------------------------------- measuring


@contextlib.contextmanager
def communicators(world, heap: bool) -> Iterator[dict[str, Any]]:
    """A communicator of each layer with all ranks, freed at the end.

    ``heap``: smcoll's twice, one that stages wherever arrays lie, one that does not. ValueError
    where there can be no heap.
    """
    from mpi4py import MPI

    import smcoll
    from smcoll.memory import heap_arrays

    plain = MPI.Intracomm.Dup(MPI.Intracomm(world))
    layers = {"mpi": plain}
    with contextlib.ExitStack() as stack:
        stack.callback(plain.Free)
        if not heap:
            layers["smcoll"] = stack.enter_context(smcoll.Comm(world))
        else:
            for layer, direct in (("smcoll", False), (HEAP, True)):
                layers[layer] = stack.enter_context(
                    smcoll.Comm(world, smcoll.Config(heap=direct)))
            # numpy's large arrays lie in this rank's heap from now on.
            if not all(world.allgather(heap_arrays.use())) or not layers[HEAP].uses_heap:
                raise ValueError("--heap: the ranks can't share their heaps here")
        yield layers


def measure(world, contenders: Sequence[Contender], repetitions: int) -> list[dict]:
    """A row for each contender. Collective; the same rows on all ranks.

    The first round isn't counted: connections and segments are made when first needed.
    """
    samples = [Samples() for _ in contenders]
    pairs = list(zip(contenders, samples, strict=True))
    for contender, sample in pairs:
        _run(world, contender, sample, Stopwatch())
    for repetition in range(repetitions):
        # Back and forth, so that nobody always follows the same neighbour.
        for contender, sample in pairs if repetition % 2 else reversed(pairs):
            total = _run(world, contender, sample, Stopwatch(running=False))
            sample.total.append(max(world.allgather(total)))
            stopwatch = Stopwatch()
            _add_up(world, sample, stopwatch, _run(world, contender, sample, stopwatch))
    rows = [_row(world, contender, sample) for contender, sample in pairs]
    _add_ratios(rows, samples)
    return rows


def _run(world, contender: Contender, sample: Samples, stopwatch: Stopwatch) -> float:
    """Seconds of this rank. The result is looked at, too."""
    world.Barrier()
    start = time.perf_counter()
    result = contender.run(stopwatch)
    seconds = time.perf_counter() - start
    world.Barrier()
    if not all(world.allgather(bool(contender.right(result)))):
        sample.valid = False
    return seconds


def _add_up(world, sample: Samples, stopwatch: Stopwatch, seconds: float) -> None:
    """What a stopwatch shows, into the samples."""
    by_collective = stopwatch.by_collective()
    communication = sum(by_collective.values())
    mine = (seconds - communication - stopwatch.waiting, communication, stopwatch.waiting)
    everyone = world.allgather((mine, by_collective, [one for _, one in stopwatch.calls]))
    slowest = np.max([one for one, _, _ in everyone], axis=0).tolist()
    for values, value in zip((sample.computing, sample.communication, sample.waiting), slowest,
                             strict=True):
        values.append(value)
    names = {name for _, one, _ in everyone for name in one}
    sample.collectives.append({name: max(one.get(name, 0.0) for _, one, _ in everyone)
                               for name in sorted(names)})
    # Where all ranks make the same calls: the slowest rank of each. Elsewhere there is no such.
    if len({len(calls) for _, _, calls in everyone}) == 1:
        sample.calls.append(np.max([calls for _, _, calls in everyone], axis=0).tolist())


def _row(world, contender: Contender, sample: Samples) -> dict:
    row: dict = {**contender.facts, "variant": contender.variant, "layer": contender.layer,
                 "ranks": world.Get_size(), "repetitions": len(sample.total)}
    for name in ("total", "computing", "communication", "waiting"):
        values = getattr(sample, name)
        row[f"{name}_s"] = float(np.median(values))
        row[f"{name}_s_min"], row[f"{name}_s_max"] = min(values), max(values)
    row["collectives_s"] = {name: float(np.median([one[name] for one in sample.collectives]))
                            for name in sample.collectives[0]}
    if sample.calls:
        row["calls_s"] = np.median(sample.calls, axis=0).tolist()
    paths: Counter[str] = Counter()
    direct = 0
    if contender.layer != "mpi":
        for comm in contender.comms:
            for entry in comm.stats():
                paths[entry["path"]] += entry["calls"]
                direct += entry["direct_bytes"]
    # Of all ranks on these communicators, those of contenders that share them among them.
    row["paths"] = dict(sum(world.allgather(paths), Counter()))
    row["direct_bytes"] = sum(world.allgather(direct))
    row["valid"] = sample.valid
    return row


def _add_ratios(rows: list[dict], samples: list[Samples]) -> None:
    """MPI's time in collectives / smcoll's, repetition by repetition, with its 95 % bounds."""
    from smcoll.bench.measure import median_bounds

    plain = {row["variant"]: (row, sample) for row, sample in zip(rows, samples, strict=True)
             if row["layer"] == "mpi"}
    for row, sample in zip(rows, samples, strict=True):
        if row["layer"] == "mpi":
            continue
        other, other_sample = plain[row["variant"]]
        if not (row["valid"] and other["valid"]):
            continue  # wrong results are never faster
        ratios = np.divide(other_sample.communication, sample.communication)
        row["ratio"] = float(np.median(ratios))
        row["ratio_low"], row["ratio_high"] = median_bounds(ratios)
        row["total_ratio"] = float(np.median(np.divide(other_sample.total, sample.total)))


# ---------------------------------------------------------------------- the program


@dataclass
class Application:
    """What ``main`` needs to know.

    ``check(arguments, ranks)`` raises ValueError for options that make no sense.
    ``contend(arguments, world, communicators)`` gives, on every rank, the contenders and a dict of
    facts for the record. ``panel(axes, rows, facts)`` draws into a second panel of the figure.
    """

    name: str  # the module's
    title: str
    parser: argparse.ArgumentParser
    check: Callable[[argparse.Namespace, int], None]
    contend: Callable[..., tuple[list[Contender], dict]]
    panel: Callable | None = None


def positive(text: str) -> int:
    """A whole number from 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _hosts(text: str) -> list[Host]:
    """``h1:4,h2:4``, for argparse."""
    try:
        return hosts.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def make_parser(name: str, documentation: str) -> argparse.ArgumentParser:
    """The options that all applications have."""
    parser = argparse.ArgumentParser(prog=f"python examples/papers/apps.py.{name}",
                                     description=documentation.splitlines()[0])
    parser.add_argument("-n", "--ranks", type=positive, default=None,
                        help="ranks to start (4, or as many as the hosts take)")
    parser.add_argument("--hosts", type=_hosts, default=[], metavar="HOST[:RANKS],...",
                        help="start them on these hosts (this machine)")
    parser.add_argument("-r", "--repetitions", type=positive, default=5,
                        help="measured runs of each contender, by turns (5)")
    parser.add_argument("--seed", type=int, default=0, help="of the random data (0)")
    parser.add_argument("--heap", action="store_true",
                        help="arrays in shared heaps, and smcoll a second time, using them there")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write all figures")
    parser.add_argument("--plot", type=Path, default=None, metavar="FILE",
                        help="draw a figure (.png, .svg, .pdf); needs matplotlib")
    return parser


def main(application: Application, argv: Sequence[str] | None = None) -> int:
    """Start the ranks, or be one. Exit code 1 when a result was wrong."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = application.parser
    arguments = parser.parse_args(argv)
    if launch.under_mpiexec():
        return _be_a_rank(application, arguments, argv)
    ranks = arguments.ranks or hosts.room(arguments.hosts) or 4
    try:
        _check(application, arguments, ranks)
        return launch.run(ranks, [sys.executable, str(FOLDER / f"{application.name}.py"), *argv],
                          hosts=arguments.hosts, environment=_environment(),
                          stdin=subprocess.DEVNULL).returncode
    except (ValueError, launch.LaunchError) as error:
        parser.error(str(error))


def _environment() -> dict[str, str]:
    from smcoll.cli.selection import ONE_THREAD

    return ONE_THREAD


def _check(application: Application, arguments: argparse.Namespace, ranks: int) -> None:
    if arguments.seed < 0:
        raise ValueError(f"--seed {arguments.seed} is negative")
    for option, file in (("--json", arguments.json), ("--plot", arguments.plot)):
        if file is not None and not file.absolute().parent.is_dir():
            raise ValueError(f"{option} {file}: there is no folder {file.parent}")
    if arguments.plot is not None:
        try:
            from matplotlib.backend_bases import FigureCanvasBase
        except ImportError:
            raise ValueError("--plot needs matplotlib: pip install 'smcoll[plot]'") from None
        if arguments.plot.suffix[1:] not in FigureCanvasBase.get_supported_filetypes():
            raise ValueError(f"--plot {arguments.plot}: unknown kind of figure")
    application.check(arguments, ranks)


def _be_a_rank(application: Application, arguments: argparse.Namespace, argv: list[str]) -> int:
    from smcoll.mpi.abort import end_job

    try:
        return _run_rank(application, arguments, argv)
    except BaseException as error:
        end_job(error)
        raise


def _run_rank(application: Application, arguments: argparse.Namespace, argv: list[str]) -> int:
    from mpi4py import MPI

    world = MPI.Intracomm(MPI.COMM_WORLD)
    ranks = world.Get_size()
    try:
        if arguments.ranks not in (None, ranks):
            raise ValueError(f"-n {arguments.ranks}: this is a rank of a job of {ranks} already")
        _check(application, arguments, ranks)
    except ValueError as error:
        _complain(world, application, error)
        return 2
    with contextlib.ExitStack() as stack:
        try:
            layers = stack.enter_context(communicators(world, arguments.heap))
            contenders, facts = application.contend(arguments, world, layers)
        except ValueError as error:  # raised by all ranks
            _complain(world, application, error)
            return 2
        rows = measure(world, contenders, arguments.repetitions)
        for contender in contenders:
            for comm in contender.comms:
                if comm and comm not in layers.values():  # shared ones are free already
                    comm.Free()
    if world.Get_rank() == 0:
        _report(application, arguments, argv, {"meta": _meta(application, argv, facts),
                                               "rows": rows})
    return 0 if all(row["valid"] for row in rows) else 1


def _complain(world, application: Application, error: ValueError) -> None:
    """Once; and no rank ends, and the job with it, before it is said."""
    if world.Get_rank() == 0:
        print(f"{application.parser.prog}: error: {error}", file=sys.stderr, flush=True)
    world.Barrier()


def _meta(application: Application, argv: list[str], facts: dict) -> dict:
    from mpi4py import MPI

    from smcoll.cli import info

    vendor, version = MPI.get_vendor()
    return {
        "application": application.title,
        "command": ["python", "-m", f"examples.papers.apps.{application.name}", *argv],
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": info.versions(),
        "mpi": f"{vendor} {'.'.join(map(str, version))}",
        "machine": info.machine_facts() | {"load_average": os.getloadavg()},
        "facts": facts,
    }


# ---------------------------------------------------------------------- showing


def _report(application: Application, arguments: argparse.Namespace, argv: list[str],
            record: dict) -> None:
    from smcoll.cli import output

    meta, rows = record["meta"], record["rows"]
    # Open MPI gives its ranks a terminal, whatever the user's output is: no colours.
    console = output.wide_console(force_terminal=False)
    console.print(_table(meta, rows))
    for name, value in meta["facts"].items():
        console.print(f"{name}: {value}", soft_wrap=True)
    console.print("Milliseconds of the slowest rank, median of the repetitions. times less: median "
                  "over the repetitions of MPI's / smcoll's in the same one, with 95 % bounds (not "
                  "one column by the other; where 1 is between them, undecided). total: of "
                  "runs of their own, without the barriers that tell the other columns apart.",
                  soft_wrap=True)
    for row in rows:
        if not row["valid"]:
            console.print(f"WRONG: {row['variant']} {row['layer']}: the result differs from "
                          "numpy's", soft_wrap=True)
    if arguments.json is not None:
        output.write_json(arguments.json, record)
    if arguments.plot is not None:
        draw(application, arguments.plot, record)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _table(meta: dict, rows: list[dict]):
    from rich.table import Table

    from smcoll.cli import output

    names = list(dict.fromkeys(name for row in rows for name in row["collectives_s"]))
    table = Table(title=f"{meta['application']}, {rows[0]['ranks']} ranks, {meta['mpi']}",
                  title_justify="left")
    variants = any(row["variant"] for row in rows)
    if variants:
        table.add_column("variant")
    table.add_column("layer")
    for name in ("computing", *names, "all collectives", "times less", "waiting", "total",
                 "times less"):
        table.add_column(name, justify="right")
    table.add_column("valid")
    for row in rows:
        total_ratio = row.get("total_ratio")
        table.add_row(
            *([row["variant"]] if variants else []), row["layer"],
            _milliseconds(row["computing_s"]),
            *(_milliseconds(row["collectives_s"].get(name, 0.0)) for name in names),
            _milliseconds(row["communication_s"]),
            output.ratio(row.get("ratio"), row.get("ratio_low"), row.get("ratio_high")),
            _milliseconds(row["waiting_s"]), _milliseconds(row["total_s"]),
            "-" if total_ratio is None else f"{total_ratio:.2f}",
            "yes" if row["valid"] else "NO")
    return table


def draw(application: Application, file: Path, record: dict) -> None:
    """Computing and communication as bars, and the application's own panel."""
    from matplotlib.figure import Figure

    meta, rows = record["meta"], record["rows"]
    panels = 2 if application.panel is not None else 1
    width = max(4.5, 0.35 * len(rows))
    figure = Figure(figsize=(width + 5 * (panels - 1), 4.2), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False,
                           width_ratios=[width, 5][:panels] if panels > 1 else None)[0]
    names = [f"{row['variant']}\n{row['layer']}".strip() for row in rows]
    computing = [row["computing_s"] * 1e3 for row in rows]
    axes[0].bar(names, computing, color="#56B4E9", label="computing")
    axes[0].bar(names, [row["communication_s"] * 1e3 for row in rows], bottom=computing,
                color="#D55E00", label="communication")
    axes[0].set(ylabel="ms, slowest rank")
    axes[0].tick_params(axis="x", labelsize="small", rotation=90 if len(rows) > 4 else 0)
    axes[0].legend(fontsize="small")
    if application.panel is not None:
        application.panel(axes[1], rows, meta["facts"])
    figure.suptitle(f"{meta['application']}, {rows[0]['ranks']} ranks\n{meta['mpi']}, "
                    f"{meta['machine']['processor']}, {meta['date'][:10]}", fontsize="medium")
    figure.savefig(file, dpi=150)
