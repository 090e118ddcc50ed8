"""Reading a spec from YAML and `key=value` options, with errors that name line and fix.

The YAML tree is read twice: once for the values, once for the line that each key stands on, so that
what pydantic says of a value can be said of a place in the file (`validation_errors`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from drumline.core.errors import SpecError
from drumline.core.files import write_atomic
from drumline.core.rundir import RunDir
from drumline.spec.parts import SpecPart
from drumline.spec.run_spec import SHORTHAND, RunSpec
from drumline.spec.validation_errors import KeyPath, Places, explain_error

P = TypeVar("P", bound=SpecPart)
_EXAMPLE = "drumline train model=cnn workers=2 strategy.kind=ring"


def load_spec(
    path: Path | Mapping[str, object] | None,
    overrides: Sequence[str] = (),
    *,
    ranks: int | None = None,
    lasting: Sequence[str] | None = None,
) -> RunSpec:
    """Read a run spec's file, if one is given, and apply overrides such as `strategy.kind=ring`.

    In the place of a file there may be its values.
    `ranks` says how many there are, where somebody else starts them: another launcher, or a person.
    `lasting` has the keys of the file's strategy that also hold for another kind that overrides
    name; the rest belonged to the old one. None: all of them hold.

    Raises:
        SpecError: the file or an override does not make a spec; says where, and the way out.
    """
    if isinstance(path, Mapping):
        values, places = copy.deepcopy(dict(path)), Places()
    else:
        values, places = ({}, {}) if path is None else _read_yaml(path)
    if lasting is not None:
        _forget_old_strategy(values, overrides, lasting)
    for override in overrides:
        _apply_override(values, places, override)
    if ranks is not None:
        _refuse_simulated_nodes(values, places)
        values |= {"nodes": 1, "workers": ranks}
        for key in ("nodes", "workers"):  # nobody wrote what stands there now
            places.pop((key,), None)
    return validate_spec(values, places)


def _forget_old_strategy(
    values: dict[str, object], overrides: Sequence[str], lasting: Sequence[str]
) -> None:
    """Drop what was said of a strategy, where overrides name another kind."""
    said: dict[str, object] = {}
    for override in overrides:
        _apply_override(said, {}, override)
    named, old = said.get("strategy"), values.get("strategy")
    kind = named.get("kind") if isinstance(named, dict) else named
    if isinstance(old, dict) and kind not in (None, old.get("kind")):
        values["strategy"] = {key: old[key] for key in ("kind", *lasting) if key in old}


def read_run_spec(run: RunDir) -> RunSpec:
    """Read the resolved spec of a run."""
    return load_spec(run.spec_file)


def write_run_spec(run: RunDir, spec: RunSpec) -> None:
    """Write the resolved spec into a run's directory."""
    write_atomic(run.spec_file, dump_spec(spec))


def spec_options(spec: RunSpec) -> dict[str, str]:
    """Return each key of a run spec with its option: `{"optimizer.lr": "optimizer.lr=0.05"}`.

    How many ranks there are is left out: whoever starts them says so.
    """
    values = spec.model_dump(mode="json", exclude={"nodes", "workers"})
    return {key: f"{key}={value}" for key, value in flatten_keys(values)}


