"""Plants bugs in copies of smcoll and runs the tests that must fail.

    python tests/verification/mutants.py

Each bug is a small change of the protocol's source, made in a copy of this folder, built there,
and given to tests of the suite. A bug is caught when a test fails or hangs. Prints a table; takes a
minute or two a bug (``-k``: only some; ``--runs``: more runs of each test). The same bugs in
the models: protocol_models.py; under ThreadSanitizer: threads_under_tsan.py.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STREAMS = "smcoll/coll/streams.pyx"
NOT_COPIED = (".git", ".*_cache", "__pycache__", ".venv*", "*.log")

SEQUENCES = "tests/collectives/test_random_sequences.py -k '2ranks or 3ranks or 5ranks'"
MOVEMENT = "tests/collectives/test_movement.py"
BANKS = "tests/collectives/test_banks.py"
RETURNS = "tests/collectives/test_direct_access.py -k 'returns_only_when or gave_up'"
LEARNING = "tests/collectives/test_learning.py -k 'rows_change or no_kernel'"
IN_NODES = "tests/internode/test_learning_in_nodes.py -k rows_change"
ROOMS = f"{MOVEMENT} -k changing_rooms"
AHEAD = f"{MOVEMENT} -k 'runs_ahead or alltoall_and_alltoallv'"


@dataclass(frozen=True)
class Edit:
    """A change of one file: ``old`` stands there exactly once."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A planted bug, its name in the models, and the tests that must catch it.

    ``tests``: arguments for pytest; empty where only ThreadSanitizer can see it.
    """

    name: str
    in_models: str
    edits: tuple[Edit, ...]
    tests: str


MUTANTS = (
    Mutant("relaxed_flag", "RELAXED_FLAG",
           (Edit("smcoll/base/atomics.h", "__atomic_store_n(word, value, __ATOMIC_RELEASE)",
                 "__atomic_store_n(word, value, __ATOMIC_RELAXED)"),), ""),
    Mutant("relaxed_load", "READ_BEFORE_WAITING",
           (Edit("smcoll/base/atomics.h", "__atomic_load_n(word, __ATOMIC_ACQUIRE)",
                 "__atomic_load_n(word, __ATOMIC_RELAXED)"),), ""),
    Mutant("post_before_copy", "POST_BEFORE_COPY",
           (Edit("smcoll/coll/all_read.pyx",
                 """    copy_bytes(line.payload, call.send, call.nbytes)
    post_line(team, line, team.exchanges)
""", """    post_line(team, line, team.exchanges)
    copy_bytes(line.payload, call.send, call.nbytes)
