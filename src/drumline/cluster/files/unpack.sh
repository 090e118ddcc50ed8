#!/bin/sh
# unpack.sh ROOT EDITION: makes ROOT/EDITION of the archive on standard input, and lets ROOT/lib lead there
set -e
# What a job runs with is locked; what has just been started may not have come to that yet
remove='
import fcntl, shutil, sys
for name in sys.argv[1:]:
    try:
        with open(name + "/whole", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(name)
    except OSError:
        pass
'
mkdir -p "$1"
cd "$1"
if [ -e "$2/whole" ]; then
    cat > /dev/null  # it was here before, and a job may run with it
else
    new=".$2.$$"
    trap 'rm -rf "$new"' EXIT
    rm -rf "$new"
    mkdir "$new"
    tar -xzf - -C "$new" --no-same-owner
    touch "$new/whole"
    rm -rf "$2"
    mv "$new" "$2"
fi
rm -rf "lib.$$"
ln -s "$2" "lib.$$"
if [ -d lib ] && [ ! -L lib ]; then rm -rf lib; fi
mv -T "lib.$$" lib
touch "$2"
find . -maxdepth 1 -name 'lib-*' ! -name "$2" -mtime +1 -exec python3 -IS -c "$remove" {} +
