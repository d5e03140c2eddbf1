"""One flipped bit anywhere in a run: an error or warning that names the file, or no effect."""

import os
import random
import shutil
import warnings

import pytest
import torch
from omegaconf import OmegaConf

from physicsnemo_flarepp.evaluation import force_settings, load_run
from physicsnemo_flarepp.inference import LatentState
from physicsnemo_flarepp.runs import CheckpointStore, load_training_state, read_metrics
from physicsnemo_flarepp.runs.directory import RunDirectory
from physicsnemo_flarepp.training import train
from tests.training.conftest import (  # noqa: F401
    make_config,
    one_thread,
    surface_set,
)


def listed(value):
    """Tensors as lists, so that everything compares with ==."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: listed(item) for key, item in value.items()}
    return [listed(item) for item in value] if isinstance(value, list | tuple) else value


def predicted(directory, checkpoint):
    """All that a prediction depends on, and one on fixed points."""
    run = load_run(directory, device="cpu", checkpoint=checkpoint)
    points = torch.linspace(-1, 1, 30).reshape(1, 10, 3)
    with torch.no_grad():
        fields = run.normalizer.inverse(run.model(points))
    return (
        fields.tolist(),
        listed(run.normalizer.state_dict()),
        run.channels,
        OmegaConf.to_container(run.config),
        run.training_set,
        force_settings(run),
    )


def resumed(directory, _):
    """All that a resumed run goes on from."""
    told = []
    newest = CheckpointStore(directory / "checkpoints").newest_sound(told.append)
    if told:
        raise ValueError(told[0])
    RunDirectory(directory).check_sound()
    return listed(load_training_state(newest))


def outcome(look, directory, checkpoint, expected):
    """Return what a flip led to: ``same``, ``silent``, or the message."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = look(directory, checkpoint)
        except (ValueError, FileNotFoundError) as error:
            return str(error)
    told = [str(warning.message) for warning in caught]
    return told[0] if told else "same" if found == expected else "silent"


def flip(path, byte, bit):
    with open(path, "r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ (1 << bit)]))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("finished") / "run"


@pytest.fixture
def finished(make_config, place, tmp_path):  # noqa: F811
    if not place.exists():
        train(make_config(training__epochs=3, run_dir=str(place)))
    return shutil.copytree(place, tmp_path / "flipped")


def attack(directory, per_file):
    """Flip bits of every file; return the number of flips, of messages, and the silent ones."""
    looks = [(predicted, "final"), (predicted, "best"), (resumed, None)]
    expected = [look(directory, checkpoint) for look, checkpoint in looks]
    draw = random.Random(0)
    flips, told, silent = 0, 0, []
    depends = set()
    for path in sorted(p for p in directory.rglob("*") if p.is_file() and p.stat().st_size):
        size = path.stat().st_size
        for byte in sorted(draw.sample(range(size), min(per_file, size))):
            bit = draw.randrange(8)
            flip(path, byte, bit)
            flips += 1
            for (look, checkpoint), whole in zip(looks, expected, strict=True):
                found = outcome(look, directory, checkpoint, whole)
                if found == "silent" or (found != "same" and path.name not in found):
                    silent.append((path.name, byte, bit, found))
                elif found != "same":
                    told += 1
                    depends.add(path.name)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read_metrics(directory)  # a strange line blocks nothing
            flip(path, byte, bit)
    assert depends >= {
        "run_manifest.json",
        "config.yaml",
        "channels.json",
        "normalizer.safetensors",
        "training_set.json",
        "model.mdlus",
        "training.pt",
        "manifest.json",
    }
    print(f"{flips} flips, {told} messages, {len(silent)} silent")
    return flips, told, silent


@pytest.mark.slow
def test_no_flip_is_silent(finished):
    flips, told, silent = attack(finished, per_file=2)
    assert flips > 40 and told > 40 and silent == []


@pytest.mark.exhaustive
def test_no_flip_of_many_is_silent(finished):
    flips, _, silent = attack(finished, per_file=150)
    assert flips > 2000 and silent == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["channels.json", "normalizer.safetensors", "training_set.json"])
def test_a_lost_file_is_named_with_what_to_do(finished, name):
    (finished / name).unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=f"{name}.*(restore|flarepp train)"):
        load_run(finished)


@pytest.mark.slow
def test_a_scale_that_changed_is_not_used(finished, make_config):  # noqa: F811
    """A valid normaliser, but another: only the manifest can tell."""
    run = load_run(finished, device="cpu")
    run.normalizer.affine["fields"].scale.mul_(1.5)
    run.normalizer.save(finished / "normalizer.safetensors")
    message = "normalizer.safetensors was changed.*restore it from a copy.*restart=true"
    with pytest.raises(ValueError, match=message):
        load_run(finished)
    with pytest.raises(ValueError, match=message):
        train(make_config(training__epochs=3, run_dir=str(finished)))
    train(make_config(training__epochs=3, run_dir=str(finished), restart=True))
    load_run(finished)


def test_a_run_without_a_manifest_is_loaded_with_a_warning_and_not_resumed(
    finished,
    make_config,  # noqa: F811
):
    (finished / "run_manifest.json").unlink()
    with pytest.warns(UserWarning, match="no run_manifest.json.*without verification"):
        load_run(finished)
    with pytest.raises(ValueError, match="no run_manifest.json: restore it"):
        train(make_config(training__epochs=3, run_dir=str(finished)))


def test_damage_that_no_manifest_covers_names_the_file(finished):
    (finished / "run_manifest.json").unlink()
    for name in ("channels.json", "config.yaml", "normalizer.safetensors"):
        path = finished / name
        whole = path.read_bytes()
        damages = [b"", b"[]", b"{", b"\xff\xfe\x00", b"{}", b"a: [1", whole[:9]]
        for damage in damages:
            path.write_bytes(damage)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with pytest.raises(ValueError, match=name):
                    predicted(finished, "final")
        path.write_bytes(whole)


def test_a_strange_line_in_the_metrics_does_not_block_a_resume(finished, make_config):  # noqa: F811
    metrics = finished / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    strange = [b"\xff\x00\n", b"{}\n", b"[1, 2]\n", b'{"step": "x", "kind": 1}\n', b"\n"]
    metrics.write_bytes(b"".join(lines[:4] + strange + lines[4:]))
    with pytest.warns(UserWarning, match="metrics.jsonl: line 5, 6, 7, 8, 9 of"):
        train(make_config(training__epochs=3, run_dir=str(finished)))
    assert metrics.read_bytes() == b"".join(lines)


def test_no_flip_in_a_latent_state_is_silent(tmp_path):
    state = LatentState(((torch.rand(1, 2, 4, 8), torch.rand(1, 2, 4, 8)),), "0" * 64)
    path = tmp_path / "car.state"
    state.save(path)
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()
    for byte in range(0, path.stat().st_size, 7):
        flip(path, byte, byte % 8)
        with pytest.raises(ValueError, match=r"car\.state"):
            LatentState.load(path)
        flip(path, byte, byte % 8)
    assert torch.equal(LatentState.load(path).latents[0][1], state.latents[0][1])


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
