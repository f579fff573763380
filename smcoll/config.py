"""Settings: one frozen dataclass, each field declared once with its environment variable."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from smcoll.algorithms import ALGORITHMS
from smcoll.base.internals import Internals, internals_of

PAGE = os.sysconf("SC_PAGESIZE")
SEGMENT_SIZE = 128 << 10
# Where ranks share cores, a longer section is a turn of the run queue less (docs/notebook.md).
SEGMENT_SIZE_ON_SHARED_CORES = 256 << 10
MAX_SEGMENTS = 64
RADIX_LIMIT = 255

# Variables that are no fields of Config: where ranks are and what machine they are on (topology),
# and what tests, CI and builds have of their own.
OTHER_VARIABLES = ("SMCOLL_NODE", "SMCOLL_TOPOLOGY", "SMCOLL_BINDING", "SMCOLL_NETWORK",
                   "SMCOLL_HWLOC")
OTHER_PREFIXES = ("SMCOLL_TEST_", "SMCOLL_CI_", "SMCOLL_BUILD_")
# Set for the ranks of a job whose launcher has told of unknown names already.
NAMES_TOLD = "SMCOLL_NAMES_TOLD"
# By which launchers tell a process its rank: only the first one warns.
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID", "ALPS_APP_PE",
          "SLURM_PROCID")
_looked_at_names = False

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "KB": 1 << 10, "KIB": 1 << 10, "M": 1 << 20, "MB": 1 << 20,
          "MIB": 1 << 20, "G": 1 << 30, "GB": 1 << 30, "GIB": 1 << 30}


def parse_bytes(value: int | str) -> int:
    """``"32K"``, ``"1M"``, ``"4096"`` or an int -> bytes (K = 1024). ValueError otherwise."""
    if isinstance(value, bool):
        raise ValueError(f"not a number of bytes: {value!r}")
    if isinstance(value, int):
        return value
    text = str(value).strip().upper()
    digits = text.rstrip("KMGIB")
    unit = text[len(digits):]
    if unit not in _UNITS or not digits.strip().isdigit():
        raise ValueError(f"not a number of bytes: {value!r}")
    return int(digits) * _UNITS[unit]


def _boolean(value) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(f"not a truth value: {value!r}")


def _integer(low: int, high: int):
    def convert(value) -> int:
        if isinstance(value, bool):
            raise ValueError(f"not a whole number: {value!r}")
        number = int(str(value).strip())
        if not low <= number <= high:
            raise ValueError(f"{number} is not between {low} and {high}")
        return number

    return convert


def _bytes_between(low: int, high: int):
    def convert(value) -> int:
        number = parse_bytes(value)
        if not low <= number <= high:
            raise ValueError(f"{number} bytes is not between {low} and {high}")
        return number

    return convert


def _seconds(value) -> float:
    number = float(value)
    if not 0 <= number < 1e9:
        raise ValueError(f"{value!r} is no duration in seconds")
    return number


def _signal_name(value) -> str:
    """``"SIGQUIT"``, ``"quit"`` or ``"3"`` -> ``"SIGQUIT"``; an empty text stays one."""
    text = str(value).strip().upper()
    if not text:
        return ""
    number = int(text) if text.isdigit() else getattr(signal, f"SIG{text.removeprefix('SIG')}", 0)
    try:
        name = signal.Signals(number).name
    except ValueError:
        raise ValueError(f"{value!r} is no signal") from None
    if name in ("SIGKILL", "SIGSTOP", "SIGUSR1"):
        raise ValueError(f"{name} can't be handled" if name != "SIGUSR1" else
                         "SIGUSR1 is what MPICH's launcher sends by itself")
    return name


def _segment_size(value) -> int:
    """Round up to whole pages: data regions are page-aligned."""
    number = _bytes_between(0, 16 << 20)(value)
    return -(-number // PAGE) * PAGE


def _one_of(*names: str):
    def convert(value) -> str:
        name = str(value).strip().lower()
        if name not in names:
            raise ValueError(f"{value!r} is none of {', '.join(names)}")
        return name

    return convert


def _algorithms(value) -> str:
    """``{"allreduce": "tiled"}`` or ``"allreduce=tiled"`` -> the latter, in the table's order."""
    if isinstance(value, str):
        parts = [part for part in value.replace(" ", "").split(",") if part]
        if any(part.count("=") != 1 for part in parts):
            raise ValueError(f"{value!r} is not of the form collective=name,collective=name")
        value = dict(part.split("=") for part in parts)
    for collective, name in value.items():
        names = ALGORITHMS.get(collective)
        if names is None:
            raise ValueError(f"{collective!r} is none of {', '.join(ALGORITHMS)}")
        if name not in names:
            raise ValueError(f"{name!r} is no {collective} algorithm (one of {', '.join(names)})")
    return ",".join(f"{one}={value[one]}" for one in ALGORITHMS if one in value)


