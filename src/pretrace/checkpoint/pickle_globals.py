"""What a pickle may name: exact pairs of module and name, and the plain value each call becomes. Nothing is imported.

A name outside of these tables still becomes an inert `Stub` (our machine runs nothing), but the file is reported: the stock
unpickler would import that module and call what it finds there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pretrace.dtypes import DTYPES


@dataclass(frozen=True, slots=True)
class Global:
    """A name in a pickle, and the byte at which it stands."""

    module: str
    name: str
    at: int

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Stub:
    """What a call or an instance of a class would have been: its name, arguments and state as plain data."""

    kind: Global
    args: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)

    def get(self, key: str, default: Any = None) -> Any:
        """An attribute of the state."""
        return self.state.get(key, default) if isinstance(self.state, dict) else default


@dataclass(frozen=True, slots=True)
class StorageType:
    """`torch.FloatStorage` and its like."""

    dtype: str


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A storage that stands elsewhere in the file: its key, dtype and number of elements."""

    key: str
    dtype: str
    numel: int
    location: str = ""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor over a storage. Offset and strides count elements."""

    storage: StorageRef
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Refused(Exception):
    """A call with arguments that it cannot have had."""


_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
STORAGE_NAMES = {ours: theirs for theirs, ours in _STORAGES.items()}  # dtype -> what stands before `Storage`


def known(module: str, name: str) -> Any:
    """The value or function that an allowed name stands for; None if it is not allowed."""
    if module == "torch" and name.endswith("Storage") and name[:-7] in _STORAGES:
        return StorageType(_STORAGES[name[:-7]])
    if module == "torch" and name in DTYPES:
        return name
    return _CALLS.get((module, name))


def inert(module: str, name: str) -> bool:
    """Whether this is a class of a training library that checkpoints are known to carry; it stays a stub."""
    return (module, name) in _CLASSES


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> TensorRef:
    counts = (offset, *shape, *strides) if isinstance(shape, tuple) and isinstance(strides, tuple) else (None,)
    if not isinstance(storage, StorageRef) or not all(type(n) is int and 0 <= n < 1 << 63 for n in counts):
        raise Refused("a tensor without a storage, or with sizes that are no counts")
    if len(shape) != len(strides) or len(shape) > 64:
        raise Refused("a tensor whose strides do not belong to its shape")
    return TensorRef(storage, offset, shape, strides)


def _rebuild_tensor_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *_: Any
) -> TensorRef:
    if isinstance(storage, StorageRef) and isinstance(dtype, str) and dtype in DTYPES:
        width = DTYPES[dtype].itemsize
        storage = StorageRef(
            storage.key, dtype, storage.numel * DTYPES[storage.dtype].itemsize // width, storage.location
        )
    return _rebuild_tensor(storage, offset, shape, strides)


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


def _rebuild_from_type(function: Any, kind: Any, args: Any, state: Any) -> Any:
    if function in (_rebuild_tensor, _rebuild_parameter, _rebuild_tensor_v3) and isinstance(args, tuple):
        return function(*args)
    raise Refused("a tensor subclass that is not rebuilt from plain parts")


def _ordered_dict(items: Any = ()) -> dict[Any, Any]:
    if items == ():
        return {}
    if isinstance(items, list) and all(
        isinstance(i, (list, tuple)) and len(i) == 2 and isinstance(i[0], str) for i in items
    ):
        return {key: value for key, value in items}
    raise Refused("an OrderedDict of something else than pairs")


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    # Python 2 protocols write bytes as text with an encoding.
    if isinstance(text, str) and encoding in ("latin1", "latin-1", "utf-8"):
        return text.encode(encoding)
    raise Refused("bytes in an unusual encoding")


def _bytes(data: Any = b"", encoding: Any = "latin1") -> bytes:
    return data if isinstance(data, bytes) else _encode(data, encoding)


def _size(items: Any = ()) -> tuple[Any, ...]:
    if isinstance(items, (list, tuple)) and all(type(n) is int for n in items):
        return tuple(items)
    raise Refused("a size that is no list of counts")


def _path(*parts: Any) -> str:
    if all(isinstance(p, str) for p in parts):
        return "/".join(parts)
    raise Refused("a path of something else than text")


def _text(*parts: Any) -> str:
    return ":".join(str(p)[:200] for p in parts if isinstance(p, (str, int)))


def _members(items: Any = ()) -> list[Any]:
    return list(items) if isinstance(items, (list, tuple)) else []


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    ("torch", "Size"): _size,
    ("torch", "device"): _text,
    ("torch.serialization", "_get_layout"): _text,
    ("_codecs", "encode"): _encode,
    **{(module, kind): _members for module in ("builtins", "__builtin__") for kind in ("set", "frozenset")},
    **{(module, kind): _bytes for module in ("builtins", "__builtin__") for kind in ("bytes", "bytearray")},
    **{
        (module, kind): _path
        for module in ("pathlib", "pathlib._local")
        for kind in ("PosixPath", "PurePosixPath", "WindowsPath")
    },
}

_DCP = "torch.distributed.checkpoint."
_CLASSES = {
    ("argparse", "Namespace"), ("torch", "Tensor"), ("torch.nn.parameter", "Parameter"), ("torch.storage", "UntypedStorage"),
    *((_DCP + "metadata", name) for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties",
      "ChunkStorageMetadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING")),
    (_DCP + "filesystem", "_StorageInfo"), (_DCP + "filesystem", "_StoragePrefix"),
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    ("numpy", "ndarray"), ("numpy", "dtype"),
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"), ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"), ("deepspeed.utils.tensor_fragment", "fragment_address"),
    ("deepspeed.runtime.config", "DeepSpeedConfig"), ("megatron.learning_rates", "AnnealingLR"),
    ("megatron.core.enums", "ModelType"), ("megatron.model.enums", "AttnBackend"),
    ("megatron.core.transformer.enums", "AttnBackend"), ("megatron.enums", "ModelType"), ("megatron.model", "ModelType"),
    ("transformers.training_args", "OptimizerNames"), ("transformers.trainer_utils", "IntervalStrategy"),
    ("transformers.trainer_utils", "SchedulerType"), ("transformers.trainer_utils", "HubStrategy"),
    ("transformers.training_args", "TrainingArguments"), ("transformers.trainer_pt_utils", "AcceleratorConfig"),
    ("accelerate.state", "PartialState"), ("accelerate.utils.dataclasses", "DistributedType"),
    ("datetime", "datetime"), ("datetime", "timedelta"), ("collections", "defaultdict"), ("collections", "Counter"),
}  # fmt: skip
