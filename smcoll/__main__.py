"""``python -m smcoll``: the command line."""

import sys

if not __package__ and not getattr(sys.flags, "safe_path", False):
    # Started by path (launch.own_command): Python put this folder in front, where smcoll's modules
    # would hide the standard library's of the same name. The one that it lies in comes first for
    # smcoll alone: in site-packages it would hide what PYTHONPATH names.
    sys.path[0] = home = sys.path[0].rpartition("/")[0]
    import smcoll  # noqa: F401

    del sys.path[0]
    if home not in sys.path:
        sys.path.append(home)

from smcoll.cli import main

if __name__ == "__main__":
    main()
