"""What lab 3 says: who sees which samples, what that does to learning, what more workers gain.

Averaged every step, skewed parts make the same global gradient as mixed ones: the mean over all
samples of the batch does not care who computed it. So the skew shows in what ranks see (their own
losses), in rules that are not linear in the gradient (Adam on each rank, then the mean of the
parameters), and in what a rank's part teaches without the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from drumline.labs import repeats
from drumline.labs.chapter import Chapter, Lab
from drumline.labs.data_parallel import experiments as lab
from drumline.labs.data_parallel import plots, tables
from drumline.labs.experiment import TEST_SAMPLES, Results
from drumline.report.intervals import compare, extremes, ranked
from drumline.report.page.blocks import Facts
from drumline.report.page.table import Table
from drumline.report.page.translator import Sentence
from drumline.report.runs.record import RunRecord

_LUCK = 2.0
"""labels that differ by less than so many times what chance alone does are called mixed"""
_WAITS = 0.1
"""a share of waiting that is worth a sentence"""
_SAME = 0.01
"""accuracies nearer than this are told as the same: one seed cannot tell them apart"""
_CLEAR = 1.5
"""ranks' losses scatter anyway; what is this many times as much comes from their labels"""
_RULES = ("same", "scaled")
_SMALL = 8
"""steps that a drawn loss of a batch of 128 is the mean of; others so that samples are as many"""


def write_partitions(chapter: Chapter, results: Results) -> None:
    """Write lab 3's chapter on which rank saw which samples, by partition."""
    found = {kind: tables.read_coverage(results.record(f"{kind}-1")) for kind in lab.KINDS}
    covered = {kind: coverage for kind, coverage in found.items() if coverage is not None}
    if not covered:
        return
    rows = [tables.build_part_row(kind, coverage) for kind, coverage in covered.items()]
    parts = chapter.tabulate("parts", tables.PartRow, rows)
    labels = chapter.tabulate("labels", tables.LabelRow, tables.build_label_rows(covered))
    overlaps = chapter.tabulate("overlaps", tables.OverlapRow, tables.build_overlap_rows(covered))
    owned = lab.label_groups(lab.plan(results.settings).ranks)
    groups = " / ".join("".join(map(str, labels)) for labels in owned)
    name, text = chapter.text.name, chapter.text.text
    meanings = [(name("kind", k), text(f"meanings.{k}").format(groups=groups)) for k in lab.KINDS]
    chapter.results.append(Facts(items=meanings))
    chapter.picture("labels", plots.draw_labels, labels, parts)
    chapter.picture("overlap", plots.draw_overlap, overlaps)
    seen = ("seen_first_epoch", "seen_run", "repeats", "overlap_first_epoch", "overlap_run")
    chapter.show(parts, "kind", *seen, "label_skew", "largest_part")
    for row in parts.where(kind="sampling"):
        draws = sum(rank.draws for rank in covered[row.kind].first_epoch.ranks)
        expected = 1 - math.exp(-draws / covered[row.kind].samples)  # drawn with replacement
        chapter.note("sampling", row=row, expected=expected)
    _describe_disjoint(chapter, rows)
    _describe_labels(chapter, rows, covered)


def _describe_disjoint(chapter: Chapter, rows: Sequence[tables.PartRow]) -> None:
    """Tell which parts stay apart for the whole run, and which only for an epoch."""
    apart = [chapter.text.name("kind", row.kind) for row in rows if not row.overlap_run]
    if apart:
        chapter.note("apart", names=chapter.text.join(apart))
    for row in rows:
        if row.overlap_run and not row.overlap_first_epoch:
            chapter.note("mixing", row=row)


def _describe_labels(
    chapter: Chapter, rows: Sequence[tables.PartRow], covered: tables.Coverages
) -> None:
    """Tell where ranks' labels differ by more than chance makes them."""
    mixed = []
    for row in rows:
        if row.label_skew > _LUCK * tables.chance_skew(covered[row.kind].run.ranks):
            chapter.note("skewed", row=row)
        else:
            mixed.append(chapter.text.name("kind", row.kind))
    if mixed:
        chapter.note("mixed", names=chapter.text.join(mixed))


