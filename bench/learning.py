"""What a communicator that learns makes of wrong defaults, and what learning costs.

    python bench/learning.py -n 2 --jobs 4 --json learning.json

For each collective and size all variants that may be tried are measured first, each in a
communicator that does not learn. Then a communicator begins with the slowest of them as its
default, makes 300 calls, and is measured by turns with the fastest, and with a third one that has
the fastest, too: the control, since communicators that do the same differ by where their memory
lies. The last columns are of communicators with the usual defaults, with learning on and off by
turns, and two with learning off: after 300 calls, in the first 30 calls, and with 8 B in steady
use. Ratios are medians; 1.00 is the one that is compared with.

``--jobs 4``: as many jobs one after another, then each row's median over them. Two communicators
that do the same may differ by more than 10 % for as long as they live, so one job's row says
little.

``--late-us 200``: before each of the 300 calls every rank computes for a random time of up to so
long. What is learned should not depend on it: a late rank is not the algorithm's fault. Each row
says how far the cores were from each other before and after it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median

import numpy as np

from smcoll.launch import launch
from smcoll.tuning import distance

COLLECTIVES = ("bcast", "reduce", "allreduce", "allgather", "reduce_scatter_block", "scan")
SIZES = (1024, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
CALLS = 300
SHORT = 30
BLOCKS = 9
BLOCK_SECONDS = 2e-3  # the first calls of a block are slower: what they need is in no cache
CLOSE = 0.1           # this much slower than the best is as good as it
ALIKE = 8             # communicators of each kind, where single ones differ too much


def call_of(comm, collective: str, nbytes: int):
    """One call, and where ranks would run ahead a Barrier: learning needs synchronising calls."""
    size = comm.Get_size()
    count = max(nbytes // 8, 1)
    if collective == "reduce_scatter_block":
        count = -(-count // size) * size
    send = np.ones(count)
    recv = np.empty(count * (size if collective == "allgather" else 1))
    if collective == "bcast":
        return lambda: (comm.Bcast(send, 0), comm.Barrier())
    if collective == "reduce_scatter_block":
        recv = np.empty(count // size)
    method = getattr(comm, collective.capitalize())
    if collective == "allreduce":
        return lambda: method(send, recv)
    return lambda: (method(send, recv), comm.Barrier())


def seconds_of(world, call, calls: int) -> float:
    """A block of calls: the slowest rank's time for one."""
    world.Barrier()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    from mpi4py import MPI

    return world.allreduce((time.perf_counter() - began) / calls, MPI.MAX)


def block_length(world, call) -> int:
    """How many calls make a block; the same on all ranks."""
    seconds_of(world, call, 3)
    return max(8, min(4000, int(BLOCK_SECONDS / seconds_of(world, call, 10))))


def by_turns(world, calls: dict, length: int, blocks: int = BLOCKS) -> dict:
    """Medians of blocks, the contenders by turns."""
    times = {name: [] for name in calls}
    for _ in range(blocks):
        for name, call in calls.items():
            times[name].append(seconds_of(world, call, length))
    return {name: median(found) for name, found in times.items()}


def cores_apart(world) -> str:
    """``near``, ``far``, ...: of the ranks' CPUs the farthest from the first; nobody else runs."""
    cpus = sorted(set().union(*world.allgather(os.sched_getaffinity(0))))
    ns = distance.farthest(cpus) if world.Get_rank() == 0 else None
    measured = world.Ibarrier()
    while not measured.Test():
        time.sleep(0.001)
    return world.bcast(distance.state_of(ns))


def computing(call, late: float, rank: int):
    """The same call, up to ``late`` seconds later."""
    random = np.random.default_rng(rank)

    def later() -> None:
        end = time.perf_counter() + late * random.random()
        while time.perf_counter() < end:
            pass
        call()

    return later


