"""The house keeps its shape: imports point down only, and every room is on the plan."""

from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[2]


def test_imports_point_down_only(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    status = lint_imports(config_filename="pyproject.toml", cache_dir=None)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out
