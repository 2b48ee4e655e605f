#!/bin/sh
# Prints the home of a Java 17 or newer; Spark needs one.
#
# Looks at JAVA_HOME, at the PATH, and in the usual folders (there the oldest that is new enough, which is what Spark is
# tested with most). Where there is none it is installed with apt when we are root; else a sentence says what to do.
set -eu

oldest=17

say() { echo "java: $*" >&2; }

# inspect COMMAND: "17 /its/home", if it is a Java that runs and is new enough. The command may be a link or a shim.
inspect() {
    properties=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    version=$(echo "$properties" | sed -n 's/^ *java\.specification\.version = //p')
    home=$(echo "$properties" | sed -n 's/^ *java\.home = //p')
    [ -n "$home" ] && [ "${version%%.*}" -ge "$oldest" ] 2>/dev/null && echo "$version $home"
}

inspect_folders() {
    for java in /usr/lib/jvm/*/bin/java /usr/java/*/bin/java /opt/java/*/bin/java /opt/jdk*/bin/java \
        /usr/local/opt/openjdk*/bin/java /opt/homebrew/opt/openjdk*/bin/java \
        /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java "${HOME:-}"/.sdkman/candidates/java/*/bin/java; do
        if [ -x "$java" ]; then inspect "$java" || :; fi
    done | sort -n | head -n 1 | grep .
}

find_java() {
    if [ -n "${JAVA_HOME:-}" ]; then
        inspect "$JAVA_HOME/bin/java" && return
        say "JAVA_HOME ($JAVA_HOME) holds no Java $oldest or newer; looking elsewhere"
    fi
    inspect java || inspect_folders
}

print_home() {
    found=$(find_java) && echo "${found#* }"
}

install_java() {
    say "installing Java with apt (about 200 MB)"
    sh "$(dirname "$0")/apt.sh" openjdk-17-jre-headless || sh "$(dirname "$0")/apt.sh" default-jre-headless
}

print_home && exit
install_java && print_home && exit
say "Java $oldest or newer is needed: install one (Debian and Ubuntu: sudo apt-get install openjdk-17-jre-headless), or set" \
    "JAVA_HOME to it, and run make again."
exit 1
