"""The configuration beside GPT-NeoX weights: `configs/*.yml` (YAML, or JSON in it), or the `args` in a rank's file."""

from __future__ import annotations

from typing import Any

from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.sources import Folder, read_bytes

_MAX_BYTES = 1 << 20


def read_config(folder: Folder, saved: Any) -> dict[str, Any]:
    """All settings in one dict, keys with `_` (files mix `-` and `_`); later files win, files win over saved arguments."""
    args = saved.get("args") if isinstance(saved, dict) else None
    config = dict(args) if isinstance(args, dict) else {}
    for name in folder.sizes():
        if name.startswith("configs/") and name.endswith((".yml", ".yaml", ".json")):
            config |= _settings(folder, name)
    return {key.replace("-", "_"): value for key, value in config.items()}


def _settings(folder: Folder, name: str) -> dict[str, Any]:
    import yaml

    source = folder.open(name)
    try:
        if source.size > _MAX_BYTES:
            raise DamagedFile("size", f"{source.size:,} bytes are no configuration", source.name, "remove it")
        data = yaml.safe_load(read_bytes(source, 0, source.size))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFile(
            "files-config", f"not YAML: {str(error).splitlines()[0][:200]}", source.name, "restore it"
        ) from None
    finally:
        source.close()
    return {str(key): value for key, value in data.items()} if isinstance(data, dict) else {}