def _across_nodes(value) -> str:
    """One of the names; truth values stand for the first two."""
    try:
        return "auto" if _boolean(value) else "off"
    except ValueError:
        return _one_of("auto", "off", "tree", "dissemination", "tiled")(value)


def _table(value) -> str:
    if not isinstance(value, (str, os.PathLike)) or not str(value).strip():
        raise ValueError(f"{value!r} is neither auto, off nor a file")
    text = str(value).strip()
    return text.lower() if text.lower() in ("auto", "off") else text


def _setting(default, convert, unit: str, doc: str):
    # None stands for "not given": an explicit value wins over the environment even if it is the
    # same as the default.
    metadata = {"default": default, "convert": convert, "unit": unit, "doc": doc}
    return field(default=None, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """Settings of a communicator.

    A field that is not given is read from ``SMCOLL_<FIELD>``, else it has its default. Rank 0's
    settings are everybody's: they are agreed once, when the segment is made.
    """

    segment_size: int = _setting(
        0, _segment_size, "bytes",
        "a rank's data region in one segment; rounded up to whole pages, 1 page to 16 MiB; "
        "0: 128K, and 256K where ranks outnumber CPUs")
    segments: int = _setting(8, _integer(1, MAX_SEGMENTS), "", "segments in a bank")
    fan_in: int = _setting(
        0, _integer(0, RADIX_LIMIT), "children",
        "radix of fan-in trees (a parent has this many children); 0: chosen by size and ranks")
    fan_out: int = _setting(
        0, _integer(0, RADIX_LIMIT), "children",
        "radix of fan-out trees; 0: chosen by size and ranks")
    algorithms: str = _setting(
        "", _algorithms, "",
        "algorithms by name, such as allreduce=tiled,scan=chain; the others are chosen")
    table: str = _setting(
        "auto", _table, "", "decision table of smcoll tune: auto (this user's, of this machine), "
        "off, or a file")
    learn: str = _setting(
        "on", _one_of("off", "use", "on"), "",
        "on: calls find out in passing which algorithm suits them, and keep that for later jobs; "
        "use: what earlier jobs have found holds, nothing is tried; off: neither")
    pipeline: bool = _setting(
        True, _boolean, "",
        "sections of a large vector overlap in successive segments; off: one after the other, "
        "and one single segment for recursive doubling and recursive halving")
    stores: str = _setting(
        "auto", _one_of("auto", "ordinary", "string", "non_temporal"), "",
        "how a rank writes what others read: ordinary (vector) stores, the processor's string copy "
        "(string), or non_temporal stores around the caches; auto: the kind that is measured to be "
        "the cheapest, by collective and size (explain says)")
    across_nodes: str = _setting(
        "auto", _across_nodes, "",
        "over several nodes: shared memory in each, messages between them; tree, dissemination, "
        "tiled: the same, and Allreduces of any size in that form; off: MPI wholly")
    watch_nodes: bool = _setting(
        True, _boolean, "",
        "over several nodes, their leaders hold a TCP connection to each other, by whose end they "
        "learn that one has died, and ask the living in long waits which calls they were in; off: "
        "they learn a death from others of its node, or by the timeout")
    eager: bool = _setting(
        False, _boolean, "", "make the whole segment with the communicator, not at the first call")
    strict: bool = _setting(
        False, _boolean, "", "raise SegmentError where the segment can't be had; off: use MPI")
    timeout: float = _setting(
        0.0, _seconds, "seconds", "raise WaitTimeout after waiting this long; 0: never")
    warn_after: float = _setting(
        60.0, _seconds, "seconds", "say on stderr who is waited for after this long; 0: never")
    report_signal: str = _setting(
        "", _signal_name, "",
        "on this signal a process says on stderr where its Python threads are and who waits for "
        "whom in its communicators (SIGQUIT, say; empty: none)")
    budget: int = _setting(
        0, _bytes_between(0, 1 << 50), "bytes",
        "shared memory all ranks of this node may use; 0: half of /dev/shm, and for memfd a "
        "quarter of the machine's memory")
    memory: str = _setting(
        "auto", _one_of("auto", "shm", "memfd"), "",
        "where the segment lies: shm, a file in /dev/shm; memfd, memory without a name, for which "
        "the ranks must share /proc; auto: the first that can be had, shm first where /dev/shm has "
        "room for the whole segment")
    heap: bool = _setting(
        False, _boolean, "",
        "ranks map each other's shared heaps, and read and write arrays that lie there directly; "
        "SMCOLL_HEAP=1 puts numpy's arrays there, too")
    heap_size: int = _setting(
        0, _bytes_between(0, 1 << 50), "bytes",
        "memory that the heaps of all ranks of this node may have; 0: half of the node's")
    kernel_copy: bool = _setting(
        True, _boolean, "",
        "what a long Scatter or Alltoall hands out is copied once, where that is measured to be "
        "faster: receivers read the sender's memory through the kernel (process_vm_readv), where "
        "it lets them; off: everything goes through the segment")
    libraries: bool = _setting(
        False, _boolean, "",
        "with install() and smcoll run: collectives that C libraries call go through shared "
        "memory, too; libraries that are loaded after it")
    verbose: bool = _setting(
        False, _boolean, "", "one line on stderr for each communicator, and statistics at exit")
    disable: bool = _setting(False, _boolean, "", "everything goes to MPI")

    # No setting: what tests and measurements change. It travels to other ranks as settings do.
    internals: Internals = field(default=None)  # type: ignore[assignment]

    if TYPE_CHECKING:
        # Texts as in the environment are taken, too: segment_size="32K".
        def __init__(self, **fields: float | str | bool | Mapping[str, Any]) -> None: ...

    def __post_init__(self):
        warn_of_unknown_names()
        for entry in settings():
            value, source = getattr(self, entry.name), entry.name
            if value is None:
                source = environment_name(entry.name)
                value = os.environ.get(source, entry.metadata["default"])
            try:
                value = entry.metadata["convert"](value)
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"{source}: {error}") from None
            object.__setattr__(self, entry.name, value)
        object.__setattr__(self, "internals", internals_of(self.internals))

    def settled(self, oversubscribed: bool) -> Config:
        """These settings, with what holds where they leave it open: ``segment_size``.

        ``oversubscribed``: the ranks outnumber their CPUs.
        """
        if self.segment_size:
            return self
        return replace(self, segment_size=(
            SEGMENT_SIZE_ON_SHARED_CORES if oversubscribed else SEGMENT_SIZE))

    @property
    def named(self) -> dict[str, str]:
        """The algorithms that are set by name, by collective."""
        return dict(part.split("=") for part in self.algorithms.split(",") if part)


