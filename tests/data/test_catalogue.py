from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from drumline.core.errors import DataError, UsageError
from drumline.data import catalogue
from drumline.data.catalogue import FASHION_MNIST, FILE_NAMES, MNIST, default_folder, find_files
from drumline.data.check import check_data
from drumline.data.idx import write_idx
from drumline.spec.data import DataSpec


def fill(folder: Path, suffix: str = ".gz") -> Path:
    folder.mkdir(parents=True)
    for name in FILE_NAMES:
        write_idx(folder / f"{name}{suffix}", np.zeros(3, dtype=np.uint8))
    return folder


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(catalogue, "DEBIAN", tmp_path / "debian")
    return {"DRUMLINE_DATA": str(tmp_path / "named"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def found_in(environ: dict[str, str], path: str | None = None) -> Path:
    (folder,) = {file.parent for file in find_files(MNIST, path=path, environ=environ).values()}
    return folder


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("below", [".", "mnist", "MNIST/raw"])
def test_found_in_a_folder_or_below_it_gzipped_or_not(
    tmp_path: Path, environ: dict[str, str], below: str, suffix: str
) -> None:
    folder = fill(tmp_path / "mine" / below, suffix)
    assert found_in(environ, path=str(tmp_path / "mine")) == folder


def test_order_of_the_folders(tmp_path: Path, environ: dict[str, str]) -> None:
    for name in ("debian/mnist", "cache/drumline", "named", "given"):
        folder = fill(tmp_path / name)
        path = str(folder) if name == "given" else None
        assert found_in(environ, path) == folder  # each is looked at before the last one


def test_a_given_path_is_the_only_place(tmp_path: Path, environ: dict[str, str]) -> None:
    fill(tmp_path / "named")
    with pytest.raises(DataError, match=r"was not found in .*elsewhere/mnist"):
        find_files(MNIST, path=str(tmp_path / "elsewhere"), environ=environ)


def test_not_found_lists_the_places_and_the_way_out(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    partial = fill(tmp_path / "named" / "mnist")
    (partial / f"{FILE_NAMES[1]}.gz").unlink()
    with pytest.raises(DataError) as caught:
        find_files(MNIST, environ=environ)
    message = caught.value.message
    assert f"{partial} (lacks train-labels-idx1-ubyte)" in message
    assert str(tmp_path / "cache" / "drumline" / "mnist") in message
    assert str(tmp_path / "debian" / "mnist") in message
    assert "run `drumline data fetch mnist`, or set data.path" in message
    assert "\n" not in message


def test_another_set_under_the_same_file_names_is_passed_over(
    tmp_path: Path, environ: dict[str, str], originals: Path
) -> None:
    (tmp_path / "named").mkdir()
    for name in FILE_NAMES:
        (tmp_path / "named" / f"{name}.gz").symlink_to(originals / f"{name}.gz")
    assert found_in(environ) == tmp_path / "named"
    with pytest.raises(DataError, match=r"named \(holds mnist\)"):
        find_files(FASHION_MNIST, environ=environ)


def test_of_two_forms_the_plain_one_is_read(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = fill(tmp_path / "named")
    name = FILE_NAMES[0]
    (folder / name).write_bytes(gzip.decompress((folder / f"{name}.gz").read_bytes()))
    assert find_files(MNIST, environ=environ)[name] == folder / name


def test_default_folder(tmp_path: Path, environ: dict[str, str]) -> None:
    assert default_folder(environ) == tmp_path / "named"
    assert default_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/drumline")
    assert default_folder({}) == Path.home() / ".cache" / "drumline"


def test_a_path_that_nothing_is_read_from_is_refused_before_ranks_start(tmp_path):
    with pytest.raises(UsageError, match="mnist-mini is not read from a folder"):
        check_data(DataSpec(name="mnist-mini", path=str(tmp_path)))
