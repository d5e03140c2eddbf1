"""Built-in set *pathfinder_small*: 16 x 16 pixels, contours of 4 dashes, a distractor of 2."""

from .pathfinder import Rules, make_set

SET = make_set(
    "pathfinder_small",
    *(80, 8),
    Rules(size=16, dashes=4, distractor_dashes=2, distractors=1, inset=5, apart=5),
)
