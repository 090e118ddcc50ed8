"""`python -m drumline`, for launchers that start modules."""

from drumline.cli.main import main

main()
