"""Completion scripts and protocols for bash, zsh and fish: click's, extended to complete ``--option=value`` words.

zsh and fish replace the whole word: the completion of ``--user=ro`` is ``--user=root``. bash also splits words at ``=``
and ``:`` and replaces only the last part. So its command line is parsed here, and the answer omits the parts of the
word that bash keeps.
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
    """Completes the whole word, including the option's name."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return the completions of *incomplete*, the word after *args*."""
        option, equals, _ = incomplete.partition("=")
        found = super().get_completions(args, incomplete)
        if not equals or not option.startswith("-"):
            return found
        if not option.startswith("--"):  # in -u=ro, click reads =ro as the value
            return []
        for each in found:
            if each.type == "plain":
                each.value = f"{option}={each.value}"
        return found


class Bash(_WholeWords, BashComplete):
    """Completion for bash, which passes its line up to the cursor and the part of it that the answer replaces."""

    source_template = _BASH
    #: Beginning of the word that bash keeps.
    _stays = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor's word, and the cursor's word."""
        *before, word = _words(os.environ["COMP_LINE"])
        replaced = _words(os.environ.get("COMP_WORD", ""))[-1]
        self._stays = word.removesuffix(replaced) if word.endswith(replaced) else ""
        return before[1:], word

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return *item* in the format of the completion script."""
        return f"{item.type},{item.value.removeprefix(self._stays)}"


class Zsh(_WholeWords, ZshComplete):
    """Completion for zsh, extended to complete files after an option's ``=``."""

    source_template = ZshComplete.source_template.replace(
        "_path_files", "[[ $PREFIX == --*=* ]] && compset -P '*='\n            _path_files"
    )


class Fish(_WholeWords, FishComplete):
    """Completion for fish, extended to complete values with commas, and files after an option's ``=``."""

    source_template = _FISH


KINDS: dict[str, type[ShellComplete]] = {kind.name: kind for kind in (Bash, Zsh, Fish)}


def _words(line: str) -> list[str]:
    """Return the words of *line*; the last one is incomplete, and empty after a space."""
    *words, last = split_arg_string(f"{line}x")
    return [*words, last[:-1]]
