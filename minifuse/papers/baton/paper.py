"""Setup and results from Baton's text (section 5): nothing in this file was measured here."""

from __future__ import annotations

from collections.abc import Mapping

# Llama-2-7b-chat in half precision. Its context is 4,096 tokens, which the sequences of Table 1 exceed.
MODEL, DTYPE = "llama-2-7b-16k", "float16"
SIZES = {"first": 120, "second": 30}  # queries of each set
MACHINES = {"first": "rtx-a6000", "second": "rtx-4090"}  # the GPU that served each set

# Table 1: batch -> seconds until the first set is completed. At a batch of 4 every sequence is twice as long.
TABLE_1: Mapping[int, Mapping[str, float]] = {
    4: {"static": 21901.0, "pd": 21781.0, "baton": 20549.0, "baton-pd": 11771.0},
    8: {"static": 6619.0, "pd": 6577.0, "baton": 3424.0, "baton-pd": 2654.0},
}
DOUBLED = 4  # the batch of Table 1 at which sequences are twice as long

# Table 2: batch -> seconds until the second set is completed. At 4 the paper prints 1.89x; its seconds give 1.87x.
TABLE_2: Mapping[int, Mapping[str, float]] = {
    2: {"static": 161.77, "baton": 83.43},
    4: {"static": 92.68, "baton": 49.61},
    6: {"static": 61.70, "baton": 37.25},
    8: {"static": 50.07, "baton": 31.08},
    10: {"static": 40.45, "baton": 30.99},
}
FITTED_TO = (2, 10)  # batches of Table 2 whose static times are used in the fit of `minifuse/papers/baton/machine.py`
