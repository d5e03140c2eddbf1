"""The download against a hub on 127.0.0.1; nothing leaves the machine."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.datapipes.download import download

FILES = {f"pipe/{name}.npy": name.encode() * 4000 for name in ("Pipe_X", "Pipe_Y", "Pipe_Q")}
FILES["README.md"] = b"about"


class Hub(BaseHTTPRequestHandler):
    """Two pages of listing and ranged downloads; `cut` bytes are sent before the line breaks."""

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get("Range")))
        if self.path.startswith("/api/"):
            return self.listing()
        name = self.path.split("/resolve/main/")[1]
        content = self.server.contents[name]
        start = int(re.match(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])
        ranged = self.server.ranges and start > 0
        body = content[start:] if ranged else content
        self.send_response(206 if ranged else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut])

    def listing(self):
        entries = []
        for name, content in FILES.items():
            blob = b"blob %d\0" % len(content) + content
            entry = {"type": "file", "path": name, "size": len(content)}
            entry["oid"] = hashlib.sha1(blob).hexdigest()
            if "Pipe_X" not in name:
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest()}
            entries.append(entry)
        second = "cursor" in self.path
        self.send_response(200)
        if not second:
            address = f"http://127.0.0.1:{self.server.server_port}{self.path}&cursor=2"
            self.send_header("Link", f'<{address}>; rel="next"')
        self.end_headers()
        page = entries[2:] if second else [{"type": "directory", "path": "pipe"}, *entries[:2]]
        self.wfile.write(json.dumps(page).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.contents, server.requests, server.cut, server.ranges = dict(FILES), [], None, True
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_set_is_fetched_flat_and_not_twice(hub, tmp_path, capsys):
    assert main(["download", "pipe", "--root", str(tmp_path), "--endpoint", hub.address]) == 0
    assert f"set `data.root` to {tmp_path / 'pipe'}" in capsys.readouterr().out
    assert names(tmp_path / "pipe") == ["Pipe_Q.npy", "Pipe_X.npy", "Pipe_Y.npy"]
    assert (tmp_path / "pipe" / "Pipe_Q.npy").read_bytes() == FILES["pipe/Pipe_Q.npy"]
    hub.requests.clear()
    download("pipe", tmp_path, endpoint=hub.address)
    assert all(path.startswith("/api/") for path, _ in hub.requests)


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no-ranges"])
def test_an_interrupted_file_goes_on_where_it_stopped(hub, tmp_path, ranges):
    hub.cut = 1000
    with pytest.raises(ConnectionError, match="after 1000 of 24000 bytes.*goes on where"):
        download("pipe", tmp_path, endpoint=hub.address)
    assert names(tmp_path / "pipe") == ["Pipe_X.npy.part"]
    hub.cut, hub.ranges = None, ranges
    hub.requests.clear()
    download("pipe", tmp_path, endpoint=hub.address)
    asked = [asked for path, asked in hub.requests if path.endswith("Pipe_X.npy")]
    assert asked == ["bytes=1000-"]
    assert (tmp_path / "pipe" / "Pipe_X.npy").read_bytes() == FILES["pipe/Pipe_X.npy"]


@pytest.mark.parametrize("name", ["pipe/Pipe_X.npy", "pipe/Pipe_Q.npy"], ids=["git", "sha256"])
def test_a_wrong_checksum_is_refused_and_removed(hub, tmp_path, name):
    hub.contents[name] = FILES[name][:-1] + b"!"
    with pytest.raises(ValueError, match="checksum is .*, expected .*call again"):
        download("pipe", tmp_path, endpoint=hub.address)
    local = tmp_path / name
    assert not local.exists() and not local.with_name(local.name + ".part").exists()


def test_a_damaged_local_file_is_fetched_again(hub, tmp_path):
    directory = download("pipe", tmp_path, endpoint=hub.address)
    (directory / "Pipe_Y.npy").write_bytes(b"damaged")
    download("pipe", tmp_path, endpoint=hub.address)
    assert (directory / "Pipe_Y.npy").read_bytes() == FILES["pipe/Pipe_Y.npy"]


def test_a_set_that_the_hub_does_not_hold_is_named(hub, tmp_path):
    with pytest.raises(FileNotFoundError, match="has no file NACA_Cylinder_X.npy.*Pipe_X.npy"):
        download("airfoil", tmp_path, endpoint=hub.address)


def test_offline_says_how_to_fetch_by_hand(hub, tmp_path, capsys):
    address = "http://127.0.0.1:9"  # the discard port: nothing listens
    assert main(["download", "darcy", "--root", str(tmp_path), "--endpoint", address]) == 1
    message = capsys.readouterr().err
    for part in ("offline", "piececonst_r421_N1024_smooth1.mat", "huggingface.co", "builtin"):
        assert part in message
    assert np.array_equal(list(tmp_path.iterdir()), [])
    with pytest.raises(ValueError, match="'cars' is not published"):
        download("cars", tmp_path)
