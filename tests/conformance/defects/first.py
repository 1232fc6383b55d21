"""Which scenario is the first that shows each defect, where it is not one of the simplest: tests begin with it.

    PYTHONPATH=tests python tests/conformance/defects/first.py

writes `first.json`. A number that is wrong costs time, and nothing else.
"""

from __future__ import annotations

import json

import pytest
from conformance import test_defects
from conformance.defects.harness import DEFECTS, FIRST, search

SIMPLEST = 3  # scenarios, which cost next to nothing


def main() -> None:
    """Search for every defect from the beginning."""
    first: dict[str, int] = {}
    for defect in DEFECTS:
        with pytest.MonkeyPatch.context() as patch:
            defect.seed(patch)
            broken, number = search(defect)
        if broken is not None and number >= SIMPLEST:
            first[defect.id] = number
    FIRST.write_text(json.dumps(first, indent=1) + "\n")
    print(f"{len(first)} of {len(test_defects.DEFECTS)} defects")


if __name__ == "__main__":
    main()
