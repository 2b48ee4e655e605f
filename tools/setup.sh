#!/bin/sh
# Makes the virtual environment and installs the package with its dependencies. Can be run again at any time.
#
#     sh tools/setup.sh .venv
#
# Python 3.11 is the oldest that Spark 4.3 can be installed on. Where there is none, or where Debian's comes without its
# venv module, it is installed with apt when we are root; else a sentence says what to do.
set -eu

venv=$1
new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
complete='import ensurepip, venv'

say() { echo "set-up: $*" >&2; }

# runs PYTHON CODE: a name on the PATH may be a version manager's shim with nothing behind it, so it is tried.
runs() { "$1" -c "$2" >/dev/null 2>&1; }

# find_python: sets $python to one that can make the environment, the versions that Spark is tested with most first.
find_python() {
    for python in python3.12 python3.11 python3.13 python3.14 python3 python; do
        if runs "$python" "$complete" && runs "$python" "$new_enough"; then return; fi
    done
    return 1
}

# missing_packages: Debian's names of what to try, in order.
missing_packages() {
    for python in python3.12 python3.11 python3.13 python3.14 python3; do
        if runs "$python" "$new_enough"; then
            "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
        fi
    done
    echo python3.12-venv python3.11-venv python3-venv
}

install_python() {
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then return 1; fi
    say "installing Python and its venv module with apt"
    apt-get update -qq >&2 || return 1
    for package in $(missing_packages); do
        if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1; then
            if find_python; then return; fi
        fi
    done
    return 1
}

if ! runs "$venv/bin/python" "import pip; $new_enough"; then
    if ! find_python && ! install_python; then
        say "no Python 3.11 or newer with its venv module was found on the PATH; install one (Debian and Ubuntu: sudo apt-get" \
            "install python3 python3-venv) and run make again."
        exit 1
    fi
    say "making $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

# pip tells a line for each package; what is there already is left out. Its errors go to stderr, past the filter.
say "installing the dependencies (about 500 MB and some minutes the first time; Spark is most of it)"
failed="$venv/.failed"
rm -f "$failed"
{
    "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off --editable '.[dev]' || : >"$failed"
} | while read -r line; do
    case $line in
    Collecting* | Building* | Installing* | Successfully*) echo "set-up: pip: $line" | cut -c 1-120 >&2 ;;
    esac
done
if [ -e "$failed" ]; then
    say "pip could not install the dependencies; its message is above. Is the package registry reachable?"
    exit 1
fi
say "done"
