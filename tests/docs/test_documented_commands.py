"""Every command of README and docs does what the page says; both languages have the same ones.

A page's blocks run in order in one folder: `doc_pages` says how blocks are marked. Numbers may
differ from those shown, what else was printed may not.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from doc_pages import LANGUAGES, ROOT, Block, blocks_of, pages
from doc_shell import PageShell

from namespaces import need_namespaces

sys.path.insert(0, str(ROOT / "tests" / "cluster"))

ENGLISH = pages("en")
NEEDS = {"slow", "nodes", "twin", "ec2"}


def blocks(page: str, language: str = "en") -> list[Block]:
    return blocks_of(pages(language)[page])


def shells(page: str, language: str = "en") -> list[Block]:
    return [block for block in blocks(page, language) if block.is_shell]


def to_run(page: str, language: str) -> list[Block]:
    """A page's blocks; of a Chinese page those that are not the English ones anyway."""
    if language == "en":
        return blocks(page)
    known = {essence(block) for block in shells(page)}
    return [b for b in blocks(page, language) if not b.is_shell or essence(b) not in known]


def essence(block: Block) -> tuple:
    """What a block does and shows, comments aside."""
    return tuple((command.essence, command.shown) for command in block.commands)


def cases(*, slow: bool) -> list[tuple[str, str]]:
    """Pages that have something to run: at once, or at length."""
    return [
        (page, language)
        for page in ENGLISH
        for language in LANGUAGES
        for some in [[b for b in to_run(page, language) if b.is_shell and not b.not_run]]
        if any(slow == ("slow" in b.how) and "ec2" not in b.how for b in some)
    ]


@pytest.mark.parametrize(("page", "language"), cases(slow=False))
def test_quick_commands(drumline, page, language):
    quick = [block for block in to_run(page, language) if "slow" not in block.how]
    assert run(drumline, quick) == []


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("page", "language"), cases(slow=True))
def test_all_commands(drumline, page, language):
    every = [block for block in to_run(page, language) if "ec2" not in block.how]
    assert run(drumline, every) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_commands_for_ec2(drumline, tmp_path):
    """A cluster on Amazon EC2: at a server that answers like EC2, with simulated machines."""
    from ec2_machines import Ec2Machines
    from ec2_stand_in import Ec2StandIn
    from twins import need_twins

    need_twins()
    marked = [b for page in ENGLISH for b in blocks(page) if "ec2" in b.how]
    with (
        Ec2StandIn() as aws,
        Ec2Machines(tmp_path / "machines", aws, check_s=1.0).running() as machines,
    ):
        environment = drumline.environment(**machines.environment())
        (drumline.folder / "mnist").mkdir()
        shell = PageShell(
            drumline.folder / "mnist",
            environment,
            enter=machines.twin.enter("laptop"),
            instead={"c5.large": f"c5.large ec2.subnet={aws.subnets['us-east-1a']}"},
        )
        assert shell.run(marked) == []
        assert aws.left() == []


def run(drumline, some: list[Block]) -> list[str]:
    how = set().union(*(block.how for block in some if not block.not_run))
    if "nodes" in how:
        need_namespaces()
    if "twin" in how:
        from twins import need_twins

        need_twins()
    with tempfile.TemporaryDirectory() as short:  # paths that do not break lines
        folder = Path(short, "proj")
        folder.mkdir()
        shell = PageShell(folder, drumline.environment())
        try:
            return shell.run(some)
        finally:
            if "twin" in how:
                drumline("reap", "--yes", DRUMLINE_HOME=shell.environment["DRUMLINE_HOME"])


@pytest.mark.parametrize("page", ENGLISH)
def test_both_languages_have_the_same_commands(page):
    english, chinese = (
        [(c.bare, b.how, bool(b.not_run)) for b in shells(page, lang) for c in b.commands]
        for lang in LANGUAGES
    )
    assert english == chinese


@pytest.mark.parametrize("page", ENGLISH)
def test_both_languages_have_the_same_files(page):
    english, chinese = (
        {block.title: content(block) for block in blocks(page, lang) if block.title}
        for lang in LANGUAGES
    )
    assert english == chinese


def content(block: Block):
    """What a file says to a program: comments aside."""
    if block.language == "yaml":
        return yaml.safe_load(block.body)
    return ast.dump(ast.parse(block.body)) if block.language == "python" else block.body


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_mark_is_known_and_every_python_block_is_python(language):
    for path in pages(language).values():
        for block in blocks_of(path):
            unknown = {word for word in block.how if not word.startswith("exit ")} - NEEDS
            assert not unknown, f"{block.where}: {unknown}"
            assert block.language, f"{block.where}: a fence without a language"
            if block.language == "python":
                ast.parse(block.body)
            if block.language == "yaml":
                yaml.safe_load(block.body)


def test_what_is_not_run_has_a_reason():
    """Run with -rP to read the list."""
    for page in ENGLISH:
        for block in shells(page):
            if block.not_run:
                print(
                    f"{block.where}: {'; '.join(c.bare for c in block.commands)}: {block.not_run}"
                )
                assert len(block.not_run.split()) > 2, block.where


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for language in LANGUAGES:
        for path in pages(language).values():
            named = set(re.findall(r"(?:^|`|\$ )make ([a-z-]+)", path.read_text(), re.MULTILINE))
            assert named <= targets, path


def inline_commands() -> list[tuple[str, str]]:
    found = []
    for language in LANGUAGES:
        for path in pages(language).values():
            text = re.sub(r"^[ ]*```.*?^[ ]*```", "", path.read_text(), flags=re.M | re.S)
            found += [(path.name, words) for words in re.findall(r"`drumline ([a-z][^`]*)`", text)]
            for block in blocks_of(path):
                for command in block.commands:
                    found += [(path.name, w) for w in re.findall(r"\bdrumline (.*)", command.bare)]
    return found


def test_commands_and_options_that_pages_name_exist():
    """Also those that stand in a sentence or a table."""
    import typer

    from drumline.cli.main import app

    top = typer.main.get_command(app)
    for page, words in inline_commands():
        here, rest = top, re.split(r"[;&|]| -- ", words)[0].split()
        while hasattr(here, "commands") and rest and not rest[0].startswith("-"):
            assert rest[0] in here.commands, f"{page}: drumline {words}"
            here, rest = here.commands[rest[0]], rest[1:]
        known = {option for p in here.params for option in (*p.opts, *p.secondary_opts)}
        if here.name in ("run", "submit"):  # what follows a script is the script's
            rest = list(itertools.takewhile(lambda word: not word.endswith(".py"), rest))
        options = {re.split("[=,.]", word)[0] for word in rest if word.startswith("--")}
        assert options <= known | {"--help"}, f"{page}: drumline {words}"
