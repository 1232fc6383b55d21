"""Finds and loads the model that the user names: `tiny`, a directory, `random:PRESET`."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from minifuse.core.errors import ModelError, UsageError
from minifuse.model.cells.config import BUILT_IN
from minifuse.model.choices import check_loading
from minifuse.model.device import check_weights_fit
from minifuse.model.dtypes import torch_dtype
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.fields import checked, read_object
from minifuse.model.text.presets import PRESETS, preset
from minifuse.model.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from minifuse.model.text.transformer import Transformer


TINY = Path(__file__).parent.parent / "tiny"
_DEFAULT_DTYPE = threading.Lock()  # torch has one for all threads


@dataclass(frozen=True, slots=True)
class TextSource:
    """A text model whose weights are not read yet. Only building it imports torch."""

    name: str
    config: ModelConfig
    directory: Path | None  # None: random weights
    kind: ClassVar[str] = "transformer"

    @property
    def has_weights(self) -> bool:
        """Tell whether there is a checkpoint to read."""
        return self.directory is not None

    @property
    def has_tokenizer(self) -> bool:
        return self.directory is not None and (self.directory / "tokenizer.json").exists()

    def digest(self) -> str:
        """Hash the folder's name, config.json and tokenizer.json; for a preset, hash its name.

        Models that were fine-tuned from the same base share these files, but not the folder's name.
        """
        if self.directory is None:
            return blake2b(self.name.encode(), digest_size=16).hexdigest()
        digest = blake2b(self.directory.resolve().name.encode(), digest_size=16)
        for name in ("config.json", "tokenizer.json"):
            path = self.directory / name
            digest.update(blake2b(path.read_bytes() if path.exists() else b"").digest())
        return digest.hexdigest()

    def slot_bytes(self, dtype: str) -> int:
        """Count the bytes of one token's KV."""
        return self.config.kv_bytes_per_token(dtype)

    def load(self, dtype: str = "float32", device: str = "cpu", seed: int = 0, numerics: str = "fast") -> Transformer:
        """Load the model, ready to serve. Raises the errors of `load_weights`."""
        return load_weights(self, dtype, device, seed, numerics=numerics)

    def outline(self, dtype: str = "float32", seed: int = 0) -> None:
        """Return None: in virtual time, texts need no model."""

    def whole_outline(self, dtype: str = "float32") -> Transformer:
        """Return the model without its weights, on the meta device."""
        return build(self.config, dtype, "meta")

    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer in the folder of the weights.

        Raises:
            ModelError: there is no tokenizer, so that prompts must be token ids.
        """
        if self.directory is None or not self.has_tokenizer:
            raise ModelError(
                f"The model {self.name} has no tokenizer.json, so it cannot read text: "
                "give prompts as token ids (prompt_token_ids in a JSONL file)."
            )
        return Tokenizer(self.directory / "tokenizer.json", self.config.family)


def resolve_text(name: str) -> TextSource:
    """Find the model called `name`: the shipped `tiny`, a directory, or `random:PRESET`.

    Raises:
        UsageError: there is no such preset or directory.
        ModelError: the directory has no readable config.json, or one of another architecture.
    """
    if name.startswith("random:"):
        return TextSource(name, preset(name.removeprefix("random:")), None)
    directory = TINY if name == "tiny" else Path(name)
    if not directory.is_dir():
        cells = name.partition(":")[0] in BUILT_IN
        where = f"{name!r} is a model of cells, and a transformer is needed" if cells else f"There is no model {name!r}"
        others = "" if cells else f", or a model of cells: {', '.join(BUILT_IN)}"
        hint = f"; random weights are written random:{name}" if name in PRESETS else ""
        raise UsageError(
            f"{where}: give 'tiny', a directory in Hugging Face's format, or random:PRESET with one of "
            f"{', '.join(PRESETS)}{others}{hint}."
        )
    path = directory / "config.json"
    raw = read_object(path)
    if raw is None:
        raise ModelError(f"{directory} has no config.json: give a directory in Hugging Face's format.")
    from minifuse.model.text.hugging_face import Ending, read_config  # imports pydantic, which `--help` does not need

    config = read_config(raw, str(path))
    generation = read_object(path := directory / "generation_config.json")
    if generation is not None:  # if it exists, only this file counts, even if it names no token
        config = replace(config, eos_ids=checked(Ending, generation, str(path)).eos_ids)
    return TextSource(name, config, directory)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    import torch

    with _DEFAULT_DTYPE:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def build(config: ModelConfig, dtype: str = "float32", device: str = "cpu") -> Transformer:
    """Build a model of this shape with unset weights."""
    import torch

    from minifuse.model.linear import Unset
    from minifuse.model.text.gpt import GPT
    from minifuse.model.text.rotary import GPTJ, Llama

    if config.family in ("gpt2", "opt") and (config.rotary is not None or config.parallel_residual):
        what = "learned positions, and no parallel residual"
        raise ModelError(f"A model of the family {config.family} has {what}: leave out rotary and parallel_residual.")
    family = {"llama": Llama, "gptj": GPTJ}.get(config.family, GPT)
    with _default_dtype(torch_dtype(dtype)), torch.device(device), Unset():
        model = family(config)
    if config.tied_embeddings:
        model.lm_head.weight = model.embedding.weight
    return model.to(torch_dtype(dtype)).eval().requires_grad_(False)  # `to`: the rotary table is made in float32


def draw_weights(model: Transformer, seed: int, device: torch.device | str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and reproducible random values of each parameter.

    The model may be on the meta device. Every matrix keeps the variance of its input. Weights are drawn in float32, so
    that a seed gives the same model in every dtype.
    """
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.empty(parameter.shape, dtype=torch.float32, device=device)
        if name.endswith("bias"):
            drawn.zero_()
        elif parameter.dim() == 1:
            drawn.fill_(1.0)
        else:
            drawn.normal_(0.0, 1.0 / math.sqrt(parameter.shape[1]), generator=generator)
        yield name, drawn


