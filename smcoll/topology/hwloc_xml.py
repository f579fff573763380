"""Topologies from XML files, as ``lstopo machine.xml`` writes them (hwloc 1 and 2).

A small reader of our own: what is needed of such a file is each object's type and its CPUs.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

_RENAMED = {"Socket": "Package"}       # hwloc 1
_WORD_BITS = 32


def parse(text: bytes) -> list[tuple[str, frozenset[int]]]:
    """An XML file's content -> objects for ``build_tree``. ValueError when it is malformed."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"not an XML file of hwloc's: {error}") from None
    if root.tag != "topology":
        raise ValueError(f"not an XML file of hwloc's: it begins with {root.tag!r}")
    objects = [(_type(element), _cpus(element.get("cpuset", "")))
               for element in root.iter("object") if element.get("cpuset")]
    machine = root.find("object")
    if machine is None or not objects:
        raise ValueError("not an XML file of hwloc's: it has no objects with CPUs")
    allowed = machine.get("allowed_cpuset")
    if allowed:
        usable = _cpus(allowed)
        objects = [(kind, cpus & usable) for kind, cpus in objects]
    return objects


def _type(element: ElementTree.Element) -> str:
    kind = element.get("type", "")
    if kind == "Cache":                # hwloc 1: 2 stands for an instruction cache
        return "" if element.get("cache_type") == "2" else f"L{element.get('depth')}Cache"
    return _RENAMED.get(kind, kind)


def _cpus(text: str) -> frozenset[int]:
    """hwloc's bitmap: 32-bit words in hexadecimal, the highest first; an empty word is zero."""
    words = text.split(",")
    try:
        mask = 0
        for word in words:
            mask = mask << _WORD_BITS | (int(word, 16) if word else 0)
    except ValueError:
        raise ValueError(f"not a set of CPUs: {text!r}") from None
    if mask < 0 or len(words) > 1 << 12:
        raise ValueError(f"not a set of CPUs: {text[:40]!r}")
    return frozenset(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)