def settings() -> list[Field]:
    """The fields of Config that users set."""
    return [entry for entry in fields(Config) if entry.metadata]


def environment_name(name: str) -> str:
    """The environment variable of a field of Config."""
    return f"SMCOLL_{name.upper()}"


def unknown_names(environment: Mapping[str, str]) -> list[str]:
    """One line for each ``SMCOLL_*`` variable that means nothing, with the nearest that does."""
    known = [*(environment_name(entry.name) for entry in settings()), *OTHER_VARIABLES]
    lines = []
    for name in sorted(environment):
        if (not name.startswith("SMCOLL_") or name.startswith(OTHER_PREFIXES)
                or name in known or name == NAMES_TOLD):
            continue
        from difflib import get_close_matches  # seldom needed

        # What all have in common would make any two alike.
        nearest = get_close_matches(name[7:], [one[7:] for one in known], n=1)
        lines.append(f"smcoll: {name} is no setting and is ignored ("
                     + (f"SMCOLL_{nearest[0]} is one; " if nearest else "")
                     + "smcoll info --config has them all)")
    return lines


def is_first_rank() -> bool:
    """Whether this process is rank 0 of its job, or in no job, as far as its launcher tells."""
    return next((os.environ[name] for name in _RANKS if name in os.environ), "0") == "0"


def warn_of_unknown_names() -> None:
    """Once, by one process of a job: a misspelt setting would be ignored silently."""
    global _looked_at_names
    if _looked_at_names:
        return
    _looked_at_names = True
    if not is_first_rank() or NAMES_TOLD in os.environ:
        return
    for line in unknown_names(os.environ):
        print(line, file=sys.stderr, flush=True)


def told_of_names() -> dict[str, str]:
    """For the environment of ranks that this process starts: whether it has warned already."""
    return {NAMES_TOLD: "1"} if _looked_at_names and unknown_names(os.environ) else {}


def describe() -> list[dict[str, str]]:
    """The table of settings: name, environment variable, default, unit, documentation."""
    return [
        {
            "name": entry.name,
            "environment": environment_name(entry.name),
            "default": str(entry.metadata["default"]),
            "unit": entry.metadata["unit"],
            "documentation": entry.metadata["doc"],
        }
        for entry in settings()
    ]
