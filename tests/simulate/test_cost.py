"""The roofline, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import refusal

from minifuse.attention.backend import lay_out
from minifuse.attention.slots import SlotsAttention
from minifuse.attention.storage import KVStorage
from minifuse.attention.triton import TritonAttention
from minifuse.core.errors import UsageError
from minifuse.core.plan import Extent, Layout, Move, Plan, Span, Work
from minifuse.core.request import Request, Sequence
from minifuse.core.shapes import Rectangle, Region
from minifuse.memory.tiered.profile import Profile
from minifuse.model.text.config import ModelConfig, Rotary
from minifuse.model.text.presets import preset
from minifuse.simulate.cost import HARDWARE, Hardware, Roofline, hardware
from minifuse.simulate.slower import Slower

# A layer: attention 8 x (8 + 2 x 4) + 8 x 8 = 192, feed-forward 3 x 8 x 10 = 240. Two of them, and a head of 100 x 8.
TOY = ModelConfig("llama", 100, 8, 2, 2, 1, 4, 10, 64, rotary=Rotary(4))
MEMORY_BOUND = Hardware(bandwidth=1.0, flops=1e30, overhead_s=0.0)
COMPUTE_BOUND = Hardware(bandwidth=1e30, flops=1.0, overhead_s=0.0)
PLAN = Plan(0, 0, (Work("a", 0, 3), Work("b", 9, 10)), (Extent(0, 9), Extent(9, 12)))


def test_the_toys_weights_by_hand() -> None:
    assert TOY.head_weights == 800
    assert TOY.num_matrix_weights == 864 + 800
    assert TOY.kv_elements_per_token == 2 * 2 * 4


@pytest.mark.parametrize(("dtype", "size"), [("float64", 8), ("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_bytes_by_hand(dtype: str, size: int) -> None:
    """Every weight once, and the KV of 3 + 10 tokens of context."""
    assert Roofline(TOY, dtype, MEMORY_BOUND)(PLAN) == size * (1664 + 13 * 16)


def test_flops_by_hand() -> None:
    """Four tokens through the layers, two through the head; queries see 1 + 2 + 3 and 10 keys, in 2 layers of 8."""
    layers, head = 2 * 864 * 4, 2 * 800 * 2
    attention = 4 * (2 * 8) * (1 + 2 + 3 + 10)
    assert Roofline(TOY, "float32", COMPUTE_BOUND)(PLAN) == layers + head + attention


def test_two_passes_read_weights_twice_and_share_an_overhead_and_the_moves() -> None:
    """The host is the device; a copy of 5 tokens within it is read and written."""
    spans = (Span(0, 1), Span(1, 2))
    plan = replace(PLAN, moves=(Move("copy", 0, 20, 5),), layout=Layout(spans, passes=spans))
    cost = Roofline(TOY, "float32", replace(MEMORY_BOUND, overhead_s=7.0))
    assert cost(plan) == pytest.approx(7.0 + 4 * (2 * 1664 + (13 + 2 * 5) * 16))
    times = cost.times(plan)
    assert sum(times.token_wise) + sum(times.waves) == pytest.approx(cost(plan))


def test_a_rectangle_is_computed_read_and_attended_whole() -> None:
    """The prompt of 3 tokens takes columns 7 to 9: columns 0 to 6 of its row are cleared."""
    rectangle = Rectangle(0, 2, 12, 0, 10)
    places = (rectangle.place(0, Span(7, 12)), rectangle.place(1, Span(0, 12)))
    padded = Plan(0, 0, PLAN.work, places, layout=Layout(shape=rectangle))
    cost = Roofline(TOY, "float32", COMPUTE_BOUND)
    assert padded.num_computed == 20
    assert cost(padded) - cost(PLAN) == 2 * 864 * (20 - 4) + 4 * 16 * (20 * 10 - 16)
    read_s = Roofline(TOY, "float32", MEMORY_BOUND)(padded)
    assert read_s == 4 * (1664 + (2 * 10 + 7) * 16)
    wraps = Rectangle(0, 2, 12, 20, 30, begin=20)  # its two ranges are read, not rows of 12
    places = (wraps.place(0, Span(27, 32)), wraps.place(1, Span(20, 32)))
    moved = Plan(0, 0, PLAN.work, places, layout=Layout(shape=wraps))
    assert cost(moved) == cost(padded)
    assert Roofline(TOY, "float32", MEMORY_BOUND)(moved) == read_s


def test_kv_that_is_concatenated_is_moved_three_times_and_what_is_moved_once_is_not() -> None:
    once, thrice = (Roofline(TOY, "float32", replace(MEMORY_BOUND, kv_traffic=times)) for times in (1.0, 3.0))
    moved = replace(PLAN, moves=(Move("embed", 0, 30, 5),))
    assert thrice(PLAN) - once(PLAN) == 4 * 2 * 13 * 16
    assert thrice(moved) - thrice(PLAN) == once(moved) - once(PLAN) == 4 * 2 * 5 * 16
    assert thrice.reading_s(7) == 3 * once.reading_s(7)


REGION = replace(PLAN, layout=Layout(shape=Region(2, 5, 12)), work=(Work("a", 2, 3), Work("b", 9, 10)))


@pytest.mark.parametrize(("masked", "context"), [(False, 3 + 10 + 3), (True, 5 * 10)])
def test_a_region_is_read_as_its_backend_reads_it(masked: bool, context: int) -> None:
    """Five buffers, two of them with 3 and 10 tokens: the kernels read those, and one token for each idle row."""
    cost = Roofline(TOY, "float32", replace(MEMORY_BOUND, masked=masked))
    assert cost(REGION) == 4 * (1664 + context * 16)
    cost = Roofline(TOY, "float32", replace(COMPUTE_BOUND, masked=masked))
    assert cost(REGION) == 2 * 864 * 5 + 2 * 800 * 2 + 4 * 16 * context


def test_the_backends_read_what_a_region_costs() -> None:
    places = (Extent(72, 12), Extent(24, 12))  # the last buffer of five, and the first
    plan = replace(REGION, places=places)
    sequences = {name: Sequence(Request(name, (1,) * 10)) for name in "ab"}
    rows, cache = lay_out(plan, sequences), KVStorage(TOY, 84, torch.float32, torch.device("cpu"))
    keys = SlotsAttention().reads(plan, rows, Span(0, 2), cache).keys[0]  # [rows, KV heads, width, head_dim]
    assert keys.shape[0] * keys.shape[2] == 5 * 10
    lengths = TritonAttention().reads(plan, rows, Span(0, 2), cache).keywords["lengths"]  # type: ignore[attr-defined]
    assert lengths.tolist() == [10, 1, 1, 1, 3]


WAVES = replace(PLAN, layout=Layout((Span(0, 1), Span(1, 2))))


def test_waves_attend_for_what_they_add_to_the_layers() -> None:
    """By the bytes that they read: 3 and 10 tokens of context; by their arithmetic: 1 + 2 + 3 and 10 keys."""
    assert Roofline(TOY, "float32", MEMORY_BOUND).attention_s(WAVES) == pytest.approx([4 * 3 * 16, 4 * 10 * 16])
    found = Roofline(TOY, "float32", COMPUTE_BOUND).attention_s(WAVES)
    assert found == pytest.approx([4 * 16 * 6, 4 * 16 * 10], rel=1e-9)


def test_waves_attend_to_the_end_of_their_last_lane() -> None:
    """Two processors for one KV head: two lanes at once, each at half of the rate."""
    machine = replace(COMPUTE_BOUND, processors=2)
    cost = Roofline(TOY, "float32", machine)
    assert cost.num_lanes == 2
    layers = 2 * 864 * 4 + 2 * 800 * 2
    assert cost.attention_s(WAVES) == [2 * 4 * 16 * 6, 2 * 4 * 16 * 10]
    assert cost.attention_s(PLAN) == [2 * 4 * 16 * 10]
    assert cost(PLAN) == layers + 2 * 4 * 16 * 10
    assert cost(replace(PLAN, layout=Layout(lanes=((0, 1),)))) == layers + 2 * 4 * 16 * 16


SLOWER = Slower(products=((1, 1.0), (4, 2.0)), decode=3.0, prefill=((2, 5.0),))


@pytest.mark.parametrize(
    ("machine", "products", "prefill", "decode"),
    [
        (MEMORY_BOUND, 4 * 1664, 4 * 3 * 16, 4 * 10 * 16),
        (COMPUTE_BOUND, 2 * 864 * 4 + 2 * 800 * 2, 4 * 16 * 6, 4 * 16 * 10),
    ],
)
def test_operators_one_after_the_other(machine: Hardware, products: int, prefill: int, decode: int) -> None:
    """Products of four tokens, attention of a's prompt and of b's single token: each slower than its roofline."""
    cost = Roofline(TOY, "float32", replace(machine, slower=SLOWER))
    assert cost(PLAN) == pytest.approx(2 * products + 5 * prefill + 3 * decode)
    assert cost.attention_s(WAVES) == pytest.approx([5 * prefill, 3 * decode])
    places = (Extent(7, 3), Extent(12, 10))  # a's prompt ends with b's token: columns 0 to 6 of its row are cleared
    padded = Plan(0, 0, PLAN.work, places, layout=Layout(shape=Rectangle(0, 2, 12, 0, 10)))
    attention = cost(padded) - 2 * (Roofline(TOY, "float32", machine)._bound(padded.num_computed, 2, 0, 0, 7))
    assert attention == pytest.approx(5 * (4 * 20 * 16 if machine is MEMORY_BOUND else 4 * 16 * 20 * 10))


def test_slower_operators_cost_more_to_recompute() -> None:
    profile = Roofline(TOY, "float32", replace(COMPUTE_BOUND, slower=SLOWER)).recomputation(2, (2, 4))
    assert profile == Profile(1.5 * 2 * 864 * 2, (2, 4), (5 * 4 * 16 * 3, 5 * 4 * 16 * 7))


def test_a_move_is_read_and_written() -> None:
    moving = replace(PLAN, moves=(Move("shuffle", 0, 9, 3), Move("embed", 4, 20, 2)))
    cost = Roofline(TOY, "float32", MEMORY_BOUND)
    assert cost(moving) - cost(PLAN) == 4 * 2 * (3 + 2) * 16


def test_of_a_swap_the_devices_side_is_the_devices_and_the_rest_the_links() -> None:
    """Three tokens are read and two written there; a copy of one is both. Without a link all is copied in memory."""
    swapping = replace(
        PLAN,
        moves=(
            Move("swap_out", 0, 9, 3, target_tier="host"),
            Move("swap_in", 4, 20, 2, "host"),
            Move("copy", 1, 30, 1),
        ),
    )
    machine = replace(MEMORY_BOUND, link=10.0)
    cost = Roofline(TOY, "float32", machine)
    assert cost(swapping) - cost(PLAN) == (3 + 2 + 2 * 1) * 16 * 4
    assert Roofline(TOY, "float32", COMPUTE_BOUND)(swapping) == Roofline(TOY, "float32", COMPUTE_BOUND)(PLAN)
    without = Roofline(TOY, "float32", MEMORY_BOUND)
    assert without(swapping) - without(PLAN) == 2 * 1 * 16 * 4
    assert (machine.transfer_bandwidth, MEMORY_BOUND.transfer_bandwidth) == (10.0, 0.5)


def test_wide_numbers_have_a_rate_of_their_own() -> None:
    machine = Hardware(1e30, flops=100.0, overhead_s=0.0, wide_flops=10.0)
    assert Roofline(TOY, "float32", machine)(PLAN) == pytest.approx(10 * Roofline(TOY, "float16", machine)(PLAN))


def test_the_slower_of_the_two_and_the_overhead() -> None:
    moved, computed = 4 * (1664 + 13 * 16), 2 * 864 * 4 + 2 * 800 * 2 + 4 * 16 * 16
    for bandwidth, flops in ((10.0, 1e9), (1e9, 10.0), (10.0, 10.0)):
        seconds = Roofline(TOY, "float32", Hardware(bandwidth, flops, 3.0))(PLAN)
        assert seconds == pytest.approx(max(moved / bandwidth, computed / flops) + 3.0)


def test_a_published_model_on_a_published_machine() -> None:
    """A token of LLaMA-7B reads 6.6 G weights of 2 bytes: 8.5 ms at 1.555 TB/s, and for eight tokens hardly more."""
    cost = Roofline(preset("llama-7b"), "float16", hardware("a100-40g"))

    def decode(batch: int) -> float:
        work = tuple(Work(f"r{i}", 99, 100) for i in range(batch))
        return cost(Plan(0, 0, work, tuple(Extent(100 * i, 100) for i in range(batch))))

    assert decode(1) == pytest.approx(8.6e-3, rel=0.02)
    assert decode(8) < 1.1 * decode(1)
    prompt = cost(Plan(0, 0, (Work("r", 0, 2000),), (Extent(0, 2000),)))
    assert prompt == pytest.approx(2 * 6.5e9 * 2000 / 312e12, rel=0.1)  # here arithmetic is what binds


def test_hardware() -> None:
    for name, machine in HARDWARE.items():
        assert hardware(name) is machine
        assert min(machine.bandwidth, machine.flops, machine.overhead_s) > 0
    with refusal(UsageError, "'a100'", "a100-40g", *HARDWARE):
        hardware("a100")


def test_recomputation_by_hand() -> None:
    """Three tokens through 864 weights of the layers; a context of 4, then 8, of 16 numbers a token; no head."""
    cost = Roofline(TOY, "float32", replace(MEMORY_BOUND, overhead_s=5.0))
    assert cost.recomputation(3, (4, 8)) == Profile(4 * 864, (4, 8), (4 * 4 * 16, 4 * 8 * 16))
    attention = [4 * (2 * 8) * pairs for pairs in (2 + 3 + 4, 6 + 7 + 8)]
    cost = Roofline(TOY, "float32", COMPUTE_BOUND)
    assert cost.recomputation(3, (4, 8)) == Profile(2 * 864 * 3, (4, 8), tuple(attention))


def test_recomputation_is_what_virtual_time_charges() -> None:
    """What a chunk's context adds is what a plan of the chunk takes longer with it."""
    cost = Roofline(preset("opt-13b"), "float16", hardware("a100-80g"))
    found = cost.recomputation(32, (64, 2048))
    plans = [Plan(0, 0, (Work("c", at - 32, at),), (Extent(0, at),)) for at in (64, 2048)]
    assert cost(plans[1]) - cost(plans[0]) == pytest.approx(found.attention[1] - found.attention[0])
