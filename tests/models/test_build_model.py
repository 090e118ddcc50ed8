"""Building by name: the same weights everywhere, and one clear sentence when it cannot be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drumline.core.errors import SpecError, UsageError
from drumline.models import build_model, weights_sha256
from drumline.spec.parts import ModelSpec

NETS = """
from torch import nn
from drumline.core.errors import UsageError

SIZE = 3
READY = nn.Linear(2, 2)

def plain(): return nn.Linear(4, 2)
def sized(classes, width=4): return nn.Linear(width, classes)
def anything(**options): return nn.Linear(options.pop("width"), 2)
def needy(width): return nn.Linear(width, 2)
def number(): return 3
def broken(): raise KeyError("layer 7")
def ours(): raise UsageError("already in plain words")

class Own(nn.Module):
    def __init__(self, classes: int = 2):
        super().__init__()
        self.fc = nn.Linear(4, classes)

    @staticmethod
    def small(): return Own(1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory with modules of the user's own, forgotten again afterwards."""
    (tmp_path / "lab").mkdir()
    files = {
        "nets_a.py": NETS,
        "lab/__init__.py": "",
        "lab/nets_b.py": NETS,
        "torn.py": "def f(:",
        "quits.py": "raise SystemExit(3)",
        "hungry.py": "import no_such_package_here",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def build(name: str, *, seed: int = 0, **options: Any) -> nn.Module:
    return build_model(ModelSpec(name=name, **options), classes=5, seed=seed)


@pytest.mark.parametrize("name", ["linear", "mlp", "lenet", "cnn", "gpt-mini"])
def test_the_seed_alone_decides_the_weights(name: str) -> None:
    torch.manual_seed(1)
    first = weights_sha256(build(name))
    torch.manual_seed(2)
    assert weights_sha256(build(name)) == first
    assert weights_sha256(build(name, seed=1)) != first


def test_the_random_state_of_the_caller_is_untouched() -> None:
    before = torch.get_rng_state()
    build("mlp")
    assert torch.equal(torch.get_rng_state(), before)


def test_float64_starts_where_float32_does() -> None:
    spec = ModelSpec(name="mlp")
    single = build_model(spec, classes=10, seed=0, dtype=torch.float32)
    double = build_model(spec, classes=10, seed=0, dtype=torch.float64)
    for a, b in zip(single.parameters(), double.parameters(), strict=True):
        assert b.dtype == torch.float64
        assert torch.equal(a.double(), b)


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("nets_a:plain", {}, (2, 4)),
        ("nets_a:sized", {}, (5, 4)),
        ("nets_a:sized", {"width": 6}, (5, 6)),
        ("nets_a:sized", {"classes": 9}, (9, 4)),
        ("nets_a:anything", {"width": 7}, (2, 7)),
        ("lab.nets_b:Own", {}, (5, 4)),
        ("lab.nets_b:Own.small", {}, (1, 4)),
    ],
)
def test_a_factory_of_the_users_own(
    folder: Path, name: str, options: dict[str, Any], shape: tuple[int, int]
) -> None:
    model = build(name, **options)
    assert next(model.parameters()).shape == shape
    assert weights_sha256(model) == weights_sha256(build(name, **options))
    assert sys.path.count(str(folder)) == 1


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("cnnn", {}, "'cnnn' is none of linear, .*did you mean 'cnn'.*package.module:factory"),
        (":plain", {}, "not of the form package.module:factory"),
        ("nets_a:", {}, "not of the form package.module:factory"),
        ("__main__:f", {}, "in a notebook or script, .*write it to a file, .*name it mine:f"),
        ("net_a:plain", {}, "no module 'net_a' in .*did you mean 'nets_a'.*start from the folder"),
        ("lab.nets_c:plain", {}, "no module 'lab.nets_c' in .*did you mean 'nets_b'"),
        ("hungry:f", {}, "needs 'no_such_package_here', which is not installed"),
        ("torn:f", {}, "torn raised SyntaxError: .*try python -c 'import torn'"),
        ("quits:f", {}, "quits raised SystemExit: 3"),
        ("nets_a:plane", {}, "nets_a has no 'plane' .did you mean 'plain'"),
        ("nets_a:Own.smal", {}, "Own has no 'smal' .did you mean 'small'"),
        ("nets_a:SIZE", {}, "is of type int, which cannot be called; name a function"),
        ("nets_a:READY", {}, "is a model, not a function that makes one"),
        ("nets_a:number", {}, "must return an nn.Module, but returned int"),
        ("nets_a:broken", {}, "could not be built: KeyError: 'layer 7'.*called with nothing"),
        ("nets_a:sized", {"widht": 3}, "no option 'widht' .did you mean 'width'.*it takes width"),
        ("nets_a:plain", {"width": 3}, "no option 'width'; it takes none"),
        ("nets_a:needy", {}, "needs a value for 'width'; set model.width="),
        ("nets_a:sized", {"width": -1}, "could not be built: RuntimeError.*width=-1"),
        ("cnn", {"droput": 0}, "no option 'droput' .did you mean 'dropout'.*takes dropout1, drop"),
        ("linear", {"width": 3}, "linear has no option 'width'; it takes none"),
        ("cnn", {"classes": 3}, "takes classes from the data; leave classes out"),
        ("cnn", {"dropout": "no"}, "dropout must be a number or null, got 'no'; .*dropout=None"),
        ("cnn", {"dropout1": True}, "dropout1 must be a number, got True; set model.dropout1=0.25"),
        ("gpt-mini", {"layers": 2.5}, "layers must be a whole number, 1 or more, got 2.5"),
        ("mlp", {"hidden1": 0}, "hidden1 must be a whole number, 1 or more, got 0"),
        ("gpt-mini", {"tied": 1}, "tied must be true or false, got 1; set model.tied=True"),
    ],
)
def test_what_cannot_be_built_is_explained(
    folder: Path, name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        build(name, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.fields["key"].startswith("model.")


def test_words_of_our_own_pass_through(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"^already in plain words$"):
        build("nets_a:ours")