"""),), SEQUENCES),
    Mutant("one_exchange_slot", "ONE_EXCHANGE_SLOT",
           (Edit("smcoll/barrier.pxd", "<int> (team.exchanges & 1)", "0"),), SEQUENCES),
    Mutant("wait_one_too_low", "WAIT_ONE_TOO_LOW",
           (Edit("smcoll/coll/all_read.pyx",
                 "status = wait_line(team, line, team.exchanges, rank)",
                 "status = wait_line(team, line, team.exchanges - 1, rank)"),), SEQUENCES),
    Mutant("no_bank_barrier", "NO_BANK_BARRIER",
           (Edit("smcoll/barrier.pxd",
                 "    if team.proven[cursor.kind][cursor.bank] == cursor.pass_:\n",
                 "    if True:\n"),), SEQUENCES),
    Mutant("bank_one_round_early", "BANK_ONE_ROUND_EARLY",
           (Edit("smcoll/barrier.pyx", "        if not acquire_reached(field, cursor.pass_):\n",
                 "        if not acquire_reached(field, cursor.pass_ - 1):\n"),), SEQUENCES),
    Mutant("epoch_too_high", "EPOCH_TOO_HIGH",
           (Edit("smcoll/barrier.pxd", "                  cursor.pass_ + 1)\n",
                 "                  cursor.pass_ + 2)\n"),),
           SEQUENCES),
    Mutant("epoch_too_low", "EPOCH_TOO_LOW",
           (Edit("smcoll/barrier.pxd", "                  cursor.pass_ + 1)\n",
                 "                  cursor.pass_)\n"),),
           SEQUENCES),
    Mutant("release_at_first_slot", "RELEASE_AT_FIRST_SLOT",
           (Edit("smcoll/barrier.pxd", "    if cursor.slot == cursor.in_use - 1:\n",
                 "    if cursor.slot == 0:\n"),), BANKS),
    Mutant("release_before_reading", "RELEASE_BEFORE_READING",
           (Edit("smcoll/coll/tree.pyx",
                 "        copy_bytes(call.recv, line.payload, call.nbytes)\n",
                 "        release_slot(team, &slot)\n"
                 "        copy_bytes(call.recv, line.payload, call.nbytes)\n"),), BANKS),
    Mutant("chain_release_before_reading", "RELEASE_BEFORE_READING",
           (Edit("smcoll/coll/scan.pyx", "    take_result(call.operation, call.recv, before,",
                 "    release_slot(team, &slot)\n"
                 "    take_result(call.operation, call.recv, before,"),),
           BANKS),
    Mutant("no_read_handshake", "NO_READ_HANDSHAKE",
           (Edit("smcoll/coll/pipeline.pyx", "heard_all(call, section, STEP_READ - SECTION_STEPS)",
                 "DONE"),), SEQUENCES),
    Mutant("one_rank_changes_regions", "ONE_RANK_CHANGES_REGIONS",
           (Edit("smcoll/coll/pipeline.pyx", "call.swaps = use & ALL_STORE and team.size == 2",
                 "call.swaps = use & ALL_STORE and team.size == 2 and team.rank == 0"),),
           SEQUENCES),
    Mutant("one_rank_shares_regions", "ONE_RANK_SHARES_REGIONS",
           (Edit("smcoll/coll/pipeline.pyx",
                 "call.shares = before == 1 - writer", "call.shares = before == 1 - team.rank"),),
           f"{BANKS} -k by_turns"),
    Mutant("window_too_wide", "WINDOW_TOO_WIDE",
           (Edit("smcoll/coll/pipeline.pyx",
                 "window = min(phases, (team.layout.banks - 1) * team.segments.in_use + 1)",
                 "window = phases"),), SEQUENCES),
    Mutant("bank_left_unreleased", "BANK_LEFT_UNRELEASED",
           (Edit("smcoll/barrier.pyx", "        release_bank(team, cursor)\n", ""),), BANKS),
    Mutant("stream_post_before_copy", "POST_BEFORE_COPY",
           (Edit(STREAMS, """        pack_next(&message.convertor, place, piece, stores)
        if sampled:
            add_store_sample(message.chosen, stores, monotonic_ns() - began, piece)
        stream.sent += 1
        post_line_length(team, line, stream.sent, message.nbytes)
""", """        stream.sent += 1
        post_line_length(team, line, stream.sent, message.nbytes)
        pack_next(&message.convertor, place, piece, stores)
"""),), MOVEMENT),
    Mutant("one_cell_too_many", "ONE_CELL_TOO_MANY",
           (Edit(STREAMS, "needed = stream.sent + 1 - cells", "needed = stream.sent - cells"),),
           AHEAD),
    Mutant("no_credit", "NO_CREDIT",
           (Edit(STREAMS, """    if <long long> (stream.credit - needed) >= 0:
        return True
""", "    return True\n"),), AHEAD),
    Mutant("credit_before_reading", "CREDIT_BEFORE_READING",
           (Edit(STREAMS, """        unpack_next(&message.convertor, place, wanted, kind)
        end_reading(message.chosen, kind, began, wanted)
        message.done += piece
        stream.received += 1
""", """        if message.heap_offset == STAGED:
            stream.received += 1
            give_credit(team, stream, message.peer)
            stream.received -= 1
            began = monotonic_ns() + 20000      # or else it is hardly ever too late
            while monotonic_ns() < began:
                pass
        unpack_next(&message.convertor, place, wanted, kind)
        end_reading(message.chosen, kind, began, wanted)
        message.done += piece
        stream.received += 1
"""),), MOVEMENT),
    Mutant("send_all_first", "SEND_ALL_FIRST",
           (Edit(STREAMS, """    for i in range(exchange.receives):
        message = &exchange.incoming[i]
        if not message.finished:
            status = receive_more""", """    for i in range(exchange.sends):
        if not exchange.outgoing[i].finished:
            return AGAIN
    for i in range(exchange.receives):
        message = &exchange.incoming[i]
        if not message.finished:
            status = receive_more"""),), AHEAD),
    Mutant("ignores_what_comes", "IGNORES_WHAT_COMES",
           (Edit(STREAMS, "    if (stream.awaits and stream.chunks_sent >=",
                 "    if (False and stream.chunks_sent >="),), ROOMS),
    Mutant("waits_for_chunks_in_vain", "WAITS_FOR_CHUNKS_IN_VAIN",
           (Edit(STREAMS, "                stream.awaits = False      # any chunk\n",
                 "                pass\n"),),
           "tests/collectives/test_direct_access.py -k in_place_on_one"),
    Mutant("counts_only_what_it_sends", "COUNTS_ONLY_WHAT_IT_SENDS",
           (Edit(STREAMS, "max(stream.chunks_sent, stream.chunks_received)",
                 "stream.chunks_sent"),), MOVEMENT),
    Mutant("overwrites_what_it_sends", "OVERWRITES_WHAT_IT_SENDS",
           (Edit(STREAMS, "return message.behind != NULL and message.behind.done <",
                 "return False and message.behind.done <"),), AHEAD),
    Mutant("direct_no_closing_exchange", "NO_CLOSING_EXCHANGE",
           (Edit("smcoll/coll/peer_buffers.pyx",
                 "return barrier_all_read(team) if status == DONE else status",
                 "return status"),), RETURNS),
    Mutant("direct_closes_before_reading", "CLOSES_BEFORE_READING",
           (Edit("smcoll/coll/direct.pyx", """        reduce_own_slice(call, &whole, NULL)
