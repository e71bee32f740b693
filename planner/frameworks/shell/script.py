"""Which options does a user's launch script pass? Reads plain words, or a bash script that builds them.

Understands assignments, declare, arrays, +=, $NAME, ${NAME}, ${NAME:-default}, : "${NAME:=default}", $((2*4)), `read`
of a text, `set --` and the script's own arguments, conditions on known values and the first round of a loop
(`branches.py`), $([ a = b ] && echo words), here-documents (`here_documents.py`) and line continuations: what launch
scripts are made of. Left out: everything else a shell can do (other commands in place of words, functions' arguments);
words that need it stay as they are. Nothing is ever executed.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from planner.errors import InputError
from planner.frameworks.shell.branches import Branches, arithmetic, truth
from planner.frameworks.shell.here_documents import (
    HereDocument,
    document_of,
    is_run,
    without_documents,
    written_to,
)

_ASSIGNMENT: Final = re.compile(
    r"(?:(?:export|declare|local|readonly|typeset)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL
)
_KEYWORDS: Final = re.compile(r"(?:export|declare|local|readonly|typeset)\s+(?:-\w+\s+)*")
_ENV: Final = re.compile(r"env\s+(?=[A-Za-z_]\w*=)")
_PAIR: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_DEFAULT: Final = re.compile(r"\$\{([A-Za-z_]\w*):?=(.*)\}", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$\{(\w+|[@*#])(?::?[-=]([^${}]*))?\}|\$([A-Za-z_]\w*|[0-9@*#])")
_ARRAY: Final = re.compile(r"\"?\$\{(\w+)\[[@*]\]\}\"?")
_SUM: Final = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_COMMAND: Final = re.compile(r"\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`")
_CHOICE: Final = re.compile(
    r"\$\(\s*(\[\[?\s[^()]+?\s\]\]?)\s*&&\s*echo\s([^()|&;]*)(?:\|\|\s*echo\s([^()|&;]*))?\)"
)
_IS_SET: Final = re.compile(r"(?<=\s)-v\s+([A-Za-z_]\w*)(?=\s)")
_READ: Final = re.compile(
    r"(?:IFS=(\S+)\s+)?read\s+((?:-[rsa]+\s+)*)([A-Za-z_]\w*(?: +[A-Za-z_]\w*)*)\s*<<<\s*(.+)", re.DOTALL
)
_REFERENCE: Final = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_DIGITS: Final = re.compile(r"[0-9]{1,30}")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_SBATCH: Final = re.compile(r"^#SBATCH\s+(?:--([\w-]+)(?:=|\s+)|-([NnG])\s*)(\S+)", re.MULTILINE)
# Commands whose words are not options of the training program.
_ASIDE: Final = frozenset(
    (
        "echo", "printf", "mkdir", "cd", "source", ".", "unset", "shift", "exit", "return", "cat", "rm", "ls", "cp",
        "mv", "ln", "sleep", "trap", "module", "ulimit", "test", "[", "[[", "((", "read", "pip", "git", "wget", "curl",
        "tee", "declare", "local", "readonly", "conda",
    )
)  # fmt: skip
_LARGEST: Final = 2_000_000  # characters, of a text and of all that its statements come to
_LONGEST: Final = 200_000  # characters of a statement
COMMAND_END: Final = ";"
_DEEPEST: Final = 4  # scripts written by scripts
_PLAIN: Final = "give the arguments themselves, without the script that builds them"
_SETTINGS: Final = (".json", ".yaml", ".yml", ".toml", ".md", ".txt")


@dataclass
class Script:
    """What a script does: `words` of its commands, `COMMAND_END` between them, variables filled in; its `variables`
    as text; `files` that it writes by here-documents; scripts that it takes in, `sourced`; `loops` read once only;
    `conditions` not known to hold, all of whose branches are read."""

    words: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    sourced: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    scripts: list[str] = field(
        default_factory=list
    )  # that it writes by here-documents, and that are followed
    # variables set for a command alone, by the place of its COMMAND_END among the words
    environments: dict[int, dict[str, str]] = field(default_factory=dict)
    built: int = 0  # characters that statements came to so far

    def follow(self, text: str, depth: int = 0) -> Script:
        """Take in the statements of a text. Raises `InputError` for one that grows beyond what a launch script is."""
        branches = Branches()
        if not depth:
            self.variables = slurm_variables(text) | self.variables
        plain, documents = without_documents(text[:_LARGEST])
        for written in _statements(plain):
            _require_short(written)
            try:
                statement = branches.enter(written, self._condition)
            except RecursionError:
                must = "a statement must hold few keywords and case patterns one behind another"
                raise InputError(must, _start_of(written), _PLAIN) from None
            statement = _ENV.sub("", statement.strip())
            match = _ASSIGNMENT.fullmatch(statement)
            number = document_of(statement)
            if number is not None and match is None:
                self._take(statement, documents[number], depth)
            elif (read := _READ.fullmatch(statement)) is not None:
                self._read(*read.groups())
            elif match is not None:
                self._assign(statement, *match.groups())
            elif statement.startswith(": "):
                self._defaults(statement)
            elif statement.startswith("set -- "):
                self._own_arguments(_words(self._filled(statement))[2:])
            elif statement and statement.split()[0] in ("source", "."):
                self.sourced += self._filled(statement).split()[1:]
            elif statement and statement.split()[0] not in _ASIDE:
                said = self._filled(statement)
                if statement.startswith("eval "):  # which takes its words apart once more
                    said = " ".join(_words(said)[1:])
                self.words += [COMMAND_END, *_split(said)]
        self.loops += branches.loops
        self.conditions += branches.conditions
        return self

    def _filled(self, text: str) -> str:
        """Text with its variables' values, as `expand` has it. Raises `InputError` where a script builds too much."""
        filled = expand(_CHOICE.sub(self._chosen, text), self.variables)
        self.built += len(filled)
        if self.built > _LARGEST:
            must = f"what the statements of a script come to must stay below {_LARGEST:,} characters"
            raise InputError(must, _start_of(text), _PLAIN)
        return filled

    def _chosen(self, choice: re.Match[str]) -> str:
        """What `$([ a = b ] && echo words)` prints; its words where the condition is not known."""
        holds = truth(self._condition(choice[1]))
        if holds is None:
            self.conditions.append(choice[1])
        return " ".join(_words((choice[3] or "") if holds is False else choice[2]))

    def _condition(self, text: str) -> str:
        """A condition with its variables' values, unknown ones empty."""
        if text.lstrip().startswith("["):
            text = _IS_SET.sub(lambda name: f"-n '{'set' * (name[1] in self.variables)}'", text)
        return _VARIABLE.sub("", self._filled(text))

    def _own_arguments(self, words: list[str]) -> None:
        """Arguments of the script itself: $1, ${10}, $@ and their number."""
        numbered = {str(i): word for i, word in enumerate(words, 1)}
        self.variables |= numbered | {"#": str(len(words)), "@": shlex.join(words), "*": shlex.join(words)}

    def _defaults(self, statement: str) -> None:
        """`: "${NAME:=value}"`: the value of a variable that has none yet."""
        for word in _words(statement):
            if (match := _DEFAULT.fullmatch(word)) is not None and not self.variables.get(match[1]):
                self.variables[match[1]] = self._filled(match[2])

    def _read(self, separator: str | None, flags: str, names: str, text: str) -> None:
        """`read` of a text: one part for each name, the last taking what is left."""
        said = _unquoted(self._filled(text))
        mark = (separator or "").strip("\"'") or None
        if "a" in flags:  # into an array
            self.variables[names.strip()] = " ".join(said.split(mark))
            return
        parts = said.split(mark, len(names.split()) - 1)
        self.variables |= dict(zip(names.split(), [part.strip() for part in parts], strict=False))

    def _take(self, statement: str, document: HereDocument, depth: int) -> None:
        """A here-document: run by a shell, or written to a file."""
        body = document.body if document.literal else self._filled(document.body)
        target = self._filled(written_to(statement))
        if not is_run(statement):
            self.files |= {target: body} if target else {}
            return
        self.scripts.append(target)
        if depth < _DEEPEST:
            self.follow(body.replace("\\$", "$"), depth + 1)

    def _assign(self, written: str, name: str, plus: str, value: str) -> None:
        value = value.strip()
        inner = value[1:-1] if value.startswith("(") and value.endswith(")") else value
        tokens = _words(_COMMAND.sub("1", _SUM.sub("1", inner)))
        if value.startswith("(") or len(tokens) <= 1:
            plain = inner if value.startswith("(") else _unquoted(inner)
            filled = self._filled(plain)
            if value.startswith("("):
                filled = " ".join(filled.split())
            before = self.variables.get(name, "")
            self.variables[name] = (before + " " + filled).strip() if plus else filled
            _require_short(written, len(self.variables[name]))
        else:
            self._assign_several(written)

    def _assign_several(self, statement: str) -> None:
        """`A=1 B=2`, exported or not; before a command they are set for that command alone."""
        plain = _KEYWORDS.sub("", statement, count=1)
        words = _words(plain)
        pairs = [pair for word in words if (pair := _PAIR.fullmatch(word))]
        if len(pairs) == len(words) or plain != statement:
            for pair in pairs:
                self.variables[pair[1]] = self._filled(pair[2])
            return
        words = _words(self._filled(plain))
        own = list(itertools.takewhile(_PAIR.fullmatch, words))
        self.environments[len(self.words)] = {
            pair[1]: pair[2] for word in own if (pair := _PAIR.fullmatch(word))
        }
        self.words += [COMMAND_END, *_split(shlex.join(words[len(own) :]))]


