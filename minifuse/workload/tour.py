"""Defines the workload `tour`: 20 requests in a memory so small that each technique shows its idea."""

from __future__ import annotations

from pathlib import Path

TOUR = "tour"
REQUESTS = Path(__file__).with_name("tour.jsonl")  # for the shipped model, in the form of --prompts
KV_MEMORY = 192 * 1024  # bytes: 128 tokens of the shipped model
STAGE_OPTIONS = {  # memory -> its options
    "slots": {"memory.slots": "4"},  # wide enough for each text, and few enough to be shuffled
    "tiered": {"memory.host": "64"},  # tokens: some chunks are found, some are dropped
    "waves": {"memory.overflow": "rotate"},  # FluidInfer's waves, instead of pauses
}
IMPLIED = "--kv-memory 192KiB, " + ", ".join(
    f"{name}={value} ({memory})" for memory, options in STAGE_OPTIONS.items() for name, value in options.items()
)