def write_learning(chapter: Chapter, results: Results) -> None:
    """Write lab 3's chapter on loss, accuracy, and who waits for whom, by partition."""
    of = lab.plan(results.settings)
    runs = results.runs({kind: kind for kind in lab.KINDS}, of.repeats)
    if not runs:
        return
    rows = [tables.build_strategy_row(kind, records) for kind, records in runs.items()]
    ends = chapter.tabulate("strategies", tables.StrategyRow, rows)
    curves = repeats.tabulate_curves(chapter, "strategy_curves", runs, key="kind")
    scores = repeats.tabulate_scores(chapter, "strategy_scores", runs, key="kind")
    chapter.picture(
        "strategies", plots.draw_learning, curves, scores, ranks=of.ranks, width=repeats.WIDTH
    )
    chapter.show(ends, "kind", "accuracy", "test_loss", "loss", "step_ms", "wait_share")
    base = chapter.text.name("kind", tables.MIXED)
    for row in rows:
        gap = repeats.accuracy_gap(runs[row.kind], runs.get(tables.MIXED, []))
        if row.kind != tables.MIXED and gap is not None:
            chapter.note(f"against.{compare(gap, 0)}", row=row, base=base, gap=gap)
    _describe_test_set(chapter, runs, rows)
    least, most = extremes(rows, lambda row: row.wait_share)
    if least is not None and most is not None:  # of unequal parts, others wait for the largest
        shortest, longest = least.wait_share or 0.0, most.wait_share or 0.0
        if longest >= _WAITS and longest >= 1.2 * shortest:
            chapter.note("waiting", most=most, least=least)


def _describe_test_set(
    chapter: Chapter, runs: repeats.Runs, rows: Sequence[tables.StrategyRow]
) -> None:
    """Tell how sure an accuracy can be at all, on so many test samples."""
    row = next((row for row in rows if row.accuracy is not None), None)
    data = runs[row.kind][0].spec_values.get("data", {}).get("name") if row is not None else None
    if row is None or row.accuracy is None or data not in TEST_SAMPLES:
        return
    samples, share = TEST_SAMPLES[data], row.accuracy.middle
    quoted = chapter.found("samples of the test set", samples, "count", of=data)
    reach = 1.96 * math.sqrt(share * (1 - share) / samples)
    chapter.note("test_set", samples=quoted, reach=reach)


def write_averaging(chapter: Chapter, results: Results) -> None:
    """Write lab 3's chapter on what averaging hides of skewed labels."""
    runs = {case: results.record(lab.averaging_name(*case)) for case in lab.AVERAGING}
    averaged = [
        tables.AveragingRow(
            kind=kind,
            optimizer=optimizer,
            averaged=averaged,
            accuracy=record.accuracy,
            test_loss=record.summary.get("test_loss"),
        )
        for (kind, optimizer, averaged), record in runs.items()
        if record is not None
    ]
    parts = list(tables.build_alone_rows(results))
    if not averaged and not parts:
        return
    local = chapter.tabulate(
        "local_losses", tables.LocalLossRow, tables.build_local_loss_rows(results)
    )
    averaging = chapter.tabulate("averaging", tables.AveragingRow, averaged)
    alone = chapter.tabulate("alone", tables.AloneRow, parts)
    chapter.picture("hidden", plots.draw_averaging, local, averaging, alone, width=repeats.WIDTH)
    chapter.show(averaging)
    chapter.show(alone)
    _describe_local(chapter, local)
    one, two = (runs[tables.SKEWED, "sgd", what] for what in ("gradients", "parameters"))
    if one is not None and two is not None and one.curve and two.curve:
        gap = repeats.largest_difference(one, two)
        chapter.note("linear.rounding" if gap < repeats.ROUNDING else "linear.more", gap=gap)
    for what in ("gradients", "parameters"):
        describe_adam(chapter, averaging, what)
    _describe_alone(chapter, alone, averaging)


def _describe_local(chapter: Chapter, local: Table[tables.LocalLossRow]) -> None:
    """Compare how far ranks' own losses lie apart."""
    mixed, skewed = (_spread(local.where(kind=kind)) for kind in (tables.MIXED, tables.SKEWED))
    over = repeats.ratio(skewed, mixed)
    base, name = (chapter.text.name("kind", kind) for kind in (tables.MIXED, tables.SKEWED))
    ending = chapter.write("local.own" if (over or 0.0) > _CLEAR else "local.alike")
    spreads = {"skewed": skewed, "mixed": mixed, "ratio": over}
    chapter.note("local.spread", name=name, base=base, **spreads, ending=ending)


def _spread(rows: Sequence[tables.LocalLossRow]) -> float | None:
    """Return the mean over steps of the largest minus the smallest loss of the ranks."""
    by_step: dict[int, list[float]] = {}
    for row in rows:
        by_step.setdefault(row.step, []).append(row.loss)
    gaps = [max(losses) - min(losses) for losses in by_step.values()]
    return statistics.fmean(gaps) if gaps else None


