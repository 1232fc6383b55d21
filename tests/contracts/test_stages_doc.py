"""The stages that docs/stages.md shows run and keep the laws, and the methods that it lists are all there are."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from minifuse import stages as register_of_stages
from minifuse.cli import main
from minifuse.cli.plugin import load_plugin
from minifuse.cli.verdict import look_at
from minifuse.contracts.declared import defaults
from minifuse.core.errors import LawBroken
from minifuse.serve.assembly import choose
from minifuse.stages import Attention, Batching, Kind, Memory
from minifuse.techniques import mix, technique
from minifuse.testing import TEXTS, capacity, mixes, put_through
from minifuse.testing.statements import OWN_LAWS

pytestmark = pytest.mark.usefixtures("shorter_long_runs")

DOC = Path(__file__).parents[2] / "docs" / "stages.md"
SHOWN: dict[Kind, tuple[str, str]] = {
    "batching": ("fewest.py", "fewest-tokens"),
    "memory": ("boxes.py", "boxes"),
    "attention": ("plain.py", "plain"),
}
PROTOCOLS = {"batching": Batching, "memory": Memory, "attention": Attention}


def _shown(what: str) -> str:
    found = re.search(rf"<!-- {re.escape(what)} -->\n```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert found, f"docs/stages.md no longer shows {what}"
    return found[1]


@pytest.fixture
def plugin(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_register: None) -> Path:
    file, _ = SHOWN[kind]
    (tmp_path / file).write_text(_shown(file))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, f"minifuse_plugin_{Path(file).stem}", sys)  # so that it is as before at the end
    return tmp_path / file


@pytest.mark.parametrize("kind", SHOWN)
def test_it_is_short(kind: Kind) -> None:
    code = [line for line in _shown(SHOWN[kind][0]).splitlines() if line and not line.startswith(("from ", "import "))]
    assert 20 <= len(code) <= 45


@pytest.mark.parametrize("kind", SHOWN)
def test_it_keeps_the_laws(kind: Kind, plugin: Path) -> None:
    load_plugin(str(plugin))
    if kind == "memory":
        exec(_shown("boxes: count"), {})
    put_through(TEXTS, mix(technique("orca"), **{kind: SHOWN[kind][1]}), 2, derandomize=True)


NO_COUNT = "a count of slots (count_slots)"


@pytest.mark.parametrize("kind", ["memory"])
def test_its_memory_is_checked_without_a_count_and_with_it(
    kind: Kind, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count = tmp_path / "boxes_count.py"
    count.write_text(_shown("boxes: count"))
    monkeypatch.setitem(sys.modules, "minifuse_plugin_boxes_count", sys)
    monkeypatch.setattr(capacity, "_COUNTS", {**capacity._COUNTS})
    monkeypatch.setattr(mixes, "mixes_of", lambda name: [(TEXTS, mix(technique("orca"), memory="boxes"))])
    typed = ["check", "--plugin", str(plugin), "boxes", "--scenarios", "1", "--json"]
    assert main(typed) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["left_out"]["refuse early"], "refuse early" in verdict["laws"]) == (NO_COUNT, False)
    del register_of_stages._STAGES["memory"]["boxes"]
    assert main([*typed, "--plugin", str(count)]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert ("refuse early" in verdict["left_out"], "refuse early" in verdict["laws"]) == (False, True)


@pytest.mark.parametrize("kind", ["memory"])
def test_a_leak_is_looked_for_in_its_own_methods(kind: Kind, plugin: Path) -> None:
    plugin.write_text(plugin.read_text().replace("self.free.append(extent.offset // self.size)", "pass"))
    load_plugin(str(plugin))
    with pytest.raises(LawBroken) as broken:
        put_through(TEXTS, mix(technique("orca"), memory="boxes"), 5, derandomize=True)
    assert [place.method for place in look_at(broken.value, ["memory"])] == [
        "Boxes.place",
        "Boxes.commit",
        "Boxes.release",
    ]


@pytest.mark.parametrize("kind", ["attention"])
def test_its_backend_goes_to_other_processes(kind: Kind, plugin: Path) -> None:
    load_plugin(str(plugin))
    backend = choose(mix(technique("orca"), attention="plain")).stages(60).attention.backend()
    assert type(pickle.loads(pickle.dumps(backend))) is type(backend)


@pytest.mark.parametrize("kind", SHOWN)
def test_every_method_of_a_protocol_is_told(kind: Kind) -> None:
    protocol = PROTOCOLS[kind]
    methods = {name for name in dir(protocol) if inspect.isfunction(getattr(protocol, name)) and name[0] != "_"}
    chapter = DOC.read_text().split(f"\n## {kind.capitalize()}\n")[1].split("\n## ")[0]
    assert methods <= set(re.findall(r"^\| `(\w+)` \|", chapter, re.MULTILINE))


def test_every_law_that_it_names_is_one() -> None:
    table = (DOC.parent / "laws.md").read_text()
    laws = {law for row in re.findall(r"^\| ([a-z, ]+) \| ", table, re.MULTILINE) for law in row.split(", ")}
    named = set(re.findall(r"\*([a-z ]+)\*", DOC.read_text().replace("**", "")))
    assert named
    assert named <= laws


def test_the_table_has_every_attribute_and_its_default() -> None:
    rows = re.findall(r"^\| (`[a-zA-Z_`, ]+`) \| (\w+) \| (.+?) \| .+ \|$", DOC.read_text(), re.MULTILINE)
    told = {
        (kind, name): default
        for names, of, default in rows
        for name in re.findall(r"\w+", names)
        for kind in (register_of_stages.KINDS if of == "all" else [of])
    }
    told.pop(("batching", "grows"))  # of a base class
    members = {
        (kind, name)
        for kind, protocol in PROTOCOLS.items()
        for base in protocol.__mro__
        if base.__module__.startswith("minifuse")
        for name, value in {**vars(base).get("__annotations__", {}), **vars(base)}.items()
        if not name.startswith("_") and not inspect.isfunction(value)
    }
    assert told.keys() == members
    for kind, protocol in PROTOCOLS.items():
        for name, value in defaults(protocol).items():
            if name != "kind" and (not callable(value) or name == "Options"):
                shown = {"serves": '`{"transformer"}`', "Options": "`NoOptions`", "token_budget": "None"}.get(
                    name, f'"{value}"' if isinstance(value, str) else str(value)
                )
                assert (kind, name) not in told or told[kind, name] == shown, (kind, name)


@pytest.mark.parametrize("kind", ["batching"])
def test_its_law_holds_of_its_policy_and_is_named_where_it_does_not(
    kind: Kind, plugin: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    law = plugin.with_name("fewest_law.py")
    law.write_text(_shown("fewest_law.py"))
    monkeypatch.setitem(sys.modules, "minifuse_plugin_fewest_law", sys)
    monkeypatch.setattr(mixes, "mixes_of", lambda name: [(TEXTS, mix(technique("orca"), batching="fewest-tokens"))])
    typed = ["check", "--plugin", str(plugin), "--plugin", str(law), "fewest-tokens", "--scenarios", "2"]
    with patch.dict(OWN_LAWS, clear=True):
        assert main([*typed, "--json"]) == 0
        assert "fewest first" in json.loads(capsys.readouterr().out)["laws"]
        del register_of_stages._STAGES["batching"]["fewest-tokens"]
        plugin.write_text(plugin.read_text().replace("key=lambda s: s.", "key=lambda s: -s."))
        assert main([*typed, "--seed", "4"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert 'fewest-tokens breaks the law "fewest first"' in told
    assert "the law no request is admitted while one that asks for fewer tokens waits" in told
    assert "read fewest_first (fewest_law.py, line 6)" in told
