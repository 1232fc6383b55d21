"""Baton's Table 2 (5.2.2): completion times of the second set, all of whose queries are short.

The paper has static batches and Baton alone.
"""

from __future__ import annotations

import minifuse.reproduce.baton.paper as paper
from minifuse.reproduce.baton.contest import table

CLAIMS = [(batch, "baton", "static") for batch in paper.TABLE_2]
EXPERIMENT = table(
    "2", "second", "completion times with short queries, by the size of the batch", paper.TABLE_2, CLAIMS
)
