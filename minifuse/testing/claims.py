"""What a policy may claim of itself, for the laws to hold it to; what it does not claim is not checked."""

from __future__ import annotations

from minifuse.contracts.fault import is_own
from minifuse.stages import kinds_of, stage
from minifuse.techniques import TECHNIQUES

CLAIMS = {  # the value that claims nothing, and what each is about
    "overtaken_at_most": (None, "the order of admission (overtaken_at_most)"),
    "work_conserving": (False, "how full its batch is (work_conserving)"),
}


def unclaimed(name: str) -> list[str]:
    """Return what a plugin's policy claims nothing about; `name` is the policy's or its technique's.

    Shipped policies, memories and attentions return nothing.
    """
    if name in TECHNIQUES:
        policy = stage("batching", TECHNIQUES[name].batching)
    elif "batching" in kinds_of(name):
        policy = stage("batching", name.rpartition(".")[2])
    else:
        return []
    if is_own(policy):
        return []
    return [about for claim, (default, about) in CLAIMS.items() if getattr(policy, claim) is default]
