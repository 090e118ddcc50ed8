# sh -c THIS-FILE make KEY INJECTED…      make a key beside KEY, unless KEY is none of the injected
#                                         ones any more; prints the public key that counts
# sh -c THIS-FILE install KEY COMMAND…    put it in KEY's place, and have the server read it again
set -e
old=$1 new=$1.drumline
shift
if [ "$0" = make ]; then
    umask 077
    in=$(cut -d' ' -f1,2 "$old.pub")
    for injected; do
        if [ "$in" = "$injected" ]; then
            [ -s "$new.pub" ] || { rm -f "$new"; ssh-keygen -q -t ed25519 -N '' -C '' -f "$new"; }
            exec cat "$new.pub"
        fi
    done
    echo "$in"
else
    if [ -e "$new.pub" ]; then
        [ ! -e "$new" ] || mv -f "$new" "$old"
        chmod 644 "$new.pub"
        mv -f "$new.pub" "$old.pub" # last: it says that the private half is in its place
    fi
    "$@"
fi