def flatten_keys(values: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted keys of a spec's nested values, with what each has: `data.batch`, 64."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flatten_keys(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _refuse_simulated_nodes(values: Mapping[str, object], places: Places) -> None:
    """Refuse keys about nodes that nobody will make."""
    link = values.get("link")
    given = {
        "slow_nodes": bool(values.get("slow_nodes")),
        "link": any(link.values()) if isinstance(link, dict) else bool(link),
        "nodes": values.get("nodes", 1) != 1,
    }
    for key in (key for key, is_given in given.items() if is_given):
        where = next((f"{place}: " for at, place in places.items() if at[0] == key), "")
        raise SpecError(
            f"{where}{key} is about simulated nodes, which drumline train makes where it starts "
            f"all ranks itself; here each is started on its own, so leave {key} out"
        )


def read_spec(
    kind: type[P], options: Iterable[str] = (), example: str = "", *, path: Path | None = None
) -> P:
    """Read a spec of any kind from a file, if one is given, with `key=value` options over it.

    `example` is quoted where an option is not `key=value`; give it wherever options are.

    Raises:
        SpecError: they do not make such a spec; says which line or option, and the way out.
    """
    values, places = ({}, {}) if path is None else _read_yaml(path)
    for option in options:
        _apply_override(values, places, option, example)
    return build_spec(kind, values, places)


def validate_spec(values: Mapping[str, object], places: Places | None = None) -> RunSpec:
    """Turn plain values into a `RunSpec`, and what is wrong with them into one `SpecError`."""
    return build_spec(RunSpec, values, places)


def build_spec(kind: type[P], values: Mapping[str, object], places: Places | None = None) -> P:
    """Turn plain values into a spec of any kind.

    Raises:
        SpecError: they make none; says what is wrong, where the value stands, and the way out.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        lines = [explain_error(detail, places or {}, kind) for detail in error.errors()]
        raise SpecError("\n".join(dict.fromkeys(lines))) from None


def dump_spec(spec: RunSpec) -> str:
    """Write a spec as YAML that `load_spec` reads back to an equal one."""
    values = spec.model_dump(mode="json")
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """Plain values only, and numbers as Python and YAML 1.2 write them (1e-3, not just 1.0e-3)."""


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads back: text that looks like such a number is quoted."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
        list("-+.0123456789"),
    )


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Escape Unicode's own line ends, which YAML would fold into spaces."""
    style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _read_yaml(path: Path) -> tuple[dict[str, object], Places]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"no spec file {path}; write one, or give keys alone: {_EXAMPLE}") from None
    except OSError as error:
        raise SpecError(
            f"cannot read the spec {path}: {error.strerror}; give a file that you can read"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{path}, line {line}: this is not UTF-8 text; save it as UTF-8") from None
    try:
        root = yaml.compose(text, Loader=_Loader)
        values = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError(f"{path}{_where_and_why(error, text)}") from None
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else "a single value"
        raise SpecError(
            f"{path}, line {root.start_mark.line + 1}: this is {kind}, but a spec is a mapping of "
            f"keys; write lines such as workers: 2"
        )
    places: Places = {}
    _find_places(root, (), str(path), places, above=())
    return values, places


def _where_and_why(error: Exception, text: str) -> str:
    """Tell what the YAML reader stumbled over, and where as far as it says."""
    line, problem = None, "it cannot be read"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line, problem = (None if mark is None else mark.line), error.problem or problem
    elif isinstance(error, yaml.reader.ReaderError):
        line, problem = text.count("\n", 0, error.position), error.reason
    elif isinstance(error, ValueError):
        problem = str(error)
    where = "" if line is None else f", line {line + 1}"
    tab = "indent with spaces, not tabs" if "'\\t'" in problem else None
    fix = tab or "check the indentation, and quote text that has special characters"
    return f"{where}: this is not valid YAML ({problem}); {fix}"


def _find_places(
    node: yaml.Node | None, at: KeyPath, file: str, places: Places, *, above: tuple[yaml.Node, ...]
) -> None:
    """Note the line of each key, and refuse keys that stand twice."""
    if node in above:  # an alias that contains itself
        return
    above = (*above, node) if node is not None else above
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = (*at, str(key.value))
            where = f"{file}, line {key.start_mark.line + 1}"
            if path in places:
                raise SpecError(f"{where}: {'.'.join(path)} is given twice; keep one of them")
            places[path] = where
            _find_places(value, path, file, places, above=above)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            places[(*at, str(index))] = f"{file}, line {item.start_mark.line + 1}"
            _find_places(item, (*at, str(index)), file, places, above=above)


def _apply_override(
    values: dict[str, object], places: Places, override: str, example: str = _EXAMPLE
) -> None:
    key, equals, text = override.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        raise SpecError(f"{override!r} is not key=value; write it as in {example}")
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise SpecError(
            f"the value in {override!r} is not valid YAML; quote it: '{key}=\"…\"'"
        ) from None
    if isinstance(value, dict) and not text.lstrip().startswith("{"):
        value = text  # `a.b:` is a word with a colon, not a mapping
    _set(values, path, value, override)
    for known in [known for known in places if known[: len(path)] == path]:
        del places[known]
    places[path] = f"{override!r}"


def _set(values: dict[str, object], path: KeyPath, value: object, override: str) -> None:
    """Set a nested value, opening one-word parts on the way (`model=cnn` → `{name: cnn}`)."""
    for depth in range(1, len(path)):
        here = path[:depth]
        given = values.get(here[-1])
        inner: dict[str, object] = {}
        if isinstance(given, str) and here in SHORTHAND:
            inner = {SHORTHAND[here]: given}
        elif isinstance(given, dict):
            inner = {str(key): item for key, item in given.items()}
        elif given is not None:
            raise SpecError(
                f"{override!r}: {'.'.join(here)} is {given!r}, which has no keys in it; "
                f"write {'.'.join(here)}=VALUE"
            )
        values[here[-1]] = inner
        values = inner
    last = path[-1]
    known = values.get(last)
    if path in SHORTHAND and isinstance(value, str) and isinstance(known, dict):
        value = {**known, SHORTHAND[path]: value}
    values[last] = value
