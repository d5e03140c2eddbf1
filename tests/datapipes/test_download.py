"""The download against a hub on 127.0.0.1 with the layout of the real one; nothing leaves here."""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse

import numpy as np
import pytest
from huggingface_hub.errors import HfHubHTTPError

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.datapipes import transfer
from physicsnemo_flarepp.datapipes.download import (
    ARCHIVED_SETS,
    download,
    download_runs,
    parse_runs,
)
from physicsnemo_flarepp.datapipes.readers import DarcyReader, DrivAerMLReader, GeoFNOReader
from physicsnemo_flarepp.datapipes.specs import PRESAMPLED_SIZES, benchmark

SETS, RAW = "vedantpuri/PDESurrogates", "neashton/drivaerml"


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def packed(members):
    """Return a .tar.gz; a member is bytes, None for a folder, or a TarInfo."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            entry = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            entry.name = name
            if isinstance(content, bytes):
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            else:
                entry.type = tarfile.DIRTYPE if content is None else entry.type
                archive.addfile(entry)
    return buffer.getvalue()


def grid(*shape):
    return npy(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def real_layout():
    """Return repository -> path -> content, with the names that the hub has and few numbers."""
    geofno = {
        "Geo-FNO": None,
        "Geo-FNO/elasticity/Meshes/Random_UnitCell_XY_10.npy": grid(972, 2, 3),
        "Geo-FNO/elasticity/Meshes/Random_UnitCell_sigma_10.npy": grid(972, 3),
        "Geo-FNO/airfoil/naca/NACA_Cylinder_X.npy": grid(2, 221, 51),
        "Geo-FNO/airfoil/naca/NACA_Cylinder_Y.npy": grid(2, 221, 51),
        "Geo-FNO/airfoil/naca/NACA_Cylinder_Q.npy": grid(2, 5, 221, 51),
        "Geo-FNO/pipe/Pipe_X.npy": grid(2, 129, 129),
        "Geo-FNO/pipe/Pipe_Y.npy": grid(2, 129, 129),
        "Geo-FNO/pipe/Pipe_Q.npy": grid(2, 3, 129, 129),
        "Geo-FNO/plasticity/plas_N987_T20.mat": b"not read here",
    }
    from scipy.io import savemat

    # Something that does not get shorter by packing.
    darcy = {"FNO/darcy/note": np.random.default_rng(0).bytes(20_000)}
    for resolution, file in ((421, "smooth1"), (421, "smooth2"), (241, "smooth1")):
        buffer = io.BytesIO()
        sol = np.ones((2, resolution, resolution), dtype=np.float32)
        savemat(buffer, {"coeff": sol, "sol": sol}, do_compression=True)
        darcy[f"FNO/darcy/piececonst_r{resolution}_N1024_{file}.mat"] = buffer.getvalue()
    contents = {"README.md": b"about", "Geo-FNO.tar.gz": packed(geofno)}
    contents["FNO.tar.gz"] = packed(darcy)
    centers = np.arange(24, dtype=np.float32).reshape(8, 3)
    for size in PRESAMPLED_SIZES:
        folder = f"drivaerml_surface_presampled_{size}"
        case = npz(surface_mesh_centers=centers, surface_fields=np.ones((8, 4), np.float32))
        cases = {f"{folder}/train/run_1.npz": case, f"{folder}/test/run_2.npz": case}
        contents[f"{folder}.tar.gz"] = packed(cases)
    runs = {"force_mom_all.csv": b"run,cd\n"}
    for run in (1, 3):
        runs |= {
            f"run_{run}/boundary_{run}.vtp": b"vtp" * 1000,
            f"run_{run}/drivaer_{run}.stl": b"stl" * 500,
            f"run_{run}/force_mom_{run}.csv": b"cd\n0.3\n",
            f"run_{run}/geo_ref_{run}.csv": b"area\n2.2\n",
            f"run_{run}/volume_{run}.vtu.00.part": b"first ",
            f"run_{run}/volume_{run}.vtu.01.part": b"second",
            f"run_{run}/images/wake.png": b"png",
        }
    return {SETS: contents, RAW: runs}


class Hub(BaseHTTPRequestHandler):
    """Listings, and downloads that go to a storage elsewhere; `cut` bytes come before a break."""

    def do_GET(self):
        self.server.requests.append((self.path, self.headers))
        path = urlparse(self.path).path
        if match := re.match(r"/api/datasets/([^/]+/[^/]+)/tree/main/?(.*)", path):
            return self.listing(*match.groups())
        repository, name = re.match(r"/\w+/([^/]+/[^/]+)/resolve/main/(.+)", path).groups()
        if path.startswith("/datasets/"):
            self.send_response(302)
            self.send_header("Location", path.replace("/datasets/", f"{self.server.storage}/cdn/"))
            return self.end_headers()
        content = self.server.contents[repository][name]
        start = int(re.match(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])
        ranged = self.server.ranges and start > 0
        body = content[start:] if ranged else content
        self.send_response(206 if ranged else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut])
        if self.server.hang:
            self.wfile.flush()
            self.server.sent.set()
            time.sleep(60)

    def listing(self, repository, folder):
        files = self.server.listed[repository]
        inside = [name for name in files if name.startswith(f"{folder}/" if folder else "")]
        if not inside:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            return self.end_headers()
        entries = {}
        for name in inside:
            rest = name.removeprefix(f"{folder}/" if folder else "")
            if "/" in rest:
                top = name.removesuffix(rest) + rest.partition("/")[0]
                entries[top] = {"type": "directory", "path": top, "oid": "0"}
                continue
            blob = b"blob %d\0" % len(files[name]) + files[name]
            entry = {"type": "file", "path": name, "size": len(files[name])}
            entry["oid"] = hashlib.sha1(blob).hexdigest()
            if not name.endswith((".csv", ".md")):
                sha256 = hashlib.sha256(files[name]).hexdigest()
                entry["lfs"] = {"oid": sha256, "size": len(files[name]), "pointerSize": 134}
            entries[name] = entry
        page, last = list(entries.values()), "cursor" in self.path
        self.send_response(200)
        if not last:
            mark = "&" if "?" in self.path else "?"
            address = f"http://127.0.0.1:{self.server.server_port}{self.path}{mark}cursor=2"
            self.send_header("Link", f'<{address}>; rel="next"')
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(page[2:] if last else page[:2]).encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def layout():
    return real_layout()


@pytest.fixture
def hub(monkeypatch, layout):
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    monkeypatch.setattr(transfer, "_PAUSE_SECONDS", 0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads, server.block_on_close = True, False
    server.listed = {name: dict(files) for name, files in layout.items()}
    server.contents = {name: dict(files) for name, files in layout.items()}
    server.requests, server.cut, server.ranges, server.hang = [], None, True, False
    server.sent = threading.Event()
    server.address = f"http://127.0.0.1:{server.server_port}"
    # Another name of this machine, as the hub's storage is another host.
    server.storage = f"http://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def asked(hub, name):
    """Return the ranges that were asked of the storage for a file."""
    return [
        headers.get("Range")
        for path, headers in hub.requests
        if path.startswith("/cdn/") and path.endswith(name)
    ]


# --- archives


@pytest.mark.parametrize("name", ARCHIVED_SETS)
def test_a_set_arrives_where_its_reader_finds_it(hub, tmp_path, name):
    folder = download(name, tmp_path, endpoint=hub.address)
    spec = benchmark(name)
    assert visible(tmp_path) == [spec.archive.removesuffix(".tar.gz")] == [folder.name]
    counts = {"n_train": 1, "n_test": 1}
    if spec.reader == "DarcyReader":
        reader = DarcyReader(folder, "test", **counts)
        assert reader.path.name == "piececonst_r421_N1024_smooth2.mat"
    elif spec.reader == "DrivAerMLReader":
        reader = DrivAerMLReader(folder, "test")
        assert reader.case_ids == DrivAerMLReader(tmp_path, "test").case_ids == ["run_2"]
    elif name == "plasticity":
        assert (folder / "plasticity" / "plas_N987_T20.mat").is_file()
        return
    else:
        reader = GeoFNOReader(folder, name, "test", **counts)
    assert reader[0][0]["fields"].isfinite().all()


def test_a_set_is_not_fetched_twice_and_shared_archives_once(hub, tmp_path, capsys):
    command = ["download", "pipe", "--root", str(tmp_path), "--endpoint", hub.address]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert f"set `data.root` to {tmp_path / 'Geo-FNO'}" in out and "to fetch" in out
    hub.requests.clear()
    for name in ("pipe", "airfoil"):
        download(name, tmp_path, endpoint=hub.address)
    assert hub.requests == []


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no-ranges"])
def test_a_line_that_breaks_is_taken_up_where_it_broke(hub, tmp_path, ranges):
    size = len(hub.contents[SETS]["FNO.tar.gz"])
    hub.cut = size - 1000
    hub.ranges = ranges
    if ranges:
        download("darcy", tmp_path, endpoint=hub.address)
        assert asked(hub, "FNO.tar.gz") == [None, f"bytes={size - 1000}-"]
        return
    # A storage that always starts over never gets further.
    with pytest.raises(
        ConnectionError, match=f"after {size - 1000} of {size} bytes.*Call again to resume"
    ):
        download("darcy", tmp_path, endpoint=hub.address)
    hub.cut = None
    download("darcy", tmp_path, endpoint=hub.address)
    assert visible(tmp_path) == ["FNO"]


def test_a_killed_download_goes_on_where_it_was_killed(hub, tmp_path):
    hub.cut, hub.hang = 5000, True
    code = (
        "from physicsnemo_flarepp.datapipes.download import download\n"
        f"download('darcy', {str(tmp_path)!r}, endpoint={hub.address!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    part = tmp_path / "FNO.tar.gz.part"
    try:
        assert hub.sent.wait(60)
        hub.hang = False
        while part.stat().st_size < 5000:
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert visible(tmp_path) == ["FNO.tar.gz.part"]
    hub.cut = None
    hub.requests.clear()
    download("darcy", tmp_path, endpoint=hub.address)
    assert asked(hub, "FNO.tar.gz") == ["bytes=5000-"]


def test_a_wrong_checksum_is_refused_and_removed(hub, tmp_path):
    hub.contents[SETS]["FNO.tar.gz"] = hub.contents[SETS]["FNO.tar.gz"][:-1] + b"!"
    with pytest.raises(ValueError, match="sha256 checksum is .*, expected .*call again"):
        download("darcy", tmp_path, endpoint=hub.address)
    assert visible(tmp_path) == []


def test_an_archive_copied_by_hand_is_unpacked(tmp_path, layout):
    (tmp_path / "FNO.tar.gz").write_bytes(layout[SETS]["FNO.tar.gz"])
    assert download("darcy", tmp_path, endpoint="http://127.0.0.1:9", keep=True).is_dir()
    assert visible(tmp_path) == ["FNO", "FNO.tar.gz"]


def link(target, kind=tarfile.SYMTYPE):
    entry = tarfile.TarInfo()
    entry.type, entry.linkname = kind, target
    return entry


def device():
    entry = tarfile.TarInfo()
    entry.type = tarfile.CHRTYPE
    return entry


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"FNO/../../outside": b"x"}, "leaves the folder"),
        ({"/outside": b"x"}, "leaves the folder"),
        ({"FNO/a": link("/etc/passwd")}, "a link"),
        ({"FNO/a": link("FNO/b", tarfile.LNKTYPE)}, "a link"),
        ({"FNO/a": device()}, "not a regular file"),
        ({"FNO/a": b"x", "./FNO/a": b"y"}, "in it twice"),
        ({"FNO/a": b"x", "FNO/a/b": b"y"}, "both a file and a folder"),
    ],
)
def test_an_archive_that_would_write_elsewhere_is_refused(tmp_path, members, reason):
    root = tmp_path / "deep" / "data"
    root.mkdir(parents=True)
    # What harms comes last, after a member that is as it should be.
    harmless = {"FNO/piececonst_r421_N1024_smooth1.mat": b"x"}
    (root / "FNO.tar.gz").write_bytes(packed(harmless | members))
    with pytest.raises(ValueError, match=f"is refused.*{reason}.*Nothing was unpacked"):
        download("darcy", root)
    assert visible(root) == ["FNO.tar.gz"]
    assert visible(tmp_path) == ["deep"] and visible(tmp_path / "deep") == ["data"]


def test_a_cut_archive_never_looks_finished(tmp_path, layout):
    whole = layout[SETS]["Geo-FNO.tar.gz"]
    (tmp_path / "Geo-FNO.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="Geo-FNO.tar.gz cannot be read"):
        download("pipe", tmp_path)
    assert visible(tmp_path) == ["Geo-FNO.tar.gz"]


def test_what_a_kill_left_while_unpacking_is_thrown_away(hub, tmp_path):
    left = tmp_path / ".FNO.unpacking" / "FNO"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x")
    folder = download("darcy", tmp_path, endpoint=hub.address)
    assert not list(folder.rglob("half")) and not left.parent.exists()


def test_a_full_disk_is_told_before_anything_is_written(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda _: shutil_usage(free=100))
    assert main(["download", "darcy", "--root", str(tmp_path), "--endpoint", hub.address]) == 1
    assert "FNO.tar.gz and its contents needs" in capsys.readouterr().err
    assert visible(tmp_path) == [] and asked(hub, "FNO.tar.gz") == []


def shutil_usage(free):
    return type("usage", (), {"free": free})


def test_a_folder_that_is_something_else_is_named(tmp_path):
    (tmp_path / "FNO").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no piececonst_r421.*Move it away"):
        download("darcy", tmp_path)


def test_an_archive_that_the_hub_does_not_hold_is_named(hub, tmp_path):
    del hub.listed[SETS]["FNO.tar.gz"]
    with pytest.raises(FileNotFoundError, match="has no file FNO.tar.gz.*Geo-FNO.tar.gz"):
        download("darcy", tmp_path, endpoint=hub.address)


def test_offline_says_how_to_fetch_by_hand(tmp_path, capsys, monkeypatch):
    # huggingface_hub waits before it tries again.
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    address = "http://127.0.0.1:9"  # the discard port: nothing listens
    assert main(["download", "darcy", "--root", str(tmp_path), "--endpoint", address]) == 1
    message = capsys.readouterr().err
    for part in ("offline", "FNO.tar.gz", "huggingface.co", "builtin"):
        assert part in message
    assert visible(tmp_path) == []
    with pytest.raises(ValueError, match="'cars' is not published"):
        download("cars", tmp_path)


def test_a_token_goes_to_the_hub_and_not_to_its_storage(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    download("darcy", tmp_path, endpoint=hub.address)
    sent = {path.split("/")[1]: headers.get("Authorization") for path, headers in hub.requests}
    assert sent == {"api": "Bearer hf_secret", "datasets": "Bearer hf_secret", "cdn": None}


# --- runs


def test_runs_and_kinds_are_chosen_and_their_size_told_first(hub, tmp_path, capsys):
    command = ["download", "drivaerml_raw", "--root", str(tmp_path), "--endpoint", hub.address]
    assert main([*command, "--runs", "1-3", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "not on the hub: the runs 2" in out
    assert "6 files of 2 runs, 6.0 kB, of which 6.0 kB are to be fetched" in out
    assert visible(tmp_path) == []
    assert main([*command, "--runs", "1-3"]) == 0
    folder = tmp_path / "drivaerml_raw"
    assert visible(folder) == ["manifest.json", "run_1", "run_3"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["splits"] == {"train": ["run_1", "run_3"]}
    assert "none is for test: fetch some of 11, 12" in capsys.readouterr().out
    names = ["boundary_1.vtp", "force_mom_1.csv", "geo_ref_1.csv"]
    assert visible(folder / "run_1") == names
    capsys.readouterr()
    hub.requests.clear()
    assert main([*command, "--runs", "1,3", "--files", "stl", "boundary"]) == 0
    assert "9.0 kB, of which 3.0 kB are to be fetched" in capsys.readouterr().out
    assert asked(hub, ".vtp") == [] and len(asked(hub, ".stl")) == 2


def test_parts_of_a_volume_are_put_together_once(hub, tmp_path):
    for _ in range(2):
        folder = download_runs("drivaerml_raw", tmp_path, [1], ["volume"], endpoint=hub.address)
    assert visible(folder / "run_1") == ["volume_1.vtu"]
    assert (folder / "run_1" / "volume_1.vtu").read_bytes() == b"first second"
    assert len(asked(hub, ".part")) == 2


def test_runs_that_the_hub_does_not_hold_are_an_error(hub, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no boundary, csv of the runs \[2\]"):
        download_runs("drivaerml_raw", tmp_path, [2], endpoint=hub.address)


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "1,,2", "-1"])
def test_runs_that_are_no_numbers_are_refused(text):
    with pytest.raises(ValueError, match="expected numbers and ranges"):
        parse_runs(text)


def test_wrong_use_is_told(tmp_path, capsys):
    assert main(["download", "drivaerml_raw", "--root", str(tmp_path)]) == 2
    assert "--runs is missing" in capsys.readouterr().err
    assert main(["download", "pipe", "--runs", "1", "--root", str(tmp_path)]) == 2
    assert "pipe is one archive" in capsys.readouterr().err


def test_a_refusal_of_the_hub_names_the_token(hub, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise HfHubHTTPError(
            "gated",
            response=type("answer", (), {"status_code": 403, "headers": {}, "request": None})(),
        )

    monkeypatch.setattr(transfer.HfApi, "list_repo_tree", refuse)
    with pytest.raises(ConnectionError, match="answered 403.*HF_TOKEN"):
        download("darcy", tmp_path, endpoint=hub.address)
