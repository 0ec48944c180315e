"""The documentation is complete and true: every name, test and figure that a page cites exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module

import pytest

import lowcal
import pages

DOCS = pages.ROOT / "docs"
PAPER = DOCS / "paper-in-code.md"
STATEMENTS = pages.ROOT / "tests" / "paper" / "statements.txt"
API = sorted((DOCS / "api").glob("*.md"))
TEXTS = [page for folder in (".", "how-to", "examples", "api") for page in sorted((DOCS / folder).glob("[!_]*.md"))]
CODE = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"(lowcal|experiments)(\.\w+)+")
TEST = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")
DIRECTIVE = re.compile(r"^\.\. auto\w+:: (lowcal[\w.]*)", flags=re.MULTILINE)


def code_of(page):
    """The names in backticks, outside of blocks."""
    return CODE.findall(re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE))


def rows_of(page):
    """The cells of every row of every table."""
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def exists(name):
    """Whether lowcal.a.b is a module, or something inside one."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        for part in parts[size:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@cache
def names_of_tests(path):
    """The names of the test functions of a file."""
    tree = ast.parse((pages.ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


# --- names -------------------------------------------------------------------------------------------------------


# a migration page also names what is gone
CITING = [page for page in TEXTS if not page.stem.startswith("migration-")]


@pytest.mark.parametrize("page", CITING, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_name_of_lowcal_that_a_page_cites_exists(page):
    cited = {name for name in code_of(page) if NAME.fullmatch(name)}
    assert not {name for name in cited if not exists(name)}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_test_that_a_page_cites_exists(page):
    for name in code_of(page):
        cited = TEST.fullmatch(name)
        if cited:
            assert (pages.ROOT / cited[1]).exists(), name
            assert cited[2] is None or cited[2] in names_of_tests(cited[1]), name


def test_names_that_are_not_there_are_found():
    assert exists("lowcal.hierarchy.implied_alpha")
    assert exists("lowcal.AuditReport.guarantees")
    assert not exists("lowcal.hierarchy.implied_beta")
    assert not exists("lowcal.hierarchies")
    assert not exists("lowcal.AuditReport.guarantee")


# --- the paper ---------------------------------------------------------------------------------------------------


def statements():
    return [line for line in STATEMENTS.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def test_the_statements_are_numbered_without_a_gap():
    numbers = {line.split()[-1] for line in statements()}
    for section, last in (("3", 16), ("4", 14), ("5", 6), ("A", 1), ("B", 1)):
        assert {f"{section}.{n}" for n in range(1, last + 1)} <= numbers
    assert len(statements()) == len(set(statements())) == 38 + 3 + 1 + 2


def test_every_statement_of_the_paper_has_its_row():
    found = [row[0] for row in rows_of(PAPER) if re.match(r"[A-Z][a-z]+ [\dAB]", row[0])]
    assert sorted(found) == sorted(statements())


def test_every_statement_has_code_and_a_test():
    for name, says, code, test in (row for row in rows_of(PAPER) if row[0] in statements()):
        assert says, name
        assert [one for one in CODE.findall(code) if NAME.fullmatch(one)], name
        assert [one for one in CODE.findall(test) if "::" in one and TEST.fullmatch(one)], name


def test_the_place_of_a_statement_cites_it():
    """The docstring that a reader is sent to names the statement that he looked for."""
    rows = {row[0].split()[-1]: row[2] for row in rows_of(PAPER) if row[0] in statements()}
    for number, function in (
        ("3.5", "smooth_to_lipschitz"),
        ("3.12", "basis_to_smooth"),
        ("3.15", "robustness"),
        ("3.16", "lipschitz_robustness"),
        ("4.1", "moment_match"),
        ("4.2", "moment_sandwich"),
        ("4.3", "cross_moment"),
        ("4.5", "true_positive_rate"),
        ("4.11", "set_true_positive_rate"),
        ("4.12", "covariance"),
        ("4.13", "variance"),
        ("5.3", "iterations"),
        ("5.5", "compare"),
        ("A.1", "squared_loss"),
    ):
        named = next(one for one in CODE.findall(rows[number]) if one.endswith(f".{function}"))
        module, _, name = named.rpartition(".")
        assert re.search(rf"\b{re.escape(number)}\b", getattr(import_module(module), name).__doc__), number


# --- the reference -----------------------------------------------------------------------------------------------


def documented():
    return {name for page in API for name in DIRECTIVE.findall(page.read_text(encoding="utf-8"))}


def test_every_public_name_is_in_the_reference():
    public = {f"lowcal.{name}" for name in lowcal.__all__ if name != "__version__"}
    assert not public - documented()
    assert "lowcal.__version__" in code_of(DOCS / "api" / "index.md")


@pytest.mark.parametrize("module", ["guarantees", "sampling", "testing", "datasets"])
def test_every_name_of_a_module_with_a_list_is_in_the_reference(module):
    text = "".join(page.read_text(encoding="utf-8") for page in API)
    found = re.search(rf"^\.\. automodule:: lowcal\.{module}\n((?:   :.*\n)*)", text, flags=re.MULTILINE)
    left_out = re.search(r":exclude-members: (.*)", found[1])
    by_module = set(getattr(lowcal, module).__all__) if ":members:" in found[1] else set()
    by_module -= set(left_out[1].split(", ")) if left_out else set()
    for name in set(getattr(lowcal, module).__all__) - by_module:
        elsewhere = {f"lowcal.{module}.{name}", f"lowcal.{name}", f"lowcal.complexity.{name}"}
        assert elsewhere & documented() or (name == "reuse_deviation" and "lowcal.complexity" in documented()), name


def test_every_page_of_the_reference_is_listed():
    listed = re.search(r"```{toctree}.*?\n\n(.*?)```", (DOCS / "api" / "index.md").read_text("utf-8"), re.DOTALL)[
        1
    ].split()
    assert sorted(listed) == sorted(page.stem for page in API if page.stem != "index")


# --- figures -----------------------------------------------------------------------------------------------------


def test_figures_of_the_comparison_are_those_of_the_benchmarks():
    benchmarks = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    text = (DOCS / "comparison.md").read_text(encoding="utf-8")
    figures = re.findall(r"(?<!\d)\.\d{4}\b", text)
    times = re.findall(r"\b\d+ times\b", text)
    assert len(figures) >= 10
    assert times
    assert not [figure for figure in [*figures, *times] if figure not in benchmarks]
