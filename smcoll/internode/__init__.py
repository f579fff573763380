"""Communicators that span nodes: shared memory inside each node, messages of MPI's between them.

- ``placement``: which rank is on which node, and which trees the nodes form below switches.
- ``network``: messages between nodes, while the rank waits in the one wait function.
- ``connections``, ``watch``: a TCP connection between each two nodes' lowest ranks, by whose end
  they learn that the other has died.
- ``span``: a collective's stages inside the node.
- ``between``: Allreduce of one rank on each node.
- ``reducing``, ``moving``, ``bundles``: the collectives, composed of stages and messages; bundles
  are of messages between single ranks.
- ``spanning``: the engine of such a communicator.
"""
