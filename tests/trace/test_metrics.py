"""Metrics by hand on a tiny trace, and on traces cut off anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from events import request, step

from minifuse.cli.tables import metric_rows as rows
from minifuse.core.errors import UsageError
from minifuse.core.plan import Extent, Layout, Move, Plan, Work
from minifuse.core.report import KVUsage, StepReport
from minifuse.core.request import FinishReason, Request
from minifuse.core.shapes import Rectangle
from minifuse.io.parsing import parse_goodput
from minifuse.trace.log import Event, Trace
from minifuse.trace.metrics import compute_metrics

# Two requests share a padded batch; b arrives late, finishes first and leaves an idle row. c is refused.
#
#      0        1        3    4    5             8
#      |  wait  | a 0..3 | a  | a,b 0..2, idle 1  |   (b ends at 5, with one token)
TINY: list[Event] = [
    {"event": "run", "schema": "minifuse.trace/5", "kv_bytes_per_token": 10},
    request("a", 0.5, 3),
    request("b", 2.0, 2),
    {"event": "refused", "id": "c", "why": "..."},
    {"event": "wait", "reasons": [], "wall": {"start_s": 0.5, "end_s": 1.0}},
    step(1, 3, [["a", 0, 3]], {"a": [7]}, kv=[3, 6, 100, 0]),
    step(3, 4, [["a", 3, 4]], {"a": [7]}, kv=[4, 6, 100, 0]),
    step(4, 5, [["a", 4, 5], ["b", 0, 2]], {"a": [7], "b": [9]}, idle=1, finished={"b": "stop"}, kv=[7, 12, 100, 2],
         moves=[["shuffle", 0, 4, 4], ["swap_in", 90, 4, 1], ["shuffle", 9, 8, 1]]),
    step(5, 8, [["a", 2, 6]], {"a": [8]}, idle=2, finished={"a": "length"}, kv=[6, 6, 100, 0]),
    {"event": "end", "unfinished": [], "wall": {"end_s": 8.5}},
]  # fmt: skip
TINY[7]["wall"]["transfers"] = {"to_host": [0, 0.0], "to_device": [10, 0.5], "exposed_s": 0.125, "hidden_s": 0.375}


def alike(value: float) -> dict[str, float]:
    return dict.fromkeys(("mean", "p50", "p90", "p99", "max"), value)


def two(low: float, high: float) -> dict[str, Any]:
    """Mean, percentiles and maximum of two values, by the definition: p90 is 90% of the way up."""
    points = {"mean": 0.5, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: pytest.approx(low + share * (high - low)) for name, share in points.items()}


def test_golden() -> None:
    metrics = compute_metrics(TINY, parse_goodput("ttft:3000,tpot:1000"))
    assert metrics == {
        "requests": {"total": 3, "stop": 1, "length": 1, "refused": 1, "interrupted": 0, "aborted": 0, "nan": 0},
        "duration_s": 8.0,  # 0.5 .. 8.5
        "throughput": {"tokens_per_s": 5 / 8, "requests_per_s": 2 / 8},
        "ttft_s": two(2.5, 3.0),  # a: 0.5 -> 3, b: 2 -> 5
        "tpot_s": alike(5 / 3),  # a: (7.5 - 2.5) / 3; b has one token
        "e2e_s": two(3.0, 7.5),  # b: 2 -> 5, a: 0.5 -> 8
        "normalized_latency_s": two(7.5 / 4, 3.0),
        "queueing_s": two(0.5, 2.0),  # a: 0.5 -> 1, b: 2 -> 4
        "computing_s": two(1.0, 7.0),
        # a's gaps are 1, 1 and 3
        "itl_s": {"mean": 5 / 3, "p50": 1.0, "p90": pytest.approx(2.6), "p99": pytest.approx(2.96), "max": 3.0},
        "latency_bound_s": 3.0,
        "iterations": 4,
        "preprocessing_steps": 0,
        "mean_batch_size": 5 / 4,
        # a 3 + 1 + 1 + 4, b 2, idle 1 + 2. Of a's last four tokens, 2 .. 5, it had computed 2, 3 and 4 before.
        "tokens": {
            "output": 5, "computed": 14, "prefill": 9, "decode": 2, "recomputed": 3, "reused": 0, "idle": 3,
            "idle_share": 3 / 14,
        },
        "history": {"tokens": 0, "on_device": 0, "on_host": 0, "device_hit_rate": None, "host_hit_rate": None},
        "nodes": 0,
        "discarded": 0,
        "gathers": {"count": 0, "rows": 0, "seconds": 0.0},
        "evictions": 0,
        "most_overtaken": 0,
        "kv": {
            "peak_host_tokens": 2, "peak_host_bytes": 20, "mean_host_tokens": pytest.approx(2 / 7),
            "mean_host_bytes": pytest.approx(20 / 7),
            **{f"{of}_{kind}_{unit}": 0 for of in ("peak", "mean") for kind in ("kept", "kept_host")
               for unit in ("tokens", "bytes")},
            "capacity_tokens": 100, "peak_used_tokens": 7, "peak_reserved_tokens": 12,
            "mean_used_tokens": pytest.approx((2 * 3 + 4 + 7 + 3 * 6) / 7),  # of the 7 seconds that steps took
            "mean_reserved_tokens": pytest.approx((2 * 6 + 6 + 12 + 3 * 6) / 7),
            "capacity_bytes": 1000, "peak_used_bytes": 70, "peak_reserved_bytes": 120,
            "mean_used_bytes": pytest.approx(50), "mean_reserved_bytes": pytest.approx(480 / 7),
        },
        "moves": {
            "shuffle": {"count": 2, "tokens": 5, "bytes": 50}, "swap_in": {"count": 1, "tokens": 1, "bytes": 10},
            "copy": {"count": 0, "tokens": 0, "bytes": 0},
            "swap_out": {"count": 0, "tokens": 0, "bytes": 0}, "upload": {"count": 0, "tokens": 0, "bytes": 0},
            "offload": {"count": 0, "tokens": 0, "bytes": 0}, "embed": {"count": 0, "tokens": 0, "bytes": 0},
        },
        "moving_s": 0.25,
        "transfers": {
            "to_host": {"bytes": 0, "seconds": 0.0}, "to_device": {"bytes": 10, "seconds": 0.5},
            "hidden_s": 0.375, "exposed_s": 0.125,
        },
        "on_host": {"seconds": 0.0, "awaited_s": 0.0},
        "messages": {"count": 0, "bytes": 0},
        "other_cores": None,
        # Only b: a's tokens are too slow, and b has no second token.
        "goodput": {"bounds_s": {"ttft": 3.0, "tpot": 1.0}, "requests": 1, "requests_per_s": 1 / 8},
    }  # fmt: skip
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


def test_rows() -> None:
    metrics = compute_metrics(TINY, parse_goodput("ttft:3000,tpot:1000"))
    assert rows(metrics) == [
        ("Requests", "3: 1 stop, 1 length, 1 refused"),
        ("Duration", "8 s"),
        ("Throughput", "0.625 tokens/s, 0.25 requests/s"),
        ("Time to first token (p50, p99)", "2.75 s, 3 s"),
        ("Time per output token (p50, p99)", "1.67 s, 1.67 s"),
        ("Inter-token latency (p50, p99)", "1 s, 2.96 s"),
        ("Latency bound", "3 s"),
        ("End-to-end time (p50, p99)", "5.25 s, 7.46 s"),
        ("Normalized latency (mean, p90)", "2.44 s, 2.89 s"),
        ("Queueing (mean, p99)", "1.25 s, 1.98 s"),
        ("Computing (mean, p99)", "4 s, 6.94 s"),
        ("Iterations", "4 (mean batch size 1.25)"),
        ("Tokens computed", "14 (3 recomputed)"),
        ("Idle tokens", "3 (21.4%)"),
        ("KV in use (peak, mean)", "70 B, 50 B"),
        ("KV reserved (peak)", "120 B of 1,000 B"),
        ("KV moves", "2 shuffle (50 B), 1 swap_in (10 B) in 250 ms"),
        ("Transfers", "0 B to the host, 10 B to the device (375 ms hidden, 125 ms exposed)"),
        ("Goodput (ttft <= 3 s, tpot <= 1 s)", "0.125 requests/s"),
    ]


def test_messages_between_ranks() -> None:
    sent = step(0, 1, [["a", 0, 3]], {"a": [1]}, finished={"a": "length"})
    sent["wall"] |= {"messages": 9, "message_bytes": 2048}
    metrics = compute_metrics([{"event": "run"}, request("a", 0, 3), sent])
    assert metrics["messages"] == {"count": 9, "bytes": 2048}
    assert dict(rows(metrics))["Messages of each rank"] == "9 (2 KiB)"


def test_pre_processing_is_no_iteration() -> None:
    """Its tokens count, and the request's computing time begins with it."""
    events = [
        {"event": "run"},
        request("a", 0, 3),
        step(1, 2, [["a", 0, 2]], {}, phase="preprocessing"),
        step(3, 4, [["a", 2, 3]], {"a": [1]}, finished={"a": "length"}),
    ]
    metrics = compute_metrics(events)
    assert (metrics["iterations"], metrics["preprocessing_steps"], metrics["mean_batch_size"]) == (1, 1, 1.0)
    assert metrics["tokens"]["computed"] == 3
    assert metrics["queueing_s"] == alike(1.0)
    assert dict(rows(metrics))["Iterations"] == "1 (mean batch size 1), and 1 of pre-processing"