def commands_of(words: Iterable[str]) -> list[list[str]]:
    """Words by the command that they are of."""
    groups = itertools.groupby(words, lambda word: word == COMMAND_END)
    return [list(command) for end, command in groups if not end]


def unclear_said(files: Mapping[str, str]) -> list[str]:
    """Which loops of shell scripts are read for one of their rounds alone, and which conditions are not known."""
    scripts = [text for name, text in files.items() if is_script(name) and not name.endswith(".py")]
    script = Script().follow("\n".join(scripts))
    rounds = [f"of a loop only its first round is read, {first}" for first in dict.fromkeys(script.loops)]
    unknown = "no file given says whether {} holds: all its branches are read, one after the other"
    return [*rounds, *(unknown.format(condition) for condition in dict.fromkeys(script.conditions))]


def is_script(name: str) -> bool:
    """Can a file of this name hold commands? Whatever ends otherwise than settings do."""
    return not name.endswith(_SETTINGS)


def holds_variables(name: str, text: str) -> bool:
    """Is it a script that only sets variables for another one to take in?"""
    return is_script(name) and not name.endswith(".py") and not commands_of(Script().follow(text).words)


def _unquoted(text: str) -> str:
    """A single word without its quotes; arithmetic and commands in it stay whole."""
    if _SUM.search(text) or _COMMAND.search(text):
        return text.strip("\"'")
    words = _words(text)
    return words[0] if words else ""


