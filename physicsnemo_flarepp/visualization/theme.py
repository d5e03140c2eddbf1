"""One object for everything that is a matter of taste: colours, fonts, sizes."""

from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_rgb

# Odd numbers of entries: the middle of a scale is a colour of its own, not the seam of two.
N_COLORS = 257


@dataclass(frozen=True)
class Theme:
    """How figures look; pass another one instead of style arguments.

    Parameters
    ----------
    background, foreground : str
        Colours of the page and of text and lines.
    no_data : str
        Colour of regions without data: masked cells, voids, the outside of a flat domain.
    surface, edges : str
        Colours of geometry that carries no field, and of its edges.
    field_map : str
        Sequential colour map of fields, by Matplotlib's name. The defaults can be told apart by
        readers with colour-vision deficiency and in greyscale.
    error_colors : tuple of str
        Colours of errors from the negative to the positive limit, evenly spaced, an odd number of
        them: the middle one, of zero, is neutral.
    weight_colors : tuple of str
        Colours of weights above 0; a weight of 0 has the colour of the surface.
    cycle : tuple of str
        Colours of curves and points (Okabe and Ito's colour-blind-safe set).
    font : str
        Font family.
    font_size : float
        Size of labels in points; titles are one point larger.
    dpi : int
        Pixels per inch.
    panel_width : float
        Width of one panel in inches.
    shading : float
        Share of the light on 3-D surfaces that depends on direction: 0 is flat colour.
    error_shading : float
        The same where errors are shown: so little that no error is never taken for no data.

    Examples
    --------
    >>> DARK.background, LIGHT.errors()(0.5) == DARK.errors()(0.5)
    ('#14171c', False)
    """

    background: str = "#ffffff"
    foreground: str = "#1a1a1a"
    no_data: str = "#b4b4b4"
    surface: str = "#e4e7ec"
    edges: str = "#5a6270"
    field_map: str = "viridis"
    error_colors: tuple[str, ...] = ("#0b3a73", "#3b82bd", "#f7f7f7", "#cb4b45", "#6b0d1e")
    weight_colors: tuple[str, ...] = ("#8cbce0", "#4a84c4", "#4250a6", "#4a1486")
    cycle: tuple[str, ...] = (
        "#0072b2",
        "#d55e00",
        "#009e73",
        "#cc79a7",
        "#e69f00",
        "#56b4e9",
        "#000000",
    )
    font: str = "DejaVu Sans"
    font_size: float = 8.0
    dpi: int = 200
    panel_width: float = 2.4
    shading: float = 0.3
    error_shading: float = 0.12

    def fields(self) -> Colormap:
        """Return the colour map of fields, with ``N_COLORS`` entries."""
        return matplotlib.colormaps[self.field_map].resampled(N_COLORS)

    def errors(self) -> Colormap:
        """Return the colour map of signed errors, neutral in the middle."""
        return LinearSegmentedColormap.from_list(
            "signed_errors", list(self.error_colors), N=N_COLORS
        )

    def weights(self) -> Colormap:
        """Return the colour map of non-negative weights, from the surface's colour to full ones."""
        colors = [self.surface, *self.weight_colors]
        return LinearSegmentedColormap.from_list("weights", colors, N=N_COLORS)

    def settings(self) -> dict[str, object]:
        """Return the settings of Matplotlib that differ from its defaults."""
        return {
            "font.family": self.font,
            "font.size": self.font_size,
            "axes.titlesize": self.font_size + 1,
            "figure.titlesize": self.font_size,
            "legend.fontsize": self.font_size - 1,
            "legend.title_fontsize": self.font_size + 1,
            "axes.edgecolor": self.foreground,
            "axes.labelcolor": self.foreground,
            "axes.facecolor": self.background,
            "axes.linewidth": 0.6,
            "axes.prop_cycle": matplotlib.cycler(color=list(self.line_colors())),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.facecolor": self.background,
            "figure.dpi": self.dpi,
            "savefig.dpi": self.dpi,
            "text.color": self.foreground,
            "xtick.color": self.foreground,
            "ytick.color": self.foreground,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "legend.frameon": False,
            "lines.linewidth": 1.3,
            "svg.hashsalt": "physicsnemo_flarepp",
            "svg.fonttype": "none",
            "pdf.fonttype": 42,
        }

    def line_colors(self) -> tuple[str, ...]:
        """Return the cycle without colours that vanish on the background."""
        page = np.array(to_rgb(self.background))
        return tuple(c for c in self.cycle if np.abs(np.array(to_rgb(c)) - page).max() > 0.3)


LIGHT = Theme()
DARK = Theme(
    background="#14171c",
    foreground="#e8e8e8",
    no_data="#5c6068",
    surface="#3a3f47",
    edges="#9aa3b0",
    weight_colors=("#4c6fa5", "#5aa6d8", "#a5dcf0", "#f4fbff"),
    error_colors=("#c6e3f7", "#4a9bd0", "#1f2126", "#e2763c", "#ffd2b0"),
)
