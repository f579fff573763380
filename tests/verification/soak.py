"""Random sequences of collectives for as long as wanted.

    python tests/verification/soak.py --minutes 5 -n 8

All collectives on many communicators, every result checked; counters that start near the places
where they wrap. Meanwhile (``--calm``: not) ranks are stopped and go on, priorities change, and,
as root, a /dev/shm of the job's own is filled and emptied, so that segments are refused, or made
of nameless memory.

Prints the seed of every program before it runs, so that a failure can be repeated with ``--seed``.
A program that hangs longer than ``--hang`` seconds prints the stacks of all ranks and ends the job.
Nothing else should run: ranks whose priority is low get next to nothing beside other programs (8
ranks, four busy processes, 2 cores: 350 seconds, alone 12).
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[1] / "support"
# The numbers of calls, ticks and exchanges begin shortly before they pass these.
STARTS = (1, (1 << 32) - 500, (1 << 63) - 500, (1 << 64) - 500)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("-n", "--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, help="seed of the first program (default: the time)")
    parser.add_argument("--calls", type=int, default=2000, help="calls per program")
    parser.add_argument("--communicators", type=int, default=6, help="alive at a time")
    parser.add_argument("--hang", type=float, default=120, help="seconds a program may take")
    parser.add_argument("--calm", action="store_true", help="don't disturb the ranks")
    parser.add_argument("--dev-shm", default="48m", help="size of the job's own /dev/shm")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        return soak(options)
    import mpi4py

    mpi4py.rc.initialize = False  # this process starts mpiexec and is no rank itself
    from smcoll.launch import launch

    program = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--as-rank"]
    return launch.run(options.ranks, program).returncode


@contextlib.contextmanager
def disturbed(world, options):
    """Somebody disturbs the ranks meanwhile, from a process that rank 0 starts."""
    import numpy as np
    import own_dev_shm

    if options.calm:
        yield
        return
    # MPI attaches to its own shared memory now, while /dev/shm is the usual one.
    world.Alltoall(np.zeros(world.size * 3000, "i"), np.zeros(world.size * 3000, "i"))
    squeeze = world.bcast(own_dev_shm.possible() if world.rank == 0 else None)
    if squeeze:
        own_dev_shm.mount_for_all(world, options.dev_shm)
    elif world.rank == 0:
        print("memory is not squeezed: that needs root", flush=True)
    pids = world.gather(os.getpid())
    if world.rank != 0:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        if squeeze:
            Path(folder, "squeeze").touch()
        helper = subprocess.Popen(
            [sys.executable, str(SUPPORT / "disturb.py"), folder, *map(str, pids)])
        try:
            yield
        finally:
            Path(folder, "end").touch()
            helper.wait()


def soak(options) -> int:
    from mpi4py import MPI

    sys.path.insert(0, str(SUPPORT))
    from sequences import EveryCollective

    from smcoll.comm import setup
    from smcoll.engine import node

    world = MPI.COMM_WORLD
    end = time.monotonic() + options.minutes * 60
    seed = world.allgather(int(time.time()) if options.seed is None else options.seed)[0]
    calls = 0
    try:
        with disturbed(world, options):
            while max(world.allgather(time.monotonic() < end)):
                start = STARTS[seed % len(STARTS)]
                if world.rank == 0:
                    print(f"seed {seed}, {options.calls} calls, from {start} ...", flush=True)
                faulthandler.dump_traceback_later(options.hang, exit=True)
                setup.NodeEngine = functools.partial(node.NodeEngine, start=start)
                program = EveryCollective(world, seed, communicators=options.communicators)
                program.run(options.calls)
                program.free()
                faulthandler.cancel_dump_traceback_later()
                calls += options.calls
                seed += 1
    except BaseException:
        # The others may wait for this rank for ever.
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        world.Abort(1)
    if world.rank == 0:
        print(f"{calls} calls on {world.size} ranks, all results right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
