"""The page of results: every figure has a section, whose numbers are those of the figure's own page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minifuse.papers import EXPERIMENTS

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results"
README = (FOLDER / "README.md").read_text()
SECTIONS = re.split(r"^### ", README, flags=re.MULTILINE)[1:]
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
MEASURED = re.compile(r"\*\*Measured\.\*\*(.*?)(?:\*\*Why\.\*\*|\(\[|\(a unit)")
UNITS = 1, 100, 1e-2, 1e3, 1e-3  # per cent, and prefixes


def numbers(text: str) -> list[str]:
    return [number.rstrip(",") for number in NUMBER.findall(text)]


def missing(section: str, pages: str) -> list[str]:
    """Return the numbers of a section's measurements that no number of its pages rounds to."""
    found = MEASURED.search(" ".join(section.split()))
    assert found is not None
    values = [float(number.replace(",", "")) * unit for number in numbers(pages) for unit in UNITS]

    def is_there(number: str) -> bool:
        half = 0.5001 * 10.0 ** -len(number.partition(".")[2])
        return any(abs(value - float(number.replace(",", ""))) <= half for value in values)

    return [number for number in numbers(found[1]) if not is_there(number)]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition(":")[0])
def test_numbers_are_those_of_the_page(section: str) -> None:
    names = re.findall(r"\]\(([\w.-]+\.md)\)", section)
    pages = [name for name in names if name.endswith("-paper.md")] or names
    assert missing(section, "".join((FOLDER / name).read_text() for name in pages)) == []


def test_a_number_that_is_not_on_the_page_is_noticed() -> None:
    section = "**Measured.** Agrees: 2.35 times (1.97 to 2.70), 13.4% of 1,416. **Why.** 99 others."
    assert missing(section, "| 2.351x | 1.97-2.70 | 0.1335 | 1,416 |") == []
    assert missing(section, "| 2.36x | 1.97-2.70 | 13.35% | 1,417 |") == ["2.35", "1,416"]


def test_every_figure_is_linked_or_said_to_be_missing() -> None:
    linked = set(re.findall(r"\]\(([\w.-]+)\.md\)", README))
    linked |= set(re.findall(r"`minifuse reproduce ([\w.-]+)`: not measured", README))
    assert {name for name in EXPERIMENTS if not {name, f"{name}-paper"} & linked} == set()


def test_what_is_linked_is_there() -> None:
    assert [name for name in re.findall(r"\]\(([\w.-]+)\)", README) if not (FOLDER / name).exists()] == []
