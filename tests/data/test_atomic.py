"""Files appear at once or not at all, and what was there before stays until then."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import lowcal
from lowcal import InvalidInput
from lowcal.data.errors import CannotWrite, LowcalError
from lowcal.data.files import atomic_write
from lowcal.persistence import save

OLD, NEW = b"old", b"new and longer"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "m.json"
    target.write_bytes(OLD)
    return target


def files(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def write_half(path: Path, error: type[BaseException]) -> None:
    with atomic_write(path) as file:
        file.write(NEW)
        raise error


def test_the_new_file_appears_at_the_end(path: Path) -> None:
    with atomic_write(path) as file:
        file.write(NEW)
        file.flush()
        assert path.read_bytes() == OLD
        assert Path(file.name).parent == path.parent
        assert Path(file.name).read_bytes() == NEW
    assert path.read_bytes() == NEW
    assert files(path.parent) == ["m.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError, OSError, MemoryError])
def test_whatever_is_raised_keeps_the_old_file(path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        write_half(path, error)
    assert path.read_bytes() == OLD
    assert files(path.parent) == ["m.json"]


def test_another_file_of_the_block_is_not_blamed_on_this_one(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone") as caught, atomic_write(path):
        (path.parent / "gone").read_bytes()
    assert not isinstance(caught.value, LowcalError)
    assert files(path.parent) == ["m.json"]


def test_the_disk_is_told_before_the_name_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def sync(handle: int, really=os.fsync) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else os.fstat(handle).st_size)
        really(handle)

    def rename(old: str, new: str, really=os.replace) -> None:
        calls.append("name")
        really(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    with atomic_write(path) as file:
        file.write(NEW)
    assert calls == [len(NEW), "name", "folder"]


def test_a_full_disk_keeps_the_old_file(path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    message = r"m.json can't be written: File too large. The old file is as it was"
    try:
        with pytest.raises(CannotWrite, match=message), atomic_write(path) as file:
            file.write(bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == OLD
    assert files(path.parent) == ["m.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_device_is_written_directly() -> None:
    with pytest.raises(CannotWrite, match=r"/dev/full can't be written: No space left"), atomic_write("/dev/full") as f:
        f.write(NEW)
    with atomic_write(os.devnull) as file:
        file.write(NEW)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_permissions_are_the_usual_ones(path: Path) -> None:
    before = os.umask(0o027)
    try:
        path.chmod(0o604)
        for name in ("m.json", "new.json"):
            with atomic_write(path.parent / name) as file:
                file.write(NEW)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert stat.S_IMODE((path.parent / "new.json").stat().st_mode) == 0o640


def test_a_link_stays_a_link(path: Path) -> None:
    link = path.parent / "link.json"
    link.symlink_to(path)
    with atomic_write(link) as file:
        file.write(NEW)
    assert link.is_symlink()
    assert path.read_bytes() == NEW


def test_long_names_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("n" * 255, "☂" * 85, "just a name"):
        with atomic_write(name) as file:
            file.write(NEW)
        assert (tmp_path / name).read_bytes() == NEW


def test_where_nothing_can_be_written(path: Path) -> None:
    with (
        pytest.raises(CannotWrite, match=r"no folder '.*nowhere'. Make it first"),
        atomic_write(path.parent / "nowhere/m"),
    ):
        pass
    with pytest.raises(CannotWrite, match="no folder"), atomic_write(path / "m"):
        pass
    with pytest.raises(CannotWrite, match=r"it is a folder\. Give the name of a file"), atomic_write(path.parent):
        pass
    for wrong in (None, 3, b"m.json", "", "a\0b", ["m.json"]):
        with pytest.raises(InvalidInput, match="path of a file must be text"), atomic_write(wrong):
            pass
        with pytest.raises(InvalidInput, match="path of a file must be text"):
            save(None, wrong)
    assert files(path.parent) == ["m.json"]


def test_killed_in_the_middle(path: Path) -> None:
    code = """
import sys, time
from lowcal.data.files import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(b"new" * 100_000)
    file.flush()
    print("half", flush=True)
    time.sleep(60)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(lowcal.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, env=env) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"half\n"
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert path.read_bytes() == OLD


def test_interrupted_between_the_bytes_of_a_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = lowcal.datasets.make_miscalibrated(500, random_state=0)
    predictor = lowcal.multicalibrate(data.y, data.p, data.X, max_updates=1).predictor

    def interrupt(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(predictor, path)
    assert path.read_bytes() == OLD
    assert files(path.parent) == ["m.json"]
