"""What the doctor found: one line per look, and the whole of it as text or JSON."""

import shlex
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tensorlease.doctor.trials import Outcome

State = Literal["ok", "note", "PROBLEM"]
#: Columns of the state and of the subject.
_STATE_WIDTH = 8
_SUBJECT_WIDTH = 15


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    #: What it is about: `memlock`, `master`, ...
    subject: str
    state: State
    #: One sentence.
    message: str
    #: The line that mends it; every problem has one.
    fix: str | None = None

    def __post_init__(self) -> None:
        if self.state == "PROBLEM" and not self.fix:
            raise ValueError(f"the problem {self.subject!r} says nothing about how to mend it")

    def lines(self) -> str:
        text = f"{self.state:<{_STATE_WIDTH}} {self.subject:<{_SUBJECT_WIDTH}} {self.message}"
        if self.fix is None:
            return text
        return f"{text}\n{'':<{_STATE_WIDTH}} {'':<{_SUBJECT_WIDTH}} fix: {self.fix}"


def fine(subject: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(subject, "ok", message)


def note(subject: str, message: str, fix: str | None = None) -> Finding:
    """Good to know; nothing that the URL needs is missing."""
    return Finding(subject, "note", message, fix)


def problem(subject: str, message: str, fix: str) -> Finding:
    """A store with this URL would not work, or not as it should."""
    return Finding(subject, "PROBLEM", message, fix)


def needed_or_not(needed: bool, subject: str, message: str, fix: str) -> Finding:
    """A problem where the URL needs it, else a note."""
    return problem(subject, message, fix) if needed else note(subject, message, fix)


def not_seen(subject: str, needed: bool, url: str, trial: Outcome) -> Finding:
    """A trial that hung: what it looks at hangs, or the machine is too busy to tell."""
    fix = f"tensorlease doctor {shlex.quote(url)}  # again, when the machine is less busy; if it stays, what it tries hangs"
    return needed_or_not(needed, subject, f"The trial told nothing: {trial.message}.", fix)


@dataclass(frozen=True)
class Report:
    """Everything that was looked at for one URL."""

    version: str
    url: str
    max_bytes: int
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> int:
        return sum(finding.state == "PROBLEM" for finding in self.findings)

    def text(self) -> str:
        """The problems, all other findings, and the verdict."""
        counted = {0: "no problem", 1: "1 problem"}.get(self.problems, f"{self.problems} problems")
        ordered = sorted(self.findings, key=lambda finding: finding.state != "PROBLEM")
        lines = [f"tensorlease {self.version}, {self.url}", *(finding.lines() for finding in ordered)]
        return "\n".join([*lines, f"{counted} for {self.url}"])

    def as_json(self) -> dict[str, Any]:
        """Names carry their unit; `fix` is null where there is nothing to mend."""
        findings = [asdict(finding) for finding in self.findings]
        about = {"version": self.version, "url": self.url, "max_bytes": self.max_bytes}
        return {**about, "problems": self.problems, "findings": findings}
