"""Terminal output: texts and tables of plans, progress, results and statements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from forethought.accounting import exact
from forethought.accounting.adaptive import PHASES_ALONE, SEARCH_ALONE
from forethought.accounting.interval import at_least, at_most, first_to_last
from forethought.accounting.statement import Statement, numbers
from forethought.papers.calculators import Calculated
from forethought.papers.closed_form import SampleSizes
from forethought.papers.published import Paper, PaperTable
from forethought.values.mechanism import Correlated, Mechanism, Persons
from forethought.values.plan import NAMES, Plan, Preparation

if TYPE_CHECKING:
    from forethought.accounting.verification import Verification
    from forethought.papers.comparison import ComparisonRow
    from forethought.planning.alternatives import Front
    from forethought.planning.forecast import Forecast
    from forethought.planning.solve import Neighbour
    from forethought.training.folder import RunSummary, UnfinishedRun
    from forethought.training.metrics import Results
    from forethought.training.run import Run
    from forethought.utility.graph import UtilityGraph


# Options of tables: a title on the left, the same in bold, and a first column of names.
LEFT: dict[str, Any] = {"title_justify": "left"}
BOLD: dict[str, Any] = {**LEFT, "title_style": "bold"}
FIRST: dict[str, Any] = {"style": "cyan", "no_wrap": True}


def figures(
    rows: Iterable[Any],
    columns: Mapping[str, Any],
    *,
    right: Collection[str] = (),
    first: dict[str, Any] | None = None,
    **options: Any,
) -> Table:
    """A table with one row for each object.

    Args:
        rows: the objects.
        columns: heading → format of an object, such as ``"{0.rounds:,}"``, or a function of it.
        right: headings of right-aligned columns.
        first: options of the first column. options: of rich's table.
    """
    table = Table(**options)
    for heading in columns:
        own = {"overflow": "fold", **({} if table.columns else first or {})}
        table.add_column(heading, justify="right" if heading in right else "left", **own)
    for row in rows:
        cells = columns.values()
        table.add_row(*(c.format(row) if isinstance(c, str) else c(row) for c in cells))
    return table


def pairs(rows: Iterable[tuple[str, str]], **options: Any) -> Table:
    """A table of pairs (name, value), without headings."""
    columns, first = {"name": "{0[0]}", "value": "{0[1]}"}, {**FIRST, "overflow": "ellipsis"}
    return figures(rows, columns, first=first, show_header=False, **options)


def show_papers(console: Console, papers: Sequence[Paper]) -> None:
    """Print a list of the papers, and the command that shows one of them."""
    rows = {
        "paper": "{0.name}",
        "title": "{0.title}",
        "tables": lambda paper: ", ".join(table.number for table in paper.tables),
        "items": lambda paper: str(len(paper.items)),
    }
    console.print(figures(papers, rows, right=("items",), title="The papers", **LEFT))
    console.print(
        "One of them: forethought papers 000, and a table: forethought papers 000 --table 6"
    )


def show_paper(console: Console, paper: Paper) -> None:
    """Print a paper's claims, errors, tables, and the outcome of its items."""
    console.print(f"{paper.name}: {paper.title}", style="bold", markup=False)
    console.print(paper.claims, markup=False)
    console.print("\nWhere it is wrong or loose:", markup=False)
    for one in paper.wrong:
        console.print(f"- {one}", markup=False)
    console.print("\nWhat became of it:")
    for item in paper.items:
        parts = (item.verdict, item.what, item.where, item.note)
        console.print("- " + "; ".join(part for part in parts if part), markup=False)
    tables = ", ".join(table.number for table in paper.tables)
    console.print(f"Tables beside ours: forethought papers {paper.name} --table N, of {tables}")


def show_paper_table(console: Console, table: PaperTable) -> None:
    """Print a paper's table beside this library's results: on a terminal aligned, else Markdown."""
    console.print(Markdown(table.text) if console.is_terminal else Text(table.text))
    console.print(f"\nPrinted again by: {table.command}", markup=False)


