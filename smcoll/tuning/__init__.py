"""Which algorithm, section size and radix a call takes: defaults, tables, the performance model.

Also what they are derived from: measurements of this machine (``probe``, ``distance``).
"""
