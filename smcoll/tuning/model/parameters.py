"""What is known of a machine: latency, bandwidth and congestion of each level, read from TOML.

    name = "Westmere, 2 x 6 cores"
    source = "where the figures come from"

    [local]                 # a core's own memory and caches
    latency = 1.2           # ns: one line in the first-level cache

    [[level]]
    name = "L3Cache"        # as the topology calls it: ranks that share this, and nothing below it
    latency = 28.5          # ns: a + b, one cache line that the other has modified
    b = 2.0                 # ns for each further line, one rank alone (1/b: bandwidth)
    B = 1.0                 # ns for each line of all ranks together (1/B: total bandwidth)

What a file leaves out is unknown, and so is every prediction that needs it: no number is made up.
Instead of a number, ``b``, ``B`` and the like can be a curve, ``[[bytes, ns], ...]``: the larger
the message, the further away from the core it lies.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from smcoll.topology import levels

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LINE = 64  # bytes


class UnknownParameter(LookupError):
    """A prediction needs what the parameters do not say."""


class ParameterError(ValueError):
    """A file of parameters that can't be understood."""


@dataclass(frozen=True)
class Curve:
    """ns for a line as a function of the message's bytes: between points linear in log(bytes)."""

    points: tuple[tuple[float, float], ...]

    def at(self, nbytes: float) -> float:
        """Outside of the points: that of the nearest one."""
        points = self.points
        if nbytes <= points[0][0]:
            return points[0][1]
        for (low, first), (high, second) in itertools.pairwise(points):
            if nbytes <= high:
                part = math.log(nbytes / low) / math.log(high / low)
                return first + part * (second - first)
        return points[-1][1]


def flat(ns: float) -> Curve:
    """The same for all sizes."""
    return Curve(((1.0, float(ns)),))


@dataclass(frozen=True)
class Link:
    """Access to cache lines that another rank has modified (LHS 2.1): a + b m, or a + B d m.

    ``latency``: a + b, the first line. ``b``: each further line, one rank alone. ``B``: each line
    of ``d`` ranks that access at once, so that one of them takes B d. ``reduction``: what a line
    takes more where it is reduced and not copied, ``reduction_together``: the same where ranks do
    it at once (if not given, ``reduction``); ``rewrite``: what it takes more again where the result
    goes into a data region whose lines others have read (they must be taken back from them). LHS
    have no such terms (0).
    """

    name: str
    latency: float
    b: Curve | None = None
    B: Curve | None = None
    reduction: Curve | None = None
    reduction_together: Curve | None = None
    rewrite: Curve | None = None

    def a(self, nbytes: float) -> float:
        """LHS's a: what only the first line takes."""
        return self.latency - self._known("b").at(nbytes)

    def line(self, nbytes: float, d: int = 1) -> float:
        """ns for a line where ``d`` ranks access at once: max(b, B d)."""
        alone = self._known("b").at(nbytes)
        return alone if d <= 1 else max(alone, self._known("B").at(nbytes) * d)

    def access(self, m: float, d: int = 1, nbytes: float | None = None) -> float:
        """a + max(b, B d) m; for a single line its latency, congested or not, as in LHS 3.4."""
        if m <= 0:
            return 0.0
        if m <= 1:
            return self.latency
        nbytes = m * LINE if nbytes is None else nbytes
        return self.a(nbytes) + self.line(nbytes, d) * m

    def lines(self, m: float, d: int = 1, nbytes: float | None = None) -> float:
        """max(b, B d) m: data whose first line comes with a flag that was waited for."""
        if m <= 0:
            return 0.0
        return self.line(m * LINE if nbytes is None else nbytes, d) * m

    def reduced(self, m: float, d: int = 1, nbytes: float | None = None) -> float:
        """What reducing m of its lines takes more than copying them."""
        curve = self.reduction
        if d > 1 and self.reduction_together is not None:
            curve = self.reduction_together
        if m <= 0 or curve is None:
            return 0.0
        return curve.at(m * LINE if nbytes is None else nbytes) * m

    def rewritten(self, m: float, nbytes: float | None = None) -> float:
        """What it takes more where the result is posted for others."""
        if m <= 0 or self.rewrite is None:
            return 0.0
        return self.rewrite.at(m * LINE if nbytes is None else nbytes) * m

    def _known(self, name: str) -> Curve:
        curve = getattr(self, name)
        if curve is None:
            raise UnknownParameter(f"{name} of {self.name} is not known")
        return curve