def describe_adam(chapter: Chapter, averaging: Table[tables.AveragingRow], averaged: str) -> None:
    """Compare skewed with mixed parts under Adam, in a sentence of lab 3's report."""
    mixed, skewed = (
        averaging.first(kind=kind, optimizer="adam", averaged=averaged)
        for kind in (tables.MIXED, tables.SKEWED)
    )
    if mixed is None or skewed is None or mixed.accuracy is None or skewed.accuracy is None:
        return
    gap = abs(mixed.accuracy - skewed.accuracy)
    key, holes = ("near", {}) if gap < _SAME else (f"apart.{averaged}", {"gap": gap})
    ending = chapter.write(f"adam.{key}", **holes)
    what = chapter.text.text(f"adam.{averaged}")
    chapter.note("adam.ended", skewed=skewed, mixed=mixed, what=what, ending=ending)


def _describe_alone(
    chapter: Chapter, alone: Table[tables.AloneRow], averaging: Table[tables.AveragingRow]
) -> None:
    """Tell what one part teaches by itself."""
    parts = [row for row in alone.records if row.part != "mixed"]
    best = ranked(parts, lambda row: row.accuracy, reverse=True)
    worst = ranked(parts, lambda row: row.accuracy)
    whole = [row for row in averaging.where(kind=tables.SKEWED) if row.accuracy is not None]
    if not best or not whole:
        return
    said = chapter.write("alone.parts", best=best[0], worst=worst[0], together=whole[0])
    mixed = alone.first(part="mixed")
    chapter.add(said if mixed is None else chapter.write("alone.mixed", first=said, mixed=mixed))


def write_scaling(chapter: Chapter, results: Results) -> None:
    """Write lab 3's chapter on data parallelism against the single machine."""
    of = lab.plan(results.settings)
    names = {str(workers): f"workers{workers}" for workers in of.workers}
    names |= {str(of.ranks): "shuffle", lab.CORES: lab.CORES}  # on all workers these are one run
    found = results.runs(names, of.repeats)
    setups = {setup: records for setup, records in found.items() if records[0].step_s}
    if "1" not in setups:
        return
    rows = [
        tables.build_setup_row(setup, records, setups["1"]) for setup, records in setups.items()
    ]
    scaling = chapter.tabulate("scaling", tables.SetupRow, rows)
    curves = repeats.tabulate_curves(chapter, "scaling_curves", setups, key="setup")
    scores = repeats.tabulate_scores(chapter, "scaling_scores", setups, key="setup")
    equal = chapter.tabulate(
        "equal_time", tables.EqualTimeRow, tables.build_equal_time_rows(curves, scores)
    )
    chapter.picture("scaling", plots.draw_speedup, scaling)
    chapter.picture("equal_cost", plots.draw_equal_cost, curves, scores)
    chapter.show(scaling, "setup", "step_ms", "speedup", "efficiency", "samples_per_s", "accuracy")
    chapter.show(equal)
    many = [row for row in rows if row.setup not in ("1", lab.CORES)]
    for row in many:
        if row.speedup is not None:
            chapter.note("speed", row=row, verdict=chapter.write(f"pace.{compare(row.speedup, 1)}"))
    if many:
        last = many[-1]
        cores = setups["1"][0].manifest.get("cpu_count")
        over = [row.setup for row in many if isinstance(cores, int) and row.workers > cores]
        if over:
            chapter.note("machine", cores=str(cores), workers=chapter.text.join(over))
        if (alone := scaling.first(setup=lab.CORES)) is not None:
            best = min(many, key=lambda row: row.step_ms.middle)
            verdict = chapter.write(f"threads.{compare(best.step_ms, alone.step_ms)}")
            chapter.note("cores", alone=alone, best=best, verdict=verdict)
        accounts = {"compute": last.compute_ms, "wait": last.wait_ms, "transfer": last.transfer_ms}
        total = sum(ms or 0.0 for ms in (*accounts.values(), last.data_ms))
        shares = {account: repeats.ratio(ms, total) for account, ms in accounts.items()}
        chapter.note("accounts", row=last, **shares)
        _describe_equal_samples(chapter, setups["1"][0], setups[last.setup][0], last.setup)
    _describe_equal_time(chapter, equal.records)


def _describe_equal_samples(chapter: Chapter, one: RunRecord, many: RunRecord, setup: str) -> None:
    """Tell whether many workers compute what one does."""
    same_seed = one.spec_values.get("seed") == many.spec_values.get("seed")
    if not same_seed or one.accuracy is None or many.accuracy is None:
        return
    gap = repeats.largest_difference(one, many)
    began_alike = abs(one.curve[0].loss - many.curve[0].loss) < repeats.ROUNDING
    case = "same" if gap < repeats.ROUNDING else "magnified" if began_alike else "different"
    change = many.accuracy - one.accuracy
    chapter.note(f"equal_samples.{case}", gap=gap, change=change, workers=setup)


