"""Communicators that span nodes: shared memory inside each node, messages of MPI's between them.

``placement`` says which rank is on which node, ``network`` carries messages between nodes while the
rank waits in the one wait function, ``spanning`` composes each collective of the two, ``bundles``
the messages between single ranks.
"""
