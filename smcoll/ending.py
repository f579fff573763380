"""What smcoll does before the interpreter or MPI ends.

Exit handlers run in the reverse order of their registration, and those of the program may still use
communicators. So there is one handler, registered as soon as smcoll is imported, for all its parts.
"""

import atexit
from collections.abc import Callable

# In this order: leave the communicators, take leave of other nodes, stop driving MPI.
LEAVE, TAKE_LEAVE, STOP = range(3)
_steps: list[list[Callable[[], object]]] = [[], [], []]


def before_the_end(stage: int, step: Callable[[], object]) -> None:
    """Have ``step()`` called once, when MPI is finalised or the interpreter ends."""
    if step not in _steps[stage]:
        _steps[stage].append(step)


@atexit.register
def end() -> None:
    """The end comes: take the steps that were not taken yet."""
    for steps in _steps:
        while steps:
            steps.pop(0)()
