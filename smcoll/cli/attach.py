"""Reaching into a running job from outside: its mappings, its processes, their Python stacks."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from smcoll.sync.observation import Observation, RankView

# What /proc/PID/fd says of a segment, whose name is gone once all ranks have mapped it.
_SEGMENT = re.compile(r"/(?:dev/shm/|memfd:)(smcoll\S*)(?: \(deleted\))?")
STACK_SECONDS = 10


class Attached:
    """One communicator's mapping, opened read-only through the descriptor of one of its ranks.

    ``key``: the file's device and inode.
    """

    def __init__(self, name: str, key: tuple[int, int], descriptor: int):
        self.name = name
        self.key = key
        self.observation = Observation(descriptor)

    def look(self) -> list[RankView]:
        """Every rank of the communicator, now."""
        return self.observation.look()

    def close(self) -> None:
        """Close the descriptor; the job notices nothing."""
        os.close(self.observation.descriptor)


def processes_of(pids: Iterable[int]) -> list[int]:
    """These processes and all below them (a launcher's ranks); all visible ones for none."""
    pids = list(pids)
    if not pids:
        return sorted(psutil.pids())
    found: list[int] = []
    for pid in pids:
        process = psutil.Process(pid)
        found += [pid, *(child.pid for child in process.children(recursive=True))]
    return sorted(set(found))


def attach(pids: Iterable[int], known: Iterable[Attached] = ()) -> list[Attached]:
    """The mappings that these processes have open, oldest first; ``known`` ones are kept."""
    found = {attached.key: attached for attached in known}
    for pid in pids:
        # It may end meanwhile, or be somebody else's.
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    _attach_one(link, found)
    return sorted(found.values(), key=lambda attached: attached.key)


def _attach_one(link: Path, found: dict[tuple[int, int], Attached]) -> None:
    match = _SEGMENT.fullmatch(os.readlink(link))
    if match is None:
        return
    facts = os.stat(link)
    key = facts.st_dev, facts.st_ino
    if key in found:
        return
    descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found[key] = Attached(match[1], key, descriptor)
    except OSError:
        os.close(descriptor)
        raise


def process_state(pid: int) -> str:
    """What the kernel says of a process (running, sleeping, stopped, ...); "" where it can't."""
    try:
        return psutil.Process(pid).status() if pid else ""
    except psutil.Error:
        return ""


def python_stack(pid: int) -> str | None:
    """The Python stack of a process, by py-spy, which need not be installed; None without it."""
    program = shutil.which("py-spy", path=os.path.dirname(sys.executable)) or shutil.which("py-spy")
    if program is None or not pid:
        return None
    try:
        result = subprocess.run(
            [program, "dump", "--pid", str(pid)], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=STACK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy: {error}"
    return result.stdout.strip() or f"py-spy: {result.stderr.strip()}"