def test_evictions_and_the_host() -> None:
    events = [
        *TINY[:3],
        step(1, 2, [["a", 0, 3]], {"a": [7]}, evicted=["b"], kv=[3, 6, 100, 5]),
        step(2, 4, [["a", 3, 4]], {"a": [7]}, evicted=["a", "b"], kv=[3, 6, 100, 8]),
    ]
    metrics = compute_metrics(events)
    assert metrics["evictions"] == 3
    assert (metrics["kv"]["peak_host_tokens"], metrics["kv"]["mean_host_bytes"]) == (8, pytest.approx(70))
    assert ("Evictions", "3 (at most 80 B on the host)") in rows(metrics)


def test_rows_of_small_and_large_and_missing_figures() -> None:
    work = [["a", 0, 200_000]]
    events = [
        {"event": "run"},
        request("a", 0, 200_000),
        step(0, 2e-5, work, {"a": [1]}, kv=[200_000, 200_000, 10**7, 0]),
        step(2e-5, 0.0125, [["a", 200_000, 200_001]], {"a": [1]}, finished={"a": "stop"}),
    ]
    table = dict(rows(compute_metrics(events)))
    assert table["Time to first token (p50, p99)"] == "20 us, 20 us"
    assert table["Latency bound"] == "12.5 ms"
    assert table["Tokens computed"] == "200,001 (0 recomputed)"
    assert table["KV reserved (peak)"] == "200,000 tokens of 10,000,000 tokens"
    assert table["KV moves"] == "none"
    assert not any(label.startswith("Goodput") for label in table)
    events[0] = {"event": "run", "kv_bytes_per_token": 2048}
    assert dict(rows(compute_metrics(events)))["KV reserved (peak)"] == "391 MiB of 19.1 GiB"


