"""Tensor parallelism: one model over several ranks, which compute the same plans at the same time (Flover, V-D, VI-E).

Rank 0 has the engine: clocks, policies, memory's books, sampling. The others follow: they are sent each plan and the
tokens it reads, and compute their shard of it. `launch` starts them; what it returns is called like any other runner.

    config         the shape of one rank's shard, and what cannot be split (no torch)
    shard          one rank's part of the weights, and where its linear layers communicate
    communicator   the collectives of one worker, counted
    order          what rank 0 tells the followers (no torch)
    rank           what every rank has: shard, KV, a communicator for each worker
    runner         rank 0's side of a plan
    follower       the other ranks' process
    launch         starting and stopping them
"""
