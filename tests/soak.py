"""Random sequences of collectives for as long as wanted: ``python tests/soak.py --minutes 5 -n 8``.

Prints the seed of every program before it runs, so that a failure can be repeated with ``--seed``.
A program that hangs longer than ``--hang`` seconds prints the stacks of all ranks and ends the job.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("-n", "--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, help="seed of the first program (default: the time)")
    parser.add_argument("--calls", type=int, default=2000, help="calls per program")
    parser.add_argument("--hang", type=float, default=120, help="seconds a program may take")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        return soak(options)
    import mpi4py

    mpi4py.rc.initialize = False  # this process starts mpiexec and is no rank itself
    from smcoll import launch

    program = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--as-rank"]
    return launch.run(options.ranks, program).returncode


def soak(options) -> int:
    from mpi4py import MPI

    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from sequences import RandomProgram

    world = MPI.COMM_WORLD
    end = time.monotonic() + options.minutes * 60
    seed = world.allgather(int(time.time()) if options.seed is None else options.seed)[0]
    calls = 0
    try:
        while max(world.allgather(time.monotonic() < end)):
            if world.rank == 0:
                print(f"seed {seed}, {options.calls} calls ...", flush=True)
            faulthandler.dump_traceback_later(options.hang, exit=True)
            program = RandomProgram(world, seed)
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
