"""The parts of a `RunSpec` about how a model learns: loss, metrics, optimizer, schedule, stopping.

What is built in has a name of one word; what is the user's own is `package.module:factory`, and
keys that are no fields are options for it. Names of torch's classes are known here without torch,
so that a misspelled one is refused before anything starts; a class that a newer torch has is
reached as `torch.optim:ItsName`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from drumline.core.errors import UsageError
from drumline.core.factory import FactoryKind
from drumline.core.formatting import nearest
from drumline.spec.parts import FactorySpec, OptionsSpec, RuleSpec, SpecPart, clash

LOSSES = ("cross_entropy", "mse", "bce", "l1")
METRICS = ("accuracy", "mae", "rmse")
LOGGERS = {
    "tensorboard": "drumline.trainer.loggers.tensorboard:TensorBoardLogger",
    "wandb": "drumline.trainer.loggers.wandb:WandbLogger",
    "mlflow": "drumline.trainer.loggers.mlflow:MlflowLogger",
}
LOGGER_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow"}
"""what a built-in logger needs that is an extra of the same name"""
OPTIMIZERS = ("gd", "sgd", "adam")
"""those with an implementation of ours; `engine` chooses"""
TORCH_OPTIMIZERS = (
    *("Adadelta", "Adafactor", "Adagrad", "AdamW", "Adamax", "ASGD", "Muon", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "SparseAdam"),
)
SCHEDULES = ("constant", "linear", "cosine", "step")
TORCH_SCHEDULES = (
    *("ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR"),
    *("ExponentialLR", "LinearLR", "MultiStepLR", "OneCycleLR", "PolynomialLR"),
    *("ReduceLROnPlateau", "StepLR"),
)
_LOSS_OF_TASK = {"regression": "mse", "multilabel": "bce"}
_LR_OF_ADAM = 0.001
_METRIC_OF_LOSS = {"cross_entropy": "accuracy", "bce": "accuracy", "mse": "mae", "l1": "rmse"}
LOGGER_GROUP = "drumline.loggers"
"""the group of entry points by which installed packages offer loggers"""
_RESERVED = ("loss", "lr", "step", "epoch", "samples", "test_loss", "time_s")


def _known(what: str, *names: str) -> AfterValidator:
    """Accept these names, in any case, and `package.module:factory`; refuse others."""
    by_lower = {name.lower(): name for name in names}

    def check(value: str) -> str:
        if ":" in value or value.lower() in by_lower:
            return by_lower.get(value.lower(), value)
        if value.lower() == "lbfgs":
            raise ValueError(
                "LBFGS calls the model several times in a step (a closure), which a step that "
                "ranks take together does not; choose another, such as adamw"
            )
        lowered = [*by_lower]
        raise ValueError(
            f"there is no {what} {value!r}; name one of {', '.join(names)}, or package.module:"
            f"factory of your own; {nearest(value.lower(), lowered, 'check the spelling')}"
        )

    return AfterValidator(check)


class LossSpec(FactorySpec):
    """What is minimised; other keys are options (`loss: {name: cross_entropy, …}`)."""

    factories = FactoryKind(what="loss", returns="a loss of (outputs, targets)", key="loss")

    name: Annotated[str, _known("loss", *LOSSES)] = "cross_entropy"
    """cross_entropy, mse, bce (of logits), l1, or `package.module:loss` of your own: a function of
    outputs and targets, or a factory of one"""
    reduction: Literal["mean", "sum"] = "mean"
    """what a loss of your own does where it returns one number: a mean over the samples of its
    batch, or their sum. One that returns a value for each sample is averaged in any case"""


class MetricSpec(FactorySpec):
    """What is measured beside the loss; other keys are options for it."""

    factories = FactoryKind(
        what="metric", returns="a metric of (outputs, targets)", key="metrics", several=True
    )

    name: Annotated[str, _known("metric", *METRICS)] = "accuracy"
    """accuracy, mae, rmse, or `package.module:metric` of your own"""
    better: Literal["more", "less"] | None = None
    """which way a score is better (default: less for mae and rmse, more for all others)"""

    @property
    def label(self) -> str:
        """What it is called in events, tables and loggers: its own name without the module's."""
        return self.name.rpartition(":")[2].rpartition(".")[2].lower()

    @property
    def more_is_better(self) -> bool:
        """Whether a larger score is a better one."""
        return self.better == "more" if self.better else self.name not in ("mae", "rmse")


