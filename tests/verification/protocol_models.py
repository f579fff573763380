"""Checks the models of the shared-memory protocol with SPIN.

    python tests/verification/protocol_models.py

Prints, for each configuration of the protocol as it is, how many states were searched, and for
each planted bug what SPIN found. ``--large`` adds the large configurations (minutes, up to 8 GB).
What is modelled: docs/protocol-proof.md and the models' own comments.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).resolve().parent / "models"
MEMORY_LIMIT = 8000  # MB
CLEAN = "clean"

# Model, its macros. The protocol as it is: exhaustively searched, nothing may be found.
SMALL = (
    ("inline", "PERIOD=3 CALLS=7"),
    ("inline", "PERIOD=2 CALLS=8 WEAK SEGMENTS=2 BANKS=1"),
    ("inline", "RANKS=3 PERIOD=1 CALLS=5 WEAK"),
    ("inline", "FOREVER RANKS=3 PERIOD=1 WEAK"),
    ("pipeline", "PERIOD=2 WEAK"),
    ("pipeline", "PERIOD=1 BANKS=1"),
    ("pipeline", "PERIOD=2 SEGMENTS=2 CALLS=2 SECTIONS=2"),
    ("pipeline", "RANKS=3 PERIOD=1 CALLS=2 SECTIONS=2"),
    ("streams", "WEAK"),
    ("streams", "IN_PLACE"),
    ("streams", "ONE_WAY LONGEST=2"),
    ("streams", "LONGEST=6 CALLS=1"),
    ("streams", "IN_HEAPS LONGEST=4 CALLS=2"),
    ("streams", "IN_HEAPS BY_SENDER LONGEST=1 CALLS=2 WEAK"),
    ("streams", "IN_HEAPS BY_SENDER LONGEST=1 CALLS=3"),
    ("streams", "FOREVER LONGEST=1 WEAK"),
    ("streams", "IN_PRIVATE_MEMORY LONGEST=2 WEAK"),
    ("ring", "WEAK"),
    ("learning", "WEAK"),
    ("learning", "RANKS=3 CALLS=5 WEAK"),
    ("direct", "CALLS=2 WEAK"),
    ("direct", "CALLS=2 SEPARATE"),
    ("direct", "CALLS=2 PLACES=1 GIVES_UP WEAK"),
    ("direct", "CALLS=1 RANKS=3 KINDS=1 PLACES=1 WEAK"),
)

LARGE = (
    ("inline", "PERIOD=5 CALLS=5 WEAK"),
    ("inline", "RANKS=3 PERIOD=2 CALLS=6 WEAK"),
    ("inline", "RANKS=3 PERIOD=3 CALLS=4 BANKS=1"),
    ("inline", "RANKS=4 PERIOD=1 CALLS=3 BANKS=1 RADIX=2"),
    ("inline", "FOREVER RANKS=4 PERIOD=1 WEAK"),
    ("pipeline", "PERIOD=3 CALLS=3 WEAK"),
    ("pipeline", "PERIOD=2 CALLS=4 SEGMENTS=2 WEAK"),
    ("pipeline", "RANKS=3 PERIOD=1 CALLS=2 WEAK"),
    ("pipeline", "RANKS=4 PERIOD=1 CALLS=1 SECTIONS=2 BANKS=1"),
    ("streams", "CALLS=3 IN_PLACE WEAK"),
    ("streams", "ONE_WAY WEAK"),
    ("streams", "ONE_WAY CALLS=3 LONGEST=2"),
    ("streams", "LONGEST=5 CALLS=2"),
    ("streams", "FOREVER ONE_WAY LONGEST=1 CALLS=3"),
    ("streams", "IN_HEAPS BY_SENDER LONGEST=2 CALLS=2"),
    ("streams", "CELLS=4 CALLS=3 WEAK"),
    ("streams", "RANKS=3 LONGEST=1 CALLS=2"),
    ("streams", "IN_PRIVATE_MEMORY"),
    ("learning", "CALLS=10 WEAK"),
    ("learning", "RANKS=3 CALLS=7 WEAK"),
    ("direct", "WEAK"),
    ("direct", "SEPARATE WEAK"),
    ("direct", "GIVES_UP WEAK"),
    ("direct", "CALLS=1 RANKS=3 WEAK"),
    ("direct", "CALLS=1 RANKS=3 KINDS=1 PLACES=1 GIVES_UP WEAK"),
)

# Model, planted bug, the other macros.
MUTANTS = (
    ("inline", "RELAXED_FLAG", "WEAK"),
    ("inline", "POST_BEFORE_COPY", ""),
    ("inline", "READ_BEFORE_WAITING", ""),
    ("inline", "WAIT_ONE_TOO_LOW", ""),
    ("inline", "ONE_EXCHANGE_SLOT", ""),
    ("inline", "SLOTS_BY_CALL", ""),
    ("inline", "NO_BANK_BARRIER", ""),
    ("inline", "BANK_ONE_ROUND_EARLY", ""),
    ("inline", "EPOCH_TOO_HIGH", ""),
    ("inline", "EPOCH_TOO_LOW", ""),
    ("inline", "RELEASE_BEFORE_READING", ""),
    ("inline", "RELEASE_AT_FIRST_SLOT", "SEGMENTS=2 BANKS=1"),
    ("pipeline", "RELAXED_FLAG", "WEAK PERIOD=1"),
    ("pipeline", "POST_BEFORE_COPY", "PERIOD=1"),
    ("pipeline", "WAIT_ONE_TOO_LOW", "PERIOD=1"),
    ("pipeline", "NO_BANK_BARRIER", "PERIOD=1"),
    ("pipeline", "BANK_ONE_ROUND_EARLY", "PERIOD=1"),
    ("pipeline", "EPOCH_TOO_HIGH", "PERIOD=1"),
    ("pipeline", "EPOCH_TOO_LOW", "PERIOD=1"),
    ("pipeline", "RELEASE_BEFORE_READING", "PERIOD=1"),
    ("pipeline", "RELEASE_AT_FIRST_SLOT", "PERIOD=1 SEGMENTS=2"),
    ("pipeline", "BANK_LEFT_UNRELEASED", "PERIOD=2 SEGMENTS=2"),
    ("pipeline", "WINDOW_TOO_WIDE", "PERIOD=1"),
    ("pipeline", "NO_READ_HANDSHAKE", "PERIOD=1"),
    ("pipeline", "ONE_RANK_CHANGES_REGIONS", "PERIOD=1"),
    ("pipeline", "ONE_RANK_SHARES_REGIONS", "PERIOD=2"),
    ("streams", "RELAXED_FLAG", "WEAK"),
    ("streams", "POST_BEFORE_COPY", ""),
    ("streams", "NO_CREDIT", ""),
    ("streams", "ONE_CELL_TOO_MANY", ""),
    ("streams", "CREDIT_TOO_HIGH", ""),
    ("streams", "CREDIT_BEFORE_READING", ""),
    ("streams", "SEND_ALL_FIRST", ""),
    ("streams", "OVERWRITES_WHAT_IT_SENDS", "IN_PLACE"),
    ("streams", "IGNORES_LENGTH", ""),
    ("streams", "IGNORES_WHAT_COMES", ""),
    ("streams", "COUNTS_ONLY_WHAT_IT_SENDS", "ONE_WAY"),
    ("streams", "ANSWERS_WHAT_IT_SENT", "ONE_WAY CALLS=3"),
    ("streams", "WAITS_FOR_CHUNKS_IN_VAIN", "IN_HEAPS LONGEST=4"),
    ("streams", "RELAXED_FLAG", "IN_HEAPS BY_SENDER WEAK"),
    ("streams", "RECEIVER_DOES_NOT_WAIT", "IN_HEAPS BY_SENDER"),
    ("streams", "SAYS_SO_BEFORE_WRITING", "IN_HEAPS BY_SENDER"),
    ("streams", "READS_ALL_THE_SAME", "IN_HEAPS BY_SENDER"),
    ("streams", "OWNER_DOES_NOT_WAIT", "IN_PRIVATE_MEMORY"),
    ("streams", "REFUSES_AFTER_CREDIT", "IN_PRIVATE_MEMORY"),
    ("streams", "NO_LOOK_AT_REFUSAL", "IN_PRIVATE_MEMORY"),
    ("ring", "RELAXED_FLAG", "WEAK"),
    ("ring", "DROPPED_FENCE", "WEAK"),
    ("ring", "NOT_INVALIDATED", ""),
    ("ring", "NO_SECOND_LOOK", ""),
    ("learning", "RELAXED_FLAG", "WEAK"),
    ("learning", "TELLS_AFTER_ENTERING", ""),
    ("learning", "HOLDS_AT_ONCE", ""),
    ("learning", "TELLS_TOO_SOON", ""),
    ("learning", "ONLY_SOME_HEED", ""),
    ("direct", "RELAXED_FLAG", "CALLS=2 WEAK"),
    ("direct", "READ_BEFORE_WAITING", "CALLS=2"),
    ("direct", "NO_CLOSING_EXCHANGE", "CALLS=2"),
    ("direct", "CLOSES_BEFORE_READING", "CALLS=2"),
    ("direct", "CLOSES_BEFORE_WRITING", "CALLS=2"),
    ("direct", "OWNER_DOES_NOT_WAIT", "CALLS=2"),
    ("direct", "NO_LOOK_AT_POISON", "CALLS=2 GIVES_UP"),
    ("direct", "LOOKS_BEFORE_READING", "CALLS=2 GIVES_UP"),
    ("direct", "LOOKS_AFTER_CLOSING", "CALLS=1 RANKS=3 KINDS=1 PLACES=1 GIVES_UP"),
    ("direct", "CHANGES_BEFORE_POISON", "CALLS=2 GIVES_UP"),
    ("direct", "NO_FENCE_BEHIND_POISON", "CALLS=2 GIVES_UP WEAK"),
)


@dataclass
class Outcome:
    """What a search came to."""

    found: str                   # CLEAN, or "wrong data" (an assertion), or "deadlock"
    states: int
    depth: int
    megabytes: float
    seconds: float


class CheckFailed(Exception):
    """SPIN or the compiler failed, or the search was not exhaustive; the text says how."""


def missing_tools() -> list[str]:
    """Of the programs that a check needs, those that are not installed."""
    return [tool for tool in ("spin", "cc") if shutil.which(tool) is None]


def check(model: str, macros: str, optimise: str = "-O0", deadline: float = 600.0) -> Outcome:
    """Search all states of ``model`` with these macros (``"RANKS=3 WEAK"``); stop at an error.

    ``deadline`` in seconds. CheckFailed when the search did not come to an end.
    """
    with tempfile.TemporaryDirectory(prefix="smcoll-spin-") as folder:
        defines = [f"-D{macro}" for macro in macros.split()]
        _run(["spin", "-a", *defines, MODELS / f"{model}.pml"], folder, 60)
        _run(["cc", optimise, "-w", "-DSAFETY", "-DNOFAIR", f"-DMEMLIM={MEMORY_LIMIT}", "-o", "pan",
              "pan.c"], folder, 120)
        # Endless runs go deep; a table of 2 ** 20 entries grows where that is not enough.
        depth = 8_000_000 if "FOREVER" in macros else 20_000
        text = _run(["./pan", f"-m{depth}", "-w20"], folder, deadline)
    return _read(text, f"{model} {macros}")


def _run(command: list, folder: str, deadline: float) -> str:
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True,
                                timeout=deadline, check=False)
    except subprocess.TimeoutExpired:
        raise CheckFailed(f"{command[0]} took longer than {deadline:.0f} s") from None
    if result.returncode != 0:
        raise CheckFailed(f"{command}:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result.stdout


def _read(text: str, what: str) -> Outcome:
    def number(pattern: str) -> float:
        match = re.search(pattern, text)
        if match is None:
            raise CheckFailed(f"{what}: no result in\n{text[-2000:]}")
        return float(match.group(1))

    errors = number(r"errors: (\d+)")
    if errors == 0 and ("search depth too small" in text or "Search not completed" in text):
        raise CheckFailed(f"{what}: the search was not exhaustive\n{text[-2000:]}")
    found = CLEAN
    if errors:
        found = "deadlock" if re.search(r"pan:\d+: invalid end state", text) else "wrong data"
    return Outcome(found, int(number(r"([\d.e+]+) states, stored")),
                   int(number(r"depth reached (\d+)")),
                   number(r"([\d.]+)\s+total actual memory"),
                   number(r"elapsed time ([\d.e+-]+)"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="the large configurations too")
    large = parser.parse_args().large
    if missing_tools():
        print(f"not installed: {', '.join(missing_tools())}", file=sys.stderr)
        return 2
    wrong = 0
    print("| model | settings | states | depth | MB | s | found |\n|---|---|---|---|---|---|---|")
    for model, macros in SMALL + (LARGE if large else ()):
        outcome = check(model, macros, "-O2")
        wrong += outcome.found != CLEAN
        print(f"| {model} | {macros} | {outcome.states:,} | {outcome.depth:,} | "
              f"{outcome.megabytes:.0f} | {outcome.seconds:.1f} | {outcome.found} |", flush=True)
    print("\n| model | planted bug | settings | states | found |\n|---|---|---|---|---|")
    for model, mutant, macros in MUTANTS:
        outcome = check(model, f"{mutant} {macros}")
        wrong += outcome.found == CLEAN
        print(f"| {model} | {mutant} | {macros} | {outcome.states:,} | {outcome.found} |",
              flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
