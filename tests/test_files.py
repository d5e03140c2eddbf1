import errno
import hashlib
import os
from pathlib import Path

import pytest
import torch

from physicsnemo_flarepp.files import (
    exclusive,
    explained,
    fingerprint,
    reading,
    replace_file,
    temporaries,
    whole_file,
    write_durably,
)


def test_pieces_of_any_size_arrive_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("physicsnemo_flarepp.files._CHUNK", 10)
    pieces = [bytes([length]) * length for length in (3, 0, 8, 10, 11, 1, 40, 9, 2)]
    written = write_durably(tmp_path / "file", lambda sink: [sink.write(p) for p in pieces])
    data = (tmp_path / "file").read_bytes()
    assert data == b"".join(pieces)
    assert written == (len(data), hashlib.sha256(data).hexdigest())
    assert fingerprint(tmp_path / "file") == written


def test_the_kernels_full_disk_is_raised_as_it_is():
    """torch.save alone turns a failed write into a RuntimeError about positions."""
    state = {"a": torch.zeros(1 << 19), "b": torch.zeros(1 << 19)}
    with pytest.raises(OSError) as caught:
        write_durably(Path("/dev/full"), lambda sink: torch.save(state, sink))
    assert caught.value.errno == errno.ENOSPC


def test_an_error_of_the_writer_itself_is_raised_as_it_is(tmp_path):
    with pytest.raises(ZeroDivisionError):
        replace_file(tmp_path / "file", lambda sink: sink.write(b"x") / 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["write", "fsync", "replace"])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch, name):
    path = tmp_path / "file"
    replace_file(path, lambda sink: sink.write(b"old"))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        with pytest.raises(OSError, match=r"cannot write .*file: No space left.*MB are free"):
            replace_file(path, lambda sink: sink.write(b"new"))
    assert path.read_bytes() == b"old"
    replace_file(path, lambda sink: sink.write(b"new"))
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_hint_fits_the_error(tmp_path):
    with pytest.raises(PermissionError, match="make the folder writable"), explained(tmp_path):
        raise PermissionError(errno.EACCES, "denied")
    missing = tmp_path / "not" / "there"
    with pytest.raises(OSError, match="keep fewer checkpoints"), explained(missing):
        raise OSError(errno.EDQUOT, "quota")


def test_a_writer_of_a_named_file_replaces_it_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.png"
    with whole_file(path) as draft:
        draft.write_text("whole")
        assert draft.suffix == ".png" and not path.exists() and temporaries(path) == [draft]
    with pytest.raises(RuntimeError), whole_file(path) as draft:
        draft.write_text("ha")
        raise RuntimeError
    assert path.read_text() == "whole" and list(tmp_path.iterdir()) == [path]


def test_a_writer_that_wrote_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="cannot write"), whole_file(tmp_path / "a.png"):
        pass


@pytest.mark.parametrize("error", [PermissionError("a.npy"), MemoryError("8 GB"), KeyError("p")])
def test_errors_that_are_not_about_the_content_pass_unchanged(error):
    with pytest.raises(type(error)) as caught, reading("a.npy"):
        raise error
    assert caught.value is error


def test_a_lock_is_held_refused_and_freed(tmp_path):
    lock = tmp_path / ".lock"
    lock.write_bytes(b"kept")

    def refuse():
        raise RuntimeError("taken")

    with exclusive(lock, refuse) as file:
        assert os.path.samestat(os.fstat(file.fileno()), lock.stat())
        with pytest.raises(RuntimeError, match="taken"), exclusive(lock, refuse):
            pytest.fail("held twice")
    with exclusive(lock, refuse):
        assert lock.read_bytes() == b"kept"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"), exclusive(tmp_path / "link", lambda: None):
        pytest.fail("followed")
    assert not (tmp_path / "elsewhere").exists()
