#!/bin/sh
# Prints the paths of a Chromium and of its driver, for the tests of the dashboard.
#
# Debian's packages. Where they are missing they are installed with apt when we are root; else a sentence says what to do.
set -eu

say() { echo "chromium: $*" >&2; }

find_both() {
    browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || return 1
    driver=$(command -v chromedriver) || return 1
    echo "$browser $driver"
}

install_both() {
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then return 1; fi
    say "installing Chromium with apt (about 150 MB)"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2 || return 1
    apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null
}

find_both && exit
install_both && find_both && exit
say "Chromium and its driver are needed: install them (Debian: sudo apt-get install chromium chromium-driver) and run make again."
exit 1
