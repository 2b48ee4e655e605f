#!/bin/sh
# Sees to it that the browser, the servers and the programs that tests start are installed: Chromium, MariaDB, PostgreSQL,
# iproute2 and nftables (for tests that make a network of their own, and cut it).
#
# Only their programs are needed: tests start servers of their own, on loopback, with data folders of their own, and no
# server of the machine is started, stopped or touched. What is missing is installed with apt when we are root; else a
# sentence says what to do.
set -eu

say() { echo "services: $*" >&2; }

has_mariadb() { PATH="$PATH:/usr/sbin" command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null; }
has_postgres() { ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null; }

has_chromium() { command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; }

# Where users have no /usr/sbin in their PATH they have not the right to make a network either, but to know is cheap.
has_program() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null; }

missing() {
    has_program ip || echo iproute2
    has_program nft || echo nftables
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
    has_program ip || packages="$packages iproute2"
    has_program nft || packages="$packages nftables"
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
say "missing: $(missing | tr '\n' ' '). The tests of the dashboard, of the database connectors and of cut networks need them. Install" \
    "them (Debian and Ubuntu: sudo apt-get install chromium mariadb-server postgresql iproute2 nftables) and run make again."
exit 1
