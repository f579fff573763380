"""docs/tutorial.md, followed: its files are written, its commands run, its output compared.

Two things are not done as on the page. The installation (the ``sh`` block) needs a package registry
and is left out: the smcoll is the one under test. And ``smcoll tune`` gets ``--yes``, since a
machine that runs tests may be busy, about which nobody could be asked.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from smcoll.launch import launch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
LONGEST = 100           # seconds for one command
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIGURE = r"\d+(?:[.,]\d+)*"
ANY_MPI = f"(?:{'|'.join(launch.TITLES.values())})"


class WrongPage(AssertionError):
    """Something does not go as the page says."""


def follow(page: str, folder: Path) -> list[str]:
    """Do what a page says, in ``folder``; the commands that were run."""
    tools = folder / ".tools"
    tools.mkdir()
    for name, command in (("smcoll", launch.own_command()), ("python", [sys.executable])):
        (tools / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (tools / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("SMCOLL_")}
    environment |= {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80",
                    "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / ".cache")}
    done = []
    for language, text in FENCE.findall(page):
        if language == "python":
            name = re.match(r"# ([\w.]+\.py)\b", text)
            if name is None:
                raise WrongPage(f"the first line does not name the file: {text[:80]!r}")
            (folder / name[1]).write_text(text)
        elif language == "console":
            for command, shown in commands(text):
                check(command, shown, run(command, folder, environment))
                done.append(command)
        elif language != "sh":
            raise WrongPage(f"a block of {language or 'no language'}")
    return done


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Of a console block each command and the lines shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif not found:
            raise WrongPage(f"output of no command: {line!r}")
        elif line.strip(" ."):
            found[-1][1].append(line)
    return found


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    """What a command prints, if it ends well and in time."""
    command = re.sub(r"\bsmcoll tune\b(?!.*--clear)", "smcoll tune --yes", command)
    process = subprocess.Popen(
        ["sh", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True)
    try:
        output, _ = process.communicate(timeout=LONGEST)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGTERM)          # the ranks, too
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise WrongPage(f"{command}: not done after {LONGEST} s") from None
        raise
    if process.returncode != 0:
        raise WrongPage(f"{command}: exit code {process.returncode}\n{output}")
    return output


def check(command: str, shown: list[str], output: str) -> None:
    """Whether each line shown was printed; in any order, since there are two streams."""
    for line in shown:
        if re.search(pattern(line), " ".join(output.split())) is None:
            raise WrongPage(f"{command}: {line!r} is not in its output:\n{output}")


def pattern(line: str) -> str:
    """Any figures for figures, anything for ``...``, any MPI for Open MPI; blanks don't count."""
    text = re.escape(" ".join(line.split())).replace(r"\ ", " ")
    text = text.replace(re.escape("..."), ".*").replace("Open MPI", ANY_MPI)
    return re.sub(r"\d+(?:(?:\\\.|,)\d+)*", lambda _: FIGURE, text)


@pytest.mark.lengthy
@pytest.mark.skipif(launch.crowded(2), reason="the tutorial needs two cores")
def test_the_tutorial_goes_as_it_says(tmp_path):
    done = follow(PAGE.read_text(), tmp_path)
    for command in ("compare", "run", "tune"):
        assert any(f"smcoll {command} " in line for line in done)
    tables = list((tmp_path / ".cache").rglob("*.json"))
    assert tables == []                      # it was there, and in no other place, and was removed


GOOD = """\
```python
# hello.py
print("5 words, 0.25 s by Open MPI")
```
```console
$ python hello.py; echo also >&2
also
7 words, 1.5 s by Open MPI
$ echo begin middle end
begin ... end
```
"""


def test_a_page_that_is_right_passes(tmp_path):
    assert follow(GOOD, tmp_path) == ["python hello.py; echo also >&2", "echo begin middle end"]


@pytest.mark.parametrize("old, new, message", [
    ("7 words", "7 birds", "not in its output"),
    ("7 words", "words 7", "not in its output"),
    ("1.5 s", "1.5 ms", "not in its output"),
    ("begin ... end", "begin ... close", "not in its output"),
    ("python hello.py", "python hallo.py", "not in its output"),
    ("echo begin", "false; exit 3; echo begin", "exit code 3"),
    ("# hello.py", "# hello", "name the file"),
    ("$ python", "> python", "output of no command"),
    ("```console", "```text", "a block of text"),
])
def test_a_page_that_is_wrong_fails(tmp_path, old, new, message):
    assert old in GOOD
    with pytest.raises(WrongPage, match=message):
        follow(GOOD.replace(old, new, 1), tmp_path)
