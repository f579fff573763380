"""Faults on purpose: left out unless asked for with ``-m faults``, which ends with one table."""

import os
import sys
import tempfile
from pathlib import Path

FOLDER = str(Path(__file__).resolve().parent)
if FOLDER not in sys.path:
    sys.path.insert(0, FOLDER)

import ledger as ledger_file  # noqa: E402
import pytest  # noqa: E402

# Ranks of a job find the name in their environment.
_owned = None
if ledger_file.FILE not in os.environ:
    _owned = tempfile.NamedTemporaryFile(prefix="smcoll-faults-", suffix=".jsonl")  # noqa: SIM115
    os.environ[ledger_file.FILE] = _owned.name


@pytest.fixture
def ledger():
    """``ledger.add(fault=..., injected=..., detected=..., milliseconds=[...], left=0)``."""
    return ledger_file


def pytest_terminal_summary(terminalreporter):
    lines = ledger_file.table() if _owned is not None else []
    if lines:
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.write_line(line)
