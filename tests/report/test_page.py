import base64
import re

import pytest

from pretrace.report.figures import drawing
from pretrace.report.page import Figure, Page, Table, Text, csv_link, number, render


def page():
    with drawing() as d:
        d.axes.plot([1, 2, 3], [1.0, 4.0, 9.0], label="<b>x</b>")
        d.axes.legend()
    return Page(
        title="Case <books>",
        verdict='CONTRADICTED: the rival "standard" explains it.',
        mark="bad",
        lead="deciding step 16",
        sections=(
            Figure("Strip plot", d.svg, "one mark a run", ("step", "score"), ((1, 0.5),), "strip"),
            Table("Hypotheses", ("name", "score"), (("standard", 0.998), ("deduped", 1.2e-5)), name="hypotheses"),
            Text("Recipe", "a: <script>alert(1)</script>", pre=True, folded=True),
        ),
    )


def test_a_page_is_whole_in_itself():
    html = render(page())
    addresses = re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?([^\"')\s>]+)", html)
    assert addresses
    assert all(a.startswith(("data:", "#")) for a in addresses)


def test_everything_but_our_own_pictures_is_escaped():
    html = render(page())
    assert "<script>alert" not in html
    assert "Case &lt;books&gt;" in html
    assert "<b>x</b>" not in html


def test_pictures_follow_the_ink_of_the_page():
    html = render(page())
    assert "currentColor" in html
    assert "#010203" not in html


def test_two_renderings_are_equal_byte_for_byte():
    assert render(page()) == render(page())


def test_the_csv_of_a_table_keeps_every_digit():
    link = csv_link(("a", "b"), ((1, 0.1234567890123),))
    assert base64.b64decode(link.split(",")[1]).decode() == "a,b\r\n1,0.1234567890123\r\n"


@pytest.mark.parametrize(
    ("cell", "shown"),
    [(None, "-"), (0.0, "0"), (0.99812, "0.9981"), (3.1e-8, "3.10e-08"), (1234567, "1,234,567"), ("x", "x")],
)
def test_numbers_are_set_for_people(cell, shown):
    assert number(cell) == shown


def test_a_column_that_is_empty_in_every_row_is_left_out_of_the_page_and_kept_in_its_csv():
    table = Table("Tensors", ("tensor", "move", "note", "zero"), [("a", "", None, 0), ("b", "", None, 0)], name="t")
    html = render(Page("t", "Pass.", "good", "", [table]))
    headings = re.findall(r'<th scope="col"[^>]*><button type="button">(.*?)</button>', html)
    assert headings == ["tensor", "zero"]
    csv = base64.b64decode(re.search(r"base64,([^\"]+)", html).group(1)).decode()
    assert csv.startswith("tensor,move,note,zero")
