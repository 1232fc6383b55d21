"""`minifuse check`: the verdict on one screen, and as JSON; what goes wrong on the way."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conformance.test_defects import DEFECTS

from minifuse import stages
from minifuse.core.errors import LawBroken
from minifuse.core.request import Request
from minifuse.show.observed import decided, timeline
from minifuse.techniques import TECHNIQUES
from minifuse.testing import TEXTS, observe, search
from minifuse.testing.applies import unclaimed
from minifuse.testing.statements import statement
from minifuse.testing.texts import TextScenario

pytestmark = pytest.mark.usefixtures("shorter_long_runs")

Cli = Callable[..., Any]

WIDTH, HEIGHT = 80, 34

FAULTY = """
from minifuse.batching.iteration import Iteration
from minifuse.stages import register


@register
class Divides(Iteration):
    '''Divides by the requests that run.'''

    name = "divides"

    def admission(self, sequence, joining, now):
        return super().admission(sequence, joining // len(self.running), now)


@register
class Loops(Iteration):
    '''Waits for itself.'''

    name = "loops"

    def rank(self, sequence):
        while True:
            pass


@register
class Says(Iteration):
    '''Refuses with a word.'''

    name = "says"

    def admission(self, sequence, joining, now):
        return "full"
"""

UNCLAIMED = """
from dataclasses import dataclass

from minifuse.batching.policy import QueuePolicy
from minifuse.core.stages import option
from minifuse.stages import register


@register
class Newest(QueuePolicy):
    '''The newest first.'''

    name = "newest"

    @dataclass(frozen=True)
    class Options:
        max_batch: int = option(8, "requests in one iteration, at most", minimum=1, batch_size=True)

    def rank(self, sequence):
        return -self.waiting.num_joined

    def admission(self, sequence, joining, now):
        return self._batch_full(sequence, joining)
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    """A file that registers faulty stages, forgotten at the end of the test."""
    path = tmp_path / "faulty.py"
    path.write_text(FAULTY)
    before = dict(stages.stages("batching"))
    yield path
    stages._STAGES["batching"] = before
    del sys.modules["minifuse_plugin_faulty"]
    sys.path.remove(str(tmp_path))


def _fits(screen: str) -> None:
    lines = screen.splitlines()
    assert len(lines) <= HEIGHT
    assert max(map(len, lines)) <= WIDTH
    assert 'File "' not in screen


def test_a_technique_that_keeps_the_laws(minifuse: Cli) -> None:
    held = minifuse("check", "graph-padded", "--scenarios", 2)
    assert held.code == 0
    screen = " ".join(held.out.split())
    assert re.match(
        r"HOLDS: graph-padded kept all \d+ laws, on 2 scenarios in 1 of 1 mixes. laws exact, .*, pinned", screen
    )
    assert "window (needs the option batching.window)" in screen.split(" not ")[1].split(" mixes ")[0]
    assert held.err.splitlines() == ["graph-padded: loading", "graph-padded: mix 1 of 1, graph-padded"]
    _fits(held.out)


def test_the_verdict_as_json_is_the_same_for_the_same_seed(minifuse: Cli) -> None:
    typed = ("check", "graph-padded", "--scenarios", 2, "--seed", 5, "--json")
    verdict = minifuse(*typed).json()
    assert (verdict["verdict"], verdict["complete"], verdict["broken"]) == ("holds", True, None)
    assert (verdict["scenarios"], verdict["mixes"], verdict["seed"]) == (2, {"graph-padded": 2}, 5)
    assert verdict == minifuse(*typed).json()


@pytest.mark.parametrize(
    ("defect", "stage", "law", "words"),
    [
        (
            "oldest_evicted_first",
            "vllm",
            "queue",
            ["was evicted, and it precedes", "out  !!", "evict r", "PrefillFirst."],
        ),
        ("slot_freed_twice", "memory.contiguous", "conservation", ["freed twice", "in slots 0", "Contiguous.release"]),
        ("mask_too_wide", "per_sequence", "ghost", ["did not read its own", "PerSequenceAttention.attention"]),
        ("waits_for_a_full_set", "graph_merged", "progress", ["waits at 0 ms", "GraphMerged"]),
    ],
)
def test_a_defect_is_shown_on_one_screen(
    minifuse: Cli, monkeypatch: pytest.MonkeyPatch, defect: str, stage: str, law: str, words: list[str]
) -> None:
    next(one for one in DEFECTS if one.seed.__name__ == defect).seed(monkeypatch)
    shown = minifuse("check", stage, "--quick", "--seed", 3)
    assert shown.code == 1
    assert shown.out.splitlines()[0] == f'BROKEN: {stage} breaks the law "{law}".'
    screen = " ".join(shown.out.split())
    for text in [*words, statement(law).says, statement(law).read.rstrip(".")]:
        assert " ".join(text.split()) in screen
    assert screen.endswith(f"again with minifuse check {stage} --quick --seed 3")
    _fits(shown.out)


def test_an_error_of_a_plugin_is_shown_with_its_line(minifuse: Cli, plugin: Path) -> None:
    typed = ("check", "--plugin", plugin, "divides", "--quick")
    shown = minifuse(*typed)
    assert shown.code == 1
    assert 'divides breaks the law "contract"' in shown.out
    assert "ZeroDivisionError" in shown.out
    assert (
        f"Divides.admission  (faulty.py, line {FAULTY[: FAULTY.index('return super')].count(chr(10)) + 1})" in shown.out
    )
    _fits(shown.out)


def test_a_policy_that_claims_nothing_is_warned_of(
    minifuse: Cli, plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.write_text(UNCLAIMED)
    row = replace(TECHNIQUES["orca"], name="newest-first", batching="newest")
    monkeypatch.setitem(TECHNIQUES, "newest-first", row)
    held = minifuse("check", "--plugin", plugin, "newest-first", "--scenarios", 1)
    assert held.code == 0
    assert "the order of admission (overtaken_at_most) or how full its batch is" in " ".join(held.out.split())
    assert len(unclaimed("newest-first")) == len(unclaimed("batching.newest")) == 2
    monkeypatch.setattr(stages.stage("batching", "newest"), "overtaken_at_most", 0)
    assert unclaimed("newest") == ["how full its batch is (work_conserving)"]
    assert not unclaimed("static")  # it is minifuse's own
    assert not unclaimed("paged")


def test_a_plugin_that_hangs_is_shown_with_its_line(
    minifuse: Cli, plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[observe.__module__], "PATIENCE_S", 1.0)
    shown = minifuse("check", "--plugin", plugin, "loops", "--json")
    assert shown.code == 1
    broken = shown.json()["broken"]
    assert (broken["law"], broken["error"]) == ("progress", "Hung")
    ((method, file, line),) = [place.values() for place in broken["look_at"]]
    assert (method, file) == ("Loops.rank", "faulty.py")
    assert FAULTY.splitlines()[line - 1].strip() in ("while True:", "pass")
    assert broken["scenario"]["requests"]
    assert "Loops.rank (faulty.py, line " in broken["message"]
    assert "did not return within 1 s, and was at faulty.py, line " in broken["message"]


def test_a_wrong_reason_is_shown_with_the_method_that_gave_it(minifuse: Cli, plugin: Path) -> None:
    broken = minifuse("check", "--plugin", plugin, "says", "--json").json()["broken"]
    assert [place["method"] for place in broken["look_at"]] == ["Says.admission"]
    assert "Says.admission (faulty.py, line " in broken["message"]


def test_a_law_that_fails_decides_nothing(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("minifuse.testing.laws"), "check_overtaking", None)
    shown = minifuse("check", "graph-padded", "--quick", "--json")
    assert (shown.code, shown.json()["verdict"], shown.json()["broken"]) == (1, "undecided", None)
    assert "A law failed at laws.py, line " in shown.json()["message"]
    assert "See it again with minifuse check graph-padded --quick --seed 0." in shown.err


UNREAD = """
from dataclasses import dataclass

from minifuse.batching.iteration import Iteration
from minifuse.core.stages import option
from minifuse.stages import register


@register
class Divides(Iteration):
    '''Has a budget in name only.'''

    name = "divides"
    token_budget = None
    work_conserving = False

    @dataclass(frozen=True)
    class Options(Iteration.Options):
        token_budget: int = option(512, "tokens in one iteration, at most", minimum=1)
        most: int = option(2, "requests in one iteration, at most", minimum=1, maximum=4)

    def admission(self, sequence, joining, now):
        return super().admission(sequence, joining + max(0, self.options.max_batch - self.options.most), now)
"""


def test_an_option_that_is_never_read_is_named(minifuse: Cli, plugin: Path) -> None:
    plugin.write_text(UNREAD)
    typed = ("check", "--plugin", plugin, "divides", "--set", "memory.block_size=2", "--scenarios", 1)
    held = minifuse(*typed)
    assert held.code == 0
    assert "warning: no scenario made the stage read its option batching.token_budget." in held.out
    assert held.out.count("its option") == 1
    assert held.out.count("warning: the policy claims nothing") == 1
    assert held.out.count("warning") == 2
    del stages._STAGES["batching"]["divides"]
    verdict = minifuse(*typed, "--json").json()
    assert (verdict["unread"], verdict["options"]) == (["batching.token_budget"], {"memory.block_size": "2"})
    assert {mix.split("+")[1] for mix in verdict["mixes"]} == {"paged", "waves"}


def test_a_quick_verdict_does_not_depend_on_the_clock(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    at = count(step=1000)
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: next(at)))
    module = importlib.import_module("minifuse.cli.check")
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(at)))
    monkeypatch.setattr(module, "QUICK_SCENARIOS", 3)
    verdict = minifuse("check", "graph-padded", "--quick", "--json").json()
    assert (verdict["verdict"], verdict["complete"], verdict["scenarios"]) == ("holds", True, 3)


