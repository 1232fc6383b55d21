"""Defines texts, requests to transformers, as a subject of the laws."""

from functools import partial

from minifuse.testing.subject import Subject, mixes
from minifuse.testing.texts.case import TextCase
from minifuse.testing.texts.reference import same_bits
from minifuse.testing.texts.scenario import TextScenario
from minifuse.testing.texts.usual import text_scenarios

__all__ = ["TEXTS", "TextCase", "TextScenario"]

TEXTS = Subject(
    kind="transformer",
    noun="transformers",
    mixes=partial(mixes, "transformer"),
    scenarios=text_scenarios,
    case=TextCase,
    laws={"same_bits": same_bits},
    law_names=("value", "alike"),
)
