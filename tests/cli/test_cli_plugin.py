"""`--plugin`, with the stage and the model that docs/ show."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.cli.plugin import load_plugin
from minifuse.testing import check_laws, load

Cli = Callable[..., Any]

DOCS = Path(__file__).parents[2] / "docs"


def _shown(page: str, what: str) -> str:
    """Return the example `what` of a page of docs/."""
    found = re.search(rf"<!-- {what} -->\n```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert found, f"docs/{page} no longer shows a {what}"
    return found[1]


def _shown_stage() -> str:
    return _shown("plugins.md", "stage")


@pytest.fixture
def shortest(tmp_path: Path) -> Path:
    path = tmp_path / "a folder" / "shortest.py"
    path.parent.mkdir()
    path.write_text(_shown_stage())
    return path


def test_the_shown_stage_fits_in_30_lines() -> None:
    assert len(_shown_stage().splitlines()) <= 30


def test_plugin_is_listed_explained_and_run(afresh: Cli, process: Cli, shortest: Path, tmp_path: Path) -> None:
    listed = afresh("--plugin", shortest, "list", "--json").json()
    assert "shortest-prompt" in [stage["name"] for stage in listed["batching"]]
    explained = afresh("--plugin", shortest, "explain", "shortest-prompt").out
    assert "max_batch" in explained
    (line,) = (line for line in explained.splitlines() if line.startswith("    minifuse "))
    given = ["--model", "random:small", "--clock", "virtual", "--requests", "1", "--json"]
    assert afresh(*shlex.split(line)[1:], *given).json()["stages"]["batching"] == "shortest-prompt"
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "long", "prompt_token_ids": [1, 2, 3, 4]}\n{"id": "short", "prompt_token_ids": [5]}\n')
    options = ["--model", "random:small", "--clock", "virtual", "--max-batch", "1", "--max-new-tokens", "3"]
    ran = process("--plugin", shortest, "run", "--batching", "shortest-prompt", "--prompts", prompts, *options)
    assert ran.code == 0, ran.err
    assert [line.split()[0] for line in ran.out.splitlines()] == ["short", "long"]


@pytest.mark.parametrize("below", [False, True])
def test_a_trace_is_not_written_over_the_plugin(afresh: Cli, shortest: Path, below: bool) -> None:
    trace = shortest
    if below:
        trace = shortest.parent / "below" / "deep.py"
        trace.parent.mkdir()
        trace.write_text("# imported\n")
        shortest.write_text(f"import below.deep\n{shortest.read_text()}")
    before = trace.read_text()
    afresh("--plugin", shortest, "run", "--clock", "virtual", "--trace", trace).refused("this command reads")
    assert trace.read_text() == before


def test_the_readmes_model_is_served_alike_by_all_techniques_for_chains(afresh: Cli, tmp_path: Path) -> None:
    path = tmp_path / "gru.py"
    path.write_text(_shown("models.md", "model"))
    typed = ["--model", "gru:hidden=8,vocab=50", "--dtype", "float64", "--requests", "6", "--json"]
    ran = afresh("--plugin", path, "compare", "cellular", "graph-padded", "graph-merged", *typed)
    assert ran.code == 0, ran.err
    rows = ran.json()["techniques"]
    assert [row["technique"] for row in rows] == ["cellular", "graph-padded", "graph-merged"]
    assert [row["differing"] for row in rows] == [[], [], []]
    assert [row["metrics"]["requests"]["stop"] for row in rows] == [6, 6, 6]


@pytest.mark.parametrize(
    "others", [{"memory": "paged", "attention": "paged"}, pytest.param({}, marks=pytest.mark.long)], ids=str
)
def test_the_readmes_stage_keeps_the_laws(
    own_register: None,
    shortest: Path,
    others: dict[str, str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `paged` alone, a long run has the length of a crowd, and fewer texts are many: the other form has all."""
    if others:
        request.getfixturevalue("shorter_long_runs")
        monkeypatch.setattr(load, "NUM_TEXTS", 100)
    load_plugin(str(shortest))
    assert "queue" in check_laws(2, batching="shortest-prompt", **others)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "does not exist"),
        ("def propose(:", "(SyntaxError: invalid syntax (broken.py, line 1)): correct it."),
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_plugin_that_fails_is_one_sentence(afresh: Cli, tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "broken.py"
    if text is not None:
        path.write_text(text)
    afresh("--plugin", path, "list").refused(words)


def test_behind_the_command_it_is_told_where_it_belongs(minifuse: Cli) -> None:
    said = minifuse("run", "--plugin", "mine.py", "--requests", 1)
    assert (said.code, said.out) == (2, "")
    assert said.err == "error: --plugin stands before the command: minifuse --plugin FILE.py run.\n"


def test_a_name_is_registered_once(afresh: Cli, shortest: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin.py"
    twin.write_text(shortest.read_text())
    afresh("--plugin", shortest, "--plugin", twin, "list").refused("shortest-prompt")


def test_a_file_is_loaded_once(afresh: Cli, shortest: Path, tmp_path: Path) -> None:
    """Whether another plugin imports it, or it is given itself."""
    other = tmp_path / "other.py"
    other.write_text(f"import sys\nsys.path.insert(0, {str(shortest.parent)!r})\nimport {shortest.stem}\n")
    done = afresh("--plugin", other, "--plugin", shortest, "list")
    done.refused("(shortest.py, line", "was loaded twice: import it, or give it as a plugin, not both.")


def test_a_mistake_in_a_stage_is_the_plugins(afresh: Cli, shortest: Path) -> None:
    shortest.write_text(shortest.read_text().replace("sequence.request.prompt", "sequence.request.promt"))
    options = ["--model", "random:small", "--clock", "virtual"]
    done = afresh("--plugin", shortest, "run", "--batching", "shortest-prompt", *options)
    assert done.code == 1
    assert re.search(
        r"ShortestPrompt\.rank \(shortest\.py, line \d+\) raised Attr.*promt.* at shortest\.py, line \d+, in rank",
        done.err,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_ctrl_c_while_a_plugin_loads(start: Cli, tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("print('loading', flush=True)\nimport time\ntime.sleep(60)\n")
    loading = start("--plugin", slow, "run")
    assert loading.stdout.readline() == "loading\n"
    loading.send_signal(signal.SIGINT)
    out, err = loading.communicate(timeout=60)
    assert (loading.returncode, out) == (130, "")
    assert err.startswith("error: Interrupted")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_plugin_that_fails_in_the_middle_costs_no_answer(afresh: Cli, shortest: Path, form: tuple[str, ...]) -> None:
    """It looks at r4 when r3 runs, which is interrupted with it."""
    rule = "        if len(self.running) + joining"
    mistake = "        assert sequence.id != 'r4', 'not this one'\n"
    shortest.write_text(shortest.read_text().replace(rule, mistake + rule))
    options = ("--model", "random:small", "--requests", "6", "--prompt-length", "3", "--output-length", "4")
    run = ("run", "--batching", "shortest-prompt", "--max-batch", "1", "--clock", "virtual", *options)
    ran = afresh("--plugin", shortest, *run, *form)
    assert ran.code == 1
    assert re.search(
        r"ShortestPrompt\.admission \(shortest\.py, line \d+\) raised AssertionError \(not this one\) at", ran.err
    )
    if form:
        reasons = {output["id"]: output["finish_reason"] for output in ran.json()["outputs"]}
        assert ran.json()["metrics"]["requests"]["interrupted"] == 3
    else:
        reasons = {line.split()[0]: line.split()[1].strip("[]") for line in ran.out.splitlines()}
    assert reasons == {f"r{i}": "length" if i < 3 else "interrupted" for i in range(6)}


AIMLESS = """
from minifuse.attention.stage import PerSequenceStage
from minifuse.stages import register

@register
class Aimless(PerSequenceStage):
    name = "aimless"

    def backend(self, *settings, **named):
        right = super().backend(*settings, **named)

        class Everywhere(type(right)):
            def attend(self, heads, rotary, cache, *rest):
                keys_and_values = heads[:, -2 * cache.num_kv_heads :]
                heads = heads * 0
                heads[:, -2 * cache.num_kv_heads :] = keys_and_values
                return super().attend(heads, rotary, cache, *rest)

        right.__class__ = Everywhere
        return right
"""


def test_wrong_answers_of_a_plugin_are_a_failure(afresh: Cli, tmp_path: Path, tiny: str) -> None:
    """A student's attention looks at all tokens alike, whatever is asked."""
    plugin = tmp_path / "mine.py"
    plugin.write_text(AIMLESS)
    wrong = afresh(
        "--plugin", plugin, "run", "--model", tiny, "--requests", "8", "--arrival", "none", "--attention", "aimless"
    )
    assert wrong.code == 1
    assert re.search(r"error: \d of 8 answers are wrong, and naive .*the attention 'aimless'.*check", wrong.err)


def test_mistakes_of_the_model_are_not_the_plugins(minifuse: Cli, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this seed the model sorts four numbers wrongly, under whatever technique."""
    monkeypatch.setattr("minifuse.cli.answers.is_own", lambda cls: False)
    ran = minifuse("run", "--model", tiny, "--seed", "2", "--requests", "40", "--arrival", "none")
    assert "r39 [wrong" in ran.out
    assert (ran.code, "error" in ran.err) == (0, False)


RUN = ("run", "--model", "random:small", "--clock", "virtual", "--requests", "3", "--batching", "shortest-prompt")


BESIDE = "def limit(sequence):\n    return sequence.request.limit\n"


@pytest.mark.parametrize(
    ("beside", "code", "words"),
    [
        (BESIDE, 1, "ShortestPrompt.admission (shortest.py, line 24) raised AttributeError"),
        ("limit = None\nraise ValueError('not today')", 2, "(ValueError: not today) at beside_it.py, line 2"),
        ("def limit(sequence) -> :", 2, "SyntaxError"),
    ],
)
def test_a_mistake_in_a_module_beside_the_plugin_is_the_plugins(
    afresh: Cli, shortest: Path, beside: str, code: int, words: str
) -> None:
    (shortest.parent / "beside_it.py").write_text(beside)
    text = shortest.read_text().replace("joining >= self", "joining >= limit(sequence) + self")
    shortest.write_text(text.replace("\n\n@register", "\nfrom beside_it import limit\n\n@register"))
    ran = afresh("--plugin", shortest, *RUN)
    assert ran.code == code
    assert words in ran.err
    assert "beside_it.py, line 2" in ran.err or "beside_it.py, line 1" in ran.err
    assert "minifuse has a defect" not in ran.err


def test_a_law_that_is_broken_names_the_plugins_stages(afresh: Cli, shortest: Path) -> None:
    """Nothing is wrong with any single answer of this policy: it never lets a request in."""
    shortest.write_text(shortest.read_text().replace(">= self.options.max_batch", ">= 0"))
    ran = afresh("--plugin", shortest, *RUN)
    assert ran.code == 1
    assert re.search(
        r"broke a law \(progress: nothing runs.*\): look at ShortestPrompt \(shortest\.py, line \d+\)\.", ran.err
    )
