"""Built-in set *pathfinder*: are two discs on one dashed contour? Pathfinder-32, hard.

A case is a block of 250 images: ``pathfinder_<split>_images.npy`` hold (n, 32, 32) bytes,
``pathfinder_<split>_labels.npy`` (n,) labels, 1 if one contour connects the discs. Two target
contours start side by side and grow in turn, dash by dash; then come shorter distractors. A dash
occupies its pixels and those around; the next one starts behind a gap, in a direction drawn among
the pixels that it could end on, by the cosine of the turn squared.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path

import numpy as np
from scipy.ndimage import binary_dilation

from . import BuiltinSet, Case

Window = tuple[slice, ...]
BLOCK = 250
_FINE = 2  # samples per pixel and axis
_DASH_TRIES, _DISTRACTOR_TRIES = 3, 5


@dataclass(frozen=True)
class Rules:
    """Sizes in pixels and numbers; `inset` keeps the first dash away from the border."""

    size: int = 32
    dashes: int = 14
    distractor_dashes: int = 4
    distractors: int = 5
    length: float = 2.0
    thickness: float = 0.5
    margin: float = 1.0
    disc: float = 1.5
    inset: int = 14
    apart: float = 7.0


@dataclass
class Contour:
    """A contour as it grows: its dashes (start, end), its pivot and direction, its newest mask."""

    pivot: np.ndarray
    angle: float
    dashes: list[tuple[np.ndarray, np.ndarray]]
    newest: np.ndarray


@cache
def _samples(size: int) -> np.ndarray:
    """Return the places (row, column) of the samples, (2, fine, fine); pixel centres are whole."""
    axis = (np.arange(_FINE * size) + 0.5) / _FINE - 0.5
    return np.stack(np.meshgrid(axis, axis, indexing="ij"))


def _coverage(near: np.ndarray) -> np.ndarray:
    """Return which part of each pixel is covered, from the samples that are."""
    n = len(near) // _FINE
    return near.reshape(n, _FINE, n, _FINE).mean((1, 3))


def draw_dash(start: np.ndarray, end: np.ndarray, rules: Rules) -> tuple[np.ndarray, Window]:
    """Return the coverage of a dash, in a window of the image that holds it and what it dilates."""
    width = min(rules.size, int(rules.length + 2 * rules.margin) + 4)
    corner = np.rint((start + end - width) / 2).astype(int).clip(0, rules.size - width)
    window = tuple(slice(at, at + width) for at in corner)
    along = end - start
    at = _samples(width) + (corner - start)[:, None, None]
    share = (along[0] * at[0] + along[1] * at[1]) / (along @ along)
    off = at - along[:, None, None] * share.clip(0, 1)
    # A line narrower than the samples' distance would vanish between them.
    near = off[0] ** 2 + off[1] ** 2 <= max(rules.thickness, 1 / _FINE) ** 2 / 4
    return _coverage(near), window


def draw_disc(centre: np.ndarray, rules: Rules) -> np.ndarray:
    """Return the coverage of a disc."""
    at = _samples(rules.size) - centre[:, None, None]
    return _coverage((at**2).sum(0) <= rules.disc**2)


def _direction(angle: float) -> np.ndarray:
    return np.array([np.sin(angle), np.cos(angle)])


@cache
def _circle(radius: float) -> np.ndarray:
    """Return angles on a circle, one pixel apart."""
    return np.arange(0, 2 * np.pi, 1 / radius)


class Canvas:
    """The image with what is taken of it."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.occupied = np.zeros((rules.size, rules.size), bool)

    def start(
        self, pivot: np.ndarray, angle: float, beside: Contour | None = None
    ) -> Contour | None:
        """Return a contour with its first dash, None if it does not fit there."""
        contour = Contour(pivot, angle, [], np.zeros_like(self.occupied))
        return contour if self._put(contour, pivot, angle, self._taken(beside)) else None

    def _taken(self, beside: Contour | None) -> np.ndarray:
        """Return what is taken for a contour that grows beside another."""
        return self.occupied if beside is None else self.occupied | beside.newest

    def extend(
        self, contour: Contour, rng: np.random.Generator, beside: Contour | None = None
    ) -> bool:
        """Add a dash to a contour; return whether one fitted, of three tries."""
        rules = self.rules
        pivot = contour.pivot + (rules.length + 2 * rules.margin) * _direction(contour.angle)
        reach = rules.length + rules.margin
        angles = _circle(reach)
        ends = np.rint(pivot + reach * np.stack([np.sin(angles), np.cos(angles)], 1)).astype(int)
        first = np.unique(ends[:, 0] * 2**16 + ends[:, 1], return_index=True)[1]
        ends = ends[first]
        inside = ((ends >= 0) & (ends < rules.size)).all(1)
        ends, angles = ends[inside], angles[first][inside]
        turn = np.abs((angles - contour.angle + np.pi) % (2 * np.pi) - np.pi)
        weight = np.maximum(np.cos(np.minimum(turn, np.pi / 2)), 0) ** 2
        taken = self._taken(beside)
        weight = weight * ~taken[ends[:, 0], ends[:, 1]]
        if weight.sum() < 1e-9:
            return False
        chosen = rng.choice(len(weight), _DASH_TRIES, p=weight / weight.sum())
        return any(self._put(contour, pivot, angles[i], taken) for i in chosen)

    def _put(self, contour: Contour, pivot: np.ndarray, angle: float, taken: np.ndarray) -> bool:
        """Draw a dash of a contour unless it leaves the image or comes near another one."""
        rules, ahead = self.rules, _direction(angle)
        start = pivot + rules.margin * ahead
        end = start + rules.length * ahead
        if min(start.min(), end.min()) < 0 or max(start.max(), end.max()) > rules.size - 1:
            return False
        coverage, window = draw_dash(start, end, rules)
        grown = binary_dilation(coverage > 0, iterations=round(rules.margin))
        if (grown & taken[window]).any():
            return False
        mask = np.zeros_like(taken)
        mask[window] = grown
        # The next dash of this contour starts nearby, and may: it gets to know this one later.
        self.occupied |= contour.newest
        contour.newest, contour.pivot, contour.angle = mask, pivot, angle
        contour.dashes.append((start, end))
        return True

    def close(self, contour: Contour) -> None:
        """Let other contours know the last dash as well."""
        self.occupied |= contour.newest


