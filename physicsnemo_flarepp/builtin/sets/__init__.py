"""The built-in sets: what each draws, which solver it calls and which files it writes."""

from .base import MODULES, BuiltinSet, Case, CaseId, case_ids, case_seed, load_set

__all__ = ["MODULES", "BuiltinSet", "Case", "CaseId", "case_ids", "case_seed", "load_set"]
