"""Shell completion: `tidegate completion bash`. The shells' scripts only ask `tidegate complete`, which knows the commands. Any
machine; pure but for the names of running jobs.

    bash:  source <(tidegate completion bash)       zsh:  source <(tidegate completion zsh)
    fish:  tidegate completion fish | source
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

SCRIPTS = {
    "bash": """\
_tidegate() {
    local IFS=$'\\n'
    COMPREPLY=($(tidegate complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    if [ ${#COMPREPLY[@]} -eq 0 ]; then compopt -o default; fi
    if [[ ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
}
complete -F _tidegate tidegate
""",
    "zsh": """\
#compdef tidegate
_tidegate() {
    local -a found
    found=("${(@f)$(tidegate complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ "${found[1]}" == *= ]]; then compadd -S '' -a found
    elif [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
compdef _tidegate tidegate
""",
    "fish": """\
function __tidegate_complete
    set -l words (commandline -opc) (commandline -ct)
    tidegate complete -- $words[2..-1] 2>/dev/null
end
complete -c tidegate -a '(__tidegate_complete)'
""",
}


def add_completion(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    shell = commands.add_parser(
        "completion", help="a script for your shell", description="Print the completion script of a shell."
    )
    shell.add_argument("shell", choices=sorted(SCRIPTS))
    shell.set_defaults(run=_print_script)


def _print_script(options: argparse.Namespace) -> int:
    print(SCRIPTS[options.shell], end="")
    return 0


def print_candidates(parser: argparse.ArgumentParser, words: list[str]) -> int:
    """`tidegate complete -- WORDS`."""
    print("\n".join(candidates(parser, words, running_names)))
    return 0


def candidates(parser: argparse.ArgumentParser, words: list[str], job_names: Callable[[], list[str]]) -> list[str]:
    """What may stand in the place of the last word. Empty: the shell offers files."""
    *before, current = words or [""]
    for word in before:
        inner = _subparsers(parser)
        if inner is not None and word in inner.choices:
            parser = inner.choices[word]
    inner = _subparsers(parser)
    options = {name: action for action in parser._actions for name in action.option_strings}
    waiting = options.get(before[-1]) if before else None
    if "-D" in options and (current.startswith("-D") or before[-1:] == ["-D"]):
        found = [f"{current[:2] if current.startswith('-D') else ''}{key}=" for key in setting_keys()]
    elif waiting is not None and waiting.nargs != 0:  # the last word is its value
        found = list(map(str, waiting.choices or ()))
    elif current.startswith("-"):
        found = [name for name in options if name.startswith("--")]
    elif inner is not None:
        listed = {action.dest for action in inner._choices_actions}
        found = [name for name in inner.choices if name in listed]
    elif any(action.dest == "job" for action in parser._actions):
        found = job_names()
    else:
        found = [
            str(choice) for action in parser._actions if not action.option_strings for choice in action.choices or ()
        ]
    return sorted(word for word in found if word.startswith(current))


def _subparsers(
    parser: argparse.ArgumentParser,
) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    return next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)


def setting_keys() -> list[str]:
    """What -D takes, by the names that are not older ones."""
    from tidegate.cli.options import FIXED, OPTIONS

    return [*(option.key.name for option in OPTIONS), *(fixed.key for fixed in FIXED)]


def running_names() -> list[str]:
    from tidegate.rest.registry import entries

    return [entry.name for entry in entries()]
