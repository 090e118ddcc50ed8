#!/bin/sh
# limits.sh FOLDER COMMAND...
#
# Runs COMMAND (which powers the node off) if the node's time is up. To be run each minute.
#   FOLDER/deadline      seconds of the epoch: the node ends then
#   FOLDER/idle_minutes  it ends after so long without a job; "never" or no file: it does not
#   FOLDER/busy          touched while a job runs or files travel; without it, idle since
#                        idle_minutes was written
# Writes nothing. A file that is no number is passed over, and said so.
set -u
[ $# -ge 2 ] || { echo "usage: limits.sh FOLDER COMMAND..." >&2; exit 2; }
folder=$1
shift
now=$(date +%s)

deadline=$(cat "$folder/deadline" 2>/dev/null)
case "$deadline" in
'') ;;
*[!0-9]*) echo "limits: $folder/deadline is no number: $deadline" >&2 ;;
*)
    if [ "$now" -ge "$deadline" ]; then
        echo "limits: the deadline has passed"
        exec "$@"
    fi
    ;;
esac

idle=$(cat "$folder/idle_minutes" 2>/dev/null)
case "$idle" in
'' | never) exit 0 ;;
*[!0-9.]* | *.*.* | .) echo "limits: $folder/idle_minutes is no number: $idle" >&2; exit 0 ;;
esac
since=$(stat -c %Y "$folder/busy" 2>/dev/null || stat -c %Y "$folder/idle_minutes") || exit 0
allowed=$(awk "BEGIN { printf \"%d\", $idle * 60 }")
if [ $((now - since)) -ge "$allowed" ]; then
    echo "limits: no job for $idle minutes"
    exec "$@"
fi
