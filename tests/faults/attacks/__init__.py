"""Files that would run code or reach elsewhere: for every kind that the package opens, by attack.

An attack rewrites one sound file. Its payload makes the directory ``trap.marker``: by a call named
in the file, by a pickle, or by importing the module ``trap_module``, which is there to be found.
"""

from tests.faults.attacks import arrays, meshes, models, own_data, runs
from tests.faults.attacks.base import Trap

__all__ = ["CORPUS", "KINDS", "Trap"]

KINDS = models.KINDS | runs.KINDS | arrays.KINDS | meshes.KINDS | own_data.KINDS
CORPUS = [(kind, attack) for kind in KINDS for attack in KINDS[kind].attacks]