def _slurm_asked(text: str) -> dict[str, str]:
    """What #SBATCH lines ask for, by long name."""
    short_names = {"N": "nodes", "n": "ntasks", "G": "gpus"}
    return {name or short_names[short]: value for name, short, value in _SBATCH.findall(text)}


def slurm_variables(text: str) -> dict[str, str]:
    """Variables that Slurm sets for a batch script (sbatch(1), output variables), as far as its #SBATCH lines say."""
    asked = _slurm_asked(text)
    nodes, tasks = asked.get("nodes", "").split("-")[0], asked.get("ntasks-per-node", "")
    each = (asked.get("gpus-per-node") or asked.get("gres", "")).split("(")[0].rpartition(":")[2]
    total = asked.get("ntasks") or str(product(nodes, tasks) or "")
    found = {
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_GPUS_ON_NODE": each, "SLURM_GPUS_PER_NODE": each,
        "SLURM_NTASKS_PER_NODE": tasks, "SLURM_NTASKS": total, "SLURM_NPROCS": total,
    }  # fmt: skip
    return {name: value for name, value in found.items() if whole(value) is not None}


def slurm_devices(text: str) -> int | None:
    """Accelerators that a batch script's #SBATCH lines ask for; None where they don't say."""
    asked = _slurm_asked(text)
    nodes, total = asked.get("nodes", "1").split("-")[0], asked.get("gpus", "").rpartition(":")[2]
    if (count := whole(total)) is not None:
        return count
    each = asked.get("gpus-per-node") or asked.get("gres") or asked.get("ntasks-per-node") or ""
    each = each.split("(")[0].rpartition(":")[2]
    return product(nodes, each) if "nodes" in asked else None


def product(nodes: str, each: str) -> int | None:
    """Devices of so many nodes of so many; None where one of both is no number."""
    hosts, devices = whole(nodes), whole(each)
    return hosts * devices if hosts is not None and devices is not None else None


def whole(text: str) -> int | None:
    """The number that plain digits stand for; None for other words and for numbers no launcher means."""
    return int(text) if _DIGITS.fullmatch(text) else None


