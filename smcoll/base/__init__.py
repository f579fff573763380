"""What everything stands on: C headers, and declarations that compiled modules share.

Atomics with their ordering, copy and reduction kernels in C, the signature of a call.
"""

__version__ = "0.1.0"
