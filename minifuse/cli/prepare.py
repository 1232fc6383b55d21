"""Everything a run needs, in the order of its cost: values, the model's shape, the requests, and last the weights."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from minifuse.cli.checked import Checked
from minifuse.cli.contradictions import refuse_contradictions
from minifuse.cli.workload import Requests
from minifuse.errors import MachineError
from minifuse.model.cells.source import CellSource
from minifuse.model.text.load import TextSource, resolve_text
from minifuse.model.text.tokenizer import Tokenizer
from minifuse.request import Request, by_request
from minifuse.serve.build import build_engine
from minifuse.serve.settings import Settings
from minifuse.techniques import Technique

if TYPE_CHECKING:
    from minifuse.model.cells.model import CellModel
    from minifuse.model.text.transformer import Transformer

__all__ = ["Prepared", "load", "prepare", "rehearse"]


@dataclass(frozen=True)
class Prepared:
    """A workload for a model that has been found. Nothing heavy has been loaded."""

    source: TextSource | CellSource
    tokenizer: Tokenizer | None
    requests: list[Request]  # a request of several prompts is several here, of one group
    settings: Settings
    expected: dict[str, str] = field(default_factory=dict)  # the right answer of each request that has one
    outline: CellModel | None = None  # of a model of cells: what its requests unfold into

    @property
    def placeholders(self) -> bool:
        """Whether no model runs: random weights in virtual time would say nothing that a placeholder does not."""
        has_weights = isinstance(self.source, TextSource) and self.source.directory is not None
        return self.settings.clock == "virtual" and not has_weights

    @property
    def is_cells(self) -> bool:
        """Whether the model is one of cells."""
        return isinstance(self.source, CellSource)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of memory: the KV of a token, or the states of a node."""
        return _slot_bytes(self.source, self.settings.dtype)

    @property
    def num_requests(self) -> int:
        """The prompts of one request count as one."""
        return len(by_request(self.requests))

    def text(self, token_ids: Sequence[int]) -> str | None:
        """What tokens say, or None for a model without a tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.decode(list(token_ids))


def prepare(checked: Checked, typed: list[str]) -> Prepared:
    """Find the model and the requests; `typed` are the prompts of the command line.

    Raises:
        UsageError: the options contradict each other, or a file is not one of requests.
        ModelError: the model cannot be read, or not the text that it was given.
    """
    refuse_contradictions(checked, typed)
    source = checked.cells or resolve_text(checked.model)
    tokenizer = None
    if isinstance(source, TextSource) and source.directory and (source.directory / "tokenizer.json").exists():
        tokenizer = source.tokenizer()
    requests, expected = Requests(checked, source, tokenizer).asked(typed)
    settings = Settings(
        dtype=checked.dtype,
        device=checked.device,
        kv_memory=checked.kv_memory,
        clock=checked.clock,
        hardware=checked.hardware,
        seed=checked.sampling.seed,
        tensor_parallel=checked.tensor_parallel or 1,
        numerics=checked.numerics,
    )
    return Prepared(source, tokenizer, requests, settings, expected, _outline(source, settings))


def _slot_bytes(source: TextSource | CellSource, dtype: str) -> int:
    """Bytes of one slot of memory: the KV of a token, or the states of a node."""
    if isinstance(source, CellSource):
        return source.config.slot_bytes(dtype)
    return source.config.kv_bytes_per_token(dtype)


def _outline(source: TextSource | CellSource, settings: Settings) -> CellModel | None:
    """A model of cells without weights, which unfolds requests and computes nothing; of a plugin's cells, which may not
    know of such a thing, the model itself."""
    if not isinstance(source, CellSource):
        return None
    return source.outline(settings.dtype, settings.seed)


def rehearse(row: Technique, prepared: Prepared, options: Mapping[str, Any]) -> None:
    """Plug the stages together without a model: what is wrong with them is said before any weights are loaded.

    Raises:
        UsageError: an option is wrong, or the KV memory is too small for the stages or too large for the machine.
    """
    build_engine(row, prepared.source, replace(prepared.settings, stage_options=options), prepared.outline)


def load(prepared: Prepared) -> tuple[Transformer | CellModel | None, Settings]:
    """Read the weights, and settle on a device.

    Raises:
        ModelError: the checkpoint is not what its config.json says.
        MachineError: there is no such device, or too little memory.
    """
    settings = prepared.settings
    source = prepared.source
    if prepared.placeholders:
        what = "every token is the placeholder -1" if prepared.outline is None else "nothing is computed"
        print(f"note: in virtual time no weights are made for {source.name}: {what}.", file=sys.stderr)
        return prepared.outline, replace(settings, device="cpu")
    settings = replace(settings, device=_device(settings.device))
    return source.load(settings.dtype, settings.device, settings.seed, settings.numerics), settings


def _device(wanted: str) -> str:
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise MachineError(
            "--device is cuda, and torch finds no CUDA device: use --device cpu, or see minifuse doctor."
        )
    return wanted
