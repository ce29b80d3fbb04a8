"""A run as one frozen, complete, hashed value, and where each part of it comes from."""

from pretrace.recipe.read import load, parse, to_yaml
from pretrace.recipe.spec import CheckpointSpec, Recipe, Seeds

__all__ = ["CheckpointSpec", "Recipe", "Seeds", "load", "parse", "to_yaml"]
