"""Checks for notions and hypothesis classes of your own: every rule that lowcal relies on, tried on small samples.

`check_notion` and `check_subpopulations` run all rules and stop at the first one that is broken, with a `CheckFailed`
that says which, by how much, and what to change. `notion_checks` and `subpopulation_checks` list the rules one by one:

    @pytest.mark.parametrize(("name", "check"), lowcal.testing.notion_checks())
    def test_my_notion(name, check):
        check(MyNotion())
"""

from __future__ import annotations

from lowcal.data.errors import CheckFailed
from lowcal.testing.notions import check_notion, notion_checks
from lowcal.testing.subpopulations import check_subpopulations, subpopulation_checks

__all__ = ["CheckFailed", "check_notion", "check_subpopulations", "notion_checks", "subpopulation_checks"]
