"""Data files of others, which carry no checksums: what damage can be told is told by name."""

import json
import warnings

import numpy as np
import pytest
import torch
from physicsnemo.mesh import DomainMesh, Mesh

from physicsnemo_flarepp.datapipes import DrivAerMLReader
from physicsnemo_flarepp.datapipes.validation import check_range


@pytest.fixture
def domain(tmp_path):
    """A case of one DomainMesh: its folder and its reader."""
    n = 60
    generator = torch.Generator().manual_seed(0)
    surface = Mesh(
        points=torch.rand(n, 3, generator=generator),
        cells=torch.stack([torch.randperm(n, generator=generator)[:3] for _ in range(2 * n)]),
        cell_data={"p": 2 + torch.rand(2 * n, generator=generator)},
    )
    folder = tmp_path / "run_1" / "domain_1.pdmsh"
    folder.parent.mkdir()
    interior = Mesh(points=torch.zeros(1, 3))
    DomainMesh(interior=interior, boundaries={"vehicle": surface}).save(folder)
    return folder, DrivAerMLReader(tmp_path, fields=["p"], cases=["run_1"])


def damage(content, number, rng):
    """Cut or flip, by turns."""
    if number % 3 == 0:
        return content[: int(rng.integers(len(content)))]
    changed = bytearray(content)
    changed[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def check_descriptions(folder, reader, n):
    """Damage each meta.json `n` times; the values are the same or an error names the case."""
    warnings.simplefilter("ignore")
    sound = reader[0][0]
    rng = np.random.default_rng(3)
    outcomes = {"refused": 0, "same": 0}
    for path in sorted(folder.rglob("meta.json")):
        content = path.read_bytes()
        for number in range(n):
            path.write_bytes(damage(content, number, rng))
            try:
                sample = reader[0][0]
            except (ValueError, KeyError) as error:
                assert str(folder) in str(error)
                outcomes["refused"] += 1
            else:
                assert all(torch.equal(sample[key], sound[key]) for key in sound.keys())
                outcomes["same"] += 1
        path.write_bytes(content)
    return outcomes


def test_a_damaged_description_is_named(domain):
    assert check_descriptions(*domain, n=3)["refused"] > 20


@pytest.mark.exhaustive
def test_no_damaged_description_passes(domain):
    outcomes = check_descriptions(*domain, n=100)
    print(outcomes)
    assert outcomes["refused"] > 1000


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", '{"p": {"dtype": "torch.floot32", "shape": [3]}}', '{"p": {"dtype": 1}}'],
)
def test_the_file_that_is_damaged_is_named(domain, text):
    folder, reader = domain
    (path,) = folder.glob("**/vehicle/**/cell_data/meta.json")
    path.write_text(text)
    with pytest.raises(ValueError, match="domain_1.pdmsh cannot be read .*cell_data/meta.json"):
        reader[0]


def test_a_tensor_that_is_missing_is_named(domain):
    folder, reader = domain
    (path,) = folder.glob("**/vehicle/**/cell_data/meta.json")
    entries = json.loads(path.read_text())
    path.write_text(json.dumps({**entries, "q": entries["p"]}))
    with pytest.raises(ValueError, match="meta.json describes q.memmap, which is missing"):
        reader[0]


# A number from 2 to 4 has the exponent 10000000, one below 1 has 0111....
@pytest.mark.parametrize(
    ("array", "bit"), [("p.memmap", 28), ("p.memmap", 29), ("points.memmap", 30)]
)
def test_a_flipped_exponent_is_noticed(domain, array, bit):
    folder, reader = domain
    (path,) = folder.glob(f"**/vehicle/_tensordict/**/{array}")
    values = np.fromfile(path, np.uint32)
    assert not values[5] >> bit & 1
    values[5] |= 1 << bit
    values.tofile(path)
    with pytest.raises(ValueError, match="domain_1.pdmsh.*(10.9 times|NaN or infinite)"):
        reader[0]


def refusal(values):
    """What the check of the range says about values, or None."""
    try:
        return check_range("a.npz", "a", "fields", values)
    except ValueError as error:
        return str(error)


def test_sound_fields_pass():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 1000)
    peak = np.exp(-((x - 0.5) ** 2) / 1e-5) + 1e-7 * rng.normal(size=1000)
    one_hot = np.zeros(1000)
    one_hot[3] = 1e30
    singular = 1 / (np.abs(x - 0.5) + 1e-6)
    constant, tiny = np.full(1000, 1e30), np.full(1000, 1e-30)
    values = np.stack([peak, one_hot, singular, constant, tiny], axis=1)
    assert [refusal(some) for some in (values, values[:1], values[:0])] == [None] * 3
