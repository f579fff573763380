"""A /dev/shm of their own for the ranks of a job, of any size, in a mount namespace (needs root).

Called after MPI has started, so that only smcoll meets it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess

_CLONE_FS, _CLONE_NEWNS, _MS_REC, _MS_PRIVATE, _MS_RDONLY = 0x200, 0x20000, 0x4000, 0x40000, 1


def possible() -> bool:
    """Whether this user may mount one."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"]
    return subprocess.run(probe, capture_output=True).returncode == 0


def _call(function: str, *arguments) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount_for_this_process(size: str, read_only: bool = False) -> None:
    """``size`` as tmpfs takes it ("64m")."""
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    _mount(size, read_only)


def _mount(size: str, read_only: bool) -> None:
    _call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", _MS_RDONLY if read_only else 0,
          b"size=" + size.encode())


def enter(pid: int) -> None:
    """Share the one of process ``pid``."""
    _call("unshare", _CLONE_FS)  # a thread of a process may not else change over
    descriptor = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    try:
        _call("setns", descriptor, _CLONE_NEWNS)
    finally:
        os.close(descriptor)


def mount_for_all(comm, size: str, read_only: bool = False) -> None:
    """One for all ranks of ``comm``, made by rank 0. Collective."""
    if comm.Get_rank() == 0:
        mount_for_this_process(size, read_only)
    pid = comm.allgather(os.getpid())[0]
    if comm.Get_rank() != 0:
        enter(pid)
    comm.Barrier()


def mount_again(comm, size: str, read_only: bool = False) -> None:
    """Another one over it, for all ranks that share it. Collective."""
    comm.Barrier()
    if comm.Get_rank() == 0:
        _mount(size, read_only)
    comm.Barrier()
