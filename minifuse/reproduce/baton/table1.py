"""Baton's Table 1 (5.2.1): completion times of the first set, with long prompts and long answers."""

from __future__ import annotations

import minifuse.reproduce.baton.paper as paper
from minifuse.reproduce.baton.contest import bound, claim, others, panels, race_all
from minifuse.reproduce.baton.setting import OTHERS, VARIANTS, Setting, experiment
from minifuse.reproduce.experiment import Finding, Say

__all__ = ["EXPERIMENT"]

TITLE = "Table 1: the first set of queries"
CONTENDERS = (*VARIANTS, *OTHERS)


def draw(setting: Setting, say: Say) -> Finding:
    """Static batches, PD, Baton with and without P&D; and what iterates without padding."""
    races = race_all(setting, say, TITLE, CONTENDERS, paper.TABLE_1)
    notes = [
        setting.note(),
        *(
            claim(races, batch, "baton-pd", baseline, paper.TABLE_1)
            for batch in paper.TABLE_1
            for baseline in ("baton", "static")
        ),
        bound(races),
        *(others(races, name, OTHERS) for name in ("baton", "baton-pd")),
    ]
    return Finding(setting.facts(), panels(TITLE, setting, races, paper.TABLE_1), tuple(notes))


EXPERIMENT = experiment("first", "table", "1", "completion times of the four variants, with long sequences", draw)
