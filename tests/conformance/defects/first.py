"""Seeds whose simplest scenarios show a defect, where those of the search do not: tests begin with them.

    PYTHONPATH=tests python tests/conformance/defects/first.py

writes `first.json`. A seed that is wrong costs time; of a defect that breaks several laws, another may then be named.
"""

from __future__ import annotations

import json

import pytest
from conformance.defects.harness import FIRST, SIMPLEST, all_defects, search

SEEDS = 1000


def main() -> None:
    """Search for every defect from the beginning, and then for a seed."""
    known: dict[str, int] = {}
    defects = all_defects()
    for defect in defects:
        with pytest.MonkeyPatch.context() as patch:
            defect.seed(patch)
            broken, number = search(defect)
            if broken is not None and broken.law in defect.laws and number < SIMPLEST:
                continue
            print(f"scenario {number}: {broken.law if broken else 'nothing'} of {defect.id}")
            for seed in range(SEEDS):
                broken, _ = search(defect, seed=seed, examples=SIMPLEST)
                if broken is not None and broken.law in defect.laws:
                    known[defect.id] = seed
                    break
    FIRST.write_text(json.dumps(known, indent=1) + "\n")
    print(f"{len(known)} of {len(defects)} defects")


if __name__ == "__main__":
    main()
