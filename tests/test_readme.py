"""README and docs/: links lead somewhere, and each mechanism is defined in the file that its link names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from minifuse.techniques import TECHNIQUES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RESULTS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "benchmarks" / "results").glob("*.md"))
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
# A link to a mechanism: [`shuffled_region`](minifuse/memory/slots/shuffle.py)
MECHANISMS = re.findall(r"\[`(\w+)`\]\((minifuse/[\w/]+\.py)\)", README)


def links(page: str) -> list[str]:
    """The files that a page links to, without anchors."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    found = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    return [link for link in found if not link.startswith("http")]


def pictures(page: str) -> list[str]:
    """The files that a page shows, in HTML or Markdown."""
    text = (ROOT / page).read_text()
    return re.findall(r'(?:srcset|src)="([^"]+)"', text) + re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)


def defined(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


def test_the_readme_and_the_architecture_are_short() -> None:
    assert len(README.splitlines()) <= 200
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) <= 250


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert [link for link in links(page) if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", [*PAGES, *RESULTS])
def test_pictures_are_there_in_a_light_and_a_dark_form(page: str) -> None:
    shown = pictures(page)
    assert [one for one in shown if not ((ROOT / page).parent / one).exists()] == []
    light = [one for one in shown if not one.endswith("-dark.png")]
    assert [one for one in light if one.replace(".png", "-dark.png") not in shown] == []


def test_the_readme_links_to_every_page() -> None:
    assert {Path(page).name for page in PAGES} - {Path(link).name for link in links("README.md")} == set()


@pytest.mark.parametrize(("name", "path"), MECHANISMS)
def test_a_mechanism_is_one_hop_from_the_readme(name: str, path: str) -> None:
    assert name in defined(ROOT / path)


def test_mechanisms_of_every_paper_are_listed() -> None:
    assert {"shuffled_region", "Cellular", "CostAware", "pack", "Embedded", "GrowingFill"} <= {n for n, _ in MECHANISMS}


def test_the_readme_lists_every_technique() -> None:
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", README, re.MULTILINE)) == sorted(TECHNIQUES)
