# shellcheck shell=bash disable=SC2154
# System packages for scripts/setup: compares third_party/debian-packages.txt with what dpkg has and
# installs the rest by apt. Sourced after steps.sh and install.sh.

packages_file=$root/third_party/debian-packages.txt
browser_file=$root/third_party/debian-browser.txt

installed_version() {
  dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$1" 2>/dev/null | sed -n 's/^installed //p' || true
}

offered_version() { apt-cache policy "$1" | sed -n 's/^  Candidate: //p' | grep -v '(none)' || true; }

at_least() { [ -n "$1" ] && dpkg --compare-versions "$1" ge "$2"; }

# first_alternative VERSION_OF LINE: the first "name version" of LINE whose version, as the function
# VERSION_OF tells it, is new enough. Prints its name; fails when there is none.
first_alternative() {
  local version_of=$1 alternative name minimum
  while read -r -d '|' alternative; do
    read -r name minimum <<<"$alternative"
    if at_least "$("$version_of" "$name")" "$minimum"; then
      printf '%s' "$name"
      return 0
    fi
  done <<<"$2|"
  return 1
}

# unmet_packages FILE: the lines of it that nothing installed satisfies.
unmet_packages() {
  local line
  sed -e 's/#.*//' -e '/^ *$/d' "$1" | while read -r line; do
    first_alternative installed_version "$line" >/dev/null || printf '%s\n' "$line"
  done
}

as_root() {
  if [ "$EUID" -eq 0 ]; then "$@"; else sudo -- "$@"; fi
}

require_root() {
  [ "$EUID" -ne 0 ] || return 0
  local wanted=$1
  command -v sudo >/dev/null && sudo -v ||
    fail "no rights: installing system packages needs root; have an administrator install: $wanted"
}

apt() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 \
    -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@"
}

# install_packages LINE...: each a line of the packages file.
install_packages() {
  local line name names=()
  require_root "$(printf '%s, ' "$@" | sed 's/, $//')"
  say "system packages: refreshing apt's lists"
  if [ -n "$(dpkg --audit)" ]; then
    run_logged dpkg "finishing an interrupted dpkg" as_root dpkg --configure -a
  fi
  # A foreign repository that is down must not stop us; what matters is what apt offers afterwards.
  apt update >"$log_folder/apt-update.log" 2>&1 </dev/null ||
    say "apt-get update complained ($log_folder/apt-update.log); going on with the lists there are"
  for line in "$@"; do
    name=$(first_alternative offered_version "$line") ||
      fail "apt offers no '$line' (name and minimum version): $(unoffered_reason "$line")"
    names+=("$name")
  done
  say "system packages: installing ${names[*]}"
  run_logged apt-install "apt-get install" apt install --no-install-recommends "${names[@]}"
}

unoffered_reason() {
  local name=${1%% *} offered
  offered=$(offered_version "$name")
  if [ -n "$offered" ]; then
    printf 'it has %s %s; Debian 12, Ubuntu 22.04 and later are supported' "$name" "$offered"
  else
    likely_reason "$log_folder/apt-update.log"
  fi
}

# Without apt nothing can be installed, but a machine that has everything is fine.
check_headers_without_apt() {
  choose_compiler
  printf '#include <%s>\n' CLI/CLI.hpp gmock/gmock.h gtest/gtest.h hdf5.h nlohmann/json.hpp \
    openssl/evp.h spdlog/spdlog.h yaml-cpp/yaml.h |
    "${CXX:-g++}" -std=c++20 -fsyntax-only -x c++ - 2>"$log_folder/headers.log" ||
    fail "no apt on this platform: install by hand g++ 12, the headers of CLI11, GoogleTest with" \
      "GoogleMock, HDF5 (serial, C), nlohmann-json, OpenSSL, spdlog and yaml-cpp, and CPython 3.10" \
      "to 3.13 with venv; then run this again. Missing: $(grep -m 1 -oE '[^ ]+: No such file' "$log_folder/headers.log" || tail -n 1 "$log_folder/headers.log")"
}

# set_up_system_packages [LINE...]: those of the packages file, and LINEs wanted besides.
set_up_system_packages() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    check_headers_without_apt
    say "system packages: no apt here, and every header needed is there"
    return
  fi
  local unmet=("$@")
  mapfile -t -O $# unmet < <(unmet_packages "$packages_file")
  if [ ${#unmet[@]} -eq 0 ]; then
    say "system packages: all there"
    return
  fi
  install_packages "${unmet[@]}"
  mapfile -t unmet < <(unmet_packages "$packages_file")
  [ ${#unmet[@]} -eq 0 ] || fail "still not installed after apt-get install: ${unmet[*]}"
}

can_be_root() { [ "$EUID" -eq 0 ] || sudo -n true 2>/dev/null; }

# A browser is for tests alone, which are skipped without one: where it is not to be had, set-up goes on.
set_up_browser() {
  local unmet without="tests of the explain page will be skipped"
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    say "browser: no apt to install it by; tests of the explain page look for Chromium"
    return
  fi
  unmet=$(unmet_packages "$browser_file")
  if [ -z "$unmet" ]; then
    say "browser: there"
  elif ! can_be_root; then
    say "browser: no rights to install it; $without"
  elif [ -z "$(first_alternative offered_version "$unmet")" ] && ! refreshed_offer "$unmet"; then
    say "browser: apt offers no '$unmet'; $without"
  else
    require_disk / 1
    install_packages "$unmet"
  fi
}

# Whether apt offers a line once its lists are refreshed.
refreshed_offer() {
  apt update >"$log_folder/apt-update.log" 2>&1 </dev/null || true
  first_alternative offered_version "$1" >/dev/null
}
