#!/bin/sh
# Installs packages of the machine: sh tools/apt.sh PACKAGE...  Fails, and says nothing, where there is no apt or we are not
# root.
#
# One at a time, because the parts of the set-up run side by side. The lists of packages are brought up to date at most once
# in an hour. What is installed is flushed to the disk by the system in its own time: a machine that dies can begin again.
set -eu

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then exit 1; fi
alone() { flock -o "${TMPDIR:-/tmp}/tidegate-apt.lock" "$@"; }

export DEBIAN_FRONTEND=noninteractive
is_recent='find /var/lib/apt/lists -maxdepth 1 -name "*Packages*" -mmin -60 | grep -q .'
alone sh -c "$is_recent || apt-get update -qq" >&2
alone apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-unsafe-io "$@" >/dev/null
