"""The operators, computed by the C kernels on a CPU."""

from __future__ import annotations

import ctypes
from ctypes import byref
from dataclasses import dataclass

import torch
from torch import Tensor

from minifuse.core.errors import LawBroken
from minifuse.core.report import NOT_FINITE
from minifuse.kernels.native.library import Rotation, Wave, native
from minifuse.kernels.operators import TorchOperators
from minifuse.kernels.ragged import Ragged
from minifuse.kernels.rotary import RotaryRows


class NativeOperators(TorchOperators):
    """The C kernels, as `minifuse.model.operators.Operators`; what they lack is torch's.

    Tensors lie on the CPU, and their rows side by side.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        native(dtype)  # compiled before the first plan

    @property
    def _library(self) -> ctypes.CDLL:
        """Return the kernels; not kept, so that these operators can be sent to another process."""
        return native(self._dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        pointers = out.data_ptr(), None, x.data_ptr(), None, weight.data_ptr()
        self._library.rms_norm(*pointers, *x.shape, eps, torch.get_num_threads())
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x, residual = x.contiguous(), residual.contiguous()
        out, total = torch.empty_like(x), torch.empty_like(x)
        pointers = out.data_ptr(), total.data_ptr(), x.data_ptr(), residual.data_ptr(), weight.data_ptr()
        self._library.rms_norm(*pointers, *x.shape, eps, torch.get_num_threads())
        return out, total

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        rows, size = gate_up.shape
        out = gate_up.new_empty(rows, size // 2)
        self._library.silu_mul(out.data_ptr(), gate_up.data_ptr(), rows, size // 2, torch.get_num_threads())
        return out

    def attend(
        self,
        heads: Tensor,
        rotary: RotaryRows | None,
        keys: Tensor,
        values: Tensor,
        slots: Tensor,
        layer: int,
        wave: NativeWave,
    ) -> Tensor:
        """Rotate queries and keys, write a layer's KV, then compute softmax(q k^T / sqrt(head_dim)) v.

        Args:
            heads: queries, keys and values, [rows, num_heads + 2 * num_kv_heads, head_dim].
            keys, values: [num_layers, slots, num_kv_heads, head_dim].
            slots: where each row's KV is written, [rows]; -1 for idle rows.

        Returns:
            [rows, num_heads * head_dim].
        """
        heads, pointers, rows = heads.contiguous(), wave.pointers, heads.shape[0]
        out = heads.new_empty(rows, pointers.num_heads * pointers.head_dim)
        start = layer * keys.stride(0) * keys.element_size()
        kv = keys.data_ptr() + start, values.data_ptr() + start, slots.data_ptr()
        given = out.data_ptr(), heads.data_ptr(), byref(angles_of(rotary)), *kv, byref(pointers)
        self._library.attend(*given, rows, torch.get_num_threads())
        return out

    def argmax(self, logits: Tensor) -> list[int]:
        if logits.dtype == torch.float64:  # what sampling adds its noise to
            return super().argmax(logits)
        logits = logits.contiguous()
        out = torch.empty(len(logits), dtype=torch.int64)
        self._library.argmax(out.data_ptr(), logits.data_ptr(), *logits.shape, NOT_FINITE, torch.get_num_threads())
        indices: list[int] = out.tolist()
        return indices


def angles_of(rotary: RotaryRows | None) -> Rotation:
    """Return the angles of rows as pointers; `rotary` must live as long."""
    if rotary is None:
        return Rotation()
    return Rotation(rotary.cos.data_ptr(), rotary.sin.data_ptr(), rotary.cos.shape[-1], rotary.interleaved)


@dataclass(frozen=True, slots=True)
class NativeWave:
    """The sequences of a wave for `attend`; made once for all layers."""

    ragged: Ragged  # whose memory `pointers` point into
    pointers: Wave
    reach: int  # slots up to the end of the last block of any table

    @classmethod
    def of(cls, ragged: Ragged, num_heads: int, num_kv_heads: int, head_dim: int) -> NativeWave:
        last = int(ragged.tables.max()) + 1
        reach = last * ragged.page if ragged.page else last + ragged.max_context - 1
        tensors = ragged.cu_seqlens, ragged.contexts, ragged.tables, ragged.first
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        sizes = *ragged.tables.shape, ragged.page, num_heads, num_kv_heads, head_dim
        return cls(ragged, Wave(*pointers, *sizes), reach)

    def check(self, num_slots: int) -> None:
        """Raise `LawBroken` if a context reaches beyond the storage, whose end C does not know.

        A last block may reach beyond it, behind its last token.
        """
        if self.reach <= num_slots:
            return
        for number, context in enumerate(self.ragged.contexts.tolist()):
            if context and int(self.ragged.slots(number, torch.arange(context)).max()) >= num_slots:
                raise LawBroken("layout", f"a block table names slots beyond the {num_slots} that memory has")