def show_calculated(console: Console, plans: Sequence[Calculated]) -> None:
    """Print each plan, its conditions with their margins, and the accountant's exact figures."""
    for plan in plans:
        result = plan.result
        noise = f"{plan.less_noise:.2f} times {'less' if plan.less_noise >= 1 else 'the'} noise"
        facts = [
            ("sample size s", sizes_text(result.sizes)),
            ("rounds T", f"{result.sizes.total_rounds:,}"),
            ("gradients K", f"{result.sizes.gradients:,.0f}"),
            ("ε, δ of the formula", f"{at_most(result.epsilon, '.5g')}, {at_most(result.delta)}"),
            ("σ of the formula", f"{result.sigma:.5g}"),
            ("ε, exact at this σ", at_most(result.exact.upper, ".5g")),
            ("σ, exact for this ε", f"{plan.exact_noise_multiplier:.5g}  ({noise})"),
        ]
        console.print(pairs(facts, title=f"{plan.calculator}: {plan.what}", **BOLD))
        conditions = {
            "condition": "{0.name}",
            "left": "{0.left:.5g}",
            "right": "{0.right:.5g}",
            "margin": "{0.margin:.3g}",
            "": lambda condition: "holds" if condition.holds else "[red]fails[/red]",
        }
        title, right = f"Conditions of {result.theorem}", ("left", "right", "margin")
        console.print(figures(result.conditions, conditions, right=right, title=title, **LEFT))
        if not result.holds:
            console.print(
                f"{result.theorem} does not prove this ε; the exact figures stand all the same."
            )
    if plans and len(plans[0].result.sizes.sizes) > 1 and "phase" in plans[0].what:
        console.print(
            "Whether to go on is decided by looking at results: these totals hold for phases "
            "fixed in advance. For the total of phases chosen on the way use a Rényi filter."
        )


def sizes_text(sizes: SampleSizes) -> str:
    """Sample sizes in a few words."""
    values = sizes.sizes
    if len(values) == 1:
        return f"{values[0]:.4g}"
    if len(values) <= 3:
        return ", then ".join(f"{size:.4g} for {count:,} rounds" for size, count in sizes)
    return f"{values[0]:.4g} to {values[-1]:.4g} in {len(values)} steps, θ = {sizes.theta:.3f}"


def plan_rows(plan: Plan) -> list[tuple[str, str]]:
    """The plan as pairs (name, value), with the exact ε of its releases."""
    epsilon = exact.epsilon(plan.mechanism, plan.delta, plan.records_per_person)
    of_persons = isinstance(plan.contribution, Persons)
    parts, several = plan.privacy.mechanism.rounds, plan.records_per_person
    drawn, split = parts[0].sampling.words(), ""
    if len(parts) > 1:
        drawn, split = drawn.partition(", rate")[0], f" in {len(parts)} parts"
    sizes = [part.sampling.expected_batch(plan.examples) for part in parts]
    noise = first_to_last([part.noise_multiplier for part in parts], ".4g")
    if isinstance(parts[0], Correlated):
        noise += f", correlated over rounds ({parts[0].strategy.kind})"
    alone = SEARCH_ALONE in plan.not_covered or PHASES_ALONE in plan.not_covered
    kind, late = parts[0].clipping, plan.gradient_filter
    each = "person" if of_persons else "record" if kind == "example" else kind
    rows = [
        ("persons" if of_persons else "records", f"{plan.examples:,}"),
        ("protected together", several > 1 and f"any {several} records"),
        ("sampling", drawn),
        ("batch (expected)", first_to_last(sizes, ",.0f")),
        ("rounds", f"{plan.rounds:,}{split}  ({plan.epochs:.3g} epochs)"),
        ("noise multiplier σ", noise),
        (
            "groups",
            plan.groups and f"{plan.groups:,} of about {plan.mean_batch / plan.groups:.0f} records",
        ),
        ("released first", plan.preparation and _preparation_text(plan, plan.preparation)),
        ("inside a group", plan.local and plan.local.describe()),
        ("each record", plan.augmentation and plan.augmentation.describe()),
        (
            "gradient filter",
            late and f"{late.kind}, {late.rounds_late(plan.rounds):.3g} rounds late",
        ),
        ("clip norm", f"{plan.clip_norm:g}, {plan.clip.rule}, per {each}"),
        ("step size", f"{plan.optimizer.learning_rate:.4g}, {plan.schedule.kind}"),
        ("adjacency", plan.mechanism.adjacency),
        (
            "ε of this plan alone" if alone else "expected ε",
            f"{at_most(epsilon.upper)} at δ = {at_most(plan.delta, '.3g')}",
        ),
        (
            "less may be spent",
            epsilon.reason and f"from {at_least(epsilon.lower)}: {epsilon.reason}",
        ),
    ]
    return [(name, str(value)) for name, value in rows if value]


