"""The layout of a batch, for tests that build a model for it."""

from physicsnemo_flarepp.models.feeding import InputLayout


def layout_of(batch, grid=None):
    entries, present = ("coordinates", "features", "globals", "fields"), batch.keys()
    widths = [batch[key].shape[-1] if key in present else 0 for key in entries]
    return InputLayout(*widths, None if grid is None else tuple(grid))
