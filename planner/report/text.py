"""How does a plan look in a terminal? Draws the facts of `report.facts` with rich, for 80 columns (fewer: `tables`).

Text from files is printed as it is, never read as markup, and control characters are shown as escapes. Left
out: what to say, which is decided in `facts`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Column
from rich.text import Text

from planner.dialect import in_words
from planner.report import facts, nearest, options_text, proof
from planner.report.tables import Fitting, WordTable
from planner.report.words import texts
from planner.spec.planfile import Choice, Plan, Verdict
from planner.spec.terms import term_name
from planner.spec.verdict import MemoryVerdict
from planner.units import GIB

_VERDICT_STYLE = {
    Verdict.FOUND: "bold green",
    Verdict.NOTHING_FITS: "bold red",
    Verdict.NOTHING_LEGAL: "bold red",
    Verdict.DOES_NOT_FIT: "bold red",
    Verdict.ILLEGAL: "bold red",
}
_MEMORY_STYLE = {
    MemoryVerdict.FITS: "green",
    MemoryVerdict.BORDERLINE: "yellow",
    MemoryVerdict.DOES_NOT_FIT: "red",
}
_INDENT = 2


def readable(text: str) -> str:
    """`text` in words of the command line, control characters as escapes, so that no file can steer a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in in_words(text))


