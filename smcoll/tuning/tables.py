"""Decision tables that `smcoll tune` measured on this machine: files, loaded by rank 0 alone.

One JSON file for a machine, under the user's cache folder: what machine it is of, its parameters
for the model, and for each number of ranks what was best and how well it was predicted. Knows
nothing of MPI; who loads it tells the other ranks (``comm.setup``).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from functools import lru_cache
from pathlib import Path

from smcoll.algorithms import ALGORITHMS
from smcoll.base import __version__
from smcoll.config import Config
from smcoll.topology import cpuset, hardware, node

FORMAT = 2
MOST_ROWS = 16          # plans.pxd's MAX_CHOICES has room for them
LONGEST = 2800          # bytes of JSON: it travels in a record of set-up
FIELDS = ("up_to", "algorithm", "fan_in", "fan_out", "section_bytes", "points")
_warned: set[str] = set()


class TableError(ValueError):
    """A file that is no table, or one of another machine or version."""


def version() -> str:
    """Of the smcoll that runs."""
    return __version__


def machine() -> dict[str, str]:
    """What tells this machine from others: its processor and its levels."""
    root = hardware.read_machine()
    whole = ";".join(f"{thing.type}:{cpuset.format_cpus(thing.cpus)}" for thing in root.walk())
    counts: dict[str, int] = {}
    for thing in root.walk():
        counts[thing.type] = counts.get(thing.type, 0) + 1
    return {"processor": node.processor(),
            "levels": " ".join(f"{kind}:{count}" for kind, count in counts.items()),
            "topology": hashlib.sha256(whole.encode()).hexdigest()[:16]}


def default_file() -> Path:
    """Where this machine's table lies. Home folders are shared by machines of several kinds."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    kind = [node.processor(), str(os.cpu_count()), os.environ.get(hardware.ENVIRONMENT, "")]
    name = hashlib.sha256("\n".join(kind).encode()).hexdigest()[:12]
    return folder / "smcoll" / f"tune-{name}.json"


def file_of(setting: str) -> Path | None:
    """What ``Config(table=...)`` names: a file, the default one, or none."""
    if setting == "off":
        return None
    return default_file() if setting == "auto" else Path(setting).expanduser()


def read(file: Path) -> dict:
    """A table's content, checked. TableError, OSError."""
    # Here, since most programs have no table, and it takes a fifth of smcoll's own import.
    from smcoll.tuning.model import parameters

    try:
        content = json.loads(file.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TableError(f"not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TableError("not a table of this format")
    if content.get("version") != version():
        raise TableError(f"made by smcoll {content.get('version')}, this is {version()}")
    if content.get("machine") != machine():
        raise TableError("made on another machine")
    try:
        for table in content["tables"]:
            flags = (table["oversubscribed"], table["heap"])
            if not all(isinstance(flag, bool) for flag in flags) or not table["ranks"] > 1:
                raise TableError("ranks, oversubscribed or heap are wrong")
            for collective, rows in table["rows"].items():
                _check(collective, rows)
        parameters.from_dict(content["parameters"])
    except (KeyError, TypeError, AttributeError, parameters.ParameterError) as error:
        raise TableError(f"{type(error).__name__}: {error}") from None
    return content


def _check(collective: str, rows: list) -> None:
    if collective not in ALGORITHMS or not 0 < len(rows) <= MOST_ROWS:
        raise TableError(f"wrong rows for {collective}")
    last = 0
    for row in rows:
        up_to, name, fan_in, fan_out, section, points = (row[key] for key in FIELDS)
        if name not in ALGORITHMS[collective]:
            raise TableError(f"{name!r} is no {collective} algorithm")
        numbers = (up_to, fan_in, fan_out, section)
        if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
            raise TableError(f"numbers of {collective} are none")
        if not (last < up_to and 1 <= fan_in <= 255 and 1 <= fan_out <= 255 and section >= 64):
            raise TableError(f"a row of {collective} is out of range")
        for nbytes, predicted, measured in points:
            if not (nbytes >= 0 and (predicted is None or predicted > 0) and measured > 0):
                raise TableError(f"points of {collective} are out of range")
        last = up_to


def write(file: Path, content: dict) -> None:
    """As a whole or not at all: programs may be starting."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # Several hosts may share the folder, and have processes of one number.
    new = file.with_name(f"{file.name}.{os.getpid()}-{os.urandom(4).hex()}")
    new.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(new, file)


def clear(file: Path) -> bool:
    """Remove a table; whether there was one. OSError where it can't be."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def load(setting: str) -> dict | None:
    """The table that a setting names, or None. What can't be used is told once, and ignored."""
    try:
        file = file_of(setting)
    except RuntimeError:  # a user without a home folder
        return None
    try:
        if file is None or (setting == "auto" and not file.exists()):
            return None
        return _load(str(file), file.stat().st_mtime_ns, os.environ.get(hardware.ENVIRONMENT, ""))
    except (OSError, ValueError) as error:
        _warn(str(file), getattr(error, "strerror", None) or str(error))
        return None


@lru_cache(maxsize=4)
def _load(name: str, _changed: int, _topology: str) -> dict:
    return read(Path(name))


def _warn(file: str, problem: str) -> None:
    if file not in _warned:
        _warned.add(file)
        print(f"smcoll: the decision table {file} is ignored ({problem}); smcoll tune makes a new "
              "one, SMCOLL_TABLE=off uses none", file=sys.stderr, flush=True)


def for_ranks(config: Config, ranks: int, oversubscribed: bool,
              heaps: bool = False) -> dict | None:
    """What rank 0 tells: ``{"source": ..., "heap": ..., "rows": {collective: rows}}``, or None.

    Rows that were measured for this number of ranks; where there are none, the model's, if it may
    decide (``model.choice``). Ranks that share heaps (``heaps``) take what was measured with all
    arrays in heaps; where there is nothing of that kind, what was measured without.
    """
    content = load(config.table)
    if content is None:
        return None
    told = _of_kind(content, config, ranks, oversubscribed, True) if heaps else None
    if told is None:
        told = _of_kind(content, config, ranks, oversubscribed, False)
    if told is None:
        return None
    if len(json.dumps(told)) > LONGEST:     # what was measured is for people only
        told["rows"] = {collective: [[*row[:-1], []] for row in chosen]
                        for collective, chosen in told["rows"].items()}
    if len(json.dumps(told)) > LONGEST:
        _warn(str(file_of(config.table)), "too many rows")
        return None
    return told


def kind_of(table: dict) -> tuple[int, bool, bool]:
    """For which communicators it is: ranks, whether they outnumber cores, whether with heaps."""
    return table["ranks"], table["oversubscribed"], table["heap"]


def _of_kind(content: dict, config: Config, ranks: int, oversubscribed: bool,
             heap: bool) -> dict | None:
    """With or without heaps."""
    wanted = ranks, oversubscribed, heap
    rows, source = None, "table"
    for table in content["tables"]:
        if kind_of(table) == wanted:
            rows = table["rows"]
    if rows is None and not oversubscribed:
        from smcoll.tuning.model import choice

        rows, source = choice.rows(content, ranks, config, heap), "model"
    if not rows:
        return None
    return {"source": source, "heap": heap, "rows": {
        collective: [[row[key] for key in FIELDS] for row in chosen]
        for collective, chosen in rows.items()}}
