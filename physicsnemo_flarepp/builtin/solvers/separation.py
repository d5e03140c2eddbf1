r"""Where a turbulent boundary layer leaves a body in potential flow, and the pressure behind it.

An engineering estimate, not a solution (docs/built_in_sets.md says what it leaves out). Along the
surface streamlines Buri's method (Schlichting, *Boundary-Layer Theory*) gives the momentum
thickness, :math:`\theta\,\mathrm{Re}_\theta^{1/4} = 0.016\, u^{-4} \int u^4\, ds`. The boundary
layer separates where :math:`\theta\,\mathrm{Re}_\theta^{1/4}\, u^{-1}\, du/ds` falls below -0.06 on
surfaces that face backwards, until the flow accelerates. There the pressure is one base pressure,
by Hoerner's :math:`c_{p,b} = -0.029 / \sqrt{c_f}` (*Fluid-Dynamic Drag*, chapter 3), with the
friction of the attached surface on the separated area that faces backwards. All maps are smooth in
the shape.
"""

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import spsolve

from .panel_method import PanelFlow

BURI_LIMIT = -0.06
# Widths of the switches in Buri's parameter and in the normal's component along the flow.
SWITCH, TURN = 0.01, 0.05
# In which separation completes, metres.
DISTANCE = 0.05
# The state of separation falls with this power of the speed where the flow accelerates.
REATTACHMENT = 3.0
# Slowest flow, over that far away, in which the boundary layer is followed.
SLOWEST = 0.05


class SurfaceStreams:
    """Transport along the surface streamlines of a flow: upwind fluxes over the edges of panels."""

    def __init__(self, points: np.ndarray, faces: np.ndarray, flow: PanelFlow) -> None:
        self.areas, velocity = flow.panels.areas, flow.surface_velocity
        self.speed = np.linalg.norm(velocity, axis=1)
        edges = faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2)
        order = np.lexsort(np.sort(edges, axis=1).T)
        twice = (np.sort(edges[order[1:]], axis=1) == np.sort(edges[order[:-1]], axis=1)).all(1)
        first, second = order[:-1][twice], order[1:][twice]
        self.left, self.right = first // 3, second // 3
        along = np.diff(points[edges[first]], axis=1)[:, 0]
        normals = flow.panels.normals[self.left] + flow.panels.normals[self.right]
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        mean = (velocity[self.left] + velocity[self.right]) / 2
        self.flux = np.einsum("ex,ex->e", mean, np.cross(along, normals))  # from left to right
        source = np.where(self.flux > 0, self.left, self.right)
        target = np.where(self.flux > 0, self.right, self.left)
        inflow = sparse.csc_matrix((np.abs(self.flux), (target, source)), 2 * (len(faces),))
        entering, leaving = inflow.sum(1).A1, inflow.sum(0).A1
        # Where far more leaves a panel than enters it, at stagnation points, streams begin with 0.
        begins = np.maximum(leaving - 2 * entering, 1e-6 * self.areas)
        self.matrix = sparse.diags(entering + begins) - inflow

    def integrate(self, rate: np.ndarray, decay: np.ndarray | float = 0.0) -> np.ndarray:
        """Return q of dq/ds = rate - decay q, per length of streamline, 0 where streams begin."""
        matrix = self.matrix + sparse.diags(self.areas * self.speed * decay)
        return spsolve(matrix.tocsc(), self.areas * self.speed * rate)

    def acceleration(self) -> np.ndarray:
        """Return du/ds of the speed u along the streamlines."""
        carried = (self.speed[self.left] + self.speed[self.right]) / 2 * self.flux
        total = np.zeros_like(self.speed)
        for sign, panels in ((1, self.left), (-1, self.right)):
            np.add.at(total, panels, sign * (carried - self.flux * self.speed[panels]))
        return total / self.areas / np.maximum(self.speed, SLOWEST)


def separated_share(points: np.ndarray, faces: np.ndarray, flow: PanelFlow) -> np.ndarray:
    """Return how far the flow is separated at each panel of a body, from 0 to 1, shape (F,)."""
    streams = SurfaceStreams(points, faces, flow)
    speed, slope = np.maximum(streams.speed, SLOWEST), streams.acceleration()
    thickness = 0.016 * streams.integrate(streams.speed**4) / speed**4
    excess = (thickness * slope / speed - BURI_LIMIT) / SWITCH
    backwards = 1 + np.tanh(flow.panels.normals[:, 0] / TURN)
    leaving = (1 - np.tanh(excess / 2)) * backwards / 4
    decay = REATTACHMENT * np.maximum(slope, 0) / speed
    return 1 - np.exp(-streams.integrate(leaving / DISTANCE, decay))


def base_pressure(friction_drag: float, base_area: float) -> float:
    """Return Hoerner's base pressure coefficient; both arguments over one reference area."""
    return -0.029 * np.sqrt(base_area / friction_drag)