def _describe_equal_time(chapter: Chapter, rows: Sequence[tables.EqualTimeRow]) -> None:
    """Compare one worker with the fastest, when the fastest was done."""
    told = {row.setup: row for row in rows if row.loss is not None}
    if "1" not in told or len(told) < 2:
        return
    fastest = max(told.values(), key=lambda row: row.samples or 0.0)
    if fastest.setup == "1":
        chapter.note("equal_time.one", one=fastest)
        return
    kind = "cores" if fastest.setup == lab.CORES else "workers"
    name = chapter.text.text(f"equal_time.{kind}").format(workers=fastest.setup)
    chapter.note("equal_time.many", name=name, one=told["1"], many=fastest)


def write_batches(chapter: Chapter, results: Results) -> None:
    """Write lab 3's chapter on the global batch: fewer, larger steps over the same samples."""
    of = lab.plan(results.settings)
    runs = {
        (batch, rule): record
        for batch in of.batches
        for rule in _RULES
        if (record := results.record(lab.batch_name(batch, rule))) is not None and record.curve
    }
    if len({batch for batch, _ in runs}) < 2:
        return
    rows = [tables.build_batch_row(*case, record) for case, record in runs.items()]
    batches = chapter.tabulate("batches", tables.BatchRow, rows)
    named = {
        f"{batch} {rule}": [record]
        for (batch, rule), record in runs.items()
        if batch != lab.BATCH or rule == _RULES[0]  # there the rules are the same run
    }
    widths = {f"{batch} {rule}": max(1, _SMALL * lab.BATCH // batch) for batch, rule in runs}
    curves = repeats.tabulate_curves(chapter, "batch_curves", named, key="run", widths=widths)
    chapter.picture(
        "batches", plots.draw_batches, batches, curves, ranks=of.ranks, lr=f"{lab.LR:g}"
    )
    chapter.show(batches)
    _describe_speed(chapter, batches.where(rule=_RULES[0]))
    _describe_accuracy(chapter, batches)


def _describe_speed(chapter: Chapter, rows: Sequence[tables.BatchRow]) -> None:
    """Compare the rates of the largest and the smallest batch."""
    told = [row for row in rows if row.samples_per_s and row.comm_share is not None]
    if len(told) > 1:
        small, large = told[0], told[-1]
        less = (large.comm_share or 0.0) < (small.comm_share or 0.0)
        why = chapter.write("same_bytes") if less else ""
        over = repeats.ratio(large.samples_per_s, small.samples_per_s)
        chapter.note("speed", large=large, small=small, ratio=over, why=why)


def _describe_accuracy(chapter: Chapter, batches: Table[tables.BatchRow]) -> None:
    """Tell what the largest batch lost at equal samples, and what a larger rate gave back."""
    largest = max(row.batch for row in batches.records)
    small = next((row for row in batches.where(batch=lab.BATCH) if row.accuracy is not None), None)
    large, scaled = (batches.first(batch=largest, rule=rule) for rule in _RULES)
    if small is None or large is None or largest == lab.BATCH:
        return
    if small.accuracy is None or large.accuracy is None:
        return
    gap = large.accuracy - small.accuracy
    verdict = "less" if gap < -_SAME else "more" if gap > _SAME else "same"
    compared = chapter.write(f"compared.{verdict}")
    chapter.note("accuracy", large=large, small=small, verdict=compared)
    if scaled is not None and scaled.accuracy is not None:
        change = scaled.accuracy - large.accuracy
        ending = "little" if abs(change) <= _SAME else "worse" if change < 0 else "better"
        if ending == "better" and change < -gap:
            ending = "some"
        chapter.note("scaled.reached", row=scaled, ending=chapter.write(f"scaled.{ending}"))


def summarize(chapter: Chapter) -> Sentence | None:
    """Say in one sentence what lab 3 found, as far as it was measured."""
    rows = [row for row in chapter.table("strategies", tables.StrategyRow).records if row.accuracy]
    worst, best = extremes(rows, lambda row: row.accuracy)
    many = [row for row in chapter.table("scaling", tables.SetupRow).records if row.workers > 1]
    fastest, *_ = [*ranked(many, lambda row: row.speedup, reverse=True), None]
    strategies = chapter.write("strategies", best=best, worst=worst, count=len(rows))
    return chapter.concat([strategies, chapter.write("scaling", best=fastest)])


LAB = Lab(
    number=3,
    experiments=lab.plan_experiments,
    chapters={
        "partitions": write_partitions,
        "learning": write_learning,
        "averaging": write_averaging,
        "scaling": write_scaling,
        "batches": write_batches,
    },
    summarize=summarize,
)
