"""The built-in sets: what each draws, which solver it calls and which files it writes."""

from .base import MODULES, Case, CaseId, SyntheticSet, case_ids, case_seed, load_set

__all__ = ["MODULES", "Case", "CaseId", "SyntheticSet", "case_ids", "case_seed", "load_set"]
