"""What README, CONTRIBUTING and docs/ tell a reader to do can be done.

Every Python block runs: those of a page in order, in one namespace, with few training steps; what a
comment behind a print says is what is printed. Every shell block, and every command between
backticks, names a command that exists with options that it takes. A block that is neither fails, so
that none is skipped. Every link leads to a file and heading that are there.
"""

import ast
import io
import re
import shlex
import tomllib
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest
import typer

from analyses.cli import app
from tests.pages import PAGES, ROOT, Block, blocks, code_in_text, headings, links, name_of, pictures

SHELL = ("", "sh", "bash", "console")
OF_SPHINX = ("{toctree}", "{eval-rst}")
"""Directives: the site is built from them, which `tests/test_site.py` does."""


def python_blocks(text: str) -> list[Block]:
    return [block for block in blocks(text) if block.language == "python"]


def run_page(text: str, page: str) -> None:
    """All Python blocks of a page; training is cut short."""
    names: dict = {"__name__": "page"}
    for block in python_blocks(text):
        code = re.sub(r"\bsteps=\d+", "steps=3", block.code)
        lines = code.splitlines()
        for statement in ast.parse(code).body:
            # Offsets count bytes.
            last = lines[statement.end_lineno - 1].encode()[statement.end_col_offset :].decode()
            ast.increment_lineno(statement, block.line)
            said = io.StringIO()
            with redirect_stdout(said):
                exec(compile(ast.Module([statement], []), page, "exec"), names)
            promised = last.partition("#")[2].strip()
            if is_print(statement) and promised:
                assert said.getvalue().strip() == promised, f"{page}, line {statement.lineno}"


def is_print(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Name)
        and statement.value.func.id == "print"
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_python_block_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("docs", "grids"):  # what code reads from the repository's root
        (tmp_path / folder).symlink_to(ROOT / folder)
    run_page(page.read_text(), name_of(page))


def test_what_is_promised_is_compared():
    run_page(
        "```python\nx = 2\nprint(x)  # 2\n```\n\n```python\nprint(\n    x + 1\n)  # 3\n```", "page"
    )
    with pytest.raises(AssertionError, match="page, line 3"):
        run_page("```python\nx = 2\nprint(x)  # 3\n```", "page")
    with pytest.raises(NameError):
        run_page("text\n\n```python\nmissing\n```", "page")


def test_every_way_to_write_a_block_is_seen():
    text = "- item\n\n  ~~~ruby\n  x\n  ~~~\n\ntext\n\n    indented\n\n<pre>\nx\n</pre>\n"
    assert [block.language for block in blocks(text)] == ["ruby", "", "html"]


def test_there_is_something_to_run():
    """The pages that a reader begins with have code, and all of docs/ is looked at."""
    with_code = {name_of(page) for page in PAGES if python_blocks(page.read_text())}
    begun_with = ("getting_started", "task", "theory", "measures", "gallery", "new_mixer")
    assert with_code >= {"README.md", *(f"docs/{page}.md" for page in begun_with)}
    assert {name_of(page) for page in PAGES} >= {"docs/api/probes.md", "CONTRIBUTING.md"}


def shell_commands(code: str) -> list[list[str]]:
    """The commands of a shell block, as words; comments are none."""
    commands: list[list[str]] = []
    for line in code.splitlines():
        command: list[str] = []
        for word in [*shlex.split(line, comments=True), "&&"]:
            if word != "&&":
                command.append(word)
            elif command:
                commands.append(command)
                command = []
    return commands


def check_commands(code: str, *, mention: bool = False) -> None:
    """Raise unless every command exists and takes these options.

    Args:
        mention: in the running text, where what a command needs may be left out.
    """
    for words in shell_commands(code):
        check_command(words, mention)


def check_command(words: list[str], mention: bool) -> None:
    command, *rest = words
    if command == "hoptrace":
        check_hoptrace([word.strip("[]") for word in rest], mention)
    elif [command, *rest[:1]] == ["python", "-m"]:
        spec = find_spec(rest[1])
        assert spec is not None, f"no module {rest[1]}"
        assert spec.origin is not None
        source = Path(spec.origin).read_text()
        for word in rest[2:]:
            assert not word.startswith("-") or f'"{word}"' in source, f"{rest[1]} has no {word}"
    elif [command, *rest[:1]] == ["pip", "install"]:
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extra in re.findall(r"^\.\[(.*)\]$", rest[-1]):
            assert extra in known["optional-dependencies"], f"no extra {extra}"
    elif "/" in command:
        assert (ROOT / command).stat().st_mode & 0o100, f"{command} cannot be run"
    else:
        assert command in ("pytest", "ruff", "mypy", "sphinx-build"), f"what is {command}?"
        assert which(command) or command in ("ruff", "mypy"), f"{command} is not installed"


def check_hoptrace(words: list[str], mention: bool) -> None:
    commands = typer.main.get_command(app).commands
    name, *arguments = words
    if name in ("--install-completion", "--show-completion"):
        return  # typer's own; tests/test_completion.py runs them
    assert name in commands, f"no command {name}"
    for word in arguments:
        if re.match(r"(grids|docs)/[a-z]", word):
            assert (ROOT / word).exists(), f"no file {word}"
    try:
        commands[name].make_context(name, list(arguments))
    except Exception as error:  # typer's own, in a private module
        if not (mention and type(error).__name__ == "MissingParameter"):
            raise


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_code_that_is_checked(page):
    for block in blocks(page.read_text()):
        if block.language in SHELL:
            assert shell_commands(block.code), f"{name_of(page)}, line {block.line}: no command"
            check_commands(block.code)
        elif block.language in OF_SPHINX:
            assert "code-block" not in block.code, f"{name_of(page)}: code that nothing runs"
        else:
            where = f"{name_of(page)}, line {block.line}"
            assert block.language == "python", f"{where}: what is {block.language}?"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_the_text_exist(page):
    for code in code_in_text(page.read_text()):
        if re.match(r"(hoptrace|python -m|pip install) ", code):
            check_commands(code, mention=True)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("hoptrace run --steps 3 --no-such-option", "such option"),
        ("hoptrace run --steps three", "valid integer"),
        ("hoptrace train --out DIR", "chedule"),
        ("hoptrace rum", "no command rum"),
        ("hoptrace sweep grids/no-such.toml", "no file"),
        ("python -m benchmarks.no_such", "no module"),
        ("python -m benchmarks.mixers --no-such", "has no --no-such"),
        ('pip install -e ".[no-such]"', "no extra"),
        ("ls && hoptrace run", "what is ls"),
    ],
)
def test_a_command_that_is_wrong_is_found(line, wrong):
    with pytest.raises(Exception, match=r"^") as error:
        check_commands(line)
    assert wrong in f"{error.value} {error.value!r}"  # the text of typer's is in its repr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    """In the repository, as on GitHub; the site's own links are those of `tests/test_site.py`."""
    for link in links(page.read_text()):
        if re.match(r"https?://", link):
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{name_of(page)}: no {link}"
        assert not heading or heading in headings(target.read_text()), f"no heading {link}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pictures_say_what_they_show(page):
    for file, words in pictures(page.read_text()):
        assert len(words.split()) >= 3, f"{name_of(page)}: {file} is shown without a description"
