"""From vertices to a force and back: geometry, weights and model differentiated as one."""

import pytest
import pyvista as pv
import torch

from physicsnemo_flarepp import MixerBackbone
from physicsnemo_flarepp.evaluation import ForceSettings, load_sums
from physicsnemo_flarepp.meshes import polygon_mesh
from physicsnemo_flarepp.meshes.geometry import surface_tensors
from physicsnemo_flarepp.training import streamed_gradients

SETTINGS = ForceSettings("p", "tau", shear_sign=-1, speed=2.0)


class Lift:
    """The lift coefficient of fields p, tau; the data of a token are area vector and area."""

    def sums(self, prediction, target, rows):
        p, tau = prediction[..., 0], prediction[..., 1:]
        return sum(load_sums(target[..., :3], target[..., 3], p, tau, SETTINGS))

    def value(self, sums):
        return sums[:, 2].sum() / 3.0


@pytest.mark.parametrize("association", ["cell", "point"])
@pytest.mark.parametrize("mixer", ["flarepp", "transolver"])
def test_lift_by_every_vertex_is_that_of_finite_differences_plain_and_streamed(mixer, association):
    torch.manual_seed(0)
    body = polygon_mesh(pv.Icosphere(nsub=1).scale((2.0, 1.0, 0.5)), "body")
    sizes = {"n_layers": 2, "n_hidden": 16, "n_head": 2, "slice_num": 4, "embedding_dim": 3}
    model = MixerBackbone(3, 4, mixer=mixer, **sizes).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)

    def tokens(points):
        """fx, embedding, weights and the data of the objective, each with a batch of one."""
        found = surface_tensors(points, body.connectivity, body.offsets, association)
        data = torch.cat((found.vectors, found.areas[:, None]), -1)
        return [x[None] for x in (found.normals, found.positions, found.areas, data)]

    def lift(points):
        normals, positions, areas, data = tokens(points)
        y = model(normals, positions, token_weights=areas)
        return Lift().value(Lift().sums(y, data, None))

    points = torch.tensor(body.points, dtype=torch.float64, requires_grad=True)
    value = lift(points)
    (plain,) = torch.autograd.grad(value, points)
    direction = torch.randn_like(points)
    with torch.no_grad():
        slope = (lift(points + 1e-5 * direction) - lift(points - 1e-5 * direction)) / 2e-5
    assert abs((plain * direction).sum() / slope - 1) < 1e-6

    inputs = tokens(points)
    normals, positions, areas, data = inputs
    names = ["fx", "embedding", "token_weights", "target"]
    options = {"token_weights": areas, "target": data, "wanted": names, "chunk_size": 17}
    streamed_value, found = streamed_gradients(model, normals, positions, Lift(), **options)
    assert streamed_value.item() == pytest.approx(value.item(), rel=1e-12)
    (streamed,) = torch.autograd.grad(inputs, points, [found[name] for name in names])
    assert (streamed - plain).norm() < 1e-10 * plain.norm()
    (held,) = torch.autograd.grad(tokens(points)[:2], points, [found["fx"], found["embedding"]])
    assert (held - plain).norm() > 1e-2 * plain.norm()  # weights and areas have their part
