#compdef tuner
# zsh completion for tuner: source <(tuner completion zsh), or a file _tuner in a folder of $fpath
_tuner() {
    local -a answer candidates
    local line kind
    answer=("${(@f)$("${(Q)words[1]/#\~/$HOME}" __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    kind=$answer[1]
    for line in "${(@)answer[2,-1]}"; do
        [[ -n $line ]] && candidates+=("${${line%%$'\t'*}//:/\\:}${${line#*$'\t'}:+:${line#*$'\t'}}")
    done
    (( $#candidates )) && _describe -V tuner candidates -Q
    case $kind in
        files) _files ;;
        directories) _files -/ ;;
    esac
}
if [[ $funcstack[1] == _tuner ]]; then _tuner "$@"; else compdef _tuner tuner; fi
