"""A rank that runs unittest modules with smcoll installed, and writes down how each test went.

    python unittest_ranks.py OUTPUT FOLDER MODULE...

The modules of FOLDER are imported after smcoll was installed (class bodies take communicators).
OUTPUT/rank-<r>.jsonl has two lines for each test: before it starts, so that one that hangs is
known, and after its end. SMCOLL_DISABLE=1 gives the same run without smcoll.
"""

from __future__ import annotations

import importlib
import json
import sys
import unittest
from pathlib import Path


class Record(unittest.TestResult):
    """Writes every outcome at once: a later test may end the process."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def write(self, test, outcome: str, text: str = "") -> None:
        self.output.write(json.dumps({"test": test.id(), "outcome": outcome, "text": text}) + "\n")

    def startTest(self, test):
        super().startTest(test)
        self.write(test, "started")

    def addSuccess(self, test):
        self.write(test, "passed")

    def addSkip(self, test, reason):
        self.write(test, "skipped", reason)

    def addExpectedFailure(self, test, err):
        self.write(test, "passed")

    def addUnexpectedSuccess(self, test):
        self.write(test, "failed", "unexpected success")

    def addError(self, test, err):
        super().addError(test, err)
        self.write(test, "failed", self.errors[-1][1])

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.write(test, "failed", self.failures[-1][1])

    def addSubTest(self, test, subtest, err):
        if err is not None:
            super().addSubTest(test, subtest, err)
            self.write(test, "failed", (self.failures + self.errors)[-1][1])


def main(output: str, folder: str, *modules: str) -> None:
    """Run all tests of the modules; failures don't end the run."""
    import smcoll

    smcoll.install()
    from mpi4py import MPI

    sys.path.insert(0, folder)
    loader = unittest.TestLoader()
    suite = unittest.TestSuite(
        loader.loadTestsFromModule(importlib.import_module(name)) for name in modules)
    with open(Path(output, f"rank-{MPI.COMM_WORLD.Get_rank()}.jsonl"), "w", buffering=1) as file:
        suite.run(Record(file))
        file.write(json.dumps({"test": "", "outcome": "end", "text": ""}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
