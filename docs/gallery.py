"""Run the examples of docs/examples and write their pages: what they explain, do, print and draw.

Run: python docs/gallery.py [names] [--out FOLDER]

An example is a Python script. Its docstring is the head of the page; comments that follow a line `# %%` are text; code
is shown with what it printed, and a figure that it leaves open is saved beside the page. An example whose packages or
data are missing is left out with a sentence, and its page stays as it is in the repository. Data that are not
part of the repository are looked for in the folder LOWCAL_DATA, or in shared/data beside or above the repository.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from time import perf_counter

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE / "examples"
#: The order of the gallery.
NAMES = ("census", "credit", "survey", "readmission", "superclasses", "monitoring", "gate", "large", "topics")
CELL = re.compile(r"^# %%\n", flags=re.MULTILINE)
DECISION = re.compile(r"^(Decision: .*)\n", flags=re.MULTILINE)
DECIDED = re.compile(r"^\*\*(Decision: .*)\*\*$", flags=re.MULTILINE)
FILE = re.compile(r"DATA / \"([\w.]+)\"")
#: What a figure shows, for who cannot see it: a comment above the code that draws it, of one line or more.
FIGURE = re.compile(r"^# Figure: (.*(?:\n# .*)*)", flags=re.MULTILINE)

HEAD = "<!-- Written by `python docs/gallery.py {name}`; edit {name}.py instead. -->\n"
FOOT = """\
## Run it yourself

The script is [{name}.py]({name}.py), and `python docs/gallery.py {name}` writes this page anew. {data}
"""
BUNDLED = "Its data come with the packages."
ELSEWHERE = (
    "Its data ({files}) are not part of the repository: set `LOWCAL_DATA` to a folder that holds them. "
    "Without them, `make docs` shows the output as it was committed."
)
OVERVIEW = """\
<!-- Written by `python docs/gallery.py`; edit that or the scripts instead. -->

# Examples

Nine models as practitioners have them: audited, recalibrated where needed, and decided about. Each page is one script
that runs in well under a minute. `make docs` runs those whose data and packages are present and shows the others as
they were committed; four use data that every copy of lowcal has.

| figure | question and decision |
|---|---|
{rows}

```{{toctree}}
:hidden:

{names}
```
"""


@dataclass(frozen=True)
class Example:
    """One script, cut into its docstring and its cells."""

    name: str

    @property
    def source(self) -> str:
        """The text of the script."""
        return (EXAMPLES / f"{self.name}.py").read_text("utf-8")

    @property
    def head(self) -> str:
        """The docstring: a title, and what the example is about."""
        return ast.get_docstring(ast.parse(self.source)) or ""

    @property
    def title(self) -> str:
        """The first line of the docstring, without its full stop."""
        return self.head.partition("\n")[0].rstrip(".")

    def cells(self) -> Iterator[tuple[str, str]]:
        """Yield the text and the code of each cell; the first has no text."""
        body = self.source.split('"""', 2)[2]
        for cell in CELL.split(body):
            lines = cell.strip("\n").splitlines()
            n_text = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
            yield "\n".join(line[2:] for line in lines[:n_text]), "\n".join(lines[n_text:]).strip("\n")

    def files(self) -> list[str]:
        """Return the files that the script reads from LOWCAL_DATA."""
        return sorted(set(FILE.findall(self.source)))

    def packages(self) -> set[str]:
        """Return the packages that the script needs: those it imports, except inside `try`."""
        found = set()
        for node in ast.parse(self.source).body:
            found |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            found |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
        return {name.partition(".")[0] for name in found}

    def missing(self) -> list[str]:
        """Return the packages and files that are not here."""
        packages = [name for name in sorted(self.packages()) if find_spec(name) is None]
        return packages + [name for name in self.files() if not (data_folder() / name).exists()]


def data_folder() -> Path:
    """Return the folder with data that are not part of the repository; it need not exist."""
    given = os.environ.get("LOWCAL_DATA")
    near = (parent / "shared" / "data" for parent in HERE.parents)
    return Path(given) if given else next((path for path in near if path.exists()), Path("shared/data"))


