"""`completion`: the script by which a shell completes the program's commands, options, choices and names.

The scripts call the program that is being typed, by whatever path, with click's variables; what it says on stderr is not shown.
"""

from __future__ import annotations

import sys
from typing import Final

import click

from userspace_cni.cli.command_line import ProgramCommand

_BASH: Final = """\
# completion of userspace-cni in bash: source <(userspace-cni completion bash)
_userspace_cni_completion() {
    local IFS=$'\\n' line program=${1/#\\~\\//$HOME/}
    COMPREPLY=()
    while read -r line; do
        case ${line%%,*} in
            file) compopt -o default 2>/dev/null ;;
            dir) compopt -o dirnames 2>/dev/null ;;
            *) COMPREPLY+=("${line#*,}") ;;
        esac
    done < <(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD _USERSPACE_CNI_COMPLETE=bash_complete "$program" 2>/dev/null)
}
complete -F _userspace_cni_completion userspace-cni
"""
_ZSH: Final = """\
#compdef userspace-cni
# completion of userspace-cni in zsh, after compinit: source <(userspace-cni completion zsh)
# or this file as _userspace-cni in fpath
_userspace_cni() {
    local -a lines plain described
    local kind value help program=${${(Q)words[1]}/#\\~\\//$HOME/}
    local -x COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT - 1)) _USERSPACE_CNI_COMPLETE=zsh_complete
    lines=("${(@f)$("$program" 2>/dev/null)}")
    for kind value help in "${lines[@]}"; do
        case $kind in
            file) _files ;;
            dir) _files -/ ;;
            plain) if [[ $help == _ ]]; then plain+=("$value"); else described+=("$value:$help"); fi ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described
    (( $#plain )) && compadd -V unsorted -a plain
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _userspace_cni "$@"
else
    compdef _userspace_cni userspace-cni
fi
"""
_FISH: Final = """\
# completion of userspace-cni in fish: userspace-cni completion fish | source; or this file in ~/.config/fish/completions
function __userspace_cni_completion
    set -l typed (commandline -opc)
    set -l program (string replace -r '^~/' "$HOME/" -- $typed[1])
    set -lx COMP_WORDS (commandline -cp)
    set -lx COMP_CWORD (commandline -t)
    set -lx _USERSPACE_CNI_COMPLETE fish_complete
    for line in ($program 2>/dev/null)
        set -l parts (string split -m 1 , -- $line)
        switch $parts[1]
            case file
                __fish_complete_path $parts[2]
            case dir
                __fish_complete_directories $parts[2]
            case '*'
                echo $parts[2]
        end
    end
end
complete --no-files --command userspace-cni --arguments '(__userspace_cni_completion)'
"""
SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@click.command(
    "completion",
    cls=ProgramCommand,
    examples=(
        "source <(userspace-cni completion bash)",
        "source <(userspace-cni completion zsh)",
        "userspace-cni completion fish | source",
    ),
)
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
def completion_command(shell: str) -> None:
    """Print the script by which a shell completes commands, options, their values, and names on this node.

    Names are those of attachments, pods, bridges, networks, provider networks, NICs and settings. They are read from records,
    settings and directories: no key waits for a switch or an agent that hangs. Without the right to read the records there are
    no names. To have it in each shell, put the line into ~/.bashrc or ~/.zshrc, or the script where the shell looks for it.
    """
    sys.stdout.write(SCRIPTS[shell])
