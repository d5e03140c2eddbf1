"""Configs that drop FlarePP into PhysicsNeMo's own recipes, for Hydra's ``pkg://`` search path."""
