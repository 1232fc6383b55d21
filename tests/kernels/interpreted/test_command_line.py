"""The kernels through the command line."""

from __future__ import annotations

import pytest

from minifuse.cli import main

TRITON = ("--set", "attention.backend=triton")


@pytest.mark.parametrize("technique", ["vllm", "static", "fusion"])
def test_an_answer(capfd: pytest.CaptureFixture[str], technique: str) -> None:
    code = main(["run", "sort 4 2", "--technique", technique, *TRITON, "--max-new-tokens", "4"])
    out, err = capfd.readouterr()
    assert (code, out) == (0, "r0 sort 4 2 -> 2 4\n"), err


def test_the_interpreter_is_not_asked_for_what_it_gets_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "sort 4 2", "--technique", "vllm", *TRITON, "--dtype", "bfloat16"]) == 2
    err = capfd.readouterr().err
    assert err.startswith("error: ")
    assert "gets bfloat16 wrong" in err
