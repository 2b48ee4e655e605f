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

install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }

install_missing() {
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then return 1; fi
    say "installing $(missing | tr '\n' ' ')with apt"
    apt-get update -qq >&2 || return 1
    has_chromium || install chromium fonts-dejavu-core || return 1
    has_mariadb || install mariadb-server-core mariadb-client-core || return 1
    if ! has_postgres; then
        # Without this the package would make and start a server of its own.
        install postgresql-common || return 1
        sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
        install postgresql postgresql-client || return 1
    fi
}

[ -z "$(missing)" ] && exit
install_missing && [ -z "$(missing)" ] && exit
say "missing: $(missing | tr '\n' ' '). The tests of the dashboard and of the database connectors need them. Install them" \
    "(Debian and Ubuntu: sudo apt-get install chromium mariadb-server postgresql) and run make again."
exit 1
