"""The notebooks of examples/ run from top to bottom in a real kernel, and show what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebook extra is missing")
nbclient = pytest.importorskip("nbclient", reason="the notebook extra is missing")
EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("launch", "compare_strategies", "split_model")
_TIMEOUT_S = 120


def run(name, folder, monkeypatch):
    """Run a notebook in an empty folder; return the outputs of all cells, in order."""
    for variable, value in {
        "JUPYTER_RUNTIME_DIR": folder,
        "IPYTHONDIR": folder / "ipython",
        "NO_COLOR": "1",
    }.items():
        monkeypatch.setenv(variable, str(value))
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        store_widget_state=False,
    )
    client.execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def text_of(outputs):
    texts = [output.get("text") or output["data"]["text/plain"] for output in outputs]
    return "\n".join(texts)


@pytest.mark.parametrize("name", NAMES)
def test_they_are_stored_without_outputs(name):
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_a_ring_written_in_a_cell(tmp_path, monkeypatch):
    text = text_of(run("launch", tmp_path, monkeypatch))
    for rank in range(4):
        assert f"[{rank}] I am rank {rank} of 4" in text
    assert "[0, 1, 4, 9]" in text
    assert "rank 2: this rank has had enough" in text


@pytest.mark.slow
def test_strategies_side_by_side(tmp_path, monkeypatch):
    outputs = run("compare_strategies", tmp_path, monkeypatch)
    text = text_of(outputs)
    assert "epoch 1  step 47/60" in text
    assert "where the time went" in text
    assert "rank 1 caused" in text
    assert [output for output in outputs if "image/png" in output.get("data", {})]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "ddp-1",
        "ring-1",
        "slow-1",
    ]


@pytest.mark.slow
def test_a_model_split_both_ways(tmp_path, monkeypatch):
    text = text_of(run("split_model", tmp_path, monkeypatch))
    assert "[0] my part: 0.weight, 0.bias" in text
    assert "[1] my shares:" in text
    assert "all losses are those of one process" in text
