"""Reading another process's memory through the kernel: ``process_vm_readv``, "cross-memory attach".

The kernel allows it where it would allow ptrace: processes of one user in one PID namespace, unless
``/proc/sys/kernel/yama/ptrace_scope``, a seccomp filter or a lost "dumpable" flag forbid it. No
rule tells for sure, so it is tried: every process has a few random bytes that the others read at
set-up, and again in every later call, since a process id alone may be another process's by then.
"""

import os

from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t process_vm_readv(int process, const iovec *local, unsigned long local_count,
                             const iovec *remote, unsigned long remote_count,
                             unsigned long flags) noexcept

cdef char trial[TRIAL_BYTES]       # what others try to read; never changes once it is set
cdef bint trial_is_set = False


cdef bint read_memory(const OtherProcess *other, uint64_t address, char *target,
                      size_t nbytes) noexcept nogil:
    """Copy ``nbytes`` bytes that lie at ``address`` there; whether all could be read."""
    cdef char found[TRIAL_BYTES]
    cdef iovec[2] here, there
    cdef ssize_t count
    # One call of the kernel reads one address space, even if the process executes another program
    # meanwhile: so the bytes that it reads beside the data vouch for these.
    here[0].iov_base = found
    there[0].iov_base = <void *> other.trial
    here[0].iov_len = there[0].iov_len = TRIAL_BYTES
    while True:
        here[1].iov_base = target
        there[1].iov_base = <void *> address
        here[1].iov_len = there[1].iov_len = nbytes
        count = process_vm_readv(other.process, here, 2, there, 2, 0) - TRIAL_BYTES
        if count < 0 or memcmp(found, other.bytes, TRIAL_BYTES) != 0:
            return False
        target += count
        address += <uint64_t> count
        nbytes -= <size_t> count
        if nbytes == 0:
            return True
        if count == 0:
            return False


cdef fill_process(OtherProcess *other, record):
    """From what that process's ``record()`` gave."""
    cdef bytes expected = bytes.fromhex(record["bytes"])
    if len(expected) != TRIAL_BYTES:
        raise ValueError(f"{len(expected)} bytes to try, not {TRIAL_BYTES}")
    other.process = record["process"]
    other.trial = record["address"]
    memcpy(other.bytes, <const char *> expected, TRIAL_BYTES)


def record():
    """What other processes need to try whether they can read this one's memory."""
    global trial_is_set
    cdef bytes fresh
    if not trial_is_set:
        fresh = os.urandom(TRIAL_BYTES)
        memcpy(trial, <const char *> fresh, TRIAL_BYTES)
        trial_is_set = True
    return {"process": os.getpid(), "address": <uint64_t> <void *> trial,
            "bytes": trial[:TRIAL_BYTES].hex()}


def readable(record):
    """Whether this process can read the memory of the one that gave ``record``."""
    cdef OtherProcess other
    fill_process(&other, record)
    return read_memory(&other, 0, NULL, 0)
