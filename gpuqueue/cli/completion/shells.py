"""How each shell asks what fits, and how it is answered: as click does it, but for whole words.

bash ends a word at ``=`` and ``:`` as well, and puts what is offered in the place of the last piece alone. So its own
line is read anew, and what stands there already is left out of the answer. The other shells replace the whole word:
``--user=ro`` is answered with ``--user=root``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete, split_arg_string

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_BASH = """\
%(complete_func)s() {
    local response type value

    response=$(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORD="$2" %(complete_var)s=bash_complete "$1")

    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done <<< "$response"
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


_FISH = """\
function %(complete_func)s
    set -l word (commandline -t)
    set -l option (string match --regex -- '^--[^=]+=' $word)
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) COMP_CWORD=$word %(prog_name)s)

    for completion in $response
        set -l metadata (string split --max 1 "," $completion)

        if test $metadata[1] = "dir"
            __fish_complete_directories $metadata[2] | string replace --regex -- "^" "$option"
        else if test $metadata[1] = "file"
            __fish_complete_path $metadata[2] | string replace --regex -- "^" "$option"
        else if test $metadata[1] = "plain"
            echo $metadata[2]
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _WholeWords(ShellComplete):
    """Answers with the whole word, the option's name included."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return what fits behind *args* in the place of *incomplete*."""
        option, equals, _ = incomplete.partition("=")
        found = super().get_completions(args, incomplete)
        if not equals or not option.startswith("-"):
            return found
        if not option.startswith("--"):  # -u=ro: the user would be called =ro
            return []
        for each in found:
            if each.type == "plain":
                each.value = f"{option}={each.value}"
        return found


class Bash(_WholeWords, BashComplete):
    """bash, which asks with its line up to the cursor, and with that end of it which an answer takes the place of."""

    source_template = _BASH
    #: What of the word stays where it is, in front of an answer.
    _stays = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one at the cursor, and that one."""
        line = os.environ.get("COMP_LINE")
        if line is None:  # it asks by a script that an older version has printed
            return super().get_completion_args()
        *before, word = _words(line)
        replaced = _words(os.environ.get("COMP_WORD", ""))[-1]
        self._stays = word.removesuffix(replaced) if word.endswith(replaced) else ""
        return before[1:], word

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return *item* as the script reads it."""
        return f"{item.type},{item.value.removeprefix(self._stays)}"


class Zsh(_WholeWords, ZshComplete):
    """zsh, in which a file may also stand behind an option's ``=``."""

    source_template = ZshComplete.source_template.replace(
        "_path_files", "[[ $PREFIX == --*=* ]] && compset -P '*='\n            _path_files"
    )


class Fish(_WholeWords, FishComplete):
    """fish, which is given a value with all of its commas, and files behind an option's ``=`` with the option."""

    source_template = _FISH


KINDS: dict[str, type[ShellComplete]] = {kind.name: kind for kind in (Bash, Zsh, Fish)}


def _words(line: str) -> list[str]:
    """Return the words of *line*, of which the last one goes on: it is empty behind a space."""
    *words, last = split_arg_string(f"{line}x")
    return [*words, last[:-1]]
