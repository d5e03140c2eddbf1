"""What a design is judged by: force coefficients and averages of fields, as sums over cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from ..datapipes import Normalizer
from ..datapipes.channels import Channels
from ..evaluation import ForceSettings, Run, load_sums

# In the order of evaluation.load_sums.
FORCES = ("drag", "side", "lift")
# What a quantity knows of each token: outward area vector, area, whether it is in the region.
VECTORS, AREA, INSIDE = slice(0, 3), 3, 4


def check_quantity(name: str, run: Run, settings: ForceSettings | None) -> str:
    """Return a name if it is a force that the run can give, or a channel of its fields."""
    channels = run.channels.field_names
    if name in FORCES and settings is not None:
        return name
    if name in FORCES:
        raise ValueError(
            f"{name} needs the pressure, but run {run.name} predicts {', '.join(channels)}, which "
            "follow no known convention of forces; give --pressure-field and --speed, or the "
            "average of a field"
        )
    if name not in channels:
        choices = (*(FORCES if settings is not None else ()), *channels)
        raise ValueError(f"run {run.name} cannot give {name!r}; choose one of {', '.join(choices)}")
    return name


@dataclass
class Quantities:
    """Quantities of a prediction, of which a weighted sum is differentiated.

    An objective of :func:`~physicsnemo_flarepp.training.streamed_gradients`. After a pass, `found`
    has every quantity by name.
    """

    channels: Channels
    normalizer: Normalizer
    settings: ForceSettings | None
    reference_area: float
    weights: Mapping[str, float]
    found: dict[str, float] = field(default_factory=dict)

    def sums(
        self, prediction: Float[Tensor, "B n O"], target: Float[Tensor, "B n 5"], rows: Sequence
    ) -> Float[Tensor, "B k"]:
        """Return forces over the dynamic pressure, integrals of the channels, and the area."""
        channels, settings = self.channels, self.settings
        fields = self.normalizer.inverse(prediction).to(target.dtype)
        inside = target[..., AREA] * target[..., INSIDE]
        integrals = [(inside[..., None] * fields).sum(-2), inside.sum(-1, keepdim=True)]
        if settings is None:
            return torch.cat(integrals, -1)
        shear = None if settings.shear is None else fields[..., channels.columns(settings.shear)]
        pressure = fields[..., channels.columns(settings.pressure)][..., 0]
        parts = load_sums(target[..., VECTORS], target[..., AREA], pressure, shear, settings)
        return torch.cat([parts[0] if shear is None else parts[0] + parts[1], *integrals], -1)

    def value(self, sums: Float[Tensor, "B k"]) -> Float[Tensor, ""]:
        """Return the weighted sum."""
        values = self.named(sums)
        self.found = {name: value.item() for name, value in values.items()}
        return sum(weight * values[name] for name, weight in self.weights.items())

    def named(self, sums: Float[Tensor, "B k"]) -> dict[str, Tensor]:
        """Return every quantity by name."""
        names = self.channels.field_names
        averages = sums[0, -1 - len(names) : -1] / sums[0, -1]
        values = dict(zip(names, averages, strict=True))
        if self.settings is not None:
            values |= zip(FORCES, sums[0, :3] / self.reference_area, strict=True)
        return values
