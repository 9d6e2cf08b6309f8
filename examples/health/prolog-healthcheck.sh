#!/usr/bin/env bash
# Makes an existing prolog script the check of the node health service: `healthcheck_path` of nvhcd.yaml.
#
# PROLOG_SCRIPT is the script. It gets the arguments of the request, such as --no-slurm, and fails by its exit code. The
# variables that Slurm sets for a prolog are not there: a script that needs them must do without, or be given them here.
set -uo pipefail

script="${PROLOG_SCRIPT:-/etc/slurm/prolog.sh}"
if [[ ! -x "$script" ]]; then
    echo "$script is no program" >&2
    exit 2
fi

"$script" "$@" >&2
code=$?
if [[ $code -eq 0 ]]; then
    printf '{"fail_count": 0, "failed_checks": []}\n'
else
    printf '{"fail_count": 1, "failed_checks": ["%s exited with %d"]}\n' "$(basename "$script")" "$code"
fi
exit "$code"
