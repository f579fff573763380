"""What a busy machine does to a job, on purpose: ``python tests/support/disturb.py FOLDER PID...``.

Stops ranks (SIGSTOP) and lets them go on, changes their priorities, and fills /dev/shm and empties
it again, if the FOLDER given has the file ``squeeze`` (only for a /dev/shm of the job's own). Ends
with its parent, or when FOLDER has the file ``end``; leaves the ranks running, and prints what it
did. Nothing here is an error for the ranks: they must go on with right results.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

BALLOON = Path("/dev/shm/balloon")


def stop_for_a_while(pids: list[int]) -> None:
    """One rank, a few, or all but one."""
    stopped = random.sample(pids, random.choice([1, 1, max(1, len(pids) // 2), len(pids) - 1]))
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    # Mostly shorter than a time slice, sometimes long enough that the others sleep and watch.
    time.sleep(random.choice([0.001, 0.005, 0.02, 0.1, 0.1, 1.5]))
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


def change_priority(pids: list[int]) -> None:
    """Back to 0 only as root: else a rank only gets nicer."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, random.choice(pids), random.choice([0, 0, 1, 5, 19]))


def squeeze() -> None:
    """Leave a random part of /dev/shm, sometimes nothing."""
    room = os.statvfs(BALLOON.parent)
    free = room.f_bavail * room.f_frsize
    descriptor = os.open(BALLOON, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        held = os.fstat(descriptor).st_blocks * 512
        wanted = int((held + free) * random.choice([0, 0, 0.3, 0.7, 0.95, 1.0]))
        os.ftruncate(descriptor, wanted)
        with contextlib.suppress(OSError):
            if wanted > 0:
                os.posix_fallocate(descriptor, 0, wanted)
    finally:
        os.close(descriptor)


def main() -> int:
    folder, pids = Path(sys.argv[1]), [int(text) for text in sys.argv[2:]]
    done: collections.Counter[str] = collections.Counter()
    parent = os.getppid()
    try:
        while os.getppid() == parent and not (folder / "end").exists():
            time.sleep(random.expovariate(1 / 0.05))
            kind = random.random()
            if kind < 0.6:
                stop_for_a_while(pids)
                done["stopped"] += 1
            elif kind < 0.8:
                change_priority(pids)
                done["priorities changed"] += 1
            elif (folder / "squeeze").exists():
                squeeze()
                done["squeezed"] += 1
    except ProcessLookupError:
        pass  # a rank has ended
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        if (folder / "squeeze").exists():
            BALLOON.unlink(missing_ok=True)
    print("disturbed:", ", ".join(f"{what} {times}" for what, times in done.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
