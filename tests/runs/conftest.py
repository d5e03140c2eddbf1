"""Small runs, trained or written as training leaves them."""

# ruff: noqa: F401
from tests.evaluation.conftest import darcy_run, loaded, surface_run, surfaces
from tests.training.conftest import make_config, one_thread, surface_set
