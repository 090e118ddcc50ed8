"""Source of the package by symbol, as it really ran: found by reading, not by importing."""

from __future__ import annotations

import ast
from importlib.resources import files

from drumline.report.page.blocks import Code


def excerpt(path: str, symbol: str) -> Code:
    """Cut a function or class out of a module of the package.

    Args:
        path: e.g. `comm/ring.py`.
        symbol: `all_reduce`, or `Adam.step` for a method.

    Raises:
        LookupError: the module does not define it.
    """
    text = files("drumline").joinpath(path).read_text(encoding="utf-8")
    body: list[ast.stmt] = ast.parse(text).body
    found: ast.stmt | None = None
    for name in symbol.split("."):
        found = next(
            (
                node
                for node in body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and node.name == name
            ),
            None,
        )
        if found is None:
            raise LookupError(f"{path} defines no {symbol}")
        body = getattr(found, "body", [])
    assert isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    first = min([found.lineno, *(node.lineno for node in found.decorator_list)])
    lines = text.splitlines()[first - 1 : found.end_lineno]
    indent = len(lines[0]) - len(lines[0].lstrip())
    return Code(
        path=path,
        symbol=symbol,
        line=first,
        text="\n".join(line[indent:] for line in lines),
    )
