"""A command with many options shows them in groups: `rich_help_panel` of each, without the library of that name."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class Grouped(TyperCommand):
    """Prints the options of each `rich_help_panel` under its name, in the order in which they are declared."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments first, then group after group; what has no group comes last, as `Options`."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if param.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(param, "rich_help_panel", None) or usual, []).append(record)
        groups["Options"] = groups.pop("Options", [])
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)
