"""A power cut after the first checkpoint: what the disk was told to keep is enough to go on."""

import os
import stat
from pathlib import Path

import pytest
import torch

from physicsnemo_flarepp.evaluation import load_run
from physicsnemo_flarepp.runs import CheckpointStore, read_metrics
from physicsnemo_flarepp.training import train
from tests.training.conftest import (  # noqa: F401
    make_config,
    one_thread,
    surface_set,
)


class Disk:
    """Keeps what ``fsync`` has confirmed: the bytes of files and the names in folders.

    All else counts as lost: names that their folder was not synced with, and bytes written since
    the last sync of their file. A real disk may have more.
    """

    def __init__(self, monkeypatch):
        self.images = []
        self._folders, self._files, self._open = {}, {}, []
        original = os.fsync

        def fsync(descriptor):
            original(descriptor)
            self._see(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

    def _see(self, descriptor):
        # An open descriptor keeps the inode from being given to another file.
        self._open.append(os.dup(descriptor))
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            listing = os.scandir(descriptor_path(descriptor))
            entries = {entry.name: (entry.inode(), entry.is_dir()) for entry in listing}
            self._folders = {**self._folders, status.st_ino: entries}
        else:
            content = Path(descriptor_path(descriptor)).read_bytes()
            self._files = {**self._files, status.st_ino: content}
        self.images.append((self._folders, self._files))

    def close(self):
        for descriptor in self._open:
            os.close(descriptor)

    @staticmethod
    def restore(image, inode, target):
        """Write the tree under the folder `inode` as a disk would show it after the cut."""
        folders, files = image
        target.mkdir()
        for name, (entry, is_folder) in folders.get(inode, {}).items():
            if is_folder:
                Disk.restore(image, entry, target / name)
            else:  # where its name came to the disk but not its bytes, it is empty
                (target / name).write_bytes(files.get(entry, b""))


def descriptor_path(descriptor):
    return f"/proc/self/fd/{descriptor}"


@pytest.fixture
def disk(monkeypatch):
    disk = Disk(monkeypatch)
    yield disk
    disk.close()


def cut_everywhere(disk, make_config, tmp_path, every):  # noqa: F811
    """Train, cut the power after each sync, and go on from what is left; count the cuts."""
    cfg = make_config(training__epochs=3)
    whole = train(cfg)
    inode = os.stat(whole.directory).st_ino
    images, disk.images = disk.images, []
    after_first = resumed = 0
    for number, image in enumerate(images):
        left = tmp_path / f"cut_{number}"
        Disk.restore(image, inode, left)
        newest = CheckpointStore(left / "checkpoints").newest_sound(pytest.fail)
        if newest is None:
            assert after_first == 0, "a checkpoint that counted is gone"
        after_first += newest is not None
        if newest is not None and (after_first == 1 or after_first % every == 0):
            resumed += 1
            steps = [row["step"] for row in read_metrics(left) if row["kind"] == "step"]
            assert set(steps) >= set(range(1, newest.step + 1)), "metrics up to the checkpoint"
            check_goes_on(make_config(training__epochs=3, run_dir=str(left)), whole.directory)
        elif newest is None and number % every == 0:
            check_goes_on(make_config(training__epochs=3, run_dir=str(left)), whole.directory)
    return len(images), after_first, resumed


def check_goes_on(cfg, whole):
    run = train(cfg)
    weights = [load_run(path, device="cpu").model.state_dict() for path in (run.directory, whole)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.slow
def test_power_cuts_leave_a_run_that_goes_on(disk, make_config, tmp_path):  # noqa: F811
    cuts, after_first, resumed = cut_everywhere(disk, make_config, tmp_path, every=12)
    assert cuts > 40 and after_first > 20 and resumed > 1


@pytest.mark.exhaustive
def test_all_power_cuts_leave_a_run_that_goes_on(disk, make_config, tmp_path):  # noqa: F811
    cuts, after_first, resumed = cut_everywhere(disk, make_config, tmp_path, every=1)
    print(f"{cuts} cuts, {after_first} after the first checkpoint, {resumed} resumed")
    assert resumed == after_first


def test_the_disk_of_these_tests_loses_what_was_not_synced(disk, tmp_path):
    """Without syncs nothing is left; with the file alone, no name; with both, the file."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("a")
    (folder / "b").write_text("b")
    for number, paths in enumerate([(), (folder / "a",), (folder / "a", folder)]):
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        image = disk.images[-1] if disk.images else ({}, {})
        Disk.restore(image, os.stat(folder).st_ino, tmp_path / str(number))
    found = [sorted(p.name for p in (tmp_path / str(n)).iterdir()) for n in range(3)]
    assert found == [[], [], ["a", "b"]]
    assert [(tmp_path / "2" / name).read_text() for name in "ab"] == ["a", ""]
