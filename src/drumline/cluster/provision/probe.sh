# sh -c THIS-FILE sh R: prints R/env/stamp, or an empty line, and then where a Python 3 is
if [ -x "$1/env/bin/python" ] && [ -r "$1/env/stamp" ]; then cat "$1/env/stamp"; fi
echo
for name in /usr/bin/python3 python3 /usr/local/bin/python3 /opt/pytorch/bin/python; do
    if command -v "$name"; then break; fi
done
