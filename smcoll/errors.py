"""The exceptions of smcoll. All derive from ``mpi4py.MPI.Exception``."""

from mpi4py import MPI

# Of an Error in a forked child.
FORKED = "this communicator belongs to the process that this one was forked from"


class Error(MPI.Exception):
    """Base of smcoll's own errors: an ``MPI.Exception`` with a sentence of its own.

    ``Get_error_class()`` is ``MPI.ERR_OTHER`` unless a subclass says otherwise. ``passed_on``:
    whether another rank failed first, and told this one why.
    """

    error_class = MPI.ERR_OTHER
    passed_on = False

    def __new__(cls, message: str = "", *args):
        return super().__new__(cls, cls.error_class)

    def __init__(self, message: str = "", *args):
        super().__init__(self.error_class)
        self.message = message

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r})"

    def __reduce__(self):
        return type(self), (self.message,)


class SegmentError(Error):
    """The shared memory segment could not be had (``strict=True``)."""

    error_class = MPI.ERR_NO_MEM


class PeerError(Error):
    """A rank that is waited for died or left the collective; the message names it.

    ``ended``: whether it ended in good order, or freed the communicator. ``gave_up``: whether it
    did not die, but gave the communicator up for an exception of its own. Both are of the first
    error; a later call is refused in the same words, without them.
    """

    ended = False
    gave_up = False


class MismatchError(Error):
    """Ranks disagree about the collective they are in; the message names both sides."""


class WaitTimeout(Error):
    """Nobody came within ``timeout`` seconds; the message names who is missing, and where."""


class TruncationError(Error):
    """A rank sent more than this one has room for; the message names it. The communicator goes on.
    """

    error_class = MPI.ERR_TRUNCATE


class TopologyError(Error):
    """The hardware's description or a question about it is wrong; raised on all ranks alike."""

    error_class = MPI.ERR_ARG
