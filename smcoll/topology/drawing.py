"""Drawings of machines, of who is bound where, and of the communicators that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smcoll.topology import binding, hardware, levels
from smcoll.topology.cpuset import format_cpus
from smcoll.topology.hardware import HardwareObject
from smcoll.topology.levels import Location
from smcoll.topology.location import Selection


@dataclass(frozen=True)
class Rank:
    """A rank, and where it is. ``identity``: tells its node from others; ``host``: for people."""

    number: int
    identity: str
    host: str
    machine: HardwareObject
    cpus: frozenset[int]
    location: Location


def own_rank(number: int) -> Rank:
    """This process. ValueError, OSError as from ``Selection.own_location``."""
    machine, bound = hardware.read_machine(), binding.own_binding(number)
    return Rank(number, bound.machine, bound.host, machine, binding.cpus_on(machine, bound),
                Selection().own_location(number))


@dataclass
class _Item:
    """One line of a drawing."""

    title: str
    cpus: str = ""
    ranks: list[int] = field(default_factory=list)
    children: list[_Item] = field(default_factory=list)

    @property
    def label(self) -> str:
        return ": ".join(filter(None, (self.title, self.cpus, _ranks(self.ranks))))


def _ranks(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return f"{'ranks' if len(numbers) > 1 else 'rank'} {format_cpus(numbers)}"


# ---------------------------------------------------------------------- what is drawn


def _machines(ranks: Sequence[Rank]) -> list[_Item]:
    """Switches, machines and their objects; ranks at the deepest object that holds them."""
    top = _Item("")
    switches: dict[Location, _Item] = {(): top}
    for identity in dict.fromkeys(rank.identity for rank in ranks):
        here = [rank for rank in ranks if rank.identity == identity]
        above = tuple(place for place in here[0].location if place.height is None)
        for depth in range(1, len(above) + 1):
            path = above[:depth]
            if path not in switches:
                switches[path] = _Item(f"{path[-1].type} {path[-1].index}")
                switches[path[:-1]].children.append(switches[path])
        switches[above].children.append(_machine(here))
    return top.children


def _machine(here: Sequence[Rank]) -> _Item:
    bound: dict[tuple[str, int], list[int]] = {}
    for rank in here:
        deepest = rank.location[-1]
        index = 0 if deepest.type == "Machine" else int(deepest.index)
        bound.setdefault((deepest.type, index), []).append(rank.number)
    return _object(here[0].machine, here[0].host, bound)


def _object(entry: HardwareObject, host: str, bound: dict[tuple[str, int], list[int]]) -> _Item:
    """An object, and in the same line those below with the same CPUs."""
    names, ranks = [], []
    while True:
        names.append(f"{entry.type} {host if entry.type == 'Machine' else entry.index}")
        ranks += bound.get((entry.type, entry.index), [])
        if not (len(entry.children) == 1 and entry.children[0].cpus == entry.cpus):
            break
        entry = entry.children[0]
    cpus = f"CPU{'s' if len(entry.cpus) > 1 else ''} {format_cpus(entry.cpus)}"
    return _Item(" = ".join(names), cpus, sorted(ranks),
                 [_object(child, host, bound) for child in entry.children])


def _communicators(ranks: Sequence[Rank]) -> _Item:
    """What repeated splits of the communicator of all ranks give."""
    locations = [rank.location for rank in ranks]
    root = _Item(f"all, {_ranks([rank.number for rank in ranks])}",
                 levels.name(levels.shared(locations)))
    known = {(): root}
    for chain in levels.hierarchy(locations):
        for depth, group in enumerate(chain, 1):
            key = tuple(chain[:depth])
            if key not in known:
                info = group.info
                known[key] = _Item(f"{info.type} {info.index} of {info.siblings}",
                                   _ranks([ranks[member].number for member in group.members]))
                known[key[:-1]].children.append(known[key])
    return root


# ---------------------------------------------------------------------- text


def _lines(item: _Item, first: str, rest: str) -> Iterable[str]:
    yield first + item.label
    for child in item.children:
        last = child is item.children[-1]
        yield from _lines(child, rest + ("└─ " if last else "├─ "),
                          rest + ("   " if last else "│  "))


def text(ranks: Sequence[Rank]) -> str:
    """The machines with the ranks bound to each object; one line for objects with the same CPUs."""
    return "\n".join(line for item in _machines(ranks) for line in _lines(item, "", ""))


def communicators(ranks: Sequence[Rank]) -> str:
    """The hierarchy of communicators, each with its type, index, siblings and ranks."""
    return "\n".join(_lines(_communicators(ranks), "", ""))


def facts(ranks: Sequence[Rank]) -> list[dict]:
    """The same for other programs: a dictionary for each rank."""
    chains = levels.hierarchy([rank.location for rank in ranks])
    return [{
        "rank": rank.number, "host": rank.host, "cpus": sorted(rank.cpus),
        "location": [{"type": place.type, "index": place.index} for place in rank.location],
        "levels": [{"type": group.info.type, "index": group.info.index,
                    "siblings": group.info.siblings,
                    "ranks": [ranks[member].number for member in group.members]}
                   for group in chain],
    } for rank, chain in zip(ranks, chains, strict=True)]


# ---------------------------------------------------------------------- Graphviz, matplotlib


def dot(ranks: Sequence[Rank]) -> str:
    """The machines as a graph for Graphviz; objects with ranks are filled."""
    lines = ["digraph topology {", "  node [shape=box];"]
    count = 0

    def add(item: _Item) -> int:
        nonlocal count
        number, count = count, count + 1
        parts = [part for part in (item.title, item.cpus, _ranks(item.ranks)) if part]
        label = "\\n".join(part.replace("\\", "\\\\").replace('"', '\\"') for part in parts)
        lines.append(f'  n{number} [label="{label}"{", style=filled" if item.ranks else ""}];')
        for child in item.children:
            lines.append(f"  n{number} -> n{add(child)};")
        return number

    for item in _machines(ranks):
        add(item)
    return "\n".join([*lines, "}", ""])


_COLOURS = ("#FFFFFF", "#EAF3FA", "#D0E5F5", "#B5D6EE", "#9BC7E7", "#80B8E0")
_BOUND = "#F5C710"
_WIDEST = 400          # inches: what files of pixels can have


def plot(file: Path, ranks: Sequence[Rank]) -> None:
    """The machines as boxes in boxes, as in GJMM's figures; needs matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    items = _machines(ranks)
    width, depth = sum(map(_leaves, items)), max(map(_depth, items))
    figure = Figure(figsize=(min(max(4.0, 1.6 * width), _WIDEST), 0.9 * depth + 0.4),
                    layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(-0.02, width + 0.02), ylim=(-depth - 0.02, 0.02))
    axes.axis("off")

    def draw(item: _Item, left: float, level: int) -> None:
        wide, margin = _leaves(item), 0.03 * level
        colour = _BOUND if item.ranks else _COLOURS[level % len(_COLOURS)]
        axes.add_patch(Rectangle((left + margin, -depth + margin), wide - 2 * margin,
                                 depth - level - 2 * margin, facecolor=colour, edgecolor="black",
                                 linewidth=0.6))
        words = [*item.title.split(" = "), _ranks(item.ranks)] if wide == 1 else [
            item.title, item.cpus, _ranks(item.ranks)]
        axes.text(left + wide / 2, -level - 0.5, "\n".join(filter(None, words)),
                  ha="center", va="center", fontsize="x-small")
        for child in item.children:
            draw(child, left, level + 1)
            left += _leaves(child)

    left = 0.0
    for item in items:
        draw(item, left, 0)
        left += _leaves(item)
    figure.savefig(file, dpi=120)


def _leaves(item: _Item) -> int:
    return sum(map(_leaves, item.children)) or 1


def _depth(item: _Item) -> int:
    return 1 + max(map(_depth, item.children), default=0)