def _draw_targets(rng: np.random.Generator, rules: Rules) -> tuple[Canvas, list[Contour]] | None:
    """Return two contours that grew side by side; None if one of them got stuck."""
    canvas = Canvas(rules)
    place = rng.integers(rules.inset, rules.size - rules.inset, 2).astype(float)
    around = _direction(rng.uniform(0, 2 * np.pi))
    angles = np.deg2rad(rng.integers(360, size=2))
    first = canvas.start(place, angles[0])
    second = first and canvas.start(place + rules.apart * around, angles[1], first)
    if first is None or second is None:
        return None
    for _ in range(rules.dashes - 1):
        if not (canvas.extend(first, rng, second) and canvas.extend(second, rng, first)):
            return None
    canvas.close(first)
    canvas.close(second)
    return canvas, [first, second]


def _draw_distractors(canvas: Canvas, rng: np.random.Generator) -> list[Contour]:
    """Return as many distractors as fit, each whole."""
    rules, found = canvas.rules, []
    for _ in range(rules.distractors):
        for _ in range(_DISTRACTOR_TRIES):
            before = canvas.occupied.copy()
            free = np.argwhere(~before)
            pivot = free[rng.integers(len(free))].astype(float)
            contour = canvas.start(pivot, np.deg2rad(rng.integers(360)))
            if contour is not None and all(
                canvas.extend(contour, rng) for _ in range(rules.distractor_dashes - 1)
            ):
                canvas.close(contour)
                found.append(contour)
                break
            canvas.occupied = before
    return found


def draw_sample(
    rng: np.random.Generator, rules: Rules
) -> tuple[np.ndarray, int, list[Contour], list[Contour]]:
    """Return an image, its label, the two target contours and the distractors."""
    while (drawn := _draw_targets(rng, rules)) is None:
        pass
    canvas, targets = drawn
    distractors = _draw_distractors(canvas, rng)
    label, first = int(rng.integers(2)), int(rng.integers(2))
    tips = targets[first].dashes[0][0], targets[first if label else 1 - first].dashes[-1][1]
    image = np.maximum(*(draw_disc(tip, rules) for tip in tips))
    for contour in (*targets, *distractors):
        for dash in contour.dashes:
            coverage, window = draw_dash(*dash, rules)
            image[window] = np.maximum(image[window], coverage)
    return np.rint(255 * image).astype(np.uint8), label, targets, distractors


def solve_case(case_seed: int, rules: Rules) -> Case:
    """Return ``images`` (250, size, size) and ``labels`` (250,)."""
    rng = np.random.default_rng(case_seed)
    samples = [draw_sample(rng, rules)[:2] for _ in range(BLOCK)]
    images, labels = zip(*samples, strict=True)
    return {"images": np.stack(images), "labels": np.array(labels, np.uint8)}


def assemble(cases: Iterable[Case], out_dir: Path, n_train: int, n_test: int, n_val: int) -> None:
    """Write images and labels of each split."""
    cases = iter(cases)
    for split, count in (("train", n_train), ("test", n_test), ("val", n_val)):
        blocks = list(islice(cases, count))
        for name in ("images", "labels") if blocks else ():
            joined = np.concatenate([block[name] for block in blocks])
            np.save(out_dir / f"pathfinder_{split}_{name}.npy", joined)


SET = BuiltinSet("pathfinder", 1, 640, 80, partial(solve_case, rules=Rules()), assemble)
_few = Rules(size=10, dashes=2, distractors=0, inset=3, apart=4)
SMALL = BuiltinSet("pathfinder_small", 2, 80, 8, partial(solve_case, rules=_few), assemble)
