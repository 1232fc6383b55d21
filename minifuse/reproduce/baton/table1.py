"""Baton's Table 1 (5.2.1): completion times of the first set, with long prompts and long answers."""

from __future__ import annotations

import minifuse.reproduce.baton.paper as paper
from minifuse.reproduce.baton.contest import table

PAIRS = (("baton-pd", "baton"), ("baton-pd", "static"), ("baton-pd", "pd"), ("baton", "static"))
CLAIMS = [(batch, *pair) for batch in paper.TABLE_1 for pair in PAIRS]
EXPERIMENT = table("1", "first", "completion times of the four variants, with long sequences", paper.TABLE_1, CLAIMS)