""", """        status = end_in_agreement(call.team)
        reduce_own_slice(call, &whole, NULL)
        return status
"""),), RETURNS),
    Mutant("direct_root_does_not_wait", "OWNER_DOES_NOT_WAIT",
           (Edit("smcoll/coll/direct.pyx",
                 "            status = all_have_read(team, &slot, tick)\n",
                 "            pass\n"),), RETURNS),
    Mutant("direct_sender_does_not_wait", "OWNER_DOES_NOT_WAIT",
           (Edit(STREAMS, "message.nbytes)\n            return AGAIN\n",
                 "message.nbytes)\n            return DONE\n"),), RETURNS),
    Mutant("direct_receiver_does_not_wait_for_what_is_written", "RECEIVER_DOES_NOT_WAIT",
           (Edit(STREAMS, """            if not was_written(exchange, message):
                return AGAIN
""", ""),), RETURNS),
    Mutant("direct_written_before_it_is", "SAYS_SO_BEFORE_WRITING",
           (Edit(STREAMS, "    copy_result(place,", """\
    store_release(written_word(&team.layout, team.base, team.rank, message.peer), message.cell)
    copy_result(place,"""),), RETURNS),
    Mutant("direct_halves_close_before_copying", "CLOSES_BEFORE_WRITING",
           (Edit("smcoll/coll/direct.pyx", """    if place == NULL:
        half = call.nbytes         # the reader copies all of it
""", """    status = end_in_agreement(team)
    if status != DONE:
        return status
    if place == NULL:
        half = call.nbytes         # the reader copies all of it
"""), Edit("smcoll/coll/direct.pyx", "    return end_in_agreement(team)\n", "    return DONE\n")),
           RETURNS),
    Mutant("direct_allgather_closes_before_writing", "CLOSES_BEFORE_WRITING",
           (Edit("smcoll/coll/direct.pyx", """    nbytes = min(blocks.send_bytes, theirs.room)
""", """    status = end_in_agreement(team)
    if status != DONE:
        return status
    nbytes = min(blocks.send_bytes, theirs.room)
"""), Edit("smcoll/coll/direct.pyx", """            return status
    return end_in_agreement(call.team)


cdef int exchange_blocks""", """            return status
    return DONE if peer_writes else end_in_agreement(call.team)


cdef int exchange_blocks""")), RETURNS),
    Mutant("kernel_no_look_at_refusal", "NO_LOOK_AT_REFUSAL",
           (Edit(STREAMS, "    return message.address != 0 and message.cell == ",
                 "    return message.address == 1 and message.cell == "),),
           "tests/collectives/test_kernel_copy.py -k holes"),
    Mutant("kernel_no_look_at_poison", "NO_LOOK_AT_POISON",
           (Edit("smcoll/coll/peer_buffers.pyx",
                 "rank).poison) == 0:\n", "rank).poison) >= 0:\n"),),
           "tests/collectives/test_kernel_copy.py -k gave_up"),
    Mutant("kernel_offer_not_remembered", "-",
           (Edit(STREAMS, "                message.is_offered = message.address != 0\n", ""),),
           "tests/collectives/test_kernel_copy.py -k keeps_both_ranks"),
    Mutant("direct_no_look_at_poison", "NO_LOOK_AT_POISON",
           (Edit("smcoll/coll/peer_buffers.pyx",
                 "rank).poison) == 0:\n", "rank).poison) >= 0:\n"),),
           RETURNS),
    Mutant("routes_tried_by_each_rank_alone", "-",
           (Edit("smcoll/coll/routes.pyx", "((burst + choice.phase) // between + 1) * between -",
                 "burst + between + choice.phase -"),), "tests/unit/test_stores.py -k one_by_one"),
    Mutant("routes_that_become_slow_wait_for_their_trial", "-",
           (Edit("smcoll/coll/routes.pyx", "(in_turn and choice.gained == 0 and", "(False and"),),
           "tests/unit/test_stores.py -k become_slow"),
    Mutant("routes_of_one_loop_tried_together", "-",
           (Edit("smcoll/coll/routes.pyx",
                 "return BETWEEN_COLLECTIVES * number + BETWEEN_SIZES * size_class", "return 0"),),
           "tests/unit/test_stores.py -k one_loop"),
    Mutant("learning_holds_at_once", "HOLDS_AT_ONCE",
           (Edit("smcoll/engine/learning.pyx", "after = self.team.number + 1\n",
                 "after = self.team.number - 1\n"),), LEARNING),
    Mutant("learning_tells_too_soon", "TELLS_TOO_SOON",
           (Edit("smcoll/engine/learning.pyx", "self.has_work and self.over < self.synchronised\n",
                 "self.has_work\n"),), LEARNING),
    Mutant("learning_only_some_heed", "ONLY_SOME_HEED",
           (Edit("smcoll/engine/plans.pyx", "            self.heed(load_relaxed(self.told))\n",
                 "            pass\n"),), LEARNING),
    Mutant("learning_tells_in_any_call_over_nodes", "-",
           (Edit("smcoll/internode/spanning.pyx",
                 "collective == COLLECTIVE_BARRIER or (\n            collective == COLLECTIVE_ALL",
                 "collective != COLLECTIVE_BARRIER or (\n            collective == COLLECTIVE_ALL"
                 ),), IN_NODES),
)


def copy_sources(target: Path) -> None:
    """This folder, with what is built in it (so that only what a bug changes is built again)."""
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)


def plant(folder: Path, mutant: Mutant) -> None:
    """Make the mutant's changes in this copy. ValueError where the source has changed since."""
    for edit in mutant.edits:
        path = folder / edit.file
        path.write_text(planted(path.read_text(), mutant, edit))


def planted(text: str, mutant: Mutant, edit: Edit) -> str:
    """A file's text with one change of the mutant's."""
    if text.count(edit.old) != 1:
        raise ValueError(f"{mutant.name}: its place in {edit.file} is not there once")
    return text.replace(edit.old, edit.new)


def build(folder: Path, **environment: str) -> None:
    """Compile what changed, in place."""
    result = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace", f"-j{os.cpu_count()}"], cwd=folder,
        env=os.environ | environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"no build in {folder}:\n{result.stdout[-3000:]}{result.stderr[-3000:]}")


