"""Setup and results from Flover's text (section VI): nothing in this file was measured here.

Intervals are in milliseconds; overlap is a share of the requests.
"""

from __future__ import annotations

from collections.abc import Mapping

# The setup: GPT-J 6B by FasterTransformer, in half precision, on an A100 with 40 GB.
MODEL, DTYPE, MACHINE = "gpt-j-6b", "float16", "a100-40g"
TOKENS = 512  # of one request
ALONE_S = 5.8  # seconds of one request alone

# Fig. 7 and VI-B: interval -> overlapped portion r_p. By equation 1, they belong to a request of 6 s, not 5.8 s.
R_P_7: Mapping[int, float] = {500: 0.846, 2500: 0.412, 5000: 0.0909}

# Fig. 7: interval -> requests -> speed-up over instances. For 5000 ms the text gives no number: "almost sequential".
SPEEDUP_7: Mapping[int, Mapping[int, float]] = {
    500: {2: 1.7, 8: 3.4},
    2500: {2: 1.3, 8: 1.7},
    5000: {2: 1.0, 4: 1.0, 8: 1.0},
}

# Fig. 8: mean interval -> iterations of 32 requests of 512 tokens, overlap, speed-up over instances.
INTERVALS_8 = (20, 50, 100, 150, 200, 300, 400, 500, 750, 1000, 2000, 3000, 4000, 5000)
ITERATIONS_8: Mapping[int, int] = dict(
    zip(INTERVALS_8[1:], (616, 748, 888, 911, 1174, 1366, 1537, 2239, 2621, 5483, 7738, 8902, 10694), strict=True)
)
OVERLAP_8: Mapping[int, float] = {20: 0.913, 50: 0.818, 100: 0.673, 150: 0.621, 200: 0.603, 300: 0.452, 400: 0.367}
SPEEDUP_8: Mapping[int, float] = {20: 11.2, 50: 11.1, 100: 10.2, 150: 9.3, 200: 9.1, 300: 7.9, 400: 7.1}

REQUESTS_8 = 32

SPEEDUP_9A = 6.8  # with shuffle, over instances; the text does not say for which lengths
GAIN_9B = 2.0  # of the shuffle, at the widest lengths
