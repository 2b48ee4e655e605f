"""What would become of each state if a plan started from a snapshot. Driver; pure, reads nothing but metadata.

    restored   as it is                      new        the operator, or the state, is not in the snapshot
    converted  its type has evolved          dropped    nobody asks for it any more, and that was allowed
    moved      to another parallelism        refused    the job would not start; the finding says why

`plan_start` refuses what is refused here, before anything runs; `tidegate check` shows all of it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.errors import ConfigurationError
from tidegate.functions.process import has_timers
from tidegate.graph.plan import JobPlan, PlannedOperator
from tidegate.graph.specs import WindowSpec, keys_of, user_function_of
from tidegate.ids import EVENT_TIMERS, PROCESSING_TIMERS
from tidegate.savepoints.canonical_rows import key_type_named
from tidegate.state.declarations import Declaration, StoredList, StoredMap, declared_states
from tidegate.state.keys import holds_keys_of
from tidegate.storage.metadata import IN_FLIGHT, NOT_KEYED, CheckpointMetadata, OperatorInfo, StateInfo
from tidegate.types.evolution import Evolution, Fit, evolve
from tidegate.types.type_names import parse_type

_TIMERS = (EVENT_TIMERS, PROCESSING_TIMERS)


class Verdict(enum.Enum):
    RESTORED = "restored"
    CONVERTED = "converted"
    MOVED = "moved"
    NEW = "new"
    DROPPED = "dropped"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Finding:
    """One state of one operator; `state` "" for the operator as a whole."""

    uid: str
    operator: str
    state: str
    verdict: Verdict
    detail: str = ""


def check_restore(plan: JobPlan, metadata: CheckpointMetadata, allow_dropped_state: bool = False) -> list[Finding]:
    """Operators of the snapshot in its order, then those that are new."""
    planned = {operator.uid: operator for operator in plan.operators}
    findings: list[Finding] = []
    for info in metadata.operators:
        operator = planned.pop(info.uid, None)  # type: ignore[call-overload]
        if operator is None:
            findings += _without_operator(info, metadata, allow_dropped_state)
        else:
            findings += _operator(operator, info, metadata, allow_dropped_state)
    for operator in planned.values():
        for name in declared_states(user_function_of(operator.operator.spec)) or [""]:
            findings.append(Finding(operator.uid, operator.operator.name, name, Verdict.NEW, "begins empty"))
    return findings


def refuse(findings: list[Finding], metadata: CheckpointMetadata) -> None:
    """:raises ConfigurationError: for the first that is refused, naming all."""
    refused = [finding for finding in findings if finding.verdict is Verdict.REFUSED]
    if refused:
        first = refused[0]
        more = "" if len(refused) == 1 else f" ({len(refused) - 1} more: tidegate check shows all)"
        raise ConfigurationError(
            f"the job cannot start from checkpoint {metadata.checkpoint}: {first.detail}{more}",
            uid=first.uid,
            state=first.state,
        )


def changed_operators(findings: list[Finding]) -> set[str]:
    """Whose state is not restored as it is stored, so that nothing may be built on the stored files."""
    return {finding.uid for finding in findings if finding.verdict in (Verdict.CONVERTED, Verdict.DROPPED)}


def dropped_states(findings: list[Finding]) -> set[tuple[str, str]]:
    return {(finding.uid, finding.state) for finding in findings if finding.verdict is Verdict.DROPPED}


def _without_operator(info: OperatorInfo, metadata: CheckpointMetadata, allowed: bool) -> Iterator[Finding]:
    if not _holds_anything(info.uid, metadata):
        return  # nothing is lost with it
    detail = (
        f"the snapshot holds state of the operator {info.name!r} (uid {info.uid!r}), which is not in the job any more. "
        "Give the operator its old uid back, or drop its state with allow_dropped_state=True"
    )
    verdict = Verdict.DROPPED if allowed else Verdict.REFUSED
    yield Finding(info.uid, info.name, "", verdict, "the operator is gone" if allowed else detail)


def _operator(
    operator: PlannedOperator, info: OperatorInfo, metadata: CheckpointMetadata, allowed: bool
) -> Iterator[Finding]:
    name = operator.operator.name
    problem = _problem(operator, info)
    if problem:
        yield Finding(info.uid, name, "", Verdict.REFUSED, problem)
        return
    moved = operator.parallelism != info.parallelism
    how = Verdict.MOVED if moved else Verdict.RESTORED
    change = f"parallelism {info.parallelism} to {operator.parallelism}" if moved else ""
    declared = declared_states(user_function_of(operator.operator.spec))
    stored = {state.name: state for state in info.states}
    with_rows = _states_with_rows(info.uid, metadata)
    renamed = {d.renamed_from: d for d in declared.values() if d.renamed_from is not None and d.name not in stored}
    for state in stored.values():
        declaration = declared.get(state.name) or renamed.get(state.name)
        if declaration is None:
            if state.name in with_rows:
                yield _not_declared(info, name, state, allowed)
            continue
        evolution = evolution_of(state, declaration)
        if evolution.fit is Fit.INCOMPATIBLE:
            yield Finding(info.uid, name, state.name, Verdict.REFUSED, _unfit(info, state, declaration, evolution))
        elif evolution.fit is Fit.CONVERTED:
            detail = "; ".join([*evolution.notes, *([change] if moved else [])])
            yield Finding(info.uid, name, declaration.name, Verdict.CONVERTED, detail)
        else:
            yield Finding(info.uid, name, state.name, how, change)
    for state_name, declaration in declared.items():
        if state_name not in stored and declaration.renamed_from not in stored:
            yield Finding(info.uid, name, state_name, Verdict.NEW, "begins empty")
    yield from _timers(operator, info, with_rows, how, change, allowed)
    if not declared and not stored and _holds_anything(info.uid, metadata):
        yield Finding(info.uid, name, "", how, change)


def _problem(operator: PlannedOperator, info: OperatorInfo) -> str:
    if info.key_type is None:
        return ""
    explicit = operator.operator.max_parallelism
    if explicit is not None and explicit != info.max_parallelism:
        return (
            f"{operator.operator} had max_parallelism {info.max_parallelism} and has {explicit} now; its state is filed by "
            "that number. Set it back, or have every key hashed again: tg.Savepoint.load(path).edit()"
            f".set_max_parallelism({explicit})"
        )
    if operator.parallelism > info.max_parallelism:
        return (
            f"{operator.operator} is to have parallelism {operator.parallelism}, but its state is filed in "
            f"{info.max_parallelism} key groups. Use at most {info.max_parallelism}, or have every key hashed again: "
            "tg.Savepoint.load(path).edit().set_max_parallelism(...)"
        )
    keys = keys_of(operator.operator.spec)
    if not keys or not holds_keys_of(keys[0].key_type(), key_type_named(info.key_type)):
        now = keys[0].key_type().name if keys else "none"
        old = "typing.Any" if info.key_type == "any" else info.key_type
        return (
            f"{operator.operator} had keys of type {info.key_type} and has {now} now; the stored state could not be found by "
            f"them. Key by the old type (of two connected streams both): key_by(..., key_type={old})"
        )
    return ""


def evolution_of(state: StateInfo, declaration: Declaration) -> Evolution:
    """How a stored state becomes the declared one."""
    if state.kind != declaration.kind:
        return Evolution(Fit.INCOMPATIBLE, (f"{state.kind} state cannot become {declaration.kind} state",))
    found = _evolution_of_type(state, declaration)
    if state.name == declaration.name or found.fit is Fit.INCOMPATIBLE:
        return found
    return Evolution(Fit.CONVERTED, (f"renamed from {state.name!r}", *found.notes))


def _evolution_of_type(state: StateInfo, declaration: Declaration) -> Evolution:
    if state.type == declaration.type_name:
        return Evolution(Fit.SAME)
    if isinstance(declaration, StoredMap):
        key, value = parse_type(state.type).parts
        if key.text != declaration.key_type.name:
            return Evolution(Fit.INCOMPATIBLE, (f"map keys: {key} cannot become {declaration.key_type.name}",))
        return evolve(value.text, declaration.value_type)
    stored = parse_type(state.type).parts[0].text if isinstance(declaration, StoredList) else state.type
    return evolve(stored, declaration.value_type)


def _unfit(info: OperatorInfo, state: StateInfo, declaration: Declaration, evolution: Evolution) -> str:
    return (
        f"state {state.name!r} of {info.name!r} (uid {info.uid!r}) was stored as {state.kind} state of {state.type} and is "
        f"declared as {declaration.kind} state of {declaration.type_name} ({declaration.line}): "
        f"{'; '.join(evolution.notes)}. Declare the type that is stored, or give the new state another name"
    )


def _not_declared(info: OperatorInfo, name: str, state: StateInfo, allowed: bool) -> Finding:
    if allowed:
        return Finding(info.uid, name, state.name, Verdict.DROPPED, "not declared any more")
    detail = (
        f"the snapshot holds the {state.kind} state {state.name!r} of {info.name!r} (uid {info.uid!r}), which the function "
        "does not declare any more. Declare it again, say which state it is now (renamed_from="
        f"{state.name!r}), or drop it with allow_dropped_state=True"
    )
    return Finding(info.uid, name, state.name, Verdict.REFUSED, detail)


def _timers(
    operator: PlannedOperator, info: OperatorInfo, with_rows: set[str], how: Verdict, change: str, allowed: bool
) -> Iterator[Finding]:
    spec = operator.operator.spec
    fires = isinstance(spec, WindowSpec) or has_timers(user_function_of(spec))
    for name in _TIMERS:
        if name in with_rows and fires:
            yield Finding(info.uid, operator.operator.name, name, how, change)
        elif name in with_rows:
            yield _not_declared(info, operator.operator.name, StateInfo(name, "timer", "int"), allowed)


def _states_with_rows(uid: str, metadata: CheckpointMetadata) -> set[str]:
    """By the sections; of state that is kept as files, every declared one may have rows."""
    names = {
        section.state
        for slot in metadata.slots
        for file in slot.files()
        for section in file.sections
        if section.uid == uid and section.key_group != NOT_KEYED and section.rows
    }
    if any(files.uid == uid and files.files for slot in metadata.slots for files in slot.states):
        names |= {state.name for info in metadata.operators if info.uid == uid for state in info.states}
    return names


def _holds_anything(uid: str, metadata: CheckpointMetadata) -> bool:
    for slot in metadata.slots:
        if any(section.uid == uid and section.kind != IN_FLIGHT for file in slot.files() for section in file.sections):
            return True
        if any(files.uid == uid and files.files for files in slot.states):
            return True
        if any(subtask.uid == uid and (subtask.splits or subtask.committables) for subtask in slot.subtasks):
            return True
    return False
