# fish completion for tuner: tuner completion fish | source
function __tuner_complete
    set -l typed (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $typed[1])
    set -l answer ($program __complete $typed[2..-1] "$current" 2>/dev/null)
    for line in $answer[2..-1]
        echo $line
    end
    switch "$answer[1]"
        case files
            __fish_complete_path "$current"
        case directories
            __fish_complete_directories "$current"
    end
end
complete -c tuner -f -a '(__tuner_complete)'