def _preparation_text(plan: Plan, asked: Preparation) -> str:
    """The releases before training and their ε alone, in words."""
    alone = Mechanism(*asked.parts(), adjacency=plan.mechanism.adjacency)
    spent = exact.epsilon(alone, plan.delta, plan.records_per_person).upper
    names = ", ".join(NAMES[name].partition(" of ")[0] for name in asked.statistics)
    return f"{names} (alone ε {at_most(spent, '.2g')})"


def show_plan(console: Console, plan: Plan) -> None:
    """Print the plan as a small table."""
    console.print(pairs(plan_rows(plan), title="Plan", **BOLD))


@contextmanager
def progress_bar(console: Console, rounds: int) -> Iterator[Callable[[Any], None] | None]:
    """A progress bar with loss, held-out accuracy, ε so far and share of clipped examples.

    Yields the callback for training; None when the output is no terminal, so that a log file stays
    readable.
    """
    with counting(console, "Training", rounds, TextColumn("{task.fields[facts]}")) as tell:
        shown = console.is_terminal
        yield (lambda event: tell(event.round, rounds, facts(event))) if shown else None


@contextmanager
def counting(
    console: Console, what: str, total: int, *more: TextColumn
) -> Iterator[Callable[..., None]]:
    """A progress bar for work that reports (done, total); without a terminal nothing is shown."""
    if not console.is_terminal:
        yield lambda *_: None
        return
    done = TextColumn("{task.completed:.0f}/{task.total:.0f}")
    columns = (TextColumn(f"[bold]{what}"), BarColumn(bar_width=24), done, *more)
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(what, total=total, facts="")
        yield lambda done, of, facts="": bar.update(task, completed=done, total=of, facts=facts)


def facts(event: Any) -> str:
    """The known figures at a round, in a few words."""
    forms = {
        "loss": "loss {:.3f}".format,
        "accuracy": "accuracy {:.1%}".format,
        "epsilon": lambda epsilon: f"ε {at_most(epsilon, '.3f')}",
        "clipped": "clipped {:.0%}".format,
    }
    known = {name: getattr(event, name) for name in forms}
    return "  ".join(forms[name](value) for name, value in known.items() if value is not None)


def show_result(
    console: Console,
    statement: Statement,
    accuracy: float | None,
    seconds: float | None,
    folder: Path | None,
    results: Results | None = None,
    too_wide: Sequence[str] = (),
) -> None:
    """Print the result, the statement in three sentences, and where the run folder is."""
    parts = []
    if accuracy is not None and results is None:
        parts.append(f"accuracy on held-out data {accuracy:.1%}")
    if seconds is not None:
        parts.append(f"trained in {seconds:.1f} s")
    if parts or results is not None:
        console.print(f"\n[bold]Result[/bold]  {', '.join(parts)}")
    show_figures(console, results)
    for sentence in too_wide:
        console.print(f"  declared wider than need be: {sentence}", markup=False)
    _show_sentences(console, statement)
    if folder is not None:
        console.print(Text.assemble(("\nRun folder", "bold"), f"  {folder}"), soft_wrap=True)


def _show_sentences(console: Console, statement: Statement) -> None:
    console.print("\n[bold]Statement[/bold]")
    for sentence in statement.sentences():
        console.print(f"  {sentence}", markup=False)


def show_figures(console: Console, results: Results | None) -> None:
    """Print the model's results on held-out records, with their baseline."""
    if results is None:
        return
    *others, last = results.sentences()
    for sentence in others:
        console.print(f"  {sentence}", markup=False)
    console.print(f"  {last}", style="yellow" if results.weak else None, markup=False)


