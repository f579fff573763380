"""Who waits for whom, and how: one rank's state in a communicator, trees of ranks, the one wait.

Also what a waiting rank shows to others: its call, in words, and where it stands.
"""
