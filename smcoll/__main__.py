"""``python -m smcoll``: the command line."""

import os
import sys

if not __package__ and not getattr(sys.flags, "safe_path", False):
    # Started by path (launch.own_command): Python put this folder in front, where smcoll's modules
    # would hide the standard library's of the same name.
    sys.path[0] = home = sys.path[0].rpartition("/")[0]
    import smcoll  # noqa: F401

    if home in sys.path[1:]:
        # Site-packages: first for smcoll alone, or it would hide what PYTHONPATH names. The first
        # place is kept for the folder of the program that is run.
        sys.path[0] = os.devnull

from smcoll.cli import main

if __name__ == "__main__":
    main()
