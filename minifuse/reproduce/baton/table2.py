"""Baton's Table 2 (5.2.2): completion times of the second set, all of whose queries are short."""

from __future__ import annotations

import minifuse.reproduce.baton.paper as paper
from minifuse.reproduce.baton.contest import bound, claim, others, panels, race_all
from minifuse.reproduce.baton.setting import OTHERS, VARIANTS, Setting, experiment
from minifuse.reproduce.experiment import Finding, Say

__all__ = ["EXPERIMENT"]

TITLE = "Table 2: the second set of queries"
CONTENDERS = (*VARIANTS, *OTHERS)


def draw(setting: Setting, say: Say) -> Finding:
    """Baton against static batches, as in the paper; and the other variants, and what iterates without padding."""
    races = race_all(setting, say, TITLE, CONTENDERS, paper.TABLE_2)
    notes = [
        setting.note(),
        *(claim(races, batch, "baton", "static", paper.TABLE_2) for batch in paper.TABLE_2),
        bound(races),
        *(others(races, name, OTHERS) for name in ("baton", "baton-pd")),
    ]
    return Finding(setting.facts(), panels(TITLE, setting, races, paper.TABLE_2), tuple(notes))


EXPERIMENT = experiment("second", "table", "2", "completion times with short queries, by the size of the batch", draw)