def show_phases(console: Console, run: Run) -> None:
    """Print the reason why a run in phases stopped, and the accuracy after each phase."""
    stopped = getattr(run, "stopped", "")
    if not stopped:
        return
    console.print(f"\n[bold]Phases[/bold]  stopped because {stopped}")
    for number, phase in enumerate(getattr(run, "phases", ()), start=1):
        noise, rounds = phase.rounds.noise_multiplier, phase.rounds.count
        console.print(f"  {number}: {rounds:,} rounds with σ {noise:.4g}, {phase.accuracy:.1%}")


def show_statement(
    console: Console, statement: Statement, *, listed: str = "statement.md", verified: bool = False
) -> None:
    """Print a statement: the three sentences, then the numbers as a small table."""
    for sentence in statement.sentences(listed):
        console.print(sentence, markup=False)
    console.print(pairs(numbers(statement)))
    if verified:
        console.print("[green]Verified[/green]: recomputed from the mechanism, and it holds.")


def show_comparison(console: Console, rows: Sequence[ComparisonRow]) -> None:
    """Print the results of every analysis as one table; nothing when there are no rows."""
    if not rows:
        return
    columns = {
        "analysis": "{0.name}",
        "ε": lambda row: "" if row.epsilon is None else at_most(row.epsilon, ".5g"),
        "guarantee": lambda row: "yes" if row.guarantee else "no",
        "": "{0.note}",
    }
    title = "The same run by other analyses"
    console.print(figures(rows, columns, right=("ε",), first=FIRST, title=title, **LEFT))


def show_utility(console: Console, graph: UtilityGraph, tolerance: float) -> None:
    """Print the admissible noise of every clip norm, and the choice."""
    title = f"Noise that loses at most {tolerance:.0%} of the accuracy ({graph.source} data)"
    columns = {"clip norm": "{0.clip_norm:g}", "σ up to": "{0.noise_multipliers[1]:.3g}"}
    rows = graph.admissible(tolerance)
    console.print(figures(rows, columns, right=columns, title=title, **LEFT))
    console.print(f"Noise on the weights: {graph.noise_meaning}.")
    choice = graph.choose(tolerance)
    console.print(
        f"Choice: clip norm {choice.clip_norm:g}, noise multiplier {choice.noise_multiplier:.3g}. "
        f"{choice.reason}"
    )


def show_verification(console: Console, verification: Verification) -> None:
    """Print for each entry of a statement the claim, the recomputed value and its evidence."""
    from forethought.accounting.verification import FOLLOWS

    columns = {
        "entry": "{0.entry}",
        "claimed": lambda row: Text(row.claimed),
        "recomputed": lambda row: Text(row.recomputed),
        "from which evidence": lambda row: Text(row.evidence or f"not checked: {row.why}"),
    }
    follow = [row.entry for row in verification.rows if row.evidence == FOLLOWS]
    rows = [row for row in verification.rows if row.entry not in follow]
    console.print(figures(rows, columns, title="The statement, recomputed", **LEFT))
    console.print(f"Also compared, since they follow from these: {', '.join(follow)}.")


def show_summary(console: Console, summary: RunSummary) -> None:
    """Print plan, last metrics, results and statement of a finished run."""
    show_plan(console, summary.plan)
    if summary.metrics:
        last = {name: float(value) for name, value in summary.metrics[-1].items() if value}
        console.print(f"\n[bold]Last record[/bold]  {_recorded(last)}")
    show_figures(console, summary.results)
    _show_sentences(console, summary.statement)
    for path in summary.figures:
        console.print(f"figure  {path}", markup=False, soft_wrap=True)


