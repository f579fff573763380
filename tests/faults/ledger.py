"""What the fault tests injected and what was seen of it: one table at the end of the run.

Rows are lines of a file that the environment names, so that ranks of mpiexec jobs can add some too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

FILE = "SMCOLL_TEST_FAULTS_LEDGER"


def add(fault: str, injected: int, detected: int, milliseconds: Iterable[float] = (),
        left: int = 0) -> None:
    """One row: ``injected`` times, ``detected`` times, each after so many ms; ``left`` things
    (files, processes, descriptors) were found afterwards.

    Called by one process for each fault; rows with the same ``fault`` are added up. Where nothing
    is to be detected (no false alarm), ``detected`` counts the runs that went on rightly.
    """
    row = {"fault": fault, "injected": injected, "detected": detected,
           "milliseconds": [float(ms) for ms in milliseconds], "left": left}
    with open(os.environ[FILE], "a") as lines:
        lines.write(json.dumps(row) + "\n")


def table() -> list[str]:
    """The lines of the table; none where no row was added."""
    rows: dict[str, dict] = {}
    with open(os.environ[FILE]) as lines:
        for line in lines:
            new = json.loads(line)
            row = rows.setdefault(new["fault"], new)
            if row is not new:
                for field in ("injected", "detected", "milliseconds", "left"):
                    row[field] += new[field]
    if not rows:
        return []
    cells = [("fault", "injected", "detected", "slowest, ms", "left behind")]
    cells += [(row["fault"], str(row["injected"]), str(row["detected"]),
               f"{max(row['milliseconds']):.0f}" if row["milliseconds"] else "-",
               str(row["left"])) for row in rows.values()]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [" | ".join(cell.rjust(width) if place else cell.ljust(width)
                       for place, (cell, width) in enumerate(zip(line, widths, strict=True)))
            for line in cells]
