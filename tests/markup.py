"""A strict reader of HTML: every tag closed in order, ids unique, tables as lists of rows."""

from html.parser import HTMLParser

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