UNUSABLE = """
from minifuse.batching.iteration import Iteration
from minifuse.stages import register


@register
class Divides(Iteration):
    name = "divides"
"""


@pytest.mark.parametrize(
    ("method", "words"),
    [("propse", "did you mean 'propose'?"), ("rank", "is called as rank(sequence)"), ("__init__", "cannot be made")],
)
def test_a_class_that_cannot_be_a_stage_is_bad_usage(minifuse: Cli, plugin: Path, method: str, words: str) -> None:
    parameters = "self" if method == "rank" else "self, *arguments"
    plugin.write_text(f"{UNUSABLE}\n    def {method}({parameters}):\n        1 / 0\n")
    shown = minifuse("check", "--plugin", plugin, "divides", "--quick")
    assert (shown.code, shown.out) == (2, "")
    assert words in shown.err
    del stages._STAGES["batching"]["divides"]
    shown = minifuse("check", "--plugin", plugin, "divides", "--quick", "--json")
    assert (shown.code, shown.json()["verdict"]) == (2, "unusable")
    assert words in shown.json()["message"]


def test_a_verdict_is_as_wide_as_the_terminal(minifuse: Cli, plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in (("60", 60), ("1", 40), ("200", WIDTH)):
        monkeypatch.setenv("COLUMNS", columns)
        shown = minifuse("check", "--plugin", plugin, "divides", "--quick")
        for name in ("divides", "loops", "says"):
            del stages._STAGES["batching"][name]
        prose = shown.out.split("happened")[1].split("where")[0]
        assert max(map(len, prose.splitlines())) <= width
        assert max(map(len, shown.out.splitlines())) > width - 20


def test_time_runs_out(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second scenario, of a technique that has one mix."""
    attempt = search.Search._attempt

    def once(self: search.Search, case: Any) -> None:
        attempt(self, case)
        self.limit = search.Limit(-1, -1)

    monkeypatch.setattr(search.Search, "_attempt", once)
    held = minifuse("check", "graph-padded", "--limit", "5s")
    assert (held.code, held.out.partition(":")[0]) == (0, "HOLDS so far")
    quick = minifuse("check", "graph-padded", "--quick", "--limit", "5s", "--json").json()
    assert (quick["verdict"], quick["complete"], quick["scenarios"]) == ("holds", False, 1)
    undecided = minifuse("check", "graph-merged", "--limit", "5s")
    assert (undecided.code, undecided.out.partition(":")[0]) == (1, "UNDECIDED")
    assert "1 scenario in 1 of 2 mixes" in " ".join(undecided.out.split())


def test_nothing_tried_is_no_verdict(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.Limit, "of", lambda *arguments: search.Limit(-1, -1))
    typed = ("check", "graph-padded", "--quick", "--limit", "5s")
    done = minifuse(*typed, "--json")
    assert (done.code, done.json()["verdict"], done.json()["scenarios"]) == (1, "undecided", 0)
    assert minifuse(*typed).out.startswith("UNDECIDED")


def test_the_limit_begins_when_all_is_loaded(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    module, at = importlib.import_module("minifuse.cli.check"), [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: at[0]))
    load = module._mixes

    def slow(*arguments: Any) -> Any:
        at[0] += 1000.0
        return load(*arguments)

    monkeypatch.setattr(module, "_mixes", slow)
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: at[0]))
    assert minifuse("check", "graph-padded", "--limit", "5s", "--scenarios", "1").out.startswith("HOLDS: ")


def test_the_quick_form_says_that_laws_were_dealt_out(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("minifuse.cli.check"), "QUICK_SCENARIOS", 2)
    held = minifuse("check", "graph-padded", "--quick")
    screen = " ".join(held.out.split())
    assert screen.startswith("HOLDS: graph-padded kept the laws that were tried on it: all")
    assert "one of those that compare runs" in screen


def test_ctrl_c_says_what_was_checked(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    run = search.Search.run

    def interrupted(self: Any, *arguments: Any, **named: Any) -> None:
        run(self, *arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(search.Search, "run", interrupted)
    done = minifuse("check", "graph-merged", "--scenarios", 2)
    assert (done.code, done.out) == (130, "")
    assert done.err.endswith("error: Interrupted: no law was found broken on 2 scenarios in 1 of 2 mixes.\n")
    done = minifuse("check", "graph-merged", "--scenarios", 2, "--json")
    assert (done.code, done.json()["verdict"], done.json()["scenarios"]) == (130, "undecided", 2)
    assert "Interrupted" in done.json()["message"]


def test_json_is_alone_on_standard_output(minifuse: Cli, plugin: Path) -> None:
    plugin.write_text(FAULTY + "\nprint('a plugin prints')\n")
    shown = minifuse("check", "--plugin", plugin, "divides", "--quick", "--json")
    assert json.loads(shown.out)["verdict"] == "broken"
    assert "a plugin prints" in shown.err


def test_bad_usage_as_json(minifuse: Cli) -> None:
    done = minifuse("check", "iteraton", "--json")
    assert (done.code, done.json()["verdict"]) == (2, "unusable")
    assert 'did you mean "iteration"?' in done.json()["message"]
    assert done.err.startswith("error: ")


def test_without_hypothesis(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    for name in [name for name in sys.modules if name.startswith(("minifuse.testing", "minifuse.cli.verdict"))]:
        monkeypatch.delitem(sys.modules, name)
    done = minifuse("check", "orca")
    assert (done.code, done.out) == (3, "")
    assert "error: minifuse check makes scenarios up with hypothesis, which is not installed" in done.err


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ((), "No stage was named"),
        (("orca", "--quick", "--scenarios", "3"), "both given"),
        (("orca", "--limit", "10"), '--limit is "10"'),
        (("orca", "--limit", "1ms"), "from 1s"),
    ],
)
def test_bad_usage_is_one_sentence(minifuse: Cli, typed: tuple[str, ...], words: str) -> None:
    minifuse("check", *typed).refused(words)


def test_a_timeline() -> None:
    """Three requests grow in 18 slots, until one has to leave; another follows the first that ends."""
    requests = [Request(f"r{i}", (i, i), max_new_tokens=6, conversation=f"c{i}") for i in range(3)]
    follower = Request("r3", (1,), max_new_tokens=1, conversation="c0", after="r0", delay_s=0.005)
    options = {"batching.max_batch": 3, "memory.block_size": 1, "memory.watermark": 0.0}
    scenario = TextScenario(
        requests=(*requests, follower), options=tuple(options.items()), model="gptj", capacity=18, aborts=()
    )
    seen = observe(TEXTS.case(TECHNIQUES["vllm"], scenario))
    assert timeline(seen, "r2 is wrong", WIDTH) == PICTURE.strip("\n").splitlines()
    assert timeline(seen, "all is wrong", 50)[0] == "step                       ...     6     7  !!"
    assert decided(seen, 2, places=False) == [
        "step 6 at 60 ms: admit r2; compute r2 0-6",
        "step 7 at 70 ms: admit r3; compute r3 0-8",
    ]


PICTURE = """
step                           0   1   2   3   4    5     6     7
decided at, in ms              0  10  20  30  40   50    60    70
r0 2+6 tokens at 0 ms        0-1   2   3   4   5   6|
r1 2+6 tokens at 0 ms        0-1   2   3   4   5   6|
r2 2+6 tokens at 0 ms        0-1   2   3   4   5  out  0-6|        !!
r3 1+1 tokens 5 ms after r0                                  0-8|
"""


def test_a_broken_law_says_how_it_may_be_seen_again(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that is shown finds the same."""

    def fails(self: Any, *arguments: Any, **named: Any) -> None:
        raise LawBroken("a law of mine", "nothing was seen")

    monkeypatch.setattr(search.Search, "run", fails)
    shown = minifuse("check", "graph-padded", "--quick", "--seed", "7")
    assert shown.code == 1
    assert "minifuse check graph-padded --quick --seed 7" in shown.out
    assert minifuse("check", "graph-padded", "--json").json()["broken"]["law"] == "a law of mine"
