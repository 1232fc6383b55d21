"""Tensor parallelism: ranks share one model and compute the same plans (Flover, V-D, VI-E).

Rank 0 has the engine: clocks, policies, memory records, sampling. The other ranks follow: rank 0 sends them each plan,
with the tokens that the plan reads, and each computes it with its shard of the model. `launch` starts the ranks and
returns a runner that is used like any other.

    config         the shape of one rank's shard, and which models can be split (no torch)
    shard          one rank's part of the weights, and where its linear layers communicate
    communicator   calls and counts the collectives of one worker
    messages       counts and times them in virtual time (no torch)
    order          the messages from rank 0 to the followers (no torch)
    rank           the part of a run that every rank has: shard, KV, a communicator for each worker
    runner         rank 0's side of a plan
    follower       the process of every other rank
    followers      the processes of the other ranks, as rank 0 controls them
    watch          kills followers that were stopped (SIGSTOP)
    launch         starts and stops the ranks
"""