def options_of(text: str) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    """Options (--name and its words) of a script or of plain words, and the variables that were set.

    Options that no command uses (an array that is only assigned) count where no command has any.
    """
    script = Script().follow(text)
    options = group_options(script.words)
    if not options:
        for value in script.variables.values():
            options += group_options(_split(value))
    return options, script.variables


def program_options(text: str, known: Collection[str]) -> list[tuple[str, ...]]:
    """Options of the training program alone: those behind its name in the command that has any of `known`.

    All options where no command names a program (a plain list of arguments).
    """
    for command in reversed(commands_of(Script().follow(text).words)):
        names = [i for i, word in enumerate(command) if word.endswith(".py") or word == "-m"]
        for at in names:
            options = group_options(command[at + 1 :])
            if any(option[0] in known for option in options):
                return options
    return options_of(text)[0]


def group_options(words: Iterable[str]) -> list[tuple[str, ...]]:
    """Words gathered behind the option that precedes them; `--name=value` is split."""
    options: list[list[str]] = []
    inside = False
    for word in words:
        if word == COMMAND_END:
            inside = False
        elif word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            options.append([name, value] if equals else [name])
            inside = True
        elif inside:
            options[-1].append(word)
    return [tuple(option) for option in options]


def _statements(text: str) -> list[str]:
    """Statements of a script: split at line ends and semicolons that are neither quoted nor inside parentheses."""
    statements: list[str] = []
    current: list[str] = []
    quote, last, depth, skip = "", "", 0, False
    for letter in text.replace("\\\r\n", "\\\n") + "\n":
        if skip:  # a comment ends with its line, whatever stands last in it
            skip = letter != "\n"
        if skip:
            continue
        if letter == "\n" and last == "\\" and quote != "'":  # the line goes on
            current[-1] = last = " "
            continue
        if quote:
            escaped = quote == '"' and last == "\\"
            quote = "" if letter == quote and not escaped else quote
        elif letter in "\"'" and last != "\\":
            quote = letter
        elif letter == "#" and (not last or last.isspace()):
            skip = True
            continue
        elif letter in "()":
            depth = max(depth + (1 if letter == "(" else -1), 0)
        elif letter in "\n;" and depth == 0:
            statements.append("".join(current).strip())
            current, last = [], ""
            continue
        current.append(letter)
        last = letter
    statements.append("".join(current).strip())
    return [statement for statement in statements if statement]


def _start_of(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."


def _require_short(statement: str, length: int = 0) -> None:
    """Raise `InputError` for a statement, or what of it is `length` characters, that no launch script has."""
    if max(len(statement), length) > _LONGEST:
        must = f"a statement of a script must stay below {_LONGEST:,} characters, its variables filled in"
        raise InputError(must, _start_of(statement), _PLAIN)


def expand(text: str, variables: dict[str, str]) -> str:
    """Variables replaced by their values, to a small depth; unknown ones stay. Raises `InputError` for too many."""
    taken = 0

    def put(word: str) -> str:
        nonlocal taken
        taken += len(word)
        _require_short(text, taken)
        return word

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if name in variables:
            return put(variables[name])
        return match[2] if match[2] is not None else match[0]

    for _ in range(8):
        taken = 0
        # an array stands for its words with their own quotes
        filled = _ARRAY.sub(lambda match: put(variables.get(match[1], match[0])), text)
        filled = _VARIABLE.sub(value, filled)
        filled = _SUM.sub(lambda match: _sum(match, variables), filled)
        _require_short(filled)
        if filled == text:
            break
        text = filled
    return text


def _sum(match: re.Match[str], variables: dict[str, str]) -> str:
    """The value of $((...)), in which names stand for variables; the text itself where it is not known."""
    named = _REFERENCE.sub(lambda reference: reference[1], match[1])
    inside = _NAME.sub(lambda name: variables.get(name[0], name[0]), named)
    value = arithmetic(inside)
    return match[0] if value is None else str(value)


def _words(text: str) -> list[str]:
    """Words of a line; text that no shell could split is split at spaces."""
    try:
        return shlex.split(text)  # without comments, which end with statements
    except ValueError:
        return text.split()


def _split(text: str) -> list[str]:
    """Words of a line, those of a quoted group of options apart."""
    return [part for word in _words(text) for part in (word.split() if " --" in f" {word}" else [word])]