def wrong_default(world, collective: str, nbytes: int, late: float) -> dict:
    """Begin with the slowest variant, make 300 calls, compare with the fastest."""
    import smcoll
    from smcoll.tuning import select
    from smcoll.tuning.variants import for_communicator, to_try

    name = collective.removesuffix("_block")
    # Not class by class: what another class found must not help.
    with smcoll.Comm(world, smcoll.Config(learn="off")) as fixed:
        engine = fixed.engine
        rows = engine.decisions[name]
        total = nbytes
        usual = select.decision_in(rows, total)
        variants = for_communicator(engine.config, engine.decisions, fixed.size,
                                    len(engine.domains), engine.oversubscribed).get(name, ())
        in_class = max(total - 1, 0).bit_length()
        candidates = [usual, *to_try(name, variants, in_class, fixed.size, rows,
                                     {"exchange": 2016, "rooted": 1120}).values()]
        call = call_of(fixed, collective, nbytes)
        length = block_length(world, call)
        times = []
        for row in candidates:
            engine.use({name: [row]})
            seconds_of(world, call, length)
            times.append(min(seconds_of(world, call, length) for _ in range(3)))
        times = world.bcast(times)
        best, worst = times.index(min(times)), times.index(max(times))
        bad = candidates[worst]
        original = select.defaults, select.default_radix

        def defaults(one, *arguments, **named):
            if one != name:
                return original[0](one, *arguments, **named)
            return [(select.UNLIMITED, bad.algorithm, bad.section_bytes, bad.segments)]

        # A radix in the settings would not be touched.
        select.defaults = defaults
        select.default_radix = lambda *_: bad.fan_out if name == "bcast" else bad.fan_in
        try:
            learner = smcoll.Comm(world, smcoll.Config(learn="on"))
            learning = call_of(learner, collective, nbytes)
            taught = computing(learning, late, world.Get_rank()) if late else learning
            for _ in range(CALLS):
                taught()
        finally:
            select.defaults, select.default_radix = original
        engine.use({name: [candidates[best]]})
        same = smcoll.Comm(world, smcoll.Config(learn="off"))
        same.engine.use({name: [candidates[best]]})
        found = by_turns(world, {"best": call, "learned": learning,
                                 "control": call_of(same, collective, nbytes)}, length)
        told = learner.explain(name, nbytes)
        stores = {which: world.allgather(comm.explain(name, nbytes).parameters.get("stores"))
                  for which, comm in (("best", fixed), ("learned", learner), ("control", same))}
        same.Free()
        learner.Free()
    return {"collective": collective, "bytes": nbytes, "ranks": world.Get_size(),
            "variants": len(candidates), "best": in_words(candidates[best].algorithm,
                                                          vars(candidates[best])),
            "worst": in_words(bad.algorithm, vars(bad)), "best_us": 1e6 * found["best"],
            "worst_us": 1e6 * times[worst], "learned": in_words(told.algorithm, told.parameters),
            "learned_us": 1e6 * found["learned"], "ratio": found["learned"] / found["best"],
            "control": found["control"] / found["best"], "stores": stores}


def in_words(algorithm: str, parameters: dict) -> str:
    """``fan_out/1 32K``: the radix, where it has one, and its sections."""
    radix = parameters.get(algorithm)
    return (algorithm + (f"/{radix}" if radix else "")
            + f" {parameters.get('section_bytes', 0) >> 10}K")


def usual_default(world, collective: str, nbytes: int, late: float) -> tuple[float, float]:
    """Begin with the usual row, make 300 calls: beside a communicator that does not learn, which
    is also compared with a second one."""
    import smcoll

    comms = {name: smcoll.Comm(world, smcoll.Config(learn=name.rstrip("2")))
             for name in ("off", "on", "off2")}
    calls = {name: call_of(comm, collective, nbytes) for name, comm in comms.items()}
    for call in calls.values():
        taught = computing(call, late, world.Get_rank()) if late else call
        for _ in range(CALLS):
            taught()
    found = by_turns(world, calls, block_length(world, calls["off"]))
    for comm in comms.values():
        comm.Free()
    return found["on"] / found["off"], found["off2"] / found["off"]


def short_run(world, collective: str, nbytes: int) -> float:
    """The first calls with learning, beside those without."""
    import smcoll

    ratios = []
    for _ in range(BLOCKS):
        times = {}
        for learn in ("on", "off"):
            with smcoll.Comm(world, smcoll.Config(learn=learn)) as comm:
                call = call_of(comm, collective, nbytes)
                comm.Barrier()
                times[learn] = seconds_of(world, call, SHORT)
        ratios.append(times["on"] / times["off"])
    return median(ratios)


