# shellcheck shell=bash disable=SC2154
# Running installers for scripts/setup: output to a file, one line with the likely reason when one
# fails, disk checked beforehand. Sourced after steps.sh.

log_folder=$root/.cache/setup

# run_logged NAME WHAT COMMAND...: output to a file; one line with the likely reason when it fails.
run_logged() {
  local log=$log_folder/$1.log what=$2
  shift 2
  "$@" >"$log" 2>&1 </dev/null || fail "$what failed: $(likely_reason "$log"). Its output: $log"
}

likely_reason() {
  local log=$1
  if grep -qE 'No space left|Errno 28|enough free space' "$log"; then
    printf 'the disk is full'
  elif grep -qE 'Could not get lock|Unable to acquire .*lock' "$log"; then
    printf 'another package manager holds the lock; wait for it and run this again'
  elif grep -qE 'Temporary failure|Could(n.t| not) resolve|Name or service not known|NewConnectionError|Max retries|timed out|Network is unreachable|Connection (refused|reset)|Unable to connect|ProxyError|SSLError|Failed to fetch' "$log"; then
    printf 'no network, or the package server does not answer; run this again once it does'
  elif grep -qE 'Permission denied|are you root|Read-only file system' "$log"; then
    printf 'no rights to write'
  else
    grep -E '^(E:|ERROR|Error)' "$log" | tail -n 1 || tail -n 1 "$log"
  fi
}

# require_disk FOLDER GIGABYTES
require_disk() {
  local free_kb
  free_kb=$(df -Pk -- "$1" | awk 'NR == 2 {print $4}')
  [ "$free_kb" -ge $(($2 * 1000000)) ] ||
    fail "not enough disk: $1 has $((free_kb / 1000000)) GB free, $2 GB are needed"
}
