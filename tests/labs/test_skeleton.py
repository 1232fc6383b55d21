"""The stripper: what students get, and that it fails closed."""

from __future__ import annotations

import pytest
from helpers import refusal

from minifuse.core.errors import UsageError
from minifuse.labs.skeleton import leaked, skeleton, solution_lines

FILE = '''"""A lab."""


def missing(length: int, written: list[int]) -> list[int]:
    """What is not there."""
    # BEGIN SOLUTION: what of [0, length) is not written?
    holes = [token for token in range(length) if token not in written]
    return holes
    # END SOLUTION


# BEGIN SOLUTION
def _helper_of_the_reference() -> int:
    return 3


# END SOLUTION
class Cache:
    """Keeps."""

    def keep(self, token: int) -> None:
        """Keep a token."""
        # BEGIN SOLUTION: append it
        self.kept_tokens.append(token)
        # END SOLUTION
'''


def test_solutions_become_an_error_with_a_sentence() -> None:
    assert (
        skeleton(FILE)
        == '''"""A lab."""


def missing(length: int, written: list[int]) -> list[int]:
    """What is not there."""
    raise NotImplementedError("what of [0, length) is not written?")


class Cache:
    """Keeps."""

    def keep(self, token: int) -> None:
        """Keep a token."""
        raise NotImplementedError("append it")
'''
    )


def test_what_is_left_runs_and_says_what_to_write() -> None:
    names: dict[str, object] = {}
    exec(skeleton(FILE), names)
    with pytest.raises(NotImplementedError, match="is not written"):
        names["missing"](3, [])  # type: ignore[operator]


def test_a_hint_may_have_quotes() -> None:
    names: dict[str, object] = {}
    exec(skeleton(FILE.replace("append it", 'append "it" \\ so')), names)
    with pytest.raises(NotImplementedError, match=r'append "it" \\ so'):
        names["Cache"]().keep(3)  # type: ignore[operator]


def test_the_lines_of_a_solution_are_known() -> None:
    lines = solution_lines(FILE)
    assert "holes = [token for token in range(length) if token not in written]" in lines
    assert "return holes" not in lines  # too short to tell anything
    assert leaked("  self.kept_tokens.append(token)\n", lines) == ["self.kept_tokens.append(token)"]
    assert not leaked(skeleton(FILE), lines)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("    # END SOLUTION\n\n\n#", "\n\n#", "by itself"),
        (
            "    # BEGIN SOLUTION: what of [0, length) is not written?\n",
            "",
            "has the marker '# END SOLUTION' by itself",
        ),
        ("        # END SOLUTION\n", "", "by itself"),
        (
            "    return holes\n",
            "    return holes\n    # BEGIN SOLUTION: again\n",
            "'# BEGIN SOLUTION: again' by itself",
        ),
        ("        # END SOLUTION\n", "    # END SOLUTION\n", "by itself"),
        ("# BEGIN SOLUTION\n", "# begin solution\n", "has the marker '# begin solution' by itself"),
        ("    # END SOLUTION\n\n\n#", "    #END-SOLUTION\n\n\n#", "by itself"),
        ("# BEGIN SOLUTION: append it", "# BEGIN SOLUTION", "line 23, has no hint"),
        ("def missing(", "def missing:(", "solution.py is no Python (line 4"),
        ('"""Keeps."""\n', '"""Keeps."""\n\n    # self.kept_tokens.append(token)\n', "still has a line of one"),
        (
            '"""Keep a token."""\n',
            '"""Keep a token."""\n        self.kept_tokens.append(token)\n',
            "still has a line of one",
        ),
    ],
)
def test_it_fails_closed(old: str, new: str, told: str) -> None:
    changed = FILE.replace(old, new, 1)
    assert changed != FILE
    with refusal(UsageError, told):
        skeleton(changed)


def test_a_file_without_solutions_is_refused() -> None:
    with pytest.raises(UsageError, match="has no solution that is marked"):
        skeleton('"""Nothing."""\n')
