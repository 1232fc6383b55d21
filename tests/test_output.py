"""What is written for the user is there as a whole or not at all, on a disk that is full as well."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from full_disk import full_disk
from helpers import refusal, sentence

from minifuse.core.errors import MachineError, UsageError
from minifuse.io.output import whole_file, whole_folder, write_whole

ROOM = 4096
MUCH = "much " * ROOM


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "page.html"


def test_a_full_disk_leaves_what_was_there(page: Path) -> None:
    for before in (None, "good"):
        with full_disk(ROOM), refusal(MachineError, str(page), "File too large", "has not changed"):
            write_whole(page, MUCH)
        assert [path.read_text() for path in page.parent.iterdir()] == ([] if before is None else [before])
        write_whole(page, "good")
    write_whole(page, MUCH)
    assert page.read_text() == MUCH


def test_a_block_that_is_interrupted_leaves_what_was_there(page: Path) -> None:
    page.write_text("good")

    def lines() -> Iterator[str]:
        yield MUCH
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), whole_file(page) as file:
        file.writelines(lines())
    assert [path.read_text() for path in page.parent.iterdir()] == ["good"]


def test_a_new_file_has_the_mode_of_any_other_and_one_that_is_replaced_keeps_its_own(page: Path) -> None:
    write_whole(page, "new")
    (page.parent / "other").touch()
    assert page.stat().st_mode == (page.parent / "other").stat().st_mode
    page.chmod(0o604)
    write_whole(page, "newer")
    assert page.stat().st_mode & 0o777 == 0o604


def test_a_link_stays_one(page: Path, tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    page.symlink_to(tmp_path / "away" / "there.html")
    for text in ("new", "newer"):
        write_whole(page, text)
        assert page.is_symlink()
        assert (tmp_path / "away" / "there.html").read_text() == text


def test_a_pipe_and_a_device_are_written_to() -> None:
    write_whole(Path(os.devnull), "gone")
    read, write = os.pipe()
    write_whole(Path(f"/dev/fd/{write}"), "there")
    assert os.read(read, 100) == b"there"
    os.close(read)
    os.close(write)
    assert Path(os.devnull).is_char_device()


def test_a_place_that_is_none(tmp_path: Path) -> None:
    with refusal(UsageError, str(tmp_path / "no" / "page.html"), "No such file", "give a place"):
        write_whole(tmp_path / "no" / "page.html", "")


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_is_there_with_all_that_is_in_it_or_not_at_all(there: bool, tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    if there:
        folder.mkdir()
    before = folder.stat() if there else None
    for room in (ROOM, 10 * len(MUCH)):
        try:
            with full_disk(room), whole_folder(folder) as new:
                (new / "small").write_text("small")
                (new / "within").mkdir()
                (new / "within" / "large").write_text(MUCH)
        except MachineError as error:
            sentence(error, str(folder), "File too large")
            assert [*tmp_path.rglob("*")] == ([folder] if there else [])
    assert sorted(path.name for path in folder.rglob("*")) == ["large", "small", "within"]
    assert before is None or os.path.samestat(before, folder.stat())


def test_the_folder_that_a_shell_is_in_can_be_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with whole_folder(Path()) as new:
        (new / "README.md").touch()
    assert subprocess.run(["ls", "-A"], capture_output=True, text=True, check=True).stdout == "README.md\n"


def test_entries_that_were_put_in_place_are_taken_away_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: Callable[[Path, Path], Path] = Path.rename

    def fails(self: Path, target: Path) -> Path:
        if self.name == "b":
            raise OSError(28, "No space left on device")
        return renamed(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    block = whole_folder(tmp_path)
    new = block.__enter__()
    for name in "abc":
        (new / name).touch()
    with pytest.raises(MachineError):
        block.__exit__(None, None, None)
    assert [*tmp_path.iterdir()] == []


def test_an_error_that_is_not_of_the_file_is_told_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of the caller"), whole_file(tmp_path / "out.txt"):
        raise ValueError("of the caller")
    with pytest.raises(FileNotFoundError, match="other"), whole_file(tmp_path / "out.txt"):
        (tmp_path / "nowhere" / "other").open()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("block", [whole_file, whole_folder])
@pytest.mark.parametrize("place", ["given/new", "given/new/er", "nowhere\0"])
def test_a_place_that_cannot_be_is_told(
    block: Callable[[Path], Any], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("given").touch()
    for path in (Path(place), tmp_path / place):
        with pytest.raises(UsageError) as error, block(path):
            pass
        shown = str(path).replace("\0", "\\x00")  # as messages show what a terminal would not
        assert str(error.value).startswith(f"{shown} cannot be written (")
