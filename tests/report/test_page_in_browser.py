"""Pages in a real headless Chromium: console, filters, hover, keyboard, narrow screens, contrast."""

import csv
import gzip
import io
import re
import shutil
import time
from argparse import Namespace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from gemm_model.cli import main
from gemm_model.commands.benchmark import write_page

pytest.importorskip("plotly", reason="pages need plotly (extra `page`)")
pytest.importorskip("selenium", reason="the browser test needs selenium")

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with chromedriver on this machine"),
    # One worker makes the pages and starts the browser once.
    pytest.mark.xdist_group("browser"),
]
BURST = Path(__file__).parents[2] / "data/measurements/h200/burst.csv.gz"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars"),
)
FILTERED_WITHIN_MS = 200
CONTRAST_OF_TEXT = 4.5
"""WCAG 2.2, success criterion 1.4.3, level AA."""
READABLE_PX = 12
TAB = "\ue004"

TEXTS = Path(__file__).with_name("texts_of_page.js").read_text()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def table_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "table.html"
    assert main(["predict", "--input", str(BURST), "--html", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def shape_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "shape.html"
    assert main(["explore", "--m", "4096", "--n", "4096", "--k", "4096", "--html", str(path)]) == 0
    return path


SMALL = ["--m", "512", "--n", "1024", "--k", "2048"]
KERNEL = [*SMALL, "--cta", "128x256"]
MADE_BY: dict[str, list[str]] = {
    "unmeasured": ["predict", "--input", "unmeasured.csv"],
    "rank": ["rank", *SMALL],
    "explain": ["explain", *KERNEL],
    "portfolio": ["portfolio", "--input", "shapes.csv", "--max-kernels", "2"],
    "timeline": ["simulate", *KERNEL],
    "pipeline": ["simulate", *KERNEL, "--model", "PipelineModel"],
    "calibration": [
        *("calibrate", "--input", "few.csv", "--from", "h200:quack", "--fit", "launch,dram"),
        *("--residual", "off", "--hold-outs", "shapes", "--output", "mine.yaml"),
    ],
}
"""Pages of the other verbs, and the commands that make them."""
ALL_PAGES = ("table", "shape", "benchmark", *MADE_BY)


@pytest.fixture(scope="module")
def pages(tmp_path_factory, table_page, shape_page):
    """A page of every verb that makes one, by name."""
    folder = tmp_path_factory.mktemp("other")
    with gzip.open(BURST, "rt", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["cta_m"] and row["in_dtype"] == "bf16"]
    shapes = list(dict.fromkeys((row["m"], row["n"], row["k"]) for row in rows))[::20]
    few = [row for row in rows if (row["m"], row["n"], row["k"]) in shapes]
    save(folder / "few.csv", few)
    save(
        folder / "unmeasured.csv",
        [{name: row[name] for name in row if name != "runtime_us"} for row in few[:40]],
    )
    save(folder / "shapes.csv", [dict(zip("mnk", shape, strict=True)) for shape in shapes[:6]])
    found = {"table": table_page, "shape": shape_page, "benchmark": folder / "benchmark.html"}
    for name, words in MADE_BY.items():
        found[name] = folder / f"{name}.html"
        places = [str(folder / word) if word.endswith((".csv", ".yaml")) else word for word in words]
        assert main([*places, "--html", str(found[name])]) == 0
    write_page(Namespace(output=folder / "few.csv", html=found["benchmark"], overrides=["gpu=h200"]))
    return found


def save(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def show(browser, page, *, width=1280, height=900, mode="light"):
    """Open a page on a screen of that size and wait until it is drawn; its console must stay silent."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = [{"name": "prefers-color-scheme", "value": mode}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    browser.get(page.as_uri())
    wait(browser, "return document.documentElement.dataset.ready === 'yes'")
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def wait(browser, script, limit_s=120.0):
    deadline = time.monotonic() + limit_s
    while not browser.execute_script(script):
        assert time.monotonic() < deadline, f"not within {limit_s} s: {script}"
        time.sleep(0.02)


def toggle(browser, name):
    """Switch a filter over from the keyboard; what the page computed until it was drawn again, in ms.

    Counted is the processor's time of the page's thread, which others at work on the machine do not lengthen.
    """
    before_s = thread_s(browser)
    browser.execute_script("delete document.documentElement.dataset.drawnMs")
    browser.find_element("name", name).send_keys(" ")
    wait(browser, "return document.documentElement.dataset.drawnMs !== undefined")
    return 1e3 * (thread_s(browser) - before_s)


def thread_s(browser):
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(each["value"] for each in metrics if each["name"] == "TaskDuration")


def test_sizes(table_page, shape_page):
    assert table_page.stat().st_size < 8e6
    assert shape_page.stat().st_size < 4e6


def test_filters_filter_and_are_quick(browser, table_page):
    show(browser, table_page)
    with gzip.open(BURST, "rt", encoding="utf-8") as lines:
        types = [row["in_dtype"] for row in csv.DictReader(lines) if row["cta_m"]]
    status = browser.find_element("id", "status")
    assert status.text.startswith(f"{len(types):,} of {len(types):,} rows")
    spent_ms = [toggle(browser, "type:bf16")]
    left = len(types) - types.count("bf16")
    assert status.text.startswith(f"{left:,} of {len(types):,} rows")
    assert "bf16" not in browser.find_element("id", "row-table").text
    spent_ms += [toggle(browser, f"type:{name}") for name in ("e4m3", "fp16")]
    assert status.text.startswith("No row is left")
    spent_ms += [toggle(browser, f"type:{name}") for name in ("e4m3", "bf16", "fp16")]
    assert status.text.startswith(f"{len(types):,} of {len(types):,} rows")
    assert np.median(spent_ms) < FILTERED_WITHIN_MS, spent_ms


def test_hover_shows_the_row(browser, table_page):
    show(browser, table_page)
    plot = browser.find_element("css selector", "#plot-0 .nsewdrag")
    from selenium.webdriver.common.action_chains import ActionChains

    label, text = "return document.querySelector('#plot-0 .hoverlayer').textContent", ""
    for step in range(40):
        # A label follows the pointer with a delay.
        ActionChains(browser, duration=20).move_to_element_with_offset(plot, step - 20, 0).pause(
            0.1
        ).perform()
        text = browser.execute_script(label)
        if text:
            break
    assert "predicted" in text
    assert "measured" in text
    assert "limited by" in text


@pytest.mark.parametrize("name", ALL_PAGES)
def test_every_control_is_reached_by_keyboard(browser, pages, name):
    show(browser, pages[name])
    controls = "a[href], button, input, select, [tabindex='0']"
    count = browser.execute_script(
        f"""const all = [...document.querySelectorAll("{controls}")].filter((e) => e.getClientRects().length);
        all.forEach((e, i) => {{ e.dataset.place = i; }}); return all.length;"""
    )
    reached = set()
    for _ in range(count + 1):
        browser.switch_to.active_element.send_keys(TAB)
        reached.add(browser.execute_script("return document.activeElement.dataset.place ?? null"))
    assert {str(place) for place in range(count)} <= reached


@pytest.mark.parametrize("name", ALL_PAGES)
@pytest.mark.parametrize(("mode", "width"), [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)])
def test_text_is_readable(browser, pages, name, mode, width):
    show(browser, pages[name], mode=mode, width=width)
    assert browser.execute_script("return document.documentElement.dataset.mode") == mode
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    # A print draws the figures that are out of view too.
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    wait(
        browser,
        "return document.querySelectorAll('.plot svg').length >= document.querySelectorAll('.plot').length",
    )
    texts = browser.execute_script(TEXTS)
    assert len(texts) > (60 if name in ("table", "shape") else 30)
    assert [each for each in texts if each["size"] < READABLE_PX] == []
    # Cells of a map have grounds of their own, which the next test looks at.
    assert [each for each in texts if not each["map"] and each["contrast"] < CONTRAST_OF_TEXT] == []


@pytest.mark.parametrize("width", [420, 1280])
@pytest.mark.parametrize("name", ["shape", "rank"])
def test_a_ranking_fits_its_screen_and_a_screenshot_holds_it(browser, pages, tmp_path, name, width):
    show(browser, pages[name], width=width, height=6000)
    wait(browser, "return document.querySelector('#plot-0 svg') !== null")
    panels = browser.execute_script(
        """return [...document.querySelectorAll(".panel")].map((panel) => [panel.querySelector("h2").textContent,
             ...[...panel.querySelectorAll(".frame, .scroll")].map((e) => e.scrollWidth - e.clientWidth)]);"""
    )
    assert [over for title, *over in panels if title in ("Ranking", "The fastest kernels")] == [[0], [0]]
    text = browser.execute_script("return document.body.innerText")
    assert not re.search(r"\b(null|NaN|undefined|None)\b", text)
    pixels = plt.imread(io.BytesIO(browser.get_screenshot_as_png()))
    assert pixels.shape[1] == width
    assert len(np.unique(pixels[:1200].reshape(-1, pixels.shape[2]), axis=0)) > 50


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_cells_of_a_map_are_readable(browser, shape_page, mode):
    show(browser, shape_page, mode=mode)
    of = "return getComputedStyle(document.documentElement).getPropertyValue('--{}').trim()"
    text, low, high = (browser.execute_script(of.format(name)) for name in ("text", "low", "high"))
    assert min(contrast(text, low), contrast(text, high)) >= CONTRAST_OF_TEXT


def test_the_reader_may_choose_the_mode(browser, shape_page):
    show(browser, shape_page, mode="light")
    browser.find_element("id", "mode").send_keys("dark")
    wait(browser, "return document.documentElement.dataset.mode === 'dark'")
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert max(int(channel) for channel in ground.strip("rgb()").split(",")) < 64


def contrast(first, second):
    """Contrast of two colours '#rrggbb' by WCAG 2.2."""

    def light(color):
        shares = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(first), light(second)))
    return (high + 0.05) / (low + 0.05)
