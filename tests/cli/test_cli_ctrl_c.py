"""Ctrl-C at moments that a plugin chooses: it sends the signal itself. A moment chosen by a clock would be another."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.ctrl_c import importing
from minifuse.serve.interrupt import uninterrupted

Cli = Callable[..., Any]

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")

CTRL_C = "import os, signal\ndef ctrl_c(): os.kill(os.getpid(), signal.SIGINT)\n"
SWALLOWED = CTRL_C + "try:\n    ctrl_c()\nexcept BaseException:\n    pass\n"
STAGE = """
from minifuse import register
from minifuse.batching import Iteration

class Dies:
    def __del__(self):
        ctrl_c()

@register
class Stage(Iteration):
    "Interrupted where an exception is dropped, or twice where a run must not be cut."
    name = "interrupted"

"""
IN_A_FINALIZER = STAGE + "    def __init__(self, *given):\n        super().__init__(*given)\n        Dies()\n"
AGAIN = STAGE + "    def propose(self, *given):\n        ctrl_c()\n        ctrl_c()\n"
AGAIN += "        return super().propose(*given)\n"
TWICE = "from minifuse import ctrl_c as of\nof.ONE_KEYSTROKE_S = 0\n" + AGAIN  # as if a second lay between them
AT_EXIT = CTRL_C + "import atexit\natexit.register(lambda: (ctrl_c(), ctrl_c(), ctrl_c()))\n"


def plugin(folder: Path, code: str) -> Path:
    path = folder / "mine.py"
    path.write_text(code)
    return path


def test_while_a_module_is_imported_that_swallows_it(process: Cli, tmp_path: Path) -> None:
    done = process("--plugin", plugin(tmp_path, SWALLOWED), "list")
    assert (done.code, done.out) == (130, "")
    assert done.err == "error: Interrupted before there was anything to show: run it again.\n"


@pytest.mark.parametrize(("code", "words"), [(TWICE, "twice: ended at once"), (IN_A_FINALIZER, "run it again")])
def test_it_ends_the_process_where_it_must_not_be_raised(process: Cli, tmp_path: Path, code: str, words: str) -> None:
    run = ("run", "--batching", "interrupted", "--model", "random:small", "--clock", "virtual")
    done = process("--plugin", plugin(tmp_path, CTRL_C + code), *run)
    assert (done.code, done.out) == (130, "")
    assert done.err.splitlines()[-1].startswith("error: Interrupted ")
    assert done.err.endswith(f"{words}.\n") or f"{words}, " in done.err


def test_a_second_signal_of_another_kind_ends_the_process_at_once(process: Cli, tmp_path: Path) -> None:
    code = (CTRL_C + TWICE).replace("SIGINT", "SIGTERM")
    run = ("run", "--batching", "interrupted", "--model", "random:small", "--clock", "virtual")
    done = process("--plugin", plugin(tmp_path, code), *run)
    assert (done.code, done.out) == (143, "")
    assert done.err.endswith("twice: ended at once, without what was still to be written.\n")


def test_a_key_that_was_hit_twice_loses_nothing(process: Cli, tmp_path: Path) -> None:
    run = ("run", "--batching", "interrupted", "--model", "random:small", "--clock", "virtual", "--json")
    done = process("--plugin", plugin(tmp_path, CTRL_C + AGAIN), *run)
    assert done.code == 130
    assert {output["finish_reason"] for output in done.json()["outputs"]} == {"interrupted"}


def test_ctrl_c_is_taken_over_before_other_modules_are_imported() -> None:
    """They take time, in which a traceback would be all that Ctrl-C leaves."""
    code = (
        f"import os, sys, _signal; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['minifuse']\n"
        "known = {*sys.modules}\n"
        "def taken(*given): print(*{*sys.modules} - known, flush=True); os._exit(0)\n"
        "_signal.signal = taken; import minifuse"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} <= {"__future__", "atexit", "time", "minifuse", "minifuse.ctrl_c"}


def test_after_the_work_it_changes_nothing(process: Cli, tmp_path: Path) -> None:
    done = process("--plugin", plugin(tmp_path, AT_EXIT), "explain", "orca")
    assert (done.code, done.err) == (0, "")


def test_a_program_that_imports_minifuse_keeps_its_handler() -> None:
    code = "import signal, minifuse.cli; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_what_is_held_back_is_handed_to_the_handler_before() -> None:
    came = []

    def handler(number: int, frame: object) -> None:
        came.append(frame)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler)
    try:
        with uninterrupted(forget=True) as hold:
            signal.raise_signal(signal.SIGINT)
            assert hold.pending
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert not hold.pending
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [None] * 2  # not to be interrupted where it was


def test_in_a_released_block_it_is_held_back_while_a_module_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "interrupted_as_it_is_imported.py"
    path.write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nended = True\n")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.append(str(tmp_path))
    try:
        with uninterrupted(forget=True) as hold:
            with hold.released():
                import interrupted_as_it_is_imported as module  # type: ignore[import-not-found]
            assert module.ended
            assert hold.pending
            with pytest.raises(KeyboardInterrupt), hold.released():
                pass
    finally:
        sys.path.remove(str(tmp_path))
        signal.signal(signal.SIGINT, before)
    assert not importing(sys._getframe())
