"""Audits to be shown, and a strict reader of their pages: groups have names that try to be more than names."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser

import numpy as np

from lowcal import audit
from lowcal.datasets import make_miscalibrated

MARKUP = "<img src=x onerror=alert(1)>"
COLUMN = "say \"hi\"\nthere </script><script>alert('x')</script> | `a` *b* $c$ & <b>"


@cache
def rows(n_classes, n=3000):
    """Return y, p of a poor model, p of a better one, and X."""
    data = make_miscalibrated(n, n_classes=n_classes, n_columns=3, random_state=0)
    first = np.where(data.X["g0"] == "a", MARKUP, data.X["g0"]).astype(object)
    X = {"g0": first, COLUMN: data.X["g1"], "g2": data.X["g2"]}
    y = np.array(["v", "w", "x", "y", "<z>"], dtype=object)[data.y] if n_classes == 5 else data.y
    return y, data.p, (data.p + 3 * data.f_star) / 4, X


CLASSES = ["v", "w", "x", "y", "<z>"]


@cache
def audited(n_classes, model="poor", notion="degree-2", alpha=0.01, per_person=None):
    """Return the report of a model."""
    y, poor, better, X = rows(n_classes)
    options = {"alpha": alpha, "per_person": per_person} | ({"classes": CLASSES} if n_classes == 5 else {})
    p = {"poor": poor, "better": better}[model]
    return audit(y, p, X, notion=notion, random_state=7, null_draws=19, **options)


VOID = {"meta", "input", "br", "img", "link", "hr"}


class Strict(HTMLParser):
    """Reads a page: every tag closed in order, ids unique; keeps the elements and the text of tables."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.elements, self.text, self.tables = [], [], [], [], {}

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        assert len(found) == len(attributes), f"an attribute twice in <{tag}>"
        self.elements.append((tag, found))
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "table":
            self.tables[found.get("id")] = self.rows = []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> without a start"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open or "script" in self.open:
            return
        self.text.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data


def read(html):
    parser = Strict()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    return parser
