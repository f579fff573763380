"""What smcoll does before the interpreter or MPI ends.

Exit handlers run in the reverse order of their registration, and those of the program may still use
communicators. So there is one handler, registered as soon as smcoll is imported, for all its parts.
"""

import atexit
from collections.abc import Callable, Iterable

# In this order: leave the communicators, take leave of other nodes, stop driving MPI.
LEAVE, TAKE_LEAVE, STOP = range(3)
_steps: list[list[Callable[[], object]]] = [[], [], []]


def before_the_end(stage: int, step: Callable[[], object]) -> None:
    """Have ``step()`` called when MPI is finalised and when the interpreter ends."""
    if step not in _steps[stage]:
        _steps[stage].append(step)


@atexit.register
def end() -> None:
    """Take all steps, the others too where one fails."""
    call_each(step for steps in _steps for step in steps)


def call_each(calls: Iterable[Callable[[], object]]) -> None:
    """Call all of them; raises the first error when all were called."""
    first = None
    for call in calls:
        try:
            call()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