# --- a page -------------------------------------------------------------------------------------------------------


def run(example: Example, out: Path) -> str:
    """Run an example in this process and return its page; the figure is saved in `out`."""
    import figures

    figures.use_style()
    os.environ["LOWCAL_DATA"] = str(data_folder())
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    names: dict[str, object] = {"__name__": "__main__"}
    parts = [HEAD.format(name=example.name) + f"# {example.title}\n", example.head.partition("\n")[2].strip("\n")]
    for text, code in example.cells():
        parts += [text, f"```python\n{code}\n```" if code else ""]
        printed = StringIO()
        with redirect_stdout(printed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*non-interactive.*")  # plt.show()
            exec(compile(code, f"{example.name}.py", "exec", dont_inherit=True), names)
        parts += [draw(example, out, code), show(printed.getvalue())]
    return "\n\n".join(part.strip("\n") for part in [*parts, foot(example)] if part) + "\n"


def show(printed: str) -> str:
    """Return what was printed in Markdown; the decision is a line of its own."""
    rest = DECISION.sub("", printed).rstrip()
    return "\n\n".join([f"```text\n{rest}\n```"] * bool(rest) + [f"**{one}**" for one in DECISION.findall(printed)])


def draw(example: Example, out: Path, code: str) -> str:
    """Save the figure that is open, if any, and return it in Markdown."""
    import figures
    from matplotlib import pyplot

    if not pyplot.get_fignums():
        return ""
    described = FIGURE.findall(code)[0].replace("\n# ", " ")
    figures.save(pyplot.gcf(), out / f"{example.name}.svg", described)
    pyplot.close("all")
    return f"![{described}]({example.name}.svg)"


def foot(example: Example) -> str:
    """Return the end of a page: how to run it again."""
    files = ", ".join(f"`{name}`" for name in example.files())
    return FOOT.format(name=example.name, data=ELSEWHERE.format(files=files) if files else BUNDLED)


def decision(page: str) -> str:
    """Return the line of a page that says what to do."""
    return str(DECIDED.findall(page)[-1])


# --- the gallery --------------------------------------------------------------------------------------------------


def overview() -> str:
    """Return the first page of the gallery, from the pages of the examples."""
    return OVERVIEW.format(rows="\n".join(map(_row, NAMES)), names="\n".join(NAMES))


def _row(name: str) -> str:
    page = (EXAMPLES / f"{name}.md").read_text("utf-8")
    example = Example(name)
    about = example.head.split("\n\n")[1].replace("\n", " ")
    what = f"**[{example.title}]({name}.md)**<br>{about}<br>*{decision(page)}*"
    return f"| [![{example.title}]({name}.svg)]({name}.md) | {what} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the examples that are named, each in a process of its own, then write the overview."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], metavar="name", help=", ".join(NAMES))
    parser.add_argument("--out", type=Path, default=EXAMPLES, help="where pages and figures are written")
    given = parser.parse_args(arguments)
    if len(given.names) == 1:
        return write(Example(given.names[0]), given.out)
    failed = [name for name in given.names or NAMES if start(name, given.out)]
    (given.out / "index.md").write_text(overview(), "utf-8")
    return 1 if failed else 0


def start(name: str, out: Path) -> int:
    """Run one example in a process of its own and return its exit status."""
    return subprocess.run([sys.executable, __file__, name, "--out", str(out)], check=False).returncode


def write(example: Example, out: Path) -> int:
    """Write the page of one example, or say what is missing."""
    missing = example.missing()
    if missing:
        print(f"{example.name}: left as it is, for lack of {', '.join(missing)}")
        return 0
    began = perf_counter()
    page = run(example, out)
    (out / f"{example.name}.md").write_text(page, "utf-8")
    print(f"{example.name}: {perf_counter() - began:.0f} s. {decision(page)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
