"""``python -m smcoll``: the command line."""

import sys

if not __package__ and not getattr(sys.flags, "safe_path", False):
    # Started by path (launch.own_command): Python put this folder in front, where smcoll's modules
    # would hide the standard library's of the same name.
    sys.path[0] = sys.path[0].rpartition("/")[0]

from smcoll.cli import main

if __name__ == "__main__":
    main()
