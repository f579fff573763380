"""Memory that can't be had: an agreed fallback with one warning, never a hang, never SIGBUS."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import own_dev_shm
import pytest
from programs import run_ranks

from smcoll import segment
from smcoll.topology import node

pytestmark = pytest.mark.faults
needs_mount = pytest.mark.skipif(
    not own_dev_shm.possible(), reason="needs root and mount namespaces to make a small /dev/shm")


def run(ranks: int, call: str, timeout: float = 100, **environment):
    """Run a function of memory_ranks: what it reported, and its warnings."""
    result = run_ranks(ranks, f"import memory_ranks\nmemory_ranks.{call}", timeout=timeout,
                       environment=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    found = [json.loads(line.partition("RESULT ")[2]) for line in result.stdout.splitlines()
             if "RESULT " in line]
    assert found, result.stdout + result.stderr
    return found, [line for line in result.stderr.splitlines() if line.startswith("smcoll:")]


def enter(ledger, found) -> None:
    """One row of the table for each; all of them agreed upon, nothing left, nothing spoilt."""
    for row in found:
        ledger.add(fault=row["fault"], injected=1, detected=int(row["agreed"]),
                   milliseconds=[row["milliseconds"]], left=row["left"])
        assert row["agreed"], row
        assert row["left"] == 0, row
        assert row["healthy"], row


@needs_mount
def test_dev_shm_that_cannot_be_used(ledger):
    """Too small, full, not writable, not shared: fallback, or SegmentError if strict."""
    found, warnings = run(3, "dev_shm()")
    assert len(found) == 4
    assert len(warnings) == 4, warnings
    enter(ledger, found)


@needs_mount
def test_dev_shm_that_fills_up_while_in_use(ledger):
    found, warnings = run(3, "fills_up_while_in_use()")
    assert len(warnings) == 2, warnings  # the data regions, and the streams
    enter(ledger, found)


def test_limits_of_one_rank(ledger):
    """RLIMIT_AS, RLIMIT_FSIZE and RLIMIT_NOFILE of one rank are a fallback of all."""
    found, warnings = run(3, "limits()")
    assert len(found) == len(warnings) == 4, warnings
    enter(ledger, found)


@pytest.fixture
def cgroup():
    """A cgroup of our own with a memory controller (v1 or v2), below the one that we are in."""
    candidates = [Path("/sys/fs/cgroup")]  # v2
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            candidates.insert(0, Path("/sys/fs/cgroup/memory", path.lstrip("/")))
    for parent in candidates:
        group = parent / f"smcoll-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if any((group / name).exists() for name in ("memory.max", "memory.limit_in_bytes")):
                yield group
                return
        finally:
            end = time.monotonic() + 10
            while group.exists() and time.monotonic() < end:
                with contextlib.suppress(OSError):
                    group.rmdir()
                time.sleep(0.05)
    pytest.skip("no cgroup with a memory controller can be made here (needs root)")


def test_memory_limit_of_a_real_cgroup(ledger, cgroup):
    """A reservation beyond it would get the rank killed: it is refused before, by all."""
    found, warnings = run(3, f"in_cgroup({str(cgroup)!r}, {48 << 20})")
    assert len(warnings) == 1, warnings
    enter(ledger, found)


V1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat",
      "total_inactive_file")
V2 = ("memory.max", "memory.current", "memory.stat", "inactive_file")


@pytest.mark.parametrize("names", [V1, V2], ids=["v1", "v2"])
def test_memory_limit_in_both_hierarchies(ledger, names, tmp_path, monkeypatch):
    """As files say it: what is left is limit - usage, without the files that the kernel drops."""
    from smcoll.memory.budget import Budget

    monkeypatch.setattr(node, "CGROUP", tmp_path.resolve())
    limit, usage, stat, dropped = (tmp_path / name if "/" in name or name.startswith("memory")
                                   else name for name in names)
    limit.parent.mkdir(exist_ok=True)
    limit.write_text(f"{100 << 20}\n")
    usage.write_text(f"{90 << 20}\n")
    memory_controller = any("memory" in line.split(":")[1].split(",") for line in
                            Path("/proc/self/cgroup").read_text().splitlines())
    if names is V1 and not memory_controller:
        pytest.skip("this process is in no v1 memory cgroup")
    assert node.memory_headroom() == 10 << 20
    stat.write_text(f"anon 5\n{dropped} {30 << 20}\nactive_file 7\n")
    assert node.memory_headroom() == 40 << 20
    budget = Budget()
    budget.set_limit(1 << 40, 4)
    budget.claim(10 << 20)  # four ranks at once take all that is left
    with pytest.raises(OSError, match="cgroup"):
        budget.claim((10 << 20) + 4096)
    limit.write_text("max\n")
    budget.claim((10 << 20) + 4096)
    ledger.add(fault="cgroup's memory limit, as files", injected=1, detected=1)


def names_left() -> list[str]:
    prefix = f"smcoll-{os.geteuid()}-"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


@pytest.mark.parametrize("step, rank", [(2, 0), (3, 1), (4, 0), (5, 1)])
def test_killed_while_setting_up(ledger, step, rank):
    """The job ends (its launcher sees to it); what it left, the next job of this user removes."""
    before = set(names_left())
    began = time.perf_counter()
    result = run_ranks(3, f"import memory_ranks\nmemory_ranks.killed_at({step}, {rank})")
    milliseconds = (time.perf_counter() - began) * 1e3
    assert result.returncode != 0
    assert "NOT KILLED" not in result.stdout
    assert len(set(names_left()) - before) <= 1
    segment.remove_stale()  # as the next set-up does
    left = len(set(names_left()) - before)
    ledger.add(fault="killed while setting up", injected=1, detected=1,
               milliseconds=[milliseconds], left=left)
    assert left == 0


def test_10_000_communicators_made_and_freed(ledger):
    found, warnings = run(2, "made_and_freed(10_000)", timeout=200)
    assert warnings == []
    enter(ledger, found)


@needs_mount
@pytest.mark.parametrize("memory", ["shm", "auto"])
def test_240_communicators_at_once(ledger, memory):
    """In 64 MB: 120 KiB a rank each while nothing long is sent."""
    found, _ = run(2, f"alive_at_once(240, '64m', {memory!r})", SMCOLL_BUDGET="60M")
    assert found[0]["fitting"] == 240
    enter(ledger, found)


@needs_mount
def test_64_ranks_with_100_communicators_in_64_MB(ledger):
    """Half of it is the budget: some have a segment, the others agree that they have none."""
    found, warnings = run(64, "alive_at_once(100, '64m', 'shm')", timeout=250)
    assert 2 < found[0]["fitting"] < 100
    assert len(warnings) >= 100 - found[0]["fitting"]
    enter(ledger, found)
