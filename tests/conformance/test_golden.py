"""Every technique and mix decides as recorded in the golden file."""

import json

from conformance import golden


def test_decisions_are_those_of_the_golden_file() -> None:
    """A mix that is new has no record; one that is gone must leave the file."""
    recorded = json.loads(golden.FILE.read_text())
    for name, lines in golden.runs():
        for number, (line, expected) in enumerate(zip(lines, recorded.get(name, "").split(), strict=False)):
            assert golden.digest(line) == expected, f"{name}: event {number} is now {line.decode()}"
        assert name not in recorded or len(lines) == len(recorded.pop(name).split()), f"{name} has more or fewer events"
    assert not recorded, f"not run any more: {sorted(recorded)}"
