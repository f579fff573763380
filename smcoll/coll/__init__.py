"""The algorithms of one node, one file for each, on the primitives of ``pipeline``.

Below them the messages between pairs of ranks (``streams``), and data that are read where they lie
(``direct``, ``peer_buffers``).
"""
