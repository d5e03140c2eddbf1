"""Vehicle surfaces in each layout, written by VTK, NumPy, zarr and PhysicsNeMo alone."""

import numpy as np
import torch
import zarr
from physicsnemo.mesh import DomainMesh, Mesh
from physicsnemo.mesh.io import to_zarr

FIELDS = ["pMeanTrim", "wallShearStressMeanTrim"]
LAYOUTS = ("vtp", "pdmsh", "pdmsh_zarr", "pmsh", "zarr", "presampled")


def surface_arrays(mesh):
    """Tokens as PhysicsNeMo-Curator stores them, computed by VTK."""
    fields = np.concatenate([mesh[FIELDS[0]][:, None], mesh[FIELDS[1]]], axis=1)
    areas = mesh.compute_cell_sizes(length=False, volume=False)["Area"]
    return {
        "surface_mesh_centers": mesh.cell_centers().points,
        "surface_normals": mesh.face_normals,
        "surface_areas": areas.astype(np.float32),
        "surface_fields": fields,
    }


def domain_mesh(mesh):
    vehicle = Mesh(
        points=torch.from_numpy(np.asarray(mesh.points)),
        cells=torch.from_numpy(mesh.regular_faces.astype(np.int64)),
        cell_data={name: torch.from_numpy(np.asarray(mesh[name])) for name in FIELDS},
    )
    return DomainMesh(
        interior=Mesh(points=torch.rand(4, 3)),
        boundaries={"vehicle": vehicle},
        global_data={"U_inf": torch.tensor([38.889, 0, 0]), "rho_inf": torch.tensor(1.0)},
    )


def write_case(root, layout, run, mesh):
    directory = root / f"run_{run}"
    if layout == "vtp":
        directory.mkdir()
        mesh.save(directory / f"boundary_{run}.vtp")
        (directory / f"geo_ref_{run}.csv").write_text(f"aRef, lRef\n{2.0 + run},2.786\n")
    elif layout == "pdmsh":
        domain_mesh(mesh).save(directory / f"domain_{run}.pdmsh")
    elif layout == "pmsh":
        domain_mesh(mesh).boundaries["vehicle"].save(directory / f"boundary_{run}.pmsh")
    elif layout == "pdmsh_zarr":
        directory.mkdir()
        to_zarr(domain_mesh(mesh), directory / f"domain_{run}.pdmsh", chunk_rows=50)
    elif layout == "zarr":
        group = zarr.open_group(root / f"run_{run}.zarr", mode="w")
        for name, values in surface_arrays(mesh).items():
            group.create_array(name, data=values, chunks=(50, *values.shape[1:]))
    else:
        np.savez(root / f"run_{run}.npz", **surface_arrays(mesh))
