"""Rows behind sums: the solver asks for passes over the rows and gets exact sums, wherever the rows live.

A `Shard` is a run of encoded rows. A pass is a value that is called with a shard and returns sums, which are added in
any order and are then read: the same bits for one shard or many, in memory, from disk, in any order of work. `Memory`,
`Disk` and `Cluster` are the ways to visit shards. What a fit knows of its progress is the list of its updates, a
`State`.
"""

from lowcal.rows.base import START, Memory, Rows, Scale, Shard, State

__all__ = ["START", "Memory", "Rows", "Scale", "Shard", "State"]