def terminal(stderr: bool = False) -> Console:
    """A console that takes text literally. Honours NO_COLOR and COLUMNS; 80 columns where output is piped."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def render(document: RenderableType, console: Console, crop: bool = True) -> str:
    """The document as text for that console, with its colours."""
    with console.capture() as capture:
        console.print(document, crop=crop)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def section(title: str, *content: RenderableType) -> RenderableType:
    """A heading and what stands below it, indented."""
    return Group(Text(""), Text(readable(title), "bold"), *(Padding(c, (0, 0, 0, _INDENT)) for c in content))


def prose(text: str, style: str = "") -> Text:
    """A paragraph."""
    return Text(readable(text), style)


def bullets(lines: Iterable[str]) -> RenderableType:
    """A list whose wrapped lines stay aligned."""
    table = WordTable.grid(padding=(0, 1))
    for line in lines:
        table.add_row(Text("-"), prose(line))
    return table


def labelled(rows: Iterable[tuple[str, str, str]]) -> RenderableType:
    """Rows of label, value and note."""
    table = WordTable.grid(
        Column(no_wrap=True), Column(no_wrap=True), Column(style="dim"), padding=(0, 2, 0, 0)
    )
    for label, value, note in rows:
        table.add_row(prose(label), prose(value, "bold"), prose(note))
    return table


def listing(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> WordTable:
    """A table with the first `left` columns as text and numbers aligned to the right after them."""
    table = WordTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for index, head in enumerate(heads):
        table.add_column(prose(head), justify="left" if index < left else "right")
    for row in rows:
        table.add_row(*(prose(cell) for cell in row))
    return table


def plan_document(plan: Plan) -> RenderableType:
    """The whole answer, the verdict first."""
    first, *more = facts.headline_lines(plan)
    blocks: list[RenderableType] = [prose(first, _VERDICT_STYLE[plan.verdict])]
    blocks += [prose(line, "bold") for line in more]
    blocks += [prose(line) for line in (*facts.subject_lines(plan), *options_text.turned_on_lines(plan))]
    if plan.search.stacks:
        blocks.append(_stacks(plan))
    if plan.verdict is Verdict.ILLEGAL:
        blocks.append(_violations(plan))
    if plan.choices:
        blocks += _choices(plan)
    if plan.smallest_change:
        title = "Why, and what would help" if plan.verdict is Verdict.NOTHING_FITS else "What would help"
        helps = texts(plan.smallest_change)
        blocks.append(section(title, bullets(helps) if len(helps) > 1 else prose(helps[0])))
    blocks += _nearest(plan)
    blocks += _published(plan)
    if plan.search.candidates > 1:
        blocks.append(_space(plan))
    predicts = bool(plan.choices or plan.nearest)
    for title, lines in (
        ("Caution", proof.cautions(plan)),
        ("Assumed", proof.assumed(plan)),
        ("Not modelled", texts(plan.not_modelled) if plan.choices else ()),
        ("Confidence", (proof.confidence_sentence(plan),) if predicts else ()),
    ):
        if lines:
            blocks.append(section(title, bullets(lines)))
    return Group(*blocks)


def _stacks(plan: Plan) -> RenderableType:
    """The stacks that were searched, the fastest first."""
    standings = plan.search.stacks
    table = _numbered(
        ("stack", "step", "slower", "configuration"), options_text.stack_rows(standings), 1, None
    )
    said = options_text.lead_sentence(standings)
    return section("Stacks", table, *([prose(said)] if said else []))


def _violations(plan: Plan) -> RenderableType:
    rules: list[RenderableType] = []
    for broken in plan.violations:
        rules.append(prose(f"{broken.rule}: {broken.reason}"))
        rules.append(Padding(prose(f"hint: {broken.hint}", "dim"), (0, 0, 0, _INDENT)))
    return section("Why it is illegal", *rules)


def _nearest(plan: Plan) -> list[RenderableType]:
    title = "Nearest legal configuration" if plan.violations else "Nearest that fits"
    if plan.verdict is Verdict.NOTHING_FITS:
        title = "Needs least memory"
    if plan.nearest is not None:
        near = plan.nearest
        figures = _figures(near, facts.noun_in(plan))
        blocks = [section(title, prose(near.config.text, "bold"), figures)]
        return [*blocks, *([_memory_bars(near)] if plan.verdict is Verdict.NOTHING_FITS else [])]
    if plan.nearest_config is not None:
        return [section(title, prose(plan.nearest_config.text, "bold"))]
    return []


def _published(plan: Plan) -> list[RenderableType]:
    run = plan.nearest_run
    if run is None:
        return []
    told = ((f.label, f.value, f.note) for f in nearest.figures(plan, run, facts.noun_in(plan)))
    title = "Nearest published run"
    return [section(title, prose(nearest.settings_sentence(run)), labelled(told), prose(run.link, "dim"))]


def _choices(plan: Plan) -> list[RenderableType]:
    best, noun = plan.choices[0], facts.noun_in(plan)
    blocks = [section(best.config.text, _figures(best, noun))]
    if len(plan.choices) > 1:
        said = proof.once_sentence(plan.search)
        notes = [prose(said, "dim")] if said else []
        blocks.append(section(f"Best {len(plan.choices)}", *_choice_table(plan, noun), *notes))
    blocks.append(section("Where the step goes", _bars(best.time, _seconds_like(best.time))))
    blocks.append(_memory_bars(best))
    reasons: list[RenderableType] = [bullets(texts(best.why))] if best.why else []
    if reasons:
        blocks.append(section("Why this one", *reasons))
    if len(plan.choices) > 1:
        difference, *terms = facts.comparison(best, plan.choices[1], 2)
        blocks.append(
            section("Against the runner-up", prose(difference), *([bullets(terms)] if terms else []))
        )
    return blocks


def _figures(choice: Choice, noun: str) -> RenderableType:
    return labelled((figure.label, figure.value, figure.note) for figure in facts.key_figures(choice, noun))


_FIGURE_HEADS = ("step", "", "tok/s/{noun}", "MFU %", "GiB", "memory")
_FEWER, _FEWEST = (0, 1, 2, 4, 5), (0, 1, 4, 5)  # figures kept in narrower tables


def _choice_table(plan: Plan, noun: str) -> list[RenderableType]:
    """The configurations by axis; where that is too wide, each as a line of text beside fewer figures."""
    choices, marked = plan.choices, plan.recommended
    grid = facts.configuration_grid(choices)
    figures = _choice_figures(choices)
    common = [prose(f"all with {grid.common}")] if grid.common else []
    legend = [prose(line, "dim") for line in grid.legend]
    tables: list[RenderableType] = []
    shown = [head.format(noun=noun) or facts.against_first(choices)[0] for head in _FIGURE_HEADS]
    for kept, gap in ((range(len(shown)), 1), (_FEWER, 1), (_FEWER, 0), (_FEWEST, 0)):
        rows = [(*axes, *(row[i] for i in kept)) for axes, row in zip(grid.rows, figures, strict=True)]
        heads: tuple[str, ...] = (*grid.axes, *(shown[i] for i in kept))
        tables.append(Group(*common, _numbered(heads, rows, gap, marked), *legend))
    letters = options_text.stack_letters(choices)[0] or [""] * len(choices)
    rows = [
        (*(row[i] for i in _FEWEST), *filter(None, [letter]), c.config.text)
        for row, letter, c in zip(figures, letters, choices, strict=True)
    ]
    heads = (*(shown[i] for i in _FEWEST), *(["stack"] if grid.legend else []), "configuration")
    said = [prose("* recommended", "dim")] if marked else []
    return [Fitting((*tables, Group(_numbered(heads, rows, 1, marked), *legend))), *said]


def _numbered(heads: Sequence[str], rows: Sequence[Sequence[str]], gap: int, marked: int | None) -> WordTable:
    """Rows with their number in front, columns `gap` + 1 apart, words coloured; a star at the row `marked`, if that is
    not the first."""
    table = WordTable(box=SIMPLE_HEAD, padding=(0, gap, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("#", justify="right")
    for head in heads:
        words = head in ("memory", "configuration", "stack")
        table.add_column(head, justify="left" if words else "right", no_wrap=head != "configuration")
    styles = {facts.MEMORY_WORDS[verdict]: style for verdict, style in _MEMORY_STYLE.items()}
    for number, row in enumerate(rows, start=1):
        star = "*" if marked and number == marked + 1 else ""
        table.add_row(f"{star}{number}", *(prose(cell, styles.get(cell, "")) for cell in row))
    return table


def _choice_figures(choices: Sequence[Choice]) -> list[tuple[str, ...]]:
    slowest, against = max(choice.step_time for choice in choices), facts.against_first(choices)[1]
    return [
        (
            facts.aligned_time(choice.step_time, slowest),
            against[index],
            f"{choice.tokens_per_second_per_device:,.0f}",
            f"{100 * choice.mfu:.1f}",
            f"{choice.memory.peak / GIB:.1f}",
            facts.MEMORY_WORDS[choice.memory.verdict],
        )
        for index, choice in enumerate(choices)
    ]


def _memory_bars(choice: Choice) -> RenderableType:
    where = f" of pipeline rank {choice.memory.stage}" if choice.memory.stages > 1 else ""
    title = f"Memory{where} at its peak, in the {term_name(choice.memory.phase)} phase"
    return section(title, _bars(choice.memory.terms, _gib), *_stages(choice))


def _seconds_like(terms: Mapping[str, float]) -> Callable[[float], str]:
    largest = max(terms.values(), default=0.0)
    return lambda seconds: facts.aligned_time(seconds, largest)


def _gib(amount: float) -> str:
    return f"{amount / GIB:.2f} GiB"


def _bars(terms: dict[str, float], shown: Callable[[float], str]) -> RenderableType:
    table = WordTable.grid(
        Column(), Column(justify="right"), Column(justify="right"), Column(), padding=(0, 2, 0, 0)
    )
    parts = facts.parts(terms)
    most = max((part.share for part in parts), default=1.0)
    for part in parts:
        bar = _bar(part.share / most)
        table.add_row(prose(part.name), shown(part.amount), f"{100 * part.share:.1f} %", Text(bar, "cyan"))
    return table


def _bar(share: float, width: int = 24) -> str:
    """A bar of eighths of a column, or of # where the output cannot encode them; none of what is taken off."""
    if share < 0:
        return ""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    if not encoding.startswith("utf"):
        return "#" * max(1, round(share * width))
    eighths = max(1, round(share * width * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _stages(choice: Choice) -> list[RenderableType]:
    notes = [facts.logged_sentence(choice.memory)]
    blocks: list[RenderableType] = []
    if len(choice.memory.per_stage) > 1:
        stages, others = facts.largest_stages(choice.memory)
        rows = [(s.stages, str(s.layers), f"{s.peak / GIB:.1f}", term_name(s.phase)) for s in stages]
        table = listing(("pipeline rank", "layers", "peak GiB", "phase"), rows)
        table.columns[-1].justify = "left"
        blocks = [Text(""), table]
        notes += [others]
    return [
        *blocks,
        *(
            prose(note, "dim")
            for note in (*notes, facts.layers_sentence(choice), facts.split_sentence(choice))
            if note
        ),
    ]


def _space(plan: Plan) -> RenderableType:
    table = WordTable.grid(Column(), Column(justify="right"), padding=(0, 2, 0, 0))
    for line in proof.space_account(plan.search):
        label = f"  - {line.label}" if line.taken_away else line.label
        table.add_row(prose(label, "dim" if line.taken_away else ""), f"{line.candidates:,}")
    said = [proof.search_sentence(plan.search)]
    if plan.search.certificate is not None:
        said.insert(0, proof.proof_sentence(plan.search.certificate))
    return section("The space searched", table, *(prose(line, "dim") for line in said if line))
