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
    say "installing Python and its venv module with apt"
    for package in $(missing_packages); do
        if sh "$(dirname "$0")/apt.sh" "$package" 2>/dev/null && find_python; then return; fi
    done
    return 1
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

# pip_setting NAME: what pip is told in its environment or its files.
pip_setting() { pip config list 2>/dev/null | sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" | head -n 1; }

# uv installs the same as pip in half of the time. It does not know pip's settings, so it is told them. Spark comes as a
# source package of jars: to compress them for the moment between its build and its installation takes most of the time.
install_with_uv() {
    pip install --quiet 'uv>=0.8' || return 1
    index=$(pip_setting index-url)
    links=$(pip_setting find-links)
    certificates=$(pip_setting cert)
    (
        if [ -n "$index" ]; then export UV_DEFAULT_INDEX="$index"; fi
        if [ -n "$links" ]; then export UV_FIND_LINKS="$links"; fi
        if [ -n "$certificates" ]; then export SSL_CERT_FILE="$certificates"; fi
        "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" \
            --config-settings-package 'pyspark:--build-option=--compression=stored' --editable '.[dev]'
    )
}

# pip tells a line for each package; what is there already is left out. Its errors go to stderr, past the filter.
install_with_pip() {
    failed="$venv/.failed"
    rm -f "$failed"
    { pip install --progress-bar off --editable '.[dev]' || : >"$failed"; } | while read -r line; do
        case $line in
        Collecting* | Building* | Installing* | Successfully*) echo "set-up: pip: $line" | cut -c 1-120 >&2 ;;
        esac
    done
    [ ! -e "$failed" ]
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

say "installing the dependencies (1.8 GB on the disk, and some minutes the first time)"
if ! install_with_uv; then
    say "uv could not install them; pip tries"
    if ! install_with_pip; then
        say "pip could not install the dependencies; its message is above. Is the package registry reachable?"
        exit 1
    fi
fi
say "done"