def check_empty(metrics: dict[str, Any]) -> None:
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "normalized_latency_s", "queueing_s", "computing_s"):
        assert metrics[name] is None
    assert metrics["latency_bound_s"] is None
    json.dumps(metrics, allow_nan=False)
    assert all("nan" not in value for _, value in rows(metrics))


def test_a_trace_without_requests() -> None:
    for events in ([], TINY[:1], [TINY[0], TINY[3]]):
        metrics = compute_metrics(events, {"ttft": 0.1})
        check_empty(metrics)
        assert metrics["requests"]["total"] == len(events[1:])
        assert metrics["throughput"] == {"tokens_per_s": None, "requests_per_s": None}
        assert metrics["kv"]["peak_used_tokens"] is None
        assert metrics["goodput"] == {"bounds_s": {"ttft": 0.1}, "requests": 0, "requests_per_s": None}


def test_interrupted() -> None:
    events = [*TINY[:6], {"event": "end", "unfinished": ["a", "b"], "wall": {"end_s": 3.5}}]
    metrics = compute_metrics(events)
    check_empty(metrics)
    assert metrics["requests"] == {
        "total": 3,
        "stop": 0,
        "length": 0,
        "refused": 1,
        "interrupted": 2,
        "aborted": 0,
        "nan": 0,
    }
    assert metrics["duration_s"] == 3.0
    assert metrics["throughput"] == {"tokens_per_s": 1 / 3, "requests_per_s": 0.0}
    assert metrics["iterations"] == 1