class LoggerSpec(FactorySpec):
    """Where numbers go, beside the run directory; other keys are options for the logger."""

    secret: ClassVar[re.Pattern[str]] = re.compile(f"{FactorySpec.secret.pattern}|(key|token)$")
    factories = FactoryKind(
        what="logger",
        returns="an object with log and finish",
        key="loggers",
        several=True,
        given=("run_dir", "name", "spec"),
    )

    name: str = "tensorboard"
    """tensorboard, wandb, mlflow, one that an installed package offers (entry point group
    drumline.loggers), or `package.module:logger` of your own"""


def require_loggers(loggers: Iterable[LoggerSpec]) -> None:
    """Raise a UsageError for a logger whose package is not installed here, or that nobody knows."""
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    for name in (logger.name for logger in loggers if ":" not in logger.name):
        package = LOGGER_PACKAGES.get(name)
        if package is not None and find_spec(package) is None:
            raise UsageError(
                f"loggers: {name} needs the package {package}, which is not installed; install it "
                f"with: pip install 'drumline[{name}]'"
            )
        if name not in LOGGERS:
            known = [*LOGGERS, *(entry.name for entry in entry_points(group=LOGGER_GROUP))]
            if name not in known:
                hint = nearest(name, known, "install the package that offers it")
                raise UsageError(
                    f"loggers: {name} is none of {', '.join(known)}, nor package.module:factory of "
                    f"your own; {hint}"
                )


class CallbackSpec(FactorySpec):
    """What is called while a run trains; other keys are options for its factory."""

    factories = FactoryKind(
        what="callback",
        returns="an object with on_train_begin, on_step_end, on_epoch_end or on_train_end",
        key="callbacks",
        several=True,
    )

    name: str
    """`package.module:callback` of your own"""


def named(part: type[FactorySpec]) -> BeforeValidator:
    """Let a list of parts be one word or words: `metrics: [accuracy, mae]`, `metrics: accuracy`."""

    def read(value: Any) -> Any:
        items = [value] if isinstance(value, str | dict) else value
        if not isinstance(items, list | tuple):
            return value
        return [{"name": item} if isinstance(item, str) else item for item in items]

    schema = str | list[str | part]  # type: ignore[valid-type]
    return BeforeValidator(read, json_schema_input_type=schema)


def check_metrics(loss: LossSpec | None, metrics: tuple[MetricSpec, ...] | None) -> None:
    """Raise ClashError for two metrics of one name, or one that has a name of ours."""
    labels = [metric.label for metric in metrics or ()]
    for label in labels:
        if label in _RESERVED or labels.count(label) > 1:
            raise clash("metric_named_twice", label=label)
    if loss is not None and loss.name in LOSSES and loss.reduction != "mean":
        raise clash("reduction_of_builtin", name=loss.name)


def default_loss(task: str) -> LossSpec:
    """Return what is minimised where the spec does not say: what goes with the data's task."""
    return LossSpec(name=_LOSS_OF_TASK.get(task, "cross_entropy"))


def default_metrics(loss: LossSpec) -> tuple[MetricSpec, ...]:
    """Return what is measured where the spec does not say: what goes with the loss."""
    name = _METRIC_OF_LOSS.get(loss.name)
    return () if name is None else (MetricSpec(name=name),)


