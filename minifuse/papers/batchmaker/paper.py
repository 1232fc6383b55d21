"""Setup and results from the thesis on BatchMaker (2.2.2, 2.3.2, 2.7); nothing was measured.

Rates and throughputs are requests per second, latencies milliseconds. A cut is the part by which latency is lower.
"""

from __future__ import annotations

from collections.abc import Mapping

from minifuse.papers.verdict import Claim

# The setup (2.7.1, 2.7.4): MXNet on V100s with 16 GB; the V100's speed is from its data sheet.
MACHINE = "v100"
HIDDEN, VOCAB = 1024, 30_000
MEAN_LENGTH, LONGEST = 24, 330
REQUESTS = 100_000  # sentences that are sampled
MAX_BATCH, MAX_TASKS = 512, 5
BUCKET_WIDTH = 10

# Fig. 2.3 and 2.7.3: microseconds of one LSTM step at a batch size, on the GPU.
STEP_US: Mapping[int, float] = {64: 185.0, 512: 784.0}
BEST_BATCH = 512  # beyond it, doubling the batch doubles the time
GAIN_512 = Claim.about(1.2)  # in throughput over batches of 256, by Fig. 2.3 (2.7.4)
TASK_US = 250.0  # of a task of 64 rows in BatchMaker, including scheduling and gathering

# Fig. 2.5: a batch of 4; the lengths and ends that the text gives. It does not give the lengths of req5 to req8.
TIMELINE_BATCH = 4
LENGTHS_5: Mapping[str, int] = {"req1": 2, "req2": 3, "req3": 3, "req4": 5}
LONGEST_5 = 7  # of req5 to req8: their batch begins at 5 and ends at 12
GRAPH_ENDS_5: Mapping[str, int] = {f"req{i}": 5 if i <= 4 else 12 for i in range(1, 9)}
CELLULAR_ENDS_5: Mapping[str, int] = {"req1": 2, "req2": 3, "req3": 3}
CELLULAR_STARTS_5: Mapping[str, int] = {**{f"req{i}": 0 for i in range(1, 5)}, "req5": 2, "req6": 3, "req7": 3}

# Fig. 2.7: LSTM. Moderate load is less than half of the baseline's peak.
PEAK_7 = 20_000.0
SLOWEST_7 = 16_000.0  # the rate at which the baselines' latency exceeds 500 ms
P90_7, BASELINE_P90_7 = 12.0, 25.0  # at low load
FLAT_7 = 8_000.0  # the rate up to which BatchMaker's latency does not change
GAIN_7 = Claim.about(1.25)
CUTS_7 = Claim("37.5% to 90.5%", 0.375, 0.905)  # of the 90th percentile, at moderate load
SMALL_BATCH_7 = 64  # of Fig. 2.7 (b)

WIDTHS_8 = (1, 5, 10, 20, 40)  # Fig. 2.8: 1 has the best peak, 40 the lowest latency at low load

# Fig. 2.9: at 5K of the 20K requests/s.
RATE_9 = 5_000.0
QUEUEING_P99_9, BASELINE_QUEUEING_P99_9 = 1.38, 100.0  # the baselines exceed theirs
TIMES_9 = Claim("more than 72 times", BASELINE_QUEUEING_P99_9 / QUEUEING_P99_9)

# Fig. 2.11: lengths fixed at 24, and clipped to 50 and to 100.
DATASETS_11 = ("wmt15:fixed=24", "wmt15:max=50", "wmt15:max=100")
IDEAL_11 = 27_136.0  # 53 batches of 512 per second
SHARE_11 = 0.87
NEAR_11 = Claim.near(SHARE_11)

# Fig. 2.13: Seq2Seq on 2 and 4 GPUs.
PEAK_13: Mapping[int, float] = {2: 8_500.0, 4: 17_000.0}
GAIN_13 = Claim.about(1.60)
CUTS_13 = Claim("17.5% to 82.6%", 0.175, 0.826)
ENCODER_BATCH_13, DECODER_BATCH_13 = 512, 256
TWO_SIZES_13 = Claim("1.035x to 1.060x", 1.035, 1.06)
DECODING_13 = 0.75  # the part of decoding in all computation

# Fig. 2.14: TreeLSTM on TreeBank, batches of at most 64.
TREE_BATCH = 64
PEAK_14, DYNET_PEAK_14 = 3_100.0, 2_100.0
MODERATE_14 = 1_000.0
P90_14, DYNET_P90_14 = 6.8, 9.5  # at a rate of MODERATE_14
# The summary says 1.8 times DyNet's throughput; by the peaks of 2.7.5 it is 3.1K / 2.1K = 1.48 times.
TIMES_FOLD_14 = 4.0
GAIN_DYNET_14, GAIN_FOLD_14 = Claim.about(1.8, "{:.2f}x by the summary"), Claim.about(TIMES_FOLD_14)
PEAK_GAIN_DYNET_14 = Claim.about(PEAK_14 / DYNET_PEAK_14, "{:.2f}x by the peaks")
CUT_DYNET_14, CUT_FOLD_14 = Claim.near(0.28), Claim.near(0.87)

# Fig. 2.15: complete trees of 16 leaves. The ideal runs 31 cells for every batch of 64 trees.
LEAVES_15, CELLS_15 = 16, 31
NEAR_15 = Claim.near(0.70)
SHARE_15 = 0.70  # "approximately 30% less than that of the ideal baseline"
