"""Pages in headless Chromium: nothing leaves the page, it is drawn at every size, tables sort, figures enlarge."""

import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import matplotlib.image
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


def chromium(url, profile, *flags):
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program, "install Debian's chromium: .ci/run does"
    command = [program, *FLAGS, f"--user-data-dir={profile}", *flags, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of the quick demo, made by the command line."""
    out = tmp_path_factory.mktemp("demo") / "demo"
    subprocess.run([sys.executable, "-m", "pretrace", "demo", "--quick", "--out", str(out)], check=True, timeout=300)
    return out / "report.html"


def asked_by_the_page(folder, name, work):
    """Addresses that the page `name` itself asked for (the browser asks hosts of its own; those have no initiator)."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    log = work / "net.json"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_port}"
        chromium(f"{home}/{name}", work / "p", f"--log-net-log={log}", "--dump-dom", "--virtual-time-budget=2000")
        server.shutdown()
    events = [e["params"] for e in json.loads(log.read_text())["events"] if "url" in e.get("params", {})]
    assert f"{home}/{name}" in {e["url"] for e in events}
    return {e["url"].removeprefix(home) for e in events if e.get("initiator") == home}


def test_no_request_leaves_the_page(report, tmp_path):
    assert asked_by_the_page(report.parent, report.name, tmp_path) == set()


def test_a_request_would_be_seen(tmp_path):
    (tmp_path / "page.html").write_text('<link rel="icon" href="data:,"><img src="/picture.png">')
    assert asked_by_the_page(tmp_path, "page.html", tmp_path) == {"/picture.png"}


@pytest.mark.parametrize("size", [(1100, 2400), (390, 2400)], ids=["desktop", "phone"])
def test_the_page_is_drawn_and_fits_its_width(report, tmp_path, size):
    picture = tmp_path / "page.png"
    chromium(report.as_uri(), tmp_path / "p", f"--window-size={size[0]},{size[1]}", f"--screenshot={picture}")
    pixels = matplotlib.image.imread(picture)[..., :3]
    assert pixels.shape[1] == size[0]
    ink = (pixels.mean(axis=2) < 0.6).mean(axis=1)  # share of dark pixels by row
    assert (ink > 0).mean() > 0.3  # text and pictures all the way down, no blank page


def test_a_click_sorts_a_table_and_enlarges_a_figure(report, tmp_path):
    script = """
    <script>addEventListener("load", () => {
      const table = [...document.querySelectorAll("table")].find(t => t.tBodies[0].rows.length > 1);
      table.querySelectorAll("th button")[0].click(); table.querySelectorAll("th button")[0].click();
      document.title = [...table.tBodies[0].rows].map(r => r.cells[0].textContent).join("|");
      document.querySelector(".enlarge").click();
      document.title += "#" + document.querySelector("dialog").open + document.querySelectorAll("dialog svg").length;
    });</script></body>"""
    changed = tmp_path / "page.html"
    changed.write_text(Path(report).read_text().replace("</body>", script))
    dom = chromium(changed.as_uri(), tmp_path / "p", "--dump-dom", "--virtual-time-budget=3000")
    title = dom[dom.index("<title>") + 7 : dom.index("</title>")]
    names, dialog = title.split("#")
    assert names.split("|") == sorted(names.split("|"), reverse=True)
    assert dialog == "true1"