def show_unfinished(console: Console, run: UnfinishedRun) -> None:
    """Print the number of released rounds of an unfinished run, their ε, and how to continue."""
    show_plan(console, run.plan)
    spent = ""
    if run.spent is not None:
        spent = f", worth ε = {at_most(run.spent)} at δ = {at_most(run.plan.delta, '.3g')}"
    state = f"Under way, process {run.process}" if run.process else "Interrupted"
    console.print(
        f"\n[bold]{state}[/bold]  {run.released:,} of {run.plan.rounds:,} rounds may have been "
        f"released{spent}"
    )
    if run.last:
        # Its ε is a quick bound; the line above has the exact ε of all possible releases.
        last = {name: value for name, value in run.last.items() if name != "epsilon"}
        console.print(f"[bold]Last record[/bold]  {_recorded(last)}")
    if not run.process:
        way = f"Continue with: forethought train --resume {run.folder}"
        console.print(way, markup=False, soft_wrap=True)


def _recorded(last: Mapping[str, float]) -> str:
    """A row of metrics.csv in a few digits: ε rounded up, counts as whole numbers."""
    shown = {name: f"{v:,.0f}" if v % 1 == 0 else f"{v:.4g}" for name, v in last.items()}
    if "epsilon" in last:
        shown["epsilon"] = at_most(last["epsilon"])
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())


def show_plan_and_alternatives(
    console: Console, plan: Plan, alternatives: Sequence[Neighbour]
) -> None:
    """Print the plan next to its alternatives, each with its one-line reason."""
    table = Table(title="Plan", **BOLD)
    table.add_column("", **FIRST)
    table.add_column("chosen", style="bold", overflow="fold")
    for near in alternatives:
        table.add_column(near.name, overflow="fold")
    columns = [dict(plan_rows(near.plan)) for near in alternatives]
    for what, value in plan_rows(plan):
        table.add_row(what, value, *(column.get(what, "") for column in columns))
    console.print(table)
    for near in alternatives:
        console.print(f"  [cyan]{near.name}[/cyan]: {near.reason}")


def show_forecast(
    console: Console, forecasts: Sequence[Forecast], seconds: float | None, costs: str = ""
) -> None:
    """Print the cost of the noise for a model, and the time of its training on this machine.

    Args:
        forecasts: the costs. seconds: the time; None: not measured. costs: memory and time in
            words.
    """
    if forecasts:
        right = [f"{100 * one.without:.0f}" for one in forecasts]
        left = [f"{100 * one.expected:.1f}" for one in forecasts]
        console.print(
            "[bold]What the noise costs[/bold]  where the same model without privacy puts "
            f"{_or(right)} of 100 pairs of records, one of each class, in the right order (AUC), "
            f"this one about {_or(left)}"
        )
        measured = forecasts[-1].measured
        if measured is not None:
            console.print(
                "  Columns that hardly vary are found late, whatever the noise: nine of ten of "
                f"{measured.runs} runs on public tables lost at most {100 * measured.most:.1f}"
            )
    if seconds is not None:
        console.print(
            f"[bold]Time here[/bold]  about {duration(seconds)} to its last round, once started "
            "and with the data read; figures and files come after it"
        )
    if costs:
        console.print(costs, markup=False, highlight=False)


def _or(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def duration(seconds: float) -> str:
    """A time in words, to two digits."""
    if seconds < 1:
        return "1 s or less"
    if seconds < 120:
        return f"{float(f'{seconds:.2g}'):g} s"
    unit, of = ("min", 60) if seconds < 7200 else ("h", 3600)
    return f"{float(f'{seconds / of:.2g}'):g} {unit}"


def show_front(console: Console, front: Front) -> None:
    """Print the front as a table, and the limits of its search."""
    rows = front.candidates
    title = f"{len(rows)} plans of those that none of {front.considered} beats"
    columns = {
        "ε": lambda row: at_most(row.epsilon, ".3g"),
        "noise / signal": "{0.noise:.3g}",
        "rounds": "{0.rounds:,}",
        "gradients": "{0.gradients:,.0f}",
        "batch": "{0.plan.mean_batch:,.0f}",
        "σ": lambda row: first_to_last(
            [part.noise_multiplier for part in row.plan.privacy.mechanism], ".3g"
        ),
        "clip norm": "{0.plan.clip_norm:.4g}",
    }
    console.print(figures(rows, columns, right=columns, title=title, **BOLD))
    limits = ", ".join(f"{name} at most {most:,g}" for name, most in front.limits.items())
    console.print(f"  within: {limits} (--max-epsilon, --max-rounds, --max-gradients set others)")