class GroupSpec(OptionsSpec):
    """Parameters that the optimizer treats differently; other keys are its options for them."""

    match: str | tuple[str, ...]
    """patterns of parameters' names, such as "*.bias": a parameter is in the first group that
    matches, those in none have the optimizer's own options"""

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns, one or several."""
        return (self.match,) if isinstance(self.match, str) else self.match


class OptimizerSpec(RuleSpec):
    """How weights move; of torch's and your own, other keys are options."""

    factories = FactoryKind(
        what="optimizer",
        returns="a torch.optim.Optimizer",
        key="optimizer",
        given=("params", "named_parameters"),
    )
    ours = OPTIMIZERS
    ours_only = frozenset(
        {"lr", "momentum", "nesterov", "weight_decay", "betas", "eps", "decoupled"}
    )

    name: Annotated[str, _known("optimizer", *OPTIMIZERS, *TORCH_OPTIMIZERS)] = "sgd"
    """gd (takes the whole data set per step, in chunks of data.batch), sgd, adam; any other class
    of torch.optim by name (adamw, adagrad, rmsprop, …); or `package.module:factory` of your own"""
    engine: Literal["drumline", "torch"] = "drumline"
    """of gd, sgd and adam. drumline: written here to be read; torch: torch.optim. Same
    trajectory"""
    lr: float = Field(default=0.1, gt=0)
    """learning rate (default: of adam 0.001; of torch's others and your own: their own)"""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """not of gd and adam"""
    nesterov: bool = False
    """sgd only; needs momentum"""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty, or decoupled decay with `decoupled`"""
    betas: tuple[float, float] = (0.9, 0.999)
    """not of gd and sgd"""
    eps: float = Field(default=1e-8, gt=0)
    """not of gd and sgd"""
    decoupled: bool = False
    """adam only: decay the weights themselves, not the gradient (AdamW)"""
    groups: tuple[GroupSpec, ...] = ()
    """parameter groups, e.g. [{match: "*.bias", weight_decay: 0}]"""

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, values: Any) -> Any:
        """Give adam a learning rate of its own size, where none is given."""
        if isinstance(values, dict) and values.get("name") == "adam":
            return {"lr": _LR_OF_ADAM, **values}
        return values

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.is_ours:
            if self.engine == "drumline" and "engine" in self.model_fields_set:
                raise clash("engine_of_torchs_own", spec=self)
            return self
        if self.name != "sgd" and (self.momentum or self.nesterov):
            raise clash("momentum_without_sgd", spec=self)
        if self.nesterov and not self.momentum:
            raise clash("nesterov_without_momentum")
        if self.name != "adam" and self.decoupled:
            raise clash("decoupled_without_adam", spec=self)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise clash("betas_out_of_range", betas=list(self.betas))
        return self


class ScheduleSpec(RuleSpec):
    """How the learning rate changes over the run; of torch's and your own, other keys are
    options.
    """

    factories = FactoryKind(
        what="schedule",
        returns="a torch.optim.lr_scheduler.LRScheduler",
        key="schedule",
        given=("optimizer", "step", "total_steps", "steps_per_epoch", "epochs"),
    )
    ours = SCHEDULES
    ours_only = frozenset({"warmup_steps", "floor", "gamma", "every"})
    others_only = frozenset({"per", "metric"})

    name: Annotated[str, _known("schedule", *SCHEDULES, *TORCH_SCHEDULES)] = "constant"
    """linear and cosine fall to `floor`; step multiplies by `gamma` every `every` epochs; any other
    class of torch.optim.lr_scheduler by name (OneCycleLR, StepLR, …); or `package.module:schedule`
    of your own"""
    warmup_steps: int = Field(default=0, ge=0)
    """rise linearly from 0 over so many steps first"""
    floor: float = Field(default=0.0, ge=0, le=1)
    """what is left at the end, as a share of lr"""
    gamma: float = Field(default=0.1, gt=0, le=1)
    """step: the factor"""
    every: int = Field(default=1, ge=1)
    """step: epochs between two factors"""
    per: Literal["step", "epoch"] | None = None
    """of torch's: when it steps (default: after each epoch; OneCycleLR and CyclicLR: each step)"""
    metric: str = "loss"
    """of ReduceLROnPlateau: what it looks at, on the validation set or else the test set"""

    @property
    def by_score(self) -> bool:
        """Whether it looks at an epoch's score, as far as the name tells."""
        return self.name.endswith("ReduceLROnPlateau")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.by_score and self.per == "step":
            raise clash("plateau_by_step", spec=self)
        return self


class EarlyStoppingSpec(SpecPart):
    """When a run ends before its time: no better score for a while."""

    metric: str = "loss"
    """loss, or a metric's name; on the validation set where there is one, else on the test set"""
    patience: int = Field(default=3, ge=1)
    """after so many epochs without a better one"""
    min_delta: float = Field(default=0.0, ge=0)
    """how much better counts"""
