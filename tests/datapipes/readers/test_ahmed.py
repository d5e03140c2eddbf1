"""Surfaces of a real solver (AhmedML), and one written here so that the test never goes missing."""

import numpy as np
import pyvista as pv

from physicsnemo_flarepp.datapipes import DrivAerMLReader, plot_mesh


def open_ahmed(path, **options):
    return DrivAerMLReader(
        path.parent,
        pattern="*.vtp",
        cases=[path.stem],
        fields=["pMean", "wallShearStressMean"],
        **options,
    )


def test_pressure_and_shear_are_read_at_the_points(ahmed_file):
    expected = pv.read(ahmed_file)
    sample, metadata = open_ahmed(ahmed_file)[0]
    np.testing.assert_array_equal(sample["coordinates"], expected.points)
    np.testing.assert_array_equal(sample["fields"][:, 0], expected["pMean"])
    np.testing.assert_array_equal(sample["fields"][:, 1:], expected["wallShearStressMean"])
    assert metadata["association"] == "point"
    assert metadata["field_names"] == [
        "pMean",
        *(f"wallShearStressMean_{axis}" for axis in "xyz"),
    ]
    assert plot_mesh(metadata, sample["coordinates"]).n_cells == expected.n_cells


def test_point_areas_and_normals_close_the_surface(ahmed_file):
    sample, _ = open_ahmed(ahmed_file, features=["normals", "areas"])[0]
    mesh = pv.read(ahmed_file)
    normals, areas = sample["features"][:, :3].double(), sample["features"][:, 3].double()
    np.testing.assert_allclose(areas.sum(), mesh.area, rtol=1e-5)
    np.testing.assert_allclose(normals.norm(dim=1), 1, rtol=1e-5)
    reference = mesh.compute_normals(
        cell_normals=False,
        split_vertices=False,
        auto_orient_normals=False,
        consistent_normals=False,
    )["Normals"]
    cosine = np.sum(reference * normals.numpy(), axis=1)
    # VTK averages unit normals, we weight by area: equal where the surface is smooth.
    assert np.median(cosine) > 0.999
