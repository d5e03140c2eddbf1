"""What each benchmark is: files, arrays, splits, grid and normalisation, each stated once.

Sources: the Geo-FNO, FNO and DrivAerML publications and the FLARE++ paper (Appendix on the PDE
benchmarks). The built-in sets (``builtin``) are written in the same layouts, so a spec
describes both; only the number of cases differs.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

HUB_REPOSITORY = "vedantpuri/PDESurrogates"
# File beside the cases of a set that lists its splits.
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class ForceConvention:
    """How a publisher stores what forces on a surface need."""

    publisher: str
    pressure: str
    shear: str
    shear_sign: int
    speed: float
    density: float


# By the name of the pressure, which tells the publisher: SI units, kinematic pressure. Both write
# OpenFOAM's wall shear stress.
FORCE_CONVENTIONS = {
    "pMeanTrim": ForceConvention(
        "DrivAerML", "pMeanTrim", "wallShearStressMeanTrim", -1, 38.889, 1.0
    ),
    "pMean": ForceConvention("AhmedML", "pMean", "wallShearStressMean", -1, 1.0, 1.0),
}


def builtin_name(root: str | Path | None, builtin: str | None) -> str | None:
    """Return which built-in set data comes from, by its name or the stamp in its directory."""
    stamp = Path(root or ".") / "stamp.json"
    if builtin is not None or root is None or not stamp.is_file():
        return builtin
    try:
        return json.loads(stamp.read_text())["name"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{stamp} is damaged ({error!r}); make the set again") from error


def force_convention(fields: Iterable[str], builtin: str | None = None) -> ForceConvention | None:
    """Return the convention that the forces of a set follow, None where it is not known."""
    known = next((FORCE_CONVENTIONS[name] for name in fields if name in FORCE_CONVENTIONS), None)
    if known is not None and builtin in ("cars", "cars_wake"):
        return replace(known, publisher="the built-in cars", shear_sign=1)
    return known


@dataclass(frozen=True)
class BenchmarkSpec:
    """One benchmark, as data."""

    name: str
    reader: str
    files: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    n_train: int
    n_test: int
    n_val: int = 0
    # Cases that are published for training and testing, the first of a file; None means all.
    pool: int | None = None
    grid: tuple[int, ...] | None = None
    normalization: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, tuple] = field(default_factory=dict)
    source: str = f"https://huggingface.co/datasets/{HUB_REPOSITORY}"
    published: tuple[str, ...] = ()
    archive: str | None = None

    @property
    def folder(self) -> str | None:
        """Name of the folder that the archive unpacks to."""
        return None if self.archive is None else self.archive.removesuffix(".tar.gz")


# Arrays, and their columns, under which presampled and curated DrivAerML files have these names.
TABLE_AREAS = "surface_areas"
TABLE_NAMES = {
    "pMeanTrim": ("surface_fields", slice(0, 1)),
    "wallShearStressMeanTrim": ("surface_fields", slice(1, 4)),
    "normals": ("surface_normals", None),
    "areas": (TABLE_AREAS, None),
}

# Tokens per case of the presampled DrivAerML surfaces, as their names say it.
PRESAMPLED_SIZES = ("10k", "40k", "100k", "200k", "300k", "400k", "500k", "1m")
_GAUSSIAN = {"coordinates": "none", "features": "gaussian", "fields": "gaussian"}
_geo_fno = partial(
    BenchmarkSpec,
    reader="GeoFNOReader",
    inputs=("x", "y"),
    n_train=1000,
    n_test=200,
    n_val=200,
    normalization={"coordinates": "none", "fields": "gaussian"},
    archive="Geo-FNO.tar.gz",
)
_drivaerml = partial(
    BenchmarkSpec,
    reader="DrivAerMLReader",
    inputs=("x", "y", "z"),
    outputs=("pMeanTrim",),
    normalization={"coordinates": "unit_box", "fields": "gaussian"},
)
_made = "built in: physicsnemo_flarepp.builtin.generate({!r})".format


def _presampled(size: str) -> BenchmarkSpec:
    name = f"drivaerml_surface_presampled_{size}"
    low, high = (-0.9425, -1.1314, -0.3176), (4.1325, 1.1317, 1.2445)
    span = tuple(b - a for a, b in zip(low, high, strict=True))
    constants = {"coordinates": (low, span), "fields": ((-229.845718,), (269.598572,))}
    return _drivaerml(
        name=f"drivaerml_{size}",
        files=(f"{name}/*/run_*.npz",),
        n_train=387,
        n_test=97,
        constants=constants if size == "40k" else {},  # published for this size alone
        archive=f"{name}.tar.gz",
    )


_SPECS = (
    _geo_fno(
        name="elasticity",
        files=("Random_UnitCell_XY_10.npy", "Random_UnitCell_sigma_10.npy"),
        outputs=("stress",),
    ),
    BenchmarkSpec(
        name="darcy",
        reader="DarcyReader",
        files=("piececonst_r*_N*_smooth1.mat", "piececonst_r*_N*_smooth2.mat"),
        inputs=("x", "y", "a"),
        outputs=("u",),
        n_train=1000,
        n_test=200,
        n_val=24,
        grid=(85, 85),
        # Statistics per point would know the boundary: its scale is 0, so it is predicted exactly.
        normalization=_GAUSSIAN,
        published=("piececonst_r421_N1024_smooth1.mat", "piececonst_r421_N1024_smooth2.mat"),
        archive="FNO.tar.gz",
    ),
    _geo_fno(
        name="airfoil",
        files=("NACA_Cylinder_X.npy", "NACA_Cylinder_Y.npy", "NACA_Cylinder_Q.npy"),
        outputs=("mach",),
        pool=1200,
        grid=(221, 51),
    ),
    _geo_fno(
        name="pipe",
        files=("Pipe_X.npy", "Pipe_Y.npy", "Pipe_Q.npy"),
        outputs=("u_x",),
        pool=1200,
        grid=(129, 129),
        normalization={"coordinates": "gaussian", "fields": "gaussian"},
    ),
    _geo_fno(
        name="plasticity",
        files=("plas_N987_T20.mat",),
        inputs=("x", "y", "die", "t"),
        outputs=("x_deformed", "y_deformed", "u_x", "u_y"),
        n_train=900,
        n_test=80,
        n_val=7,
        grid=(101, 31),
        normalization=_GAUSSIAN,
    ),
    *map(_presampled, PRESAMPLED_SIZES),
    *(
        _drivaerml(
            name=name,
            files=("run_*/boundary_*.vtp", MANIFEST),
            n_train=40,
            n_test=8,
            source=_made(name),
        )
        for name in ("cars", "cars_wake")
    ),
    BenchmarkSpec(
        name="car_volumes",
        reader="OwnReader",
        files=("run_*/volume_*.vtu", MANIFEST),
        inputs=("x", "y", "z", "distance", "direction"),
        outputs=("pMeanTrim", "UMeanTrim"),
        n_train=40,
        n_test=8,
        source=_made("car_volumes"),
    ),
)

BENCHMARKS: Mapping[str, BenchmarkSpec] = {spec.name: spec for spec in _SPECS}


def benchmark(name: str) -> BenchmarkSpec:
    """Return the spec called `name`."""
    if name not in BENCHMARKS:
        raise ValueError(f"benchmark {name!r} is not known; choose one of {sorted(BENCHMARKS)}")
    return BENCHMARKS[name]
