# bash completion for tuner: source <(tuner completion bash)
_tuner() {
    local cur=${COMP_WORDS[COMP_CWORD]} line kind
    local -a answer
    mapfile -t answer < <("${COMP_WORDS[0]/#\~/$HOME}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    kind=${answer[0]}
    COMPREPLY=()
    [[ $cur == = ]] && cur=
    for line in "${answer[@]:1}"; do
        COMPREPLY+=("$(printf %q "${line%%$'\t'*}")")
    done
    [[ $kind == files || $kind == directories ]] || return
    compopt -o filenames
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <([[ $kind == files ]] && compgen -f -- "$cur" || compgen -d -- "$cur")
}
complete -F _tuner tuner
