"""Setup and results from Flover's text (section VI); nothing was measured.

Intervals are in milliseconds; overlap is a share of the requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# The setup: GPT-J 6B by FasterTransformer, in half precision, on an A100 with 40 GB.
MODEL, DTYPE, MACHINE = "gpt-j-6b", "float16", "a100-40g"
FITTED = "a100-40g-flover"  # the machine fitted to Fig. 8
TOKENS = 512  # of one request
ALONE_S = 5.8  # seconds of one request alone

# Fig. 7 and VI-B: interval -> overlapped portion r_p. By equation 1, they belong to a request of 6 s, not 5.8 s.
R_P_7: Mapping[int, float] = {500: 0.846, 2500: 0.412, 5000: 0.0909}

# Fig. 7: interval -> requests -> speed-up over instances. For 5000 ms the text has only the words "almost sequential".
SPEEDUP_7: Mapping[int, Mapping[int, float]] = {500: {2: 1.7, 8: 3.4}, 2500: {2: 1.3, 8: 1.7}}
SEQUENTIAL_7, AS_SEQUENTIAL = 5000, 1.0  # the number that stands for these words is ours

# Fig. 8: mean interval -> iterations of 32 requests of 512 tokens, overlap, speed-up over instances.
INTERVALS_8 = (20, 50, 100, 150, 200, 300, 400, 500, 750, 1000, 2000, 3000, 4000, 5000)
ITERATIONS_8: Mapping[int, int] = dict(
    zip(INTERVALS_8[1:], (616, 748, 888, 911, 1174, 1366, 1537, 2239, 2621, 5483, 7738, 8902, 10694), strict=True)
)
OVERLAP_8: Mapping[int, float] = {20: 0.913, 50: 0.818, 100: 0.673, 150: 0.621, 200: 0.603, 300: 0.452, 400: 0.367}
SPEEDUP_8: Mapping[int, float] = {20: 11.2, 50: 11.1, 100: 10.2, 150: 9.3, 200: 9.1, 300: 7.9, 400: 7.1}

REQUESTS_8 = 32

# The later version's abstract, over FasterTransformer: on GPT it is Fig. 8's; on LLaMA it has no setting.
SPEEDUP_LLAMA = 16.0

INTERVAL, SHORTEST = 20, 128  # milliseconds and tokens, in Figs. 9 and 10

SPEEDUP_9A = 6.8  # with shuffle, over instances; the text does not say for which lengths
GAIN_9B = 2.0  # of the shuffle, at the widest lengths
# The longest answers that the text names; the other bars of Fig. 9 have no numbers in it.
NAMED_9A, NAMED_9B = 256, 1792


class Distributed(NamedTuple):
    """A run of Fig. 10, and the gain of the shuffle."""

    gpus: int
    requests: int
    longest: int
    link: str  # the slowest: "intra", within a node of two GPUs, or "inter", between nodes
    gain: float

    @property
    def name(self) -> str:
        return f"TP{self.gpus} L{self.longest} {self.requests}R {self.link}"


# Fig. 10 and VI-E, averages of five runs. The text names the link of the first two. That L1000 ran within a node is
# ours; four GPUs are two nodes.
GAINS_10 = (
    Distributed(2, 16, 3600, "intra", 1.51),
    Distributed(2, 16, 3600, "inter", 1.64),
    Distributed(2, 16, 1000, "intra", 1.46),
    Distributed(2, 32, 1000, "intra", 1.60),
    Distributed(2, 48, 1000, "intra", 1.67),
    Distributed(4, 16, 2400, "inter", 2.34),
    Distributed(4, 16, 3840, "inter", 2.97),
    Distributed(4, 16, 5120, "inter", 3.13),
    Distributed(4, 16, 7200, "inter", 3.30),
)
# Bytes per second, one direction: PCI Express x16 within a node, whose version 4.0 is ours, and InfiniBand HDR (200
# Gbit/s) between nodes.
LINKS: Mapping[str, float] = {"intra": 32e9, "inter": 25e9}
