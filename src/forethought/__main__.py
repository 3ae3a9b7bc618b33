"""``python -m forethought``: the command line without its script on the path."""

from forethought.cli import main

if __name__ == "__main__":
    main()