@pytest.mark.parametrize("cut", range(len(TINY) + 1))
def test_a_trace_cut_off_anywhere(cut: int) -> None:
    metrics = compute_metrics(TINY[:cut])
    json.dumps(metrics, allow_nan=False)
    assert len(rows(metrics)) == 17 + (cut > 7)  # with transfers from the third step on
    assert metrics["requests"]["total"] == sum(event["event"] in ("request", "refused") for event in TINY[:cut])
    if cut == len(TINY) - 1:  # only the end is missing: the run ends with its last step
        assert metrics["duration_s"] == 7.5
        assert metrics["e2e_s"] == compute_metrics(TINY)["e2e_s"]


def test_a_run_of_no_duration() -> None:
    events = [request("a", 0, 1), step(0, 0, [["a", 0, 1]], {"a": [1]}, finished={"a": "stop"}, kv=[4, 4, 9, 0])]
    metrics = compute_metrics(events)
    assert (metrics["duration_s"], metrics["throughput"]["tokens_per_s"]) == (0.0, None)
    assert (metrics["kv"]["mean_used_tokens"], metrics["e2e_s"]) == (4.0, alike(0.0))


def test_a_refused_duplicate_leaves_the_served_request_as_it_is() -> None:
    metrics = compute_metrics([*TINY[:4], {"event": "refused", "id": "a", "why": "..."}, *TINY[4:]])
    assert metrics["requests"] == {
        "total": 4,
        "stop": 1,
        "length": 1,
        "refused": 2,
        "interrupted": 0,
        "aborted": 0,
        "nan": 0,
    }


def test_recomputed_tokens_are_counted_by_span_and_cell() -> None:
    def recomputed(*work: list[Any]) -> int:
        events = [request("a", 0, 9), request("b", 0, 9), step(0, 1, list(work), {})]
        return int(compute_metrics(events)["tokens"]["recomputed"])

    assert recomputed(["a", 0, 5], ["a", 5, 6], ["a", 6, 9]) == 0
    assert recomputed(["a", 4, 6], ["a", 0, 2]) == 0  # a gap between them
    assert recomputed(["a", 4, 6], ["a", 0, 2], ["a", 0, 9]) == 4
    assert recomputed(["a", 0, 5], ["b", 0, 5]) == 0
    assert recomputed(["a", 0, 5, "encoder"], ["a", 0, 5, "decoder"]) == 0
    assert recomputed(["a", 0, 5, "encoder"], ["a", 4, 6, "encoder"]) == 1


def test_nodes_of_cell_graphs() -> None:
    """A merged plan of two waves, then a cell whose token was discarded, beside an answer of two tokens at once."""
    merged = step(0, 2, [["a", 0, 1, "leaf"], ["a", 1, 2, "leaf"], ["a", 2, 3, "root"]], {}, waves=[[0, 2], [2, 3]])
    late = step(2, 3, [["b", 0, 1, "decoder"]], {"a": [7, 8]}, discarded=1, finished={"a": "stop"})
    late["wall"]["gathers"] = [2, 128, 0.5]
    metrics = compute_metrics([request("a", 0, 0), request("b", 0, 0), merged, late])
    assert (metrics["nodes"], metrics["discarded"]) == (4, 1)
    assert (metrics["iterations"], metrics["mean_batch_size"]) == (3, 4 / 3)
    assert metrics["gathers"] == {"count": 2, "rows": 128, "seconds": 0.5}
    assert metrics["tokens"]["output"] == 2
    assert (metrics["tokens"]["prefill"], metrics["tokens"]["decode"]) == (0, 0)
    table = dict(rows(metrics))
    assert table["Nodes computed"] == "4 (0 recomputed)"
    assert table["Gathers"] == "2 (128 rows) in 500 ms"
    assert table["Discarded"].startswith("1 nodes")
    assert "KV moves" not in table


