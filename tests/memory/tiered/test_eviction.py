"""What a chunk is worth, and which of many idle ones is worth least (thesis, 3.4.3.1)."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from helpers import refusal

from minifuse.core.errors import UsageError
from minifuse.memory import Tiered
from minifuse.memory.tiered.chunks import Chunk, Idle
from minifuse.memory.tiered.eviction import CostAware, Eviction, LeastRecentlyUsed
from minifuse.memory.tiered.profile import ASSUMED, Profile

PROFILE = Profile(2.0, (32, 64, 128, 256), (1.0, 2.0, 4.0, 8.0))
SIZE = 32


def _idle(eviction: Eviction, *chunks: Chunk) -> Idle:
    idle = Idle(eviction, SIZE)
    for chunk in chunks:
        idle.add(chunk)
    return idle


def test_the_value_is_cost_over_time() -> None:
    """Cost(64) = 2 + 2 after 4 s is worth 1; Cost(256) = 2 + 8 after 20 s is worth 0.5, and goes first."""
    cheap, expensive = Chunk(1, active_s=16.0), Chunk(7, active_s=0.0)
    idle = _idle(CostAware(PROFILE), cheap, expensive)
    assert (idle.value(cheap, 20.0)[0], idle.value(expensive, 20.0)[0]) == (1.0, 0.5)
    assert idle.lowest(20.0) is expensive
    # As time passes the order changes: after 36 s they are worth 4 / 20 and 10 / 36.
    assert idle.lowest(36.0) is cheap


def test_lru_looks_at_the_time_alone_and_begins_at_the_leading_end() -> None:
    cheap, expensive, last = Chunk(1, active_s=16.0), Chunk(7, active_s=0.0), Chunk(8, active_s=0.0)
    idle = _idle(LeastRecentlyUsed(), cheap, last, expensive)
    assert idle.lowest(36.0) is expensive
    idle.remove(expensive)
    assert idle.lowest(36.0) is last


def test_what_has_just_been_used_is_worth_more_than_all() -> None:
    assert CostAware(PROFILE).value(32, 0.0) == math.inf


@pytest.mark.parametrize("eviction", [CostAware(PROFILE), LeastRecentlyUsed()])
def test_the_lowest_is_that_of_all_compared_one_by_one(eviction: Eviction) -> None:
    rng = random.Random(3)
    idle, chunks, now = Idle(eviction, SIZE), [], 0.0
    for _ in range(400):
        now += rng.random()
        if chunks and rng.random() < 0.4:
            chunk = chunks.pop(rng.randrange(len(chunks)))
            idle.remove(chunk)
        else:
            chunk = Chunk(rng.randrange(12), active_s=now - rng.choice([0.0, 0.0, 3.0]))
            chunks.append(chunk)
            idle.add(chunk)
        assert len(idle) == len(chunks)
        assert idle.lowest(now) is min(chunks, key=lambda chunk: idle.value(chunk, now), default=None)


def test_a_profile_is_interpolated_between_powers_of_two() -> None:
    assert [PROFILE.cost(n) for n in (1, 32, 48, 64, 192, 256, 512)] == [3.0, 3.0, 3.5, 4.0, 8.0, 10.0, 18.0]


def test_a_longer_context_never_costs_less() -> None:
    noisy = Profile(0.0, (32, 64, 128), (2.0, 1.5, 3.0))
    costs = [noisy.cost(n) for n in range(1, 300)]
    assert costs == sorted(costs)
    assert noisy.cost(64) == 2.0


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(PROFILE.text())
    assert Profile.read(str(path)) == Profile.read(PROFILE.text()) == PROFILE
    assert ASSUMED.cost(4096) == 2.0


def test_a_profile_of_other_chunks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(PROFILE.text(chunk=16))
    with pytest.raises(
        UsageError, match=r"a chunk of 16 tokens costs, and memory.chunk is 32: give one of 32 tokens, or set"
    ):
        Tiered(64, Tiered.Options(profile=str(path)))
    assert Tiered(64, Tiered.Options(profile=str(path), chunk=16)).capacity == 64


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "another"},
        {"contexts": [32]},
        {"contexts": [64, 32, 128, 256]},
        {"contexts": [32.5, 64, 128, 256]},
        {"contexts": "32"},
        {"attention_s": [1.0]},
        {"attention_s": [1.0, -2.0, 3.0, 4.0]},
        {"attention_s": [1.0, math.nan, 3.0, 4.0]},
        {"other_s": None},
        {"other_s": math.inf},
        {"other_s": 0, "attention_s": [0, 0, 0, 0]},
    ],
)
def test_what_is_no_profile_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**json.loads(PROFILE.text()), **changes}))
    with refusal(UsageError, "profile.json", "minifuse calibrate"):
        Profile.read(str(path))


@pytest.mark.parametrize("text", ["", "[1]", "{", "\xff"])
def test_a_file_that_is_no_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(text.encode("latin-1"))
    with refusal(UsageError, "profile.json", "minifuse calibrate"):
        Profile.read(str(path))


def test_a_file_that_is_not_there_is_refused() -> None:
    with refusal(UsageError, "nowhere.json", "minifuse calibrate"):
        Profile.read("nowhere.json")