def run_tests(folder: Path, tests: str, deadline: float) -> str:
    """"passed", "failed: ..." with the first test's name, or "hangs" (after ``deadline`` s)."""
    command = f"exec {sys.executable} -m pytest -q -x -p no:cacheprovider {tests}"
    environment = os.environ | {"PYTHONPATH": str(folder)}
    process = subprocess.Popen(["sh", "-c", command], cwd=folder, env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        process.terminate()        # pytest ends its jobs
        process.communicate()
        return "hangs"
    if process.returncode == 0:
        return "passed"
    name = re.search(r"FAILED [^:\n]*::(.+?)(?: - |$)", output, re.MULTILINE)
    if name is None:
        raise RuntimeError(f"no test ran:\n{output[-3000:]}")
    return f"failed: {name.group(1)}"


def catch(mutant: Mutant, runs: int = 1, deadline: float = 150.0) -> list[str]:
    """What ``runs`` runs of the mutant's tests say."""
    with tempfile.TemporaryDirectory(prefix="smcoll-mutant-") as parent:
        folder = Path(parent) / "smcoll"
        copy_sources(folder)
        plant(folder, mutant)
        build(folder)
        return [run_tests(folder, mutant.tests, deadline) for _ in range(runs)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", default="", metavar="REGEX", help="only bugs with such names")
    parser.add_argument("--runs", type=int, default=1, help="runs of each test")
    options = parser.parse_args()
    missed = 0
    print("| planted bug | in the models | caught in | how |\n|---|---|---|---|")
    for mutant in MUTANTS:
        if not mutant.tests or not re.search(options.k, mutant.name):
            continue
        results = catch(mutant, options.runs)
        caught = [result for result in results if result != "passed"]
        missed += not caught
        how = "; ".join(sorted(set(caught)))
        print(f"| {mutant.name} | {mutant.in_models} | {len(caught)} of {len(results)} | {how} |",
              flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