def test_a_request_refused_when_unfolded_counts_only_as_refused() -> None:
    late = {"event": "refused", "id": "a", "why": "a cycle", "received": True}
    metrics = compute_metrics([request("a", 0, 3), request("b", 0, 3), late])
    assert {name: count for name, count in metrics["requests"].items() if count} == {
        "total": 2,
        "refused": 1,
        "interrupted": 1,
    }


def test_prefill_and_decode() -> None:
    def split(*work: list[Any]) -> tuple[int, int]:
        tokens = compute_metrics([request("a", 0, 4), step(0, 1, list(work), {})])["tokens"]
        return tokens["prefill"], tokens["decode"]

    assert split(["a", 0, 3], ["a", 3, 4]) == (4, 0)  # the last chunk of a prompt, one token long
    assert split(["a", 4, 5], ["a", 5, 6]) == (0, 2)
    assert split(["a", 0, 6]) == (6, 0)  # an answer computed anew with its prompt


def test_a_plan_of_moves_alone_is_no_iteration() -> None:
    moving = step(3, 4, [], {}, moves=[["swap_out", 0, 50, 3, "device", "host", "behind", 0]], kv=[3, 6, 100, 9])
    moving["wall"]["transfers"] = {"to_host": [30, 1.0], "to_device": [0, 0.0], "exposed_s": 0.0, "hidden_s": 1.0}
    metrics = compute_metrics([*TINY[:6], moving])
    assert metrics["transfers"]["to_host"] == {"bytes": 30, "seconds": 1.0}
    assert (metrics["transfers"]["hidden_s"], metrics["transfers"]["exposed_s"]) == (1.0, 0.0)
    assert (metrics["kv"]["peak_host_tokens"], metrics["kv"]["mean_host_tokens"]) == (9, 0)  # beside the step before
    assert (metrics["iterations"], metrics["mean_batch_size"]) == (1, 1.0)
    assert metrics["moves"]["swap_out"] == {"count": 1, "tokens": 3, "bytes": 30}


@pytest.mark.parametrize("event", [{}, {"event": "step"}, step(0, 1, [["z", 0, 1]], {}), [], {"event": "request"}])
def test_a_damaged_trace_names_its_line(event: Any) -> None:
    with pytest.raises(UsageError) as caught:
        compute_metrics([TINY[0], event])
    assert str(caught.value).startswith("Line 2 of the trace cannot be understood (")
    assert str(caught.value).endswith("): write the trace again with --trace.")


def test_a_trace_as_the_engine_writes_it() -> None:
    trace = Trace(technique="t", kv_bytes_per_token=4)
    trace.requested(Request("a", (1, 2)))
    trace.refused("b", "...")
    plan = Plan(
        0,
        0,
        (Work("a", 0, 2),),
        (Extent(0, 9),),
        layout=Layout(shape=Rectangle(0, 2, 9, 0, 2)),
        moves=(Move("embed", 5, 0, 2),),
    )
    trace.completed(StepReport(plan, 1.0, 2.0, {"a": (3,)}, {"a": FinishReason.STOP}, KVUsage(2, 9, 9)))
    trace.ended((), 2.0)
    metrics = compute_metrics(trace.events())
    assert (metrics["tokens"]["computed"], metrics["tokens"]["idle"], metrics["ttft_s"]) == (4, 2, alike(2.0))
    assert (metrics["moves"]["embed"]["bytes"], metrics["kv"]["peak_reserved_bytes"]) == (8, 36)
    assert compute_metrics(json.loads(json.dumps(list(trace.events())))) == metrics


