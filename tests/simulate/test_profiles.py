"""Profiles in the user's cache folder: one file for each machine, model, dtype and device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from full_disk import full_disk
from helpers import refusal, sentence
from machines import profile

from minifuse.core.errors import MachineError, UsageError
from minifuse.simulate import profiles
from minifuse.simulate.profiles import KeptProfile
from minifuse.testing.texts.models import CONFIGS

LLAMA = CONFIGS["llama"]
PROFILE = profile(LLAMA)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def _kept(**changes: Any) -> KeptProfile:
    given = {"config": LLAMA, "dtype": "float32", "device": "cpu", **changes}
    return KeptProfile(**given)


def test_what_is_written_is_read(folder: Path) -> None:
    kept = _kept()
    assert kept.read("toy") is None
    kept.check()
    kept.write(PROFILE.model_dump_json())
    assert kept.read("toy") == PROFILE
    assert kept.path.is_relative_to(folder / "minifuse")
    kept.write(profile(LLAMA, rounds=7).model_dump_json())
    assert kept.read("toy") == profile(LLAMA, rounds=7)
    assert [path.name for path in kept.path.parent.iterdir()] == [kept.path.name]


def test_each_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(LLAMA, num_kv_heads=1)
    changes: list[dict[str, Any]] = [{}, {"config": shape}, {"dtype": "bfloat16"}, {"config": None}]
    paths = {_kept(**change).path for change in changes}
    monkeypatch.setattr(profiles, "processor", lambda: "another")
    paths.add(_kept().path)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"GPU at {device}")
    paths |= {_kept(device="cuda:0").path, _kept(device="cuda:1").path}
    assert len(paths) == len(changes) + 3


def test_a_model_is_its_shape() -> None:
    assert _kept(config=replace(LLAMA, eos_ids=(3, 4))).path == _kept().path


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "another"}', "\xff"])
def test_a_damaged_file_is_named_and_how_to_make_it_anew(text: str) -> None:
    kept = _kept()
    kept.check()
    kept.path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as error:
        kept.read("my model")
    command = "minifuse calibrate --model 'my model' --dtype float32 --device cpu"
    sentence(error.value, str(kept.path), command, "or delete it")
    kept = _kept(config=None)
    kept.path.write_text("{")
    with refusal(UsageError, str(kept.path), "minifuse calibrate --dtype float32 --device cpu, or"):
        kept.read()


def test_a_folder_in_its_place_is_damage_too() -> None:
    kept = _kept()
    kept.path.mkdir(parents=True)
    with refusal(UsageError, str(kept.path), "minifuse calibrate"):
        kept.read("toy")


def test_a_write_that_fails_leaves_the_old_file_whole() -> None:
    kept = _kept()
    kept.write(PROFILE.model_dump_json())
    with full_disk(16), refusal(MachineError, "File too large", str(kept.path)):
        kept.write("new" * 100_000)
    assert kept.read("toy") == PROFILE
    assert [path.name for path in kept.path.parent.iterdir()] == [kept.path.name]


def test_a_folder_that_cannot_be_written(folder: Path) -> None:
    (folder / "minifuse").touch()
    for write in (_kept().check, lambda: _kept().write("text")):
        with refusal(UsageError, str(folder / "minifuse"), "XDG_CACHE_HOME", "--out"):
            write()


def test_without_a_cache_folder_of_its_own_it_is_that_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert _kept().path.is_relative_to(tmp_path / ".cache" / "minifuse")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert _kept().path.is_relative_to(tmp_path / ".cache" / "minifuse")
