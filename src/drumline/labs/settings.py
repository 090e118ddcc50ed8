"""`LabSettings`: what a user may choose of a lab, in the words of a `RunSpec`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from drumline.core.nodes import MAX_NODES
from drumline.spec.link import LinkSpec, check_node_count, check_slow_nodes
from drumline.spec.parts import Part, one_word


class LabSettings(Part):
    """Where a lab's experiments run, how large they are, and from which seed."""

    full: bool = False
    """the long form: more steps, more seeds, more cases"""
    nodes: Annotated[int, AfterValidator(check_node_count)] = Field(
        default=1, json_schema_extra={"minimum": 1, "maximum": MAX_NODES}
    )
    """simulated nodes for the experiments of several ranks (default: this host)"""
    link: Annotated[LinkSpec, one_word(LinkSpec, "rate")] = LinkSpec()
    """the link of each simulated node, e.g. 1gbit"""
    seed: int = Field(default=1234, ge=0, lt=2**31)
    """the first of the seeds"""

    @model_validator(mode="after")
    def _links_join_nodes(self) -> LabSettings:
        check_slow_nodes(self.nodes, self.link, {})
        return self
