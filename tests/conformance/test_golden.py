"""Every technique and mix decides as recorded in the golden file."""

import json

import pytest
from conformance import golden


@pytest.mark.parametrize("dealt", [True, pytest.param(False, marks=pytest.mark.long)])
def test_decisions_are_those_of_the_golden_file(dealt: bool) -> None:
    """A mix that is new has no record; one that is gone must leave the file.

    Of a mix, half of the scenarios are run, and the other half by the longer test.
    """
    recorded = json.loads(golden.FILE.read_text())
    mixes = {name.rpartition(" ")[0] for name in recorded}
    for name, lines in golden.runs(dealt=dealt):
        mixes.discard(name.rpartition(" ")[0])
        for number, (line, expected) in enumerate(zip(lines, recorded.get(name, "").split(), strict=False)):
            assert golden.digest(line) == expected, f"{name}: event {number} is now {line.decode()}"
        assert name not in recorded or len(lines) == len(recorded.pop(name).split()), f"{name} has more or fewer events"
    gone = mixes if dealt else recorded
    assert not gone, f"not run any more: {sorted(gone)}"
