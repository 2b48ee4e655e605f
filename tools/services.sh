#!/bin/sh
# Sees to it that the browser and the servers that tests start are installed: Chromium, MariaDB, PostgreSQL.
#
# Only their programs are needed: tests start servers of their own, on loopback, with data folders of their own, and no
# server of the machine is started, stopped or touched. What is missing is installed with apt when we are root; else a
# sentence says what to do.
set -eu

say() { echo "services: $*" >&2; }

has_mariadb() { PATH="$PATH:/usr/sbin" command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null; }
has_postgres() { ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null; }

has_chromium() { command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; }

missing() {
    has_chromium || echo chromium
    has_mariadb || echo mariadb
    has_postgres || echo postgres
}

install() { sh "$(dirname "$0")/apt.sh" "$@"; }

install_missing() {
    say "installing $(missing | tr '\n' ' ')with apt"
    packages=
    has_chromium || packages="$packages chromium fonts-dejavu-core"
    has_mariadb || packages="$packages mariadb-server-core mariadb-client-core"
    has_postgres || packages="$packages postgresql-common"
    # shellcheck disable=SC2086  # words of ours
    [ -z "$packages" ] || install $packages || return 1
    if ! has_postgres; then
        # Without this the package would make and start a server of its own.
        sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
        install postgresql postgresql-client || return 1
    fi
}

[ -z "$(missing)" ] && exit
install_missing && [ -z "$(missing)" ] && exit
say "missing: $(missing | tr '\n' ' '). The tests of the dashboard and of the database connectors need them. Install them" \
    "(Debian and Ubuntu: sudo apt-get install chromium mariadb-server postgresql) and run make again."
exit 1
