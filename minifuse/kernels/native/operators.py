"""The operators, computed by the C kernels on a CPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from minifuse.core.errors import LawBroken
from minifuse.core.report import NOT_FINITE
from minifuse.kernels.native.library import Wave, native
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

    def rotate_and_write(
        self, heads: Tensor, rotary: RotaryRows | None, keys: Tensor, values: Tensor, slots: Tensor, live: Tensor | None
    ) -> Tensor:
        rows, num_heads, head_dim = heads.shape
        num_kv_heads = keys.shape[1]
        q = heads.new_empty(rows, num_heads - 2 * num_kv_heads, head_dim)
        heads = heads.contiguous()
        dim = 0 if rotary is None else rotary.cos.shape[-1]
        angles = [] if rotary is None else [rotary.cos.data_ptr(), rotary.sin.data_ptr()]
        pointers = q.data_ptr(), heads.data_ptr(), *(angles or (None, None))
        written = keys.data_ptr(), values.data_ptr(), slots.data_ptr()
        sizes = rows, q.shape[1], num_kv_heads, head_dim, dim
        interleaved = rotary is not None and rotary.interleaved
        self._library.rotate_and_write(*pointers, *written, *sizes, interleaved, torch.get_num_threads())
        return q

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, wave: NativeWave) -> Tensor:
        """Compute softmax(q k^T / sqrt(head_dim)) v for every query of a wave.

        Args:
            q: [rows, num_heads, head_dim].
            keys, values: [slots, num_kv_heads, head_dim].

        Returns:
            [rows, num_heads * head_dim].
        """
        out = torch.empty_like(q)
        pointers = out.data_ptr(), q.data_ptr(), keys.data_ptr(), values.data_ptr()
        self._library.attend(*pointers, ctypes.byref(wave.pointers), torch.get_num_threads())
        return out.flatten(1)

    def argmax(self, logits: Tensor) -> list[int]:
        if logits.dtype == torch.float64:  # what sampling adds its noise to
            return super().argmax(logits)
        logits = logits.contiguous()
        out = torch.empty(len(logits), dtype=torch.int64)
        self._library.argmax(out.data_ptr(), logits.data_ptr(), *logits.shape, NOT_FINITE, torch.get_num_threads())
        indices: list[int] = out.tolist()
        return indices


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
