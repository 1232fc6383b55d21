"""Keeps profiles of this machine in the cache folder, by shape, dtype and device."""

from __future__ import annotations

import hashlib
import os
import shlex
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

from minifuse.core.errors import UsageError
from minifuse.execute.cores import processor, usable_cores
from minifuse.io.cache import cache_folder
from minifuse.io.output import write_whole
from minifuse.model.cells.config import CellConfig
from minifuse.model.text.config import ModelConfig

if TYPE_CHECKING:
    from minifuse.simulate.machine_profile import MachineProfile


VERSION = 4  # of the format; a file of another version is not found
CHUNK = 32  # tokens of a chunk of KV, as in the thesis


class KeptProfile:
    """Reads and writes the profile of this machine that the user's cache folder keeps.

    Models of the same shape share a file, because all weights cost the same. Without a model, it is the file with the
    shapes that are measured by default.

    Args:
        device: cpu, cuda, or cuda:0 and so on.
    """

    def __init__(self, config: ModelConfig | CellConfig | None, dtype: str, device: str) -> None:
        kind = device.partition(":")[0]
        self.machine = _machine(device)
        self.flags = ["--dtype", dtype, "--device", kind]
        shape = repr(replace(config, eos_ids=()) if isinstance(config, ModelConfig) else config)
        digest = hashlib.blake2b(f"{self.machine}\n{shape}\n{VERSION}".encode(), digest_size=6).hexdigest()
        name = "machine"
        if config is not None:
            kind_of = config.family if isinstance(config, ModelConfig) else config.kind
            name = f"{kind_of}-{config.hidden_size}"
        self.path = cache_folder() / "profiles" / f"{name}-{dtype}-{kind}-{digest}.json"

    def read(self, model: str | None = None) -> MachineProfile | None:
        """Return the profile in the file, or None if there is no file.

        Args:
            model: the model's name, for messages: they give the command that makes the file anew.

        Raises:
            UsageError: the file cannot be read, or is damaged.
        """
        if not os.path.lexists(self.path):
            return None
        from minifuse.simulate.machine_profile import MachineProfile

        given = shlex.join([*([] if model is None else ["--model", model]), *self.flags])
        return MachineProfile.read(str(self.path), f"make it anew with minifuse calibrate {given}, or delete it")

    def check(self) -> None:
        """Raise `UsageError` if the file cannot be written, before hours of measuring are lost."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.path.parent).close()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(
                f"The profile cannot be written to the cache folder {self.path.parent} ({reason}): set XDG_CACHE_HOME "
                "to a folder that you may write to, or give --out FILE."
            ) from None

    def write(self, text: str) -> None:
        """Write the file atomically: a reader finds the old text or the new one.

        Raises:
            MachineError: the disk is full.
            UsageError: the file cannot be written there.
        """
        self.check()
        write_whole(self.path, text)


def _machine(device: str) -> str:
    """Return the name of the processor that computes."""
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(device))
    return f"{processor()}, {len(usable_cores())} cores"
