"""Runs graphs on the real engine, with workers in threads."""

from __future__ import annotations

import threading

from minifuse.core.errors import LawBroken
from minifuse.core.request import FinishReason
from minifuse.model.cells.config import CellConfig
from minifuse.model.cells.source import CellSource
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import Served, serve
from minifuse.serve.settings import Settings
from minifuse.testing.graphs.case import GraphCase
from minifuse.testing.graphs.models import cell_model
from minifuse.testing.observation import Observation

PATIENCE_S = 60.0  # a real run takes a few milliseconds: after this time, it counts as hung


def in_real_time(case: GraphCase, seen: Observation) -> None:
    """Check the results of real runs with one, two and three workers.

    A single worker runs in the caller's thread.
    """
    # Options that name types of cell are unset: the source for which the run is resolved has other types.
    scenario = case.scenario.with_options(batching__max_batches=None, batching__priorities=None)
    for workers in (1, 2, 3):
        _run(GraphCase(case.row, scenario.with_options(batching__workers=workers)))


def _run(case: GraphCase) -> None:
    options = {**case.row.options, **case.settings}
    settings = Settings(dtype="float64", kv_memory=case.capacity * case.reader.slot_bytes, stage_options=options)
    source = CellSource(case.reader.name, CellConfig("lstm", hidden_size=3, vocab_size=11))
    served: list[Served | Exception] = []

    def run() -> None:
        try:
            # The engine takes the cells apart into operators, if those are the row's granularity.
            engine = build_engine(resolve_run(case.row, source, settings), cell_model())
            served.append(serve(engine, case.requests))
        except Exception as error:
            served.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if not served:
        raise LawBroken("progress", f"the run had not ended after {PATIENCE_S} s")
    if isinstance(served[0], Exception):
        raise served[0]
    for answer in served[0].answers:
        if answer.finish_reason is not FinishReason.REFUSED:
            expected = case.expected(answer.request)
            expected.check(answer.request, answer.token_ids, answer.finish_reason, answer.results)
