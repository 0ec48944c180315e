"""Runs the examples of a Markdown page as a reader would: in order, in one session, in one folder.

`python` blocks share their names. `sh` and `bash` blocks that call `lowcal` or `python -c` are run command by command,
with `lowcal` standing for this package; other shell blocks (installing, make) are only shown. A command must succeed,
unless the next one looks at `$?`: then the page states the exit code. A `text` block right after an example is what it
prints; a line `...` in it stands for any number of lines. Blocks of another kind (yaml, for instance) are not run.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
SHELL = ("sh", "bash")
CALLS = re.compile(r"^(lowcal |python -c )", flags=re.MULTILINE)


@dataclass
class Session:
    """One reader: a folder, the names of the Python session, the last exit code, and all that was printed."""

    folder: Path
    names: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: list[str] = field(default_factory=list)
    status: int = 0

    def python(self, block: str, page: str) -> None:
        """Run a block of Python."""
        out = io.StringIO()
        with chdir(self.folder), redirect_stdout(out):
            exec(compile(block, page, "exec", dont_inherit=True), self.names)
        self.printed.append(out.getvalue())

    def shell(self, block: str, page: str) -> None:
        """Run the commands of a block; one that fails must be followed by one that looks at the exit code."""
        commands = split_commands(block)
        out = ""
        for i, command in enumerate(commands):
            done = run_command(command, self.folder, self.status)
            self.status, out = done.returncode, out + done.stdout
            looked_at = i + 1 < len(commands) and "$?" in commands[i + 1]
            assert done.returncode == 0 or looked_at, f"{page}: {command!r} exits with {done.returncode}: {done.stderr}"
        self.printed.append(out)


def run(page: Path, folder: Path) -> tuple[dict[str, object], str]:
    """Execute every example of a page in the folder and compare what it shows. Return names and all output."""
    session = Session(folder)
    before = ""
    for kind, body in FENCE.findall(page.read_text(encoding="utf-8")):
        runs = kind == "python" or (kind in SHELL and CALLS.search(body) is not None)
        if runs:
            (session.python if kind == "python" else session.shell)(body, page.name)
        elif kind == "text" and before == "runs":
            shown, printed = body.rstrip(), session.printed[-1].rstrip()
            assert matches(shown, printed), f"{page.name} shows what is not printed:\n{shown}\n---\n{printed}"
        before = "runs" if runs else kind
    assert session.printed, f"{page.name} has nothing to run"
    return session.names, "".join(session.printed)


def has_examples(page: Path) -> bool:
    """Whether something of the page is run."""
    blocks = FENCE.findall(page.read_text(encoding="utf-8"))
    return any(kind == "python" or (kind in SHELL and CALLS.search(body)) for kind, body in blocks)


def matches(shown: str, printed: str) -> bool:
    """Whether the lines shown are those printed, where a line `...` stands for any lines."""
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == "..." else re.escape(line.rstrip()) + r"[ \t]*\n" for line in shown.splitlines()
    )
    return re.fullmatch(pattern, printed + "\n") is not None


def split_commands(block: str) -> list[str]:
    """Return the commands of a block: a line, with those that a backslash or an open quote continues."""
    commands, part = [], ""
    for line in block.splitlines():
        part += line + "\n"
        if part.strip() and not line.endswith("\\") and is_complete(part):
            if not line.lstrip().startswith("#"):
                commands.append(part.strip())
            part = ""
    assert not part.strip(), f"no end to {part!r}"
    return commands


def is_complete(command: str) -> bool:
    """Whether bash would wait for no more lines."""
    done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, check=False)
    return done.returncode == 0 and not done.stderr


def run_command(command: str, folder: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run one command in the folder; `lowcal` and `python` are those of this process, `$?` the code of the last one."""
    own = f'python() {{ "{sys.executable}" "$@"; }}; lowcal() {{ "{sys.executable}" -m lowcal "$@"; }}'
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "110"}
    script = f"{own}\n(exit {status})\n{command}"
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def broken_links(page: Path) -> list[str]:
    """Return the files that the page links to and that do not exist."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    return [target for target in targets if not (page.parent / target).exists()]
