#!/usr/bin/env bash
# Drains a node that ft_launcher has excluded, so that Slurm gives it to no other job: --ft-on-exclude examples/health/drain.sh
#
# The launcher sets NVRX_EXCLUDED_NODE and NVRX_EXCLUDE_REASON. Only an operator of Slurm may drain a node, or a program
# that sudo allows to the user of the job, with these variables:
#   ALL ALL=(root) NOPASSWD:SETENV: /usr/local/sbin/drain.sh
#   --ft-on-exclude "sudo --preserve-env=NVRX_EXCLUDED_NODE,NVRX_EXCLUDE_REASON,SLURMD_NODENAME /usr/local/sbin/drain.sh"
# Whoever may run it may drain any node: let it refuse one that runs no job of the caller (SUDO_USER), by squeue.
set -euo pipefail

node="${SLURMD_NODENAME:-${NVRX_EXCLUDED_NODE%%.*}}"
scontrol update "nodename=$node" state=drain "reason=nvrx: ${NVRX_EXCLUDE_REASON:0:200}"
