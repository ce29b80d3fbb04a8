"""One self-contained page: the sentence of the verdict, a picture that shows it, tables that sort, figures that enlarge.

No address of any other host is in it: style, script, pictures and the CSV of every figure are inside the file. Dark and light
follow the reader's system; it prints on A4 and reads on a phone.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Literal

import jinja2
from markupsafe import Markup

from pretrace import __version__

# A status is said by word and by mark, not by colour alone.
Mark = Literal["good", "bad", "open", "none"]
SIGNS: dict[Mark, str] = {"good": "✓", "bad": "✗", "open": "?", "none": ""}


@dataclass(frozen=True, slots=True)
class Link:
    """A file beside the page."""

    text: str
    href: str  # relative: the page asks no other host for anything


Cell = str | int | float | Link | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; cells that are numbers are set and sorted as numbers. `note` stands under the table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    name: str = ""  # file name of its CSV, without ending; empty: no CSV
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """An SVG with the numbers it shows."""

    title: str
    svg: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    name: str  # file name of the CSV, without ending


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, or preformatted text such as a recipe or a command."""

    title: str
    body: str
    pre: bool = False
    folded: bool = False


Section = Table | Figure | Text


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says, in reading order. The first section is the picture that shows the verdict at a glance."""

    title: str
    verdict: str
    mark: Mark
    lead: str
    sections: Sequence[Section]


def render(page: Page) -> str:
    """The page as one HTML text."""
    return _template().render(
        page=page,
        sign=SIGNS[page.mark],
        kind=lambda section: type(section).__name__,
        number=number,
        is_number=lambda cell: isinstance(cell, (int, float)) and not isinstance(cell, bool),
        is_link=lambda cell: isinstance(cell, Link),
        csv=csv_link,
        used=used_columns,
        svg=lambda figure: Markup(figure.svg),  # ours, made by matplotlib; everything else is escaped
        version=__version__,
    )


def number(cell: Cell) -> str:
    """A cell as a person reads it: four significant digits, exponents where small or large."""
    if cell is None:
        return "-"
    if isinstance(cell, Link):
        return cell.text
    if isinstance(cell, bool) or not isinstance(cell, float):
        return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
    if cell == 0 or 1e-3 <= abs(cell) < 1e5:
        return f"{cell:.4g}"
    return f"{cell:.2e}"


def used_columns(table: Table) -> list[int]:
    """The columns that say something: one that is empty in every row is left out of the page (its CSV keeps it)."""
    empty = (None, "")
    return [k for k in range(len(table.columns)) if not table.rows or any(row[k] not in empty for row in table.rows)]


def csv_link(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """The rows as a `data:` address with every digit."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(
        [repr(c) if isinstance(c, float) else c.href if isinstance(c, Link) else c for c in row] for row in rows
    )
    return "data:text/csv;base64," + base64.b64encode(text.getvalue().encode()).decode()


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    source = files("pretrace.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source)
