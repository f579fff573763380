"""Other processes: what they may plant, swap, shrink or scribble over is not believed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import run_ranks

import smcoll
from smcoll import segment

pytestmark = pytest.mark.faults
DEV_SHM = Path("/dev/shm")
NONCE = bytes(range(segment.NONCE_BYTES))
SETTINGS = smcoll.Config(segment_size=4096, segments=1, internals={"banks": 1})
KINDS = ["shm", "memfd"]


@pytest.fixture
def mapping():
    """A segment as rank 0 of 2 makes it."""
    made = segment.Mapping(0, 2, SETTINGS)
    yield made
    made.close()


@pytest.fixture
def peer():
    made = segment.Mapping(1, 2, SETTINGS)
    yield made
    made.close()


def own_descriptor(name: str) -> int:
    """This process's descriptor of a segment."""
    for entry in os.scandir("/proc/self/fd"):
        try:
            if name.lstrip("/") in os.readlink(entry.path):
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError(f"{name} is not open")


def test_private_exclusive_random(ledger, mapping):
    """Mode 0600 whatever the umask, a new name each time, closed on exec, gone when mapped."""
    before = os.umask(0)
    try:
        name = mapping.create(NONCE)
    finally:
        os.umask(before)
    facts = os.lstat(DEV_SHM / name[1:])
    assert stat.S_IMODE(facts.st_mode) == 0o600
    assert facts.st_uid == os.geteuid()
    assert re.fullmatch(rf"/smcoll-{os.geteuid()}-[0-9a-f]{{16}}", name)
    assert fcntl.fcntl(own_descriptor(name), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    others = [segment.Mapping(0, 2, SETTINGS) for _ in range(20)]
    assert len({name, *(other.create(NONCE) for other in others)}) == 21
    for other in (*others, mapping):
        other.unlink()
        other.close()
    assert not list(DEV_SHM.glob(f"smcoll-{os.geteuid()}-*"))
    ledger.add(fault="names, modes", injected=21, detected=21)


@pytest.fixture
def known_name(monkeypatch):
    """The next segment's name, as an attacker would have to guess it: 64 random bits."""
    monkeypatch.setattr(os, "urandom", lambda count: b"\x5a" * count)
    path = DEV_SHM / f"smcoll-{os.geteuid()}-{'5a' * 8}"
    yield path
    path.unlink(missing_ok=True)


def plant_file(path, victim):
    path.write_bytes(b"planted" * 100)


def plant_link(path, victim):
    path.symlink_to(victim)


def plant_dangling_link(path, victim):
    path.symlink_to(victim.with_name("not there"))


def plant_fifo(path, victim):
    os.mkfifo(path)


PLANTED = [plant_file, plant_link, plant_dangling_link, plant_fifo]


@pytest.mark.parametrize("plant", PLANTED)
def test_planted_under_the_expected_name(ledger, plant, known_name, mapping, tmp_path):
    """Creation is exclusive and follows no link: what is there is not opened, not changed."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    plant(known_name, victim)
    with pytest.raises(OSError) as raised:
        mapping.create(NONCE)
    assert raised.value.errno in (errno.EEXIST, errno.EACCES)
    mapping.close()
    assert os.path.lexists(known_name)  # not ours to remove
    assert victim.read_bytes() == b"precious"
    assert not victim.with_name("not there").exists()
    ledger.add(fault="planted under the name", injected=1, detected=1)


def swap_for_a_copy_without_nonce(path):
    content = bytearray(path.read_bytes())
    path.unlink()
    content[8:24] = bytes(16)
    path.write_bytes(content)


def swap_for_a_link(path):
    path.rename(path.with_name("real"))
    path.symlink_to(path.with_name("real"))


def swap_for_a_fifo(path):
    path.unlink()
    os.mkfifo(path)


def shrink(path):
    os.truncate(path, 4096)


def grow(path):
    os.truncate(path, os.path.getsize(path) + 4096)


def empty(path):
    os.truncate(path, 0)


def give_away(path):
    os.chown(path, 65534, 65534)


def another_layout(path):
    with open(path, "r+b") as file:
        file.seek(32)
        file.write((3).to_bytes(8, "little"))


@pytest.mark.parametrize("change", [
    swap_for_a_copy_without_nonce, swap_for_a_link, swap_for_a_fifo, shrink, grow, empty, give_away,
    another_layout])
def test_changed_before_the_others_attach(ledger, change, mapping, peer):
    """Size, owner, nonce and layout are compared before anything in it is used."""
    if change is give_away and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    name = mapping.create(NONCE)
    path = DEV_SHM / name[1:]
    change(path)
    try:
        with pytest.raises(OSError):
            peer.attach(name, NONCE)
    finally:
        path.unlink(missing_ok=True)
        path.with_name("real").unlink(missing_ok=True)
    ledger.add(fault="changed before the others attach", injected=1, detected=1)


@pytest.mark.parametrize("kind", KINDS)
def test_another_segment_is_not_taken_for_it(ledger, kind, mapping, peer):
    name = mapping.create(NONCE, kind)
    with pytest.raises(OSError, match="not the segment"):
        peer.attach(name, NONCE[::-1], kind)
    ledger.add(fault="wrong nonce", injected=1, detected=1)


def test_a_descriptor_that_is_no_segment(ledger, peer, tmp_path):
    """Process ids of another namespace may stand for anything: looked at before it is opened."""
    os.mkfifo(tmp_path / "fifo")
    other = os.memfd_create("other")
    unsealed = os.memfd_create(segment.MEMFD_NAME)
    fifo = os.open(tmp_path / "fifo", os.O_RDWR)
    try:
        for descriptor in (other, unsealed, fifo, 999_999):
            with pytest.raises(OSError):
                peer.attach(f"/proc/{os.getpid()}/fd/{descriptor}", NONCE, "memfd")
    finally:
        for descriptor in (other, unsealed, fifo):
            os.close(descriptor)
    ledger.add(fault="descriptor that is no segment", injected=4, detected=4)


CHANGE_SIZE = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
refused = 0
for size in (0, 4096, 1 << 30):
    try:
        os.ftruncate(descriptor, size)
    except PermissionError:
        refused += 1
sys.exit(0 if refused == 3 else 1)
"""


def test_a_memfd_in_use_can_not_be_shrunk(ledger, mapping, peer):
    """Sealed: another process of the same user that opens it can't, so nobody gets SIGBUS."""
    name = mapping.create(NONCE, "memfd")
    peer.attach(name, NONCE, "memfd")
    mapping.reserve_control()
    result = subprocess.run([sys.executable, "-c", CHANGE_SIZE, name], check=False)
    assert result.returncode == 0
    peer.reserve_control()
    mapping.reserve_data()
    ledger.add(fault="segment shrunk while in use (memfd)", injected=3, detected=3)


def test_only_own_stale_files_are_removed(ledger, tmp_path):
    """A link to a file of the victim's, under such a name, is neither followed nor removed."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    link, stale, foreign = (DEV_SHM / f"smcoll-{os.geteuid()}-{digit * 16}" for digit in "abc")
    try:
        link.symlink_to(victim)
        stale.write_bytes(b"left by a kill")
        foreign.write_bytes(b"of somebody else")
        as_root = os.geteuid() == 0
        if as_root:
            os.chown(foreign, 65534, 65534)
        removed = segment.remove_stale()
        assert stale.name in removed and link.name not in removed
        assert victim.read_bytes() == b"precious"
        assert foreign.exists() or not as_root
    finally:
        for path in (link, stale, foreign):
            path.unlink(missing_ok=True)
    ledger.add(fault="stale files, links, foreign files", injected=3, detected=3)


def scribble(ranks: int, rounds: int, seconds: float, seed: int) -> dict:
    folder = Path(__file__).parent
    result = run_ranks(ranks, f"""
        import runpy, sys
        sys.argv = ["scribbled", "{rounds}", "{seconds}", "{seed}"]
        runpy.run_path({str(folder / "scribbled.py")!r}, run_name="__main__")
        """, timeout=60 + 2 * rounds)
    assert result.returncode == 0, result.stdout + result.stderr
    # (A warning is right: a scribbled length asked for more memory than there is.)
    assert "ERROR: AddressSanitizer" not in result.stderr, result.stderr
    [text] = [line for line in result.stdout.splitlines() if "RESULT" in line]
    return json.loads(text.partition("RESULT ")[2])


@pytest.mark.parametrize("ranks", [2, 5])
def test_scribbled_over_while_in_use(ledger, ranks):
    """Errors, timeouts or wrong data for the job whose memory it is; no access out of bounds.

    (As far as a crash shows it; .ci/builds runs this under AddressSanitizer, too.)
    """
    rounds = int(os.environ.get("SMCOLL_TEST_SCRIBBLED_ROUNDS", "60"))
    seed = int(os.environ.get("SMCOLL_TEST_SCRIBBLED_SEED", int(time.time())))
    print("seed", seed)
    found = scribble(ranks, rounds, 0.15, seed)
    assert found["calls"] > 100
    failed = sum(count for name, count in found["outcomes"].items() if name != "went on")
    assert failed > 0, found  # else nothing that matters was hit
    ledger.add(fault="scribbled over while in use", injected=rounds, detected=rounds,
               milliseconds=[found["slowest"] * 1e3])
    print(found)
