"""Decides whether a stage or a law is at fault for an error."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from minifuse.core.errors import CheckerFailed, StageFailed
from minifuse.stages import stage
from minifuse.techniques import Technique
from minifuse.testing.observation import Observation

# An error in these packages means that a stage passed something wrong. Other packages serve stages and laws alike.
AT_WORK = {"batching", "memory", "attention", "contracts", "execute", "engine", "requests", "arrivals", "in_flight"}
COMPUTES = {"ghost", "models", "scripted"}  # modules of the laws that run the stages' plans
LIBRARIES = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), "<")


def failure(
    error: BaseException, row: Technique, seen: Observation | None, *, in_law: bool
) -> StageFailed | CheckerFailed:
    """Return `StageFailed` if a stage is at fault for an error, otherwise `CheckerFailed`.

    The deepest frame that belongs to a stage or to a law decides.

    Args:
        in_law: True if the error came from a call of a law, False if from an observed run. Code outside minifuse counts
            as a law's if True, as a stage's if False.
    """
    what = f"{type(error).__name__}: {error}"
    frames = list(_frames(error))
    stages = {stage(kind, name).__module__ for kind, name in row.stages.items()}
    told = (of_law for frame, _ in reversed(frames) if (of_law := _is_of_law(frame, stages, in_law)) is not None)
    if not next(told, in_law):
        return StageFailed("contract", what, seen)
    frame, line = frames[-1]
    where = f"{Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name}"
    return CheckerFailed(f"A law failed at {where} ({what}): it is at fault, not the stages.")


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames that an error passed through, each with its line, the deepest last."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _is_of_law(frame: FrameType, stages: set[str], in_law: bool) -> bool | None:
    """Return True for a law's frame, False for a stage's, None for shared code."""
    module = frame.f_globals.get("__name__", "")
    package, *rooms = module.split(".")
    if module in stages:
        return False
    if package != "minifuse":
        return None if frame.f_code.co_filename.startswith(LIBRARIES) else in_law
    if rooms[:1] == ["testing"] and rooms[-1] not in COMPUTES:
        return True
    return False if AT_WORK.intersection(rooms[:1]) else None
