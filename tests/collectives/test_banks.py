"""Banks are written again when all have read them, and not before (GS section 3, protocol rule 11).

One rank runs ahead as far as it may; another stops where reuse one step too early would show.
"""

from __future__ import annotations

import random
import time

import chosen
import numpy as np
import pytest

import smcoll

SECTION = 4096  # bytes of a segment; a multiple of a page
LONG_ENOUGH = 0.3  # seconds in which a root that may run ahead does, on a busy machine


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("nbytes", [16, SECTION])
@pytest.mark.parametrize("banks", [1, 2])
def test_a_bank_is_kept_until_its_last_slot_is_read(comm_world, nbytes, banks):
    """Who has read a bank's first slot only still finds in the others what was put there."""
    segments = 4
    config = chosen.config(segment_size=SECTION, segments=segments, inline_slots=segments,
                           banks=banks, eager=True)
    with smcoll.Comm(comm_world, config) as comm:
        for turn in range(4 * banks * segments):
            buffer = np.full(nbytes, turn if comm.rank == 0 else 255, np.uint8)
            with chosen.algorithm(comm, "bcast", "fan_out", fan_out=comm.size - 1):
                comm.Bcast(buffer, 0)
            assert (buffer == turn).all()
            if comm.rank == comm.size - 1 and turn == 0:
                time.sleep(LONG_ENOUGH)


@pytest.mark.one_node
@pytest.mark.mpi(3)
@pytest.mark.parametrize("banks", [1, 2, 3])
@pytest.mark.parametrize("sections", [1, 2, 3, 4])
def test_a_bank_that_is_left_half_used_is_written_again(comm_world, banks, sections):
    """Calls that keep to a bank's first segments, between calls that use all of them.

    ``sections`` lie in the bank when such a call begins; a bank that nobody releases is one that
    everybody waits for.
    """
    config = chosen.config(segment_size=SECTION, segments=4, inline_slots=4, banks=banks,
                           timeout=20, heap=False)
    count = 8 * SECTION
    with smcoll.Comm(comm_world, config) as comm:
        few = comm.engine.decisions["allreduce"][-1]
        assert few.segments < config.segments and few.algorithm == "tiled"
        for turn in range(5):
            data = np.full(sections * SECTION // 8, float(turn if comm.rank == 1 else -1))
            with chosen.algorithm(comm, "bcast", "fan_out", fan_out=2):
                comm.Bcast(data, 1)
            assert (data == turn).all()
            total = np.empty(count)
            comm.Allreduce(np.full(count, float(comm.rank + turn)), total)
            assert (total == 3 * (turn + 1)).all()


@pytest.mark.one_node
@pytest.mark.staged("in whose region a vector lies")
@pytest.mark.mpi(2)
@pytest.mark.parametrize("banks", [1, 2, 3])
def test_two_ranks_that_write_by_turns_overwrite_nothing_unread(comm_world, banks):
    """Who writes after the other one does so in the other's places, in a ring as long as the
    vector; between such calls all segments are in use. Ranks are late by turns.
    """
    shared, own = random.Random(banks), random.Random(comm_world.Get_rank())
    config = chosen.config(segment_size=SECTION, segments=4, banks=banks, timeout=20, learn="off")
    with smcoll.Comm(comm_world, config) as comm:
        rank = comm.rank
        for turn in range(1500):
            count = shared.choice((1, 2, 3, 5, 8, 30)) * SECTION // 8 - shared.randrange(2)
            root = shared.choice((turn % 2, 0))
            operand = np.full(count, float(turn + rank))
            kind = shared.choice(("bcast", "bcast", "reduce", "reduce", "allreduce"))
            if own.random() < 0.05:
                time.sleep(2e-4)
            if kind == "bcast":
                comm.Bcast(operand, root)
                assert (operand == turn + root).all(), turn
                continue
            total = np.zeros(count)
            if kind == "reduce":
                comm.Reduce(operand, total, root=root)
            else:
                comm.Allreduce(operand, total)
            if kind == "allreduce" or rank == root:
                assert (total == 2 * turn + 1).all(), turn


LONG_SLOT = 8192   # bytes: reading them takes long enough for a writer that does not wait


@pytest.mark.one_node
@pytest.mark.staged("what lies in a slot")
@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("call", ["Bcast", "Reduce", "Scan", "Exscan", "Scan, chain",
                                  "Exscan, chain"])
def test_the_only_slot_is_kept_until_it_is_read(comm_world, call):
    """The writer comes back to it in every call, as soon as it is released."""
    name, form = call.split(", ") if "," in call else (call, "direct")
    config = chosen.config(banks=1, inline_slots=1, rooted_inline_size=LONG_SLOT, scan=form,
                           exscan=form)
    with smcoll.Comm(comm_world, config) as comm:
        count = LONG_SLOT // 8
        mine, got = np.zeros(count), np.zeros(count)
        operands = {"Scan": comm.rank + 1, "Exscan": comm.rank}.get(
            name, comm.size if comm.rank == 0 else 0)
        for turn in range(3000):
            mine[:] = turn
            if name == "Bcast":
                got[:] = turn if comm.rank == 0 else -1
                comm.Bcast(got)
                assert (got == turn).all()
            else:
                getattr(comm, name)(mine, got)
                assert operands == 0 or (got == turn * operands).all(), turn