@dataclass(frozen=True)
class Parameters:
    """A machine's parameters. All times are ns.

    ``local``: a core's own lines; its ``b``: copying a line between own buffers (LHS's direct
    access has no such term), ``B``: the same where all ranks do it at once. ``call``: entering and
    leaving a collective, by its name, or "default". ``step``: what each phase of a section takes
    beside data (flags, banks). ``evicted``: what writing a line of the next message takes more
    after a collective that needed the caches; `smcoll compare` counts that to the collective.
    ``yield_``: one turn of the run queue for each rank on a core.
    """

    name: str
    local: Link
    levels: Mapping[str, Link]
    source: str = ""
    call: Mapping[str, float] = field(default_factory=dict)
    step: float = 0.0
    yield_: float | None = None
    evicted: Curve | None = None

    def level(self, *names: str) -> Link:
        """The link of a level that has one or more names. UnknownParameter if there is none."""
        for name in names:
            if name in self.levels:
                return self.levels[name]
        also = f" (or {', '.join(names[1:])})" if names[1:] else ""
        raise UnknownParameter(f"the parameters of {self.name} have no level {names[0]}{also}, "
                               f"only {', '.join(self.levels) or 'none'}")

    def call_overhead(self, collective: str) -> float:
        """ns for entering and leaving; 0, as in LHS, where nothing is known."""
        return self.call.get(collective, self.call.get("default", 0.0))

    def turn(self) -> float:
        """ns of a turn of the run queue for each rank on a core."""
        if self.yield_ is None:
            raise UnknownParameter(f"the parameters of {self.name} do not say what a yield takes")
        return self.yield_

    def as_dict(self) -> dict:
        """As in TOML and JSON; ``from_dict`` reads it."""
        def link(one: Link) -> dict:
            curves = {name: [list(point) for point in getattr(one, name).points]
                      for name in CURVES if getattr(one, name) is not None}
            return {"latency": one.latency, **curves}

        description: dict = {"name": self.name, "source": self.source, "local": link(self.local),
                             "level": [{"name": name, **link(one)}
                                       for name, one in self.levels.items()],
                             "call": dict(self.call), "step": self.step}
        if self.yield_ is not None:
            description["yield"] = self.yield_
        if self.evicted is not None:
            description["evicted"] = [list(point) for point in self.evicted.points]
        return description

    def changed(self, **changes) -> Parameters:
        """A copy with other values."""
        return replace(self, **changes)


CURVES = ("b", "B", "reduction", "reduction_together", "rewrite")


def from_dict(description: Mapping, where: str = "parameters") -> Parameters:
    """What TOML or JSON hold. ParameterError with the place of what is wrong."""
    known = {"name", "source", "local", "level", "call", "step", "yield", "evicted"}
    _only(description, known, where)
    listed = description.get("level", [])
    if not isinstance(listed, list) or not listed:
        raise ParameterError(f"{where}: at least one [[level]] is needed")
    links = {}
    for number, entry in enumerate(listed, 1):
        if not isinstance(entry, Mapping) or "name" not in entry:
            raise ParameterError(f"{where}: [[level]] number {number} has no name")
        try:
            name = levels.level_name(entry["name"])
        except (TypeError, ValueError) as error:
            raise ParameterError(f"{where}: [[level]] number {number}: {error}") from None
        if name in links:
            raise ParameterError(f"{where}: level {name} is there twice")
        rest = {key: value for key, value in entry.items() if key != "name"}
        links[name] = _link(name, rest, f"{where}: level {name}")
    calls = description.get("call", {})
    if not isinstance(calls, Mapping):
        calls = {"default": calls}
    return Parameters(
        name=str(description.get("name", where)), source=str(description.get("source", "")),
        local=_link("local", description.get("local", {}), f"{where}: [local]"), levels=links,
        call={name: _number(value, f"{where}: call.{name}") for name, value in calls.items()},
        step=_number(description.get("step", 0), f"{where}: step"),
        yield_=None if "yield" not in description else _number(
            description["yield"], f"{where}: yield"),
        evicted=_curve(description["evicted"], f"{where}: evicted")
        if "evicted" in description else None)


def _only(entry: object, known: set[str], where: str) -> None:
    if not isinstance(entry, Mapping):
        raise ParameterError(f"{where}: not a table")
    unknown = sorted(set(entry) - known)
    if unknown:
        raise ParameterError(f"{where}: unknown {', '.join(unknown)} (there are "
                             f"{', '.join(sorted(known))})")


def _link(name: str, entry: object, where: str) -> Link:
    _only(entry, {entry.name for entry in fields(Link)} - {"name"}, where)
    if "latency" not in entry:
        raise ParameterError(f"{where}: no latency")
    curves = {key: _curve(entry[key], f"{where}: {key}") for key in CURVES if key in entry}
    return Link(name, _number(entry["latency"], f"{where}: latency"), **curves)


def _curve(value: object, where: str) -> Curve:
    if not isinstance(value, list):
        return flat(_number(value, where))
    points = []
    for point in value:
        if not isinstance(point, list) or len(point) != 2:
            raise ParameterError(f"{where}: neither a number nor [[bytes, ns], ...]")
        points.append((_number(point[0], where), _number(point[1], where)))
    sizes = [nbytes for nbytes, _ in points]
    if not points or sizes != sorted(set(sizes)) or sizes[0] < 1:
        raise ParameterError(f"{where}: the sizes of a curve must ascend, from 1")
    return Curve(tuple(points))


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise ParameterError(f"{where}: {value!r} is no number of ns from 0")
    return float(value)


def shipped() -> dict[str, Path]:
    """The sets of parameters that come with smcoll, by name."""
    folder = Path(__file__).parent
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def load(text: str | Path) -> Parameters:
    """From a TOML file, or one of ``shipped()`` by its name. ParameterError if that fails."""
    file = Path(text)
    if not file.exists() and str(text) in shipped():
        file = shipped()[str(text)]
    try:
        description = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ParameterError(f"{file}: {error}") from None
    return from_dict(description, str(file))
