"""Pathfinder against its rules: connectedness by flood fill, dashes, discs, gaps, labels."""

import numpy as np
import pytest
from scipy.ndimage import binary_dilation, label

from physicsnemo_flarepp.builtin.sets import pathfinder
from physicsnemo_flarepp.builtin.sets.pathfinder import Rules, draw_dash, draw_disc, draw_sample

RULES = Rules(size=32, dashes=6)  # the published easy ones, which are quick to draw


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    return [draw_sample(rng, RULES) for _ in range(40)]


def picture(contours, rules):
    image = np.zeros((rules.size, rules.size))
    for contour in contours:
        for dash in contour.dashes:
            coverage, window = draw_dash(*dash, rules)
            image[window] = np.maximum(image[window], coverage)
    return image


def test_the_discs_are_connected_exactly_if_the_label_says_so(samples):
    """Flood fill over one contour alone, with its gaps of 2 pixels closed."""
    for image, connected, targets, _ in samples:
        discs = image == 255
        reached = []
        for contour in targets:
            # A pixel around a dash closes half a gap; a second one, the corners of turns.
            path = binary_dilation(picture([contour], RULES) > 0, np.ones((3, 3)), 1)
            path = binary_dilation(path)
            pieces, count = label(path, np.ones((3, 3)))
            assert count == 1, "the dashes of a contour follow each other"
            tips = [contour.dashes[0][0], contour.dashes[-1][1]]
            reached.append([discs[tuple(np.rint(tip).astype(int))] for tip in tips])
        assert any(all(ends) for ends in reached) == bool(connected)


def test_images_hold_the_dashes_and_discs_of_the_rules(samples):
    for image, _, targets, distractors in samples:
        assert [len(contour.dashes) for contour in targets] == [6, 6]
        assert len(distractors) <= 5
        assert all(len(contour.dashes) == 4 for contour in distractors)
        lines = picture((*targets, *distractors), RULES)
        assert ((image > 0) | (lines == 0)).all(), "every dash is seen"
        added = image / 255 > lines + 0.01
        assert 0 < added.sum() <= 2 * 21, "all else are two discs"
    found = [len(distractors) for *_, distractors in samples]
    assert np.mean(found) > 3


def test_dashes_and_gaps_have_the_lengths_of_the_rules(samples):
    for *_, targets, distractors in samples:
        for contour in (*targets, *distractors):
            for (start, end), (following, tip) in zip(
                contour.dashes, contour.dashes[1:], strict=False
            ):
                assert np.linalg.norm(end - start) == pytest.approx(2)
                turn = np.dot(end - start, tip - following) / 4
                assert turn > -1e-6, "no contour turns back"
                # A margin ahead of one dash and one before the next.
                assert np.linalg.norm(following - end) == pytest.approx(
                    np.sqrt(2 + 2 * turn), abs=1e-6
                )


def test_dashes_of_different_contours_keep_apart(samples):
    for *_, targets, distractors in samples:
        masks = [picture([contour], RULES) > 0 for contour in (*targets, *distractors)]
        grown = [binary_dilation(mask) for mask in masks]
        assert sum(mask.astype(int) for mask in grown).max() == 1


def test_labels_are_even_and_targets_start_in_the_middle(samples):
    labels = [connected for _, connected, *_ in samples]
    assert 8 < sum(labels) < 32
    for *_, targets, _ in samples:
        first, second = (contour.dashes[0][0] for contour in targets)
        assert (np.abs(first - 15.5) < 3).all()
        assert np.linalg.norm(first - second) < 7 + 2 * RULES.margin + 1e-6


def test_dashes_and_discs_cover_their_areas():
    rng = np.random.default_rng(1)
    centres = rng.uniform(8, 24, (200, 2))
    areas = [draw_disc(centre, RULES).sum() for centre in centres]
    assert np.mean(areas) == pytest.approx(np.pi * 1.5**2, rel=0.02)
    angles = rng.uniform(0, 2 * np.pi, 200)
    ends = centres + 2 * np.stack([np.sin(angles), np.cos(angles)], 1)
    areas = [draw_dash(*pair, RULES)[0].sum() for pair in zip(centres, ends, strict=True)]
    # A rectangle and two half discs at the ends.
    assert np.mean(areas) == pytest.approx(2 * 0.5 + np.pi * 0.25**2, rel=0.05)


def test_sizes_of_the_sets(tmp_path):
    hard = pathfinder.SET
    assert (hard.n_train * pathfinder.BLOCK, hard.n_test * pathfinder.BLOCK) == (160_000, 20_000)
    assert Rules().dashes == 14 and Rules().size == 32
    rules = pathfinder.SMALL.solve_case.keywords["rules"]
    case = {"images": np.zeros((3, 10, 10), np.uint8), "labels": np.ones(3, np.uint8)}
    pathfinder.assemble([case, case, case], tmp_path, 2, 1, 0)
    assert np.load(tmp_path / "pathfinder_train_images.npy").shape == (6, 10, 10)
    assert not (tmp_path / "pathfinder_val_images.npy").exists()
    image, *_ = draw_sample(np.random.default_rng(0), rules)
    again, *_ = draw_sample(np.random.default_rng(0), rules)
    assert image.shape == (10, 10) and np.array_equal(image, again)
