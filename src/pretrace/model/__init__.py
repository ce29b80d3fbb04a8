"""One explicit decoder: its specification, its initial values, its forward pass.

The specification is free of torch; `pretrace.model.decoder` and `pretrace.model.init` compute with it.
"""

from pretrace.model.spec import InitSpec, ModelSpec, MoeSpec, n_params, tensor_shapes

__all__ = ["InitSpec", "ModelSpec", "MoeSpec", "n_params", "tensor_shapes"]