def random_weights(model: Transformer, seed: int = 0) -> Transformer:
    """Fill `model` with reproducible random weights, see `draw_weights`."""
    parameters = dict(model.named_parameters())
    for name, drawn in draw_weights(model, seed, model.device):
        parameters[name].copy_(drawn)
    return model


def load_weights(
    source: TextSource,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    pack: bool = True,
    numerics: str = "fast",
) -> Transformer:
    """Build the model, and read or draw its weights.

    Args:
        pack: whether to lay the weights out for this CPU's matrix products, unless `numerics` is "reference".
        numerics: "reference" computes row by row, so that the bits of a row do not depend on other rows.

    Raises:
        UsageError: there is no such number type, device or numerics.
        ModelError: the checkpoint does not fit its config.json.
        MachineError: this machine has no such device, or not enough free memory for the weights.
    """
    from minifuse.model.linear import pack as pack_weights

    check_loading(dtype, device, seed, numerics)
    pack = pack and numerics == "fast"
    rotary, parameters = source.config.rotary, source.config.num_parameters
    # Two tables of angles in float32, and what they are made from.
    angles = 0 if rotary is None else 16 * source.config.max_context * rotary.dim
    instead = "a smaller model, a shorter --dtype, or --clock virtual, which needs no weights"
    check_weights_fit(source.name, dtype, device, parameters, parameters if pack else 0, angles, instead)
    model = build(source.config, dtype, device)
    if source.directory is None:
        random_weights(model, seed)
    else:
        from minifuse.model.text.checkpoint import read_weights

        read_weights(model, source.directory)
    if pack:
        pack_weights(model)
    if numerics == "reference":
        from minifuse.model.text.row_by_row import compute_row_by_row

        compute_row_by_row(model)
    return model
