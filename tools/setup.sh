#!/bin/sh
# Makes the virtual environment and installs the package with its dependencies. Can be run again at any time.
#
#     sh tools/setup.sh .venv
#
# Uses the newest of the Pythons it was tested with, else any that is new enough. Where Debian's Python comes without its
# venv module, that is installed with apt when we are root.
set -eu

venv=$1
new_enough='import sys; sys.exit(sys.version_info < (3, 10))'
can_make_venv='import ensurepip, venv'

say() { echo "set-up: $*" >&2; }

# A name on the PATH may be a version manager's shim with nothing behind it, so each is run, not only looked up.
find_python() {
    for candidate in python3.12 python3.11 python3.10 python3 python; do
        if "$candidate" -c "$new_enough; $1" >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

install_venv_module() {
    version=$("$1" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        say "$1 has no venv module: install it (Debian and Ubuntu: sudo apt-get install $version-venv) and run make again."
        exit 1
    fi
    say "installing the venv module of $version with apt"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "$version-venv" >/dev/null ||
        apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
}

if ! "$venv/bin/python" -c "$new_enough; import pip" >/dev/null 2>&1; then
    if ! python=$(find_python "$can_make_venv"); then
        if ! python=$(find_python pass); then
            say "Python 3.10 or newer is needed, and none was found on the PATH: install one and run make again."
            exit 1
        fi
        install_venv_module "$python"
        if ! python=$(find_python "$can_make_venv"); then
            say "$python still cannot make virtual environments: install a Python 3.10 or newer with venv, run make again."
            exit 1
        fi
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
    Collecting* | Building* | Installing* | Successfully*) say "pip: $line" | cut -c 1-120 ;;
    esac
done
if [ -e "$failed" ]; then
    say "pip could not install the dependencies: see its message above. Is the package registry reachable?"
    exit 1
fi
say "done"
