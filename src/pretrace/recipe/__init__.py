"""A run as one frozen, complete, hashed value, and where each part of it comes from."""

from pretrace.recipe.read import load, parse, to_yaml
from pretrace.recipe.spec import CheckpointSpec, EvaluationSpec, Recipe, Seeds, StartSpec

__all__ = ["CheckpointSpec", "EvaluationSpec", "Recipe", "Seeds", "StartSpec", "load", "parse", "to_yaml"]
