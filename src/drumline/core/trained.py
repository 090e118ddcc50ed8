"""What benches that train have in common: the model, and the data that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drumline.core.bench import check_names
from drumline.spec.parts import ClashError, DataSpec, ModelSpec
from drumline.spec.run_spec import BUILTIN_MODELS, TEXT_DATA, TEXT_MODELS


def settle_data(values: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the words of a bench: its own model, and data that the model can read.

    Args:
        values: what the user wrote.
        default: the model where none is named; other words about it are added to these.
    """
    settled = dict(values)
    model = settled.get("model", {})
    if isinstance(model, dict) and "name" not in model:
        settled["model"] = model = {**default, **model}
    name = model.get("name") if isinstance(model, dict) else model
    data = settled.get("data", {})
    if isinstance(data, dict) and "name" not in data:
        own = "shakespeare" if name in TEXT_MODELS else "mnist-mini"
        settled["data"] = {**data, "name": own}
    return settled


def check_trained(model: ModelSpec, data: DataSpec) -> None:
    """Refuse a model that there is not, data that it cannot read, and a batch in the wrong place.

    Raises:
        ClashError: says which key, and the way out.
    """
    name, text = model.name, data.name in TEXT_DATA
    if ":" not in name:
        check_names([name], BUILTIN_MODELS, "model", "model.name")
        if (name in TEXT_MODELS) != text:
            what, fix = ("text", "mnist-mini") if text else ("images", "shakespeare")
            raise ClashError(
                f"{name} does not read {data.name} ({what}); set data={fix}",
                *("data.name", "model.name"),
            )
    if "batch" in data.model_fields_set:
        raise ClashError(
            f"the batch is a word of its own here; write batch={data.batch}", "data.batch"
        )
