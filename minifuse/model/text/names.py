"""Names the tensors of a Hugging Face checkpoint that make up each parameter.

Minifuse fuses the projections of one input (`qkv`, `gate_up`); a checkpoint may store them separately. GPT-2 stores its
matrices transposed. `source_of("layers.3.qkv.weight", config)` tells which tensors to stack, and whether to transpose.
"""

from __future__ import annotations

from dataclasses import dataclass

from minifuse.model.text.shape import TextShape


@dataclass(frozen=True, slots=True)
class Source:
    """The checkpoint tensors that, stacked by rows, make one parameter."""

    names: tuple[str, ...]
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class _Names:
    prefix: str
    layer: str
    top: dict[str, str]
    parts: dict[str, tuple[str, ...]]
    transposed: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()  # stored by older versions, and ignored by transformers


_SPLIT_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

_FAMILIES = {
    "llama": _Names(
        prefix="model.",
        layer="layers",
        top={"embedding": "embed_tokens", "norm": "norm"},
        parts={
            "attention_norm": ("input_layernorm",),
            "qkv": _SPLIT_QKV,
            "out": ("self_attn.o_proj",),
            "mlp_norm": ("post_attention_layernorm",),
            "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
            "down": ("mlp.down_proj",),
        },
        buffers=("rotary_emb.inv_freq",),
    ),
    "gpt2": _Names(
        prefix="transformer.",
        layer="h",
        top={"embedding": "wte", "position_embedding": "wpe", "norm": "ln_f"},
        parts={
            "attention_norm": ("ln_1",),
            "qkv": ("attn.c_attn",),
            "out": ("attn.c_proj",),
            "mlp_norm": ("ln_2",),
            "up": ("mlp.c_fc",),
            "down": ("mlp.c_proj",),
        },
        transposed=("qkv", "out", "up", "down"),
        buffers=("attn.bias", "attn.masked_bias"),
    ),
    "gptj": _Names(
        prefix="transformer.",
        layer="h",
        top={"embedding": "wte", "norm": "ln_f"},
        parts={
            "attention_norm": ("ln_1",),
            "qkv": ("attn.q_proj", "attn.k_proj", "attn.v_proj"),
            "out": ("attn.out_proj",),
            "up": ("mlp.fc_in",),
            "down": ("mlp.fc_out",),
        },
        buffers=("attn.bias", "attn.masked_bias"),
    ),
    "opt": _Names(
        prefix="model.decoder.",
        layer="layers",
        top={
            "embedding": "embed_tokens",
            "position_embedding": "embed_positions",
            "norm": "final_layer_norm",
        },
        parts={
            "attention_norm": ("self_attn_layer_norm",),
            "qkv": _SPLIT_QKV,
            "out": ("self_attn.out_proj",),
            "mlp_norm": ("final_layer_norm",),
            "up": ("fc1",),
            "down": ("fc2",),
        },
    ),
}


def source_of(parameter: str, config: TextShape) -> Source:
    """Find the checkpoint tensors that make up a parameter.

    >>> from minifuse.model.text.presets import preset
    >>> source_of("layers.3.gate_up.weight", preset("small")).names
    ('model.layers.3.mlp.gate_proj.weight', 'model.layers.3.mlp.up_proj.weight')
    """
    names = _FAMILIES[config.family]
    module, kind = parameter.rsplit(".", 1)
    if module == "lm_head":
        return Source((f"lm_head.{kind}",))
    if not module.startswith("layers."):
        return Source((f"{names.prefix}{names.top[module]}.{kind}",))
    _, index, part = module.split(".")
    tensors = tuple(f"{names.prefix}{names.layer}.{index}.{name}.{kind}" for name in names.parts[part])
    return Source(tensors, transposed=kind == "weight" and part in names.transposed)


def parameter_rows(parameter: str, config: TextShape) -> tuple[int, ...] | None:
    """Return how many rows each source of a fused parameter has; None if not fused."""
    part = parameter.split(".")[-2]
    if part == "qkv" and config.family != "gpt2":
        return (config.q_size, config.kv_size, config.kv_size)
    if part == "gate_up":
        return (config.intermediate_size, config.intermediate_size)
    return None


def without_prefix(name: str, config: TextShape) -> str:
    """Return a tensor's name in older checkpoints, which were saved without the head."""
    return name.removeprefix(_FAMILIES[config.family].prefix.partition(".")[0] + ".")


def is_buffer(name: str, config: TextShape) -> bool:
    """Tell whether a tensor is a mask or a table of angles, not a weight.

    >>> from minifuse.model.text.presets import preset
    >>> is_buffer("model.layers.3.self_attn.rotary_emb.inv_freq", preset("small"))
    True
    """
    return name.endswith(tuple(f".{buffer}" for buffer in _FAMILIES[config.family].buffers))
