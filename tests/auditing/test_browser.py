"""The page in headless Chromium: no error, sorting and filtering by mouse and keyboard, no barrier, paper and phone."""

import numpy as np
import pytest

import chromium as driver
from audits import COLUMN, MARKUP, audited, rows
from lowcal import audit, multicalibrate
from lowcal.auditing import words
from lowcal.auditing.reports import AuditComparison, SavedAudit

pytestmark = pytest.mark.skipif(driver.PROGRAM is None, reason="Chromium is not installed (Debian: chromium)")
needs_axe = pytest.mark.skipif(
    not driver.AXE.exists(), reason="axe-core is not installed: npm install --no-package-lock in tests/browser"
)


@pytest.fixture(scope="module")
def browser():
    with driver.chromium() as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    names = {2: "binary", 5: "five", "both": "both", "monitoring": "monitoring", "compared": "compared"}
    names |= {"satisfied": "satisfied", "undecided": "undecided"}
    made = {which: folder / f"{name}.html" for which, name in names.items()}
    audited(2).to_html(made[2])
    audited(5).to_html(made[5])
    y, p, better, X = rows(2)
    fit = multicalibrate(y, p, X)
    audited(2, "better").to_html(made["both"], before=audited(2), fit=fit, explain=(p, X))
    for verdict, alpha in (("satisfied", 0.1), ("undecided", 0.01)):
        assert audited(2, "better", alpha=alpha).verdict == verdict
        audited(2, "better", alpha=alpha).to_html(made[verdict])
    month = np.array(["2024-01", "2024-02", "2024-03"])[np.arange(len(y)) // 1000]
    drifting = np.where(month == "2024-03", 0.7 * p, better)
    report = audit(y, drifting, {**X, "month": month}, by="month", random_state=0, null_draws=19)
    assert report.alarms
    report.to_html(made["monitoring"])
    both = [SavedAudit.from_dict(audited(2, model).to_dict(), f"{model}.json") for model in ("poor", "better")]
    AuditComparison.of(both).to_html(made["compared"])
    return made


def column(browser, table, k):
    """The texts of a column in the order they are seen."""
    rows = f"[...document.querySelectorAll('#{table} tbody tr')].filter(r => !r.hidden)"
    return browser.run(f"{rows}.map(r => r.cells[{k}].textContent)")


def place(browser, table, heading):
    heads = browser.run(f"[...document.querySelectorAll('#{table} thead th')].map(h => h.textContent)")
    return heads.index(heading)


def numbers(values):
    return [float(v.replace("−", "-").replace("%", "").replace(",", "")) for v in values]  # noqa: RUF001


# --- the tools themselves -----------------------------------------------------------------------------------


def test_the_driver_sees_errors_requests_and_dialogs(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<title>x</title><img src='missing.png'><script>console.error('no'); nothing.at.all</script>")
    browser.open(bad)
    seen = {method for method, _ in browser.troubles()}
    assert {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Network.requestWillBeSent"} <= seen


@needs_axe
def test_axe_finds_barriers(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<html><title>x</title><main><input><p style='color:#ccc;background:#fff'>pale</p></main></html>")
    browser.open(bad)
    assert {"label", "color-contrast", "html-has-lang"} <= {one[0] for one in browser.axe()}


# --- what is there ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [2, 5, "both"])
def test_the_verdict_is_read_and_nothing_goes_wrong(browser, pages, which):
    browser.open(pages[which])
    report = audited(2, "better") if which == "both" else audited(which)
    said = browser.run("document.querySelector('.sentence').textContent")
    example = words.example(report)
    assert said == words.plain_verdict(report, example.subpopulation, str(example.label))
    exact = browser.run("document.querySelector('#exact').parentElement.querySelector('p').textContent")
    assert exact.endswith(words.verdict(report, report.proof.subpopulation))
    assert words.title(report) in browser.run("document.querySelector('#verdict').textContent")
    assert browser.run("[...document.querySelectorAll('svg path')].filter(p => p.getBBox().width > 0).length") > 20
    assert browser.troubles() == []


@pytest.mark.parametrize("which", [2, 5])
def test_names_are_seen_as_text(browser, pages, which):
    browser.open(pages[which])
    names = column(browser, "groups-table", 1)
    assert names == [one.subpopulation for one in audited(which).findings]
    assert f"g0={MARKUP}" in names
    assert any(name.startswith(COLUMN) for name in names)
    assert browser.run("document.querySelectorAll('img').length + document.scripts.length") == 1


@needs_axe
@pytest.mark.parametrize(
    ("which", "scheme"),
    [
        *(("both", "light"), (2, "dark"), (5, "light"), ("satisfied", "dark"), ("undecided", "light")),
        *(("monitoring", "light"), ("monitoring", "dark"), ("compared", "light"), ("compared", "dark")),
    ],
)
def test_no_serious_barrier(browser, pages, which, scheme):
    browser.open(pages[which], scheme)
    assert browser.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 28)"
    )
    assert browser.axe() == []


# --- sorting and filtering ----------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [2, 5])
def test_a_click_sorts_by_a_number_and_another_the_other_way(browser, pages, which):
    browser.open(pages[which])
    k = place(browser, "groups-table", "Per person")
    head = f"#groups-table thead th:nth-child({k + 1})"
    before = numbers(column(browser, "groups-table", k))
    browser.click(f"{head} button")
    assert browser.run(f"document.querySelector('{head}').ariaSort") == "descending"
    assert numbers(column(browser, "groups-table", k)) == sorted(before, reverse=True) != before
    browser.click(f"{head} button")
    assert browser.run(f"document.querySelector('{head}').ariaSort") == "ascending"
    assert numbers(column(browser, "groups-table", k)) == sorted(before)
    status = "document.querySelector('#groups-table-filter').parentElement.querySelector('output').textContent"
    assert browser.run(status) == "Sorted by Per person, ascending"
    assert browser.troubles() == []


def test_the_keyboard_sorts_text_and_only_one_column_is_sorted(browser, pages):
    browser.open(pages[5])
    k = place(browser, "moments-table", "Class")
    browser.run("document.querySelector('#moments-table thead button').focus()")
    browser.press("Tab", code=9)
    assert browser.run("document.activeElement.textContent") == "Class"
    browser.press("Enter", "\r", 13)
    labels = column(browser, "moments-table", k)
    assert labels == sorted(labels)
    assert set(labels) == {"v", "w", "x", "y", "<z>"}
    browser.click("#moments-table thead button")
    assert browser.run("document.querySelectorAll('#moments-table [aria-sort]').length") == 1


def test_numbers_that_are_not_there_come_last(browser, pages):
    browser.open(pages[2])
    browser.run("document.querySelector('#heat tbody tr').cells[1].textContent = '\u2013'")
    for _ in range(2):
        browser.click("#heat thead th:nth-child(2) button")
        assert column(browser, "heat", 1)[-1] == "–"  # noqa: RUF001


def test_typing_filters_a_table_and_escape_ends_it(browser, pages):
    browser.open(pages[5])
    everyone = column(browser, "groups-table", 1)
    browser.click("#groups-table-filter")
    browser.type("G2=b")
    assert column(browser, "groups-table", 1) == ["g2=b"]
    status = "document.querySelector('#groups-table-filter').parentElement.querySelector('output').textContent"
    assert browser.run(status) == f"1 of {len(everyone)} shown"
    browser.press("Escape", code=27)
    assert column(browser, "groups-table", 1) == everyone


def test_groups_are_filtered_and_links_open_them(browser, pages):
    browser.open(pages[2])
    browser.click("#each-list-filter")
    browser.type("g0= IMG")
    seen = "[...document.querySelectorAll('details.group')].filter(d => !d.hidden)"
    assert browser.run(f"{seen}.map(d => d.querySelector('bdi').textContent)") == [f"g0={MARKUP}"]
    browser.run("document.querySelector('#groups-table a[href=\"#g9\"]').click()")
    browser.run("new Promise(done => setTimeout(done, 50))")
    assert browser.run("document.querySelector('#g9').open && !document.querySelector('#g9').hidden")
    assert browser.run("document.activeElement.parentElement.id") == "g9"


def test_the_first_tab_skips_to_the_verdict(browser, pages):
    browser.open(pages[2])
    browser.press("Tab", code=9)
    assert browser.run("document.activeElement.className") == "skip"
    assert browser.run("document.activeElement.getBoundingClientRect().x") >= 0
    browser.press("Enter", "\r", 13)
    assert browser.run("document.activeElement.id") == "main"


def test_everything_is_there_without_the_script(browser, pages):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(pages[2])
        assert browser.run("document.querySelectorAll('button, input').length") == 0
        assert column(browser, "groups-table", 1) == [one.subpopulation for one in audited(2).findings]
        assert len(column(browser, "moments-table", 0)) == len(audited(2).findings)
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)


# --- paper and phones ---------------------------------------------------------------------------------------


def test_the_first_screen_has_the_verdict_and_the_groups_without_a_technical_term(browser, pages):
    for which in (2, 5, "satisfied", "undecided"):
        browser.open(pages[which], width=1280, height=900)
        assert browser.run("document.querySelector('.who li').getBoundingClientRect().bottom") < 900
        first = "document.querySelector('.verdict').innerText + document.querySelector('#who').parentElement.innerText"
        said = browser.run(first).lower()
        for term in ("alpha", "degree", "violation", "bootstrap", "p-value", "notion", "supremum", "calibrat"):
            assert term not in said.replace("recalibrate the model", "")


@pytest.mark.parametrize("which", ["monitoring", "compared"])
def test_other_pages_load_nothing_and_report_no_trouble(browser, pages, which):
    browser.open(pages[which])
    assert browser.troubles() == []


@pytest.mark.parametrize("which", [2, 5, "both", "undecided", "monitoring", "compared"])
def test_a_phone_does_not_scroll_sideways(browser, pages, which):
    browser.open(pages[which], width=360, height=740)
    assert browser.run("document.documentElement.scrollWidth") <= 360


def test_paper_is_light_and_shows_whole_tables(browser, pages, tmp_path):
    browser.open(pages["both"], "dark")
    browser.send(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    try:
        style = "getComputedStyle(document.querySelector"
        look = [
            browser.run(f"{style}('{where}')).{what}")
            for where, what in (
                ("body", "backgroundColor"),
                ("body", "color"),
                (".tools", "display"),
                (".scroll", "maxHeight"),
            )
        ]
        assert look == ["rgb(255, 255, 255)", "rgb(0, 0, 0)", "none", "none"]
        browser.pdf(tmp_path / "page.pdf")
        assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    finally:
        browser.send("Emulation.setEmulatedMedia", media="")