def _served(*spans: tuple[str, float, float]) -> list[Event]:
    """Steps of one token of one request each, which each admits: (request, start, end)."""
    return [step(start, end, [[name, 0, 1]], {name: [1]}, admitted=[name]) for name, start, end in spans]


def test_most_overtaken() -> None:
    """d and c begin before b, which arrived before both; a waits for ever, and d has overtaken it, too."""
    asked = [request("a", 0, 1), request("b", 1, 1), request("c", 2, 1), request("d", 3, 1)]
    served = _served(("d", 4, 5), ("c", 5, 6), ("b", 6, 7))
    assert compute_metrics([{"event": "run"}, *asked, *served])["most_overtaken"] == 3
    assert compute_metrics([{"event": "run"}, *asked[1:], *served])["most_overtaken"] == 2
    in_turn = _served(("b", 4, 5), ("c", 5, 6), ("d", 5, 8))
    assert compute_metrics([{"event": "run"}, *asked[1:], *in_turn])["most_overtaken"] == 0


def test_a_turn_that_never_arrived_is_overtaken_by_none() -> None:
    asked = [request("a", 0, 1), request("b", 0, 1) | {"after": "a", "history_tokens": 0}, request("c", 1, 1)]
    assert compute_metrics([{"event": "run"}, *asked, *_served(("a", 0, 1), ("c", 1, 2))])["most_overtaken"] == 0


def test_what_begins_at_once_or_arrives_at_once_overtakes_nothing() -> None:
    asked = [request("a", 0, 1), request("b", 0, 1), request("c", 1, 1)]
    served = _served(("b", 2, 3), ("a", 4, 6), ("c", 4, 5))
    assert compute_metrics([{"event": "run"}, *asked, *served])["most_overtaken"] == 0


def test_given_up_it_is_overtaken_no_more() -> None:
    asked = [request("a", 0, 1), request("b", 1, 1), request("c", 2, 1)]
    given_up = {"event": "aborted", "id": "a", "wall": {"end_s": 4.0}}
    served = _served(("b", 3, 4), ("c", 5, 6))
    assert compute_metrics([{"event": "run"}, *asked, served[0], given_up, served[1]])["most_overtaken"] == 1


def test_evicted_it_waits_again() -> None:
    """a begins first. Evicted at 2, it is admitted again at 4: what begins between, or in the step that evicts it,
    overtakes it."""
    asked = [request("a", 0, 1), request("b", 0.5, 1), request("c", 1, 1)]
    first, evicting, second, again = _served(("a", 0, 1), ("b", 2, 3), ("c", 3, 4), ("a", 4, 5))
    evicting |= {"evicted": ["a"]}
    events = [{"event": "run"}, *asked, first, evicting, second, again]
    assert compute_metrics(events)["most_overtaken"] == 2
    b_before = _served(("b", 1, 2))[0]
    assert compute_metrics([*events[:5], b_before, *events[5:]])["most_overtaken"] == 1
    assert compute_metrics(events[:-1])["most_overtaken"] == 2


def test_a_machine_that_was_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minifuse.cli.tables.usable_cores", lambda: {0, 1})
    end = {"event": "end", "unfinished": [], "wall": {"end_s": 9.0, "other_cores": 1.25}}
    metrics = compute_metrics([*TINY, end])
    assert metrics["other_cores"] == 1.25
    assert dict(rows(metrics))["Busy machine"].startswith("other processes used 1.25 of 2 cores")
    end["wall"] = {"end_s": 9.0, "other_cores": 0.1}
    assert "Busy machine" not in dict(rows(compute_metrics([*TINY, end])))


@pytest.mark.parametrize("bounds", [{"ttft": float("nan")}, {"zzz": 1.0}, {"ttft": -1.0}, {"ttft": "1"}])
def test_bounds_that_make_no_sense(bounds: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="goodput bound"):
        compute_metrics(TINY, bounds)