def steady(world) -> dict[str, float]:
    """8 B calls long after all is known: the mean of several communicators of each kind, since two
    that do the same differ."""
    import smcoll

    comms = {(learn, i): smcoll.Comm(world, smcoll.Config(learn=learn))
             for i in range(ALIKE) for learn in ("off", "on")}
    send, recv = np.ones(1), np.empty(1)
    methods = {"barrier": lambda comm: comm.Barrier,
               "bcast": lambda comm: lambda: comm.Bcast(send, 0),
               "allreduce": lambda comm: lambda: comm.Allreduce(send, recv)}
    found = {}
    for collective, method in methods.items():
        calls = {name: method(comm) for name, comm in comms.items()}
        by_turns(world, calls, 5000, 1)
        times = by_turns(world, calls, 10_000)
        on, off = (mean(time for (learn, _), time in times.items() if learn == kind)
                   for kind in ("on", "off"))
        found[collective] = on / off
    for comm in comms.values():
        comm.Free()
    return found


def within(rows: list[dict]) -> str:
    """How many rows come up to the best."""
    learned, control = (sum(row[name] <= 1 + CLOSE for row in rows)
                        for name in ("ratio", "control"))
    return (f"of {len(rows)} rows {learned} within {CLOSE:.0%} of the best, "
            f"{control} in the control")


def medians(jobs: list[dict]) -> list[dict]:
    """Each collective and size: what it came to in the median over jobs."""
    return [{"collective": same[0]["collective"], "bytes": same[0]["bytes"],
             "ratio": median(row["ratio"] for row in same),
             "control": median(row["control"] for row in same)}
            for same in zip(*(job["rows"] for job in jobs), strict=True)]


def print_medians(jobs: list[dict]) -> None:
    rows = medians(jobs)
    print(f"all {len(jobs)} jobs:", within([row for job in jobs for row in job["rows"]]))
    print("medians over jobs:", within(rows))
    for row in rows:
        if row["ratio"] > 1 + CLOSE:
            print(f"  {row['collective']} {row['bytes']}: {row['ratio']:.2f}, control "
                  f"{row['control']:.2f}")


def ranks_part(options) -> None:
    from mpi4py import MPI

    world, rows = MPI.COMM_WORLD, []
    for collective in options.collectives.split(","):
        for nbytes in SIZES:
            before = cores_apart(world)
            row = wrong_default(world, collective, nbytes, options.late_us * 1e-6)
            after = cores_apart(world)
            row["cores"] = before if before == after else "both"
            row["usual"], row["usual_control"] = usual_default(world, collective, nbytes,
                                                               options.late_us * 1e-6)
            row["short_run"] = short_run(world, collective, nbytes)
            rows.append(row)
            if world.Get_rank() == 0:
                print(f"{collective:20} {nbytes:8} worst {row['worst']:22} {row['worst_us']:9.1f}"
                      f"  best {row['best']:22} {row['best_us']:9.1f}  learned {row['learned']:22}"
                      f" {row['learned_us']:9.1f}  {row['ratio']:5.2f}  control "
                      f"{row['control']:5.2f}  usual {row['usual']:5.2f} (off / off "
                      f"{row['usual_control']:4.2f})  30 calls {row['short_run']:5.2f}  "
                      f"{row['cores']}", flush=True)
    eight = steady(world)
    if world.Get_rank() == 0:
        for cores in sorted({row["cores"] for row in rows}):
            print(f"cores {cores}:", within([row for row in rows if row["cores"] == cores]))
        for name, words in (("usual", "usual defaults, on / off after 300 calls"),
                            ("usual_control", "two communicators that don't learn"),
                            ("short_run", "the same in the first 30 calls")):
            ratios = [row[name] for row in rows]
            print(f"{words}: median {median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})")
        print("8 B, on / off:", {name: round(ratio, 3) for name, ratio in eight.items()})
        Path(options.as_ranks).write_text(json.dumps({"rows": rows, "steady": eight}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--late-us", type=float, default=0.0,
                        help="how late ranks come at most while it learns (0)")
    parser.add_argument("--jobs", type=int, default=1, help="one after another (1)")
    parser.add_argument("--json")
    parser.add_argument("--as-ranks", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_ranks:
        ranks_part(options)
        return 0
    os.environ["XDG_CACHE_HOME"] = "/dev/null/none"     # each communicator begins anew
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    jobs = []
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "job.json")
        command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--as-ranks",
                   str(found)]
        for _ in range(options.jobs):
            failed = launch.run(options.ranks, command).returncode
            if failed:
                return failed
            jobs.append(json.loads(found.read_text()))
    if options.jobs > 1:
        print_medians(jobs)
    if options.json:
        Path(options.json).write_text(json.dumps({"jobs": jobs}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
